//! Keyspace notifications have Redis' names, regardless of which process changed the records.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![expect(clippy::print_stderr, reason = "reports skipped comparisons if Redis is not installed")]
#![expect(clippy::disallowed_methods, reason = "waits until redis-server accepts connections")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fixture::{TestClient, TestNode, node, node_with, node_with_in, request};
use nearstate_node::executor::{Executor, ExecutorConfig, sleep, timeout, yield_now};
use nearstate_resp::acl::Users;
use nearstate_resp::keyspace_events::KeyspaceEvents;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::{BlockChange, Condition, CreateOptions, Kind, Metadata, Schema};

/// Timeout of a test. It only ends a test that hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(100);

/// Runs a test on an executor, with a server that publishes these events.
fn run(flags: &str, test: impl AsyncFnOnce(&TestNode) + 'static) {
    run_on(node_with(settings(flags)), test);
}

fn settings(flags: &str) -> RespSettings {
    let keyspace_events = KeyspaceEvents::parse(flags.as_bytes()).unwrap();
    RespSettings { keyspace_events, ..RespSettings::new(Users::open(&TABLE)) }
}

fn run_on(node: TestNode, test: impl AsyncFnOnce(&TestNode) + 'static) {
    let executor = Executor::new(&ExecutorConfig::default()).unwrap();
    executor.run(async move {
        node.begin();
        timeout(HANG_TIMEOUT, test(&node)).await.expect("the event is published");
    });
}

/// Each message as `channel payload`, without the common prefix of the channels.
fn messages(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    let message = |lines: &[&str]| match lines {
        ["*4", "$8", "pmessage", _, _, _, channel, _, payload] => {
            let channel = channel.strip_prefix("__key").unwrap();
            Some(format!("{} {payload}", channel.replace("@0__:", " ")))
        }
        _ => None,
    };
    lines.chunks(9).filter_map(message).collect()
}

fn listener(node: &TestNode) -> TestClient {
    let mut client = node.client();
    client.ask("PSUBSCRIBE __key*__:*");
    client
}

/// The messages before this one.
async fn messages_until(listener: &mut TestClient, last: &str) -> Vec<String> {
    let mut all = Vec::new();
    while !all.iter().any(|message| message == last) {
        sleep(Duration::from_millis(1)).await;
        all.extend(messages(&listener.poll_progress()));
    }
    assert_eq!(all.pop().unwrap(), last, "a message follows the last one: {all:?}");
    all
}

/// A redis-server on a socket in its own folder.
struct Redis {
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Redis {
    /// `None` if it is not installed.
    fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(dir.path().join("r"));
        command.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().ok()?;
        let mut redis = Self { child, dir };
        while UnixStream::connect(redis.dir.path().join("r")).is_err() {
            assert!(redis.child.try_wait().unwrap().is_none(), "redis-server has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(redis)
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("r")).unwrap()
    }
}

/// Sends a request to Redis and reads its short reply.
fn ask(redis: &mut UnixStream, words: &str) -> String {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    redis.write_all(&request(&words)).unwrap();
    let mut answer = [0; 1000];
    let bytes = redis.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..bytes]).into_owned()
}

/// The messages that Redis sends before this one.
fn redis_messages_until(listener: &mut UnixStream, last: &str) -> Vec<String> {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 1000];
        let more = listener.read(&mut part).unwrap();
        bytes.extend_from_slice(&part[..more]);
        let mut all = messages(&bytes);
        if all.last().is_some_and(|message| message == last) {
            all.pop();
            return all;
        }
    }
}

/// Commands, the events of Redis, and those of the node if they differ.
const EVENTS: &[(&str, &str, Option<&str>)] = &[
    ("SET k 1", "new set", None),
    ("SET k 2", "set", None),
    ("SETNX k 3", "", None),
    ("GET k", "", None),
    ("DEL k", "del", None),
    ("DEL k", "", None),
    ("HSET k f 1", "new hset", None),
    ("HSET k f 2 g 3", "hset", None),
    ("HDEL k g", "hdel", Some("hset")),
    ("HDEL k f", "hdel del", Some("del")),
    ("SADD k one two", "new sadd", None),
    ("SADD k one", "", None),
    ("SREM k one", "srem", Some("sadd")),
    ("UNLINK k", "del", None),
    ("INCR k", "new incrby", Some("new set")),
    ("APPEND k 1", "append", Some("set")),
    ("EXPIRE k 1000", "expire", Some("set")),
    ("PERSIST k", "persist", Some("set")),
    ("GETDEL k", "del", None),
    ("SETEX k 1000 v", "new set expire", Some("new set")),
    ("DEL k", "del", None),
];

