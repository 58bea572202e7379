//! HTTP/2 and HTTP/1.1: versions, routing errors, limits, hostile peers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use nearstate_node::ConnectionLimits;

use crate::fixture::{JSON, MIXED, STORAGE, TestNode, node, node_with, record_body};
use crate::http2::{Http2Client, with_http2};

#[test]
fn req_http_1_requests_follow_each_other_on_one_connection_and_may_be_pipelined() {
    let node = node();
    let mut client = node.client();
    let request = format!("GET {STORAGE}/records/none HTTP/1.1\r\nHost: a\r\n\r\n");
    client.stream.get_mut().write_all(request.repeat(20).as_bytes()).unwrap();
    for _ in 0..20 {
        client.read("GET").is(404, "RECORD_NOT_FOUND");
    }
    client.put_record("r1", "{}", &[]).is(201, "");
    let counted = node.metrics.snapshot();
    assert!(counted.contains(&("GetRecord", "4xx", 20)));
    assert!(counted.contains(&("CreateOrModifyRecord", "2xx", 1)));
}

#[test]
fn req_unknown_paths_and_methods_have_a_problem() {
    let node = node();
    let mut client = node.client();
    client.get("/").is(400, "INVALID_API");
    client.get("/records/a/b/c").is(404, "RESOURCE_URI_STRUCTURE_NOT_FOUND");
    let reply = client.send("POST", "/records", &[], "");
    assert_eq!(reply.is(405, "METHOD_NOT_ALLOWED").header("allow"), Some("GET, DELETE"));
    client.send("TRACE", "/records/a", &[], "").is(405, "METHOD_NOT_ALLOWED");
}

#[test]
fn req_a_request_of_http_1_1_names_its_host_exactly_once() {
    let node = node();
    let request = |version: &str, hosts: &str| {
        let mut client = node.client();
        let head = format!("GET {STORAGE}/records/none HTTP/{version}\r\n{hosts}\r\n");
        client.stream.get_mut().write_all(head.as_bytes()).unwrap();
        client.read("GET")
    };
    for hosts in ["", "Host: a\r\nHost: a\r\n"] {
        request("1.1", hosts).is(400, "INVALID_MSG_FORMAT");
    }
    request("1.1", "Host: a\r\n").is(404, "RECORD_NOT_FOUND");
    request("1.0", "").is(404, "RECORD_NOT_FOUND");
}

#[test]
fn req_ids_that_clients_and_proxies_change_or_refuse_are_not_created() {
    let node = node();
    let mut client = node.client();
    for id in [".", "..", "%2E", ".%2e", "a%00b", "%7F", "%C2%85"] {
        let path = format!("/records/{id}");
        let body = record_body("{}", &[]);
        client.send("PUT", &path, &[MIXED], body).is(400, "MANDATORY_IE_INCORRECT");
        client.get(&path).is(404, "RECORD_NOT_FOUND");
    }
    for id in ["...", ".a", "a%2Fb", "%C3%A9"] {
        client.put_record(id, "{}", &[("a", "text")]).is(201, "");
        assert_eq!(client.get(&format!("/records/{id}/blocks/a")).text(), "text");
    }
    let path = "/records/.a/blocks/..";
    client.send("PUT", path, &[], "text").is(400, "MANDATORY_IE_INCORRECT");
    let timers = STORAGE.replace("nudsf-dr", "nudsf-timer");
    let timer = r#"{"expires":"2999-01-01T00:00:00Z"}"#;
    let path = format!("{timers}/timers/..");
    client.send("PUT", &path, &[JSON], timer).is(400, "MANDATORY_IE_INCORRECT");
    let schema = r#"{"schemaId":".","metaTags":[]}"#;
    client.send("PUT", "/meta-schemas/.", &[JSON], schema).is(400, "MANDATORY_IE_INCORRECT");
    let subscription =
        r#"{"clientId":{"nfSetId":"set1"},"callbackReference":"http://127.0.0.1:9/"}"#;
    for (id, status) in [("%2E%2E", 400), ("a%01", 400), ("a%2Fb", 201)] {
        let path = format!("/subs-to-notify/{id}");
        assert_eq!(client.send("PUT", &path, &[JSON], subscription).status, status, "{id}");
    }
}

#[test]
fn req_a_large_head_over_http_2_is_answered_with_431_and_the_connection_stays() {
    let node = node();
    with_http2(&node, async |mut client: Http2Client| {
        for (bytes, status) in [(70_000, 431), (1, 404)] {
            let uri = format!("http://udsf.example{STORAGE}/records/none");
            let request = hyper::Request::get(uri).header("x-long", "x".repeat(bytes));
            client.ready().await.unwrap();
            let reply = client.send_request(request.body(String::new()).unwrap()).await.unwrap();
            assert_eq!(reply.status().as_u16(), status);
        }
    });
}

