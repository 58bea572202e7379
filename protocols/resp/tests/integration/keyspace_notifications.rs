//! Keyspace notifications have Redis' names, regardless of which process changed the records.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![expect(clippy::print_stderr, reason = "says what was left out, where Redis is missing")]
#![expect(clippy::disallowed_methods, reason = "waits until another process listens")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fixture::{TestClient, TestNode, node, node_with, request};
use nearstate_node::executor::{Executor, ExecutorConfig, sleep, timeout};
use nearstate_resp::acl::Users;
use nearstate_resp::keyspace_events::KeyspaceEvents;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::{BlockChange, Condition, Kind, Metadata, Schema};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(100);

/// Runs a test on an executor, with a server that tells these events from the start.
fn run(deliveries: &str, test: impl AsyncFnOnce(&TestNode) + 'static) {
    let keyspace_events = KeyspaceEvents::parse(deliveries.as_bytes()).unwrap();
    let node =
        node_with(RespSettings { keyspace_events, ..RespSettings::new(Users::open(&TABLE)) });
    let executor = Executor::new(&ExecutorConfig::default()).unwrap();
    executor.run(async move {
        node.begin();
        timeout(LONG, test(&node)).await.expect("it was not told in time");
    });
}

/// Each message as `channel payload`, without what all channels begin with.
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

/// What a listener is told until this one message, which is left out.
async fn told_until(listener: &mut TestClient, last: &str) -> Vec<String> {
    let mut all = Vec::new();
    while !all.iter().any(|message| message == last) {
        sleep(Duration::from_millis(1)).await;
        all.extend(messages(&listener.poll_progress()));
    }
    assert_eq!(all.pop().unwrap(), last, "something came after the last: {all:?}");
    all
}

/// A server of Debian's Redis on a socket in a folder of its own.
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

/// Sends a request to Redis and reads its answer, which is short.
fn ask(redis: &mut UnixStream, words: &str) -> String {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    redis.write_all(&request(&words)).unwrap();
    let mut answer = [0; 1000];
    let bytes = redis.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..bytes]).into_owned()
}

