//! The data repository in a cluster of real nodes, with a storage whose commits wait: what is
//! answered with success survives the loss of its host, and a write that is not replicated in time
//! says so and stands.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nearstate_store::Region;

use crate::cluster::{Hosts, LONG_LEASE, NAMES};
use crate::fixture::{
    Folder, HANG_TIMEOUT, SetOnDrop, free_ports, http, is_stopped, own_ip, until,
};

/// Clients that write at the same time.
const WRITERS: usize = 8;

const STORAGE: &str = "/nudsf-dr/v1/Realm01/Storage01";
const TIMERS: &str = "/nudsf-timer/v1/Realm01/Storage01/timers";

/// The body of a record with one block.
fn record(value: &str) -> String {
    record_with("{}", value)
}

fn record_with(meta: &str, value: &str) -> String {
    let meta = format!("--b\r\nContent-Id: meta\r\n\r\n{meta}\r\n");
    format!("{meta}--b\r\nContent-Id: b\r\n\r\n{value}\r\n--b--\r\n")
}

/// A connection of HTTP/1.1.
pub(crate) struct NudsfClient(BufReader<TcpStream>);

impl NudsfClient {
    pub(crate) fn connect(address: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        Some(Self(BufReader::new(stream)))
    }

    /// Sends a request. `None`: the node has ended.
    fn write(&mut self, method: &str, path: &str, body: &str) -> Option<()> {
        self.write_to(method, &format!("{STORAGE}{path}"), body)
    }

    /// The same, with the whole path.
    fn write_to(&mut self, method: &str, path: &str, body: &str) -> Option<()> {
        let is_json = body.starts_with('{');
        let media = if is_json { "application/json" } else { "multipart/mixed; boundary=b" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: udsf\r\nContent-Length: {}\r\n\
             Content-Type: {media}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(head.as_bytes()).ok()
    }

    /// The status and the body of a response. `None`: the node has ended.
    fn read(&mut self) -> Option<(u16, String)> {
        let (mut line, mut length) = (String::new(), 0);
        self.0.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().unwrap();
        while line.trim() != "" {
            line.clear();
            self.0.read_line(&mut line).ok()?;
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        Some((status, String::from_utf8(body).unwrap()))
    }

    /// Repeats a write until it is replicated. Each one stands that is not replicated in time, so
    /// the next one finds what it creates.
    fn until_replicated(&mut self, method: &str, path: &str, body: &str) {
        until("a write is replicated", || {
            self.write_to(method, path, body).unwrap();
            let (status, text) = self.read().unwrap();
            assert!([201, 204, 503, 504].contains(&status), "{status} {text}");
            status < 300
        });
    }

    /// The same, for a record.
    fn put_replicated(&mut self, id: &str, value: &str) {
        self.until_replicated("PUT", &format!("{STORAGE}/records/{id}"), &record(value));
    }

    /// Repeats a read until what it tells of is replicated.
    fn read_replicated(&mut self, path: &str) -> (u16, String) {
        let mut answer = None;
        until("what is read is replicated", || {
            self.write_to("GET", path, "").unwrap();
            answer = self.read();
            !matches!(answer, Some((503 | 504, _)))
        });
        answer.unwrap()
    }

    /// The same, for the block of a record.
    fn get_replicated(&mut self, id: &str) -> (u16, String) {
        self.read_replicated(&format!("{STORAGE}/records/{id}/blocks/b"))
    }

    /// Sends a request and returns the status and the body of its response.
    pub(crate) fn request(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.write(method, path, body).unwrap();
        self.read().unwrap()
    }

    fn put(&mut self, id: &str, value: &str) -> Option<(u16, String)> {
        self.write("PUT", &format!("/records/{id}"), &record(value))?;
        self.read()
    }

    fn get(&mut self, id: &str) -> Option<(u16, String)> {
        self.write("GET", &format!("/records/{id}/blocks/b"), "")?;
        self.read()
    }
}

/// A network function that accepts notifications: HTTP/2 with prior knowledge, as far as the node
/// uses it. Headers are not read.
pub(crate) struct NotifiedFunction {
    pub(crate) address: SocketAddr,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl NotifiedFunction {
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let bodies = Arc::<Mutex<Vec<String>>>::default();
        let received = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let received = Arc::clone(&received);
                std::thread::spawn(move || answer(&stream.unwrap(), &received));
            }
        });
        Self { address, bodies }
    }

    pub(crate) fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }
}

