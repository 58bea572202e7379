//! Hostile peers: the memory of the node stays bounded, the peer gets an answer or the end of its
//! connection, and others are served. The node is a process of its own, whose memory is read from
//! `/proc` while the peer still holds its connection.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a client reads and writes at the same time")]
#![expect(clippy::print_stdout, reason = "a test prints what it measured")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::time::Duration;

use nearstate_node::ConnectionLimits;
use nearstate_store::{Metadata, TagSchema, Txn};

use crate::fixture::{JSON, STORAGE, TestClient, encode, node_with};
use crate::http::frame;
use crate::kill::start;

/// What buffers, streams and tasks of one hostile connection may take beside bodies.
const GROWTH_MAX: u64 = 48 << 20;

/// Streams of one connection, each with a response of 1 KB that its client does not read.
const STREAMS: u32 = 100;

/// Requests after which a node that serves none counts as stuck.
const GETS_MAX: u32 = 20_000;

/// How long a client waits for a node that neither sends nor reads: only a failure takes so long.
const IO_TIME_MAX: Duration = Duration::from_secs(120);

/// What such a stream may take, with its share of the connection.
const STREAM_BYTES_MAX: u64 = 8 << 10;

/// The number of such connections, if it is not 150.
const CONNECTIONS: &str = "NEARSTATE_NUDSF_CONNECTIONS";

