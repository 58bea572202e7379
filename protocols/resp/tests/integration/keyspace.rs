//! Commands over all keys: walks in slices, walks between MULTI and EXEC, namespaces created by
//! embedded processes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use crate::fixture::{TestClient, TestNode, node, node_in, request};
use nearstate_store::limits::NAMESPACES_MAX;
use nearstate_store::{
    BlockChange, Condition, CreateOptions, Kind, Metadata, Schema, TagSchema, WhenFull,
    now_ms_coarse,
};

/// The bulk strings of a reply, in any aggregates.
pub(crate) fn bulks(answer: &str) -> Vec<String> {
    let parts: Vec<&str> = answer.split('|').collect();
    let mut all = Vec::new();
    let mut parts = parts.iter().peekable();
    while let Some(part) = parts.next() {
        if part.starts_with('$') && !part.starts_with("$-") {
            all.push((*parts.next().unwrap()).to_owned());
        }
    }
    all
}

fn sorted(answer: &str) -> Vec<String> {
    let mut all = bulks(answer);
    all.sort();
    all
}

/// Scans all keys. Returns how often each key was returned, and the number of calls.
fn scanned(client: &mut TestClient, options: &str) -> (Vec<String>, usize) {
    let (mut all, mut cursor, mut calls) = (Vec::new(), "0".to_owned(), 0);
    loop {
        let mut found = bulks(&client.ask(format!("SCAN {cursor} {options}").trim()));
        cursor = found.remove(0);
        all.extend(found);
        calls += 1;
        if cursor == "0" {
            all.sort();
            return (all, calls);
        }
    }
}

/// A node with a thousand keys in three namespaces. Some are expired.
fn filled() -> TestNode {
    let node = node();
    let mut client = node.client();
    for number in 0..600 {
        client.ask(&format!("SET plain:{number} v"));
        client.ask(&format!("SADD {{a}},{number} m"));
        if number < 100 {
            client.ask(&format!("HSET {{b}},{number} f v"));
        }
    }
    let session = node.region.session().unwrap();
    for name in ["a", "{}"] {
        let namespace = session.known_namespace(name).unwrap().unwrap();
        for number in 0..50_u32 {
            session.put_until(namespace, format!("past{number}").as_bytes(), b"v", 1).unwrap();
        }
    }
    node
}

fn keys_of(prefix: &str, count: usize) -> Vec<String> {
    let mut all: Vec<String> = (0..count).map(|number| format!("{prefix}{number}")).collect();
    all.sort();
    all
}

#[test]
fn expired_keys_are_not_walked() {
    let node = filled();
    let mut client = node.client();
    assert_eq!(client.ask("DBSIZE"), ":1300|");
    assert_eq!(bulks(&client.ask("KEYS *")).len(), 1300);
    assert_eq!(client.ask("KEYS *past*"), "*0|");
    assert!(!client.ask("RANDOMKEY").contains("past"));
}

#[test]
fn a_pattern_walks_only_its_namespace() {
    let node = filled();
    let mut client = node.client();
    assert_eq!(sorted(&client.ask("KEYS {a},*")), keys_of("{a},", 600));
    assert_eq!(sorted(&client.ask("KEYS {b},1?")), keys_of("{b},1", 10));
    assert_eq!(sorted(&client.ask("KEYS {b},*")), keys_of("{b},", 100));
    assert_eq!(sorted(&client.ask("KEYS plain:*")), keys_of("plain:", 600));
    assert_eq!(client.ask("KEYS {absent},*"), "*0|");
    let mut both = keys_of("{a},", 600);
    both.extend(keys_of("{b},", 100));
    both.sort();
    assert_eq!(sorted(&client.ask("KEYS {?},*")), both);
    for (number, key) in ["{a},7", "{b},7", "plain:7"].into_iter().enumerate() {
        assert_eq!(client.ask(&format!("KEYS {key}")), format!("*1|${}|{key}|", key.len()));
        assert_eq!(client.ask(&format!("TYPE {key}")), ["+set|", "+hash|", "+string|"][number]);
    }
}

