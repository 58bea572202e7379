//! HTTP requests and responses as bytes: pages, rejected requests, and garbage.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::task::{Context, Waker};

use nearstate_node::clock::Clock;
use nearstate_node::{
    ConnectionHandler, Core, CoreParts, NextAction, OUTPUT_HIGH_WATER_BYTES, PeerAddress,
    PeerIdentity, Protocol,
};
use nearstate_observe::{HEAD_BYTES_MAX, MetricsReport, ObserveProtocol, ObserveSource};
use nearstate_store::{CreateOptions, Region};

struct TestSource {
    is_ready: bool,
}

struct TestReport(usize);

impl ObserveSource for TestSource {
    fn report(&self, _: &Core) -> Box<dyn MetricsReport> {
        Box::new(TestReport(3))
    }

    fn readiness(&self) -> Result<(), String> {
        if self.is_ready { Ok(()) } else { Err("the region is being recovered".to_owned()) }
    }
}

impl MetricsReport for TestReport {
    fn step(&mut self, text: &mut String) -> bool {
        self.0 -= 1;
        text.push_str("step 1\n");
        self.0 > 0
    }
}

/// Drives one connection as the node does.
struct HttpClient {
    handler: Box<dyn ConnectionHandler>,
    input: Vec<u8>,
    is_closed: bool,
    steps: usize,
    _folder: tempfile::TempDir,
}

fn client(is_ready: bool) -> HttpClient {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let core = Core::new(CoreParts::single(region, Clock::new_virtual()));
    let protocol = ObserveProtocol::new(Arc::new(TestSource { is_ready }));
    let address = PeerAddress::Unix { pid: None, uid: 0, gid: 0 };
    let peer = PeerIdentity { id: 1, address, certificate: None };
    let handler = protocol.on_core(&core.unwrap()).unwrap().accept(&peer);
    HttpClient { handler, input: Vec::new(), is_closed: false, steps: 0, _folder: folder }
}

impl HttpClient {
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        self.input.extend_from_slice(bytes);
        while !self.is_closed {
            let mut output = Vec::new();
            let consumed = self.handler.on_input(&self.input, &mut output);
            assert!(consumed.bytes <= self.input.len());
            self.input.drain(..consumed.bytes);
            let mut then = consumed.next;
            while then == NextAction::Work {
                let mut cx = Context::from_waker(Waker::noop());
                let std::task::Poll::Ready(next) = self.handler.poll_progress(&mut cx, &mut output)
                else {
                    panic!("the report is pending")
                };
                then = next;
                self.steps += 1;
            }
            assert!(output.len() < OUTPUT_HIGH_WATER_BYTES * 2);
            all.extend_from_slice(&output);
            self.is_closed = then == NextAction::Close;
            if consumed.bytes == 0 {
                break;
            }
        }
        all
    }

    fn ask(&mut self, text: &str) -> String {
        String::from_utf8(self.send(text.as_bytes())).unwrap()
    }
}

#[test]
fn a_page_is_written_in_steps_and_the_connection_stays_open() {
    let mut client = client(true);
    let respond = client.ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.steps, 3);
    let (head, body) = respond.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("close"), "{head}");
    assert!(head.contains("openmetrics-text; version=1.0.0") && head.contains("Length: 21"));
    assert_eq!(body, "step 1\nstep 1\nstep 1\n");
    let head_only = client.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head_only.ends_with("\r\n\r\n") && head_only.contains("Length: 21"), "{head_only}");
    assert!(!client.is_closed);
}

#[test]
fn probes_report_liveness_and_readiness() {
    let mut ready = client(true);
    assert!(ready.ask("GET /health HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    assert!(ready.ask("GET /ready HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    let mut starting = client(false);
    assert!(starting.ask("GET /health HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    let respond = starting.ask("GET /ready HTTP/1.1\r\n\r\n");
    assert!(
        respond.starts_with("HTTP/1.1 503") && respond.contains("being recovered"),
        "{respond}"
    );
}

#[test]
fn requests_in_one_packet_and_in_single_bytes_are_answered_in_order() {
    let two = "GET /health HTTP/1.1\r\n\r\nGET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\nGET /";
    let mut at_once = client(true);
    let answers = at_once.ask(two);
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1, "{answers}");
    assert!(answers.contains("HTTP/1.1 404") && at_once.is_closed);
    let mut split = client(true);
    let mut pieces = String::new();
    for byte in two.bytes() {
        pieces.push_str(&String::from_utf8(split.send(&[byte])).unwrap());
    }
    assert_eq!(pieces, answers);
}

#[test]
fn requests_that_are_not_http_get_one_error_and_are_disconnected() {
    for (said, status) in [
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".to_owned(), "400 Bad Request"),
        ("*1\r\n$4\r\nPING\r\n".to_owned(), "400 Bad Request"),
        (
            format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(HEAD_BYTES_MAX)),
            "431 Request Header Fields Too Large",
        ),
    ] {
        let mut client = client(true);
        let respond = client.ask(&said);
        assert_eq!(respond.lines().next(), Some(&*format!("HTTP/1.1 {status}")), "{said}");
        assert!(client.is_closed && respond.contains("Connection: close"));
    }
    let mut other = client(true);
    let respond = other.ask("DELETE / HTTP/1.1\r\n\r\n");
    assert!(respond.starts_with("HTTP/1.1 405") && respond.contains("Allow: GET, HEAD"));
    assert!(!other.is_closed);
}

#[test]
fn garbage_causes_no_panic_and_keeps_at_most_a_head() {
    let mut seed = 11_u64;
    let mut next = |bound: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % bound
    };
    let whole = b"GET /ready?x HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n";
    let mut answered = 0;
    let mut asker = client(true);
    for _ in 0..100_000 {
        if asker.is_closed {
            asker.is_closed = false;
            asker.input.clear();
        }
        let mut bytes = whole.to_vec();
        for _ in 0..next(4) {
            let at = next(bytes.len());
            match next(3) {
                0 => bytes[at] = u8::try_from(next(256)).unwrap(),
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, u8::try_from(next(256)).unwrap()),
            }
        }
        answered += usize::from(!asker.send(&bytes).is_empty());
        assert!(asker.input.len() <= HEAD_BYTES_MAX || asker.is_closed, "{}", asker.input.len());
    }
    assert!(answered > 50_000, "most requests are answered: {answered}");
}
