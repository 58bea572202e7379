//! The memory and time that one client can use are counted and limited.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::Poll;

use crate::fixture::{
    SocketNode, TestClient, TestNode, node, node_with, node_with_limits, request,
};
use nearstate_node::{ConnectionLimits, NextAction};
use nearstate_resp::acl::Users;
use nearstate_resp::pubsub::mailbox::{Delivery, Mailbox, Message};
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::Schema;

/// Memory that the parser keeps between requests.
const PARSER_BYTES: usize = 4096;

fn settings() -> RespSettings {
    RespSettings::new(Users::open(&TABLE))
}

/// A request of a command name and many arguments.
fn many(name: &str, count: usize, bytes: usize) -> Vec<Vec<u8>> {
    let word = |number: usize| format!("{number:0bytes$}").into_bytes();
    std::iter::once(name.as_bytes().to_vec()).chain((0..count).map(word)).collect()
}

fn ask(client: &mut TestClient, words: &[Vec<u8>]) -> String {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    client.ask_bytes(&words)
}

fn fill(node: &TestNode, records: u32) {
    let session = node.region.session().unwrap();
    let namespace = session.namespace("ue", &Schema::default()).unwrap();
    for number in 0..records {
        session.put(namespace, format!("{number:0100}").as_bytes(), b"v").unwrap();
    }
}

#[test]
fn subscriptions_count_as_memory_until_they_end() {
    let node = node();
    let mut client = node.client();
    let nothing = client.kept();
    for (begin, end) in [("SUBSCRIBE", "UNSUBSCRIBE"), ("PSUBSCRIBE", "PUNSUBSCRIBE")] {
        ask(&mut client, &many(begin, 50, 1000));
        let kept = client.kept() - nothing;
        assert!(
            (100_000..200_000).contains(&kept),
            "the connection and the server store each name: {kept}"
        );
        ask(&mut client, &many(begin, 50, 1000));
        assert_eq!(client.kept() - nothing, kept, "a repeated subscription uses no memory");
        ask(&mut client, &many(end, 20, 1000));
        assert!(client.kept() - nothing < kept * 2 / 3);
        client.ask(end);
        assert!(client.kept() - nothing < PARSER_BYTES);
    }
    ask(&mut client, &many("SUBSCRIBE", 50, 1000));
    client.ask("RESET");
    assert!(client.kept() - nothing < PARSER_BYTES);
}

#[test]
fn subscriptions_above_the_memory_limit_are_rejected_before_allocation() {
    let node = node();
    let mut client = node.client();
    let reply = ask(&mut client, &many("SUBSCRIBE", 10_000, 4000));
    assert!(reply.starts_with("-ERR subscriptions of the client exceed 67108864 bytes"), "{reply}");
    assert!(client.kept() < 1 << 20 && node.server.pubsub.channel_count() == 0);
    assert!(ask(&mut client, &many("SUBSCRIBE", 100, 4000)).starts_with("*3"));
}

