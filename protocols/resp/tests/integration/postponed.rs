//! Requests that run later, at a node with sockets: after failed authentications, during
//! `CLIENT PAUSE`, and `WAIT`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::fixture::{SocketNode, request};
use nearstate_node::ConnectionLimits;
use nearstate_resp::acl::Users;
use nearstate_resp::auth_limit::FREE_FAILURES;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;

/// A node whose default user has the password `letmein`.
fn guarded() -> SocketNode {
    let users = Users::parse("user default on >letmein +@all ~* &*", &TABLE).unwrap();
    SocketNode::start(1, RespSettings::new(users), ConnectionLimits::default())
}

fn open() -> SocketNode {
    let settings = RespSettings::new(Users::open(&TABLE));
    SocketNode::start(1, settings, ConnectionLimits::default())
}

/// Sends bytes, and returns the next line of the reply.
fn ask(stream: &mut UnixStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).unwrap();
    line(stream)
}

fn line(stream: &mut UnixStream) -> String {
    let (mut reply, mut byte) = (Vec::new(), [0]);
    while !reply.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).unwrap();
        reply.extend_from_slice(&byte);
    }
    String::from_utf8(reply).unwrap()
}

/// An inline `AUTH` with a password of this length.
fn inline_auth(bytes: usize) -> Vec<u8> {
    [b"AUTH ".as_slice(), &vec![b'p'; bytes], b"\r\n"].concat()
}

#[test]
fn a_postponed_authentication_is_not_parsed_again() {
    let node = guarded();
    let mut client = node.connect();
    for _ in 0..=FREE_FAILURES {
        assert!(ask(&mut client, b"AUTH wrong\r\n").starts_with("-WRONGPASS "));
    }
    // Each runs after a delay. As an array, the quotes and the length would be others.
    for request in [inline_auth(16 << 10), b"HELLO 3 AUTH default 'a b\\'c'\r\n".to_vec()] {
        assert!(ask(&mut client, &request).starts_with("-WRONGPASS "));
    }
    let refused = ask(&mut client, &inline_auth((16 << 10) + 1));
    assert_eq!(refused, "-ERR Protocol error: unauthenticated bulk length\r\n");
    let mut other = node.connect();
    assert!(ask(&mut other, b"PING\r\n").starts_with("-NOAUTH "), "the node serves others");
}

#[test]
fn a_paused_request_may_be_longer_as_an_array_than_the_limit_of_requests() {
    let users = Users::open(&TABLE);
    let settings = RespSettings { request_bytes_max: 64 << 10, ..RespSettings::new(users) };
    let node = SocketNode::start(1, settings, ConnectionLimits::default());
    let (mut operator, mut client) = (node.connect(), node.connect());
    assert_eq!(ask(&mut operator, b"CLIENT PAUSE 3600000 WRITE\r\n"), "+OK\r\n");
    // Two bytes of each key inline, eight as an array.
    client.write_all(&[b"DEL".as_slice(), &b" a".repeat(12_000), b"\r\n"].concat()).unwrap();
    while node.server.client_count() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(ask(&mut operator, b"CLIENT UNPAUSE\r\n"), "+OK\r\n");
    assert_eq!(line(&mut client), ":0\r\n");
}

/// Only a broken node makes this loop endless.
fn wait_for_open_connections(node: &SocketNode, count: u64) {
    while node.node.stats().total().0.open() != count {
        std::thread::yield_now();
    }
}

#[test]
fn the_end_of_a_client_whose_request_waits_is_noticed() {
    let node = open();
    let mut operator = node.connect();
    assert_eq!(ask(&mut operator, b"PING\r\n"), "+PONG\r\n");
    // No follower exists, so the first never ends.
    let requests = [b"WAIT 1 0\r\nPING\r\n".as_slice(), b"SET k v\r\n"];
    for (paused, bytes) in [false, true].into_iter().zip(requests) {
        if paused {
            assert_eq!(ask(&mut operator, b"CLIENT PAUSE 3600000 WRITE\r\n"), "+OK\r\n");
        }
        let mut client = node.connect();
        client.write_all(bytes).unwrap();
        wait_for_open_connections(&node, 2);
        // It is served, and now waits.
        while node.server.client_count() < 2 {
            std::thread::yield_now();
        }
        drop(client);
        wait_for_open_connections(&node, 1);
    }
    assert_eq!(ask(&mut operator, b"CLIENT UNPAUSE\r\n"), "+OK\r\n");
    assert_eq!(ask(&mut operator, b"GET k\r\n"), "$-1\r\n", "a paused write ends with its client");
}