/// What Redis tells a client until this one message, which is left out.
fn redis_told_until(listener: &mut UnixStream, last: &str) -> Vec<String> {
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

/// Commands, what they are told as by Redis, and what by the node if that differs.
const TOLD: &[(&str, &str, Option<&str>)] = &[
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
    if let Some([asker, listener]) = &mut lines {
        assert_eq!(ask(asker, "CONFIG SET notify-keyspace-events KEAn"), "+OK\r\n");
        assert!(ask(listener, "PSUBSCRIBE __key*__:*").starts_with('*'));
        // So that no mark is new.
        ask(asker, "SET mark 0");
        redis_told_until(listener, "event set mark");
    } else {
        eprintln!("redis-server is not installed: only the node's side is looked at");
    }
    run("", async move |node| {
        let mut asker = node.client();
        assert_eq!(asker.ask("CONFIG SET notify-keyspace-events KEAn"), "+OK|");
        let mut hears = listener(node);
        asker.ask("SET mark 0");
        told_until(&mut hears, "event set mark").await;
        let spelled = |names: &str| -> Vec<String> {
            let names = names.split(' ').filter(|name| !name.is_empty());
            names.flat_map(|name| [format!("space k {name}"), format!("event {name} k")]).collect()
        };
        for (command, by_redis, by_node) in TOLD {
            let with_mark = |actual: &str| {
                let mut all = spelled(actual);
                all.push("space mark set".to_owned());
                all
            };
            if let Some([asker, listener]) = &mut lines {
                ask(asker, command);
                ask(asker, "SET mark 0");
                let actual = redis_told_until(listener, "event set mark");
                assert_eq!(actual, with_mark(by_redis), "redis: {command}");
            }
            asker.ask(command);
            asker.ask("SET mark 0");
            let actual = told_until(&mut hears, "event set mark").await;
            assert_eq!(actual, with_mark(by_node.unwrap_or(by_redis)), "node: {command}");
        }
        // A record that ends by itself.
        if let Some([asker, listener]) = &mut lines {
            ask(asker, "SET k v PX 30");
            let actual = redis_told_until(listener, "event expired k");
            assert_eq!(actual.last().unwrap(), "space k expired");
        }
        asker.ask("SET k v PX 30");
        let actual = told_until(&mut hears, "event expired k").await;
        assert_eq!(actual, [spelled("new set"), vec!["space k expired".to_owned()]].concat());
        // A transaction is told in its order, each record once: what became of it.
        let parts = ["MULTI", "SET k 1", "SET j 1", "SET k 2", "SET mark 1", "EXEC"];
        let answers = parts.map(|part| asker.ask(part));
        assert_eq!(answers.last().unwrap(), "*4|+OK|+OK|+OK|+OK|");
        let actual = told_until(&mut hears, "event set mark").await;
        let of_j = ["space j new", "event new j", "space j set", "event set j", "space mark set"];
        assert_eq!(actual, [spelled("new set"), of_j.map(str::to_owned).to_vec()].concat());
    });
}

#[test]
fn only_enabled_events_are_published_on_enabled_channels() {
    run("Ex", async |node| {
        let (mut asker, mut hears) = (node.client(), listener(node));
        asker.ask("SET k v");
        asker.ask("DEL k");
        asker.ask("SET k v PX 10");
        assert_eq!(told_until(&mut hears, "event expired k").await, [""; 0]);
        assert_eq!(asker.ask("CONFIG SET notify-keyspace-events Kg"), "+OK|");
        asker.ask("SET k v");
        asker.ask("DEL k");
        assert_eq!(told_until(&mut hears, "space k del").await, [""; 0]);
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
        // They are watched neither to be told of nor by mistake.
        let (counters, unsaid) = (of("hits", Kind::Counters), of("a,b", Kind::Value));
        session.add(counters, b"k", 1).unwrap();
        session.put(unsaid, b"k", b"v").unwrap();
        let mut asker = node.client();
        // The namespaces are known from here on.
        assert_eq!(asker.ask("CONFIG SET notify-keyspace-events KEA"), "+OK|");
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 4);
        let mut hears = listener(node);
        session.put(values, b"imsi-1", b"v").unwrap();
        told_until(&mut hears, "event set {ue},imsi-1").await;
        let block = [BlockChange { name: "f", bytes: Some(b"1") }];
        session.patch(blocks, b"5", &block, Condition::Always).unwrap();
        told_until(&mut hears, "event hset {pdu},5").await;
        // A group of the SDL is a set whose key is in braces.
        let members: [&[u8]; 1] = [b"member"];
        session
            .transact(|txn| txn.put_members(mixed, b"{group}", &members, Metadata::default()))
            .unwrap();
        let actual = told_until(&mut hears, "event sadd {sdl},{group}").await;
        assert_eq!(actual, ["space {sdl},{group} sadd"]);
        asker.ask("SREM {sdl},{group} member");
        told_until(&mut hears, "event del {sdl},{group}").await;
        session.put(plain, b"bare", b"v").unwrap();
        told_until(&mut hears, "event set bare").await;
        session.put(unsaid, b"k", b"v").unwrap();
        session.delete(plain, b"bare").unwrap();
        assert_eq!(told_until(&mut hears, "event del bare").await, ["space bare del"]);
    });
}

#[test]
fn the_first_change_in_a_new_namespace_is_published() {
    run("KEA", async |node| {
        let (mut asker, mut hears) = (node.client(), listener(node));
        for namespace in ["one", "two"] {
            asker.ask(&format!("SET {{{namespace}}},k v"));
            let last = format!("event set {{{namespace}}},k");
            let actual = told_until(&mut hears, &last).await;
            assert_eq!(actual, [format!("space {{{namespace}}},k set")]);
        }
        // Another process has made it, and a client of the node is the first to write there.
        let session = node.region.session().unwrap();
        session.namespace("three", &Schema::default()).unwrap();
        asker.ask("SET {three},k v");
        assert_eq!(told_until(&mut hears, "event set {three},k").await, ["space {three},k set"]);
    });
}