#[test]
fn keys_found_by_a_walk_count_as_memory_and_have_the_limit_of_a_reply() {
    let node = node();
    fill(&node, 3000);
    let mut client = node.client();
    let nothing = client.kept();
    for words in [&[&b"KEYS"[..], b"*"][..], &[b"SCAN", b"0", b"COUNT", b"9999"]] {
        let (_, mut then) = client.begin(words);
        let (mut most, mut reply) = (0, 0);
        while then == NextAction::Work {
            let (output, next) = client.step();
            reply += output.len();
            most = most.max(client.kept() - nothing);
            let Poll::Ready(next) = next else { panic!("the walk is pending") };
            then = next;
        }
        assert!(reply > 300_000, "the reply contains the keys: {reply}");
        assert!((300_000..400_000).contains(&most), "the keys were buffered before: {most}");
        assert!(client.kept() - nothing < PARSER_BYTES);
    }
    let limits = ConnectionLimits { output_bytes_max: 100_000, ..ConnectionLimits::default() };
    let node = node_with_limits(settings(), limits);
    fill(&node, 3000);
    let mut client = node.client();
    for request in ["KEYS *", "SCAN 0 COUNT 9999", "NGET.NOATOMIC {ue},*", "NGET.ATOMIC {ue},*"] {
        let reply = client.ask(request);
        assert!(reply.starts_with("-ERR reply exceeds 100000 bytes"), "{request}: {reply}");
        assert_eq!(client.ask("PING"), "+PONG|", "the connection stays open");
        assert!(client.kept() - nothing < PARSER_BYTES);
    }
    assert_eq!(client.ask("NDEL.ATOMIC {ue},*"), ":3000|", "the reply is short");
    let add = [vec![b"SADD".to_vec(), b"s".to_vec()], many("m", 900, 200)].concat();
    assert_eq!(ask(&mut client, &add), ":901|");
    let advice = "request less at once or raise limits.output_bytes_max";
    let changed = "; the changes of the request were made";
    for request in ["SMEMBERS s", "SPOP s 901"] {
        let reply = client.ask(request);
        let is_right = reply.ends_with(&format!("{advice}|"));
        assert!(is_right, "{request}: {}", reply.get(..200).unwrap_or(&reply));
    }
    fill(&node, 3000);
    let reply = client.ask("KEYS *");
    assert!(reply.ends_with(&format!("{advice}|")), "{reply}");
    let reply = ask(&mut client, &many("SUBSCRIBE", 1000, 100));
    assert!(
        reply.ends_with(&format!("{advice}{changed}|")) && reply.starts_with("-ERR "),
        "{reply}"
    );
    assert_eq!(node.server.pubsub.channel_count(), 1000, "the subscriptions exist");
}

#[test]
fn a_change_whose_reply_is_too_long_is_not_made() {
    let limits = ConnectionLimits { output_bytes_max: 10_000, ..ConnectionLimits::default() };
    let node = node_with_limits(settings(), limits);
    let mut client = node.client();
    let value = "v".repeat(10_001);
    let add = [vec![b"SADD".to_vec(), b"s".to_vec()], many("m", 99, 200)].concat();
    assert_eq!(ask(&mut client, &add), ":100|");
    assert_eq!(client.ask(&format!("SET k {value}")), "+OK|");
    let requests = [
        "SPOP s 100",
        "SPOP s 60",
        "GETDEL k",
        "GETSET k new",
        "SET k new GET",
        "SET k new GET EX 9",
        "SETIE k new {value} GET",
        "GETEX k EX 9",
    ];
    for request in requests {
        let request = request.replace("{value}", &value);
        let name = request.get(..12).unwrap_or(&request);
        let reply = client.ask(&request);
        assert_eq!(
            reply,
            "-ERR reply exceeds 10000 bytes: request less at once or raise \
             limits.output_bytes_max|",
            "{name}"
        );
        let reply = multi(&mut client, &["SET done 1", &request]);
        assert!(reply.starts_with("-EXECABORT replies exceed 10000 bytes"), "{name}: {reply}");
        assert_eq!(client.ask("SCARD s"), ":100|", "{name}");
        assert_eq!(client.ask("STRLEN k"), ":10001|", "{name}");
        assert_eq!(client.ask("TTL k"), ":-1|", "{name}");
        assert_eq!(client.ask("EXISTS done"), ":0|", "{name}");
    }
    // What fits is returned and removed.
    assert!(client.ask("SPOP s 40").starts_with("*40|"));
    assert_eq!(client.ask("SCARD s"), ":60|");
    assert_eq!(client.ask("SET k short"), "+OK|");
    assert_eq!(client.ask("SET k new GET"), "$5|short|");
    assert_eq!(client.ask("GETEX k EX 9"), "$3|new|");
    assert_eq!(client.ask("GETDEL k"), "$3|new|");
}

