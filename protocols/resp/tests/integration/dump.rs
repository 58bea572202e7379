//! `DUMP`, `RESTORE` and `OBJECT`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, node, request};
use nearstate_resp::dump_payload::{DumpedRecord, DumpedValue};
use nearstate_store::now_ms;

/// The payload of a key.
fn dump(client: &mut TestClient, key: &str) -> Vec<u8> {
    let reply = client.send(&request(&[b"DUMP", key.as_bytes()]));
    let head = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    reply.get(head..reply.len() - 2).unwrap().to_vec()
}

fn restore(client: &mut TestClient, key: &str, ttl: &str, payload: &[u8], more: &str) -> String {
    let mut words = vec![&b"RESTORE"[..], key.as_bytes(), ttl.as_bytes(), payload];
    words.extend(more.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes));
    client.ask_bytes(&words)
}

#[test]
fn records_of_all_types_move_to_another_node() {
    let (from, to) = (node(), node());
    let (mut from, mut to) = (from.client(), to.client());
    from.ask_bytes(&[b"SET", b"{ns},s", b"bytes\0\r\n\xff"]);
    from.ask("HSET {ns},h f v g w");
    from.ask("SADD {ns},m a b c");
    from.ask("SET plain v EX 1000");
    for key in ["{ns},s", "{ns},h", "{ns},m", "plain"] {
        let payload = dump(&mut from, key);
        assert_eq!(restore(&mut to, key, "0", &payload, ""), "+OK|", "{key}");
        assert_eq!(dump(&mut to, key), payload, "{key}");
    }
    for request in ["GET {ns},s", "HGETALL {ns},h", "SMEMBERS {ns},m", "GET plain"] {
        assert_eq!(to.ask(request), from.ask(request), "{request}");
    }
    assert_eq!(to.ask("TTL plain"), ":-1|", "the expiration time is an argument");
    assert_eq!(from.ask("DUMP nokey"), "$-1|");
}

#[test]
fn tags_are_restored_if_the_namespace_has_them() {
    let (from, to) = (node(), node());
    let (mut from, mut to) = (from.client(), to.client());
    for client in [&mut from, &mut to] {
        assert_eq!(client.ask("TAG DECLARE {ue},* imsi UNIQUE"), "+OK|");
    }
    from.ask("TAG SET {ue},1 v 1 imsi 001");
    from.ask("TAG HSET {ue},2 1 f v 1 imsi 002");
    let payload = dump(&mut from, "{ue},1");
    assert_eq!(restore(&mut to, "{ue},1", "100000", &payload, ""), "+OK|");
    assert_eq!(to.ask("TAG OF {ue},1"), from.ask("TAG OF {ue},1"));
    assert!(!to.ask("PTTL {ue},1").starts_with(":-"));
    let taken = restore(&mut to, "{ue},3", "0", &payload, "");
    assert!(taken.starts_with("-TAGTAKEN"), "{taken}");
    assert_eq!(restore(&mut to, "{ue},1", "0", &payload, "REPLACE"), "+OK|");
    assert_eq!(to.ask("EXISTS {ue},3"), ":0|");
    // Without a declaration a tag is stored, and found once it is declared.
    let payload = dump(&mut from, "{ue},2");
    assert_eq!(restore(&mut to, "{other},2", "0", &payload, ""), "+OK|");
    assert_eq!(to.ask("TAG OF {other},2"), from.ask("TAG OF {ue},2"));
    assert_eq!(to.ask("TAG DECLARE {other},* imsi UNIQUE"), "+OK|");
    assert!(to.ask("TAG FIND {other},* imsi 002").contains("{other},2"));
}

#[test]
fn restore_has_the_options_and_errors_of_redis() {
    let node = node();
    let mut client = node.client();
    client.ask("SET k v");
    let payload = dump(&mut client, "k");
    let mut check = |key: &str, ttl: &str, more: &str, answer: &str| {
        let reply = restore(&mut client, key, ttl, &payload, more);
        assert_eq!(reply, answer, "{key} {ttl} {more}");
    };
    check("k", "0", "", "-BUSYKEY Target key name already exists.|");
    check("k", "0", "replace", "+OK|");
    check("l", "-1", "", "-ERR Invalid TTL value, must be >= 0|");
    check("l", "x", "", "-ERR value is not an integer or out of range|");
    check("l", "0", "x", "-ERR syntax error|");
    check("l", "0", "IDLETIME", "-ERR syntax error|");
    check("l", "0", "IDLETIME -1", "-ERR Invalid IDLETIME value, must be >= 0|");
    check("l", "0", "FREQ 256", "-ERR Invalid FREQ value, must be >= 0 and <= 255|");
    check("l", "0", "FREQ x", "-ERR value is not an integer or out of range|");
    check("l", "9223372036854775807", "", "+OK|");
    check("m", "1000", "ABSTTL IDLETIME 5 FREQ 3", "-ERR syntax error|");
    check("m", "1000", "ABSTTL FREQ 3", "+OK|");
    check("k", "1000", "ABSTTL REPLACE", "+OK|");
    let later = (now_ms() + 100_000).to_string();
    check("n", &later, "ABSTTL", "+OK|");
    let mut client = node.client();
    assert_eq!(client.ask("EXISTS k m"), ":0|", "their time is in the past");
    assert_eq!(client.ask("PEXPIRETIME n"), format!(":{later}|"));
    client.ask("MULTI");
    let queued = restore(&mut client, "o", "0", &payload, "");
    assert_eq!((queued.as_str(), client.ask("EXEC").as_str()), ("+QUEUED|", "*1|+OK|"));
    assert_eq!(client.ask("GET o"), "$1|v|");
}

#[test]
fn invalid_payloads_change_nothing() {
    let node = node();
    let mut client = node.client();
    client.ask("SET k v");
    let payload = dump(&mut client, "k");
    let checksum = "-ERR DUMP payload version or checksum are wrong|";
    for at in 0..payload.len() {
        let mut changed = payload.clone();
        changed[at] ^= 1;
        assert_eq!(restore(&mut client, "{new},k", "0", &changed, "REPLACE"), checksum);
    }
    for cut in [&b""[..], b"x", &payload[..payload.len() - 1]] {
        assert_eq!(restore(&mut client, "{new},k", "0", cut, ""), checksum);
    }
    let forged = |value| DumpedRecord { tags: Vec::new(), value }.encode();
    for payload in [
        forged(DumpedValue::Hash(Vec::new())),
        forged(DumpedValue::Hash(vec![(b"f", b"1"), (b"f", b"2")])),
        forged(DumpedValue::Set(Vec::new())),
        DumpedRecord { tags: vec![(b"\xff", b"1")], value: DumpedValue::String(b"v") }.encode(),
    ] {
        let reply = restore(&mut client, "new", "0", &payload, "");
        assert!(reply.starts_with("-ERR "), "{payload:?}: {reply}");
    }
    assert_eq!(client.ask("EXISTS new {new},k"), ":0|");
    assert_eq!(client.ask("GET k"), "$1|v|");
}

#[test]
fn object_reports_what_tools_expect() {
    let node = node();
    let mut client = node.client();
    client.ask("SET k v");
    for (request, answer) in [
        ("OBJECT IDLETIME k", ":0|"),
        ("OBJECT REFCOUNT k", ":1|"),
        ("OBJECT IDLETIME nokey", "$-1|"),
        ("OBJECT FREQ nokey", "$-1|"),
        ("OBJECT REFCOUNT nokey", "$-1|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    let freq = client.ask("OBJECT FREQ k");
    assert!(freq.starts_with("-ERR An LFU maxmemory policy is not selected"), "{freq}");
}
