//! Connects to a node's socket, within a timeout.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nearstate_memory::{check_socket_path, check_socket_peer};
use nearstate_model::{Error, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt::socket_peercred,
};

/// Connects. No wait is longer than `timeout`: this one, and each read and write on the socket.
///
/// A Unix socket has no handshake, but a queue of connections. If the queue is full because the
/// node does not accept, connecting waits as a write does, and without limit if no timeout is set
/// before.
///
/// A node of a user other than the effective user and root could give any region and read every
/// request, so it is refused unless `any_owner`.
///
/// # Errors
/// `BadArgument` with the owner of the socket, of its directory or of a symbolic link; `System` for
/// errors of the kernel, without a number if the timeout has passed.
pub fn connect(path: &Path, timeout: Duration, any_owner: bool) -> Result<UnixStream> {
    check_socket_path(path, any_owner)?;
    let failed = |error: io::Error| {
        let errno = error.raw_os_error();
        let reason = if errno.is_none() { format!(": {error}") } else { String::new() };
        Error::System {
            detail: format!("{}: cannot connect{reason}", path.display()),
            errno: errno.unwrap_or(0),
        }
    };
    let socket = connect_within(path, timeout).map_err(failed)?;
    let peer = socket_peercred(&socket).map_err(|error| failed(error.into()))?;
    check_socket_peer(path, peer.uid.as_raw(), any_owner)?;
    Ok(socket)
}

fn connect_within(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let socket = UnixStream::from(socket);
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    let started = Instant::now();
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            // Repeated signals extend it to at most twice the timeout.
            Err(Errno::INTR) if started.elapsed() < timeout => {}
            Err(Errno::INTR | Errno::AGAIN) => {
                let text = format!("its queue was full for {timeout:?}: the node does not accept");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    #[test]
    fn connecting_to_a_node_that_does_not_accept_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let node = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&node, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&node, 1).unwrap();
        let timeout = Duration::from_millis(30);
        let mut queued = Vec::new();
        // The queue of the kernel has room for two or three.
        let error = loop {
            match connect_within(&path, timeout) {
                Ok(socket) => queued.push(socket),
                Err(error) => break error,
            }
            assert!(queued.len() < 9, "the queue has no end");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        drop(node);
        let error = connect_within(&path, timeout).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn reads_and_writes_of_a_socket_have_the_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let node = UnixListener::bind(&path).unwrap();
        let timeout = Duration::from_millis(30);
        let mut client = connect(&path, timeout, false).unwrap();
        let (mut served, _) = node.accept().unwrap();
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        served.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert_eq!(client.read(&mut byte).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(client.write_timeout().unwrap().is_some_and(|set| set < timeout * 2));
        let long = folder.path().join("x".repeat(200));
        assert!(connect(&long, timeout, false).is_err());
    }

    #[test]
    fn a_socket_of_another_user_is_refused_with_its_owner() {
        use std::os::unix::fs::{chown, lchown, symlink};
        if rustix::process::geteuid().as_raw() != 0 {
            writeln!(io::stderr(), "skipped: only root can give files to other users").unwrap();
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("s"), folder.path().join("l"));
        let _node = UnixListener::bind(&path).unwrap();
        symlink(&path, &link).unwrap();
        let timeout = Duration::from_millis(30);
        let is_refused = |path: &Path, what: &str| {
            let error = connect(path, timeout, false).unwrap_err();
            assert!(
                matches!(&error, Error::BadArgument { detail }
                if detail.contains("65534") && detail.contains(what)),
                "{what}: {error}"
            );
            connect(path, timeout, true).unwrap();
        };
        connect(&link, timeout, false).unwrap();
        lchown(&link, Some(65_534), None).unwrap();
        is_refused(&link, "the symbolic link");
        connect(&path, timeout, false).unwrap();
        chown(folder.path(), Some(65_534), None).unwrap();
        is_refused(&path, "the directory");
        chown(folder.path(), Some(0), None).unwrap();
        chown(&path, Some(65_534), None).unwrap();
        is_refused(&path, "the socket");
    }
}
