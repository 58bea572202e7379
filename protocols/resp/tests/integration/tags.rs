//! `TAG`: records with tags, lookups, declarations.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, TestNode, node};
use nearstate_node::NextAction;
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::limits::REGION_BYTES_MIN;
use nearstate_store::{CreateOptions, Kind, Schema, Session};
use std::task::Poll;

fn all(client: &mut TestClient, script: &[(&str, &str)]) {
    for (request, answer) in script {
        assert_eq!(client.ask(request), *answer, "{request}");
    }
}

/// A node with the unique tag `id` and the tag `group` in namespace `s`.
fn tagged() -> (TestNode, TestClient) {
    let node = node();
    let mut client = node.client();
    all(
        &mut client,
        &[
            ("TAG DECLARE {s},* id UNIQUE", "+OK|"),
            ("TAG DECLARE {s},* group COUNTED", "+OK|"),
            ("TAG DECLARE {s},* id UNIQUE", "+OK|"),
        ],
    );
    (node, client)
}

#[test]
fn a_record_is_found_by_its_tags() {
    let (_place, mut client) = tagged();
    all(
        &mut client,
        &[
            ("TAG SET {s},a one 2 id 7 group g", "+OK|"),
            ("GET {s},a", "$3|one|"),
            ("TAG FIND {s},* id 7", "*2|$5|{s},a|$3|one|"),
            ("TAG FIND {s},* id 8", "*-1|"),
            ("TAG OF {s},a", "*4|$5|group|$1|g|$2|id|$1|7|"),
            ("TAG OF {s},absent", "*-1|"),
            ("TAG HSET {s},h 2 f 1 g 2 2 id 8 group g", ":2|"),
            ("TAG FIND {s},* id 8", "*2|$5|{s},h|*4|$1|f|$1|1|$1|g|$1|2|"),
            ("TAG FIND {s},* id 8 g x", "*2|$5|{s},h|*2|$1|2|$-1|"),
            ("TAG KEYS {s},* group g COUNT 1", "*1|$5|{s},a|"),
            ("TAG KEYS {s},* id 8", "*1|$5|{s},h|"),
            ("TAG KEYS {s},* group absent", "*0|"),
            ("TAG HSET {s},h 1 f 3 1 id 9 XX", ":0|"),
            ("TAG FIND {s},* id 8", "*-1|"),
            ("TAG FIND {s},* id 9 f g", "*2|$5|{s},h|*2|$1|3|$1|2|"),
            ("TAG HSET {s},new 1 f 3 1 id 10 XX", "$-1|"),
            ("TAG SET {s},new x 0 XX", "$-1|"),
            ("TAG SET {s},a x 0 NX", "$-1|"),
            ("EXISTS {s},new", ":0|"),
            ("TAG SET {s},a two KEEP XX", "+OK|"),
            ("TAG FIND {s},* id 7", "*2|$5|{s},a|$3|two|"),
            ("TAG CHANGE {s},a 1 group h", ":1|"),
            ("TAG FIND {s},* id 7", "*-1|"),
            ("TAG KEYS {s},* group h", "*1|$5|{s},a|"),
            ("GET {s},a", "$3|two|"),
            ("TAG CHANGE {s},absent 0", ":0|"),
            ("TAG CHANGE {unmade},absent 0", ":0|"),
            ("TAG SET {s},a three 1 id 11", "+OK|"),
            ("SET {s},a four", "+OK|"),
            ("TAG FIND {s},* id 11", "*-1|"),
            ("DEL {s},h", ":1|"),
            ("TAG FIND {s},* id 9", "*-1|"),
            ("SADD {s},m x", ":1|"),
            ("TAG CHANGE {s},m 1 id 12", ":1|"),
            ("TAG FIND {s},* id 12", "*2|$5|{s},m|*1|$1|x|"),
        ],
    );
}

#[test]
fn an_expiry_survives_field_changes_and_not_a_new_value() {
    let (_place, mut client) = tagged();
    all(
        &mut client,
        &[
            ("TAG HSET {s},h 1 f v 1 id 1", ":1|"),
            ("EXPIRE {s},h 1000", ":1|"),
            ("TAG HSET {s},h 1 f w 1 id 1", ":0|"),
            ("TTL {s},h", ":1000|"),
            ("TAG CHANGE {s},h 1 id 2", ":1|"),
            ("TTL {s},h", ":1000|"),
            ("TAG SET {s},h x KEEP", "+OK|"),
            ("TTL {s},h", ":-1|"),
            ("TAG FIND {s},* id 2", "*2|$5|{s},h|$1|x|"),
            ("EXPIRE {s},h -1", ":1|"),
            ("TAG FIND {s},* id 2", "*-1|"),
        ],
    );
}

