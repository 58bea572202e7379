"""What the Python clients share in a long test. `ok NAME` on standard output reports a part that
passed. `kill` asks for a SIGKILL of the node; a line on standard input reports that it runs again,
with the same region."""

import os
import sys
import time

HOST = os.environ["NEARSTATE_HOST"]
PORT = int(os.environ["NEARSTATE_PORT"])
SENTINEL_PORT = int(os.environ["NEARSTATE_SENTINEL_PORT"])


def part(run):
    """Runs a function and reports its name."""
    run()
    print(f"ok {run.__name__}", flush=True)


def kill():
    """The node is killed and runs again after this call."""
    print("kill", flush=True)
    same(sys.stdin.readline(), "restarted\n")


def same(actual, expected):
    """Checks a value."""
    assert actual == expected, f"got {actual!r}, expected {expected!r}"


def until(what, condition):
    """Waits until a condition holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"{what}: 30 s"
        time.sleep(0.002)