#[test]
fn scan_returns_every_key_in_parts() {
    let node = filled();
    let mut client = node.client();
    let (mut all, calls) = scanned(&mut client, "");
    assert!(calls > 30, "{calls} calls");
    all.dedup();
    let mut expected =
        [keys_of("{a},", 600), keys_of("{b},", 100), keys_of("plain:", 600)].concat();
    expected.sort();
    assert_eq!(all, expected);
    let (all, fewer) = scanned(&mut client, "COUNT 400");
    assert_eq!(all, expected);
    assert!(fewer < calls / 4, "{fewer} calls");
    assert_eq!(scanned(&mut client, "COUNT 9223372036854775807"), (expected, 1));
    assert_eq!(scanned(&mut client, "MATCH {b},*").0, keys_of("{b},", 100));
    assert_eq!(scanned(&mut client, "TYPE hash").0, keys_of("{b},", 100));
    assert_eq!(scanned(&mut client, "TYPE SET COUNT 100").0, keys_of("{a},", 600));
    assert_eq!(scanned(&mut client, "MATCH *:1? TYPE string").0, keys_of("plain:1", 10));
}

#[test]
fn any_cursor_is_accepted_without_harm() {
    let node = filled();
    let mut client = node.client();
    for cursor in [1, 1 << 40, (1 << 40) - 1, 3 << 40, 77 << 40 | 5, u64::MAX, u64::MAX >> 1] {
        let answer = client.ask(&format!("SCAN {cursor} COUNT 100000"));
        assert!(answer.starts_with("*2|$1|0|*"), "{cursor}: {answer}");
    }
}

#[test]
fn randomkey_returns_every_key_eventually() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.ask("RANDOMKEY"), "$-1|");
    client.ask("MSET a 1 {n},b 2 {m},c 3");
    let mut seen = BTreeSet::new();
    for _ in 0..2000 {
        seen.extend(bulks(&client.ask("RANDOMKEY")));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a", "{m},c", "{n},b"]);
    client.ask("DEL a {n},b");
    assert_eq!(client.ask("RANDOMKEY"), "$5|{m},c|");
}

#[test]
fn a_flush_deletes_exactly_the_keys_in_its_scope() {
    let node = filled();
    let mut client = node.client();
    assert_eq!(client.ask("FLUSHALL ASYNC"), "+OK|");
    assert_eq!(client.ask("DBSIZE"), ":0|");
    assert_eq!(client.ask("KEYS *"), "*0|");
    assert_eq!(client.ask("EXISTS plain:1 {a},1 {b},1"), ":0|");
    assert_eq!(client.ask("SET plain:1 w"), "+OK|");
    assert_eq!(client.ask("KEYS *"), "*1|$7|plain:1|");
}

#[test]
fn a_sliced_command_delays_later_requests_of_its_connection() {
    let node = filled();
    let mut client = node.client();
    let requests: Vec<u8> = [&[&b"DBSIZE"[..]][..], &[b"FLUSHALL"], &[b"DBSIZE"], &[b"PING"]]
        .iter()
        .flat_map(|words| request(words))
        .collect();
    let answer = String::from_utf8(client.send(&requests)).unwrap();
    assert_eq!(answer, ":1300\r\n+OK\r\n:0\r\n+PONG\r\n");
}

