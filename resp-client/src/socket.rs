//! A TCP or Unix socket whose reads and writes fail after a timeout.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub enum TimeoutSocket {
    /// TCP, without Nagle's delay.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl TimeoutSocket {
    /// Connects over TCP. `timeout` bounds the connection attempt, each read and each write.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn tcp(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self::Tcp(stream))
    }

    /// Connects to a Unix socket. `timeout` bounds each read and each write.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn unix(path: &Path, timeout: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self::Unix(stream))
    }
}

impl AsFd for TimeoutSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for TimeoutSocket {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for TimeoutSocket {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
