//! A node that is killed during writes: no acknowledged write is lost, processes that have the
//! region attached continue, and the next node serves at once.

use crate::fixture::{Client, Folder, Node, serve, start};
use nearstate_store::{CreateOptions, Region, Schema, Session};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes in the region before the test, so that the attach is realistic.
const FILL_BYTES: u64 = 768 << 20;
const VALUE_BYTES: usize = 16 << 10;

/// The goal is 0.3 s on an idle machine. The bound only detects a scan of all records.
const START_MAX: Duration = Duration::from_secs(3);

const KILLS: usize = 5;

/// Starts a node and returns the time from its start to its first reply.
fn start_timed(region: &Path) -> (Node, Duration) {
    let begin = Instant::now();
    let listen = ["--listen", "127.0.0.1:0", "--cores", "2", "--unix", ""];
    let node = start(serve(region).args(listen));
    assert_eq!(node.tcp().ask(&["PING"]), "+PONG");
    (node, begin.elapsed())
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
fn write_until_cut(address: &str, writer: usize, noted: &mut BTreeMap<String, (u64, u64)>) {
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
    }
}

/// Checks that every key has its last acknowledged number, or one that was sent after it.
fn check(client: &mut Client<std::net::TcpStream>, noted: &BTreeMap<String, (u64, u64)>) {
    for (key, (acknowledged, sent)) in noted {
        let found = client.ask(&["GET", key]);
        let found: u64 = if found == "$-1" { 0 } else { found.parse().unwrap() };
        assert!(
            found == *acknowledged || found == *sent,
            "{key} is {found}, was acknowledged as {acknowledged}, and {sent} was sent last"
        );
    }
}

#[test]
fn a_node_killed_during_writes_loses_nothing_and_restarts_at_once() {
    let folder = Folder::new();
    let path = folder.path("r");
    let options = CreateOptions { bytes_max: 1 << 30, ..CreateOptions::default() };
    let region = Region::create(&path, &options).unwrap();
    fill(&region.session().unwrap());
    let (mut node, first) = start_timed(&path);
    let mut times = vec![first];

    let is_over = AtomicBool::new(false);
    let embedded = AtomicU64::new(0);
    let mut noted = [BTreeMap::new(), BTreeMap::new()];
    std::thread::scope(|scope| {
        // A process that has the region attached, independently of the node.
        scope.spawn(|| {
            let session = region.session().unwrap();
            let own = session.namespace("embedded", &Schema::default()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let next = embedded.load(Ordering::Relaxed) + 1;
                session.put(own, b"{embedded}", next.to_string().as_bytes()).unwrap();
                embedded.store(next, Ordering::Release);
            }
        });
        let ends = EndsWhenDropped(&is_over);
        for kill in 0..KILLS {
            let address = node.addresses[0].clone();
            std::thread::scope(|writers| {
                let address = &address;
                for (writer, noted) in noted.iter_mut().enumerate() {
                    writers.spawn(move || write_until_cut(address, writer, noted));
                }
                std::thread::sleep(Duration::from_millis(40 + 13 * kill as u64));
                node.kill();
            });
            // No node is running, and the embedded writer continues.
            let before = embedded.load(Ordering::Acquire);
            while embedded.load(Ordering::Acquire) < before + 100 {
                std::thread::yield_now();
            }
            let (again, time) = start_timed(&path);
            node = again;
            times.push(time);
            let mut client = node.tcp();
            for noted in &noted {
                check(&mut client, noted);
            }
            let written = embedded.load(Ordering::Acquire);
            let seen: u64 = client.ask(&["GET", "{embedded},{embedded}"]).parse().unwrap();
            assert!(seen >= written && written > before, "{seen}, {written}, {before}");
        }
        drop(ends);
    });
    let writes: u64 = noted.iter().flat_map(BTreeMap::values).map(|(last, _)| *last).max().unwrap();
    assert!(writes > 0, "the writers have written");
    eprintln!("from the start to the first PONG, region of 1 GiB: {times:?}; {writes} writes");
    for time in times {
        assert!(time < START_MAX, "a restart took {time:?}: does it scan the records?");
    }
}

/// Stops the writer thread if the test fails.
struct EndsWhenDropped<'a>(&'a AtomicBool);

impl Drop for EndsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
