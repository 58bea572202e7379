"""Every call of O-RAN's Python SDL client, as an xApp makes them, against the node: directly at its
address and through Sentinel. NEARSTATE_HOST and NEARSTATE_PORT have the address."""

import os
import queue
import time
import unittest

HOST = os.environ["NEARSTATE_HOST"]
PORT = os.environ["NEARSTATE_PORT"]

# Longer than an event takes on a busy machine. Waits end as soon as it arrives.
EVENT_S = 30


def storage(more):
    """A SyncStorage that is configured by the environment only, as in a deployment."""
    for name in [name for name in os.environ if name.startswith("DBAAS_")]:
        del os.environ[name]
    os.environ.update({"DBAAS_SERVICE_HOST": HOST, "DBAAS_SERVICE_PORT": PORT, **more})
    from ricsdl.syncstorage import SyncStorage

    return SyncStorage()


class Calls:
    """Tests that do not depend on how the node is found."""

    more = {}
    ns = ""

    def setUp(self):
        self.sdl = storage(self.more)
        self.sdl.remove_all(self.ns)

    def tearDown(self):
        self.sdl.remove_all(self.ns)
        self.sdl.close()

    def test_it_is_active(self):
        self.assertTrue(self.sdl.is_active())
        self.assertIn("Redis", str(self.sdl))

    def test_values_are_set_got_and_removed(self):
        values = {"a": b"1", "b": b"\x00\xff\r\n", "c": b"", "with,comma": b"x" * 100_000}
        self.assertIsNone(self.sdl.set(self.ns, values))
        self.assertEqual(self.sdl.get(self.ns, set(values) | {"absent"}), values)
        self.sdl.remove(self.ns, {"a", "absent"})
        self.assertEqual(set(self.sdl.get(self.ns, set(values))), set(values) - {"a"})
        self.sdl.remove_all(self.ns)
        self.assertEqual(self.sdl.get(self.ns, set(values)), {})

    def test_setting_nothing_is_refused_as_by_redis(self):
        from ricsdl.exceptions import RejectedByBackend

        with self.assertRaises(RejectedByBackend):
            self.sdl.set(self.ns, {})

    def test_a_condition_holds_for_whole_values(self):
        self.sdl.set(self.ns, {"a": b"x\x00y"})
        self.assertFalse(self.sdl.set_if(self.ns, "a", b"x\x00z", b"new"))
        self.assertTrue(self.sdl.set_if(self.ns, "a", b"x\x00y", b"new"))
        self.assertFalse(self.sdl.set_if(self.ns, "absent", b"", b"new"))
        self.assertEqual(self.sdl.get(self.ns, {"a", "absent"}), {"a": b"new"})
        self.assertFalse(self.sdl.remove_if(self.ns, "a", b"ne"))
        self.assertTrue(self.sdl.remove_if(self.ns, "a", b"new"))
        self.assertFalse(self.sdl.remove_if(self.ns, "a", b"new"))

    def test_what_is_there_is_not_set_again(self):
        self.assertTrue(self.sdl.set_if_not_exists(self.ns, "a", b"1"))
        self.assertFalse(self.sdl.set_if_not_exists(self.ns, "a", b"2"))
        self.assertEqual(self.sdl.get(self.ns, {"a"}), {"a": b"1"})

    def test_keys_are_found_by_pattern_in_their_namespace(self):
        self.sdl.set(self.ns, {"ab1": b"1", "ab2": b"2", "b": b"3"})
        self.sdl.set(self.ns + "x", {"ab3": b"4"})
        self.assertEqual(sorted(self.sdl.find_keys(self.ns, "ab*")), ["ab1", "ab2"])
        self.assertEqual(sorted(self.sdl.find_keys(self.ns, "*")), ["ab1", "ab2", "b"])
        self.assertEqual(self.sdl.find_keys(self.ns, "?[1-9]"), [])
        self.assertEqual(self.sdl.find_and_get(self.ns, "ab?"), {"ab1": b"1", "ab2": b"2"})
        self.assertEqual(self.sdl.find_and_get(self.ns, "none*"), {})
        self.sdl.remove_all(self.ns + "x")

    def test_groups(self):
        members = {b"m1", b"m2", b"\x00\xff"}
        self.sdl.add_member(self.ns, "g", members)
        self.assertEqual(self.sdl.get_members(self.ns, "g"), members)
        self.assertEqual(self.sdl.group_size(self.ns, "g"), 3)
        self.assertTrue(self.sdl.is_member(self.ns, "g", b"m1"))
        self.sdl.remove_member(self.ns, "g", {b"m1", b"absent"})
        self.assertFalse(self.sdl.is_member(self.ns, "g", b"m1"))
        self.assertEqual(self.sdl.group_size(self.ns, "g"), 2)
        self.sdl.remove_group(self.ns, "g")
        self.assertEqual(self.sdl.get_members(self.ns, "g"), set())
        self.assertEqual(self.sdl.group_size(self.ns, "g"), 0)

    def test_a_group_is_no_value(self):
        from ricsdl.exceptions import RejectedByBackend

        self.sdl.add_member(self.ns, "g", {b"m"})
        with self.assertRaisesRegex(RejectedByBackend, "wrong kind of value"):
            self.sdl.set_if(self.ns, "g", b"old", b"new")
        self.assertEqual(self.sdl.get(self.ns, {"g"}), {})

    def test_a_lock_is_held_refreshed_and_released(self):
        from ricsdl.exceptions import RejectedByBackend, BackendError

        lock = self.sdl.get_lock_resource(self.ns, "lock", 100)
        other = self.sdl.get_lock_resource(self.ns, "lock", 100)
        with self.assertRaises(RejectedByBackend):
            lock.get_validity_time()
        self.assertTrue(lock.acquire())
        self.assertIn("'locked'", str(lock).replace('\\', ''))
        self.assertIn("someone else", str(other))
        self.assertFalse(other.acquire(retry_interval=0.01, retry_timeout=0.05))
        self.assertGreater(lock.get_validity_time(), 1)
        lock.refresh()
        self.assertLessEqual(lock.get_validity_time(), 100)
        lock.release()
        self.assertIn("unlocked", str(other))
        self.assertTrue(other.acquire())
        other.release()
        with self.assertRaises(BackendError):
            lock.release()
        with self.sdl.get_lock_resource(self.ns, "lock", 100) as held:
            self.assertGreater(held.get_validity_time(), 1)
        self.assertEqual(self.sdl.find_keys(self.ns, "lock"), [])

    def test_a_lock_that_was_lost_is_neither_refreshed_nor_valid(self):
        from ricsdl.exceptions import RejectedByBackend, BackendError

        lock = self.sdl.get_lock_resource(self.ns, "lock", 100)
        self.assertTrue(lock.acquire())
        self.sdl.set(self.ns, {"lock": b"another token"})
        with self.assertRaisesRegex(RejectedByBackend, "-11"):
            lock.get_validity_time()
        with self.assertRaises(BackendError):
            lock.refresh()
        self.sdl.remove(self.ns, {"lock"})
        with self.assertRaisesRegex(RejectedByBackend, "-10"):
            lock.get_validity_time()

    def next_event(self):
        ends = time.monotonic() + EVENT_S
        while time.monotonic() < ends:
            message = self.sdl.handle_events()
            if message is not None:
                return message
        self.fail("no event came")

    def listen(self, *channels):
        """Subscribes, and waits until the server has done so: the client does not wait."""
        self.sdl.subscribe_channel(self.ns, lambda channel, events: None, set(channels))
        probe = storage(self.more)
        ends = time.monotonic() + EVENT_S
        names = ["{%s},%s" % (self.ns, channel) for channel in channels]
        redis = probe.get_backend().get_redis_connection(self.ns)
        while any(count == 0 for _, count in redis.pubsub_numsub(*names)):
            self.assertLess(time.monotonic(), ends, "the subscription does not arrive")
        probe.close()

    def test_every_write_tells_its_channels(self):
        self.listen("c")
        sdl, ns = self.sdl, self.ns
        sdl.set_and_publish(ns, {"c": "set"}, {"a": b"1", "b": b"2"})
        self.assertEqual(self.next_event(), ("c", ["set"]))
        self.assertTrue(sdl.set_if_and_publish(ns, {"c": ["if", "two"]}, "a", b"1", b"3"))
        self.assertEqual(self.next_event(), ("c", ["if", "two"]))
        self.assertFalse(sdl.set_if_and_publish(ns, {"c": "no"}, "a", b"1", b"4"))
        self.assertTrue(sdl.set_if_not_exists_and_publish(ns, {"c": "nx"}, "n", b"1"))
        self.assertEqual(self.next_event(), ("c", ["nx"]))
        self.assertFalse(sdl.set_if_not_exists_and_publish(ns, {"c": "no"}, "n", b"1"))
        sdl.remove_and_publish(ns, {"c": "removed"}, {"b", "absent"})
        self.assertEqual(self.next_event(), ("c", ["removed"]))
        self.assertFalse(sdl.remove_if_and_publish(ns, {"c": "no"}, "n", b"2"))
        self.assertTrue(sdl.remove_if_and_publish(ns, {"c": "gone"}, "n", b"1"))
        self.assertEqual(self.next_event(), ("c", ["gone"]))
        sdl.remove_and_publish(ns, {"c": "no"}, {"absent"})
        sdl.remove_all_and_publish(ns, {"c": "all"})
        self.assertEqual(self.next_event(), ("c", ["all"]))
        self.assertEqual(sdl.find_keys(ns, "*"), [])

    def test_removing_all_of_nothing_is_refused_as_by_the_module(self):
        from ricsdl.exceptions import RejectedByBackend

        with self.assertRaises(RejectedByBackend):
            self.sdl.remove_all_and_publish(self.ns, {"c": "all"})

    def test_several_channels_are_told_and_others_are_not(self):
        self.listen("c1", "c2")
        told = {"c1": ["x"], "c2": "y", "c3": "z"}
        self.sdl.set_and_publish(self.ns, told, {"a": b"1"})
        self.assertEqual([self.next_event(), self.next_event()], [("c1", ["x"]), ("c2", ["y"])])
        self.sdl.unsubscribe_channel(self.ns, {"c1"})
        ends = time.monotonic() + EVENT_S
        redis = self.sdl.get_backend().get_redis_connection(self.ns)
        while dict(redis.pubsub_numsub("{%s},c1" % self.ns)) != {b"{%s},c1" % self.ns.encode(): 0}:
            self.assertLess(time.monotonic(), ends, "the subscription does not end")
        self.sdl.set_and_publish(self.ns, {"c1": "late"}, {"a": b"1"})
        self.sdl.set_and_publish(self.ns, {"c2": "last"}, {"a": b"1"})
        self.assertEqual(self.next_event(), ("c2", ["last"]))

    def test_a_thread_hands_events_over(self):
        from ricsdl.exceptions import RejectedByBackend

        events = queue.Queue()
        self.listen("c")
        self.sdl.subscribe_channel(
            self.ns, lambda channel, told: events.put((channel, told)), {"c"}
        )
        self.sdl.start_event_listener()
        with self.assertRaises(RejectedByBackend):
            self.sdl.handle_events()
        for number in range(100):
            self.sdl.set_and_publish(self.ns, {"c": str(number)}, {"a": b"%d" % number})
        heard = [events.get(timeout=EVENT_S) for _ in range(100)]
        self.assertEqual(heard, [("c", [str(number)]) for number in range(100)])
        for context in self.sdl.get_backend()._RedisBackend__getClientConns():
            context.pubsub_thread.stop()
            context.pubsub_thread.join()