#[test]
fn a_duplicate_of_a_unique_value_is_rejected_and_changes_nothing() {
    let (_place, mut client) = tagged();
    all(&mut client, &[("TAG SET {s},a x 1 id 7", "+OK|"), ("TAG SET {s},b y 1 id 8", "+OK|")]);
    let taken = "-TAGTAKEN the unique tag \"id\" has the value \"7\" in record \"a\" already: \
                 delete that record or take the value from it first|";
    for request in [
        "TAG SET {s},c z 1 id 7",
        "TAG HSET {s},c 1 f v 1 id 7",
        "TAG SET {s},b z 1 id 7 XX",
        "TAG CHANGE {s},b 1 id 7",
    ] {
        assert_eq!(client.ask(request), taken, "{request}");
    }
    all(
        &mut client,
        &[
            ("EXISTS {s},c", ":0|"),
            ("TAG FIND {s},* id 8", "*2|$5|{s},b|$1|y|"),
            // A tag value moves from one record to another in one transaction.
            ("MULTI", "+OK|"),
            ("TAG CHANGE {s},a 0", "+QUEUED|"),
            ("TAG CHANGE {s},b 1 id 7", "+QUEUED|"),
            ("EXEC", "*2|:1|:1|"),
            ("TAG FIND {s},* id 7", "*2|$5|{s},b|$1|y|"),
            ("TAG FIND {s},* id 8", "*-1|"),
        ],
    );
}

#[test]
fn invalid_tag_requests_are_errors_with_advice() {
    let (_place, mut client) = tagged();
    let long = "x".repeat(256);
    let large = "x".repeat(1025);
    let many = format!("TAG SET {{s}},k v 65{}", " id x".repeat(65));
    assert_eq!(client.ask("TAG SET {s},k v 0"), "+OK|");
    for (request, refusal) in [
        ("TAG", "-ERR wrong number of arguments for 'tag' command"),
        ("TAG FOO {s},k", "-ERR unknown subcommand 'FOO'. TAG supports: "),
        ("TAG SET {s},k v", "-ERR wrong number of arguments for 'tag|set' command"),
        ("TAG SET {s},k v x", "-ERR value is not an integer"),
        ("TAG SET {s},k v -1", "-ERR value is not an integer"),
        ("TAG SET {s},k v 1 id", "-ERR wrong number of arguments: 1 pairs"),
        (
            "TAG SET {s},k v 9223372036854775807 id 1",
            "-ERR wrong number of arguments: 9223372036854775807 pairs",
        ),
        ("TAG SET {s},k v 1 id 1 YY", "-ERR syntax error"),
        ("TAG SET {s},k v 1 id 1 NX XX", "-ERR syntax error"),
        ("TAG SET {s},k v 1 nope 1", "-ERR tag 'nope' is not declared: send TAG DECLARE"),
        ("TAG SET plain v 1 id 1", "-ERR a key without a namespace cannot have tags: name it {ns}"),
        ("TAG SET {a,b},k v 1 id 1", "-ERR a key without a namespace cannot have tags"),
        ("TAG HSET plain 1 f v 1 id 1", "-ERR a key without a namespace cannot have tags"),
        ("TAG CHANGE plain 1 id 1", "-ERR a key without a namespace cannot have tags"),
        ("TAG SET {a*b},k v 1 id 1", "-ERR namespace 'a*b' cannot have tags: its name contains"),
        ("TAG CHANGE {a*b},k 1 id 1", "-ERR namespace 'a*b' cannot have tags"),
        ("TAG DECLARE {a*b},* id", "-ERR namespace 'a*b' cannot have tags"),
        ("TAG FIND {a*b},* id 1", "-ERR namespace 'a*b' cannot have tags"),
        ("TAG KEYS {a,b},* id 1", "-ERR invalid namespace pattern"),
        (many.as_str(), "-ERR 65 tags exceed the limit of 64"),
        (
            &format!("TAG SET {{s}},k v 1 {long} 1"),
            "-ERR invalid tag name: it must have 1 to 255 bytes",
        ),
        (&format!("TAG SET {{s}},k v 1 id {large}"), "-ERR tag value of 1025 bytes"),
        ("TAG HSET {s},k 1 f v 0", "-WRONGTYPE "),
        ("TAG HSET {s},h 0 1 id 1 NX", "-ERR no fields given"),
        ("TAG HSET {s},h 1 f v x id 1", "-ERR value is not an integer"),
        ("TAG HSET {s},h 1 f v 1 id 1 XX x", "-ERR syntax error"),
        ("TAG CHANGE {s},k 0 XX", "-ERR syntax error"),
        ("TAG CHANGE {s},k 1 nope 1", "-ERR tag 'nope' is not declared"),
        ("TAG FIND {s},* group g", "-ERR the tag \"group\" is not unique"),
        ("TAG FIND {s},* nope g", "-ERR tag 'nope' is not declared"),
        ("TAG FIND {none},* id g", "-ERR tag 'id' is not declared"),
        ("TAG FIND {s},k id g", "-ERR invalid namespace pattern"),
        ("TAG FIND * id g", "-ERR invalid namespace pattern"),
        ("TAG KEYS {s},* id g COUNT 0", "-ERR invalid COUNT: it must be between 1 and 4096"),
        ("TAG KEYS {s},* id g COUNT 4097", "-ERR invalid COUNT: it must be between 1 and 4096"),
        ("TAG KEYS {s},* id g COUNT", "-ERR syntax error"),
        ("TAG DECLARE {s},k id", "-ERR invalid namespace pattern"),
        ("TAG DECLARE {s},* id", "-ERR the tag \"id\" is declared in another form already"),
        ("TAG DECLARE {s},* other FOO", "-ERR syntax error"),
        ("TAG WATCH {s},* group g", "-ERR the tag \"group\" is not unique"),
    ] {
        let answer = client.ask(request);
        assert!(answer.starts_with(refusal), "{request}: {answer}");
    }
}

