//! Clients of HTTP/2 that read the socket, and give the stream of a response no window. Without
//! sockets, and with a clock that moves when the executor has nothing else to do.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nearstate_node::clock::Clock;
use nearstate_node::executor::{Executor, ExecutorConfig, sleep};
use nearstate_node::{
    ConnectionHandler, ConnectionLimits, Core, CoreParts, CoreService, PeerAddress, PeerIdentity,
    Protocol,
};
use nearstate_nudsf::limits::{
    REPLY_BYTES_PER_SECOND_MIN, REPLY_FRAME_BYTES, STREAM_BYTES, STREAMS_MAX,
};
use nearstate_nudsf::{NudsfMetrics, NudsfProtocol, NudsfSettings, StorageSpec};
use nearstate_store::{CreateOptions, Region};

const RECORDS: &str = "/nudsf-dr/v1/Realm01/Storage01/records";

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;

/// A frame: its type, its flags and its stream.
type SeenFrame = (u8, u8, u32);

/// The window of a connection that its client does not enlarge (RFC 9113, 6.9.2).
const CONNECTION_WINDOW: usize = 65_535;

/// The block of the record `large`.
const LARGE_BYTES: usize = 200_000;

fn push_frame((kind, flags): (u8, u8), stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The window that a client gives to each of its streams.
fn window(bytes: u32) -> Vec<u8> {
    let (mut setting, mut frames) = (vec![0, 4], Vec::new());
    setting.extend(bytes.to_be_bytes());
    push_frame((4, 0), 0, &setting, &mut frames);
    frames
}

fn request(method: &str, id: &str, body: &str, stream: u32) -> Vec<u8> {
    let (mut head, mut frames) = (vec![0x86], Vec::new());
    let path = format!("{RECORDS}/{id}");
    let fields: [(&[u8], &str); 3] =
        [(&[0x02], method), (&[0x01], "udsf.example"), (&[0x04], &path)];
    let media: (&[u8], &str) = (&[0x0f, 0x10], "multipart/mixed; boundary=b");
    for (name, value) in fields.into_iter().chain((!body.is_empty()).then_some(media)) {
        head.extend_from_slice(name);
        head.push(u8::try_from(value.len()).unwrap());
        head.extend_from_slice(value.as_bytes());
    }
    push_frame((HEADERS, 4 | u8::from(body.is_empty())), stream, &head, &mut frames);
    let parts: Vec<&[u8]> = body.as_bytes().chunks(16 << 10).collect();
    for (index, part) in parts.iter().enumerate() {
        let is_last = u8::from(index + 1 == parts.len());
        push_frame((DATA, is_last), stream, part, &mut frames);
    }
    frames
}

/// Polls a connection for some seconds of the clock, and returns the frames that it has sent, with
/// the bytes of their bodies.
fn poll_for(
    executor: &Executor,
    handler: Box<dyn ConnectionHandler>,
    seconds: u64,
) -> (Box<dyn ConnectionHandler>, (Vec<SeenFrame>, usize)) {
    executor.run(async move {
        let (mut handler, mut received) = (handler, Vec::new());
        for _ in 0..seconds * 10 {
            poll_fn(|cx| {
                let mut output = Vec::new();
                let polled = handler.poll_progress(cx, &mut output);
                received.append(&mut output);
                assert!(polled.is_pending(), "{polled:?}");
                Poll::Ready(())
            })
            .await;
            sleep(Duration::from_millis(100)).await;
        }
        let (mut seen, mut body_bytes, mut rest) = (Vec::new(), 0, received.as_slice());
        while let Some((head, after)) = rest.split_first_chunk::<9>() {
            // Length u24, type, flags, stream u32.
            let word = |at: usize| u32::from_be_bytes(*head[at..].first_chunk().unwrap());
            seen.push((head[3], head[4] & 1, word(5)));
            let length = (word(0) >> 8) as usize;
            body_bytes += if head[3] == DATA { length } else { 0 };
            rest = &after[length..];
        }
        (handler, (seen, body_bytes))
    })
}

fn accept(service: &Rc<dyn CoreService>) -> Box<dyn ConnectionHandler> {
    let address = "127.0.0.1:8080".parse().unwrap();
    let address = PeerAddress::Tcp { remote: address, local: address };
    service.accept(&PeerIdentity { id: 1, address, certificate: None })
}

/// A connection to a node with the records `small`, of one frame, and `large`, of several.
struct StalledClient {
    _folder: tempfile::TempDir,
    executor: Executor,
    service: Rc<dyn CoreService>,
    handler: Option<Box<dyn ConnectionHandler>>,
    /// Bytes of all bodies that have arrived.
    body_bytes: usize,
}

impl StalledClient {
    fn connect() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let clock = Clock::new_virtual();
        let config = ExecutorConfig { clock: clock.clone(), ..ExecutorConfig::default() };
        let executor = Executor::new(&config).unwrap();
        let core = Core::new(CoreParts::single(region, clock)).unwrap();
        let storages = vec![StorageSpec::parse("Realm01/Storage01=ue").unwrap()];
        let settings = NudsfSettings { storages, ..NudsfSettings::default() };
        let metrics = Arc::<NudsfMetrics>::default();
        let protocol = NudsfProtocol::new(Arc::new(settings), metrics).unwrap();
        let service = protocol.on_core(&core).unwrap();
        let handler = Some(accept(&service));
        let mut client = Self { _folder: folder, executor, service, handler, body_bytes: 0 };
        let body = |bytes: usize| {
            let meta = "--b\r\nContent-Id: meta\r\n\r\n{}\r\n";
            let block = "x".repeat(bytes);
            format!("{meta}--b\r\nContent-Id: a\r\n\r\n{block}\r\n--b--\r\n")
        };
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        begin.extend(window(1 << 24));
        push_frame((4, 1), 0, &[], &mut begin);
        push_frame((8, 0), 0, &(1_u32 << 30).to_be_bytes(), &mut begin);
        client.exchange(&begin, 1);
        let mut records = request("PUT", "small", &body(100), 1);
        records.extend(request("PUT", "large", &body(LARGE_BYTES), 3));
        let seen = client.exchange(&records, 1);
        assert!([1, 3].iter().all(|stream| seen.contains(&(DATA, 1, *stream))), "{seen:?}");
        client
    }

    /// Opens another connection, in the place of this one. It has a window that its streams share,
    /// and each stream has this window.
    fn reconnect(&mut self, stream_window: u32) {
        self.handler = Some(accept(&self.service));
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        begin.extend(window(stream_window));
        push_frame((4, 1), 0, &[], &mut begin);
        self.exchange(&begin, 1);
        self.body_bytes = 0;
    }

    /// Sends frames, and returns those that arrive in some seconds of the clock.
    fn exchange(&mut self, frames: &[u8], seconds: u64) -> Vec<SeenFrame> {
        let mut handler = self.handler.take().unwrap();
        handler.on_input(frames, &mut Vec::new());
        let (handler, (seen, body_bytes)) = poll_for(&self.executor, handler, seconds);
        self.handler = Some(handler);
        self.body_bytes += body_bytes;
        seen
    }

    fn buffered_bytes(&self) -> usize {
        self.handler.as_ref().unwrap().buffered_bytes()
    }
}