class AtTheAddress(Calls, unittest.TestCase):
    """A stand-alone back-end."""

    ns = "py-direct"


class BySentinel(Calls, unittest.TestCase):
    """A highly available back-end: the node is its own Sentinel, on the same port."""

    more = {"DBAAS_SERVICE_SENTINEL_PORT": PORT, "DBAAS_MASTER_NAME": "dbaasmaster"}
    ns = "py-sentinel"

    def test_the_master_is_the_node(self):
        redis = self.sdl.get_backend().get_redis_connection(self.ns)
        address = redis.connection_pool.get_master_address()
        self.assertEqual(address, (HOST, int(PORT)))


class ByThreeAddresses(unittest.TestCase):
    """Shards, which the client selects by the namespace. Here all are the same node."""

    def test_namespaces_of_all_shards(self):
        sdl = storage({"DBAAS_CLUSTER_ADDR_LIST": ",".join([HOST] * 3)})
        for namespace in ["one", "two", "three", "four"]:
            sdl.set(namespace, {"a": namespace.encode()})
            self.assertEqual(sdl.get(namespace, {"a"}), {"a": namespace.encode()})
            sdl.remove_all(namespace)
        self.assertTrue(sdl.is_active())
        sdl.close()


class NoServer(unittest.TestCase):
    """The client's error without a server, which proves that the tests above use one."""

    def test_it_is_not_active(self):
        from ricsdl.exceptions import NotConnected

        sdl = storage({"DBAAS_SERVICE_PORT": "1"})
        self.assertFalse(sdl.is_active())
        with self.assertRaises(NotConnected):
            sdl.get("ns", {"a"})


if __name__ == "__main__":
    unittest.main()