/// Answers the requests of a connection with 204 until it ends.
fn answer(mut stream: &TcpStream, bodies: &Mutex<Vec<String>>) -> Option<()> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW: u8 = 8;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    };
    stream.read_exact(&mut [0; 24]).ok()?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    let mut open = BTreeMap::<u32, Vec<u8>>::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let (length, id) = (u32::from_be_bytes([0, a, b, c]), u32::from_be_bytes(id));
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).ok()?;
        match kind {
            SETTINGS | PING if flags & 1 == 0 => {
                let echo = if kind == PING { payload.as_slice() } else { &[] };
                stream.write_all(&frame(kind, 1, 0, echo)).ok()?;
            }
            HEADERS => drop(open.insert(id, Vec::new())),
            DATA => {
                open.entry(id).or_default().extend(&payload);
                if length > 0 {
                    let more = length.to_be_bytes();
                    stream.write_all(&frame(WINDOW, 0, 0, &more)).ok()?;
                }
            }
            _ => {}
        }
        if let DATA | HEADERS = kind
            && flags & 1 != 0
        {
            let body = open.remove(&id).unwrap_or_default();
            bodies.lock().unwrap().push(String::from_utf8(body).unwrap());
            // `:status: 204` of the static table; the end of the headers and of the stream.
            stream.write_all(&frame(HEADERS, 5, id, &[0x89])).ok()?;
        }
    }
}

impl Hosts {
    fn repository(&self, number: usize) -> String {
        format!("{}:{}", self.ips[number], self.others[2])
    }

    fn signal(&self, number: usize, name: &str) {
        let id = self.process_id(number);
        let sent = Command::new("kill").args([name, &id.to_string()]).status();
        assert!(sent.unwrap().success());
        until("all threads are stopped", || name != "-STOP" || is_stopped(id));
    }
}