#[test]
fn events_match_redis_or_the_documented_difference() {
    let redis = Redis::start();
    let mut lines = redis.as_ref().map(|redis| [redis.connect(), redis.connect()]);
    if let Some([client, listener]) = &mut lines {
        assert_eq!(ask(client, "CONFIG SET notify-keyspace-events KEAn"), "+OK\r\n");
        assert!(ask(listener, "PSUBSCRIBE __key*__:*").starts_with('*'));
        // The key exists, so later writes do not publish `new`.
        ask(client, "SET mark 0");
        redis_messages_until(listener, "event set mark");
    } else {
        eprintln!("redis-server is not installed: only the node is tested");
    }
    run("", async move |node| {
        let mut client = node.client();
        assert_eq!(client.ask("CONFIG SET notify-keyspace-events KEAn"), "+OK|");
        let mut subscriber = listener(node);
        client.ask("SET mark 0");
        messages_until(&mut subscriber, "event set mark").await;
        let both_channels = |names: &str| -> Vec<String> {
            let names = names.split(' ').filter(|name| !name.is_empty());
            names.flat_map(|name| [format!("space k {name}"), format!("event {name} k")]).collect()
        };
        for (command, by_redis, by_node) in EVENTS {
            let with_mark = |actual: &str| {
                let mut all = both_channels(actual);
                all.push("space mark set".to_owned());
                all
            };
            if let Some([client, listener]) = &mut lines {
                ask(client, command);
                ask(client, "SET mark 0");
                let actual = redis_messages_until(listener, "event set mark");
                assert_eq!(actual, with_mark(by_redis), "redis: {command}");
            }
            client.ask(command);
            client.ask("SET mark 0");
            let actual = messages_until(&mut subscriber, "event set mark").await;
            assert_eq!(actual, with_mark(by_node.unwrap_or(by_redis)), "node: {command}");
        }
        // A record that expires.
        if let Some([client, listener]) = &mut lines {
            ask(client, "SET k v PX 30");
            let actual = redis_messages_until(listener, "event expired k");
            assert_eq!(actual.last().unwrap(), "space k expired");
        }
        client.ask("SET k v PX 30");
        let actual = messages_until(&mut subscriber, "event expired k").await;
        assert_eq!(actual, [both_channels("new set"), vec!["space k expired".to_owned()]].concat());
        // A transaction publishes each record once, with its last change, in order.
        let parts = ["MULTI", "SET k 1", "SET j 1", "SET k 2", "SET mark 1", "EXEC"];
        let answers = parts.map(|part| client.ask(part));
        assert_eq!(answers.last().unwrap(), "*4|+OK|+OK|+OK|+OK|");
        let actual = messages_until(&mut subscriber, "event set mark").await;
        let of_j = ["space j new", "event new j", "space j set", "event set j", "space mark set"];
        assert_eq!(actual, [both_channels("new set"), of_j.map(str::to_owned).to_vec()].concat());
    });
}

#[test]
fn only_enabled_events_are_published_on_enabled_channels() {
    run("Ex", async |node| {
        let (mut client, mut subscriber) = (node.client(), listener(node));
        client.ask("SET k v");
        client.ask("DEL k");
        client.ask("SET k v PX 10");
        assert_eq!(messages_until(&mut subscriber, "event expired k").await, [""; 0]);
        assert_eq!(client.ask("CONFIG SET notify-keyspace-events Kg"), "+OK|");
        client.ask("SET k v");
        client.ask("DEL k");
        assert_eq!(messages_until(&mut subscriber, "space k del").await, [""; 0]);
    });
}

#[test]
fn changes_by_embedded_processes_are_published_with_client_keys() {
    run("KEA", async |node| {
        let session = node.region.session().unwrap();
        let of = |name: &str, kind: Kind| {
            session.namespace(name, &Schema { kind, ..Schema::default() }).unwrap()
        };
        let (values, blocks) = (of("ue", Kind::Value), of("pdu", Kind::Blocks));
        let (mixed, plain) = (of("sdl", Kind::Mixed), of("{}", Kind::Mixed));
        // These namespaces publish nothing.
        let (counters, unaddressable) = (of("hits", Kind::Counters), of("a,b", Kind::Value));
        session.add(counters, b"k", 1).unwrap();
        session.put(unaddressable, b"k", b"v").unwrap();
        let mut client = node.client();
        // The node watches the namespaces from here on.
        assert_eq!(client.ask("CONFIG SET notify-keyspace-events KEA"), "+OK|");
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 4);
        let mut subscriber = listener(node);
        session.put(values, b"imsi-1", b"v").unwrap();
        messages_until(&mut subscriber, "event set {ue},imsi-1").await;
        let block = [BlockChange { name: "f", bytes: Some(b"1") }];
        session.patch(blocks, b"5", &block, Condition::Always).unwrap();
        messages_until(&mut subscriber, "event hset {pdu},5").await;
        // A group of the SDL is a set with its key in braces.
        let members: [&[u8]; 1] = [b"member"];
        session
            .transact(|txn| txn.put_members(mixed, b"{group}", &members, Metadata::default()))
            .unwrap();
        let actual = messages_until(&mut subscriber, "event sadd {sdl},{group}").await;
        assert_eq!(actual, ["space {sdl},{group} sadd"]);
        client.ask("SREM {sdl},{group} member");
        messages_until(&mut subscriber, "event del {sdl},{group}").await;
        session.put(plain, b"bare", b"v").unwrap();
        messages_until(&mut subscriber, "event set bare").await;
        session.put(unaddressable, b"k", b"v").unwrap();
        session.delete(plain, b"bare").unwrap();
        assert_eq!(messages_until(&mut subscriber, "event del bare").await, ["space bare del"]);
    });
}

