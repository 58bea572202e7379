//! The node under attack: its open files, memory and processor time.

use crate::fixture::{Client, Folder, HANG_TIMEOUT, Node, serve, start};
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One test at a time: some need all files that this process may open, others measure.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// A node, and its files and memory before the attack.
pub(crate) struct Target {
    pub(crate) node: Node,
    folder: Folder,
    files: usize,
    memory: u64,
    _exclusive: MutexGuard<'static, ()>,
}

/// A node with two cores and these additional flags.
pub(crate) fn target(more: &[&str]) -> Target {
    target_at("127.0.0.1:0", more)
}

/// A node with this address.
pub(crate) fn target_at(listen: &str, more: &[&str]) -> Target {
    let exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new();
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", listen, "--cores", "2", "--max", "256MiB"]).args(more);
    measured(start(&mut command), folder, exclusive)
}

/// A node that may open only this many files.
pub(crate) fn target_with_files(files: u64) -> Target {
    let exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new();
    let mut command = Command::new("prlimit");
    let plain = serve(&folder.path("r"));
    command.arg(format!("--nofile={files}:{files}")).arg(plain.get_program());
    command.args(plain.get_args()).args(["--listen", "127.0.0.1:0", "--cores", "2"]);
    command.args(["--max", "64MiB"]).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    measured(start(&mut command), folder, exclusive)
}

fn measured(node: Node, folder: Folder, exclusive: MutexGuard<'static, ()>) -> Target {
    let mut target = Target { node, folder, files: 0, memory: 0, _exclusive: exclusive };
    // Lazily allocated resources must exist before the attack.
    target.serves();
    target.quiet();
    target.files = target.files_open();
    target.memory = target.memory_used();
    target
}

impl Target {
    pub(crate) fn tcp(&self) -> TcpStream {
        self.tcp_at(0)
    }

    pub(crate) fn tcp_at(&self, address: usize) -> TcpStream {
        let stream = TcpStream::connect(&self.node.addresses[address]).unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        stream
    }

    pub(crate) fn unix(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path("r.sock")).unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        stream
    }

    pub(crate) fn client(&self) -> Client<TcpStream> {
        self.node.tcp()
    }

    pub(crate) fn files_open(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.node.pid())).unwrap().count()
    }

    /// `VmRSS`, in bytes.
    pub(crate) fn memory_used(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.node.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// The memory that the node uses in addition to that before the attack.
    pub(crate) fn memory_more(&self) -> u64 {
        self.memory_used().saturating_sub(self.memory)
    }

    /// The processor time of all threads of the node.
    pub(crate) fn processor_time(&self) -> Duration {
        let threads = fs::read_dir(format!("/proc/{}/task", self.node.pid())).unwrap();
        let nanos = threads.map(|thread| {
            // Time on a processor, time in the run queue, time slices.
            let line = fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// The connections of the node, as it reports them, without the one that asks.
    pub(crate) fn connected(&self) -> u64 {
        let facts = self.client().ask(&["INFO", "clients"]);
        let line = facts.lines().find_map(|line| line.strip_prefix("connected_clients:"));
        line.unwrap().trim().parse::<u64>().unwrap() - 1
    }

    /// Waits until a condition holds.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            let log = self.node.log();
            let log = &log[log.len().saturating_sub(2000)..];
            assert!(start.elapsed() < HANG_TIMEOUT, "timed out: {what}: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn quiet(&self) {
        self.until("all connections are closed", |target| target.connected() == 0);
    }

    /// Checks that other clients are served on both sockets.
    pub(crate) fn serves(&self) {
        let mut tcp = self.client();
        let mut unix = Client::unix(&self.folder.path("r.sock"));
        assert_eq!(tcp.ask(&["SET", "other", "client"]), "+OK");
        assert_eq!(unix.ask(&["GET", "other"]), "client");
        assert_eq!((tcp.ask(&["PING"]), unix.ask(&["PING"])), ("+PONG".into(), "+PONG".into()));
    }

    /// Checks that files and connections are as before the attack, and memory within a bound.
    pub(crate) fn is_as_before(&self, memory_more_max: u64) {
        self.serves();
        self.quiet();
        self.until("all files are closed", |target| target.files_open() <= target.files);
        eprintln!("memory left over: {} KiB", self.memory_more() >> 10);
        let memory_is_back = |target: &Self| target.memory_more() <= memory_more_max;
        self.until("the memory is released", memory_is_back);
    }
}

/// All bytes until the end of the connection.
pub(crate) fn all_of(stream: &mut impl Read) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => return all,
            Ok(bytes) => all.extend_from_slice(&part[..bytes]),
            Err(e) => {
                let has_timed_out = matches!(e.raw_os_error(), Some(11));
                assert!(!has_timed_out, "the node neither replies nor closes the connection");
                return all;
            }
        }
    }
}

/// Raises the file limit of this process to its maximum. Returns the limit.
pub(crate) fn raise_files() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let hard = line.split_whitespace().nth(4).unwrap().to_owned();
    let (pid, all) = (std::process::id().to_string(), format!("--nofile={hard}:{hard}"));
    assert!(Command::new("prlimit").args(["--pid", &pid, &all]).status().unwrap().success());
    hard.parse().unwrap()
}