#[test]
fn walks_between_multi_and_exec_see_earlier_writes() {
    let node = node();
    let mut client = node.client();
    client.ask("MSET old 1 gone 2 {n},k 3");
    for command in [
        "MULTI",
        "SADD new m",
        "DEL gone",
        "KEYS *",
        "DBSIZE",
        "SCAN 0 TYPE set",
        "RENAME old neu",
        "KEYS *",
        "FLUSHALL",
        "DBSIZE",
        "RANDOMKEY",
        "SET last 1",
        "RANDOMKEY",
        "KEYS *",
    ] {
        client.ask(command);
    }
    assert_eq!(
        client.ask("EXEC"),
        "*13|:1|:1|*3|$3|old|$3|new|$5|{n},k|:3|*2|$1|0|*1|$3|new|+OK|\
         *3|$3|neu|$3|new|$5|{n},k|+OK|:0|$-1|+OK|$4|last|*1|$4|last|"
    );
    assert_eq!(client.ask("KEYS *"), "*1|$4|last|");
}

#[test]
fn a_flush_of_many_keys_is_rejected_between_multi_and_exec() {
    let node = filled();
    let mut client = node.client();
    client.ask("MULTI");
    client.ask("FLUSHALL");
    client.ask("DBSIZE");
    let answer = client.ask("EXEC");
    assert!(answer.starts_with("*2|-ERR 1300 keys exceed the limit of 1000"), "{answer}");
    assert!(answer.ends_with("|:1300|"), "{answer}");
}

#[test]
fn del_deletes_many_keys() {
    let node = filled();
    let mut client = node.client();
    let words: Vec<String> = ["DEL".to_owned()]
        .into_iter()
        .chain((0..2000).map(|number| format!("plain:{}", number % 700)))
        .collect();
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    assert_eq!(client.ask_bytes(&words), ":600|");
    assert_eq!(client.ask("DBSIZE"), ":700|");
}

/// A namespace whose records cannot be changed, because its commit stream is full and rejects.
fn fill_stream(node: &TestNode, client: &mut TestClient) {
    let session = node.region.session().unwrap();
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    let actual = session.namespace("told", &schema).unwrap();
    session.stream(actual, WhenFull::Refuse).unwrap();
    client.ask("SET {told},k v");
    for bytes in [100_000, 100, 1] {
        let value = "v".repeat(bytes);
        while client.ask(&format!("SET {{told}},x{bytes} {value}")) == "+OK|" {}
    }
    assert!(client.ask("DEL {told},k").starts_with("-BUSY "));
}

fn del(client: &mut TestClient, keys: std::ops::Range<usize>, last: &str) -> String {
    let name = |number: usize| format!("{{d}},{number}");
    let mut words = vec!["UNLINK".to_owned()];
    words.extend(keys.map(name));
    words.push(last.to_owned());
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    client.ask_bytes(&words)
}

#[test]
fn del_of_many_keys_is_atomic_or_reports_its_progress() {
    let node = node();
    let mut client = node.client();
    let session = node.region.session().unwrap();
    let schema = Schema { kind: Kind::Counters, ..Schema::default() };
    let counters = session.namespace("counters", &schema).unwrap();
    session.add(counters, b"k", 5).unwrap();
    for number in 0..4500 {
        client.ask(&format!("SET {{d}},{number} v"));
    }
    fill_stream(&node, &mut client);
    let there = client.ask("DBSIZE");
    // The last key is rejected. No key before it is deleted, and no counter.
    let reply = del(&mut client, 0..3000, "{told},k");
    assert!(reply.starts_with("-BUSY ") && !reply.contains("are done"), "{reply}");
    let reply = client.ask("DEL {counters},k {d},0 {told},k");
    assert!(reply.starts_with("-BUSY ") && !reply.contains("are done"), "{reply}");
    assert_eq!(client.ask("DBSIZE"), there);
    // More keys than one transaction accepts.
    client.ask("DEL {d},7");
    let reply = del(&mut client, 0..4500, "{told},k");
    let wanted = "of the 4501 keys the first 4000 are done (counters come last), 3999 of them were \
                  there and are deleted, and the others are as they were: send it again|";
    assert!(reply.starts_with("-PARTIAL BUSY ") && reply.ends_with(wanted), "{reply}");
    assert_eq!(client.ask("EXISTS {d},0 {d},3999 {d},4000 {d},4499 {told},k"), ":3|");
    // Between MULTI and EXEC nothing is changed before the commit.
    client.ask("MULTI");
    client.ask("DEL {d},4000 {d},4001");
    client.ask("DEL {told},k");
    assert!(client.ask("EXEC").starts_with("-BUSY "));
    assert_eq!(client.ask("EXISTS {d},4000 {d},4001"), ":2|");
    let reply = client.ask("FLUSHALL");
    assert!(
        reply.starts_with("-PARTIAL BUSY ") && reply.contains("keys are deleted, the others"),
        "{reply}"
    );
    assert_eq!(client.ask("EXISTS {told},k"), ":1|");
}

