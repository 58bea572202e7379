//! Replies of commits in namespaces whose commits wait: they leave when the commits are replicated,
//! and other connections of the core are served meanwhile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nearstate_node::ConnectionLimits;
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::{
    CommitWait, Kind, REPLICATION_WAIT_MAX, ReplicationPolicy, Schema, Session, lease_clock,
};

use crate::fixture::{SocketNode, request};

/// A time that no test reaches.
const LONG: Duration = Duration::from_secs(600);

/// A node on one core, whose namespace `sessions` waits this long, and a session beside it.
fn node_that_waits(replication_wait: Duration) -> (SocketNode, Session) {
    let settings = RespSettings { replication_wait, ..RespSettings::new(Users::open(&TABLE)) };
    let node = SocketNode::start(1, settings, ConnectionLimits::default());
    let session = node.region.session().unwrap();
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    let policy = ReplicationPolicy::Replicated;
    session.namespace_with_policy("sessions", &schema, policy).unwrap();
    (node, session)
}

/// The same, with the default limit.
fn node() -> (SocketNode, Session) {
    node_that_waits(REPLICATION_WAIT_MAX)
}

fn send(client: &mut UnixStream, line: &str) {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    client.write_all(&request(&words)).unwrap();
}

/// The next bytes, as many as the expected text has; `|` stands for the end of a line.
fn expect(client: &mut UnixStream, expected: &str) {
    let expected = expected.replace('|', "\r\n");
    let mut bytes = vec![0; expected.len()];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

/// The next line.
fn line(client: &mut UnixStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        text.extend_from_slice(&byte);
    }
    String::from_utf8(text).unwrap()
}

fn has_no_reply(client: &mut UnixStream) {
    client.set_nonblocking(true).unwrap();
    let read = client.read(&mut [0]);
    assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    client.set_nonblocking(false).unwrap();
}

fn acknowledge(session: &Session) {
    session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
}

/// Sends a request, and acknowledges until its reply is there. On a busy machine that can be late:
/// then it is repeated.
fn until_replicated(client: &mut UnixStream, session: &Session, request: &str) {
    loop {
        send(client, request);
        client.set_nonblocking(true).unwrap();
        let mut first = [0];
        while client.read(&mut first).is_err() {
            acknowledge(session);
            std::thread::yield_now();
        }
        client.set_nonblocking(false).unwrap();
        let rest = line(client);
        if first != *b"-" {
            return;
        }
        assert!(rest.starts_with("NOTREPLICATED"), "{request}: {rest}");
    }
}

#[test]
fn replies_wait_for_their_commits_while_the_core_serves_others() {
    let (node, session) = node_that_waits(LONG);
    let (mut waiting, mut other) = (node.connect(), node.connect());
    // A pipeline waits once, and its reads with it.
    send(&mut waiting, "SET {sessions},a 1");
    send(&mut waiting, "GET {sessions},a");
    for number in 0..64 {
        send(&mut waiting, &format!("SET {{sessions}},{number} v"));
    }
    send(&mut waiting, "SET {local},a 1");
    // Attached processes see the commits. Replies of the other connection that tell of none of them
    // do not wait.
    let sessions = session.known_namespace("sessions").unwrap().unwrap();
    while session.get(sessions, b"a").unwrap().is_none() {
        std::thread::yield_now();
    }
    send(&mut other, "SET {local},b 1");
    expect(&mut other, "+OK|");
    has_no_reply(&mut waiting);
    let mut has_all = false;
    while !has_all {
        // Requests that the node reads later are acknowledged later.
        acknowledge(&session);
        send(&mut other, "GET {local},a");
        has_all = line(&mut other) == "$1\r\n";
        if has_all {
            expect(&mut other, "1|");
        }
    }
    acknowledge(&session);
    expect(&mut waiting, "+OK|$1|1|");
    (0..65).for_each(|_| expect(&mut waiting, "+OK|"));
    // Transactions, and commands of several records.
    for commands in [
        &["MULTI", "SET {sessions},x 1", "SET {local},x 1", "EXEC"][..],
        &["DEL {sessions},0 {sessions},1 {sessions},2"],
        &["SADD {sessions},set a b c"],
    ] {
        let before = session.log_tail_position().unwrap();
        for command in commands {
            send(&mut waiting, command);
        }
        if commands.len() > 1 {
            // Read with what follows them or before it.
            expect(&mut waiting, "+OK|+QUEUED|+QUEUED|");
        }
        while session.log_tail_position().unwrap() == before {
            std::thread::yield_now();
        }
        send(&mut other, "PING");
        expect(&mut other, "+PONG|");
        has_no_reply(&mut waiting);
        acknowledge(&session);
        expect(&mut waiting, if commands.len() > 1 { "*2|+OK|+OK|" } else { ":3|" });
    }
}

