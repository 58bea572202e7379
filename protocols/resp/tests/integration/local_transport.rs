//! Clients of the local transport: the region, a ring, the required permissions, and the effects of
//! both when a side is killed. Nodes that are killed are this program, started once more.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test fails by panicking; clients are threads and processes, waits are bounded"
)]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearstate_local_transport::{LocalRing, Response, request_region, request_ring};
use nearstate_node::{ConnectionLimits, Endpoint, ListenAddress, Node, NodeConfig};
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{RespServer, RespSettings};
use nearstate_resp::table::TABLE;
use nearstate_sdl::{ErrorKind, LocalAccess, LocalStorage, SyncStorage as _};
use nearstate_store::{CreateOptions, Region, check};

/// Timeout of waits. It only ends a test that hangs.
const WAIT: Duration = Duration::from_secs(60);

fn start(folder: &Path, users: &str, limits: ConnectionLimits) -> Node {
    let options = CreateOptions { bytes_max: 128 << 20, ..CreateOptions::default() };
    let region = Region::attach_or_create(&folder.join("region"), &options).unwrap();
    let users = Users::parse(users, &TABLE).unwrap();
    let service = RespProtocol::new(Arc::new(RespServer::new(RespSettings::new(users))));
    let address =
        ListenAddress::Unix { path: folder.join("node.sock"), mode: 0o600, any_owner: false };
    let tcp = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let endpoint = |address| Endpoint { protocol: "resp".to_owned(), address, tls: None };
    let config = NodeConfig {
        cores: 2,
        is_pinned: false,
        endpoints: vec![endpoint(address), endpoint(tcp)],
        limits,
        ..NodeConfig::default()
    };
    Node::start(&config, &region, &[Arc::new(service)]).unwrap()
}

fn folder() -> tempfile::TempDir {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::tempdir_in(base).unwrap()
}

fn socket(folder: &Path) -> UnixStream {
    let socket = UnixStream::connect(folder.join("node.sock")).unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    socket
}

fn open_local(folder: &Path, options: &str) -> LocalStorage {
    let node = format!("{}{options}", folder.join("node.sock").display());
    LocalStorage::open(&node).unwrap()
}

fn ring(folder: &Path) -> LocalRing {
    let socket = socket(folder);
    match request_ring(&socket).unwrap() {
        Response::Granted(memory) => LocalRing::new(memory, socket, WAIT).unwrap(),
        Response::Refused(text) => panic!("{text}"),
    }
}