#[test]
fn req_slow_streams_whose_client_takes_no_response_are_reset() {
    let mut client = StalledClient::connect();
    // The client reads the heads, and has no window for bodies: one in one frame, one in several.
    let mut stalled = window(0);
    stalled.extend(request("GET", "small", "", 5));
    stalled.extend(request("GET", "large", "", 7));
    let limit = ConnectionLimits::default().reply_timeout.as_secs();
    let seen = client.exchange(&stalled, limit - 1);
    assert!([5, 7].iter().all(|stream| seen.contains(&(HEADERS, 0, *stream))), "{seen:?}");
    assert!(seen.iter().all(|(kind, ..)| ![DATA, RST_STREAM].contains(kind)), "{seen:?}");
    let held = client.buffered_bytes();
    let seen = client.exchange(&[], limit + 2);
    assert!([5, 7].iter().all(|stream| seen.contains(&(RST_STREAM, 0, *stream))), "{seen:?}");
    assert!(client.buffered_bytes() + 200_000 <= held, "{held} {}", client.buffered_bytes());
    // Other streams of the connection go on, as does one that gets its window in time.
    let seen = client.exchange(&request("GET", "small", "", 9), limit / 2);
    assert!(seen.contains(&(HEADERS, 0, 9)), "{seen:?}");
    let seen = client.exchange(&window(1 << 24), 2 * limit);
    assert_eq!(seen.iter().filter(|(kind, ..)| *kind != 4).collect::<Vec<_>>(), [&(DATA, 1, 9)]);
}