#[test]
fn the_first_change_in_a_new_namespace_is_published() {
    run("KEA", async |node| {
        let (mut client, mut subscriber) = (node.client(), listener(node));
        for namespace in ["one", "two"] {
            client.ask(&format!("SET {{{namespace}}},k v"));
            let last = format!("event set {{{namespace}}},k");
            let actual = messages_until(&mut subscriber, &last).await;
            assert_eq!(actual, [format!("space {{{namespace}}},k set")]);
        }
        // Another process created the namespace. A client of the node writes first.
        let session = node.region.session().unwrap();
        session.namespace("three", &Schema::default()).unwrap();
        client.ask("SET {three},k v");
        assert_eq!(
            messages_until(&mut subscriber, "event set {three},k").await,
            ["space {three},k set"]
        );
    });
}

#[test]
fn a_namespace_created_later_by_an_embedded_process_is_watched() {
    run("KEA", async |node| {
        let mut subscriber = listener(node);
        let session = node.region.session().unwrap();
        let later = session.namespace("later", &Schema::default()).unwrap();
        let counts = &node.server.keyspace.counts;
        while counts.watched.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        session.put(later, b"k", b"v").unwrap();
        assert_eq!(
            messages_until(&mut subscriber, "event set {later},k").await,
            ["space {later},k set"]
        );
    });
}

/// Namespaces that fit into 64 MiB with their rings of events, at least: 2,441 rings of one size
/// filled it.
const NAMESPACES_MIN: u32 = 8000;

/// More than a catalog has.
const NAMESPACES_ONE_BY_ONE: u32 = 70_000;

/// Namespaces are counted by memory, with their rings. When they fill the region and are emptied,
/// their entries and rings serve others.
#[test]
fn a_region_filled_by_namespaces_with_events_takes_others_after_they_were_emptied() {
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    // Without the notifier: a namespace is watched by its creator.
    let node = node_with_in(settings("KEA"), &options);
    let mut client = node.client();
    let mut count = 0;
    while client.ask(&format!("SET {{n{count}}},k v")) == "+OK|" {
        count += 1;
        assert!(count < NAMESPACES_ONE_BY_ONE, "64 MiB have an end");
    }
    assert!(count >= NAMESPACES_MIN, "{count} namespaces fill 64 MiB");
    assert!(client.ask("SET {more},k v").starts_with("-OOM "), "the region is full");
    for number in 0..count {
        assert_eq!(client.ask(&format!("DEL {{n{number}}},k")), ":1|", "{number}");
    }
    for number in 0..count {
        assert_eq!(client.ask(&format!("SET {{later{number}}},k v")), "+OK|", "{number}");
        assert_eq!(client.ask(&format!("DEL {{later{number}}},k")), ":1|");
    }
}

/// Empty namespaces are removed before one that is new does not fit into the catalog.
#[test]
fn more_namespaces_than_a_catalog_has_come_and_go_one_by_one() {
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let node = node_with_in(RespSettings::new(Users::open(&TABLE)), &options);
    let mut client = node.client();
    for number in 0..NAMESPACES_ONE_BY_ONE {
        assert_eq!(client.ask(&format!("SET {{n{number}}},k v")), "+OK|", "{number}");
        assert_eq!(client.ask(&format!("DEL {{n{number}}},k")), ":1|");
    }
    let value = vec![b'v'; 1 << 20];
    for number in 0..16_u8 {
        assert_eq!(client.ask_bytes(&[b"SET", &[number], &value]), "+OK|", "{number}");
    }
}

