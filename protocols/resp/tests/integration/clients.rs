//! Commands about other connections: `CLIENT KILL`, `CLIENT PAUSE`, `CLIENT NO-EVICT`, `MONITOR`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, TestNode, node, node_with};
use nearstate_node::NextAction;
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;

fn all(client: &mut TestClient, script: &[(&str, &str)]) {
    for (request, answer) in script {
        assert_eq!(client.ask(request), *answer, "{request}");
    }
}

/// Whether the server has closed the connection.
fn is_closed(client: &mut TestClient) -> bool {
    client.poll_progress();
    client.is_closed
}

#[test]
fn client_kill_closes_the_connections_that_satisfy_all_filters() {
    for (filters, closed) in [
        ("ID 2", vec![2]),
        ("ADDR 127.0.0.1:40003", vec![3]),
        ("LADDR 127.0.0.1:6379", vec![2, 3, 4]),
        ("USER default", vec![2, 3, 4]),
        ("TYPE pubsub", vec![3]),
        ("type NORMAL", vec![2, 4]),
        ("TYPE replica", vec![]),
        ("ID 3 TYPE normal", vec![]),
        ("TYPE normal ID 4 SKIPME no USER default", vec![4]),
        ("SKIPME yes", vec![2, 3, 4]),
        ("MAXAGE 1000", vec![]),
        ("ID 99", vec![]),
    ] {
        let node = node();
        let mut killer = node.client();
        let mut others = [2, 3, 4].map(|id| (id, node.client()));
        others[1].1.ask("SUBSCRIBE c");
        let reply = killer.ask(&format!("CLIENT KILL {filters}"));
        assert_eq!(reply, format!(":{}|", closed.len()), "{filters}");
        assert_eq!(node.server.client_count(), 4 - closed.len(), "{filters}");
        for (id, client) in &mut others {
            assert_eq!(is_closed(client), closed.contains(id), "{filters}: {id}");
        }
        assert_eq!(killer.ask("PING"), "+PONG|");
        assert_eq!(node.server.pubsub.publish(b"c", b"m"), usize::from(!closed.contains(&3)));
    }
}

#[test]
fn client_kill_of_an_address_and_of_the_own_connection() {
    let node = node();
    let (mut killer, mut other) = (node.client(), node.client());
    all(
        &mut killer,
        &[
            ("CLIENT KILL 127.0.0.1:1", "-ERR No such client|"),
            ("CLIENT KILL 127.0.0.1:40002", "+OK|"),
            ("CLIENT KILL ID", "-ERR No such client|"),
            ("CLIENT KILL ID 0", "-ERR client-id should be greater than 0|"),
            ("CLIENT KILL ID x", "-ERR client-id should be greater than 0|"),
            ("CLIENT KILL TYPE x", "-ERR Unknown client type 'x'|"),
            ("CLIENT KILL USER x", "-ERR No such user 'x'|"),
            ("CLIENT KILL MAXAGE 0", "-ERR maxage should be greater than 0|"),
            ("CLIENT KILL SKIPME x", "-ERR syntax error|"),
            ("CLIENT KILL ID 2 SKIPME", "-ERR syntax error|"),
            ("CLIENT KILL x y", "-ERR syntax error|"),
            ("CLIENT KILL ID 1", ":0|"),
            ("CLIENT KILL ID 1 SKIPME no", ":1|"),
        ],
    );
    assert!(killer.is_closed && is_closed(&mut other));
    let mut own = node.client();
    assert_eq!(own.ask("CLIENT KILL 127.0.0.1:40003"), "+OK|");
    assert!(own.is_closed);
    let mut inside = node.client();
    all(
        &mut inside,
        &[
            ("MULTI", "+OK|"),
            ("CLIENT KILL ID 4 SKIPME no", "+QUEUED|"),
            ("SET k v", "+QUEUED|"),
            ("EXEC", "*2|:1|+OK|"),
        ],
    );
    assert!(inside.is_closed);
    assert_eq!(node.client().ask("GET k"), "$1|v|");
}

