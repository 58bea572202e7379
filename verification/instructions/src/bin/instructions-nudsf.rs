//! Requests to the 3GPP data repository over HTTP/2, without a socket: frames in, frames out. Ten
//! requests of a connection are in flight, as in `nearstate bench run nudsf`.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::future::poll_fn;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nearstate_instructions::{MeasuredOperation, MeasuredResult, measured, new_region, run};
use nearstate_node::clock::Clock;
use nearstate_node::executor::{Executor, ExecutorConfig, sleep, yield_now};
use nearstate_node::{
    ConnectionHandler, Core, CoreParts, CoreService, PeerAddress, PeerIdentity, Protocol,
};
use nearstate_nudsf::{NudsfMetrics, NudsfProtocol, NudsfSettings, StorageSpec};

const OPERATIONS: &[MeasuredOperation] = &[
    ("nudsf-get-record", 1000, get_record),
    ("nudsf-get-block", 1000, get_block),
    ("nudsf-put-record", 1000, put_record),
    ("nudsf-put-timer", 1000, put_timer),
    ("nudsf-fire-timer", 1000, fire_timer),
    ("nudsf-notify-timer", 1000, notify_timer),
];

const RECORDS: &str = "/nudsf-dr/v1/Realm01/Storage01/records";
const SCHEMAS: &str = "/nudsf-dr/v1/Realm01/Storage01/meta-schemas";
const TIMERS: &str = "/nudsf-timer/v1/Realm01/Storage01/timers";
const JSON: &str = "application/json";
const MIXED: &str = "multipart/mixed; boundary=b";

/// Requests in flight.
const STREAMS: u64 = 10;

/// Different records.
const SPREAD: u64 = 100;

fn main() -> ExitCode {
    run(OPERATIONS)
}

/// A client's connection to a node of one core, and the frames that it has received.
struct Http2Connection {
    handler: Box<dyn ConnectionHandler>,
    output: Vec<u8>,
    /// Streams that the server has ended.
    ended: u64,
    failed: u64,
}

impl Http2Connection {
    /// Counts the ends of responses, of streams that were reset, and of the connection.
    fn take_frames(&mut self) {
        let mut rest = self.output.as_slice();
        while let Some((head, after)) = rest.split_first_chunk::<9>() {
            let [a, b, c, kind, flags, ..] = *head;
            let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
            let Some((_, after)) = after.split_at_checked(length) else { break };
            self.failed += u64::from(kind == 3 || kind == 7);
            self.ended += u64::from(kind <= 1 && flags & 1 == 1);
            rest = after;
        }
        let left = rest.len();
        self.output.drain(..self.output.len() - left);
    }
}

/// A node of one core with a connection.
struct SocketlessNode {
    executor: Executor,
    connection: Rc<RefCell<Http2Connection>>,
    next_stream: u32,
    metrics: Arc<NudsfMetrics>,
    _service: Rc<dyn CoreService>,
    _folder: tempfile::TempDir,
}

impl SocketlessNode {
    fn new() -> MeasuredResult<Self> {
        let (region, folder) = new_region()?;
        let clock = Clock::new_virtual();
        let config = ExecutorConfig { clock: clock.clone(), ..ExecutorConfig::default() };
        let executor = Executor::new(&config)?;
        let core = Core::new(CoreParts::single(region, clock))?;
        let settings = NudsfSettings {
            storages: vec![StorageSpec::parse("Realm01/Storage01=ue")?],
            ..NudsfSettings::default()
        };
        let metrics = Arc::<NudsfMetrics>::default();
        let service =
            NudsfProtocol::new(Arc::new(settings), Arc::clone(&metrics))?.on_core(&core)?;
        let begun = Rc::clone(&service);
        executor.run(async move { begun.begin() });
        let address = "127.0.0.1:8080".parse()?;
        let address = PeerAddress::Tcp { remote: address, local: address };
        let handler = service.accept(&PeerIdentity { id: 1, address, certificate: None });
        let output = Vec::with_capacity(1 << 16);
        let connection = Http2Connection { handler, output, ended: 0, failed: 0 };
        let connection = Rc::new(RefCell::new(connection));
        let mut node = Self {
            executor,
            connection,
            next_stream: 1,
            metrics,
            _service: service,
            _folder: folder,
        };
        let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        push_frame((4, 0), 0, &[], &mut preface);
        push_frame((4, 1), 0, &[], &mut preface);
        push_frame((8, 0), 0, &(1_u32 << 30).to_be_bytes(), &mut preface);
        node.exchange(preface, 0)?;
        node.put(&[(format!("{SCHEMAS}/s"), SCHEMA.to_owned())], JSON)?;
        Ok(node)
    }

