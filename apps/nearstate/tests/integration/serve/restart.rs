//! A node that is killed during writes: no acknowledged write is lost, processes that have the
//! region attached continue, and the next node serves at once.

use crate::fixture::{Client, Folder, Node, serve, start, until};
use nearstate_store::{CreateOptions, Region, Schema, Session};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes in the region before the test, so that the attach is realistic.
const FILL_BYTES: u64 = 768 << 20;
const VALUE_BYTES: usize = 16 << 10;

/// Pages of the region that a node may touch until its first reply. A scan of all records touches
/// several times as many.
const TOUCHED_BYTES_MAX: u64 = FILL_BYTES / 4;

const KILLS: u64 = 5;

/// Starts a node and waits for its first reply. Checks that the start has not read all records.
fn start_at_once(region: &Path) -> Node {
    let listen = ["--listen", "127.0.0.1:0", "--cores", "2", "--unix", ""];
    let node = start(serve(region).args(listen));
    assert_eq!(node.tcp().ask(&["PING"]), "+PONG");
    let touched = shared_bytes(&node);
    eprintln!("{} MiB of the region touched", touched >> 20);
    assert!(touched < TOUCHED_BYTES_MAX, "the node touched {touched} bytes of the region");
    node
}

/// Resident pages of shared memory.
fn shared_bytes(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (kib("RssFile:") + kib("RssShmem:")) << 10
}

fn fill(session: &Session) {
    let bulk = session.namespace("bulk", &Schema::default()).unwrap();
    let value = vec![7; VALUE_BYTES];
    for number in 0..FILL_BYTES / VALUE_BYTES as u64 {
        session.put(bulk, format!("bulk-{number}").as_bytes(), &value).unwrap();
    }
}

/// Writes until the connection is closed. Records for each key the last acknowledged and the last
/// sent number.
fn write_until_closed(
    address: &str,
    writer: usize,
    noted: &mut BTreeMap<String, (u64, u64)>,
    acknowledged_count: &AtomicU64,
) {
    let mut client = Client::tcp(address);
    let first = noted.values().map(|(_, sent)| sent + 1).max().unwrap_or(1);
    for number in first.. {
        let key = format!("{{t}},{writer}-{}", number % 50);
        let known = noted.entry(key.clone()).or_default();
        known.1 = number;
        let value = number.to_string();
        if client.send(&[b"SET", key.as_bytes(), value.as_bytes()]).is_err() {
            return;
        }
        match client.receive() {
            Ok(answer) => assert_eq!(answer, b"+OK"),
            Err(_) => return,
        }
        known.0 = number;
        acknowledged_count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks that every key has its last acknowledged number, or one that was sent after it.
fn check(client: &mut Client<std::net::TcpStream>, noted: &BTreeMap<String, (u64, u64)>) {
    for (key, (acknowledged, sent)) in noted {
        let value = client.ask(&["GET", key]);
        let value: u64 = if value == "$-1" { 0 } else { value.parse().unwrap() };
        assert!(
            value == *acknowledged || value == *sent,
            "{key} is {value}; {acknowledged} was acknowledged last, {sent} was sent last"
        );
    }
}

#[test]
fn a_node_killed_during_writes_loses_nothing_and_restarts_without_a_scan() {
    let folder = Folder::new();
    let path = folder.path("r");
    let options = CreateOptions { bytes_max: 1 << 30, ..CreateOptions::default() };
    let region = Region::create(&path, &options).unwrap();
    fill(&region.session().unwrap());
    let mut node = start_at_once(&path);

    let is_finished = AtomicBool::new(false);
    let (embedded, writes) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut noted = [BTreeMap::new(), BTreeMap::new()];
    std::thread::scope(|scope| {
        // A process that has the region attached, independently of the node.
        scope.spawn(|| {
            let session = region.session().unwrap();
            let namespace = session.namespace("embedded", &Schema::default()).unwrap();
            while !is_finished.load(Ordering::Relaxed) {
                let next = embedded.load(Ordering::Relaxed) + 1;
                session.put(namespace, b"{embedded}", next.to_string().as_bytes()).unwrap();
                embedded.store(next, Ordering::Release);
            }
        });
        let stop = StopOnDrop(&is_finished);
        for kill in 0..KILLS {
            let address = node.addresses[0].clone();
            std::thread::scope(|writers| {
                let (address, writes) = (&address, &writes);
                for (writer, noted) in noted.iter_mut().enumerate() {
                    writers.spawn(move || write_until_closed(address, writer, noted, writes));
                }
                let enough = writes.load(Ordering::Relaxed) + 500 + 313 * kill;
                until("the writers write", || writes.load(Ordering::Relaxed) >= enough);
                node.kill();
            });
            // No node is running, and the embedded writer continues.
            let before = embedded.load(Ordering::Acquire);
            while embedded.load(Ordering::Acquire) < before + 100 {
                std::thread::yield_now();
            }
            node = start_at_once(&path);
            let mut client = node.tcp();
            for noted in &noted {
                check(&mut client, noted);
            }
            let written = embedded.load(Ordering::Acquire);
            let seen: u64 = client.ask(&["GET", "{embedded},{embedded}"]).parse().unwrap();
            assert!(seen >= written && written > before, "{seen}, {written}, {before}");
        }
        drop(stop);
    });
}

/// Stops the writer thread if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