#[test]
fn unread_messages_are_limited_and_the_subscriber_with_the_most_is_closed() {
    let node = node_with(RespSettings { messages_bytes_max: 100_000, ..settings() });
    let [mut slow, mut alike, mut fast, mut sender] = [(); 4].map(|()| node.client());
    let budget = &node.server.pubsub.budget;
    slow.ask("SUBSCRIBE a");
    fast.ask("SUBSCRIBE b");
    let message = "x".repeat(30_000);
    for _ in 0..3 {
        assert_eq!(sender.ask(&format!("PUBLISH a {message}")), ":1|");
    }
    assert!((90_000..100_000).contains(&budget.bytes()));
    // Each mailbox is far below its own limit. Together they exceed the node's limit.
    assert_eq!(sender.ask(&format!("PUBLISH b {message}")), ":1|");
    assert!(
        slow.poll_progress().is_empty() && slow.is_closed,
        "the mailbox with the most bytes is closed"
    );
    assert!(
        fast.poll_progress().len() > 30_000 && !fast.is_closed,
        "the other subscriber receives its message"
    );
    assert_eq!((budget.overruns(), budget.bytes()), (1, 0));
    // Two mailboxes share the same messages. Closing one of them releases no memory.
    slow = node.client();
    slow.ask("SUBSCRIBE a");
    alike.ask("SUBSCRIBE a b");
    for _ in 0..3 {
        assert_eq!(sender.ask(&format!("PUBLISH a {message}")), ":2|");
    }
    assert_eq!(sender.ask(&format!("PUBLISH b {message}")), ":2|");
    assert!(slow.poll_progress().is_empty() && slow.is_closed);
    assert!(alike.poll_progress().is_empty() && alike.is_closed);
    assert!(fast.poll_progress().len() > 30_000 && !fast.is_closed);
    assert_eq!((budget.overruns(), budget.bytes()), (3, 0));
    fast.ask("PING");
    sender.ask("PUBLISH b x");
    drop(fast);
    assert_eq!(budget.bytes(), 0);
}

#[test]
fn a_message_without_receivers_closes_no_client() {
    let node = node_with(RespSettings { messages_bytes_max: 100_000, ..settings() });
    let (mut fast, mut sender) = (node.client(), node.client());
    let budget = &node.server.pubsub.budget;
    fast.ask("SUBSCRIBE b");
    let large = || Message::new(budget, b"a", &vec![b'x'; 200_000]);
    // Another core matches it with patterns, and no client is subscribed.
    let matched = large();
    assert_eq!(budget.bytes(), 0);
    assert_eq!(sender.ask("PUBLISH b 1"), ":1|");
    // Only the client whose limit is exceeded is closed.
    let small = Mailbox::new(150_000, budget);
    small.put(Delivery { message: Arc::new(matched), pattern: None });
    assert_eq!((small.is_over(), budget.overruns()), (true, 1));
    // Another core is writing the message to its client.
    let quick = Mailbox::new(300_000, budget);
    quick.put(Delivery { message: Arc::new(large()), pattern: None });
    let in_flight = quick.take_all();
    assert!(budget.is_full());
    assert_eq!(sender.ask("PUBLISH b 2"), ":1|");
    assert_eq!(budget.overruns(), 1);
    drop(in_flight);
    let received = String::from_utf8(fast.poll_progress()).unwrap();
    assert_eq!((received.matches("message").count(), fast.is_closed), (2, false), "{received}");
    assert_eq!(budget.bytes(), 0);
}