#[test]
fn lookups_by_tag_validate_values_and_types() {
    let (_node, mut client) = tagged();
    assert_eq!(client.ask("TAG SET {s},k v 0"), "+OK|");
    let long = "v".repeat(1025);
    for request in ["TAG FIND {s},* id", "TAG KEYS {s},* id", "TAG WATCH {s},* id"] {
        let answer = client.ask(&format!("{request} {long}"));
        assert!(answer.starts_with("-ERR tag value of 1025 bytes"), "{request}: {answer}");
    }
    all(
        &mut client,
        &[
            ("TAG SET {s},k w 1 id 1", "+OK|"),
            (
                "TAG FIND {s},* id 1 f",
                "-WRONGTYPE Operation against a key holding the wrong kind of value|",
            ),
        ],
    );
}

#[test]
fn a_rejected_request_creates_no_namespace() {
    let node = node();
    let mut client = node.client();
    let long = "k".repeat(4097);
    for (request, answer) in [
        ("TAG SET {new},k v 1 id 1", "-ERR tag 'id' is not declared: send TAG"),
        ("TAG HSET {new},k 1 f v 1 id 1", "-ERR tag 'id' is not declared"),
        ("TAG CHANGE {new},k 1 id 1", "-ERR tag 'id' is not declared"),
        ("TAG SET {new},k v 0 XX", "$-1|"),
        ("TAG HSET {new},k 1 f v 0 XX", "$-1|"),
        (&format!("TAG SET {{new}},{long} v 0"), "-ERR a key of "),
        (&format!("TAG HSET {{new}},{long} 1 f v 0"), "-ERR a key of "),
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with(answer), "{request}: {reply}");
    }
    let session = node.region.session().unwrap();
    assert!(session.known_namespace("new").unwrap().is_none());
    assert_eq!(client.ask("TAG SET {new},k v 0 NX"), "+OK|");
    assert!(session.known_namespace("new").unwrap().is_some());
}

