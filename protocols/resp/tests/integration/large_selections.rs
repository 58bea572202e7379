//! Commands that return many elements of large collections, or combine many sets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::collections::sliced;
use crate::fixture::{TestClient, node};

/// The limit of a random selection.
const PICKS_MAX: usize = 65_536;

/// Adds members, or fields with a value, to a key.
fn fill(client: &mut TestClient, command: &str, key: &str, numbers: std::ops::Range<usize>) {
    let words: Vec<String> = numbers
        .flat_map(|number| match command {
            "SADD" => vec![number.to_string()],
            _ => vec![number.to_string(), "v".to_owned()],
        })
        .collect();
    for part in words.chunks(10_000) {
        assert!(client.ask(&format!("{command} {key} {}", part.join(" "))).starts_with(':'));
    }
}

fn words(request: &str) -> Vec<&[u8]> {
    request.split(' ').map(str::as_bytes).collect()
}

#[test]
fn a_count_of_all_elements_is_answered_in_slices() {
    let node = node();
    let mut client = node.client();
    fill(&mut client, "SADD", "s", 0..20_000);
    fill(&mut client, "HSET", "h", 0..20_000);
    for (request, like, protocol) in [
        ("SRANDMEMBER s 30000", "SMEMBERS s", 2),
        ("SRANDMEMBER s 9223372036854775807", "SMEMBERS s", 2),
        ("HRANDFIELD h 20000", "HKEYS h", 3),
        ("HRANDFIELD h 30000 WITHVALUES", "HGETALL h", 2),
    ] {
        client.ask(&format!("HELLO {protocol}"));
        let (reply, slices) = sliced(&mut client, &words(request), |_| {});
        assert!(slices > 50, "{request}: {slices} slices");
        assert_eq!(reply, client.send(&crate::fixture::request(&words(like))), "{request}");
        // One piece of a transaction has the same reply.
        assert_eq!(client.ask("MULTI"), "+OK|");
        client.ask(request);
        let exec = client.ask("EXEC");
        assert_eq!(exec, format!("*1|{}", String::from_utf8(reply).unwrap().replace("\r\n", "|")));
    }
    client.ask("HELLO 3");
    let (nested, slices) = sliced(&mut client, &words("HRANDFIELD h 30000 WITHVALUES"), |_| {});
    assert!(slices > 50, "{slices} slices");
    let nested = String::from_utf8(nested).unwrap();
    assert!(nested.starts_with("*20000\r\n*2\r\n$"), "{}", &nested[..40]);
    assert_eq!(nested.matches("*2\r\n$").count(), 20_000);
}

#[test]
fn a_random_selection_of_too_many_elements_is_refused() {
    let node = node();
    let mut client = node.client();
    fill(&mut client, "SADD", "s", 0..PICKS_MAX + 2);
    fill(&mut client, "HSET", "h", 0..PICKS_MAX + 2);
    let one_more = PICKS_MAX + 1;
    for (request, error) in [
        (format!("SRANDMEMBER s {one_more}"), "at most 65536 elements are returned at random"),
        (format!("HRANDFIELD h {one_more}"), "at most 65536 elements are returned at random"),
        (format!("SPOP s {one_more}"), "at most 65536 members are removed at once"),
        ("SPOP s 9223372036854775807".to_owned(), "at most 65536 members are removed at once"),
    ] {
        let reply = client.ask(&request);
        assert!(reply.starts_with("-ERR value is out of range"), "{request}: {reply:.100}");
        assert!(reply.contains(error), "{request}: {reply}");
    }
    assert_eq!(client.ask("SCARD s"), format!(":{}|", PICKS_MAX + 2));
    for request in ["SRANDMEMBER s 65536", "HRANDFIELD h 65536", "SPOP s 65536"] {
        assert!(client.ask(request).starts_with("*65536|$"), "{request}");
    }
    assert_eq!(client.ask("SCARD s"), ":2|");
    assert!(client.ask("SPOP s 9223372036854775807").starts_with("*2|"));
}

/// The members of a bulk reply.
fn members(reply: &[u8]) -> std::collections::BTreeSet<usize> {
    let text = String::from_utf8(reply.to_vec()).unwrap();
    let lines: Vec<&str> = text.split("\r\n").filter(|line| !line.is_empty()).collect();
    let members = lines.iter().skip(2).step_by(2);
    let all: std::collections::BTreeSet<usize> =
        members.clone().map(|member| member.parse().unwrap()).collect();
    assert_eq!(lines.first(), Some(&&*format!("*{}", all.len())));
    assert_eq!(members.count(), all.len(), "a member is returned twice");
    all
}

#[test]
fn an_operation_on_many_sets_is_answered_in_slices() {
    let node = node();
    let (mut client, mut other) = (node.client(), node.client());
    // Each has half of the next one.
    let keys: Vec<String> = (0..65).map(|number| format!("s{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        fill(&mut client, "SADD", key, 500 * number..500 * number + 1000);
        assert_eq!(client.ask(&format!("SADD {key} 99999")), ":1|");
    }
    let keys = keys.join(" ");
    let union: std::collections::BTreeSet<usize> = (0..33_000).chain([99_999]).collect();
    for (request, slices_min, expected) in [
        ("SUNION", 100, union.clone()),
        ("SINTER", 3, [99_999].into()),
        ("SDIFF", 3, (0..500).collect()),
    ] {
        let request = format!("{request} {keys}");
        for writes in [0, 1, 1_000_000] {
            let (reply, slices) = sliced(&mut client, &words(&request), |slice| {
                if slice < writes {
                    // Both or none.
                    assert_eq!(other.ask("SADD s64 100000"), ":1|");
                    assert_eq!(other.ask("SREM s64 100000"), ":1|");
                }
            });
            assert!(slices >= slices_min || writes > 1, "{slices} slices");
            assert_eq!(members(&reply), expected, "{request:.10}");
        }
    }
    let (reply, slices) = sliced(&mut client, &words(&format!("SUNIONSTORE out {keys}")), |_| {});
    assert_eq!(String::from_utf8_lossy(&reply), ":33001\r\n");
    assert!(slices > 100, "{slices} slices");
    let out = client.send(&crate::fixture::request(&[b"SMEMBERS", b"out"]));
    assert_eq!(members(&out), union);
    assert_eq!(client.ask(&format!("SINTERCARD 65 {keys}")), ":1|");
}