#[test]
fn requests_behind_one_that_waits_are_answered_after_it() {
    let node = open();
    let (mut operator, mut client) = (node.connect(), node.connect());
    assert_eq!(ask(&mut operator, b"CLIENT PAUSE 3600000 WRITE\r\n"), "+OK\r\n");
    client.write_all(b"SET k v\r\n").unwrap();
    // More than the node reads ahead, in pieces that split requests.
    let value = vec![b'x'; 30_000];
    let later: Vec<u8> = (0..10).flat_map(|_| request(&[b"ECHO", &value])).collect();
    let seen = node.node.stats().total().0.bytes_read;
    let mut sender = client.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| later.chunks(1001).for_each(|part| sender.write_all(part).unwrap()));
        while node.node.stats().total().0.bytes_read < seen + 1000 {
            std::thread::yield_now();
        }
        assert_eq!(ask(&mut operator, b"CLIENT UNPAUSE\r\n"), "+OK\r\n");
        assert_eq!(line(&mut client), "+OK\r\n");
        for _ in 0..10 {
            assert_eq!(line(&mut client), "$30000\r\n");
            assert_eq!(line(&mut client).len(), 30_002);
        }
    });
}

#[test]
fn requests_of_one_pipeline_run_in_order_behind_one_that_waits() {
    let node = open();
    let (mut operator, mut client) = (node.connect(), node.connect());
    let sent = [
        "SET k 1",
        "CLIENT PAUSE 3600000 WRITE",
        "GET k",
        "INCR k",
        "GET k",
        "MULTI",
        "INCR k",
        "GET k",
        "EXEC",
        "GET k",
    ];
    let words = |line: &'static str| line.split(' ').map(str::as_bytes).collect::<Vec<_>>();
    let pipeline: Vec<u8> = sent.iter().flat_map(|line| request(&words(line))).collect();
    client.write_all(&pipeline).unwrap();
    for reply in ["+OK", "+OK", "$1", "1"] {
        assert_eq!(line(&mut client).trim_end(), reply);
    }
    assert_eq!(ask(&mut operator, b"GET k\r\n"), "$1\r\n", "the write waits");
    assert_eq!(line(&mut operator), "1\r\n");
    assert_eq!(ask(&mut operator, b"CLIENT UNPAUSE\r\n"), "+OK\r\n");
    let replies = [":2", "$1", "2", "+OK", "+QUEUED", "+QUEUED", "*2", ":3", "$1", "3", "$1", "3"];
    for reply in replies {
        assert_eq!(line(&mut client).trim_end(), reply);
    }
}

#[test]
fn a_node_that_ends_waits_for_no_request_that_may_wait_for_ever() {
    let settings = RespSettings::new(Users::open(&TABLE));
    let limits = ConnectionLimits {
        shutdown_timeout: Duration::from_secs(3_600),
        ..ConnectionLimits::default()
    };
    let node = SocketNode::start(1, settings, limits);
    let [mut waiting, mut pausing, mut paused] = [0; 3].map(|_| node.connect());
    assert_eq!(ask(&mut waiting, b"SET k 1\r\n"), "+OK\r\n");
    waiting.write_all(b"WAIT 1 0\r\n").unwrap();
    assert_eq!(ask(&mut pausing, b"CLIENT PAUSE 3600000\r\n"), "+OK\r\n");
    paused.write_all(b"SET k 2\r\n").unwrap();
    // Each of the four was read, and a request is carried out with its read.
    while node.node.stats().total().0.reads < 4 {
        std::thread::yield_now();
    }
    node.node.shutdown();
    for client in [&mut waiting, &mut paused] {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(line(client).starts_with("-UNBLOCKED "));
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "closed");
    }
}