#[test]
fn a_killed_client_does_not_finish_a_long_scan() {
    let node = node();
    let (mut scanning, mut killer) = (node.client(), node.client());
    let words: Vec<String> = (0..20_000).flat_map(|n| [format!("k{n}"), "v".to_owned()]).collect();
    for part in words.chunks(4000) {
        let request: Vec<&[u8]> = std::iter::once("MSET")
            .chain(part.iter().map(String::as_str))
            .map(str::as_bytes)
            .collect();
        assert_eq!(killer.ask_bytes(&request), "+OK|");
    }
    assert_eq!(scanning.begin(&[b"KEYS", b"*"]).1, NextAction::Work);
    assert_eq!(killer.ask("CLIENT KILL ID 1"), ":1|");
    assert!(scanning.poll_progress().is_empty() && scanning.is_closed);
}

#[test]
fn paused_requests_wait_and_run_after_unpause() {
    let node = node();
    let (mut operator, mut client) = (node.client(), node.client());
    operator.ask("SET k v");
    all(
        &mut operator,
        &[
            ("CLIENT PAUSE x", "-ERR timeout is not an integer or out of range|"),
            ("CLIENT PAUSE -1", "-ERR timeout is negative|"),
            ("CLIENT PAUSE 1 x", "-ERR CLIENT PAUSE mode must be WRITE or ALL|"),
            (
                "CLIENT PAUSE 1 ALL x",
                "-ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT \
                 HELP.|",
            ),
            ("CLIENT PAUSE 0", "+OK|"),
            ("GET k", "$1|v|"),
            ("CLIENT PAUSE 3600000 WRITE", "+OK|"),
            ("GET k", "$1|v|"),
        ],
    );
    let waits = (Vec::new(), NextAction::Work);
    for request in [&[&b"SET"[..], b"k", b"w"][..], &[b"PUBLISH", b"c", b"m"], &[b"INCR", b"n"]] {
        assert_eq!(node.client().begin(request), waits);
    }
    all(&mut client, &[("GET k", "$1|v|"), ("MULTI", "+OK|"), ("GET k", "+QUEUED|")]);
    assert_eq!(client.ask("EXEC"), "*1|$1|v|", "it writes nothing");
    client.ask("MULTI");
    assert_eq!(client.begin(&[b"SET", b"k", b"w"]), waits);
    assert_eq!(operator.ask("CLIENT UNPAUSE"), "+OK|");
    assert_eq!(client.poll_progress(), b"+QUEUED\r\n");
    assert_eq!(client.ask("EXEC"), "*1|+OK|");
    // All requests, except those that end the pause or the connection.
    assert_eq!(operator.ask("CLIENT PAUSE 3600000"), "+OK|");
    assert_eq!(client.begin(&[b"GET", b"k"]), waits);
    let mut third = node.client();
    assert!(third.ask("HELLO").starts_with("*14|"));
    assert_eq!(third.begin(&[b"PING"]), waits);
    assert_eq!(node.client().ask("QUIT"), "+OK|");
    // A request that waits does not keep its connection.
    let own = client.kept();
    assert_eq!(operator.ask("CLIENT UNPAUSE"), "+OK|");
    assert_eq!(client.poll_progress(), b"$1\r\nw\r\n");
    assert_eq!(third.poll_progress(), b"+PONG\r\n");
    assert!(client.kept() < own, "the request is no longer kept");
    assert_eq!(operator.ask("GET k"), "$1|w|");
}