#[test]
fn writes_of_the_data_repository_are_answered_when_other_hosts_have_them() {
    let flags = ["--nudsf-storages", "Realm01/Storage01=ue"].map(str::to_owned);
    let lines = "[cluster]\nreplicated = [\"ue*\"]\n[[partition]]\nnudsf_port = {tls}\n";
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, lines, &flags);
    assert_eq!(hosts.owner(), Some(0));
    let address = hosts.repository(0);
    until("the owner serves its data repository", || NudsfClient::connect(&address).is_some());
    let connect = || NudsfClient::connect(&address).unwrap();
    let (mut client, mut other) = (connect(), connect());
    client.put_replicated("first", "1");

    // Both members are stopped: a write waits, and the core serves others meanwhile.
    for number in [1, 2] {
        hosts.signal(number, "-STOP");
    }
    client.write("PUT", "/records/second", &record("2")).unwrap();
    assert_eq!(other.get("first").unwrap(), (200, "1".to_owned()));
    let (status, problem) = client.read().unwrap();
    assert_eq!(status, 504, "{problem}");
    assert!(problem.contains("NOT_REPLICATED") && problem.contains("stands"), "{problem}");
    // It stands, but a response that tells of it would tell of what a fail-over discards.
    assert_eq!(other.get("second").unwrap().0, 504);
    for number in [1, 2] {
        hosts.signal(number, "-CONT");
    }
    until("writes are replicated again", || client.put("second", "3").unwrap().0 == 204);

    // The owner is killed under load: what was answered with success is on the next one.
    let (written, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let acknowledged: Vec<String> = std::thread::scope(|scope| {
        let write = |writer: usize| {
            let (written, is_over, mut client) = (&written, &is_over, connect());
            move || {
                let mut mine = Vec::new();
                while !is_over.load(Ordering::Acquire) {
                    let id = format!("w{writer}-{}", mine.len());
                    match client.put(&id, &id) {
                        // 204: an earlier one stands that was not replicated in time.
                        Some((201 | 204, _)) => mine.push(id),
                        // A member that is slow to return, or the end of the node.
                        Some((503 | 504, _)) => {}
                        Some(other) => panic!("{other:?}"),
                        None => break,
                    }
                    written
                        .store(written.load(Ordering::Relaxed).max(mine.len()), Ordering::Relaxed);
                }
                mine
            }
        };
        let end = SetOnDrop(&is_over);
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(write(writer))).collect();
        until("there is load", || written.load(Ordering::Relaxed) >= 100);
        hosts.kill(0);
        drop(end);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    assert!(acknowledged.len() >= 100);
    until("another host owns the partition", || hosts.owner().is_some());
    let owner = hosts.owner().unwrap();
    assert_ne!(NAMES[owner], "a");
    let address = hosts.repository(owner);
    until("it serves its data repository", || NudsfClient::connect(&address).is_some());
    let mut client = NudsfClient::connect(&address).unwrap();
    for id in &acknowledged {
        assert_eq!(client.get_replicated(id), (200, id.clone()), "acknowledged");
    }
    assert_eq!(client.get_replicated("second"), (200, "3".to_owned()));
    until("the next owner's writes are replicated", || client.put("after", "1").unwrap().0 < 300);
}

#[test]
fn changes_in_a_cluster_are_notified_and_none_is_lost_to_the_acknowledgements_of_members() {
    let flags = ["--nudsf-storages", "Realm01/Storage01=ue"].map(str::to_owned);
    let lines = "[cluster]\nreplicated = [\"ue*\"]\n[[partition]]\nnudsf_port = {tls}\n\
                 metrics_port = {metrics}\n";
    let hosts = Hosts::start_with(Folder::new(), LONG_LEASE, lines, &flags);
    assert_eq!(hosts.owner(), Some(0));
    let address = hosts.repository(0);
    until("the owner serves its data repository", || NudsfClient::connect(&address).is_some());
    let mut client = NudsfClient::connect(&address).unwrap();
    let target = NotifiedFunction::start();
    let subscription = format!(
        "{{\"clientId\": {{\"nfId\": \"4947a69a-f61b-4bc1-b9da-47c9c5d14b64\"}}, \
         \"callbackReference\": \"http://{}/\"}}",
        target.address
    );
    client.until_replicated("PUT", &format!("{STORAGE}/subs-to-notify/s1"), &subscription);
    // Each write is answered when a member has it, and so may be forgotten as far as members are
    // concerned.
    for number in 0..200 {
        client.put_replicated(&format!("r{number}"), "1");
    }
    let has_arrived = |number: usize| {
        let reference = format!("/records/r{number}\"");
        target.bodies().iter().any(|body| body.contains(&reference))
    };
    until("each change has arrived", || (0..200).all(has_arrived));
    let (_, page) = http(&format!("{}:{}", hosts.ips[0], hosts.others[3]), "/metrics");
    let mut events = page.lines().filter(|line| line.contains("nudsf_notifier_events_total{"));
    let lost = events.find(|line| line.contains("\"lost\"")).unwrap();
    assert!(lost.ends_with(" 0"), "{lost}");
}

/// The time in some seconds, as JSON has it.
fn time_in(seconds: u32) -> String {
    let ahead = format!("+{seconds} seconds");
    let output = Command::new("date").args(["-u", "-d", &ahead, "+%Y-%m-%dT%H:%M:%SZ"]).output();
    String::from_utf8(output.unwrap().stdout).unwrap().trim().to_owned()
}

/// What a storage has promised on one host is kept by the next one. The network function is not
/// there before the host is lost, so everything that it gets, it gets from the next one.
#[test]
fn timers_expiries_and_notifications_of_a_lost_host_are_those_of_the_next_one() {
    keep_promises("replicated = [\"ue*\"]");
}

#[test]
fn patterns_of_a_storage_replicate_what_it_has_promised_without_naming_the_notifier() {
    keep_promises("namespaces = [\"ue*\"]");
}

fn keep_promises(patterns: &str) {
    const CHANGES: usize = 20;
    const TIMED: usize = 10;
    let flags = ["--nudsf-storages", "Realm01/Storage01=ue"].map(str::to_owned);
    let lines = format!("[cluster]\n{patterns}\n[[partition]]\nnudsf_port = {{tls}}\n");
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, &lines, &flags);
    assert_eq!(hosts.owner(), Some(0));
    let address = hosts.repository(0);
    until("the owner serves its data repository", || NudsfClient::connect(&address).is_some());
    let mut client = NudsfClient::connect(&address).unwrap();
    let ip = own_ip();
    let target = format!("{ip}:{}", free_ports(ip, 1)[0]);
    let callback = format!("\"callbackReference\": \"http://{target}/\"");
    let client_id = "\"clientId\": {\"nfId\": \"4947a69a-f61b-4bc1-b9da-47c9c5d14b64\"}";
    let subscription = format!("{{{client_id}, {callback}}}");
    client.until_replicated("PUT", &format!("{STORAGE}/subs-to-notify/s1"), &subscription);
    for number in 0..CHANGES {
        client.until_replicated("PUT", &format!("{STORAGE}/records/r{number}"), &record("1"));
    }
    for number in 0..TIMED {
        // They are due before the host is lost, while no host serves, or afterwards.
        let expires = time_in(5 + 2 * u32::try_from(number).unwrap());
        let meta = format!("{{\"ttl\": \"{expires}\", {callback}}}");
        let last = record_with(&meta, &format!("last-{number}-"));
        client.until_replicated("PUT", &format!("{STORAGE}/records/x{number}"), &last);
        let tags = format!("\"metaTags\": {{\"ueId\": [\"timer-{number}-\"]}}");
        let ends = "\"deleteAfter\": 0";
        let timer = format!("{{\"expires\": \"{expires}\", {ends}, {tags}, {callback}}}");
        client.until_replicated("PUT", &format!("{TIMERS}/t{number}"), &timer);
    }
    // The changes are in the outbox, and members have it: what its owner has not yet read of its
    // log is lost with it (decision 027).
    let session = Region::attach(&hosts.folder.path("a-amf")).unwrap().session().unwrap();
    until("the changes are in the outbox", || {
        let outbox = session.known_namespace("nudsf:outbox").unwrap();
        outbox.is_some_and(|outbox| session.count(outbox).unwrap() >= (CHANGES + TIMED) as u64)
    });
    let receipt = session.receipt_of_all().unwrap();
    until("members have the outbox", || session.is_replicated(receipt).unwrap());
    drop(session);
    hosts.kill(0);
    let target = NotifiedFunction::start_at(&target);
    until("another host owns the partition", || hosts.owner().is_some());
    let has_arrived = |text: &str| target.bodies().iter().any(|body| body.contains(text));
    for number in 0..CHANGES {
        let reference = format!("/records/r{number}\"");
        until("each change is notified", || has_arrived(&reference));
    }
    for number in 0..TIMED {
        until("each timer fires", || has_arrived(&format!("timer-{number}-")));
        until("each expiry is notified", || has_arrived(&format!("last-{number}-")));
    }
    let address = hosts.repository(hosts.owner().unwrap());
    until("it serves its data repository", || NudsfClient::connect(&address).is_some());
    let mut client = NudsfClient::connect(&address).unwrap();
    for number in 0..TIMED {
        let (status, _) = client.get_replicated(&format!("x{number}"));
        assert_eq!(status, 404, "record {number} is there");
        let (status, _) = client.read_replicated(&format!("{TIMERS}/t{number}"));
        assert_eq!(status, 404, "timer {number} is there");
    }
    assert_eq!(client.get_replicated("r0"), (200, "1".to_owned()));
}