#[test]
fn keys_with_more_tags_than_one_transaction_allows_are_deleted_in_parts() {
    let node = node();
    let session = node.region.session().unwrap();
    let tags = vec![TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }];
    let schema = Schema { kind: Kind::Mixed, tags };
    let namespace = session.namespace("d", &schema).unwrap();
    for number in 0..3000_u32 {
        let value = number.to_le_bytes();
        let tags: &[(&str, &[u8])] = &[("id", &value)];
        let labels = Metadata { tags, ..Metadata::default() };
        let key = number.to_string();
        session
            .transact(|txn| txn.put_with_metadata(namespace, key.as_bytes(), b"v", labels))
            .unwrap();
    }
    assert_eq!(del(&mut node.client(), 0..3000, "none"), ":3000|");
}

#[test]
fn clients_read_counters_of_embedded_processes_as_strings() {
    let node = node();
    let session = node.region.session().unwrap();
    let schema = Schema { kind: Kind::Counters, ..Schema::default() };
    let counters = session.namespace("counters", &schema).unwrap();
    session.add(counters, b"k", 5).unwrap();
    session.add(counters, b"l", 5).unwrap();
    let mut client = node.client();
    for (request, answer) in [
        ("TYPE {counters},k", "+string|"),
        ("EXISTS {counters},k {counters},l {counters},none", ":2|"),
        ("KEYS {counters},k", "*1|$12|{counters},k|"),
        ("DEL {counters},k {counters},none", ":1|"),
        ("DEL {counters},k", ":0|"),
        ("EXISTS {counters},k", ":0|"),
        ("DBSIZE", ":1|"),
        ("FLUSHALL", "+OK|"),
        ("DBSIZE", ":0|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    for command in ["HSET {counters},k a 1", "SADD {counters},k a", "EXPIRE {counters},k 1"] {
        assert!(client.ask(command).starts_with("-WRONGTYPE "), "{command}");
    }
}

#[test]
fn a_namespace_of_one_record_type_rejects_the_others() {
    let node = node();
    let session = node.region.session().unwrap();
    let values = session.namespace("values", &Schema::default()).unwrap();
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    let blocks = session.namespace("blocks", &schema).unwrap();
    session.put(values, b"k", b"v").unwrap();
    let change = BlockChange { name: "f", bytes: Some(b"v") };
    session.patch(blocks, b"k", &[change], Condition::Always).unwrap();
    let mut client = node.client();
    for (request, answer) in [
        ("HGET {blocks},k f", "$1|v|"),
        ("HSET {blocks},k f w g x", ":1|"),
        ("HGETALL {blocks},k", "*4|$1|f|$1|w|$1|g|$1|x|"),
        ("RENAME {blocks},k {blocks},l", "+OK|"),
        ("COPY {blocks},l {mixed},l", ":1|"),
        ("COPY {values},k {mixed},k", ":1|"),
        ("RENAME {mixed},k {values},l", "+OK|"),
        ("HDEL {blocks},l f g", ":2|"),
        ("EXISTS {blocks},l", ":0|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    for command in [
        "HSET {values},k f v",
        "HSET {values},none f v",
        "SADD {values},none m",
        "SADD {blocks},k m",
        "RENAME {mixed},l {values},k",
        "COPY {values},k {blocks},k",
        "HGET {values},k f",
    ] {
        assert!(client.ask(command).starts_with("-WRONGTYPE "), "{command}");
    }
    assert_eq!(client.ask("SADD {mixed},s m"), ":1|");
    assert!(client.ask("SMOVE {mixed},s {values},none m").starts_with("-WRONGTYPE "));
    assert_eq!(client.ask("SMEMBERS {mixed},s"), "*1|$1|m|");
    assert_eq!(client.ask("GET {values},k"), "$1|v|");
    assert_eq!(client.ask("HLEN {mixed},l"), ":2|");
}

#[test]
fn tags_and_expiry_survive_changes_of_the_value() {
    let node = node();
    let session = node.region.session().unwrap();
    let tag = |name: &str, is_unique| TagSchema {
        name: name.to_owned(),
        is_unique,
        is_counted: !is_unique,
        ..TagSchema::default()
    };
    let schema = Schema { kind: Kind::Mixed, tags: vec![tag("slice", false), tag("supi", true)] };
    let ns = session.namespace("ue", &schema).unwrap();
    let end = now_ms_coarse() + 1_000_000;
    let tags: &[(&str, &[u8])] = &[("slice", b"1"), ("supi", b"imsi-1")];
    session
        .transact(|txn| {
            txn.patch(ns, b"h", &[BlockChange { name: "f", bytes: Some(b"v") }])?;
            txn.set_metadata(ns, b"h", Metadata { tags, expires_ms: end })?;
            let tags = &[("slice", &b"1"[..])];
            txn.put_members(ns, b"s", &[b"m"], Metadata { tags, expires_ms: end })
        })
        .unwrap();
    let mut client = node.client();
    let found = || session.find(ns, "supi", b"imsi-1").unwrap().map(|view| view.key().to_vec());
    assert_eq!(client.ask("HSET {ue},h f w g x"), ":1|");
    assert_eq!(client.ask("HSCAN {ue},h 0"), "*2|$1|0|*4|$1|f|$1|w|$1|g|$1|x|");
    assert_eq!(client.ask("HSCAN {ue},h 0 NOVALUES"), "*2|$1|0|*2|$1|f|$1|g|");
    assert_eq!(client.ask("HSCAN {ue},h 0 MATCH g NOVALUES COUNT 1"), "*2|$1|0|*1|$1|g|");
    assert!(client.ask("SSCAN {ue},s 0 NOVALUES").starts_with("-ERR syntax error"));
    assert_eq!(client.ask("HDEL {ue},h g"), ":1|");
    assert_eq!(client.ask("SADD {ue},s n"), ":1|");
    assert_eq!(client.ask("SREM {ue},s m"), ":1|");
    assert_eq!(client.ask("RENAME {ue},h {ue},moved"), "+OK|");
    assert_eq!(found(), Some(b"moved".to_vec()));
    assert!(client.ask("COPY {ue},moved {ue},twin").starts_with("-TAGTAKEN "));
    assert_eq!(client.ask("EXISTS {ue},twin"), ":0|");
    assert_eq!(client.ask("COPY {ue},s {ue},twin"), ":1|");
    assert_eq!(session.count_tagged(ns, "slice", b"1").unwrap(), 3);
    for key in ["moved", "s", "twin"] {
        assert_eq!(client.ask(&format!("PEXPIRETIME {{ue}},{key}")), format!(":{end}|"));
        assert_eq!(client.ask(&format!("PERSIST {{ue}},{key}")), ":1|");
        assert_eq!(client.ask(&format!("TTL {{ue}},{key}")), ":-1|");
        assert_eq!(client.ask(&format!("EXPIRE {{ue}},{key} 100")), ":1|");
    }
    assert_eq!(session.count_tagged(ns, "slice", b"1").unwrap(), 3);
    assert_eq!(found(), Some(b"moved".to_vec()));
    assert_eq!(client.ask("EXPIRE {ue},moved -1"), ":1|");
    assert_eq!(found(), None);
}

#[test]
fn internal_namespaces_are_not_listed() {
    let node = node();
    let session = node.region.session().unwrap();
    let mut client = node.client();
    client.ask("SET k v");
    let plain = session.known_namespace("{}").unwrap().unwrap();
    session.put(plain, b"{ns},hidden", b"v").unwrap();
    session.namespace("a,b", &Schema::default()).unwrap();
    let odd = session.known_namespace("a,b").unwrap().unwrap();
    session.put(odd, b"k", b"v").unwrap();
    assert_eq!(client.ask("KEYS *"), "*1|$1|k|");
    assert_eq!(scanned(&mut client, "").0, ["k"]);
    assert_eq!(client.ask("GET {ns},hidden"), "$-1|");
    assert_eq!(client.ask("FLUSHALL"), "+OK|");
    assert!(session.get(odd, b"k").unwrap().is_some(), "the internal namespace is unchanged");
}

#[test]
fn a_hash_has_any_number_of_fields_with_any_names() {
    let node = node();
    let mut client = node.client();
    let names: Vec<String> = (0..1024).map(|number| format!("f{number}")).collect();
    let mut words: Vec<&[u8]> = vec![b"HSET", b"h"];
    for name in &names {
        words.extend([name.as_bytes(), b"v"]);
    }
    assert_eq!(client.ask_bytes(&words), ":1024|");
    assert_eq!(client.ask("HSET h one v"), ":1|");
    assert_eq!(client.ask("HSET h f1 w"), ":0|");
    assert_eq!(client.ask("HDEL h f2 one"), ":2|");
    assert_eq!(client.ask("HINCRBY h one 1"), ":1|");
    assert_eq!(client.ask("HLEN h"), ":1024|");
    assert_eq!(client.ask("OBJECT ENCODING h"), "$9|hashtable|");
    let long = vec![b'x'; 65_536];
    for name in [&b""[..], b"\xff", b"a\0b", &long[..300], &long[1..]] {
        for key in [&b"h"[..], b"n"] {
            assert_eq!(client.ask_bytes(&[b"HSET", key, name, b"1"]), ":1|");
            assert_eq!(client.ask_bytes(&[b"HINCRBY", key, name, b"2"]), ":3|");
            assert_eq!(client.ask_bytes(&[b"HGET", key, name]), "$1|3|");
            assert_eq!(client.ask_bytes(&[b"HMGET", key, b"none", name]), "*2|$-1|$1|3|");
            assert_eq!(client.ask_bytes(&[b"HEXISTS", key, name]), ":1|");
        }
        assert_eq!(client.ask_bytes(&[b"HDEL", b"h", name]), ":1|");
    }
    assert_eq!(client.ask("HLEN n"), ":5|");
    let refused = client.ask_bytes(&[b"HSET", b"n", b"ok", b"1", &long, b"v"]);
    assert!(refused.starts_with("-ERR field name of 65536 bytes"), "{refused}");
    assert_eq!(client.ask("HLEN n"), ":5|");
    let key = vec![b'k'; 5000];
    assert_eq!(client.ask_bytes(&[b"HGETALL", &key]), "*0|");
    assert_eq!(client.ask_bytes(&[b"DEL", &key]), ":0|");
    assert_eq!(client.ask_bytes(&[b"DEL", &key, b"none"]), ":0|");
    for command in [&b"HSET"[..], b"SADD"] {
        let mut words = vec![command, &key, b"x"];
        words.extend((command == b"HSET").then_some(&b"v"[..]));
        assert!(client.ask_bytes(&words).starts_with("-ERR a key of 5000 bytes"));
    }
    assert!(client.ask_bytes(&[b"COPY", b"h", &key]).starts_with("-ERR a key of 5000 bytes"));
    assert_eq!(client.ask("HLEN h"), ":1024|");
}

#[test]
fn random_selection_with_repetition_is_limited() {
    let node = node();
    let mut client = node.client();
    let large = vec![b'x'; 2000];
    client.ask_bytes(&[b"SADD", b"s", &large]);
    client.ask_bytes(&[b"HSET", b"h", b"f", &large]);
    for request in [
        "SRANDMEMBER s -65537",
        "SRANDMEMBER s -65536",
        "HRANDFIELD h -65537",
        "HRANDFIELD h -65536 WITHVALUES",
        "SRANDMEMBER s -9223372036854775807",
    ] {
        let answer = client.ask(request);
        assert!(
            answer.starts_with("-ERR value is out of range: with repetition at most 65536"),
            "{request}"
        );
    }
    assert_eq!(bulks(&client.ask("HRANDFIELD h -65536")).len(), 65536);
    client.ask("SADD t 1 2 3 4 5 6 7 8 9");
    let mut seen = BTreeSet::new();
    for _ in 0..500 {
        let some = bulks(&client.ask("SRANDMEMBER t 3"));
        let different: BTreeSet<String> = some.iter().cloned().collect();
        assert_eq!((some.len(), different.len()), (3, 3));
        seen.extend(some);
    }
    assert_eq!(seen.len(), 9);
    let popped = bulks(&client.ask("SPOP t 4"));
    assert_eq!(client.ask("SCARD t"), ":5|");
    for member in popped {
        assert_eq!(client.ask(&format!("SISMEMBER t {member}")), ":0|");
    }
}

#[test]
fn namespaces_with_a_common_prefix_are_distinguished_in_any_order() {
    let node = node();
    let mut client = node.client();
    let keys =
        ["{a},k", "{a},", "{ab},k", "{a}k", "{},k", "{", "k", "{a},{a},k", "{a,b},k", "{b},k"];
    for key in keys {
        assert_eq!(client.ask(&format!("SET {key} of:{key}")), "+OK|");
    }
    // Each key after each other key, in separate messages and in one.
    for before in keys {
        for key in keys {
            let asked = format!("GET {before}\r\nGET {key}\r\n");
            let answer = String::from_utf8(client.send(asked.as_bytes())).unwrap();
            let actual = |key: &str| format!("${}\r\nof:{key}\r\n", 3 + key.len());
            assert_eq!(answer, actual(before) + &actual(key));
            assert_eq!(client.ask(&format!("EXISTS {before} {key} {before}x")), ":2|");
        }
    }
}

/// Namespaces that `FLUSHALL` has emptied give their places to new ones.
#[test]
fn a_flush_makes_room_for_new_namespaces_in_a_full_catalog() {
    let node = node_in(&CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() });
    let mut client = node.client();
    let session = node.region.session().unwrap();
    let mixed = Schema { kind: Kind::Mixed, ..Schema::default() };
    for number in session.namespace_count().unwrap()..NAMESPACES_MAX {
        let namespace = session.namespace(&format!("n{number}"), &mixed).unwrap();
        session.put(namespace, b"k", b"v").unwrap();
    }
    let last = format!("{{n{}}},k", NAMESPACES_MAX - 1);
    assert_eq!(client.ask(&format!("GET {last}")), "$1|v|");
    let refused = client.ask("SET {new},k v");
    assert!(refused.starts_with("-OOM "), "{refused}");
    assert_eq!(client.ask("FLUSHALL"), "+OK|");
    assert_eq!(client.ask("SET {new},k v"), "+OK|");
    assert_eq!(client.ask("GET {new},k"), "$1|v|");
    // The client's last namespace may have been removed meanwhile: it is created again.
    assert_eq!(client.ask(&format!("SET {last} again")), "+OK|");
    assert_eq!(client.ask(&format!("GET {last}")), "$5|again|");
    for number in 0..600 {
        assert_eq!(client.ask(&format!("SET {{other{number}}},k v")), "+OK|");
    }
    assert_eq!(client.ask("DBSIZE"), ":602|");
}