#[test]
fn a_client_whose_subscriptions_exceed_the_memory_of_the_core_is_closed() {
    let limits = ConnectionLimits { core_bytes_max: 4 << 20, ..ConnectionLimits::default() };
    let node = SocketNode::start(1, settings(), limits);
    let subscribe = |stream: &mut UnixStream, count: usize| {
        let words = many("SUBSCRIBE", count, 4000);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        // The node may close the connection before everything is written.
        let _ = stream.write_all(&request(&words));
    };
    let expect = |stream: &mut UnixStream, wanted: &str| {
        let mut reply = Vec::new();
        let mut part = [0; 4096];
        while !String::from_utf8_lossy(&reply).contains(wanted) {
            let bytes = stream.read(&mut part).unwrap();
            assert!(bytes > 0, "the connection closed before {wanted}");
            reply.extend_from_slice(&part[..bytes]);
        }
    };
    let mut first = node.connect();
    subscribe(&mut first, 200);
    expect(&mut first, ":200\r\n");
    // These take 1.7 MB, 300 more would be above 4 MiB.
    let mut second = node.connect();
    subscribe(&mut second, 300);
    // The replies to this client also count, so it is closed.
    let _ = second.read_to_end(&mut Vec::new());
    assert_eq!(node.node.stats().total().0.out_of_memory, 1);
    drop(first);
    while node.node.stats().total().0.open() > 0 {
        std::thread::yield_now();
    }
    let mut third = node.connect();
    subscribe(&mut third, 200);
    expect(&mut third, ":200\r\n");
}

fn multi(client: &mut TestClient, requests: &[&str]) -> String {
    assert_eq!(client.ask("MULTI"), "+OK|");
    for request in requests {
        assert_eq!(client.ask(request), "+QUEUED|", "{request}");
    }
    client.ask("EXEC")
}

#[test]
fn an_exec_whose_replies_are_too_large_is_rejected_and_changes_nothing() {
    let limits = ConnectionLimits { output_bytes_max: 250_000, ..ConnectionLimits::default() };
    let node = node_with_limits(settings(), limits);
    fill(&node, 1000);
    let mut client = node.client();
    ask(&mut client, &[vec![b"SADD".to_vec(), b"s".to_vec()], many("m", 900, 100)].concat());
    for request in ["KEYS *", "SCAN 0 COUNT 9999", "SMEMBERS s", "NGET.ATOMIC {ue},*"] {
        assert!(!client.ask(request).starts_with('-'), "one reply is below the limit: {request}");
        let reply = multi(&mut client, &["SET done 1", request, request, request, request]);
        let wanted = "-EXECABORT replies exceed 250000 bytes";
        assert!(reply.starts_with(wanted), "{request}: {reply}");
        assert_eq!(client.ask("EXISTS done"), ":0|");
    }
    assert!(multi(&mut client, &["SET done 1", "KEYS *"]).starts_with("*2|+OK|*"));
}

/// Transactions of one command of which one must be executed within a millisecond.
const SHORT_TRIES: usize = 10_000;

#[test]
fn an_exec_above_its_time_limit_is_rejected_and_changes_nothing() {
    let limit = std::time::Duration::from_millis(1);
    let node = node_with(RespSettings { exec_max: limit, ..settings() });
    fill(&node, 200_000);
    let mut client = node.client();
    let wanted = "-EXECABORT commands exceed the time limit of 1ms";
    // One walk alone takes much longer, and so do many short commands.
    for request in ["KEYS none", "SCAN 0 MATCH none", "DBSIZE", "RANDOMKEY", "NGET.ATOMIC {ue},n"] {
        let reply = multi(&mut client, &["SET done 1", request, "SET done 2"]);
        assert!(reply.starts_with(wanted), "{request}: {reply}");
    }
    ask(&mut client, &[vec![b"SADD".to_vec(), b"s".to_vec()], many("m", 500, 100)].concat());
    client.ask("MULTI");
    client.ask("SET done 1");
    for _ in 0..2000 {
        client.ask("SMEMBERS s");
    }
    let reply = client.ask("EXEC");
    assert!(reply.starts_with(wanted), "{}", reply.get(..100).unwrap_or(&reply));
    assert_eq!(client.ask("EXISTS done"), ":0|");
    // A short one is within the limit, unless the machine is busy in just this millisecond.
    let mut short = (0..SHORT_TRIES).map(|_| multi(&mut client, &["SET done 1"]));
    assert!(short.any(|reply| reply == "*1|+OK|"), "{SHORT_TRIES} short transactions");
    assert_eq!(
        client.ask("DBSIZE"),
        ":200002|",
        "outside MULTI the walk is sliced and has no limit"
    );
}