/// The window that a client gives to a stream.
fn more_window(stream: u32, bytes: u32) -> Vec<u8> {
    let mut frames = Vec::new();
    push_frame((WINDOW_UPDATE, 0), stream, &bytes.to_be_bytes(), &mut frames);
    frames
}

#[test]
fn req_slow_streams_whose_client_takes_the_least_rate_are_sent_completely() {
    let mut client = StalledClient::connect();
    let mut slow = window(0);
    slow.extend(request("GET", "large", "", 5));
    slow.extend(request("GET", "large", "", 7));
    let limit = ConnectionLimits::default().reply_timeout.as_secs();
    let least = u32::try_from(REPLY_BYTES_PER_SECOND_MIN).unwrap() * u32::try_from(limit).unwrap();
    let mut seen = client.exchange(&slow, 1);
    for _ in 0..3 {
        let some = [more_window(5, least), more_window(7, least)].concat();
        seen.extend(client.exchange(&some, limit - 5));
    }
    assert!(seen.iter().all(|(kind, ..)| *kind != RST_STREAM), "{seen:?}");
    assert!([5, 7].iter().all(|stream| seen.contains(&(DATA, 0, *stream))), "{seen:?}");
    // One of them takes the rest, the other one stops.
    let seen = client.exchange(&more_window(5, 1 << 20), 3 * limit);
    assert!(seen.contains(&(DATA, 1, 5)), "{seen:?}");
    assert!(seen.contains(&(RST_STREAM, 0, 7)), "{seen:?}");
    // With a window in time, all arrives.
    let seen = client.exchange(&request("GET", "large", "", 9), limit / 2);
    assert!(seen.contains(&(HEADERS, 0, 9)), "{seen:?}");
    client.exchange(&more_window(9, 70_000), limit - 5);
    let seen = client.exchange(&window(1 << 24), limit);
    assert!(seen.contains(&(DATA, 1, 9)), "{seen:?}");
}

#[test]
fn req_slow_streams_whose_client_takes_single_bytes_are_reset() {
    let mut client = StalledClient::connect();
    let mut slow = window(0);
    slow.extend(request("GET", "small", "", 5));
    slow.extend(request("GET", "large", "", 7));
    let limit = ConnectionLimits::default().reply_timeout.as_secs();
    let mut seen = client.exchange(&slow, 1);
    let held = client.buffered_bytes();
    for _ in 0..4 {
        let some = [more_window(5, 1), more_window(7, 1)].concat();
        seen.extend(client.exchange(&some, limit - 5));
    }
    assert!([5, 7].iter().all(|stream| seen.contains(&(DATA, 0, *stream))), "{seen:?}");
    assert!([5, 7].iter().all(|stream| seen.contains(&(RST_STREAM, 0, *stream))), "{seen:?}");
    assert!(client.buffered_bytes() + 200_000 <= held, "{held} {}", client.buffered_bytes());
}

#[test]
fn req_slow_a_body_of_single_bytes_is_refused() {
    let mut client = StalledClient::connect();
    let mut put = request("PUT", "slow", "--b\r\n", 5);
    // The body is not at its end: no flag of the frame behind the head.
    let frames = put.len();
    put[frames - "--b\r\n".len() - 5] = 0;
    let mut seen = client.exchange(&put, 1);
    let limit = ConnectionLimits::default().request_timeout.as_secs();
    assert!(seen.iter().all(|frame| *frame != (HEADERS, 0, 5)), "{seen:?}");
    for _ in 0..2 * limit {
        let mut byte = Vec::new();
        push_frame((DATA, 0), 5, b"x", &mut byte);
        seen.extend(client.exchange(&byte, 1));
    }
    // 408, also to a client that always has another byte.
    assert!(seen.contains(&(HEADERS, 0, 5)) && seen.contains(&(DATA, 1, 5)), "{seen:?}");
}

/// The GETs of a record on streams from this one on.
fn requests(id: &str, first: u32, streams: u32) -> Vec<u8> {
    (0..streams).flat_map(|index| request("GET", id, "", first + 2 * index)).collect()
}