#[test]
fn a_commit_that_is_not_replicated_in_time_is_an_error_and_stands() {
    let (node, _session) = node();
    let mut client = node.connect();
    let mut all = Vec::new();
    for command in ["SET {sessions},a 1", "GET {sessions},a", "SET {local},a 1"] {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        all.extend(request(&words));
    }
    client.write_all(&all).unwrap();
    let error = line(&mut client);
    assert!(error.starts_with("-NOTREPLICATED the commit at position"), "{error}");
    assert!(error.contains("do not repeat it"), "{error}");
    // So is what tells of it, which a client may ask again.
    let error = line(&mut client);
    assert!(error.starts_with("-NOTREPLICATED the reply would tell of the commit at"), "{error}");
    assert!(error.contains("repeat the request"), "{error}");
    expect(&mut client, "+OK|");
    // Also on another connection of the core.
    let mut reader = node.connect();
    send(&mut reader, "GET {sessions},a");
    let error = line(&mut reader);
    assert!(error.starts_with("-NOTREPLICATED the reply would tell of the commit at"), "{error}");
}

/// The position says nothing about another log, whatever replicas have of that.
#[test]
fn wait_says_when_a_fail_over_has_decided_about_the_commit_and_when_it_has_not() {
    let mixed = Schema { kind: Kind::Mixed, ..Schema::default() };
    for (is_seal_known, expected) in [(true, "-LOST the"), (false, "-OUTCOMEUNKNOWN whether")] {
        let (node, session) = node();
        let mut client = node.connect();
        let sessions = session.namespace("sessions", &mixed).unwrap();
        session.set_replication_policy(sessions, ReplicationPolicy::Async).unwrap();
        send(&mut client, "SET {sessions},a 1");
        expect(&mut client, "+OK|");
        send(&mut client, "WAIT 0 0");
        expect(&mut client, ":0|");
        let before = session.log_tail_position().unwrap() - 1;
        session.demote(is_seal_known.then_some(before)).unwrap();
        send(&mut client, "WAIT 0 0");
        let error = line(&mut client);
        assert!(error.starts_with(expected), "{error}");
    }
}