/// Creates many records of one namespace. The value of tag `id` is the number of the record.
fn fill(node: &TestNode, count: u32) -> Session {
    let session = node.region.session().unwrap();
    let ns = session.namespace("s", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap();
    for key in 0..count {
        let key = key.to_string();
        let tags: &[(&str, &[u8])] = &[("id", key.as_bytes())];
        let labels = nearstate_store::Metadata { tags, expires_ms: 0 };
        session.transact(|txn| txn.put_with_metadata(ns, key.as_bytes(), b"v", labels)).unwrap();
    }
    session
}

#[test]
fn a_tag_of_many_records_is_declared_in_slices_and_resumed() {
    let node = node();
    let _session = fill(&node, 5000);
    let (mut client, mut other) = (node.client(), node.client());
    let request: &[&[u8]] = &[b"TAG", b"DECLARE", b"{s},*", b"id", b"UNIQUE"];
    let (answer, then) = client.begin(request);
    assert!(answer.is_empty() && matches!(then, NextAction::Work));
    for _ in 0..20 {
        let (answer, then) = client.step();
        assert!(answer.is_empty() && matches!(then, Poll::Ready(NextAction::Work)));
        assert_eq!(other.ask("PING"), "+PONG|", "other clients are served");
    }
    drop(client);
    let refused = other.ask("TAG FIND {s},* id 7");
    assert!(refused.contains("still being built"), "{refused}");
    let refused = other.ask("TAG DECLARE {s},* id");
    assert!(refused.contains("in another form already"), "{refused}");
    assert!(!refused.contains("again"), "a retry would fail again: {refused}");
    assert_eq!(other.ask("TAG SET {s},new v 1 id new"), "+OK|", "writers maintain the index");
    assert_eq!(other.ask("TAG DECLARE {s},* id UNIQUE"), "+OK|");
    for number in ["0", "4999", "new"] {
        let found = other.ask(&format!("TAG FIND {{s}},* id {number}"));
        assert!(found.starts_with("*2|") && found.ends_with("|$1|v|"), "{found}");
    }
    assert_eq!(other.ask("TAG DECLARE {s},* id UNIQUE"), "+OK|", "the index is complete");
}

#[test]
fn a_declaration_violated_by_many_records_is_undone_in_slices() {
    let node = node();
    let session = fill(&node, 5000);
    let ns = session.known_namespace("s").unwrap().unwrap();
    let labels = nearstate_store::Metadata { tags: &[("id", b"7")], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, b"another", b"v", labels)).unwrap();
    let mut client = node.client();
    let (answer, then) = client.begin(&[b"TAG", b"DECLARE", b"{s},*", b"id", b"UNIQUE"]);
    assert!(answer.is_empty() && matches!(then, NextAction::Work));
    let mut slices = 0;
    let answer = loop {
        let (answer, then) = client.step();
        match then {
            Poll::Ready(NextAction::Work) => slices += 1,
            Poll::Ready(_) | Poll::Pending => break String::from_utf8(answer).unwrap(),
        }
    };
    assert!(answer.starts_with("-TAGTAKEN the unique tag \"id\" has the value \"7\""), "{answer}");
    assert!(slices > 20, "{slices}");
    assert!(session.tags(ns).unwrap().is_empty(), "the tag is not declared");
    assert_eq!(
        client.ask("TAG DECLARE {s},* id"),
        "+OK|",
        "a declaration with other options is accepted"
    );
    assert!(client.ask("TAG KEYS {s},* id 7").starts_with("*2|"));
}

#[test]
fn a_declaration_in_a_full_region_is_an_error_with_advice() {
    let options = CreateOptions { bytes_max: REGION_BYTES_MIN, ..CreateOptions::default() };
    let node = crate::fixture::node_in(&options);
    let session = fill(&node, 20_000);
    let ns = session.namespace("full", &Schema::default()).unwrap();
    // The region has enough free memory to start the declaration.
    let mut client = node.client();
    assert_eq!(client.ask("TAG DECLARE {other},* id UNIQUE"), "+OK|");
    assert_eq!(client.ask("TAG SET {other},k v 1 id 1"), "+OK|");
    let mut count = 0_u32;
    while session.put(ns, &count.to_be_bytes(), &[0; 16 << 10]).is_ok() {
        count += 1;
    }
    let refused = client.ask("TAG DECLARE {s},* id UNIQUE");
    assert!(refused.starts_with("-PARTIAL OOM full: "), "{refused}");
    assert!(refused.contains("not all records are entered: send TAG DECLARE again"), "{refused}");
    for number in 0..count / 2 {
        session.delete(ns, &number.to_be_bytes()).unwrap();
    }
    assert_eq!(client.ask("TAG DECLARE {s},* id UNIQUE"), "+OK|");
    assert!(client.ask("TAG FIND {s},* id 19999").starts_with("*2|"));
}

