//! A subscriber that reads nothing is closed as soon as its messages exceed their limit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::fixture::{SocketNode, request};
use nearstate_node::ConnectionLimits;
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;

/// The reply to a request, up to the first bytes that end with `ending`.
fn ask(stream: &mut UnixStream, words: &[&[u8]], ending: &str) -> String {
    stream.write_all(&request(words)).unwrap();
    let mut reply = Vec::new();
    let mut part = [0; 4096];
    while !reply.ends_with(ending.as_bytes()) {
        let bytes = stream.read(&mut part).unwrap();
        assert!(bytes > 0, "the connection is closed");
        reply.extend_from_slice(part.get(..bytes).unwrap());
    }
    String::from_utf8(reply).unwrap()
}

#[test]
fn a_stalled_subscriber_is_closed_at_its_limit_and_not_at_the_reply_timeout() {
    let limits = ConnectionLimits {
        reply_timeout: Duration::from_secs(3600),
        ..ConnectionLimits::default()
    };
    let settings =
        RespSettings { mailbox_bytes_max: 1 << 20, ..RespSettings::new(Users::open(&TABLE)) };
    let node = SocketNode::start(2, settings, limits);
    let mut stalled = node.connect();
    ask(&mut stalled, &[b"SUBSCRIBE", b"c"], ":1\r\n");
    let mut sender = node.connect();
    let message = vec![b'x'; 60_000];
    while ask(&mut sender, &[b"PUBLISH", b"c", &message], "\r\n") == ":1\r\n" {}
    assert_eq!(ask(&mut sender, &[b"PUBLISH", b"c", b"m"], "\r\n"), ":0\r\n");
    // Only a broken node makes this loop endless: the reply timeout is an hour.
    while node.node.stats().total().0.open() > 1 {
        std::thread::yield_now();
    }
    assert_eq!(node.server.pubsub.budget.overruns(), 1);
    assert_eq!((node.server.pubsub.subscribers(b"c"), node.server.pubsub.budget.bytes()), (0, 0));
    stalled.read_to_end(&mut Vec::new()).ok();
}