/// A fail-over would discard what they tell of.
#[test]
fn replies_to_reads_wait_for_the_commits_that_they_tell_of() {
    let (node, session) = node();
    let mut writer = node.connect();
    send(&mut writer, "TAG DECLARE {sessions},* id UNIQUE");
    expect(&mut writer, "+OK|");
    for old in ["SET {sessions},old 1", "HSET {sessions},h f v", "SADD {sessions},s m"] {
        until_replicated(&mut writer, &session, old);
    }
    let (before, new) = (session.log_tail_position().unwrap(), "TAG SET {sessions},new 2 1 id 7");
    send(&mut writer, new);
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    let mut other = node.connect();
    // Records that are replicated, other namespaces, and listings.
    for (request, reply) in [
        ("GET {sessions},old", "$1|1|"),
        ("HGET {sessions},h f", "$1|v|"),
        ("SMEMBERS {sessions},s", "*1|$1|m|"),
        ("MGET {sessions},old {local},none", "*2|$1|1|$-1|"),
        ("GET {local},none", "$-1|"),
        ("EXISTS {nowhere},k", ":0|"),
    ] {
        send(&mut other, request);
        expect(&mut other, reply);
    }
    send(&mut other, "DBSIZE");
    expect(&mut other, ":4|");
    // What tells of the new record, or that a record is absent. Nothing is acknowledged.
    let waiting = [
        &["GET {sessions},new"][..],
        &["GET {sessions},none"],
        &["MGET {sessions},old {sessions},new"],
        &["EXISTS {sessions},new"],
        &["TTL {sessions},new"],
        &["HGET {sessions},new f"],
        &["TAG SET {sessions},third 3 1 id 7"],
        &["TAG FIND {sessions},* id 7"],
        &["TAG KEYS {sessions},* id 7"],
        &["NGET.ATOMIC {sessions},n*"],
        &["NGET.NOATOMIC {sessions},n*"],
        &["MULTI", "GET {sessions},new", "EXEC"],
        &["MULTI", "TAG FIND {sessions},* id 7", "EXEC"],
    ];
    let mut clients: Vec<UnixStream> = waiting.iter().map(|_| node.connect()).collect();
    for (client, requests) in clients.iter_mut().zip(&waiting) {
        requests.iter().for_each(|request| send(client, request));
    }
    for (client, requests) in clients.iter_mut().zip(&waiting) {
        if requests.len() > 1 {
            expect(client, "+OK|+QUEUED|");
        }
        let error = line(client);
        assert!(error.starts_with("-NOTREPLICATED the reply would"), "{requests:?}: {error}");
    }
    assert!(line(&mut writer).starts_with("-NOTREPLICATED"));
    acknowledge(&session);
    send(&mut other, "GET {sessions},new");
    expect(&mut other, "$1|2|");
    send(&mut other, "MULTI");
    send(&mut other, "TAG FIND {sessions},* id 7");
    send(&mut other, "EXEC");
    expect(&mut other, "+OK|+QUEUED|*1|*2|$14|{sessions},new|$1|2|");
}

/// Another host may own the partition, and may have discarded or changed what they tell of.
#[test]
fn reads_of_an_owner_whose_lease_has_ended_are_refused() {
    let (node, session) = node();
    session.set_owner_lease(lease_clock() + Duration::from_hours(1)).unwrap();
    let mut client = node.connect();
    send(&mut client, "TAG DECLARE {sessions},* id UNIQUE");
    expect(&mut client, "+OK|");
    let before = session.log_tail_position().unwrap();
    send(&mut client, "TAG SET {sessions},k 1 1 id 7");
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    acknowledge(&session);
    expect(&mut client, "+OK|");
    send(&mut client, "GET {sessions},k");
    expect(&mut client, "$1|1|");
    session.set_owner_lease(Duration::from_nanos(1)).unwrap();
    for requests in [
        &["GET {sessions},k"][..],
        &["GET {sessions},none"],
        &["MGET {local},k {sessions},k"],
        &["EXISTS {sessions},k"],
        &["TTL {sessions},k"],
        &["HGET {sessions},k f"],
        &["GETEX {sessions},k"],
        &["GETEX {sessions},k PERSIST"],
        &["SET {sessions},k 2 NX GET"],
        &["SETNX {sessions},k 2"],
        &["TAG FIND {sessions},* id 7"],
        &["TAG KEYS {sessions},* id 7"],
        &["NGET.ATOMIC {sessions},k*"],
        &["NGET.NOATOMIC {sessions},k*"],
        &["MULTI", "GET {sessions},k", "EXEC"],
        &["MULTI", "TAG FIND {sessions},* id 7", "EXEC"],
        &["MULTI", "SET {local},m 1", "GET {sessions},k", "EXEC"],
    ] {
        for request in requests {
            send(&mut client, request);
        }
        if let Some(queued) = requests.len().checked_sub(2) {
            expect(&mut client, "+OK|");
            for _ in 0..queued {
                expect(&mut client, "+QUEUED|");
            }
        }
        let mut error = line(&mut client);
        if error == "*1\r\n" {
            // That of the one command of a transaction.
            error = line(&mut client);
        }
        let expected = "-READONLY namespace \"sessions\" is not served";
        assert!(error.starts_with(expected), "{requests:?}: {error}");
    }
    // The transaction has changed nothing, and other namespaces are read.
    send(&mut client, "GET {local},m");
    expect(&mut client, "$-1|");
    session.set_owner_lease(lease_clock() + Duration::from_hours(1)).unwrap();
    send(&mut client, "GET {sessions},k");
    expect(&mut client, "$1|1|");
}

