//! Requests that arrive together have the replies that they have one after the other.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, node_with, request};
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;

/// A client of a new node whose default user has the password `letmein`.
fn on_new_client(send: impl FnOnce(&mut TestClient) -> Vec<u8>) -> (String, bool) {
    let users = Users::parse("user default on >letmein +@all ~* &*", &TABLE).unwrap();
    let node = node_with(RespSettings::new(users));
    let mut client = node.client();
    let reply = send(&mut client);
    (String::from_utf8(reply).unwrap().replace("\r\n", "|"), client.is_closed)
}

fn array(line: &str) -> Vec<u8> {
    request(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// Requests after which others have other limits, another user, another protocol or another reply.
fn changing_requests() -> Vec<Vec<u8>> {
    let lines = [
        "GET {a},k",
        "AUTH letmein",
        "SET {a},k 1",
        "get {a},k",
        "GET {a},k",
        "INCR {a},k",
        "MULTI",
        "GET {a},k",
        "SET {a},k 5",
        "GET {a},k",
        "EXEC",
        "GET {a},k",
        // In slices.
        "KEYS {a},*",
        "SADD {a},s one",
        "SADD {a},s two",
        "SCARD {a},s",
        "GET",
        "GETT {a},k",
        "GET {a},s",
        "CLIENT REPLY SKIP",
        "GET {a},k",
        "GET {a},k",
        "WATCH {a},k",
        "SET {a},k 6",
        "MULTI",
        "GET {a},k",
        "EXEC",
        "TAG FIND {a},* tag value",
        "MGET {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k",
    ];
    let ends = [
        "RESET",
        "GET {a},k",
        "GET {a},k",
        // An unauthenticated client sends no more than ten arguments.
        "MGET {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k {a},k",
        "GET {a},k",
    ];
    let mut requests: Vec<Vec<u8>> = lines.iter().map(|line| array(line)).collect();
    requests.push(b"GET {a},k\r\n".to_vec());
    requests.push(b"*0\r\n".to_vec());
    requests.extend(ends.iter().map(|line| array(line)));
    requests
}

#[test]
fn a_pipeline_has_the_replies_of_single_requests() {
    let requests = changing_requests();
    let alone = on_new_client(|client| {
        let mut replies = Vec::new();
        for request in &requests {
            if !client.is_closed {
                replies.extend(client.send(request));
            }
        }
        replies
    });
    assert!(alone.0.ends_with("-ERR Protocol error: unauthenticated multibulk length|"));
    assert!(alone.1, "and then the connection is closed");
    let pipeline = requests.concat();
    for cut in (0..pipeline.len()).step_by(7) {
        let (first, rest) = pipeline.split_at(cut);
        let in_pieces = on_new_client(|client| {
            let mut replies = client.send(first);
            if !client.is_closed {
                replies.extend(client.send(rest));
            }
            replies
        });
        assert_eq!(in_pieces, alone, "cut at {cut}");
    }
}
