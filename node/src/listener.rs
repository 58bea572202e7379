//! Listening sockets: one TCP socket per core, and Unix sockets whose connections are distributed
//! over the cores. From the bind to the task of the connection.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::check_socket_path;
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::connection::{serve, serve_local};
use crate::endpoint_context::EndpointContext;
use crate::executor::{InboxSender, TaskClass, sleep, spawn, yield_if_due};
use crate::local_stream::{LocalStream, RingCount};
use crate::protocol::{CloseReason, ForcedClose, LimitExceeded, PeerAddress, PeerIdentity};
use crate::tls::{Tls, TlsClient};

/// Pause after an accept that failed because too many files are open. Closing files takes time, and
/// the kernel keeps the client in its queue.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Where an endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP address. Port 0: the kernel chooses a free port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix {
        /// The path of the socket. A socket that a dead process left there is replaced.
        path: PathBuf,
        /// The file mode: 0o600 admits the same user, 0o660 its group as well.
        mode: u32,
        /// Also replaces a socket, and uses a directory or a symbolic link, that belongs to another
        /// user than this one and root.
        any_owner: bool,
    },
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Listening sockets that no core owns yet.
#[derive(Debug)]
pub(crate) enum BoundSocket {
    /// One per core.
    Tcp(Vec<std::net::TcpListener>),
    Unix(std::os::unix::net::UnixListener),
}

/// Connections and rings of the node, over all cores.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStats {
    open: AtomicUsize,
    last_peer: AtomicU64,
    rings: RingCount,
}

/// An endpoint on one core.
#[derive(Debug)]
pub(crate) struct CoreListener {
    /// Its index in the configuration.
    pub(crate) endpoint: usize,
    pub(crate) context: Rc<EndpointContext>,
    pub(crate) stats: Arc<ConnectionStats>,
    pub(crate) name: &'static str,
    pub(crate) tls: Option<Tls>,
}

/// A connection that another core accepted.
#[derive(Debug)]
pub(crate) struct MigratedConnection {
    pub(crate) endpoint: usize,
    pub(crate) stream: std::os::unix::net::UnixStream,
}

fn system_error(what: &str, help: &str, error: &io::Error) -> Error {
    // The text of an error of the system follows.
    match error.raw_os_error() {
        Some(errno) => Error::System { detail: format!("{what} ({help})"), errno },
        None => Error::System { detail: format!("{what} ({error}); {help}"), errno: 0 },
    }
}

/// Binds a TCP address once per core. Returns the sockets and the address with its port.
pub(crate) fn bind_tcp(
    address: SocketAddr,
    cores: usize,
    backlog: i32,
) -> Result<(BoundSocket, SocketAddr)> {
    let local = probe_tcp(address)?;
    let failed = |error: io::Error| not_bound(address, &error);
    let mut listeners = Vec::new();
    for _ in 0..cores {
        let socket = tcp_socket(local, true).map_err(failed)?;
        socket.listen(backlog).map_err(failed)?;
        listeners.push(socket.into());
    }
    Ok((BoundSocket::Tcp(listeners), local))
}

/// Checks that a node could listen on an address now, and leaves it free.
///
/// Complexity: four system calls.
///
/// # Errors
/// `System`: another process listens there, or it is no address of this host.
pub fn check_tcp_address(address: SocketAddr) -> Result<()> {
    probe_tcp(address).map(drop)
}

/// With `SO_REUSEPORT` a second node would silently receive a part of the connections. So the first
/// bind goes without it, and fails if another process listens there. Returns the address with the
/// port that the kernel chose for port 0.
fn probe_tcp(address: SocketAddr) -> Result<SocketAddr> {
    let failed = |error: io::Error| not_bound(address, &error);
    let probe = tcp_socket(address, false).map_err(failed)?;
    Ok(probe.local_addr().map_err(failed)?.as_socket().unwrap_or(address))
}

fn not_bound(address: SocketAddr, error: &io::Error) -> Error {
    let help = "another server may use it, or it may not be an address of this host";
    system_error(&format!("cannot listen on {address}"), help, error)
}