/// A client repeats what was not replicated, and finds nothing left to change.
#[test]
fn a_write_that_is_repeated_is_not_answered_before_the_first_one_is_replicated() {
    let (node, session) = node();
    // Each on a connection of its own: they wait at the same time.
    let refuse = |requests: &[&[&str]]| {
        let mut clients: Vec<UnixStream> = requests.iter().map(|_| node.connect()).collect();
        for (client, lines) in clients.iter_mut().zip(requests) {
            lines.iter().for_each(|line| send(client, line));
        }
        for (client, lines) in clients.iter_mut().zip(requests) {
            if lines.len() > 1 {
                expect(client, "+OK|+QUEUED|");
            }
            let error = line(client);
            assert!(error.starts_with("-NOTREPLICATED the "), "{lines:?}: {error}");
        }
    };
    refuse(&[&["SADD {sessions},set a b"], &["SET {sessions},k 1"]]);
    refuse(&[&["DEL {sessions},k"]]);
    refuse(&[
        &["DEL {sessions},k"],
        &["DEL {sessions},k {sessions},other"],
        &["SADD {sessions},set a"],
        &["SETNX {sessions},set 1"],
        &["HDEL {sessions},none f"],
        &["EXPIRE {sessions},k 10"],
        &["MULTI", "DEL {sessions},k", "EXEC"],
    ]);
    let mut client = node.connect();
    // Writes elsewhere do not wait.
    send(&mut client, "DEL {local},k");
    expect(&mut client, ":0|");
    acknowledge(&session);
    send(&mut client, "DEL {sessions},k");
    expect(&mut client, ":0|");
}

/// Subscribers learn of a change when another host has it.
#[test]
fn a_keyspace_event_leaves_the_owner_when_its_change_is_replicated() {
    let (node, session) = node();
    session.set_owner_lease(lease_clock() + Duration::from_hours(1)).unwrap();
    let (mut subscriber, mut client) = (node.connect(), node.connect());
    send(&mut client, "CONFIG SET notify-keyspace-events K$");
    expect(&mut client, "+OK|");
    send(&mut subscriber, "PSUBSCRIBE __keyspace@0__:*");
    expect(&mut subscriber, "*3|$10|psubscribe|$16|__keyspace@0__:*|:1|");
    let message = |key: &str| {
        let channel = format!("__keyspace@0__:{key}");
        let length = channel.len();
        format!("*4|$8|pmessage|$16|__keyspace@0__:*|${length}|{channel}|$3|set|")
    };
    // All namespaces are watched when this one is.
    send(&mut client, "SET {local},k 1");
    expect(&mut client, "+OK|");
    expect(&mut subscriber, &message("{local},k"));
    send(&mut client, "SET {sessions},k 1");
    let error = line(&mut client);
    assert!(error.starts_with("-NOTREPLICATED"), "{error}");
    has_no_reply(&mut subscriber);
    acknowledge(&session);
    expect(&mut subscriber, &message("{sessions},k"));
}

#[test]
fn a_commit_that_a_fail_over_discards_is_an_error() {
    let (node, session) = node_that_waits(LONG);
    session.begin_partition(1).unwrap();
    let mut client = node.connect();
    let before = session.log_tail_position().unwrap();
    send(&mut client, "SET {sessions},a 1");
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    session.set_fenced(true).unwrap();
    session.demote(Some(before)).unwrap();
    let error = line(&mut client);
    assert!(error.starts_with("-LOST the commit at position"), "{error}");
}

