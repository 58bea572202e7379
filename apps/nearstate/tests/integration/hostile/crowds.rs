//! Large numbers of connections, and half-open ones.

use super::target::{Target, all_of, raise_files, target, target_at, target_with_files};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The default limit.
const CONNECTIONS: usize = 20_000;

/// Files that the test and the node have open in addition to connections.
const FILES_OTHER: usize = 128;

/// Interval in which an idle node is observed.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Memory that may remain in the allocator after an attack.
const LEFT_OVER: u64 = 16 << 20;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn ping(&mut self) {
        let request = b"*1\r\n$4\r\nPING\r\n";
        let mut answer = [0; 7];
        match self {
            Self::Tcp(stream) => {
                stream.write_all(request).unwrap();
                stream.read_exact(&mut answer).unwrap();
            }
            Self::Unix(stream) => {
                stream.write_all(request).unwrap();
                stream.read_exact(&mut answer).unwrap();
            }
        }
        assert_eq!(&answer, b"+PONG\r\n");
    }
}

/// Connects to three addresses, so that the ports of one suffice, and to the Unix socket.
fn connect(target: &Target, count: usize) -> Vec<Stream> {
    let one = |number: usize| match number % 4 {
        3 => Stream::Unix(target.unix()),
        address => Stream::Tcp(target.tcp_at(address)),
    };
    (0..count).map(one).collect()
}

#[test]
fn twenty_thousand_connections_are_served_and_release_their_memory() {
    let files = raise_files();
    let count = CONNECTIONS.min(files - FILES_OTHER);
    eprintln!("this process and the node may open {files} files each: {count} connections");
    let target = target_at("127.0.0.1:0,127.0.0.2:0,127.0.0.3:0", &[]);
    let first = crowd(&target, count);
    // The allocator keeps small blocks for reuse. Their size must not grow.
    target.is_as_before(first + LEFT_OVER);
    let second = crowd(&target, count);
    eprintln!(
        "{} bytes each as VmRSS, {} the second time",
        first / count as u64,
        second / count as u64
    );
    assert!(first < count as u64 * 4096, "{first} bytes");
    assert!(second < first + LEFT_OVER, "{first} bytes, then {second}");
    target.is_as_before(first + LEFT_OVER);
}

/// Connects this many clients, sends requests, leaves them idle, sends requests again, and closes
/// them. Returns the memory that they used.
fn crowd(target: &Target, count: usize) -> u64 {
    let mut streams = connect(target, count);
    for stream in &mut streams {
        stream.ping();
    }
    assert_eq!(target.connected(), count as u64);
    assert!(target.files_open() > count, "each has a socket in the node");
    let memory = target.memory_more();
    target.serves();
    idles(target);
    for stream in &mut streams {
        stream.ping();
    }
    memory
}

/// Waits until the node has used at most 1/256 of a processor in an interval. A node whose work
/// grows with its idle connections never gets there.
fn idles(target: &Target) {
    // The cleanup of previous requests may still be in progress in the first interval.
    target.until("the node is idle", |target| {
        let before = target.processor_time();
        std::thread::sleep(IDLE_INTERVAL);
        target.processor_time() <= before + IDLE_INTERVAL / 256
    });
}

#[test]
fn a_thousand_idle_connections_use_no_processor() {
    let target = target(&["--metrics-listen", "127.0.0.1:0"]);
    let mut streams: Vec<_> = (0..500).map(|_| (target.tcp(), target.unix())).collect();
    for (tcp, unix) in &mut streams {
        let mut answer = [0; 7];
        tcp.write_all(b"PING\r\n").unwrap();
        tcp.read_exact(&mut answer).unwrap();
        unix.write_all(b"PING\r\n").unwrap();
        unix.read_exact(&mut answer).unwrap();
    }
    assert_eq!(target.connected(), 1000);
    idles(&target);
    drop(streams);
    target.is_as_before(LEFT_OVER);
}

#[test]
fn a_connection_beyond_the_limit_receives_an_error_on_both_sockets() {
    let target = target(&["--limits-connections-max", "10"]);
    let mut inside = Vec::new();
    while inside.len() < 10 {
        // The client that checked the readiness of the node may still be connected.
        let (mut stream, mut answer) = (target.tcp(), [0; 4]);
        stream.write_all(b"PING\r\n").unwrap();
        stream.read_exact(&mut answer).unwrap();
        if &answer == b"+PON" {
            stream.read_exact(&mut [0; 3]).unwrap();
            inside.push(stream);
        }
    }
    let mut beyond = target.tcp();
    // The request is in flight when the connection is rejected.
    let _ = beyond.write_all(b"PING\r\n");
    let output = String::from_utf8(all_of(&mut beyond)).unwrap();
    assert!(output.starts_with("-ERR") && output.contains("limits.connections_max"), "{output}");
    let output = String::from_utf8(all_of(&mut target.unix())).unwrap();
    assert!(output.starts_with("-ERR") && output.contains("limit of 10 connections"), "{output}");
    for stream in &mut inside {
        stream.write_all(b"PING\r\n").unwrap();
        stream.read_exact(&mut [0; 7]).unwrap();
    }
    drop((inside, beyond));
    target.until("a connection is accepted", |target| all_of_ping(target) == b"+PONG\r\n");
    target.is_as_before(LEFT_OVER);
}

