//! Storages whose commits wait until they are replicated: a write is answered then, and other
//! requests of the core and of the connection are served meanwhile.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use nearstate_store::{ReplicationPolicy, Session, lease_clock};
use serde_json::{Value, json};

use crate::fixture::{
    JSON, MIXED, PATCH, STORAGE, TestClient, TestNode, TestNodeOptions, encode, node_of,
    patch_body, record_body,
};
use crate::hostile::{Answers, RawHttp2, head};
use crate::http::frame;
use crate::http2::with_http2;

const TIMERS: &str = "/nudsf-timer/v1/Realm01/Storage01/timers";
const NF: &str = "4947a69a-f61b-4bc1-b9da-47c9c5d14b64";

/// A record that no storage has, of one whose commits do not wait.
const OTHER_NONE: &str = "/nudsf-dr/v1/Realm01/Other/records/none";

/// A time that no test reaches.
const LONG: Duration = Duration::from_secs(600);

/// A request, and the status of its response.
type Write<'w> = (&'w str, &'w str, &'w [(&'w str, &'w str)], String, u16);

/// A node on one core whose storage waits this long, and a session beside it.
fn waiting_node(wait: Duration) -> (TestNode, Session) {
    let options = TestNodeOptions { replication_wait: Some(wait), ..TestNodeOptions::default() };
    let node = node_of(options);
    let session = node.session();
    for name in ["ue", "ue:subscriptions", "ue:schemas", "ue:timers"] {
        let namespace = session.known_namespace(name).unwrap().unwrap();
        session.set_replication_policy(namespace, ReplicationPolicy::Replicated).unwrap();
    }
    acknowledge(&session);
    (node, session)
}

fn acknowledge(session: &Session) {
    session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
}

fn has_no_reply(client: &mut TestClient) {
    client.stream.get_ref().set_nonblocking(true).unwrap();
    let read = client.stream.read(&mut [0]);
    assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    client.stream.get_ref().set_nonblocking(false).unwrap();
}

fn subscription(callback: &str) -> Value {
    json!({
        "clientId": {"nfId": NF},
        "callbackReference": callback,
        "subFilter": {"operations": ["DELETED"]},
    })
}