fn tcp_socket(address: SocketAddr, is_shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    // A restart must not wait until old connections have timed out.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    if !is_shared {
        // Two sockets with SO_REUSEADDR may be bound to one port as long as neither listens.
        socket.listen(1)?;
    }
    Ok(socket)
}

/// The file of a Unix socket. Removed when the node stops.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Inode number and change time: inode numbers are reused.
    inode: (u64, i64, i64),
}

fn inode(path: &Path) -> io::Result<(u64, i64, i64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.ino(), found.ctime(), found.ctime_nsec()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have replaced the file.
        if inode(&self.path).is_ok_and(|found| found == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds a Unix socket.
pub(crate) fn bind_unix(
    path: &Path,
    mode: u32,
    backlog: i32,
    any_owner: bool,
) -> Result<(BoundSocket, SocketFile)> {
    // The owner of the directory could replace the socket and read every request.
    check_socket_path(path, any_owner)?;
    let shown = path.display();
    let failed = |e: io::Error| {
        system_error(
            &format!("cannot listen on {shown}"),
            "check that this user may write to its folder",
            &e,
        )
    };
    let address = SockAddr::unix(path).map_err(|e| Error::BadArgument {
        detail: format!(
            "{shown} is not a valid path for a Unix socket ({e}); give at most 107 bytes"
        ),
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    // Two nodes that start at the same time must not both take the other's socket for a stale one.
    // The lock belongs to the directory and ends with its descriptor.
    match folder.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let detail = format!("another node is starting on {shown}; try again");
            return Err(Error::BadArgument { detail });
        }
        Err(TryLockError::Error(e)) => return Err(failed(e)),
    }
    remove_stale(path, &address)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(failed)?;
    socket.bind(&address).map_err(failed)?;
    // No client can connect before `listen`, so the mode is in force from the first connection.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    let file = SocketFile { path: path.to_owned(), inode: inode(path).map_err(failed)? };
    socket.listen(backlog).map_err(failed)?;
    Ok((BoundSocket::Unix(socket.into()), file))
}

/// Removes the socket of a dead process. Refuses to remove anything else.
fn remove_stale(path: &Path, address: &SockAddr) -> Result<()> {
    let shown = path.display();
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let detail = format!("{shown} exists and is no socket; choose another path");
        return Err(Error::BadArgument { detail });
    }
    let asked = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)
        .and_then(|socket| socket.connect(address));
    match asked {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| {
                system_error(&format!("cannot remove the stale socket {shown}"), "remove it", &e)
            })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or refused only because the queue is full.
        _ => Err(Error::BadArgument {
            detail: format!("a living process serves {shown}; stop it, or choose another path"),
        }),
    }
}

/// Accepts from a core's own TCP socket.
pub(crate) async fn accept_tcp(listener: Rc<CoreListener>, socket: TcpListener) {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => listener.start_tcp(stream),
            Err(e) => listener.accept_failed(&e).await,
        }
        yield_if_due().await;
    }
}

/// Accepts from a Unix socket and distributes the connections over the cores, round-robin.
pub(crate) async fn accept_unix(
    listener: Rc<CoreListener>,
    socket: UnixListener,
    cores: Vec<InboxSender<MigratedConnection>>,
) {
    let own = listener.context.core().index();
    let mut next_cores = (0..cores.len()).cycle();
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                let next = next_cores.next().unwrap_or(own);
                match cores.get(next) {
                    Some(core) if next != own => listener.migrate(stream, core),
                    _ => listener.start_unix(stream),
                }
            }
            Err(e) => listener.accept_failed(&e).await,
        }
        yield_if_due().await;
    }
}

impl CoreListener {
    async fn accept_failed(&self, error: &io::Error) {
        // The client has closed the connection already. That is no error of the node.
        if error.kind() != io::ErrorKind::ConnectionAborted {
            self.context.core().metrics().accept_errors.add(1);
            sleep(ACCEPT_AGAIN).await;
        }
    }

