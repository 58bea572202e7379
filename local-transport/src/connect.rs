//! Connects to a node's socket, within a timeout.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Connects. No wait is longer than `timeout`: this one, and each read and write on the socket.
///
/// A Unix socket has no handshake, but a queue of connections. If the queue is full because the
/// node does not accept, connecting waits as a write does, and without limit if no timeout is set
/// before.
///
/// # Errors
/// Errors of the kernel; `TimedOut`.
pub fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
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
            match connect(&path, timeout) {
                Ok(socket) => queued.push(socket),
                Err(error) => break error,
            }
            assert!(queued.len() < 9, "the queue has no end");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        drop(node);
        let error = connect(&path, timeout).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn reads_and_writes_of_a_socket_have_the_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let node = UnixListener::bind(&path).unwrap();
        let timeout = Duration::from_millis(30);
        let mut client = connect(&path, timeout).unwrap();
        let (mut served, _) = node.accept().unwrap();
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        served.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert_eq!(client.read(&mut byte).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(client.write_timeout().unwrap().is_some_and(|set| set < timeout * 2));
        let long = folder.path().join("x".repeat(200));
        assert!(connect(&long, timeout).is_err());
    }
}
