//! A node started by a test, and a client of it.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) const NEARSTATE: &str = env!("CARGO_BIN_EXE_nearstate");

/// Timeout of blocking operations. It only ends a test that hangs.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(120);

/// A node. It is killed when this is dropped.
pub(crate) struct Node {
    child: Child,
    /// The addresses in its log.
    pub(crate) addresses: Vec<String>,
    log: Arc<Mutex<String>>,
    /// Reads the log until the node ends.
    reader: Option<JoinHandle<()>>,
}

/// `nearstate serve` without the settings in the environment of the test.
pub(crate) fn serve(region: &Path) -> Command {
    let mut command = Command::new(NEARSTATE);
    command.args(["serve", "--region"]).arg(region);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NEARSTATE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Starts a node and waits until it is ready.
pub(crate) fn start(command: &mut Command) -> Node {
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut addresses = Vec::new();
    let mut all = String::new();
    loop {
        let mut line = String::new();
        let has_ended = stderr.read_line(&mut line).unwrap() == 0;
        all.push_str(&line);
        assert!(!has_ended, "the node has ended: {all}");
        if line.contains("NS-1002") {
            let address = line.split("address=").nth(1).unwrap();
            addresses.push(address.split(' ').next().unwrap().to_owned());
        }
        if line.contains("NS-1003") {
            break;
        }
    }
    let log = Arc::new(Mutex::new(all));
    let appended = Arc::clone(&log);
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        while stderr.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            appended.lock().unwrap().push_str(&std::mem::take(&mut line));
        }
    });
    Node { child, addresses, log, reader: Some(reader) }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(within(HANG_TIMEOUT, holds), "timed out: {what}");
}

/// Waits until a condition holds. False: it does not within this time.
pub(crate) fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// An IP address of loopback that only this call has. A port that is free at it stays free: the
/// connections of other tests begin at 127.0.0.1.
pub(crate) fn own_ip() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, CALLS.fetch_add(1, Ordering::Relaxed))
}

/// Ports that are free at such an address.
pub(crate) fn free_ports(ip: Ipv4Addr, count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind((ip, 0)).unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// Sets a flag when it is dropped. Threads of a scope that go on until it is set end as well when
/// the test fails, and the scope with them.
pub(crate) struct SetOnDrop<'f>(pub(crate) &'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Whether each thread of a process is stopped. `kill -STOP` returns before that: one thread takes
/// the signal and then stops the others, which go on until it has run.
pub(crate) fn is_stopped(id: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap()).all(
        |stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T')),
    )
}

/// Runs a command that must fail with status 1. Returns its standard error.
pub(crate) fn rejected(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    stderr
}

impl Node {
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the node has ended, and its log is complete.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status
    }

    /// The first address over TCP.
    pub(crate) fn tcp(&self) -> Client<TcpStream> {
        Client::tcp(&self.addresses[0])
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A RESP client.
pub(crate) struct Client<S>(BufReader<S>);

impl Client<TcpStream> {
    pub(crate) fn tcp(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }
}

impl Client<UnixStream> {
    pub(crate) fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    /// Sends a request. An error means that the connection was closed.
    pub(crate) fn send(&mut self, words: &[&[u8]]) -> std::io::Result<()> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)
    }

    /// The next reply: a line, or the bytes of a bulk string.
    pub(crate) fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\r\n") {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        match line.first() {
            Some(b'$') if line != b"$-1" => {
                let length: usize = std::str::from_utf8(&line[1..]).unwrap().parse().unwrap();
                let mut bulk = vec![0; length + 2];
                self.0.read_exact(&mut bulk)?;
                bulk.truncate(length);
                Ok(bulk)
            }
            _ => Ok(line),
        }
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.send(&words).unwrap();
        String::from_utf8(self.receive().unwrap()).unwrap()
    }
}

/// Status line and body of the response to `GET PATH`.
pub(crate) fn http(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// A folder in memory if possible: the tests do not measure a disk.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        let shared = Path::new("/dev/shm");
        let folder =
            if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        Self(folder.unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