    fn migrate(&self, stream: UnixStream, core: &InboxSender<MigratedConnection>) {
        let endpoint = self.endpoint;
        let migrated =
            stream.into_std().map(|stream| core.send(MigratedConnection { endpoint, stream }));
        if !matches!(migrated, Ok(Ok(()))) {
            // The queue of the core is full.
            self.context.core().metrics().accept_errors.add(1);
        }
    }

    /// Serves a connection that another core accepted.
    pub(crate) fn serve_migrated(self: &Rc<Self>, stream: std::os::unix::net::UnixStream) {
        match UnixStream::from_std(stream) {
            Ok(stream) => self.start_unix(stream),
            Err(_) => self.context.core().metrics().accept_errors.add(1),
        }
    }

    fn start_unix(self: &Rc<Self>, stream: UnixStream) {
        // A client that has closed its socket has no credentials.
        let Ok(peer) = stream.peer_cred() else { return };
        let address = PeerAddress::Unix { pid: peer.pid(), uid: peer.uid(), gid: peer.gid() };
        match self.acquire_permit() {
            Ok(permit) => self.spawn_local(stream, address, permit),
            Err(refusal) => {
                if let Ok(mut stream) = stream.into_std() {
                    let _ = io::Write::write(&mut stream, &refusal);
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
        }
    }

    fn start_tcp(self: &Rc<Self>, stream: TcpStream) {
        let limits = self.context.core().limits();
        let socket = SockRef::from(&stream);
        // The connection batches its writes, so the kernel has nothing to wait for.
        let _ = socket.set_tcp_nodelay(true);
        let keepalive = TcpKeepalive::new().with_time(limits.tcp_keepalive);
        let _ = socket.set_tcp_keepalive(&keepalive);
        let (Ok(remote), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else { return };
        match self.acquire_permit() {
            Ok(permit) => {
                let address = PeerAddress::Tcp { remote, local };
                match &self.tls {
                    Some(tls) => self.spawn_tls(tls.clone(), stream, address, permit),
                    None => self.spawn_plain(stream, address, permit),
                }
            }
            // An error message would need a TLS handshake.
            Err(_) if self.tls.is_some() => {}
            Err(refusal) => {
                if let Ok(mut stream) = stream.into_std() {
                    let _ = io::Write::write(&mut stream, &refusal);
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
        }
    }

    /// Counts the connection, or returns the error reply if the limit is reached.
    fn acquire_permit(self: &Rc<Self>) -> std::result::Result<ConnectionPermit, Vec<u8>> {
        let core = self.context.core();
        let max = core.limits().connections_max_now();
        core.metrics().accepted.add(1);
        let permit = ConnectionPermit {
            id: self.stats.last_peer.fetch_add(1, Ordering::Relaxed) + 1,
            listener: Rc::clone(self),
        };
        if self.stats.open.fetch_add(1, Ordering::Relaxed) < max {
            return Ok(permit);
        }
        core.metrics().refused.add(1);
        Err(self.context.limit_error(&LimitExceeded::TooManyConnections { max }))
    }

    fn spawn_local(&self, stream: UnixStream, address: PeerAddress, permit: ConnectionPermit) {
        let id = permit.id;
        let context = Rc::clone(&self.context);
        let stream = LocalStream::new(stream, self.stats.rings.clone());
        let task = spawn(TaskClass::Request, self.name, async move {
            let peer = PeerIdentity { id, address, certificate: None };
            serve_local(context, stream, peer).await;
            drop(permit);
        });
        self.context.connections().insert(id, task);
    }

    fn spawn_plain<S>(&self, stream: S, address: PeerAddress, permit: ConnectionPermit)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
    {
        let id = permit.id;
        let context = Rc::clone(&self.context);
        let task = spawn(TaskClass::Request, self.name, async move {
            let peer = PeerIdentity { id, address, certificate: None };
            serve(context, stream, peer).await;
            drop(permit);
        });
        self.context.connections().insert(id, task);
    }

    /// As `spawn_plain`, after a TLS handshake.
    fn spawn_tls(
        &self,
        tls: Tls,
        stream: TcpStream,
        address: PeerAddress,
        permit: ConnectionPermit,
    ) {
        let id = permit.id;
        let context = Rc::clone(&self.context);
        let task = spawn(TaskClass::Request, self.name, async move {
            match tls.handshake(stream, &context).await {
                Some(TlsClient { stream, name: certificate }) => {
                    serve(context, stream, PeerIdentity { id, address, certificate }).await;
                }
                None if context.is_draining() => {}
                None => {
                    context.core().metrics().tls_failures.add(1);
                    context.report_forced_close(&ForcedClose {
                        address,
                        reason: CloseReason::Handshake,
                    });
                }
            }
            drop(permit);
        });
        self.context.connections().insert(id, task);
    }
}

/// Counts a connection as open until it is dropped.
struct ConnectionPermit {
    id: u64,
    listener: Rc<CoreListener>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.listener.stats.open.fetch_sub(1, Ordering::Relaxed);
        self.listener.context.core().metrics().closed.add(1);
        self.listener.context.connections().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.sock");
        let (bound, file) = bind_unix(&path, 0o640, 8, false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let living = bind_unix(&path, 0o600, 8, false).unwrap_err().to_string();
        assert!(living.contains("living process"), "{living}");
        drop(bound); // as if the process had been killed: the file stays
        let (again, new_file) = bind_unix(&path, 0o600, 8, false).unwrap();
        drop(file);
        assert!(path.exists(), "the first node does not remove the second one's socket");
        drop((again, new_file));
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        let no_socket = bind_unix(&path, 0o600, 8, false).unwrap_err().to_string();
        assert!(no_socket.contains("no socket"), "{no_socket}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_is_not_bound_where_another_user_could_replace_it() {
        use std::os::unix::fs::{chown, lchown, symlink};
        let folder = tempfile::tempdir().unwrap();
        if fs::metadata(folder.path()).unwrap().uid() != 0 {
            io::Write::write_all(&mut io::stderr(), b"skipped: only root can give files away\n")
                .unwrap();
            return;
        }
        let owned = folder.path().join("owned");
        let path = owned.join("node.sock");
        fs::create_dir(&owned).unwrap();
        chown(&owned, Some(65_534), None).unwrap();
        let refused = |path: &Path, what: &str| {
            let error = bind_unix(path, 0o600, 8, false).unwrap_err().to_string();
            assert!(error.contains("65534") && error.contains(what), "{error}");
        };
        refused(&path, "the directory");
        drop(bind_unix(&path, 0o600, 8, true).unwrap());
        chown(&owned, Some(0), None).unwrap();
        // A stale socket that another user left.
        let (bound, file) = bind_unix(&path, 0o600, 8, false).unwrap();
        drop(bound);
        std::mem::forget(file);
        chown(&path, Some(65_534), None).unwrap();
        refused(&path, "the socket");
        drop(bind_unix(&path, 0o600, 8, true).unwrap());
        let link = folder.path().join("link");
        symlink(&owned, &link).unwrap();
        lchown(&link, Some(65_534), None).unwrap();
        refused(&link.join("node.sock"), "the symbolic link");
    }

    #[test]
    fn a_path_that_is_too_long_and_a_missing_folder_are_reported() {
        let long = "x".repeat(200);
        let error = bind_unix(Path::new(&long), 0o600, 8, false).unwrap_err().to_string();
        assert!(error.contains("107 bytes"), "{error}");
        let error =
            bind_unix(Path::new("/nowhere/at/all"), 0o600, 8, false).unwrap_err().to_string();
        assert!(error.contains("folder"), "{error}");
    }

    #[test]
    fn a_second_node_does_not_share_the_port_of_the_first() {
        let (_bound, address) = bind_tcp("127.0.0.1:0".parse().unwrap(), 2, 8).unwrap();
        assert_ne!(address.port(), 0);
        let error = bind_tcp(address, 2, 8).unwrap_err().to_string();
        assert!(error.contains("another server"), "{error}");
    }
}