    /// Sends frames, and waits until the server has ended so many streams.
    fn exchange(&self, frames: Vec<u8>, streams: u64) -> MeasuredResult {
        let connection = Rc::clone(&self.connection);
        let failed = self.executor.run(async move {
            let wanted = {
                let mut connection = connection.borrow_mut();
                let Http2Connection { handler, output, .. } = &mut *connection;
                handler.on_input(&frames, output);
                connection.ended + streams
            };
            loop {
                let polled = poll_fn(|cx| {
                    let mut connection = connection.borrow_mut();
                    let Http2Connection { handler, output, .. } = &mut *connection;
                    let is_closed = handler.poll_progress(cx, output).is_ready();
                    connection.take_frames();
                    let is_failed = is_closed || connection.failed > 0;
                    Poll::Ready((is_failed, connection.ended))
                });
                let (is_failed, ended) = polled.await;
                if is_failed || ended >= wanted {
                    return is_failed;
                }
                yield_now().await;
            }
        });
        if failed { Err("the server has refused a request".into()) } else { Ok(()) }
    }

    /// The frames of requests: the path and the body of each.
    fn frames(&mut self, method: &str, requests: &[(String, String)], media: &str) -> Vec<u8> {
        let mut frames = Vec::new();
        for (path, body) in requests {
            // Scheme `http`; literals, not indexed, whose names are in the static table.
            let mut head = vec![0x86];
            push_literal(&[0x02], method, &mut head);
            push_literal(&[0x01], "127.0.0.1:8080", &mut head);
            push_literal(&[0x04], path, &mut head);
            push_literal(&[0x0f, 0x2b], "h2load nghttp2/1.59.0", &mut head);
            let is_last = u8::from(body.is_empty());
            if !body.is_empty() {
                push_literal(&[0x0f, 0x10], media, &mut head);
            }
            push_frame((1, 4 | is_last), self.next_stream, &head, &mut frames);
            if !body.is_empty() {
                push_frame((0, 1), self.next_stream, body.as_bytes(), &mut frames);
            }
            self.next_stream += 2;
        }
        frames
    }

    fn put(&mut self, requests: &[(String, String)], media: &str) -> MeasuredResult {
        let frames = self.frames("PUT", requests, media);
        self.exchange(frames, requests.len() as u64)
    }

    /// A node with records.
    fn with_records() -> MeasuredResult<Self> {
        let mut node = Self::new()?;
        for number in 0..SPREAD {
            node.put(&[record(number)], MIXED)?;
        }
        Ok(node)
    }

    /// Counts these requests, [`STREAMS`] at a time.
    fn count(
        &mut self,
        (method, media): (&str, &str),
        (times, between): (u64, Duration),
        request: impl Fn(u64) -> (String, String),
    ) -> MeasuredResult {
        let batches = (0..times / STREAMS).map(|batch| {
            let numbers = batch * STREAMS..(batch + 1) * STREAMS;
            let requests: Vec<(String, String)> = numbers.map(&request).collect();
            self.frames(method, &requests, media)
        });
        let batches: Vec<Vec<u8>> = batches.collect();
        let mut batches = batches.into_iter();
        measured(times / STREAMS, |_| {
            self.exchange(batches.next().ok_or("no request")?, STREAMS)?;
            if !between.is_zero() {
                self.executor.run(sleep(between));
            }
            Ok(())
        })?;
        let counted = self.metrics.snapshot();
        let failed = counted.iter().find(|(_, class, count)| *class != "2xx" && *count > 0);
        failed.map_or(Ok(()), |failed| Err(format!("{failed:?}").into()))
    }
}

