"""Current redis-py against the node: both versions of the protocol, pipelines, transactions,
subscriptions, locks, iterations. NEARSTATE_HOST and NEARSTATE_PORT have the address."""

import os
import threading
import time
import unittest

import redis
from redis.sentinel import Sentinel

HOST = os.environ["NEARSTATE_HOST"]
PORT = int(os.environ["NEARSTATE_PORT"])

# Longer than anything takes on a busy machine. Waits end as soon as their condition holds.
WAIT_S = 30


class Calls:
    """Tests that are the same in both versions of the protocol."""

    protocol = 0

    def client(self, **more):
        return redis.Redis(
            host=HOST, port=PORT, protocol=self.protocol, socket_timeout=WAIT_S, **more
        )

    def setUp(self):
        self.redis = self.client()
        self.redis.flushall()

    def tearDown(self):
        self.redis.close()

    def test_greetings(self):
        self.assertTrue(self.redis.ping())
        self.assertEqual(self.redis.echo("hello"), b"hello")
        self.assertEqual(self.redis.info()["role"], "master")
        self.assertGreater(self.redis.client_id(), 0)
        self.assertTrue(self.redis.client_setname("tester"))
        self.assertIn("tester", [client["name"] for client in self.redis.client_list()])

    def test_the_table_of_commands(self):
        commands = self.redis.command()
        self.assertIn("get", commands)
        self.assertEqual(self.redis.command_count(), len(commands))
        keys = self.redis.command_getkeys("MSET", "a", "1", "b", "2")
        self.assertEqual([getattr(key, "decode", lambda: key)() for key in keys], ["a", "b"])

    def test_strings(self):
        r = self.redis
        self.assertTrue(r.set("a", b"\x00\xff"))
        self.assertEqual(r.get("a"), b"\x00\xff")
        self.assertIsNone(r.set("a", "1", nx=True))
        self.assertEqual(r.set("a", "1", get=True), b"\x00\xff")
        self.assertEqual(r.incr("a", 41), 42)
        self.assertEqual(r.decr("a"), 41)
        self.assertEqual(r.incrbyfloat("a", 0.5), 41.5)
        self.assertEqual(r.append("a", "xyz"), 7)
        self.assertEqual(r.getrange("a", 0, 3), b"41.5")
        self.assertEqual(r.strlen("a"), 7)
        self.assertTrue(r.mset({"b": 1, "c": 2}))
        self.assertEqual(r.mget("b", "c", "d"), [b"1", b"2", None])
        self.assertEqual(r.getdel("b"), b"1")
        self.assertEqual(r.exists("a", "b", "c"), 2)
        with self.assertRaises(redis.ResponseError):
            r.incr("a")

    def test_a_large_value(self):
        value = os.urandom(4 << 20)
        self.redis.set("large", value)
        self.assertEqual(self.redis.get("large"), value)

    def test_hashes(self):
        r = self.redis
        self.assertEqual(r.hset("h", mapping={"f": "1", "g": b"\xff"}), 2)
        self.assertEqual(r.hgetall("h"), {b"f": b"1", b"g": b"\xff"})
        self.assertEqual(r.hincrby("h", "f", 2), 3)
        self.assertEqual(r.hincrbyfloat("h", "f", 0.25), 3.25)
        self.assertEqual(r.hmget("h", "f", "x"), [b"3.25", None])
        self.assertEqual(dict(r.hscan_iter("h")), {b"f": b"3.25", b"g": b"\xff"})
        self.assertEqual(r.hlen("h"), 2)
        self.assertEqual(r.hdel("h", "f", "g"), 2)
        self.assertFalse(r.exists("h"))

    def test_sets(self):
        r = self.redis
        self.assertEqual(r.sadd("s", "a", "b", "c"), 3)
        self.assertEqual(r.smembers("s"), {b"a", b"b", b"c"})
        self.assertTrue(r.sismember("s", "a"))
        self.assertEqual(r.smismember("s", ["a", "x"]), [1, 0])
        self.assertEqual(set(r.sscan_iter("s")), {b"a", b"b", b"c"})
        r.sadd("t", "c", "d")
        self.assertEqual(set(r.sinter("s", "t")), {b"c"})
        self.assertEqual(set(r.sunion("s", "t")), {b"a", b"b", b"c", b"d"})
        self.assertEqual(set(r.sdiff("s", "t")), {b"a", b"b"})
        self.assertIn(r.srandmember("s"), {b"a", b"b", b"c"})
        self.assertEqual(len(r.spop("s", 2)), 2)
        self.assertEqual(r.scard("s"), 1)
        with self.assertRaisesRegex(redis.ResponseError, "wrong kind of value"):
            r.get("s")

    def test_keys_and_ends(self):
        r = self.redis
        r.mset({"{ns},%d" % number: number for number in range(500)})
        r.set("other", 1)
        self.assertEqual(len(set(r.scan_iter("{ns},*", count=7))), 500)
        self.assertEqual(len(set(r.scan_iter())), 501)
        self.assertEqual(len(r.keys("{ns},1?")), 10)
        self.assertEqual(r.dbsize(), 501)
        self.assertEqual(r.type("other"), b"string")
        self.assertTrue(r.expire("other", 1000))
        self.assertGreater(r.ttl("other"), 0)
        self.assertTrue(r.persist("other"))
        self.assertEqual(r.ttl("other"), -1)
        self.assertTrue(r.rename("other", "another"))
        self.assertEqual(r.delete("another", "absent"), 1)
        self.assertTrue(r.set("short", 1, px=1))
        ends = time.monotonic() + WAIT_S
        while r.exists("short"):
            self.assertLess(time.monotonic(), ends, "a key does not end")

    def test_pipelines(self):
        with self.redis.pipeline(transaction=False) as pipe:
            for number in range(5000):
                pipe.set("k%d" % number, "v" * 100).get("k%d" % number)
            answers = pipe.execute()
        self.assertEqual(answers, [True, b"v" * 100] * 5000)
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.set("a", "x").incr("a").get("a")
            first, error, last = pipe.execute(raise_on_error=False)
        self.assertEqual((first, last), (True, b"x"))
        self.assertIsInstance(error, redis.ResponseError)

    def test_transactions(self):
        with self.redis.pipeline() as pipe:
            answers = pipe.set("a", 1).incr("a").hset("h", "f", 1).get("a").execute()
        self.assertEqual(answers, [True, 2, 1, b"2"])

    def test_a_watched_key_that_changes_ends_the_transaction(self):
        other = self.client()
        self.redis.set("a", 1)
        with self.redis.pipeline() as pipe:
            pipe.watch("a")
            value = int(pipe.get("a"))
            other.set("a", 10)
            pipe.multi()
            pipe.set("a", value + 1)
            with self.assertRaises(redis.WatchError):
                pipe.execute()
        self.assertEqual(self.redis.get("a"), b"10")
        other.close()

    def test_many_add_to_one_number_by_watching_it(self):
        self.redis.set("sum", 0)

        def add(pipe):
            value = int(pipe.get("sum"))
            pipe.multi()
            pipe.set("sum", value + 1)

        def work():
            client = self.client()
            for _ in range(50):
                client.transaction(add, "sum")
            client.close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.redis.get("sum"), b"200")

    def message(self, pubsub, kind):
        ends = time.monotonic() + WAIT_S
        while time.monotonic() < ends:
            message = pubsub.get_message(timeout=1)
            if message is not None:
                self.assertEqual(message["type"], kind)
                return message["channel"], message["data"]
        self.fail("no message came")

    def test_subscriptions(self):
        pubsub = self.redis.pubsub()
        pubsub.subscribe("c1", "c2")
        pubsub.psubscribe("p*")
        self.assertEqual(self.message(pubsub, "subscribe"), (b"c1", 1))
        self.assertEqual(self.message(pubsub, "subscribe"), (b"c2", 2))
        self.assertEqual(self.message(pubsub, "psubscribe"), (b"p*", 3))
        self.assertEqual(self.redis.publish("c1", b"\x00\xff"), 1)
        self.assertEqual(self.redis.publish("pattern", "x"), 1)
        self.assertEqual(self.redis.publish("no-subscriber", "x"), 0)
        self.assertEqual(self.message(pubsub, "message"), (b"c1", b"\x00\xff"))
        self.assertEqual(self.message(pubsub, "pmessage"), (b"pattern", b"x"))
        self.assertEqual(sorted(self.redis.pubsub_channels()), [b"c1", b"c2"])
        self.assertEqual(self.redis.pubsub_numsub("c1", "x"), [(b"c1", 1), (b"x", 0)])
        self.assertEqual(self.redis.pubsub_numpat(), 1)
        pubsub.ping("still there")
        self.assertEqual(self.message(pubsub, "pong")[1], b"still there")
        pubsub.unsubscribe("c1")
        self.assertEqual(self.message(pubsub, "unsubscribe"), (b"c1", 2))
        pubsub.close()

    def test_a_lock(self):
        lock = self.redis.lock("lock", timeout=100)
        self.assertTrue(lock.acquire())
        self.assertFalse(self.redis.lock("lock").acquire(blocking=False))
        self.assertTrue(lock.extend(50))
        self.assertTrue(lock.reacquire())
        self.assertTrue(lock.owned())
        lock.release()
        with self.assertRaises(redis.exceptions.LockError):
            lock.release()
        self.assertFalse(lock.locked())

    def test_by_sentinel(self):
        sentinel = Sentinel([(HOST, PORT)], socket_timeout=WAIT_S)
        self.assertEqual(sentinel.discover_master("dbaasmaster"), (HOST, PORT))
        master = sentinel.master_for("dbaasmaster", protocol=self.protocol)
        self.assertTrue(master.set("a", 1))
        self.assertEqual(master.get("a"), b"1")
        master.close()

    def test_what_is_not_offered_names_what_is(self):
        with self.assertRaises(redis.ResponseError):
            self.redis.lpush("l", "x")


class Resp2(Calls, unittest.TestCase):
    """RESP2, which every server and client supports."""

    protocol = 2


class Resp3(Calls, unittest.TestCase):
    """RESP3: HELLO 3, maps and sets, push messages."""

    protocol = 3

    def test_replies_have_their_kinds(self):
        raw = self.client(decode_responses=True)
        raw.response_callbacks.clear()
        raw.hset("h", "f", "1")
        raw.sadd("s", "a")
        self.assertEqual(raw.execute_command("HGETALL", "h"), {"f": "1"})
        self.assertEqual(set(raw.execute_command("SMEMBERS", "s")), {"a"})
        self.assertIsNone(raw.execute_command("GET", "absent"))
        raw.close()


if __name__ == "__main__":
    unittest.main()