/// A subscriber of the channel `c`, and the text of a message there.
fn subscriber(node: &SocketNode) -> UnixStream {
    let mut subscriber = node.connect();
    send(&mut subscriber, "SUBSCRIBE c");
    expect(&mut subscriber, "*3|$9|subscribe|$1|c|:1|");
    subscriber
}

fn message(text: &str) -> String {
    format!("*3|$7|message|$1|c|${}|{text}|", text.len())
}

/// Sends requests at once, and waits until the core has executed those up to the first commit.
fn run(node: &SocketNode, session: &Session, client: &mut UnixStream, lines: &[&str]) {
    let before = session.log_tail_position().unwrap();
    let mut bytes = Vec::new();
    for line in lines {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        bytes.extend_from_slice(&request(&words));
    }
    client.write_all(&bytes).unwrap();
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    let mut other = node.connect();
    send(&mut other, "SET {local},other 1");
    expect(&mut other, "+OK|");
}

#[test]
fn a_message_leaves_with_the_reply_of_its_replicated_commit() {
    let (node, session) = node_that_waits(LONG);
    let mut subscriber = subscriber(&node);
    // The last message of the first has no commit. It keeps its place behind the other.
    let cases: [(&[&str], &str, &[&str]); 3] = [
        (&["MSETPUB {sessions},a 1 c set", "PUBLISH c plain"], "+OK|:1|", &["set", "plain"]),
        (
            &["MULTI", "SET {sessions},b 1", "PUBLISH c exec", "EXEC"],
            "+OK|+QUEUED|+QUEUED|*2|+OK|:1|",
            &["exec"],
        ),
        (&["DELPUB {sessions},a c deleted"], ":1|", &["deleted"]),
    ];
    for (lines, replies, messages) in cases {
        let mut client = node.connect();
        run(&node, &session, &mut client, lines);
        has_no_reply(&mut subscriber);
        acknowledge(&session);
        expect(&mut client, replies);
        let all: Vec<String> = messages.iter().copied().map(message).collect();
        expect(&mut subscriber, &all.concat());
    }
    // What was read in a transaction may be lost with its commit, and so may a message about it.
    let sessions = session.known_namespace("sessions").unwrap().unwrap();
    session.with_commit_wait(CommitWait::Never, Duration::ZERO, || {
        let _ = session.put(sessions, b"read", b"1").unwrap();
    });
    let mut client = node.connect();
    for line in ["MULTI", "GET {sessions},read", "PUBLISH c read"] {
        send(&mut client, line);
    }
    expect(&mut client, "+OK|+QUEUED|+QUEUED|");
    send(&mut client, "EXEC");
    // The core has executed it when it serves another request.
    let mut other = node.connect();
    send(&mut other, "SET {local},other 2");
    expect(&mut other, "+OK|");
    has_no_reply(&mut client);
    has_no_reply(&mut subscriber);
    acknowledge(&session);
    expect(&mut client, "*2|$1|1|:1|");
    expect(&mut subscriber, &message("read"));
    // Elsewhere nothing waits.
    let mut client = node.connect();
    send(&mut client, "MSETPUB {local},a 1 c local");
    expect(&mut client, "+OK|");
    expect(&mut subscriber, &message("local"));
}

#[test]
fn a_commit_that_a_fail_over_discards_has_no_message() {
    let (node, session) = node_that_waits(LONG);
    session.begin_partition(1).unwrap();
    let (mut subscriber, mut client) = (subscriber(&node), node.connect());
    let before = session.log_tail_position().unwrap();
    let requests = ["MSETPUB {sessions},a 1 c set", "PUBLISH c plain"];
    run(&node, &session, &mut client, &requests);
    session.set_fenced(true).unwrap();
    session.demote(Some(before)).unwrap();
    let error = line(&mut client);
    assert!(error.starts_with("-LOST the commit at position"), "{error}");
    expect(&mut client, ":1|");
    expect(&mut subscriber, &message("plain"));
    has_no_reply(&mut subscriber);
}
