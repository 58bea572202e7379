//! The round trip of a `GET` from a client on another processor of this host, over TCP, a Unix
//! socket and a ring. Both sides look and never sleep: sockets are asked again and again as well.

use crate::legacy::protocol::monotonic_ns;
use crate::stat::{Latencies, median};
use crate::table::{Align, Table};
use nearstate_local_transport::{LocalRing, Response, request_ring};
use nearstate_model::{Error, Result};
use nearstate_node::executor::SpinPolicy;
use nearstate_node::{Address, Endpoint, Node, NodeConfig};
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{Server, Settings};
use nearstate_resp::table::TABLE;
use nearstate_store::{CreateOptions, Kind, Region, Schema};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Records: all of them are in the processor's cache, so that the way is measured.
const RECORDS: u64 = 1000;

/// Bytes of a value.
const VALUE_BYTES: usize = 1024;

/// Longer than a round trip takes, so that nobody sleeps.
const LOOK: Duration = Duration::from_millis(5);

/// Longer than any answer takes.
const WAIT: Duration = Duration::from_secs(10);

/// A way, measured some times.
#[derive(Clone, Debug)]
pub struct Trip {
    /// Which.
    pub what: &'static str,
    /// The median of each round, in nanoseconds.
    pub p50: Vec<f64>,
    /// The 99th percentile of each round, in nanoseconds.
    pub p99: Vec<f64>,
    /// The goal for the median, in nanoseconds; 0: none.
    pub goal: f64,
}

/// A folder that goes with the measurement.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn system(what: &str, error: &io::Error) -> Error {
    crate::keeper::system(what, error)
}

/// Measures every way in each of so many rounds, `count` times. The client runs on `processor`.
///
/// # Errors
/// `System` if the kernel refuses a socket, a thread or memory.
pub fn measure(rounds: u64, count: u64, processor: usize) -> Result<Vec<Trip>> {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let name = format!("nearstate-local-transport-{}-{}", std::process::id(), monotonic_ns());
    let folder = Folder(Path::new(base).join(name));
    std::fs::create_dir(&folder.0).map_err(|e| system("making a folder", &e))?;
    let (node, socket) = serve(&folder.0)?;
    let tcp = node.addresses().iter().find_map(|address| match address {
        Address::Tcp(address) => Some(*address),
        Address::Unix { .. } => None,
    });
    let client = std::thread::Builder::new().name("bench-client".to_owned()).spawn(move || {
        let mut own = CpuSet::new();
        own.set(processor);
        let _ = sched_setaffinity(None, &own);
        let trip = |what, goal| Trip { what, p50: Vec::new(), p99: Vec::new(), goal };
        let mut trips = [
            trip("TCP, both look", 0.0),
            trip("Unix socket, both look", 0.0),
            trip("ring, both look", 1200.0),
        ];
        for _ in 0..rounds {
            for (way, trip) in trips.iter_mut().enumerate() {
                let all = match (way, tcp) {
                    (0, Some(address)) => round(Looking(tcp_stream(address)?), count)?,
                    (1, _) => {
                        let stream = UnixStream::connect(&socket)?;
                        stream.set_nonblocking(true)?;
                        round(Looking(stream), count)?
                    }
                    _ => round(ring(&socket)?, count)?,
                };
                trip.p50.push(nanos(all.percentile(50.0)));
                trip.p99.push(nanos(all.percentile(99.0)));
            }
        }
        Ok::<_, io::Error>(trips.to_vec())
    });
    let client = client.map_err(|e| system("beginning a thread", &e))?;
    let ended = || io::Error::other("the client has panicked");
    client.join().unwrap_or_else(|_| Err(ended())).map_err(|e| system("asking the node", &e))
}

#[expect(clippy::cast_precision_loss, reason = "a latency is below 2^53 nanoseconds")]
const fn nanos(ns: u64) -> f64 {
    ns as f64
}

