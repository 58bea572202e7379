//! Back-ends of the tests: a region in its own folder, or a `redis-server` that the test starts and
//! kills.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use nearstate_sdl::{RedisStorage, SyncStorage, open};

/// Timeout of the start of a server. It only ends a test that hangs: a server that exits is noticed
/// at once.
const START_MAX: Duration = Duration::from_secs(120);

/// An empty back-end for one test.
pub(crate) struct Place {
    url: String,
    _server: Option<Server>,
    _folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn region() -> Self {
        let folder = folder();
        let path = folder.path().join("region");
        let url = format!("region:{}?create=1&max=128MiB", path.display());
        Self { url, _server: None, _folder: folder }
    }

    pub(crate) fn redis_tcp() -> Self {
        let folder = folder();
        let server = Server::start(folder.path(), &[]);
        Self { url: server.tcp(), _server: Some(server), _folder: folder }
    }

    pub(crate) fn redis_unix() -> Self {
        let folder = folder();
        let server = Server::start(folder.path(), &[]);
        Self { url: server.unix(), _server: Some(server), _folder: folder }
    }

    pub(crate) fn open(&self) -> Box<dyn SyncStorage> {
        open(&self.url).unwrap_or_else(|error| panic!("{}: {error}", self.url))
    }
}

/// A folder in memory, if there is one.
pub(crate) fn folder() -> tempfile::TempDir {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::tempdir_in(base).unwrap()
}

/// A running `redis-server` on loopback and on a Unix socket, without persistence.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    socket: PathBuf,
}

/// An IP address of loopback that only this call has. A port that is free at it stays free: the
/// connections of other tests begin at 127.0.0.1.
fn own_ip() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, CALLS.fetch_add(1, Ordering::Relaxed))
}

impl Server {
    /// Starts a server on a free port and waits until it replies.
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Self {
        loop {
            let address = TcpListener::bind((own_ip(), 0)).unwrap().local_addr().unwrap();
            // If another process takes the port first, the server exits, and the next port is used.
            if let Some(server) = Self::start_at(address, folder, more) {
                return server;
            }
        }
    }

    /// Starts a server at this address. `None`: it exited.
    pub(crate) fn start_at(address: SocketAddr, folder: &Path, more: &[&str]) -> Option<Self> {
        let socket = folder.join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--bind", &address.ip().to_string()])
            .args(["--port", &address.port().to_string(), "--unixsocket"])
            .arg(&socket)
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir"])
            .arg(folder)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("redis-server: {error}: install it (apt-get install redis-server)")
            });
        let mut server = Self { child, address, socket };
        let mut sdl = RedisStorage::open(&server.unix()).unwrap();
        let start = std::time::Instant::now();
        loop {
            if sdl.wait_ready("start", Duration::from_millis(100)).map_err(|error| error.kind)
                != Err(nearstate_sdl::ErrorKind::RejectedBySdl)
            {
                return Some(server);
            }
            if server.child.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(start.elapsed() < START_MAX, "redis-server neither replies nor exits");
        }
    }

    pub(crate) fn tcp(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn unix(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