#[test]
fn req_large_heads_and_bodies_are_bounded() {
    let node = node();
    let mut client = node.client();
    let long = "x".repeat(1_000_000);
    assert_eq!(client.send("GET", "/records/a", &[("X-Long", &long)], "").status, 431);
    let mut client = node.client();
    let many: Vec<(String, String)> =
        (0..100).map(|i| (format!("X-{i}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(client.send("GET", "/records/a", &many, "").status, 431);
    let mut client = node.client();
    let head = format!(
        "PUT {STORAGE}/records/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
    );
    client.stream.get_mut().write_all(head.as_bytes()).unwrap();
    client.read("PUT").is(413, "PAYLOAD_TOO_LARGE");
}

#[test]
fn req_a_large_record_is_written_and_read() {
    let node = node();
    let mut client = node.client();
    let large = "0123456789abcdef".repeat(512 << 10);
    client.put_record("large", "{}", &[("a", &large), ("b", "small")]).is(201, "");
    let read = client.get("/records/large");
    assert_eq!(read.parts()[1][3].len(), large.len());
    assert!(read.parts()[1][3] == large);
    assert_eq!(client.get("/records/large/blocks/b").text(), "small");
}

#[test]
fn req_slow_requests_end_and_idle_connections_stay() {
    let limits = ConnectionLimits {
        request_timeout: Duration::from_millis(200),
        ..ConnectionLimits::default()
    };
    let node = node_with(limits);
    let mut idle = node.client();
    idle.get("/records/none").is(404, "RECORD_NOT_FOUND");
    let end = |begin: &str| {
        let mut stream = TcpStream::connect(node.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(end("GET /nudsf-dr"), "");
    assert_eq!(end("PRI * HT"), "");
    let put =
        format!("PUT {STORAGE}/records/a HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    assert!(end(&put).starts_with("HTTP/1.1 408"), "a body that stops");
    idle.get("/records/none").is(404, "RECORD_NOT_FOUND");
}

async fn send(client: &mut Http2Client, method: &str, path: &str, body: String) -> (u16, Vec<u8>) {
    use http_body_util::BodyExt as _;
    let request = hyper::Request::builder()
        .method(method)
        .uri(format!("http://udsf.example{STORAGE}{path}"))
        .header(MIXED.0, MIXED.1)
        .body(body)
        .unwrap();
    let response = client.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

#[test]
fn req01_http_2_with_prior_knowledge_serves_concurrent_streams() {
    let node = node();
    with_http2(&node, async |client| {
        let tasks = (0..200).map(|index| {
            let mut client = client.clone();
            tokio::task::spawn_local(async move {
                client.ready().await.unwrap();
                let body = record_body("{}", &[("a", &format!("text {index}"))]);
                let (status, _) =
                    send(&mut client, "PUT", &format!("/records/r{index}"), body).await;
                assert_eq!(status, 201);
                let (status, body) =
                    send(&mut client, "GET", &format!("/records/r{index}/blocks/a"), String::new())
                        .await;
                assert_eq!((status, body), (200, format!("text {index}").into_bytes()));
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    let counted = node.metrics.snapshot();
    assert!(counted.contains(&("CreateOrModifyRecord", "2xx", 200)), "{counted:?}");
}

#[test]
fn req01_http_2_carries_large_bodies_with_flow_control() {
    let node = node();
    let large = "0123456789abcdef".repeat(512 << 10);
    with_http2(&node, async |mut client| {
        let (status, _) =
            send(&mut client, "PUT", "/records/a", record_body("{}", &[("b", &large)])).await;
        assert_eq!(status, 201);
        let (status, body) = send(&mut client, "GET", "/records/a/blocks/b", String::new()).await;
        assert_eq!(status, 200);
        assert!(body == large.as_bytes());
    });
}

/// Frames of a flood after which the node counts as one that does not end it. It reads what arrives
/// for a second behind its GOAWAY, and a fast machine sends a million frames in that time.
const FLOOD_MAX: u32 = 20_000_000;

/// Sends raw HTTP/2 frames after the preface until the node closes the connection. Returns the
/// number of frames that were sent.
fn flood(node: &TestNode, frame: impl Fn(u32) -> Vec<u8>) -> u32 {
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut reader = stream.try_clone().unwrap();
    // The client reads, so that only what it sends can end the connection.
    std::thread::scope(|scope| {
        scope.spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).unwrap();
        let sent = (0..FLOOD_MAX).find(|index| stream.write_all(&frame(*index)).is_err());
        let _ = stream.shutdown(std::net::Shutdown::Both);
        sent.unwrap_or(FLOOD_MAX)
    })
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn req_http_2_floods_end_the_connection_and_others_are_served() {
    let node = node();
    // A head of GET / with HPACK's static table.
    let head = [0x82, 0x84, 0x86, 0x41, 0x01, b'a'];
    let rapid_reset = flood(&node, |index| {
        let stream = |number: u32| (index * 100 + number) * 2 + 1;
        let both = |number| {
            let reset = frame(3, 0, stream(number), &8_u32.to_be_bytes());
            [frame(1, 0x4, stream(number), &head), reset].concat()
        };
        (0..100).flat_map(both).collect()
    });
    assert!(rapid_reset < FLOOD_MAX, "rapid reset: {rapid_reset}");
    let continuation = flood(&node, |index| match index {
        0 => frame(1, 0, 1, &head),
        _ => frame(9, 0, 1, &[0x40, 0x01, b'x', 0x01, b'y'].repeat(100)),
    });
    assert!(continuation < FLOOD_MAX, "CONTINUATION: {continuation}");
    let garbage = flood(&node, |_| vec![0xff; 16 << 10]);
    assert!(garbage < FLOOD_MAX, "garbage: {garbage}");
    node.client().get("/records/none").is(404, "RECORD_NOT_FOUND");
}

/// A response to HEAD has no content: with some, the client would take it for a violation of
/// HTTP/2.
#[test]
fn req_head_over_http2_has_no_body() {
    let node = node();
    with_http2(&node, async |mut client| {
        for path in ["/records/r1", "/records"] {
            let (status, body) = send(&mut client, "HEAD", path, String::new()).await;
            assert_eq!((status, body.len()), (405, 0), "{path}");
        }
        assert_eq!(send(&mut client, "GET", "/records/r1", String::new()).await.0, 404);
    });
}