fn expect_reply(ring: &mut LocalRing, wanted: &[u8]) {
    let mut answer = vec![0; wanted.len()];
    ring.read_exact(&mut answer).unwrap();
    let (seen, wanted) = (answer.escape_ascii().to_string(), wanted.escape_ascii().to_string());
    assert_eq!(seen, wanted);
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until a condition holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn only_users_with_all_permissions_receive_the_region() {
    let folder = folder();
    let users = "user all on >all-word ~* &* +@all\n\
                 user half on >half-word ~{ns},* &* +@all\n\
                 user none on >none-word ~* &* +@all -local";
    let node = start(folder.path(), users, ConnectionLimits::default());
    let mut all = open_local(folder.path(), "?user=all&password=all-word");
    assert_eq!(all.access(), Some(LocalAccess::Region));
    let mut half = open_local(folder.path(), "?user=half&password=half-word");
    assert_eq!(half.access(), Some(LocalAccess::Ring));
    all.set("ns", &[(b"k", b"direct")]).unwrap();
    assert_eq!(half.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"direct");
    half.set("ns", &[(b"k", b"asked")]).unwrap();
    assert_eq!(all.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"asked");
    let error = half.set("other", &[(b"k", b"v")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "rules hold in the ring: {error}");

    let refused = |options: &str| {
        let node = format!("{}{options}", folder.path().join("node.sock").display());
        LocalStorage::open(&node).unwrap_err()
    };
    let error = refused("?user=half&password=half-word&way=region");
    assert!(error.to_string().contains("NOPERM LOCAL REGION requires"), "{error}");
    let error = refused("?user=none&password=none-word");
    assert!(error.to_string().contains("NOPERM"), "{error}");
    for options in ["", "?user=all&password=wrong"] {
        assert_eq!(refused(options).kind, ErrorKind::RejectedByBackend);
    }
    drop(node);
}

#[test]
fn a_ring_carries_every_kind_of_request_and_reply() {
    let folder = folder();
    let _node = start(folder.path(), "", ConnectionLimits::default());
    let mut one = ring(folder.path());
    let mut other = ring(folder.path());
    one.write_all(b"HELLO 3\r\n*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n").unwrap();
    let mut greeting = Vec::new();
    while !greeting.ends_with(b"$1\r\nc\r\n:1\r\n") {
        let mut byte = [0];
        one.read_exact(&mut byte).unwrap();
        greeting.push(byte[0]);
    }
    // The message arrives whether the subscriber sleeps or busy-polls.
    other.write_all(b"PUBLISH c hello\r\n").unwrap();
    expect_reply(&mut other, b":1\r\n");
    expect_reply(&mut one, b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n");
    // Larger than the ring, in both directions, and many in flight.
    let large = vec![b'x'; 5_000_000];
    let set = [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000000\r\n"[..], &large, b"\r\n"].concat();
    other.write_all(&set).unwrap();
    expect_reply(&mut other, b"+OK\r\n");
    other.write_all(b"GET k\r\n").unwrap();
    let mut answer = vec![0; 10 + large.len() + 2];
    other.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"$5000000\r\nxxx"));
    let many = "PING\r\n".repeat(10_000);
    other.write_all(many.as_bytes()).unwrap();
    expect_reply(&mut other, "+PONG\r\n".repeat(10_000).as_bytes());
    other.write_all(b"MULTI\r\nLOCAL RING\r\nEXEC\r\n").unwrap();
    expect_reply(
        &mut other,
        b"+OK\r\n+QUEUED\r\n*1\r\n-ERR LOCAL is not allowed between MULTI and EXEC\r\n",
    );
    other.write_all(b"QUIT\r\n").unwrap();
    let mut last = String::new();
    other.read_to_string(&mut last).unwrap();
    assert_eq!(last, "+OK\r\n", "the reply, then the end of the stream");
}

#[test]
fn a_rejected_local_request_is_an_error_and_the_connection_continues() {
    let folder = folder();
    let node = start(folder.path(), "", ConnectionLimits::default());
    let reply = |mut stream: Box<dyn ReadWrite>, request: &[u8]| {
        stream.write_all(&[request, b"\r\nQUIT\r\n"].concat()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\r\n+OK\r\n"), "{text}");
        text
    };
    let ListenAddress::Tcp(address) = node.addresses()[1] else {
        panic!("the second address is TCP")
    };
    for what in ["REGION", "RING"] {
        let tcp = std::net::TcpStream::connect(address).unwrap();
        // A request in the same packet is rejected first.
        let text = reply(Box::new(tcp), format!("LOCAL {what}").as_bytes());
        assert!(text.contains("send nothing after this request"), "{text}");
        let mut tcp = std::net::TcpStream::connect(address).unwrap();
        tcp.write_all(format!("LOCAL {what}\r\n").as_bytes()).unwrap();
        let mut answer = [0; 200];
        let count = tcp.read(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(text.contains("connection to a Unix socket"), "{text}");
    }
    let text = reply(Box::new(socket(folder.path())), b"LOCAL FAR");
    assert!(text.contains("LOCAL supports: region, ring"), "{text}");
    // Each connection can receive the region once.
    let unix = socket(folder.path());
    assert!(matches!(request_region(&unix).unwrap(), Response::Granted(_)));
    let Response::Refused(text) = request_region(&unix).unwrap() else {
        panic!("the region was granted twice")
    };
    assert!(text.contains("has received descriptors"), "{text}");
    assert!(matches!(request_ring(&unix).unwrap(), Response::Granted(_)));
}

trait ReadWrite: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> ReadWrite for T {}

#[test]
fn rings_are_limited_and_release_their_descriptors() {
    let folder = folder();
    let node = start(folder.path(), "", ConnectionLimits::default());
    // A thousand clients, one after another.
    open_local(folder.path(), "");
    let before = open_files();
    for round in 0..1000 {
        let options = if round % 2 == 0 { "?way=ring" } else { "?way=region" };
        let mut storage = open_local(folder.path(), options);
        assert!(storage.is_ready("ns").unwrap());
    }
    until("all connections are closed", || node.stats().total().0.open() == 0);
    until("all descriptors are closed", || open_files() < before + 20);
    // As many concurrent rings as the limit allows. The next client continues over its socket.
    let mut rings: Vec<LocalRing> = (0..1024).map(|_| ring(folder.path())).collect();
    let mut more = socket(folder.path());
    let Response::Refused(text) = request_ring(&more).unwrap() else { panic!("1025 rings") };
    assert!(text.contains("1024 rings"), "{text}");
    more.write_all(b"PING\r\n").unwrap();
    more.read_exact(&mut [0; 7]).unwrap();
    for ring in &mut rings {
        ring.write_all(b"PING\r\n").unwrap();
        expect_reply(ring, b"+PONG\r\n");
    }
    rings.clear();
    until("a ring is available", || matches!(request_ring(&more).unwrap(), Response::Granted(_)));
}

#[test]
fn the_limit_of_rings_is_configurable() {
    let folder = folder();
    let limits = ConnectionLimits { rings_max: 1, ..ConnectionLimits::default() };
    let _node = start(folder.path(), "", limits);
    let mut one = ring(folder.path());
    let more = socket(folder.path());
    let Response::Refused(text) = request_ring(&more).unwrap() else { panic!("two rings") };
    assert!(text.contains("1 rings") && text.contains("limits.rings_max"), "{text}");
    one.write_all(b"PING\r\n").unwrap();
    expect_reply(&mut one, b"+PONG\r\n");
}

#[test]
fn garbage_in_a_ring_closes_only_its_connection() {
    let folder = folder();
    let node = start(folder.path(), "", ConnectionLimits::default());
    let mut good = ring(folder.path());
    let mut rng = 0x2545_f491_4f6c_dd1d_u64;
    let mut roll = move || {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng
    };
    for round in 0..300_u64 {
        let unix = socket(folder.path());
        let Response::Granted(memory) = request_ring(&unix).unwrap() else { panic!("no ring") };
        let memory = File::from(memory);
        for _ in 0..20 {
            let at = match roll() % 3 {
                0 => 4096 + roll() % (128 << 10) / 8 * 8,
                _ => [0x100, 0x180, 0x200, 0x280, 0x300, 0x380][(roll() % 6) as usize],
            };
            let word = [roll(), roll() % 200_000, 0, u64::MAX][(roll() % 4) as usize];
            memory.write_all_at(&word.to_le_bytes(), at).unwrap();
            (0..roll() % 3).for_each(|_| nearstate_local_transport::ring_doorbell(unix.as_fd()));
        }
        if round % 50 == 0 {
            good.write_all(b"PING\r\n").unwrap();
            expect_reply(&mut good, b"+PONG\r\n");
        }
    }
    good.write_all(b"PING\r\n").unwrap();
    expect_reply(&mut good, b"+PONG\r\n");
    until("the faulty connections are closed", || node.stats().total().0.open() == 1);
    let faults = node.stats().total().0.ring_faults;
    assert!((1..=300).contains(&faults), "each faulty ring is counted once: {faults}");
}

/// A timeout that no test reaches.
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_client_that_never_reads_or_never_completes_a_request_is_closed() {
    let folder = folder();
    let limits = ConnectionLimits {
        reply_timeout: Duration::from_millis(200),
        request_timeout: LONG,
        ..ConnectionLimits::default()
    };
    let node = start(folder.path(), "", limits);
    let mut setter = ring(folder.path());
    setter.write_all(&[&b"SET k "[..], &[b'x'; 1000], b"\r\n"].concat()).unwrap();
    expect_reply(&mut setter, b"+OK\r\n");
    // More replies than the ring holds, and more requests than the node then executes.
    let mut silent = ring(folder.path());
    let sending = std::thread::spawn(move || {
        let requests = b"GET k\r\n".repeat(1000);
        while silent.write_all(&requests).is_ok() {}
        silent
    });
    // Other clients are served at the same time.
    for _ in 0..1000 {
        setter.write_all(b"PING\r\n").unwrap();
        expect_reply(&mut setter, b"+PONG\r\n");
    }
    let mut silent = sending.join().unwrap();
    until("the slow reader is counted", || node.stats().total().0.slow_clients == 1);
    let mut replies = Vec::new();
    silent.read_to_end(&mut replies).unwrap();
    assert!(replies.len() > 60_000, "sent replies can be read: {}", replies.len());
    drop((setter, silent, node));
    // An incomplete request of a client that sends nothing more.
    let folder = self::folder();
    let limits = ConnectionLimits {
        reply_timeout: LONG,
        request_timeout: Duration::from_millis(200),
        ..ConnectionLimits::default()
    };
    let node = start(folder.path(), "", limits);
    let mut half = ring(folder.path());
    half.write_all(b"*2\r\n$3\r\nGET\r\n$100\r\nhalf").unwrap();
    assert_eq!(half.read(&mut [0; 10]).unwrap(), 0, "closed");
    assert_eq!(node.stats().total().0.request_timeouts, 1);
    // Idle rings use no processor time: their cores sleep.
    let _idle: Vec<LocalRing> = (0..50).map(|_| ring(folder.path())).collect();
    let rounds = || node.stats().total().1.rounds;
    until("the cores are idle", || {
        let before = rounds();
        std::thread::sleep(Duration::from_millis(50));
        rounds() - before < 20
    });
}

#[test]
fn a_shutdown_ends_rings_and_a_storage_finds_the_next_node() {
    let folder = folder();
    let node = start(folder.path(), "", ConnectionLimits::default());
    let mut over_ring = open_local(folder.path(), "?way=ring");
    let mut mapped = open_local(folder.path(), "");
    over_ring.set("ns", &[(b"k", b"1")]).unwrap();
    drop(node);
    let error = over_ring.set("ns", &[(b"k", b"lost?")]).unwrap_err();
    assert!(!error.kind.is_unaltered(), "{error}");
    assert!(!over_ring.is_ready("ns").unwrap());
    assert_eq!(over_ring.access(), None);
    assert_eq!(mapped.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"1", "without a node");
    mapped.set("ns", &[(b"k", b"2")]).unwrap();
    let _node = start(folder.path(), "", ConnectionLimits::default());
    over_ring.wait_ready("ns", WAIT).unwrap();
    assert_eq!(over_ring.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"2");
    mapped.set("ns", &[(b"k", b"3")]).unwrap();
    assert_eq!(over_ring.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"3");
}

/// Calls a function until it returns a value.
fn until_some<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(start.elapsed() < WAIT, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_storage_maps_the_region_that_the_node_recreated() {
    let folder = folder();
    let region = folder.path().join("region");
    let node = start(folder.path(), "", ConnectionLimits::default());
    let mut mapped = open_local(folder.path(), "");
    mapped.set("ns", &[(b"k", b"old")]).unwrap();
    // The node and its client continue to use the unlinked file.
    fs::remove_file(&region).unwrap();
    assert_eq!(mapped.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"old");
    drop(node);
    let error = until_some("the removed region is noticed", || mapped.get("ns", &[b"k"]).err());
    assert_eq!(error.kind, ErrorKind::NotConnected, "{error}");
    assert!(error.to_string().contains("was removed"), "{error}");
    assert_eq!(mapped.access(), None);
    assert_eq!(mapped.set("ns", &[(b"k", b"lost")]).unwrap_err().kind, ErrorKind::NotConnected);
    let node = start(folder.path(), "", ConnectionLimits::default());
    mapped.wait_ready("ns", WAIT).unwrap();
    assert_eq!(mapped.access(), Some(LocalAccess::Region));
    assert!(mapped.get("ns", &[b"k"]).unwrap().is_empty(), "a new region");
    mapped.set("ns", &[(b"k", b"new")]).unwrap();
    let mut other = open_local(folder.path(), "?way=ring");
    assert_eq!(other.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"new", "both use the same region");

    // If the next node is ready before the client asks, the client changes regions without an
    // error.
    fs::remove_file(&region).unwrap();
    drop(node);
    let node = start(folder.path(), "", ConnectionLimits::default());
    until_some("the new region is used", || {
        mapped.get("ns", &[b"k"]).unwrap().is_empty().then_some(())
    });
    mapped.set("ns", &[(b"k", b"newer")]).unwrap();
    assert_eq!(other.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"newer");
    drop(node);
}

#[test]
fn a_storage_reconnects_to_a_restarted_node_without_waiting() {
    let folder = folder();
    let node = start(folder.path(), "", ConnectionLimits::default());
    let mut mapped = open_local(folder.path(), "");
    let mut count = 0_u64;
    let mut add = |mapped: &mut LocalStorage| {
        count += 1;
        mapped.set("ns", &[(b"k", &count.to_le_bytes())]).unwrap();
        assert_eq!(mapped.get("ns", &[b"k"]).unwrap()[&b"k"[..]], count.to_le_bytes());
    };
    add(&mut mapped);
    drop(node);
    // Long enough for several failed attempts to reach the node.
    let down_since = Instant::now();
    while down_since.elapsed() < Duration::from_millis(300) {
        add(&mut mapped);
    }
    let node = start(folder.path(), "", ConnectionLimits::default());
    until_some("the client connects to the new node", || {
        add(&mut mapped);
        (node.stats().total().0.open() == 1).then_some(())
    });
    assert_eq!(mapped.access(), Some(LocalAccess::Region));
    // A node that rejects the client is reported, although the region is mapped.
    drop(node);
    let _node = start(folder.path(), "user one on >word ~* &* +@all", ConnectionLimits::default());
    let error = until_some("the client is rejected", || mapped.get("ns", &[b"k"]).err());
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
}

/// This test program as a child process.
struct Process(Child);

impl Process {
    fn start(what: &str, folder: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "local_transport::child_process_entry_point", "--nocapture"])
            .env("NEARSTATE_LOCAL_PROCESS", what)
            .env("NEARSTATE_LOCAL_FOLDER", folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does nothing unless it is started as a child process. Then it runs until it is killed.
#[test]
fn child_process_entry_point() {
    let Some(what) = std::env::var_os("NEARSTATE_LOCAL_PROCESS") else { return };
    let folder = PathBuf::from(std::env::var_os("NEARSTATE_LOCAL_FOLDER").unwrap());
    if what == "node" {
        let _node = start(&folder, "", ConnectionLimits::default());
        loop {
            std::thread::park();
        }
    }
    let options = if what == "ring" { "?way=ring" } else { "?way=region" };
    let mut storage = open_local(&folder, options);
    let key = std::process::id().to_le_bytes();
    for count in 1_u64.. {
        // Some values are larger than a ring.
        let mut value = count.to_le_bytes().to_vec();
        value.resize(if count % 8 == 0 { 200_000 } else { 100 }, 7);
        if storage.set("own", &[(&key, &value)]).is_err() {
            return;
        }
        storage.get("own", &[&key]).unwrap();
    }
}

#[test]
fn clients_killed_at_random_times_leave_no_connections() {
    let folder = folder();
    let node = start(folder.path(), "", ConnectionLimits::default());
    let mut watcher = open_local(folder.path(), "?way=ring");
    let before = open_files();
    for round in 0..40_u32 {
        let what = if round % 2 == 0 { "ring" } else { "region" };
        let process = Process::start(what, folder.path());
        let key = process.0.id().to_le_bytes();
        until("the client writes", || {
            let mut probe = open_local(folder.path(), "");
            !probe.get("own", &[&key]).unwrap().is_empty()
        });
        // Each process is killed at another point of its loop.
        let moment = Instant::now();
        while moment.elapsed() < Duration::from_micros(u64::from(round * 97 % 700)) {}
        drop(process);
        let value = watcher.get("own", &[&key]).unwrap().remove(&key[..]).unwrap();
        let count = u64::from_le_bytes(value[..8].try_into().unwrap());
        let bytes = if count % 8 == 0 { 200_000 } else { 100 };
        assert_eq!(value.len(), bytes, "a value is complete or absent");
        assert!(value[8..].iter().all(|byte| *byte == 7));
    }
    until("their connections are closed", || node.stats().total().0.open() == 1);
    // Concurrent tests have files open as well.
    until("all descriptors are closed", || open_files() < before + 20);
    drop((watcher, node));
    assert!(check(&folder.path().join("region")).unwrap().is_clean());
}

#[test]
fn a_node_killed_at_random_times_loses_no_acknowledged_write() {
    let folder = folder();
    let mut node = Process::start("node", folder.path());
    let mut mapped = open_local(folder.path(), "?way=region");
    let mut over_ring = open_local(folder.path(), "?way=ring");
    let mut acknowledged = 0_u64;
    for round in 0..25_u64 {
        mapped.wait_ready("ns", WAIT).unwrap();
        over_ring.wait_ready("ns", WAIT).unwrap();
        let id = round % 2;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * 317 % 5000));
            drop(node);
        });
        let mut asked = acknowledged;
        loop {
            asked += 1;
            let value = asked.to_le_bytes();
            match over_ring.set("ns", &[(b"ring", &value)]) {
                Ok(()) => acknowledged = asked,
                Err(error) => {
                    assert!(
                        matches!(
                            error.kind,
                            ErrorKind::NotConnected | ErrorKind::OperationInterrupted
                        ),
                        "{error}"
                    );
                    break;
                }
            }
            // The mapped region needs no node.
            mapped.set("ns", &[(b"mapped", &value)]).unwrap();
        }
        killer.join().unwrap();
        let seen = mapped.get("ns", &[b"ring"]).unwrap().remove(&b"ring"[..]);
        let seen = seen.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
        assert!((acknowledged..=asked).contains(&seen), "{acknowledged} {seen} {asked}");
        acknowledged = seen;
        mapped.set("ns", &[(b"alone", &id.to_le_bytes())]).unwrap();
        node = Process::start("node", folder.path());
    }
    over_ring.wait_ready("ns", WAIT).unwrap();
    let alone = over_ring.get("ns", &[b"alone"]).unwrap();
    assert_eq!(alone[&b"alone"[..]], 0_u64.to_le_bytes());
    assert!(acknowledged > 0);
}
