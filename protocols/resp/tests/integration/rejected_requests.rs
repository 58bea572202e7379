//! A rejected request creates nothing. Namespaces are never removed, so a request validates its
//! arguments before it creates one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, TestNode, node};
use nearstate_model::limits::{
    FIELD_NAME_BYTES_MAX, KEY_BYTES_MAX, TRANSACTION_RECORDS_MAX, VALUE_BYTES_MAX,
};

/// Namespaces created by clients.
fn made(node: &TestNode) -> Vec<String> {
    let session = node.region.session().unwrap();
    session.namespaces().unwrap().into_iter().map(|(name, _)| name).collect()
}

/// Sends a request. `{n},long` stands for a key above the limit, `NAME` for such a name of a field.
fn ask(client: &mut TestClient, request: &str) -> String {
    let long = format!("{{n}},{}", "k".repeat(KEY_BYTES_MAX + 1));
    let name = "f".repeat(FIELD_NAME_BYTES_MAX + 1);
    let reply = request.replace("{n},long", &long).replace("NAME", &name);
    let words: Vec<&[u8]> = reply.split(' ').map(str::as_bytes).collect();
    client.ask_bytes(&words)
}

#[test]
fn a_request_with_invalid_arguments_creates_no_namespace() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.ask("SET source v"), "+OK|");
    assert_eq!(client.ask("SADD members m"), ":1|");
    assert_eq!(made(&node), ["{}"]);
    for request in [
        "TAG HSET {n},k 1 NAME v 0",
        "TAG HSET {n},long 1 f v 0",
        "TAG SET {n},long v 0",
        "TAG DECLARE {n},* tag SIDEWAYS",
        "HSET {n},k NAME v",
        "HMSET {n},k NAME v",
        "HSET {n},k f v NAME v",
        "HSETNX {n},k NAME v",
        "HINCRBY {n},k NAME 1",
        "HINCRBYFLOAT {n},k NAME 1",
        "HSET {n},long f v",
        "HSETNX {n},long f v",
        "HINCRBY {n},long f 1",
        "SET {n},long v",
        "SET {n},long v NX",
        "SET {n},long v GET",
        "SET {n},k v EX 0",
        "SETNX {n},long v",
        "SETEX {n},long 9 v",
        "GETSET {n},long v",
        "APPEND {n},long v",
        "SETRANGE {n},long 1 v",
        "SETRANGE {n},k 134217728 v",
        "INCR {n},long",
        "INCRBYFLOAT {n},k word",
        "INCRBYFLOAT {n},k inf",
        "MSET {n},k v {n},long v",
        "MSETNX {n},k v {n},long v",
        "MSETPUB {n},k v {n},long v channel message",
        "SETNXPUB {n},long v channel message",
        "SETNE {n},long v other",
        "SADD {n},long m",
        "SMOVE members {n},long m",
        "RENAME source {n},long",
        "RENAMENX source {n},long",
        "COPY source {n},long",
    ] {
        let answer = ask(&mut client, request);
        assert!(answer.starts_with('-'), "{request}: {answer}");
        assert_eq!(made(&node), ["{}"], "{request}");
    }
    // Neither does a request whose condition is false.
    for request in ["SET {n},k v XX", "SET {n},k v XX GET", "TAG SET {n},k v 0 XX"] {
        assert_eq!(client.ask(request), "$-1|", "{request}");
        assert_eq!(made(&node), ["{}"], "{request}");
    }
    // The same requests with valid arguments create it.
    assert_eq!(client.ask("TAG HSET {n},k 1 f v 0"), ":1|");
    assert_eq!(made(&node).len(), 2);
}

#[test]
fn a_value_above_the_limit_creates_no_namespace() {
    let node = node();
    let mut client = node.client();
    let value = vec![b'v'; VALUE_BYTES_MAX + 1];
    for words in [
        &[&b"SET"[..], b"{n},k", &value][..],
        &[b"SET", b"{n},k", &value, b"EX", b"9"],
        &[b"MSET", b"{n},j", b"v", b"{n},k", &value],
        &[b"APPEND", b"{n},k", &value],
        &[b"HSET", b"{n},k", b"f", &value],
        &[b"SADD", b"{n},k", &value],
        &[b"SETNXPUB", b"{n},k", &value, b"channel", b"message"],
    ] {
        let answer = client.ask_bytes(words);
        let name = words.first().copied().unwrap_or_default().escape_ascii();
        assert!(answer.starts_with('-'), "{name}");
        assert_eq!(made(&node), [""; 0], "{name}");
    }
}

#[test]
fn a_rejected_watch_watches_none_of_its_keys() {
    let node = node();
    let (mut client, mut other) = (node.client(), node.client());
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    assert!(client.ask_bytes(&[b"WATCH", b"a", &long]).starts_with("-ERR a key of 4097 bytes"));
    let many: Vec<String> = (0..TRANSACTION_RECORDS_MAX).map(|key| format!("k{key}")).collect();
    assert_eq!(client.ask("WATCH b"), "+OK|");
    let words: Vec<&str> =
        std::iter::once("WATCH").chain(many.iter().map(String::as_str)).collect();
    assert!(client.ask(&words.join(" ")).starts_with("-ERR too many watched keys"));
    // If one key were watched, its change would abort EXEC.
    assert_eq!(other.ask("MSET a 1 k0 1 k4094 1"), "+OK|");
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask("GET a"), "+QUEUED|");
    assert_eq!(client.ask("EXEC"), "*1|$1|1|");
}
