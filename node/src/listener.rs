//! Where clients come in: TCP with a socket for each core, a Unix socket whose clients go round the
//! cores. From the bind to the task of the connection.

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
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::connection::{serve, serve_local};
use crate::endpoint_context::EndpointContext;
use crate::executor::{Outbox, TaskClass, sleep, spawn, yield_if_due};
use crate::local_stream::{LocalStream, RingCount};
use crate::protocol::{CloseReason, ForcedClose, LimitExceeded, Peer, PeerAddress};
use crate::tls::{Tls, TlsClient};

/// After an accept that failed because the process has too many files open: closing some takes
/// time, and the kernel keeps the client waiting.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port; port 0: one that is free.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix {
        /// Its file. One that a dead process has left is replaced.
        path: PathBuf,
        /// Who may connect, as for `chmod`: 0o600 is the same user, 0o660 its group.
        mode: u32,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Sockets that listen, before they belong to a core.
#[derive(Debug)]
pub(crate) enum BoundSocket {
    /// One for each core.
    Tcp(Vec<std::net::TcpListener>),
    Unix(std::os::unix::net::UnixListener),
}

/// What all cores count together.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStats {
    open: AtomicUsize,
    last_peer: AtomicU64,
    rings: RingCount,
}

/// An endpoint on one core.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Its number in the configuration.
    pub(crate) endpoint: usize,
    pub(crate) context: Rc<EndpointContext>,
    pub(crate) stats: Arc<ConnectionStats>,
    pub(crate) name: &'static str,
    pub(crate) tls: Option<Tls>,
}

/// A connection that another core has accepted.
#[derive(Debug)]
pub(crate) struct MigratedConnection {
    pub(crate) endpoint: usize,
    pub(crate) stream: std::os::unix::net::UnixStream,
}

fn refused(what: &str, help: &str, error: &io::Error) -> Error {
    Error::System {
        detail: format!("{what} ({error}); {help}"),
        errno: error.raw_os_error().unwrap_or(0),
    }
}

/// Binds a TCP address once for each core. Returns the address with its port.
pub(crate) fn bind_tcp(
    address: SocketAddr,
    cores: usize,
    backlog: i32,
) -> Result<(BoundSocket, SocketAddr)> {
    let help = "is another server using it, or is it not an address of this host?";
    let fault = |e: io::Error| refused(&format!("listening at {address}"), help, &e);
    // With SO_REUSEPORT a second node would get half of our clients. So the port is asked for
    // without it first, which fails if anybody listens there.
    let probe = tcp_socket(address, false).map_err(fault)?;
    let local = probe.local_addr().map_err(fault)?.as_socket().unwrap_or(address);
    drop(probe);
    let mut listeners = Vec::new();
    for _ in 0..cores {
        let socket = tcp_socket(local, true).map_err(fault)?;
        socket.listen(backlog).map_err(fault)?;
        listeners.push(socket.into());
    }
    Ok((BoundSocket::Tcp(listeners), local))
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
        // Two sockets with SO_REUSEADDR may be bound to one port as long as none listens.
        socket.listen(1)?;
    }
    Ok(socket)
}

/// A Unix socket's file, removed when the node is done with it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Its inode, and when that was made what it is: numbers of inodes are used again.
    inode: (u64, i64, i64),
}