#[test]
fn lost_events_are_counted_and_later_events_are_published() {
    run("KEA", async |node| {
        let (mut client, mut subscriber) = (node.client(), listener(node));
        client.ask("SET {ns},k v");
        messages_until(&mut subscriber, "event set {ns},k").await;
        assert!(client.ask("INFO stats").contains("|keyspace_events_lost:0|"));
        let session = node.region.session().unwrap();
        let namespace = session.known_namespace("ns").unwrap().unwrap();
        // The notifier does not run during this loop, and writers do not wait for it.
        for number in 0_u32..100_000 {
            session.put(namespace, &number.to_le_bytes(), b"v").unwrap();
        }
        while node.server.keyspace.counts.lost.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        client.ask("SET {ns},k v");
        assert_eq!(messages_until(&mut subscriber, "event set {ns},k").await, ["space {ns},k set"]);
        let info = client.ask("INFO stats");
        assert!(info.contains("|keyspace_events_lost:100000|"), "{info}");
        assert!(info.contains("|keyspace_namespaces_watched:1|"), "{info}");
        assert!(info.contains("|keyspace_events_seen:2|"), "{info}");
        assert!(info.contains("|keyspace_watches_failed:0|"), "{info}");
    });
}

/// Size of the event ring of a namespace.
const RING: u64 = 1 << 20;

#[test]
fn namespaces_are_watched_only_if_an_event_that_occurs_is_enabled() {
    run("", async |node| {
        let taken = || node.region.inspect().unwrap().bytes_taken;
        let (mut client, mut subscriber) = (node.client(), listener(node));
        let before = taken();
        for (number, flags) in ["", "KE", "A", "Kltzedm"].into_iter().enumerate() {
            client.ask_bytes(&[b"CONFIG", b"SET", b"notify-keyspace-events", flags.as_bytes()]);
            client.ask(&format!("SET {{n{number}}},k v"));
            // The notifier runs if it is ready.
            for _ in 0..100 {
                yield_now().await;
            }
        }
        assert!(taken() < before + RING, "no ring was created");
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 0);
        assert_eq!(client.ask("CONFIG SET notify-keyspace-events KEA"), "+OK|");
        assert!(taken() >= before + 4 * RING, "a ring for each namespace");
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 4);
        client.ask("SET {n0},k v");
        messages_until(&mut subscriber, "event set {n0},k").await;
        let seen = || node.server.keyspace.counts.seen.load(Ordering::Relaxed);
        let had = seen();
        client.ask_bytes(&[b"CONFIG", b"SET", b"notify-keyspace-events", b""]);
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 0);
        client.ask("SET {n0},k v");
        // Enabled again: earlier changes are not published, later ones are.
        assert_eq!(client.ask("CONFIG SET notify-keyspace-events KEA"), "+OK|");
        client.ask("DEL {n0},k");
        assert_eq!(messages_until(&mut subscriber, "event del {n0},k").await, ["space {n0},k del"]);
        assert_eq!(seen(), had + 1);
    });
}

#[test]
fn notify_keyspace_events_is_configured_like_in_redis() {
    let node = node();
    let mut client = node.client();
    let failed = |name: &str, why: &str| {
        format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}|")
    };
    let unknown = "-ERR Unknown option or number of arguments for CONFIG SET - 'foo'|".to_owned();
    let shown = |flags: &str| format!("*2|$22|notify-keyspace-events|${}|{flags}|", flags.len());
    let invalid = "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";
    let name = "notify-keyspace-events";
    for (words, answer) in [
        ("GET notify-keyspace-events", shown("")),
        ("SET notify-keyspace-events KEA", "+OK|".to_owned()),
        ("GET notify-keyspace-events", shown("AKE")),
        ("SET Notify-Keyspace-Events gxE", "+OK|".to_owned()),
        ("GET notify-*", shown("gxE")),
        ("SET notify-keyspace-events Kq", failed(name, invalid)),
        ("SET foo bar", unknown.clone()),
        ("SET notify-keyspace-events KEA foo bar", unknown),
        ("SET databases 3", failed("databases", "can't set immutable config")),
        (
            "SET notify-keyspace-events K notify-keyspace-events E",
            failed(name, "duplicate parameter"),
        ),
        ("SET notify-keyspace-events KEA maxmemory", "-ERR syntax error|".to_owned()),
        ("SET port", "-ERR wrong number of arguments for 'config|set' command|".to_owned()),
        ("GET notify-keyspace-events", shown("gxE")),
    ] {
        assert_eq!(client.ask(&format!("CONFIG {words}")), answer, "{words}");
    }
    client.ask("MULTI");
    client.ask("CONFIG SET notify-keyspace-events KEA");
    let refused = client.ask("EXEC");
    assert!(refused.contains("CONFIG SET is not allowed between MULTI and EXEC"), "{refused}");
}