/// The name of a flood, and its frames by their number.
type Flood = (&'static str, fn(u32) -> Vec<u8>);

struct NodeProcess {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

fn node_process() -> NodeProcess {
    let folder = tempfile::tempdir().unwrap();
    let (child, address) = start(folder.path());
    let node = NodeProcess { child, address: address.parse().unwrap(), _folder: folder };
    // Memory that the first request of a node takes is no growth.
    TestClient::connect(node.address).put_record("r1", "{}", &[("b", "1")]).is(201, "");
    node
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl NodeProcess {
    /// Memory that is not the region's.
    fn memory_bytes(&self) -> u64 {
        self.status_bytes("RssAnon:")
    }

    fn status_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// The most memory that the node had, with what it has used of the region.
    fn memory_bytes_max(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    fn serves_others(&self) {
        TestClient::connect(self.address).get("/records/r1").is(200, "");
    }

    fn connect(&self) -> RawHttp2 {
        RawHttp2::connect(self.address)
    }
}

/// A client that follows no rule of HTTP/2 but the format of frames.
pub(crate) struct RawHttp2 {
    pub(crate) stream: TcpStream,
}

/// The frames that arrived: by stream, the status of its response or the code of its reset.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) headers: BTreeMap<u32, Vec<u8>>,
    resets: BTreeMap<u32, u32>,
    goaway: Option<u32>,
    /// The last stream that GOAWAY names.
    pub(crate) last_stream: Option<u32>,
    /// The content of the last PING.
    pub(crate) ping: Option<Vec<u8>>,
    /// The last PING was answered.
    is_answered: bool,
    pub(crate) is_closed: bool,
}

impl Answers {
    fn count(&self) -> usize {
        self.headers.len() + self.resets.len()
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

impl RawHttp2 {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(IO_TIME_MAX)).unwrap();
        stream.set_write_timeout(Some(IO_TIME_MAX)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        Self { stream }
    }

    /// True if the node has closed the connection: it does not answer any more.
    fn is_closed(&mut self) -> bool {
        let is_closed = self.stream.write_all(&frame(6, 0, 0, &[0; 8])).is_err();
        let mut answers = Answers { is_closed, ..Answers::default() };
        self.read_until(&mut answers, |answers| answers.is_answered);
        answers.is_closed
    }

    /// Sends requests for a path whose responses are not read, and waits for their heads.
    fn leave_unread(&mut self, path: &str) -> Answers {
        self.settings(0);
        let head = head("GET", &format!("{STORAGE}{path}"));
        let heads = (0..STREAMS).flat_map(|index| frame(1, 5, index * 2 + 1, &head));
        // The node may close the connection before it has read all.
        let is_written = self.stream.write_all(&heads.collect::<Vec<u8>>()).is_ok();
        let mut answers = Answers { is_closed: !is_written, ..Answers::default() };
        // The window of 0 holds the bodies back.
        self.read_until(&mut answers, |answers| answers.count() >= STREAMS as usize);
        answers
    }

    /// Sends SETTINGS with this initial window, and the largest window of the connection.
    pub(crate) fn settings(&mut self, window: u32) {
        let window = [&4_u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
        self.stream.write_all(&frame(4, 0, 0, &window)).unwrap();
    }

    /// Reads frames until a condition holds or the connection ends.
    pub(crate) fn read_until(&mut self, answers: &mut Answers, holds: impl Fn(&Answers) -> bool) {
        while !holds(answers) && !answers.is_closed {
            let mut head = [0; 9];
            if self.stream.read_exact(&mut head).is_err() {
                answers.is_closed = true;
                return;
            }
            let mut payload = vec![0; usize::try_from(number(&head[..3])).unwrap()];
            if self.stream.read_exact(&mut payload).is_err() {
                answers.is_closed = true;
                return;
            }
            let stream = number(&head[5..]);
            match head[3] {
                1 => drop(answers.headers.insert(stream, payload)),
                3 => drop(answers.resets.insert(stream, number(&payload))),
                6 if head[4] == 0 => answers.ping = Some(payload),
                6 => answers.is_answered = true,
                7 => {
                    answers.last_stream = Some(number(&payload[..4]));
                    answers.goaway = Some(number(&payload[4..8]));
                }
                _ => {}
            }
        }
    }
}

/// The head of a request as HPACK literals without indexing, of fewer than 255 bytes each.
pub(crate) fn head(method: &str, path: &str) -> Vec<u8> {
    let mut block = vec![0x86];
    for (name, value) in [(2_u8, method), (4, path), (1, "udsf.example")] {
        let length = u8::try_from(value.len()).unwrap();
        block.push(name);
        // Seven bits, and the rest in another byte.
        block.push(length.min(127));
        block.extend(length.checked_sub(127));
        block.extend(value.as_bytes());
    }
    block
}

#[test]
fn req_hostile_a_body_of_a_gigabyte_of_unknown_length_is_refused_when_it_is_too_large() {
    let node = node_process();
    let before = node.memory_bytes();
    let mut stream = TcpStream::connect(node.address).unwrap();
    let mut reader = stream.try_clone().unwrap();
    // The client reads, so that the end of its connection does not hide the answer.
    let answer = std::thread::spawn(move || {
        let mut answer = Vec::new();
        let _ = reader.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    });
    let put = format!(
        "PUT {STORAGE}/records/r2/blocks/b HTTP/1.1\r\nHost: a\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(put.as_bytes()).unwrap();
    let chunk = [&b"100000\r\n"[..], &vec![b'x'; 1 << 20], b"\r\n"].concat();
    let (mut peak, mut sent) = (0, 0);
    // Behind the answer, the node discards what arrives for a second.
    while sent < 4096 && stream.write_all(&chunk).is_ok() {
        sent += 1;
        peak = peak.max(node.memory_bytes());
    }
    assert!(sent > 128, "{sent} MiB were read");
    let answer = answer.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let bound = 3 * u64::try_from(nearstate_nudsf::limits::BODY_BYTES_MAX).unwrap() + GROWTH_MAX;
    assert!(peak - before < bound, "{} MiB", (peak - before) >> 20);
    node.serves_others();
    TestClient::connect(node.address).get("/records/r2").is(404, "RECORD_NOT_FOUND");
}

#[test]
fn req_hostile_ten_thousand_open_streams_are_refused_beyond_the_limit() {
    const OPENED: u32 = 10_000;
    let node = node_process();
    let before = node.memory_bytes();
    let mut client = node.connect();
    client.settings(65_535);
    let mut writer = client.stream.try_clone().unwrap();
    let answers = std::thread::scope(|scope| {
        scope.spawn(move || {
            // The head of a PUT whose body never comes. The connection may end before the last.
            let head = head("PUT", &format!("{STORAGE}/records/r2"));
            (0..OPENED).all(|index| writer.write_all(&frame(1, 4, index * 2 + 1, &head)).is_ok())
        });
        let mut answers = Answers::default();
        let refused = OPENED - nearstate_nudsf::limits::STREAMS_MAX;
        client.read_until(&mut answers, |answers| answers.resets.len() >= refused as usize);
        answers
    });
    let grown = node.memory_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{} KiB", grown >> 10);
    // REFUSED_STREAM: the client sends the request again. Or ENHANCE_YOUR_CALM for all.
    let is_refused = answers.resets.values().all(|code| *code == 7) && !answers.resets.is_empty();
    assert!(is_refused || answers.goaway == Some(11), "{:?} {:?}", answers.goaway, answers.resets);
    node.serves_others();
}

#[test]
fn req_hostile_a_client_that_reads_no_responses_holds_a_bounded_number_of_them() {
    const LARGE: usize = 16 << 20;
    let node = node_process();
    let large = "x".repeat(LARGE);
    TestClient::connect(node.address).put_record("large", "{}", &[("b", &large)]).is(201, "");
    let before = node.memory_bytes();
    let mut client = node.connect();
    client.settings(0);
    let head = head("GET", &format!("{STORAGE}/records/large"));
    // One stream is left.
    let streams = nearstate_nudsf::limits::STREAMS_MAX - 1;
    for index in 0..streams {
        client.stream.write_all(&frame(1, 5, index * 2 + 1, &head)).unwrap();
    }
    let mut answers = Answers::default();
    client.read_until(&mut answers, |answers| answers.count() >= streams as usize);
    assert_eq!(answers.headers.len(), streams as usize, "each has the head of a response");
    let grown = node.memory_bytes().saturating_sub(before);
    let bound = u64::try_from(nearstate_nudsf::limits::CONNECTION_BODY_BYTES_MAX + LARGE).unwrap();
    assert!(grown < bound + GROWTH_MAX, "{} MiB", grown >> 20);
    // 200 is index 8 of the static table. What was too much has another status.
    let sent = answers.headers.values().filter(|block| block[0] == 0x88).count();
    assert!((1..=17).contains(&sent), "{sent} of 16 MiB were kept for the client");
    // A deletion whose response has no room deletes nothing.
    let path = format!("{STORAGE}/records/large?get-previous=true");
    let stream = streams * 2 + 1;
    client.stream.write_all(&frame(1, 5, stream, &self::head("DELETE", &path))).unwrap();
    client.read_until(&mut answers, |answers| answers.headers.contains_key(&stream));
    let status = answers.headers.get(&stream).map(|block| block[0]);
    assert!(status.is_some_and(|status| ![0x88, 0x89].contains(&status)), "{status:?}");
    TestClient::connect(node.address).get("/records/large/meta").is(200, "");
    node.serves_others();
}

#[test]
fn req_hostile_streams_of_small_unread_responses_count_for_the_limit_of_the_core() {
    let unread_of = |core_bytes_max: usize| {
        let limits = ConnectionLimits { core_bytes_max, ..ConnectionLimits::default() };
        let node = node_with(limits);
        let mut clients: Vec<RawHttp2> = (0..10).map(|_| RawHttp2::connect(node.address)).collect();
        for client in &mut clients {
            client.leave_unread("/records/none");
        }
        // A client may have all heads before its connection is closed.
        let closed = clients.iter_mut().filter_map(|client| client.is_closed().then_some(()));
        let counts = (closed.count(), node.closed_for_memory());
        // Others are served as soon as the memory of what was closed is released.
        let is_served = (0..GETS_MAX).any(|_| node.client().get("/records/none").status != 503);
        assert!(is_served, "no memory was released");
        node.client().get("/records/none").is(404, "RECORD_NOT_FOUND");
        counts
    };
    // A thousand responses of 200 bytes are not the memory of a thousand streams.
    assert_eq!(unread_of(64 << 20), (0, 0));
    let (closed, counted) = unread_of(2 << 20);
    // Four fit.
    assert!((5..10).contains(&closed) && counted == closed as u64, "{closed} {counted}");
}

#[test]
fn req_hostile_what_a_search_keeps_counts_for_the_limit_of_the_core() {
    const RECORDS: usize = 20_000;
    // A range may have a record twice: the search keeps the keys that it has found, 1.8 MB.
    let search_of = |core_bytes_max: usize| {
        let limits = ConnectionLimits { core_bytes_max, ..ConnectionLimits::default() };
        let node = node_with(limits);
        let session = node.session();
        let ue = session.known_namespace("ue").unwrap().unwrap();
        let tag = TagSchema { name: "n".to_owned(), is_ordered: true, ..TagSchema::default() };
        session.add_tags(ue, &[tag]).unwrap();
        let metadata = Metadata { tags: &[("n", b"1")], expires_ms: 0 };
        for first in (0..RECORDS).step_by(50) {
            let put = |txn: &Txn<'_>| {
                (first..first + 50).try_for_each(|index| {
                    let key = format!("record{index:06}");
                    txn.put_with_metadata(ue, key.as_bytes(), b"", metadata)
                })
            };
            session.transact(put).unwrap();
        }
        let filter = encode(r#"{"op":"GTE","tag":"n","value":"0"}"#);
        let path = format!("{STORAGE}/records?limit-range=1&count-indicator=true&filter={filter}");
        let mut client = RawHttp2::connect(node.address);
        client.settings(65_535);
        client.stream.write_all(&frame(1, 5, 1, &head("GET", &path))).unwrap();
        let mut answers = Answers::default();
        client.read_until(&mut answers, |answers| answers.headers.contains_key(&1));
        // Others may be refused until the search has noticed the end of its connection.
        let closed = node.closed_for_memory();
        let is_served = (0..GETS_MAX).any(|_| node.client().get("/records/none").status != 503);
        assert!(is_served, "no memory was released");
        (answers.is_closed, closed)
    };
    assert_eq!(search_of(64 << 20), (false, 0));
    assert_eq!(search_of(1 << 20), (true, 1));
}

/// A JSON text of half a million zeros: its values take sixteen times as much.
fn zeros() -> String {
    format!("[{}0]", "0,".repeat(500_000))
}

#[test]
fn req_hostile_a_list_of_large_subscriptions_takes_memory_for_its_text_only() {
    // The parsed values of all of them take more than what is allowed below.
    const COUNT: u64 = 6;
    let node = node_process();
    let mut client = TestClient::connect(node.address);
    for number in 0..COUNT {
        let text = format!(
            r#"{{"clientId":{{"nfSetId":"set1"}},"callbackReference":"http://127.0.0.1:9/",
            "x":{}}}"#,
            zeros()
        );
        client.send("PUT", &format!("/subs-to-notify/s{number}"), &[JSON], text).is(201, "");
    }
    let before = node.memory_bytes_max();
    let listed = client.get("/subs-to-notify");
    assert_eq!(listed.is(200, "").json().as_array().map(Vec::len), Some(6));
    let grown = node.memory_bytes_max() - before;
    // Room for the text doubles as it grows, and one document is parsed at a time.
    assert!(grown < (COUNT << 20) * 4 + GROWTH_MAX, "{} MiB", grown >> 20);
}

#[test]
fn req_hostile_values_of_a_body_that_an_operation_keeps_count_for_the_limit_of_the_core() {
    let put_of = |core_bytes_max: usize| {
        let limits = ConnectionLimits { core_bytes_max, ..ConnectionLimits::default() };
        let node = node_with(limits);
        let session = node.session();
        let ue = session.known_namespace("ue").unwrap().unwrap();
        for first in (0..20_000).step_by(50) {
            let put = |txn: &Txn<'_>| {
                (first..first + 50)
                    .try_for_each(|index| txn.put(ue, format!("record{index}").as_bytes(), b""))
            };
            session.transact(put).unwrap();
        }
        // The records are indexed in many parts, between which others are served.
        let tags = r#"[{"tagName":"a","keyType":"SEARCH_KEY"}]"#;
        let text = format!(r#"{{"schemaId":"s1","metaTags":{tags},"x":{}}}"#, zeros());
        let put = node.client().try_send(("PUT", "/meta-schemas/s1"), &[JSON], text.as_bytes());
        (put.ok().map(|reply| reply.status), node.closed_for_memory())
    };
    assert_eq!(put_of(64 << 20), (Some(201), 0));
    // The client may see the refusal before the end of its connection.
    let (status, closed) = put_of(8 << 20);
    assert!(status != Some(201) && closed == 1, "{status:?} {closed}");
}

/// The head of a request and the reset of its stream.
fn reset(index: u32, flags: u8, method: &str) -> Vec<u8> {
    let stream = index * 2 + 1;
    let head = frame(1, flags, stream, &head(method, &format!("{STORAGE}/records/r1")));
    [head, frame(3, 0, stream, &8_u32.to_be_bytes())].concat()
}

#[test]
fn req_hostile_many_connections_of_a_hundred_unread_responses_take_some_kilobytes_each() {
    let connections = std::env::var(CONNECTIONS).map_or(150, |text| text.parse().unwrap());
    let node = node_process();
    // A node in this process raises its limit of open files.
    let _this = crate::fixture::node();
    let record = "x".repeat(1000);
    TestClient::connect(node.address).put_record("kilobyte", "{}", &[("b", &record)]).is(201, "");
    let before = node.memory_bytes();
    let clients: Vec<RawHttp2> = (0..connections)
        .map(|_| {
            let mut client = node.connect();
            let answers = client.leave_unread("/records/kilobyte");
            assert_eq!((answers.headers.len(), answers.is_closed), (STREAMS as usize, false));
            client
        })
        .collect();
    let grown = node.memory_bytes().saturating_sub(before);
    let bound = connections * u64::from(STREAMS) * STREAM_BYTES_MAX;
    assert!(grown < bound, "{} MiB, the limit is {} MiB", grown >> 20, bound >> 20);
    println!("{connections} connections of {STREAMS} streams: {} MiB", grown >> 20);
    node.serves_others();
    drop(clients);
}

#[test]
fn req_hostile_header_bombs_and_floods_take_no_memory() {
    let node = node_process();
    let before = node.memory_bytes();
    let others = node.connect();
    // A field of 4 KB in the dynamic table, and one byte for each of its 16,000 uses.
    let mut bomb = vec![0x86, 0x84, 0x82, 0x41, 1, b'a', 0x40, 1, b'x', 0x7f, 0xa1, 0x1e];
    bomb.extend([b'y'; 4000]);
    bomb.extend([0xbe; 12_000]);
    let mut client = node.connect();
    client.settings(65_535);
    for index in 0..50 {
        if client.stream.write_all(&frame(1, 5, index * 2 + 1, &bomb)).is_err() {
            break;
        }
    }
    let mut answers = Answers::default();
    client.read_until(&mut answers, |answers| answers.count() > 0 || answers.goaway.is_some());
    // A request for `/` would be answered with 400, whose head begins with index 12.
    assert!(answers.headers.values().all(|block| block[0] != 0x8c), "no bomb is a request");
    assert!(answers.count() > 0 || answers.goaway.is_some() || answers.is_closed);
    let grown = node.memory_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "bombs: {} KiB", grown >> 10);
    // CONTINUATION without end, and PING, SETTINGS and WINDOW_UPDATE that want answers.
    let floods: [Flood; 6] = [
        ("CONTINUATION", |index| match index {
            0 => frame(1, 0, 1, &[0x82, 0x84, 0x86, 0x41, 1, b'a']),
            _ => frame(9, 0, 1, &[0x40, 1, b'x', 1, b'y'].repeat(200)),
        }),
        ("rapid reset of reads", |index| reset(index, 5, "GET")),
        ("rapid reset of writes", |index| reset(index, 4, "PUT")),
        ("PING", |_| frame(6, 0, 0, &[0; 8])),
        ("SETTINGS", |_| frame(4, 0, 0, &[])),
        ("empty DATA", |index| match index {
            0 => frame(1, 4, 1, &head("PUT", &format!("{STORAGE}/records/r2"))),
            _ => frame(0, 0, 1, &[]),
        }),
    ];
    for (name, flood) in floods {
        let mut client = node.connect();
        client.settings(65_535);
        client.stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        // The client reads nothing: it is the node that must stop.
        let _ = (0..20_000).all(|index| client.stream.write_all(&flood(index)).is_ok());
        let grown = node.memory_bytes().saturating_sub(before);
        assert!(grown < GROWTH_MAX, "{name}: {} KiB", grown >> 10);
        node.serves_others();
    }
    drop(others);
}

#[test]
fn req_hostile_a_slow_body_over_http_2_is_answered_and_its_stream_ends() {
    let node = node_process();
    let mut client = node.connect();
    client.settings(65_535);
    let head = head("PUT", &format!("{STORAGE}/records/r2"));
    client.stream.write_all(&frame(1, 4, 1, &head)).unwrap();
    client.stream.write_all(&frame(0, 0, 1, b"--b")).unwrap();
    let mut answers = Answers::default();
    client.read_until(&mut answers, |answers| answers.headers.contains_key(&1));
    // The head of 408 comes although the body has not.
    assert!(answers.headers.contains_key(&1), "{answers:?}");
    assert!(!answers.is_closed, "the connection stays for other streams");
    node.serves_others();
}