#[test]
fn a_paused_exec_that_writes_waits_and_can_be_killed() {
    let node = node();
    let (mut operator, mut client) = (node.client(), node.client());
    all(&mut client, &[("MULTI", "+OK|"), ("SET k v", "+QUEUED|")]);
    operator.ask("CLIENT PAUSE 3600000 WRITE");
    assert_eq!(client.begin(&[b"EXEC"]), (Vec::new(), NextAction::Work));
    assert_eq!(operator.ask("CLIENT KILL ID 2"), ":1|");
    assert!(is_closed(&mut client));
    drop(client);
    operator.ask("CLIENT UNPAUSE");
    assert_eq!(operator.ask("GET k"), "$-1|");
}

#[test]
fn client_list_shows_monitor_and_no_evict_until_reset() {
    let mut client = node().client();
    for (request, flags) in [
        ("PING", " flags=N "),
        ("CLIENT NO-EVICT on", " flags=e "),
        ("MONITOR", " flags=Oe "),
        ("CLIENT NO-EVICT OFF", " flags=O "),
        ("RESET", " flags=N "),
    ] {
        client.ask(request);
        let info = client.ask("CLIENT INFO");
        assert!(info.contains(flags), "{request}: {info}");
    }
    assert_eq!(client.ask("CLIENT NO-EVICT x"), "-ERR syntax error|");
}

/// The lines that a monitor has received, without times.
fn lines(monitor: &mut TestClient) -> Vec<String> {
    let output = String::from_utf8(monitor.poll_progress()).unwrap();
    let lines = output.lines().map(|line| line.split_once(' ').unwrap());
    lines
        .map(|(time, rest)| {
            let (seconds, micros) = time.strip_prefix('+').unwrap().split_once('.').unwrap();
            assert!(seconds.len() == 10 && micros.len() == 6, "{time}");
            rest.trim_end().to_owned()
        })
        .collect()
}

#[test]
fn monitor_shows_executed_requests_and_no_passwords() {
    let users = Users::parse("user default on >letmein +@all ~* &*", &TABLE).unwrap();
    let node = node_with(RespSettings::new(users));
    let [mut monitor, mut client] = [(); 2].map(|()| node.client());
    monitor.ask("AUTH letmein");
    assert_eq!(monitor.ask("MONITOR"), "+OK|");
    for request in [
        "GET unauthenticated",
        "AUTH wrong",
        "AUTH letmein",
        "HELLO 2 AUTH default letmein",
        "SET k a\"b",
        "GET",
        "HGET k f",
        "CONFIG GET port",
        "ACL GETUSER default",
        "MULTI",
        "INCR n",
        "AUTH letmein",
        "EXEC",
        "MULTI",
        "SET not executed",
        "DISCARD",
    ] {
        client.ask(request);
    }
    let expected = [
        r#""SET" "k" "a\"b""#,
        r#""HGET" "k" "f""#,
        r#""MULTI""#,
        r#""INCR" "n""#,
        r#""EXEC""#,
        r#""MULTI""#,
        r#""DISCARD""#,
    ];
    let expected: Vec<String> =
        expected.iter().map(|words| format!("[0 127.0.0.1:40002] {words}")).collect();
    assert_eq!(lines(&mut monitor), expected);
    assert_eq!(monitor.ask("RESET"), "+RESET|");
    client.ask("SET k v");
    assert!(lines(&mut monitor).is_empty());
    assert_eq!(monitor.ask("MULTI"), "-NOAUTH Authentication required.|");
    client.ask("MULTI");
    client.ask("MONITOR");
    let reply = client.ask("EXEC");
    assert_eq!(reply, "*1|-ERR MONITOR is not allowed between MULTI and EXEC|");
}

#[test]
fn a_monitor_that_does_not_read_is_closed() {
    let settings =
        RespSettings { mailbox_bytes_max: 100_000, ..RespSettings::new(Users::open(&TABLE)) };
    let node = node_with(settings);
    let (mut monitor, mut client) = (node.client(), node.client());
    monitor.ask("MONITOR");
    let value = "v".repeat(1000);
    for _ in 0..200 {
        assert_eq!(client.ask(&format!("SET k {value}")), "+OK|");
    }
    assert!(is_closed(&mut monitor));
    assert_eq!(node.server.pubsub.budget.bytes(), 0);
    drop(monitor);
    assert!(!node.server.monitors.is_any());
}

