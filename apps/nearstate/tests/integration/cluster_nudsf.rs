//! The data repository in a cluster of real nodes, with a storage whose commits wait: what is
//! answered with success survives the loss of its host, and a write that is not replicated in time
//! says so and stands.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::cluster::{Hosts, NAMES};
use crate::fixture::{Folder, HANG_TIMEOUT, until};

/// Clients that write at the same time.
const WRITERS: usize = 8;

const STORAGE: &str = "/nudsf-dr/v1/Realm01/Storage01";

/// The body of a record with one block.
fn record(value: &str) -> String {
    let meta = "--b\r\nContent-Id: meta\r\n\r\n{}\r\n";
    format!("{meta}--b\r\nContent-Id: b\r\n\r\n{value}\r\n--b--\r\n")
}

/// A connection of HTTP/1.1.
struct NudsfClient(BufReader<TcpStream>);

impl NudsfClient {
    fn connect(address: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        Some(Self(BufReader::new(stream)))
    }

    /// Sends a request. `None`: the node has ended.
    fn write(&mut self, method: &str, path: &str, body: &str) -> Option<()> {
        let head = format!(
            "{method} {STORAGE}{path} HTTP/1.1\r\nHost: udsf\r\nContent-Length: {}\r\n\
             Content-Type: multipart/mixed; boundary=b\r\n\r\n{body}",
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

    fn put(&mut self, id: &str, value: &str) -> Option<(u16, String)> {
        self.write("PUT", &format!("/records/{id}"), &record(value))?;
        self.read()
    }

    fn get(&mut self, id: &str) -> Option<(u16, String)> {
        self.write("GET", &format!("/records/{id}/blocks/b"), "")?;
        self.read()
    }
}

impl Hosts {
    fn repository(&self, number: usize) -> String {
        format!("127.0.0.{}:{}", number + 1, self.others[2])
    }

    fn signal(&self, number: usize, name: &str) {
        let id = self.process_id(number).to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

#[test]
fn writes_of_the_data_repository_are_answered_when_other_hosts_have_them() {
    let flags = ["--nudsf-storages", "Realm01/Storage01=ue"].map(str::to_owned);
    let lines = "[cluster]\nreplicated = [\"ue*\"]\n[[partition]]\nnudsf_port = {tls}\n";
    let mut hosts = Hosts::start_with(Folder::new(), "10s", lines, &flags);
    assert_eq!(hosts.owner(), Some(0));
    let address = hosts.repository(0);
    until("the owner serves its data repository", || NudsfClient::connect(&address).is_some());
    let connect = || NudsfClient::connect(&address).unwrap();
    let (mut client, mut other) = (connect(), connect());
    assert_eq!(client.put("first", "1").unwrap().0, 201);

    // Both members are stopped: a write waits, and the core serves others meanwhile.
    for number in [1, 2] {
        hosts.signal(number, "-STOP");
    }
    client.write("PUT", "/records/second", &record("2")).unwrap();
    until("the commit is made", || other.get("second").unwrap() == (200, "2".to_owned()));
    let (status, problem) = client.read().unwrap();
    assert_eq!(status, 504, "{problem}");
    assert!(problem.contains("NOT_REPLICATED") && problem.contains("stands"), "{problem}");
    assert_eq!(other.get("second").unwrap(), (200, "2".to_owned()));
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
                while !is_over.load(Ordering::Relaxed) {
                    let id = format!("w{writer}-{}", mine.len());
                    match client.put(&id, &id) {
                        Some((201, _)) => mine.push(id),
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
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(write(writer))).collect();
        until("there is load", || written.load(Ordering::Relaxed) >= 100);
        hosts.kill(0);
        is_over.store(true, Ordering::Relaxed);
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
        assert_eq!(client.get(id).unwrap(), (200, id.clone()), "acknowledged");
    }
    assert_eq!(client.get("second").unwrap(), (200, "3".to_owned()));
    until("the next owner's writes are replicated", || client.put("after", "1").unwrap().0 < 300);
}