#[test]
fn keys_with_a_reply_above_the_limit_is_rejected() {
    let (node, mut client) = tagged();
    let session = node.region.session().unwrap();
    let ns = session.namespace("s", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap();
    for key in 0..4097_u32 {
        let tags: &[(&str, &[u8])] = &[("group", b"g")];
        let labels = nearstate_store::Metadata { tags, expires_ms: 0 };
        let put = |txn: &nearstate_store::Txn<'_>| {
            txn.put_with_metadata(ns, &key.to_be_bytes(), b"", labels)
        };
        session.transact(put).unwrap();
    }
    assert!(client.ask("TAG KEYS {s},* group g").starts_with("-ERR more than 4096 records"));
    assert!(client.ask("TAG KEYS {s},* group g COUNT 4096").starts_with("*4096|"));
}

#[test]
fn expired_records_do_not_delay_requests() {
    let (node, mut client) = tagged();
    let session = node.region.session().unwrap();
    let ns = session.namespace("s", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap();
    // Many records per transaction: each commit collects a few expired ones.
    for part in 0..30_u32 {
        let tags: &[(&str, &[u8])] = &[("group", b"g")];
        let labels = nearstate_store::Metadata { tags, expires_ms: 1 };
        let put = |txn: &nearstate_store::Txn<'_>| {
            (0..600).try_for_each(|key: u32| {
                txn.put_with_metadata(ns, &(part * 600 + key).to_be_bytes(), b"", labels)
            })
        };
        session.transact(put).unwrap();
    }
    assert_eq!(client.ask("TAG SET {s},there x 1 group g"), "+OK|");
    for request in ["TAG KEYS {s},* group g", "TAG KEYS {s},* group g COUNT 2"] {
        let reply = client.ask(request);
        assert!(reply.starts_with("-BUSY most of more than 16384 records"), "{reply}");
    }
    // Each commit collects some.
    let answers = (0..100).map(|_| client.ask("TAG KEYS {s},* group g"));
    let answer = answers.into_iter().find(|answer| !answer.starts_with("-BUSY"));
    assert_eq!(answer.as_deref(), Some("*1|$9|{s},there|"));
}

#[test]
fn tag_commands_between_multi_and_exec_belong_to_the_transaction() {
    let (_place, mut client) = tagged();
    let queued = "+QUEUED|";
    all(
        &mut client,
        &[
            ("TAG SET {s},a x 1 id 1", "+OK|"),
            ("MULTI", "+OK|"),
            ("TAG SET {s},b y 1 id 2", queued),
            ("TAG HSET {s},h 1 f v 2 id 3 group g", queued),
            ("TAG OF {s},b", queued),
            ("TAG FIND {s},* id 1", queued),
            ("TAG FIND {s},* id 2", queued),
            ("TAG KEYS {s},* group g", queued),
            ("TAG SET {s},b y 1 nope 2", queued),
            ("TAG DECLARE {s},* more", queued),
            ("TAG WATCH {s},* id 1", "-ERR TAG WATCH inside MULTI is not allowed|"),
            ("GET {s},b", queued),
        ],
    );
    let answer = client.ask("EXEC");
    let (done, refused) = answer.split_at(answer.find('-').unwrap());
    assert_eq!(done, "*9|+OK|:1|*2|$2|id|$1|2|*2|$5|{s},a|$1|x|*", "{answer}");
    assert!(refused.starts_with("-1|*0|-ERR tag 'nope' is not declared"), "{answer}");
    assert_eq!(answer.matches("is not allowed between MULTI and EXEC").count(), 1, "{answer}");
    assert!(answer.ends_with("|$1|y|"), "{answer}");
    all(
        &mut client,
        &[
            ("TAG FIND {s},* id 2", "*2|$5|{s},b|$1|y|"),
            ("MULTI", "+OK|"),
            ("SET {s},c z", queued),
            ("TAG SET {s},d z 1 id 1", queued),
        ],
    );
    assert!(client.ask("EXEC").starts_with("-TAGTAKEN "));
    assert_eq!(client.ask("EXISTS {s},c {s},d"), ":0|");
}