fn inode(path: &Path) -> io::Result<(u64, i64, i64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.ino(), found.ctime(), found.ctime_nsec()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have put another one in its place.
        if inode(&self.path).is_ok_and(|found| found == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds a Unix socket.
pub(crate) fn bind_unix(path: &Path, mode: u32, backlog: i32) -> Result<(BoundSocket, SocketFile)> {
    let shown = path.display();
    let fault = |e: io::Error| {
        refused(&format!("listening at {shown}"), "may this user write to that folder?", &e)
    };
    let address = SockAddr::unix(path).map_err(|e| Error::BadArgument {
        detail: format!("{shown} is no path for a Unix socket ({e}); at most 107 bytes"),
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(fault)?;
    // Two nodes that start at once must not both take the other's socket for a dead one's. The lock
    // is the folder's, and goes with its descriptor.
    match folder.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let detail = format!("another node is starting at {shown}; try again");
            return Err(Error::BadArgument { detail });
        }
        Err(TryLockError::Error(e)) => return Err(fault(e)),
    }
    remove_stale(path, &address)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(fault)?;
    socket.bind(&address).map_err(fault)?;
    // Nobody can connect before `listen`, so there is no moment at which too many may.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(fault)?;
    let file = SocketFile { path: path.to_owned(), inode: inode(path).map_err(fault)? };
    socket.listen(backlog).map_err(fault)?;
    Ok((BoundSocket::Unix(socket.into()), file))
}

/// Removes the socket of a dead process; refuses what is anything else.
fn remove_stale(path: &Path, address: &SockAddr) -> Result<()> {
    let shown = path.display();
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let detail = format!("{shown} is there and is no socket; choose another path");
        return Err(Error::BadArgument { detail });
    }
    let asked = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)
        .and_then(|socket| socket.connect(address));
    match asked {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| refused(&format!("removing the dead socket {shown}"), "remove it", &e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or it would be if its queue were not full.
        _ => Err(Error::BadArgument {
            detail: format!("a living process serves {shown}; stop it, or choose another path"),
        }),
    }
}

/// Accepts from a core's own TCP socket, for ever.
pub(crate) async fn accept_tcp(listener: Rc<Listener>, socket: TcpListener) {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => listener.enter_tcp(stream),
            Err(e) => listener.could_not_accept(&e).await,
        }
        yield_if_due().await;
    }
}

/// Accepts from a Unix socket, for ever, and gives the connections to the cores in turn.
pub(crate) async fn accept_unix(
    listener: Rc<Listener>,
    socket: UnixListener,
    cores: Vec<Outbox<MigratedConnection>>,
) {
    let own = listener.context.core().index();
    let mut turns = (0..cores.len()).cycle();
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                let turn = turns.next().unwrap_or(own);
                match cores.get(turn) {
                    Some(core) if turn != own => listener.migrate(stream, core),
                    _ => listener.enter_unix(stream),
                }
            }
            Err(e) => listener.could_not_accept(&e).await,
        }
        yield_if_due().await;
    }
}

impl Listener {
    async fn could_not_accept(&self, error: &io::Error) {
        // The client has gone already: that is its business.
        if error.kind() != io::ErrorKind::ConnectionAborted {
            self.context.core().metrics().accept_errors.add(1);
            sleep(ACCEPT_AGAIN).await;
        }
    }

    fn migrate(&self, stream: UnixStream, core: &Outbox<MigratedConnection>) {
        let endpoint = self.endpoint;
        let migrated =
            stream.into_std().map(|stream| core.send(MigratedConnection { endpoint, stream }));
        if !matches!(migrated, Ok(Ok(()))) {
            // The core has more to do than it can count.
            self.context.core().metrics().accept_errors.add(1);
        }
    }

    /// Begins to serve a client that another core has accepted.
    pub(crate) fn serve_migrated(self: &Rc<Self>, stream: std::os::unix::net::UnixStream) {
        match UnixStream::from_std(stream) {
            Ok(stream) => self.enter_unix(stream),
            Err(_) => self.context.core().metrics().accept_errors.add(1),
        }
    }

