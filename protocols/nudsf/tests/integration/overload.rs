//! The `3gpp-Sbi-*` headers, and overload.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::fixture::{STORAGE, TestNodeOptions, node, node_of};

#[test]
fn req_sbi_a_request_whose_client_no_longer_waits_is_answered_with_504() {
    let node = node();
    let mut client = node.client();
    let mut get = |headers: &[(&str, &str)]| client.send("GET", "/records/r1", headers, "");
    let max = |ms| ("3gpp-Sbi-Max-Rsp-Time", ms);
    get(&[max("60000")]).is(404, "RECORD_NOT_FOUND");
    get(&[max("never")]).is(404, "RECORD_NOT_FOUND");
    get(&[max("0")]).is(504, "TIMED_OUT_REQUEST");
    let sent = ("3gpp-Sbi-Sender-Timestamp", "Sun, 06 Nov 1994 08:49:37.100 GMT");
    get(&[max("60000"), sent]).is(504, "TIMED_OUT_REQUEST");
    // A body that does not arrive in that time.
    let mut client = node.client();
    let head = format!(
        "PUT {STORAGE}/records/a HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\
         3gpp-Sbi-Max-Rsp-Time: 50\r\n\r\nabc"
    );
    client.stream.get_mut().write_all(head.as_bytes()).unwrap();
    client.read("PUT").is(504, "TIMED_OUT_REQUEST");
    node.client().get("/records/a").is(404, "RECORD_NOT_FOUND");
}

#[test]
fn req_sbi_headers_for_proxies_are_accepted() {
    let node = node();
    let headers = [
        ("3gpp-Sbi-Target-Nf-Group-Id", "group1"),
        ("3gpp-Sbi-Target-apiRoot", "https://other.example"),
        ("3gpp-Sbi-Message-Priority", "31"),
    ];
    node.client().send("GET", "/records/r1", &headers, "").is(404, "RECORD_NOT_FOUND");
}

/// With a limit below the shortest possible wait, the measured load of any traffic is overload.
#[test]
fn req_sbi_at_overload_low_priorities_are_refused_and_the_highest_is_served() {
    let overload_delay = Duration::from_nanos(1);
    let node = node_of(TestNodeOptions { overload_delay, ..TestNodeOptions::default() });
    let mut client = node.client();
    let end = Instant::now() + Duration::from_secs(30);
    let refused = loop {
        let reply = client.get("/records/r1");
        if reply.status != 404 {
            break reply;
        }
        assert!(Instant::now() < end, "overload is never detected");
    };
    assert_eq!(refused.is(503, "NF_CONGESTION").header("retry-after"), Some("1"));
    let highest = [("3gpp-Sbi-Message-Priority", "0")];
    client.send("GET", "/records/r1", &highest, "").is(404, "RECORD_NOT_FOUND");
}