fn all_of_ping(target: &Target) -> Vec<u8> {
    let mut stream = target.tcp();
    let _ = stream.write_all(b"PING\r\n");
    let _ = stream.shutdown(Shutdown::Write);
    all_of(&mut stream)
}

/// Without a limit of its own the node would run out of files, and the kernel would keep the next
/// client waiting without an error.
#[test]
fn with_a_low_file_limit_the_next_client_receives_an_error() {
    let target = target_with_files(300);
    assert!(target.node.log().contains("warn NS-1009"), "{}", target.node.log());
    assert!(target.node.log().contains("connections_max=20000 files_needed=20080"));
    let mut streams: Vec<_> = (0..400).map(|_| target.tcp()).collect();
    for stream in &mut streams {
        let _ = stream.write_all(b"PING\r\n");
    }
    let (mut served, mut refused) = (0, 0);
    for stream in &mut streams {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        served += usize::from(&answer == b"+PON");
        refused += usize::from(&answer == b"-ERR");
    }
    eprintln!("300 files: {served} served, {refused} refused");
    assert_eq!(served + refused, 400);
    assert!((200..300).contains(&served), "{served}");
    drop(streams);
    target.until("a connection is accepted", |target| all_of_ping(target) == b"+PONG\r\n");
    target.is_as_before(LEFT_OVER);
}

#[test]
fn a_half_closed_connection_is_answered_and_closed() {
    let target = target(&[]);
    let mut halves: Vec<_> = (0..500).map(|_| target.tcp()).collect();
    for (number, stream) in halves.iter_mut().enumerate() {
        // Some clients stop in the middle of a request.
        let words: &[u8] = if number % 2 == 0 { b"PING\r\n" } else { b"PING\r\n*2\r\n$3\r\nGE" };
        stream.write_all(words).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    for stream in &mut halves {
        assert_eq!(all_of(stream), b"+PONG\r\n");
    }
    // The clients still hold their ends.
    target.is_as_before(LEFT_OVER);
    assert_eq!(halves.len(), 500);
}

/// A host without power sends nothing. The test checks that the kernel has a keepalive timer with
/// the configured time on every connection.
#[test]
fn silent_tcp_clients_receive_keepalive_probes() {
    let target = target(&["--limits-tcp-keepalive", "100s"]);
    let mut silent = target.tcp();
    silent.write_all(b"PING\r\n").unwrap();
    silent.read_exact(&mut [0; 7]).unwrap();
    let port =
        |stream: std::io::Result<std::net::SocketAddr>| format!("{:04X}", stream.unwrap().port());
    let (client, node) = (port(silent.local_addr()), port(silent.peer_addr()));
    let timer = || {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_connection =
                fields.get(1)?.ends_with(&node) && fields.get(2)?.ends_with(&client);
            is_connection.then(|| {
                (*fields.get(5)?)
                    .split_once(':')
                    .map(|(kind, when)| (kind.to_owned(), u64::from_str_radix(when, 16).unwrap()))
            })?
        })
    };
    // 02: keepalive; in hundredths of a second. The timer of an acknowledgement may come first.
    target.until("the keepalive timer", |_| timer().is_some_and(|(kind, _)| kind == "02"));
    let (_, when) = timer().unwrap();
    assert!(when <= 100 * 100, "{when}");
    drop(silent);
    target.is_as_before(LEFT_OVER);
}

/// The messages of stalled subscribers lie between each other in the allocator's memory.
#[test]
fn stalled_subscribers_leave_no_memory_behind() {
    const SUBSCRIBERS: usize = 8;
    let target = target(&[]);
    let mut stalled = Vec::new();
    for number in 0..SUBSCRIBERS {
        let mut client = target.client();
        client.ask(&["SUBSCRIBE", &number.to_string()]);
        stalled.push(client);
    }
    let mut sender = target.client();
    let message = "m".repeat(10_000);
    for number in 0..3000 * SUBSCRIBERS {
        assert_eq!(sender.ask(&["PUBLISH", &(number % SUBSCRIBERS).to_string(), &message]), ":1");
    }
    // 240 MB were sent. What the sockets hold is the kernel's.
    assert!(target.memory_more() > 150 << 20, "{} bytes", target.memory_more());
    drop((stalled, sender));
    target.is_as_before(LEFT_OVER);
}