fn push_frame((kind, flags): (u8, u8), stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    out.extend(length.iter().skip(1));
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A field of a literal value, which has fewer than 127 bytes.
fn push_literal(name: &[u8], value: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.push(u8::try_from(value.len()).unwrap_or(0));
    out.extend_from_slice(value.as_bytes());
}

const SCHEMA: &str = "{\"schemaId\":\"s\",\"metaTags\":[{\"tagName\":\"supi\",\"keyType\":\
    \"SEARCH_KEY\"},{\"tagName\":\"group\",\"keyType\":\"SEARCH_KEY\"}]}";

/// The path and the body of a record with ten tags, two of them indexed, and a block of 700 bytes.
fn record(number: u64) -> (String, String) {
    let number = number % SPREAD;
    let tags: Vec<String> =
        (0..8).map(|tag| format!("\"tag{tag}\":[\"value {number} {tag}\"]")).collect();
    let body = format!(
        "--b\r\nContent-Id: meta\r\nContent-Type: application/json\r\n\r\n{{\"tags\":{{\"supi\":\
         [\"imsi-26201{number:010}\"],\"group\":[\"g{}\"],{}}}}}\r\n--b\r\nContent-Id: context\r\n\
         Content-Type: application/octet-stream\r\n\r\n{}\r\n--b--\r\n",
        number / 10,
        tags.join(","),
        "x".repeat(700)
    );
    (format!("{RECORDS}/r{number}"), body)
}

fn get_record(times: u64) -> MeasuredResult {
    let request = |number| (record(number).0, String::new());
    SocketlessNode::with_records()?.count(("GET", ""), (times, Duration::ZERO), request)
}

fn get_block(times: u64) -> MeasuredResult {
    let request = |number| (format!("{}/blocks/context", record(number).0), String::new());
    SocketlessNode::with_records()?.count(("GET", ""), (times, Duration::ZERO), request)
}

/// PUT that replaces a record.
fn put_record(times: u64) -> MeasuredResult {
    SocketlessNode::with_records()?.count(("PUT", MIXED), (times, Duration::ZERO), record)
}

/// PUT of a timer that does not fire.
fn put_timer(times: u64) -> MeasuredResult {
    let body = r#"{"expires":"2999-01-01T00:00:00Z","metaTags":{"ueId":["1"]}}"#;
    let request = |number| (format!("{TIMERS}/armed{number}"), body.to_owned());
    SocketlessNode::new()?.count(("PUT", JSON), (times, Duration::ZERO), request)
}

/// PUT of a timer that is due, its expiry and its deletion.
fn fire_timer(times: u64) -> MeasuredResult {
    let body = r#"{"expires":"2020-01-01T00:00:00Z","deleteAfter":0}"#;
    let request = |number| (format!("{TIMERS}/due{number}"), body.to_owned());
    SocketlessNode::new()?.count(("PUT", JSON), (times, Duration::from_millis(30)), request)
}

/// The same, with a callback: the notification goes to the outbox. It stays there, because a node
/// without authorities reaches no `https` target, so that no socket is used.
fn notify_timer(times: u64) -> MeasuredResult {
    let body = "{\"expires\":\"2020-01-01T00:00:00Z\",\"deleteAfter\":0,\"callbackReference\":\
        \"https://amf.example:8443/callbacks/timers\"}";
    let request = |number| (format!("{TIMERS}/due{number}"), body.to_owned());
    SocketlessNode::new()?.count(("PUT", JSON), (times, Duration::from_millis(30)), request)
}