#[test]
fn watched_keys_count_against_the_time_limit_of_exec() {
    let no_time = std::time::Duration::ZERO;
    let node = node_with(RespSettings { exec_max: no_time, ..settings() });
    let mut client = node.client();
    for watched in ["WATCH a b", "TAG WATCH {s},* id 1"] {
        client.ask("TAG DECLARE {s},* id UNIQUE");
        assert_eq!(client.ask(watched), "+OK|");
        // The transaction has no commands.
        let reply = multi(&mut client, &[]);
        assert!(reply.starts_with("-EXECABORT commands exceed the time limit of 0ns"), "{reply}");
    }
    assert_eq!(multi(&mut client, &[]), "*0|");
}

#[test]
fn messages_of_an_exec_count_against_its_time_limit_before_publication() {
    // The commands take a small part of this time. Only the messages exceed it.
    let most = std::time::Duration::from_secs(3);
    let node = node_with(RespSettings { exec_max: most, ..settings() });
    let mut subscribers: Vec<TestClient> = (0..500).map(|_| node.client()).collect();
    for (number, subscriber) in subscribers.iter_mut().enumerate() {
        subscriber.ask(if number % 2 == 0 { "SUBSCRIBE c" } else { "PSUBSCRIBE c*" });
    }
    let mut client = node.client();
    let mut publish = |request: &str, count: usize| {
        assert_eq!(client.ask("MULTI"), "+OK|");
        client.ask("SET done 1");
        (0..count).for_each(|_| drop(client.ask(request)));
        let reply = client.ask("EXEC");
        (reply, client.ask("EXISTS done"))
    };
    let many = "MSETMPUB 1 4 k v c m c m c m c m";
    for (request, count) in [("PUBLISH c m", 8000), (many, 2000)] {
        let (reply, exists) = publish(request, count);
        assert!(reply.starts_with("-EXECABORT sending "), "{request}: {reply}");
        assert!(reply.contains("would exceed the time limit of 3s"), "{reply}");
        assert_eq!(exists, ":0|", "{request}: nothing was changed");
        assert!(
            subscribers.iter_mut().all(|subscriber| subscriber.poll_progress().is_empty()),
            "nothing was sent"
        );
    }
    let (reply, exists) = publish("PUBLISH c m", 8);
    assert_eq!(
        (reply.as_str(), exists.as_str()),
        (&*format!("*9|+OK|{}", ":500|".repeat(8)), ":1|")
    );
    for subscriber in &mut subscribers {
        let received = String::from_utf8(subscriber.poll_progress()).unwrap();
        assert_eq!(received.matches("message").count(), 8);
    }
}

#[test]
fn messages_of_one_command_are_limited_before_it_writes() {
    let node = node();
    let mut subscribers: Vec<TestClient> = (0..1000).map(|_| node.client()).collect();
    for subscriber in &mut subscribers {
        subscriber.ask("SUBSCRIBE c");
    }
    let mut client = node.client();
    assert_eq!(client.ask("SET there v"), "+OK|");
    let messages = |count: usize, channel: &str| format!(" {channel} m").repeat(count);
    let commands = |count: usize, channel: &str| {
        let messages = messages(count, channel);
        [
            format!("MSETMPUB 1 {count} new v{messages}"),
            format!("SETNXMPUB new v{messages}"),
            format!("SETIEMPUB there w v{messages}"),
            format!("DELIEMPUB there v{messages}"),
            format!("DELMPUB 1 {count} there{messages}"),
        ]
    };
    let many =
        commands(1025, "silent").map(|request| (request, "-ERR 1025 messages exceed the limit"));
    let slow =
        commands(1024, "c").map(|request| (request, "-ERR sending 1024 messages, the first"));
    for (request, refusal) in many.iter().chain(&slow) {
        let reply = client.ask(request);
        assert!(reply.starts_with(refusal), "{request}: {reply}");
        assert!(reply.ends_with("nothing was changed or sent|"), "{reply}");
    }
    assert_eq!(client.ask("MGET there new"), "*2|$1|v|$-1|");
    assert!(
        subscribers.iter_mut().all(|subscriber| subscriber.poll_progress().is_empty()),
        "nothing was sent"
    );
    // Messages without subscribers cost little. A few messages are sent to any number of
    // subscribers.
    for (request, deliveries) in [
        (format!("MSETMPUB 1 1024 new v{}", messages(1024, "silent")), 0),
        (format!("SETIEMPUB there w v{}", messages(16, "c")), 16),
    ] {
        assert_eq!(client.ask(&request), "+OK|", "{request}");
        let received = String::from_utf8(subscribers[0].poll_progress()).unwrap();
        assert_eq!(received.matches("message").count(), deliveries);
    }
}