#[test]
fn req_replicated_every_write_is_answered_when_its_commit_is_replicated() {
    let (node, session) = waiting_node(LONG);
    let (mut client, mut other) = (node.client(), node.client());
    let timer = |tag: &str| json!({"expires": "2999-01-01T00:00:00Z", "metaTags": {"ueId": [tag]}});
    let tagged = |value: &str| {
        let filter = format!(r#"{{"op":"EQ","tag":"ueId","value":"{value}"}}"#);
        encode(&filter)
    };
    let (records, timers) =
        (format!("/records?filter={}", tagged("1")), format!("{TIMERS}?filter={}", tagged("1")));
    let (t1, t2) = (format!("{TIMERS}/t1"), format!("{TIMERS}/t2"));
    let client_id =
        format!("/subs-to-notify/s1?client-id={}", encode(&json!({"nfId": NF}).to_string()));
    let record = || record_body(r#"{"tags":{"ueId":["1"]}}"#, &[("b", "1")]);
    let schema = r#"{"schemaId":"m","metaTags":[{"tagName":"ueId","keyType":"SEARCH_KEY"}]}"#;
    let add = r#"[{"op":"add","path":"/tags/x","value":["1"]}]"#.to_owned();
    let callback = r#"[{"op":"replace","path":"/callbackReference","value":"http://b/n"}]"#;
    let expires = r#"[{"op":"replace","path":"/metaTags","value":{"ueId":["1"]}}]"#.to_owned();
    let blocks = r#"[{"op":"add","path":"/blocks/d","value":"d"}]"#;
    let writes: [Write<'_>; 19] = [
        ("PUT", "/meta-schemas/m", &[JSON], schema.to_owned(), 201),
        ("DELETE", "/meta-schemas/m", &[], String::new(), 204),
        ("PUT", "/records/r1", &[MIXED], record(), 201),
        ("PUT", "/records/r1?get-previous=true", &[MIXED], record(), 200),
        ("PUT", "/records/r1/blocks/c", &[("Content-Type", "text/plain")], "2".to_owned(), 201),
        ("DELETE", "/records/r1/blocks/c", &[], String::new(), 204),
        ("PATCH", "/records/r1/meta", &[PATCH], add, 204),
        ("PATCH", "/records/r1", &[MIXED], patch_body(blocks, &[("d", "3")]), 204),
        ("DELETE", "/records/r1", &[], String::new(), 204),
        ("PUT", "/records/r2", &[MIXED], record(), 201),
        ("DELETE", &records, &[], String::new(), 200),
        ("PUT", "/subs-to-notify/s1", &[JSON], subscription("http://a/n").to_string(), 201),
        ("PATCH", "/subs-to-notify/s1", &[PATCH], callback.to_owned(), 204),
        ("DELETE", &client_id, &[], String::new(), 204),
        ("PUT", &t1, &[JSON], timer("1").to_string(), 201),
        ("PUT", &t2, &[JSON], timer("2").to_string(), 201),
        ("PATCH", &t2, &[PATCH], expires, 204),
        ("DELETE", &t2, &[], String::new(), 204),
        ("DELETE", &timers, &[], String::new(), 200),
    ];
    for write in &writes {
        let before = session.log_tail_position().unwrap();
        let (method, path, headers, body, status) = write;
        client.write((method, path), headers, body.as_bytes()).unwrap();
        while session.log_tail_position().unwrap() == before {
            std::thread::yield_now();
        }
        // The core answers others.
        other.send("GET", OTHER_NONE, &[], "").is(404, "RECORD_NOT_FOUND");
        has_no_reply(&mut client);
        acknowledge(&session);
        let reply = client.read(method);
        assert_eq!(reply.status, *status, "{method} {path}: {}", reply.text());
    }
}

/// Another host may own the partition, and may have discarded or changed what they tell of.
#[test]
fn a_host_whose_lease_has_ended_answers_no_read_of_a_replicated_storage() {
    let (node, session) = waiting_node(Duration::from_millis(20));
    session.set_owner_lease(lease_clock() + Duration::from_hours(1)).unwrap();
    let mut client = node.client();
    let tags = r#"{"tags":{"ueId":["1"]}}"#;
    client.put_record("old", tags, &[("b", "1")]).is(504, "NOT_REPLICATED");
    acknowledge(&session);
    client.get("/records/old").is(200, "");
    session.set_owner_lease(Duration::from_nanos(1)).unwrap();
    let filter = encode(r#"{"op":"EQ","tag":"ueId","value":"1"}"#);
    let search = format!("/records?filter={filter}");
    for path in ["/records/old", "/records/old/blocks/b", "/records/none", &search] {
        client.get(path).is(503, "NF_CONGESTION");
    }
    // Another storage, and errors of the request.
    client.send("GET", OTHER_NONE, &[], "").is(404, "RECORD_NOT_FOUND");
    client.send("PUT", "/records/old", &[JSON], "{}").is(415, "UNSUPPORTED_MEDIA_TYPE");
    session.set_owner_lease(lease_clock() + Duration::from_hours(1)).unwrap();
    client.get("/records/old").is(200, "");
}

/// A fail-over would discard what they tell of.
#[test]
fn req_replicated_a_response_that_tells_of_a_commit_waits_until_it_is_replicated() {
    let (node, session) = waiting_node(Duration::from_millis(20));
    let mut client = node.client();
    let tags = r#"{"tags":{"ueId":["1"]}}"#;
    client.put_record("old", tags, &[("b", "1")]).is(504, "NOT_REPLICATED");
    acknowledge(&session);
    client.put_record("new", tags, &[("b", "1")]).is(504, "NOT_REPLICATED");
    // What is replicated, another storage, and errors of the request.
    client.get("/records/old").is(200, "");
    client.get("/records/old/blocks/b").is(200, "");
    client.send("GET", OTHER_NONE, &[], "").is(404, "RECORD_NOT_FOUND");
    client.send("PUT", "/records/new", &[JSON], "{}").is(415, "UNSUPPORTED_MEDIA_TYPE");
    let filter = encode(r#"{"op":"EQ","tag":"ueId","value":"1"}"#);
    let search = format!("/records?filter={filter}");
    let is_new = [("If-None-Match", "*"), MIXED];
    let waiting: [Write<'_>; 7] = [
        ("GET", "/records/new", &[], String::new(), 200),
        ("GET", "/records/new/meta", &[], String::new(), 200),
        ("GET", "/records/new/blocks/b", &[], String::new(), 200),
        ("GET", "/records/none", &[], String::new(), 404),
        ("GET", &search, &[], String::new(), 200),
        ("PUT", "/records/new", &is_new, record_body("{}", &[]), 412),
        ("DELETE", "/records/none", &[], String::new(), 404),
    ];
    for (method, path, headers, body, _) in &waiting {
        client.send(method, path, headers, body).is(504, "NOT_REPLICATED");
    }
    acknowledge(&session);
    for (method, path, headers, body, status) in &waiting {
        assert_eq!(client.send(method, path, headers, body).status, *status, "{method} {path}");
    }
}

#[test]
fn req_replicated_a_waiting_stream_does_not_hold_up_the_others_of_its_connection() {
    let (node, session) = waiting_node(LONG);
    let uri = |path: &str| format!("http://udsf.example{STORAGE}{path}");
    with_http2(&node, async |mut client| {
        let before = session.log_tail_position().unwrap();
        let put = |path: &str| {
            let request = hyper::Request::put(uri(path)).header(MIXED.0, MIXED.1);
            request.body(record_body("{}", &[("b", "1")])).unwrap()
        };
        let mut waiting = Vec::new();
        for number in 0..64 {
            client.ready().await.unwrap();
            waiting.push(Box::pin(client.send_request(put(&format!("/records/r{number}")))));
        }
        let read = async |client: &mut crate::http2::Http2Client, path: &str| {
            client.ready().await.unwrap();
            let uri = format!("http://udsf.example{path}");
            let request = hyper::Request::get(uri).body(String::new()).unwrap();
            client.send_request(request).await.unwrap().status().as_u16()
        };
        while session.log_tail_position().unwrap() < before + 64 {
            assert_eq!(read(&mut client, OTHER_NONE).await, 404);
        }
        for one in &mut waiting {
            let polled = std::future::poll_fn(|cx| Poll::Ready(one.as_mut().poll(cx).is_ready()));
            assert!(!polled.await, "a commit that is not replicated was answered");
        }
        // The first half only: receipts are in the order of commits.
        session.acknowledge_to(before + 32).unwrap();
        let mut statuses = Vec::new();
        for one in waiting.drain(..32) {
            statuses.push(one.await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [201; 32]);
        assert_eq!(read(&mut client, OTHER_NONE).await, 404);
        assert_eq!(read(&mut client, &format!("{STORAGE}/records/r0")).await, 200);
        let mut next = pin!(waiting.pop().unwrap());
        let polled = std::future::poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_ready()));
        assert!(!polled.await, "a commit that is not replicated was answered");
        acknowledge(&session);
        assert_eq!(next.await.unwrap().status(), 201);
    });
}

#[test]
fn req_replicated_a_write_that_is_not_replicated_in_time_is_504_and_stands() {
    let (node, session) = waiting_node(Duration::from_millis(20));
    let mut client = node.client();
    let refused = client.put_record("r1", r#"{"tags":{"ueId":["1"]}}"#, &[("b", "1")]);
    refused.is(504, "NOT_REPLICATED");
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("stands") && detail.contains("20 ms"), "{detail}");
    assert_eq!(refused.header("retry-after"), None, "the write was made");
    client.get("/records/r1/blocks/b").is(504, "NOT_REPLICATED");
    let add = r#"[{"op":"add","path":"/tags/x","value":["1"]}]"#;
    let patch = |client: &mut TestClient| client.send("PATCH", "/records/r1/meta", &[PATCH], add);
    patch(&mut client).is(504, "NOT_REPLICATED");
    // The second time it changes nothing, and is no success either.
    let tail = session.log_tail_position().unwrap();
    patch(&mut client).is(504, "NOT_REPLICATED");
    assert_eq!(session.log_tail_position().unwrap(), tail, "nothing was changed");
    let filter = encode(r#"{"op":"EQ","tag":"ueId","value":"1"}"#);
    let records = format!("/records?filter={filter}");
    client.send("DELETE", &records, &[], "").is(504, "NOT_REPLICATED");
    client.send("DELETE", &records, &[], "").is(504, "NOT_REPLICATED");
    acknowledge(&session);
    client.send("DELETE", &records, &[], "").is(204, "");
    // A storage whose commits do not wait.
    let other = "/nudsf-dr/v1/Realm01/Other/records/r1";
    client.send("PUT", other, &[MIXED], record_body("{}", &[])).is(201, "");
}

#[test]
fn req_replicated_a_write_that_a_fail_over_discards_is_503() {
    let (node, session) = waiting_node(LONG);
    session.begin_partition(1).unwrap();
    let mut client = node.client();
    let before = session.log_tail_position().unwrap();
    let body = record_body("{}", &[("b", "1")]);
    client.write(("PUT", "/records/r1"), &[MIXED], body.as_bytes()).unwrap();
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    session.set_fenced(true).unwrap();
    session.demote(Some(before)).unwrap();
    let refused = client.read("PUT");
    refused.is(503, "WRITE_LOST");
    assert_eq!(refused.header("retry-after"), Some("1"));
}

#[test]
fn req_replicated_the_time_limit_of_a_request_ends_its_wait() {
    let (node, session) = waiting_node(LONG);
    let mut client = node.client();
    let limit = ("3gpp-Sbi-Max-Rsp-Time", "50");
    let before = session.log_tail_position().unwrap();
    // On a busy machine the time can be over before the write.
    while session.log_tail_position().unwrap() == before {
        let reply = client.send("PUT", "/records/r1", &[MIXED, limit], record_body("{}", &[]));
        reply.is(504, "TIMED_OUT_REQUEST");
    }
    acknowledge(&session);
    client.get("/records/r1").is(200, "");
}

#[test]
fn req_replicated_a_node_that_ends_answers_the_writes_that_wait() {
    let (node, session) = waiting_node(LONG);
    let (mut client, mut idle) = (node.client(), node.client());
    idle.send("GET", OTHER_NONE, &[], "").is(404, "RECORD_NOT_FOUND");
    let before = session.log_tail_position().unwrap();
    let body = record_body("{}", &[("b", "1")]);
    client.write(("PUT", "/records/r1"), &[MIXED], body.as_bytes()).unwrap();
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    node.begin_shutdown();
    assert_eq!(idle.stream.read(&mut [0]).unwrap(), 0, "an idle connection is closed");
    has_no_reply(&mut client);
    acknowledge(&session);
    client.read("PUT").is(201, "");
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "it is closed behind its answer");
}

#[test]
fn req_http_2_a_node_that_ends_says_goaway_and_answers_the_streams_in_progress() {
    let (node, session) = waiting_node(LONG);
    let mut client = RawHttp2::connect(node.address);
    client.settings(65_535);
    let before = session.log_tail_position().unwrap();
    let mut request = head("PUT", &format!("{STORAGE}/records/r1/blocks/b"));
    let body = record_body("{}", &[("a", "1")]);
    node.client().write(("PUT", "/records/r1"), &[MIXED], body.as_bytes()).unwrap();
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    acknowledge(&session);
    let before = session.log_tail_position().unwrap();
    request.extend(b"\x0f\x10\x0atext/plain");
    client.stream.write_all(&frame(1, 4, 1, &request)).unwrap();
    client.stream.write_all(&frame(0, 1, 1, b"x")).unwrap();
    while session.log_tail_position().unwrap() == before {
        std::thread::yield_now();
    }
    node.begin_shutdown();
    // First no stream is excluded: some may be on their way.
    let mut answers = Answers::default();
    client.read_until(&mut answers, |answers| answers.ping.is_some());
    assert_eq!(answers.last_stream, Some(0x7fff_ffff), "{answers:?}");
    client.stream.write_all(&frame(6, 1, 0, &answers.ping.take().unwrap())).unwrap();
    client.read_until(&mut answers, |answers| answers.last_stream != Some(0x7fff_ffff));
    assert_eq!(answers.last_stream, Some(1), "{answers:?}");
    assert!(answers.headers.is_empty() && !answers.is_closed, "{answers:?}");
    acknowledge(&session);
    client.read_until(&mut answers, |_| false);
    // 201 is no status of the static table: it is a literal for index 8.
    assert!(answers.headers.contains_key(&1) && answers.is_closed, "{answers:?}");
}

#[test]
fn req_http_2_a_client_that_ignores_goaway_does_not_hold_up_the_end_of_the_node() {
    let (node, _session) = waiting_node(LONG);
    let mut client = RawHttp2::connect(node.address);
    client.settings(65_535);
    let mut answers = Answers::default();
    client.stream.write_all(&frame(1, 5, 1, &head("GET", STORAGE))).unwrap();
    client.read_until(&mut answers, |answers| answers.headers.contains_key(&1));
    node.begin_shutdown();
    client.read_until(&mut answers, |_| false);
    assert!(answers.last_stream.is_some() && answers.is_closed, "{answers:?}");
    assert_eq!(node.cut_connections(), 0, "it is closed before the time limit of the node");
}