    fn enter_unix(self: &Rc<Self>, stream: UnixStream) {
        // A client that has gone again has no credentials; its first read will tell.
        let Ok(who) = stream.peer_cred() else { return };
        let address = PeerAddress::Unix { pid: who.pid(), uid: who.uid(), gid: who.gid() };
        match self.admit() {
            Ok(presence) => self.begin_local(stream, address, presence),
            Err(refusal) => {
                if let Ok(mut stream) = stream.into_std() {
                    let _ = io::Write::write(&mut stream, &refusal);
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
        }
    }

    fn enter_tcp(self: &Rc<Self>, stream: TcpStream) {
        let limits = self.context.core().limits();
        let socket = SockRef::from(&stream);
        // Answers are collected by the connection, so there is nothing for the kernel to wait for.
        let _ = socket.set_tcp_nodelay(true);
        let keep_alive = TcpKeepalive::new().with_time(limits.keep_alive);
        let _ = socket.set_tcp_keepalive(&keep_alive);
        let (Ok(remote), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else { return };
        match self.admit() {
            Ok(presence) => {
                let address = PeerAddress::Tcp { remote, local };
                match &self.tls {
                    Some(tls) => self.begin_tls(tls.clone(), stream, address, presence),
                    None => self.begin(stream, address, presence),
                }
            }
            // It would take a handshake to say why.
            Err(_) if self.tls.is_some() => {}
            Err(refusal) => {
                if let Ok(mut stream) = stream.into_std() {
                    let _ = io::Write::write(&mut stream, &refusal);
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
        }
    }

    /// Counts a client in, or gives the words with which it is sent away.
    fn admit(self: &Rc<Self>) -> std::result::Result<Presence, Vec<u8>> {
        let core = self.context.core();
        let max = core.limits().connections_max;
        core.metrics().accepted.add(1);
        let presence = Presence {
            id: self.stats.last_peer.fetch_add(1, Ordering::Relaxed) + 1,
            listener: Rc::clone(self),
        };
        if self.stats.open.fetch_add(1, Ordering::Relaxed) < max {
            return Ok(presence);
        }
        core.metrics().refused.add(1);
        Err(self.context.limit_error(&LimitExceeded::TooManyConnections { max }))
    }

    fn begin_local(&self, stream: UnixStream, address: PeerAddress, presence: Presence) {
        let id = presence.id;
        let context = Rc::clone(&self.context);
        let stream = LocalStream::new(stream, self.stats.rings.clone());
        let task = spawn(TaskClass::Request, self.name, async move {
            let peer = Peer { id, address, certificate: None };
            serve_local(context, stream, peer).await;
            drop(presence);
        });
        self.context.connections().insert(id, task);
    }

    fn begin<S>(&self, stream: S, address: PeerAddress, presence: Presence)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
    {
        let id = presence.id;
        let context = Rc::clone(&self.context);
        let task = spawn(TaskClass::Request, self.name, async move {
            let peer = Peer { id, address, certificate: None };
            serve(context, stream, peer).await;
            drop(presence);
        });
        self.context.connections().insert(id, task);
    }

    /// As `begin`, but the client proves first that it speaks TLS.
    fn begin_tls(&self, tls: Tls, stream: TcpStream, address: PeerAddress, presence: Presence) {
        let id = presence.id;
        let context = Rc::clone(&self.context);
        let task = spawn(TaskClass::Request, self.name, async move {
            match tls.handshake(stream, &context).await {
                Some(TlsClient { stream, name: certificate }) => {
                    serve(context, stream, Peer { id, address, certificate }).await;
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
            drop(presence);
        });
        self.context.connections().insert(id, task);
    }
}

/// A client that is counted; dropped, it is counted out.
struct Presence {
    id: u64,
    listener: Rc<Listener>,
}

impl Drop for Presence {
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
    fn a_dead_socket_is_replaced_and_a_living_one_or_a_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.sock");
        let (bound, file) = bind_unix(&path, 0o640, 8).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let living = bind_unix(&path, 0o600, 8).unwrap_err().to_string();
        assert!(living.contains("living process"), "{living}");
        drop(bound); // as if the process had been killed: the file stays
        let (again, new_file) = bind_unix(&path, 0o600, 8).unwrap();
        drop(file);
        assert!(path.exists(), "the first node does not remove the second one's socket");
        drop((again, new_file));
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        let no_socket = bind_unix(&path, 0o600, 8).unwrap_err().to_string();
        assert!(no_socket.contains("no socket"), "{no_socket}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_path_that_is_too_long_and_a_folder_that_is_not_there_are_told() {
        let long = "x".repeat(200);
        let error = bind_unix(Path::new(&long), 0o600, 8).unwrap_err().to_string();
        assert!(error.contains("107 bytes"), "{error}");
        let error = bind_unix(Path::new("/nowhere/at/all"), 0o600, 8).unwrap_err().to_string();
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