/// A node of one core with some records.
fn serve(folder: &Path) -> Result<(Node, PathBuf)> {
    let region = Region::create(&folder.join("region"), &CreateOptions::default())?;
    let session = region.session()?;
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    let namespace = session.namespace("bench", &schema)?;
    for number in 0..RECORDS {
        session.put(namespace, &key(number), &[b'v'; VALUE_BYTES])?;
    }
    let path = folder.join("near.sock");
    let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint = |address| Endpoint { protocol: "resp".to_owned(), address, tls: None };
    let config = NodeConfig {
        cores: 1,
        is_pinned: true,
        endpoints: vec![
            endpoint(Address::Tcp(loopback)),
            endpoint(Address::Unix { path: path.clone(), mode: 0o600 }),
        ],
        spin: Some(SpinPolicy::Always { time: LOOK }),
        ..NodeConfig::default()
    };
    let face = RespProtocol::new(Arc::new(Server::new(Settings::new(Users::open(&TABLE)))));
    Ok((Node::start(&config, &region, &[Arc::new(face)])?, path))
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

fn tcp_stream(address: std::net::SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn ring(path: &Path) -> io::Result<LocalRing> {
    let socket = UnixStream::connect(path)?;
    match request_ring(&socket)? {
        Response::Refused(text) => Err(io::Error::other(text)),
        Response::Granted(memory) => {
            let mut ring = LocalRing::new(memory, socket, WAIT).map_err(io::Error::other)?;
            ring.set_spin(LOOK);
            Ok(ring)
        }
    }
}

/// A socket that is asked until it has something.
struct Looking<S>(S);

impl<S: Read> Read for Looking<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                read => return read,
            }
        }
    }
}

impl<S: Write> Write for Looking<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// So many round trips, after a tenth of them to warm up.
fn round(mut stream: impl Read + Write, count: u64) -> io::Result<Latencies> {
    let requests: Vec<Vec<u8>> = (0..RECORDS)
        .map(|number| {
            let key = [b"{bench},", &*key(number)].concat();
            let head = format!("*2\r\n$3\r\nGET\r\n${}\r\n", key.len());
            [head.as_bytes(), &key, b"\r\n"].concat()
        })
        .collect();
    let head = format!("${VALUE_BYTES}\r\n");
    let mut answer = vec![0; head.len() + VALUE_BYTES + 2];
    let mut all = Latencies::new();
    let warm = count / 10;
    for (number, request) in (0..count + warm).zip(requests.iter().cycle()) {
        let begin = monotonic_ns();
        stream.write_all(request)?;
        stream.read_exact(&mut answer)?;
        let took = monotonic_ns().saturating_sub(begin);
        if !answer.starts_with(head.as_bytes()) {
            return Err(io::Error::other("a record is missing"));
        }
        if number >= warm {
            all.record(took, 1);
        }
    }
    Ok(all)
}

/// The ways as a table.
pub fn table(trips: &[Trip]) -> Table {
    let mut table = Table::new(&[
        ("GET of 1 KB and back, one client", Align::Left),
        ("p50 ns", Align::Right),
        ("from", Align::Right),
        ("to", Align::Right),
        ("p99 ns", Align::Right),
        ("from", Align::Right),
        ("to", Align::Right),
        ("goal p50", Align::Right),
    ]);
    for trip in trips {
        let mut cells = vec![trip.what.to_owned()];
        for nanos in [&trip.p50, &trip.p99] {
            cells.push(format!("{:.0}", median(nanos)));
            cells.push(format!("{:.0}", nanos.iter().copied().fold(f64::INFINITY, f64::min)));
            cells.push(format!("{:.0}", nanos.iter().copied().fold(0.0, f64::max)));
        }
        cells.push(if trip.goal > 0.0 { format!("<= {:.0}", trip.goal) } else { String::new() });
        table.row(cells);
    }
    table
}