#[test]
fn a_changed_watched_tag_aborts_exec() {
    let (node, mut client) = tagged();
    let mut other = node.client();
    assert_eq!(client.ask("TAG SET {s},a x 1 id 1"), "+OK|");
    for (watched, change, outcome) in [
        ("1", "PING", "*1|+OK|"),
        ("1", "SET {s},unrelated x", "*1|+OK|"),
        ("1", "TAG SET {s},a y 1 id 1", "*-1|"),
        ("2", "PING", "*1|+OK|"),
        ("2", "TAG SET {s},b y 1 id 2", "*-1|"),
        ("2", "TAG CHANGE {s},b 0", "*-1|"),
        ("1", "DEL {s},a", "*-1|"),
        ("1", "PING", "*1|+OK|"),
    ] {
        assert_eq!(client.ask(&format!("TAG WATCH {{s}},* id {watched}")), "+OK|");
        other.ask(change);
        assert_eq!(client.ask("MULTI"), "+OK|");
        assert_eq!(client.ask("SET {s},done x"), "+QUEUED|");
        assert_eq!(client.ask("EXEC"), outcome, "{watched}, {change}");
    }
    let kept = client.kept();
    assert_eq!(client.ask("TAG WATCH {s},* id 1"), "+OK|");
    assert!(client.kept() > kept, "watched keys count as memory");
    assert_eq!(client.ask("UNWATCH"), "+OK|");
    assert_eq!(client.kept(), kept);
}

#[test]
fn lookups_by_tag_need_permission_for_the_whole_namespace() {
    let users = "user op on nopass ~* +@all\nuser cu on nopass ~{s},* +@all";
    let users = Users::parse(users, &TABLE).unwrap();
    let node = crate::fixture::node_with(RespSettings::new(users));
    let (mut op, mut cu) = (node.client(), node.client());
    assert_eq!(op.ask("AUTH op x"), "+OK|");
    assert_eq!(cu.ask("AUTH cu x"), "+OK|");
    for name in ["s", "t"] {
        assert_eq!(op.ask(&format!("TAG DECLARE {{{name}}},* id UNIQUE")), "+OK|");
        assert_eq!(op.ask(&format!("TAG SET {{{name}}},k v 1 id 1")), "+OK|");
    }
    assert_eq!(cu.ask("TAG FIND {s},* id 1"), "*2|$5|{s},k|$1|v|");
    for request in [
        "TAG FIND {t},* id 1",
        "TAG KEYS {t},* id 1",
        "TAG WATCH {t},* id 1",
        "TAG DECLARE {t},* more",
        "TAG SET {t},k v 0",
        "TAG HSET {t},k 1 f v 0",
        "TAG CHANGE {t},k 0",
        "TAG OF {t},k",
    ] {
        assert!(cu.ask(request).starts_with("-NOPERM "), "{request}");
    }
}

#[test]
fn flush_deletes_records_with_more_tags_than_one_transaction_allows() {
    let node = node();
    let mut client = node.client();
    for tag in ["a", "b", "c", "d", "e"] {
        assert_eq!(client.ask(&format!("TAG DECLARE {{s}},* {tag} UNIQUE")), "+OK|");
    }
    let mut del = vec!["DEL".to_owned()];
    for number in 0..900 {
        let set = format!("TAG SET {{s}},{number} x 5 a {number} b {number} c {number} d {number}");
        assert_eq!(client.ask(&format!("{set} e {number}")), "+OK|");
        del.push(format!("{{s}},{number}"));
    }
    del.push("{s},none".to_owned());
    assert_eq!(client.ask(&del.join(" ")), ":900|");
    assert_eq!(client.ask("TAG FIND {s},* e 899"), "*-1|");
}

#[test]
fn declaring_tags_needs_admin_permission() {
    let users = "user w on nopass ~* +@all -@dangerous\nuser o on nopass ~* +@all";
    let node = crate::fixture::node_with(RespSettings::new(Users::parse(users, &TABLE).unwrap()));
    let mut client = node.client();
    assert_eq!(client.ask("AUTH w x"), "+OK|");
    assert!(client.ask("TAG DECLARE {s},* id UNIQUE").starts_with("-NOPERM"));
    assert_eq!(client.ask("AUTH o x"), "+OK|");
    assert_eq!(client.ask("TAG DECLARE {s},* id UNIQUE"), "+OK|");
    assert_eq!(client.ask("AUTH w x"), "+OK|");
    assert_eq!(client.ask("TAG SET {s},k v 1 id 1"), "+OK|");
}
