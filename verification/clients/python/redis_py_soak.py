"""redis-py against the node, as a long test runs it."""

import redis
from redis.cache import CacheConfig
from redis.sentinel import Sentinel
from soak import HOST, PORT, SENTINEL_PORT, kill, part, same, until

db = redis.Redis(host=HOST, port=PORT)
db.flushall()
subscriber = db.pubsub(ignore_subscribe_messages=True)


def strings():
    assert db.set("a", b"\x00\xff\r\n")
    same(db.get("a"), b"\x00\xff\r\n")
    same(db.get("absent"), None)
    same(db.incr("n", 41), 41)
    same(db.mget("n", "absent"), [b"41", None])


def hashes():
    same(db.hset("h", mapping={"f": "1", "g": "2"}), 2)
    same(db.hgetall("h"), {b"f": b"1", b"g": b"2"})
    same(db.hincrby("h", "f", 2), 3)


def sets():
    same(db.sadd("s", "b", "a"), 2)
    same(db.smembers("s"), {b"a", b"b"})
    try:
        db.get("s")
        raise AssertionError("a set is not a string")
    except redis.ResponseError as error:
        assert str(error).startswith("WRONGTYPE"), error


def transactions():
    same(db.pipeline().set("t", 1).incr("t").get("t").execute(), [True, 2, b"2"])
    with db.pipeline() as txn:
        txn.watch("t")
        db.set("t", "changed")
        txn.multi()
        txn.set("t", "lost")
        try:
            txn.execute()
            raise AssertionError("the watched key has changed")
        except redis.WatchError:
            pass


def pipelines():
    pipeline = db.pipeline(transaction=False)
    for number in range(10_000):
        pipeline.set("{p},%d" % number, number)
    same(pipeline.execute(), [True] * 10_000)


def scan():
    same(len(set(db.scan_iter("{p},*", count=500))), 10_000)


def expiry():
    db.set("e", 1, px=50)
    assert 0 < db.pttl("e") <= 50
    until("the key expires", lambda: db.get("e") is None)


def message():
    """The next message."""
    received = []
    until("a message", lambda: received or received.append(subscriber.get_message(timeout=1)))
    until("a message", lambda: received[0] or received.__setitem__(0, subscriber.get_message()))
    return received[0]["channel"], received[0]["data"]


def pubsub():
    subscriber.subscribe("c")
    subscriber.psubscribe("p*")
    until("subscriptions", lambda: db.pubsub_numpat() == 1 and db.pubsub_numsub("c")[0][1] == 1)
    same(db.publish("c", "one"), 1)
    same(message(), (b"c", b"one"))
    same(db.publish("px", "two"), 1)
    same(message(), (b"px", b"two"))


def caching():
    cached = redis.Redis(host=HOST, port=PORT, protocol=3, cache_config=CacheConfig())
    db.set("k", "1")
    same(cached.get("k"), b"1")
    before = db.info()["total_commands_processed"]
    for _ in range(1000):
        same(cached.get("k"), b"1")
    assert db.info()["total_commands_processed"] - before < 100
    db.set("k", "2")
    until("the cache is invalidated", lambda: cached.get("k") == b"2")
    db.delete("k")
    until("the cache is invalidated", lambda: cached.get("k") is None)
    cached.close()


def sentinel():
    found = Sentinel([(HOST, SENTINEL_PORT)]).master_for("mymaster")
    same(found.get("n"), b"41")
    found.close()


def reconnection():
    db.set("kept", "acknowledged")
    kill()
    same(db.get("kept"), b"acknowledged")

    # redis-py subscribes again by itself, when it reads the next message.
    def is_received():
        try:
            db.publish("c", "after")
            received = subscriber.get_message(timeout=0.1)
            return received is not None and received["data"] == b"after"
        except redis.ConnectionError:
            return False

    until("a subscription", is_received)


for run in [
    strings,
    hashes,
    sets,
    transactions,
    pipelines,
    scan,
    expiry,
    pubsub,
    caching,
    sentinel,
    reconnection,
]:
    part(run)