#[test]
fn req_slow_streams_that_are_not_read_hold_back_neither_others_nor_memory() {
    let mut client = StalledClient::connect();
    // No stream has a window but what the client gives it; the connection has one for all.
    client.reconnect(0);
    let streams = STREAMS_MAX - 1;
    client.exchange(&requests("large", 1, streams), 1);
    // What was copied for the responses and their streams, and the buffers of the connection.
    let bound = streams as usize * (LARGE_BYTES + 1024 + STREAM_BYTES) + (512 << 10);
    assert!(client.buffered_bytes() <= bound, "{} of {bound}", client.buffered_bytes());
    // Others use the window of the connection, again and again.
    for index in 0..4 {
        let stream = 2 * (streams + index) + 1;
        let mut get = request("GET", "small", "", stream);
        get.extend(more_window(stream, 1 << 20));
        let seen = client.exchange(&get, 1);
        assert!(seen.contains(&(DATA, 1, stream)), "{seen:?}");
        assert!(client.buffered_bytes() <= bound, "{} of {bound}", client.buffered_bytes());
    }
    // Those that are not read end, and their memory is released.
    let limit = ConnectionLimits::default().reply_timeout.as_secs();
    let seen = client.exchange(&[], 2 * limit);
    let resets = seen.iter().filter(|(kind, ..)| *kind == RST_STREAM).count();
    assert_eq!(resets, streams as usize, "{seen:?}");
    assert!(client.buffered_bytes() < 512 << 10, "{}", client.buffered_bytes());
}

#[test]
fn req_slow_streams_share_the_window_of_their_connection_in_turns_of_a_frame() {
    let mut client = StalledClient::connect();
    // Each stream could take all of it, and the first one does.
    client.reconnect(1 << 24);
    let others = 8;
    client.exchange(&requests("large", 1, others), 1);
    assert_eq!(client.body_bytes, CONNECTION_WINDOW);
    let stream = 2 * others + 1;
    let mut seen = client.exchange(&request("GET", "small", "", stream), 1);
    assert!(seen.iter().all(|(kind, ..)| *kind != DATA), "{seen:?}");
    // It is the turn of the last one when each of the others has got a frame.
    let bound = CONNECTION_WINDOW + (others as usize + 1) * REPLY_FRAME_BYTES;
    while !seen.contains(&(DATA, 1, stream)) {
        assert!(client.body_bytes < bound, "{} of {bound}", client.body_bytes);
        seen.extend(client.exchange(&more_window(0, 16 << 10), 1));
    }
    // A client that takes nothing more has all other streams reset, and uses the connection on.
    let limit = ConnectionLimits::default().reply_timeout.as_secs();
    let seen = client.exchange(&[], 2 * limit);
    let resets = seen.iter().filter(|(kind, ..)| *kind == RST_STREAM).count();
    assert_eq!(resets, others as usize, "{seen:?}");
    let mut get = more_window(0, 1 << 20);
    get.extend(request("GET", "large", "", stream + 2));
    let seen = client.exchange(&get, 1);
    assert!(seen.contains(&(DATA, 1, stream + 2)), "{seen:?}");
}

#[test]
fn req_slow_streams_that_share_a_window_are_sent_completely_at_the_least_rate_and_a_frame() {
    let mut client = StalledClient::connect();
    client.reconnect(1 << 24);
    let streams = 32_u32;
    let mut seen = client.exchange(&requests("large", 1, streams), 1);
    // In the time limit each stream must get its least bytes, and waits for the turns of others.
    let limit = ConnectionLimits::default().reply_timeout.as_secs();
    let least = REPLY_BYTES_PER_SECOND_MIN + REPLY_FRAME_BYTES / usize::try_from(limit).unwrap();
    let each_second = u32::try_from(least).unwrap() * streams;
    let all = streams as usize * LARGE_BYTES;
    while client.body_bytes < all {
        seen.extend(client.exchange(&more_window(0, each_second), 1));
        assert!(seen.iter().all(|(kind, ..)| *kind != RST_STREAM), "after {}", client.body_bytes);
    }
    seen.extend(client.exchange(&more_window(0, 1 << 20), 1));
    let ends = seen.iter().filter(|(kind, is_last, _)| (*kind, *is_last) == (DATA, 1)).count();
    assert_eq!(ends, streams as usize);
}