#[test]
fn malicious_patterns_have_linear_cost() {
    let node = node();
    let session = node.region.session().unwrap();
    let namespace = session.namespace("ue", &Schema::default()).unwrap();
    for number in 0..2000_u32 {
        let mut key = vec![b'a'; 4000];
        key.extend_from_slice(number.to_string().as_bytes());
        session.put(namespace, &key, b"v").unwrap();
    }
    let (mut client, mut subscriber) = (node.client(), node.client());
    // With backtracking, one of these patterns takes minutes over these keys.
    let slow = [
        format!("{{ue}},{}b", "a*".repeat(1000)),
        format!("{{ue}},*{}b*", "a".repeat(2000)),
        format!("{{ue}},*{}b*", "?a".repeat(30)),
        format!("*{}", "[^b]*".repeat(400)) + "b",
    ];
    for pattern in &slow {
        for (request, wanted) in [
            (format!("KEYS {pattern}"), "*0|"),
            (format!("NGET.ATOMIC {pattern}"), "*0|"),
            (format!("SCAN 0 MATCH {pattern} COUNT 9999"), "*2|$1|0|*0|"),
        ] {
            let reply = client.ask(&request);
            assert!(reply == wanted, "{pattern}: {}", reply.get(..100).unwrap_or(&reply));
        }
        assert!(subscriber.ask(&format!("PSUBSCRIBE {pattern}")).starts_with("*3|"));
    }
    let channel = format!("{{ue}},{}", "a".repeat(4000));
    for _ in 0..200 {
        assert_eq!(client.ask(&format!("PUBLISH {channel} x")), ":0|");
    }
    // Patterns that cannot be matched in one pass are rejected by every command.
    let worst = format!("*{}*", "?a".repeat(40));
    for request in [
        "KEYS",
        "SCAN 0 MATCH",
        "HSCAN h 0 MATCH",
        "SSCAN s 0 MATCH",
        "NGET.ATOMIC",
        "NGET.NOATOMIC",
        "NDEL.ATOMIC",
        "PSUBSCRIBE",
        "PUBSUB CHANNELS",
        "CONFIG GET",
        "COMMAND LIST FILTERBY PATTERN",
    ] {
        let mut other = node.client();
        if request.starts_with(['H', 'S']) && request != "SCAN 0 MATCH" {
            other.ask("HSET h f v");
            other.ask("SADD s m");
        }
        let reply = other.ask(&format!("{request} {worst}"));
        assert!(reply.starts_with("-ERR pattern is too complex"), "{request}: {reply}");
        let reply = other.ask(&format!("{request} {}", "x".repeat(10_000)));
        assert!(reply.contains("limit is 8709") || reply.contains("limit is 4096"), "{reply}");
    }
}

