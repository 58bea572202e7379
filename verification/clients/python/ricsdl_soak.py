"""O-RAN's Python SDL client against the node, as a long test runs it."""

import os

from soak import HOST, PORT, SENTINEL_PORT, kill, part, same, until


def storage(**more):
    """A storage that the environment configures, as in a deployment."""
    for name in [name for name in os.environ if name.startswith("DBAAS_")]:
        del os.environ[name]
    os.environ.update({"DBAAS_SERVICE_HOST": HOST, "DBAAS_SERVICE_PORT": str(PORT), **more})
    from ricsdl.syncstorage import SyncStorage

    return SyncStorage()


sdl = storage()
sdl.remove_all("soak")


def strings():
    values = {"a": b"\x00\xff\r\n", "b": b"", "c": b"x" * 100_000}
    sdl.set("soak", values)
    same(sdl.get("soak", {"a", "b", "c", "absent"}), values)
    assert sdl.set_if("soak", "b", b"", b"new")
    assert not sdl.set_if("soak", "b", b"", b"newer")


def sets():
    sdl.add_member("soak", "g", {b"m1", b"m2"})
    same(sdl.get_members("soak", "g"), {b"m1", b"m2"})


def scan():
    same(sorted(sdl.find_keys("soak", "*")), ["a", "b", "c", "g"])


def expiry():
    lock = sdl.get_lock_resource("soak", "lock", 1)
    other = sdl.get_lock_resource("soak", "lock", 1)
    assert lock.acquire()
    assert other.acquire(retry_interval=0.01, retry_timeout=30), "the lock expires"
    other.release()


def pubsub():
    sdl.subscribe_channel("soak", lambda channel, events: None, {"c"})
    probe = storage().get_backend().get_redis_connection("soak")
    until("a subscription", lambda: probe.pubsub_numsub("{soak},c")[0][1] == 1)
    sdl.set_and_publish("soak", {"c": "event"}, {"a": b"1"})
    events = []
    until("an event", lambda: events.append(sdl.handle_events()) or events[-1] is not None)
    same(events[-1], ("c", ["event"]))


def sentinel():
    more = {"DBAAS_SERVICE_SENTINEL_PORT": str(SENTINEL_PORT), "DBAAS_MASTER_NAME": "dbaasmaster"}
    found = storage(**more)
    same(found.get("soak", {"a"}), {"a": b"1"})
    found.close()


def reconnection():
    from ricsdl.exceptions import NotConnected

    sdl.set("soak", {"kept": b"acknowledged"})
    kill()

    def is_connected():
        try:
            return sdl.get("soak", {"kept"}) == {"kept": b"acknowledged"}
        except NotConnected:
            return False

    until("a connection", is_connected)


for run in [strings, sets, scan, expiry, pubsub, sentinel, reconnection]:
    part(run)