#[test]
fn a_namespace_created_later_by_an_embedded_process_is_watched() {
    run("KEA", async |node| {
        let mut hears = listener(node);
        let session = node.region.session().unwrap();
        let later = session.namespace("later", &Schema::default()).unwrap();
        let counts = &node.server.keyspace.counts;
        while counts.watched.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        session.put(later, b"k", b"v").unwrap();
        assert_eq!(told_until(&mut hears, "event set {later},k").await, ["space {later},k set"]);
    });
}

#[test]
fn lost_events_are_counted_and_later_events_are_published() {
    run("KEA", async |node| {
        let (mut asker, mut hears) = (node.client(), listener(node));
        asker.ask("SET {ns},k v");
        told_until(&mut hears, "event set {ns},k").await;
        assert!(asker.ask("INFO stats").contains("|keyspace_events_lost:0|"));
        let session = node.region.session().unwrap();
        let namespace = session.known_namespace("ns").unwrap().unwrap();
        // The task has no turn meanwhile, and no writer waits for it.
        for number in 0_u32..100_000 {
            session.put(namespace, &number.to_le_bytes(), b"v").unwrap();
        }
        while node.server.keyspace.counts.lost.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        asker.ask("SET {ns},k v");
        assert_eq!(told_until(&mut hears, "event set {ns},k").await, ["space {ns},k set"]);
        let info = asker.ask("INFO stats");
        assert!(info.contains("|keyspace_events_lost:100000|"), "{info}");
        assert!(info.contains("|keyspace_namespaces_watched:1|"), "{info}");
        assert!(info.contains("|keyspace_events_seen:2|"), "{info}");
        assert!(info.contains("|keyspace_watches_failed:0|"), "{info}");
    });
}

/// What a namespace's ring of events takes.
const RING: u64 = 1 << 20;

#[test]
fn namespaces_are_watched_only_if_an_event_that_occurs_is_enabled() {
    run("", async |node| {
        let taken = || node.region.inspect().unwrap().bytes_taken;
        let (mut asker, mut hears) = (node.client(), listener(node));
        let before = taken();
        for (number, deliveries) in ["", "KE", "A", "Kltzedm"].into_iter().enumerate() {
            asker.ask_bytes(&[b"CONFIG", b"SET", b"notify-keyspace-events", deliveries.as_bytes()]);
            asker.ask(&format!("SET {{n{number}}},k v"));
            sleep(Duration::from_millis(1)).await;
        }
        assert!(taken() < before + RING, "no ring was made");
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 0);
        assert_eq!(asker.ask("CONFIG SET notify-keyspace-events KEA"), "+OK|");
        assert!(taken() >= before + 4 * RING, "a ring for each namespace");
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 4);
        asker.ask("SET {n0},k v");
        told_until(&mut hears, "event set {n0},k").await;
        let seen = || node.server.keyspace.counts.seen.load(Ordering::Relaxed);
        let had = seen();
        asker.ask_bytes(&[b"CONFIG", b"SET", b"notify-keyspace-events", b""]);
        assert_eq!(node.server.keyspace.counts.watched.load(Ordering::Relaxed), 0);
        asker.ask("SET {n0},k v");
        // Chosen again: what happened meanwhile is not told, what happens now is.
        assert_eq!(asker.ask("CONFIG SET notify-keyspace-events KEA"), "+OK|");
        asker.ask("DEL {n0},k");
        assert_eq!(told_until(&mut hears, "event del {n0},k").await, ["space {n0},k del"]);
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
    let shown = |deliveries: &str| {
        format!("*2|$22|notify-keyspace-events|${}|{deliveries}|", deliveries.len())
    };
    let delivery = "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";
    let name = "notify-keyspace-events";
    for (words, answer) in [
        ("GET notify-keyspace-events", shown("")),
        ("SET notify-keyspace-events KEA", "+OK|".to_owned()),
        ("GET notify-keyspace-events", shown("AKE")),
        ("SET Notify-Keyspace-Events gxE", "+OK|".to_owned()),
        ("GET notify-*", shown("gxE")),
        ("SET notify-keyspace-events Kq", failed(name, delivery)),
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
    assert!(refused.contains("CONFIG is not allowed between MULTI and EXEC"), "{refused}");
}