#[test]
fn patterns_are_limited_per_client_and_for_all_clients() {
    let node = node();
    let mut one = node.client();
    assert!(ask(&mut one, &many("PSUBSCRIBE", 1024, 10)).starts_with("*3|"));
    assert!(
        one.ask("PSUBSCRIBE one-more").starts_with("-ERR too many patterns: the limit is 1024")
    );
    assert!(one.ask("SUBSCRIBE one-more").starts_with("*3|"));
    // Other clients subscribe to as many patterns as they can. The node keeps a reserve.
    let mut others = Vec::new();
    for number in 1..50 {
        let mut other = node.client();
        let (mut next, mut part) = (0, 512);
        while part > 0 {
            let names = (next..next + part).map(|name| format!("{number}-{name}").into_bytes());
            let words = std::iter::once(b"PSUBSCRIBE".to_vec()).chain(names);
            let reply = ask(&mut other, &words.collect::<Vec<_>>());
            next += if reply.starts_with("*3|") { part } else { 0 };
            assert!(
                reply.starts_with("*3|") || reply.contains("of 16384 patterns, which limits"),
                "{reply}"
            );
            part /= 2;
        }
        others.push(other);
    }
    assert!(node.server.pubsub.patterns() < 16_384 * 4 / 5, "{}", node.server.pubsub.patterns());
    let mut late = node.client();
    let reply = ask(&mut late, &many("PSUBSCRIBE", 1000, 11));
    assert!(reply.contains("this client would have 1000."), "{reply}");
    assert!(ask(&mut late, &many("PSUBSCRIBE", 50, 11)).starts_with("*3|"));
    // Patterns in use by other clients cost no further comparison.
    let mut like_one = node.client();
    assert!(ask(&mut like_one, &many("PSUBSCRIBE", 1024, 10)).starts_with("*3|"));
    others.clear();
    assert!(ask(&mut late, &many("PSUBSCRIBE", 800, 12)).starts_with("*3|"));
}

#[test]
fn pubsub_channels_lists_every_channel_once_in_slices() {
    let node = node();
    let (mut subscriber, mut client) = (node.client(), node.client());
    ask(&mut subscriber, &many("SUBSCRIBE", 500, 5));
    let reply = client.ask("PUBSUB CHANNELS");
    assert!(reply.starts_with("*500|$5|00000|$5|00001|"), "{reply}");
    assert_eq!(reply.matches("$5|").count(), 500);
    assert!(client.ask("PUBSUB CHANNELS *9?").starts_with("*50|$5|00090|"));
    assert_eq!(client.ask("PUBSUB CHANNELS none"), "*0|");
    assert_eq!(node.client().ask("PUBSUB CHANNELS 00064"), "*1|$5|00064|");
}

#[test]
fn the_limit_of_connections_is_lowered_and_raised_while_the_node_runs() {
    let limits = ConnectionLimits { connections_max: 10, ..ConnectionLimits::default() };
    let node = SocketNode::start(2, settings(), limits);
    // The reply to a request on a new connection, or the error without one.
    let connect = |words: &[&[u8]]| {
        let mut stream = node.connect();
        let _ = stream.write_all(&request(words));
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n") {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).unwrap(), 1);
            reply.extend_from_slice(&byte);
        }
        (stream, String::from_utf8(reply).unwrap())
    };
    let (mut first, pong) = connect(&[b"PING"]);
    assert_eq!(pong, "+PONG\r\n");
    let mut ask = |words: &[&[u8]], ending: &str| {
        first.write_all(&request(words)).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(ending.as_bytes()) {
            let mut byte = [0];
            assert_eq!(first.read(&mut byte).unwrap(), 1);
            reply.extend_from_slice(&byte);
        }
        String::from_utf8(reply).unwrap()
    };
    for value in ["0", "11", "x"] {
        let refused = ask(&[b"CONFIG", b"SET", b"maxclients", value.as_bytes()], "\r\n");
        assert!(refused.starts_with("-ERR CONFIG SET failed"), "{value}: {refused}");
    }
    assert!(ask(&[b"CONFIG", b"GET", b"maxclients"], "$2\r\n10\r\n").starts_with("*2"));
    assert_eq!(ask(&[b"CONFIG", b"SET", b"maxclients", b"1"], "\r\n"), "+OK\r\n");
    let (_, refused) = connect(&[b"PING"]);
    assert!(refused.starts_with("-ERR max number of clients reached"), "{refused}");
    assert_eq!(ask(&[b"CONFIG", b"SET", b"maxclients", b"10"], "\r\n"), "+OK\r\n");
    let (_, pong) = connect(&[b"PING"]);
    assert_eq!(pong, "+PONG\r\n");
}