#[test]
fn users_need_the_admin_category_for_other_connections() {
    let users = "user default on nopass +@all -@admin ~* &*";
    let node: TestNode = node_with(RespSettings::new(Users::parse(users, &TABLE).unwrap()));
    let mut client = node.client();
    for request in [
        "CLIENT KILL ID 1",
        "CLIENT PAUSE 1",
        "CLIENT UNPAUSE",
        "CLIENT NO-EVICT ON",
        "MONITOR",
        "CONFIG SET slowlog-max-len 1",
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with("-NOPERM"), "{request}: {reply}");
    }
}

#[test]
fn latency_reports_requests_above_the_threshold() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.ask("LATENCY LATEST"), "*0|");
    assert!(client.ask("LATENCY DOCTOR").contains("Latency monitoring is disabled"));
    client.ask("CONFIG SET latency-monitor-threshold 5");
    assert!(client.ask("LATENCY DOCTOR").contains("No request was slow"));
    node.server.latency.add("command", 1_700_000_000, 7);
    node.server.latency.add("command", 1_700_000_001, 5);
    for (request, answer) in [
        ("LATENCY LATEST", "*1|*4|$7|command|:1700000001|:5|:7|"),
        ("LATENCY HISTORY command", "*2|*2|:1700000000|:7|*2|:1700000001|:5|"),
        ("LATENCY HISTORY other", "*0|"),
        ("LATENCY RESET other", ":0|"),
        ("LATENCY RESET command other", ":1|"),
        ("LATENCY RESET", ":0|"),
        ("LATENCY LATEST", "*0|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
}

#[test]
fn client_reply_leaves_out_replies_and_no_messages() {
    let node = node();
    let (mut client, mut other) = (node.client(), node.client());
    all(
        &mut client,
        &[
            ("CLIENT REPLY ON", "+OK|"),
            ("CLIENT REPLY x", "-ERR syntax error|"),
            ("CLIENT REPLY SKIP", ""),
            ("SET k 1", ""),
            ("GET k", "$1|1|"),
            ("CLIENT REPLY SKIP", ""),
            ("nonsense", ""),
            ("CLIENT REPLY SKIP", ""),
            ("CLIENT REPLY SKIP", ""),
            ("KEYS *", ""),
            ("KEYS *", "*1|$1|k|"),
            ("CLIENT REPLY OFF", ""),
            ("INCR k", ""),
            ("CLIENT REPLY SKIP", ""),
            ("INCR k", ""),
            ("FLUSHALL", ""),
            ("SET k 5", ""),
            ("GET k x", ""),
            ("CLIENT REPLY ON", "+OK|"),
            ("GET k", "$1|5|"),
            ("MULTI", "+OK|"),
            ("CLIENT REPLY OFF", "+QUEUED|"),
            ("EXEC", "*1|-ERR CLIENT REPLY is not allowed between MULTI and EXEC|"),
        ],
    );
    assert_eq!(client.ask("CLIENT REPLY OFF"), "");
    assert_eq!(client.ask("SUBSCRIBE c"), "*3|$9|subscribe|$1|c|:1|", "a message is no reply");
    assert_eq!(client.ask("UNSUBSCRIBE"), "*3|$11|unsubscribe|$1|c|:0|");
    assert_eq!(client.ask("HELLO 3"), "");
    assert_eq!(client.ask("SUBSCRIBE c"), ">3|$9|subscribe|$1|c|:1|");
    assert_eq!(other.ask("PUBLISH c m"), ":1|");
    assert_eq!(client.poll_progress(), b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    assert_eq!(client.ask("GET k"), "");
    assert_eq!(client.ask("RESET"), "+RESET|", "RESET ends the mode");
}
