//! A connection between two hosts: bytes in both directions, with or without TLS. It never blocks,
//! except in [`PeerStream::wait`].

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use nearstate_wire::FrameReader;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio_rustls::rustls::Connection;

use super::limits::UNACKNOWLEDGED_MAX;
use super::stopwatch::Stopwatch;
use crate::tls::certificate_names;

/// Bytes that one read takes.
const READ_BYTES: usize = 256 << 10;

/// Memory of sent bytes that a connection keeps for the next ones.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Bytes that TLS encrypts before they are sent.
const TLS_BUFFER_BYTES: usize = 1 << 20;

/// A connection.
pub(crate) struct PeerStream {
    socket: TcpStream,
    tls: Option<Box<Connection>>,
    /// What is to be sent, and how much of it was.
    out: Vec<u8>,
    sent: usize,
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other host has closed the connection")
}

impl PeerStream {
    pub(crate) fn new(socket: TcpStream, tls: Option<Connection>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        socket2::SockRef::from(&socket).set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        let tls = tls.map(|mut tls| {
            tls.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            Box::new(tls)
        });
        Ok(Self { socket, tls, out: Vec::new(), sent: 0 })
    }

    /// Where bytes that are to be sent are appended.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        // Each byte moves once on average.
        if self.sent > 0 && self.sent >= self.unsent() {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        if self.out.is_empty() && self.out.capacity() > KEPT_BYTES_MAX {
            self.out = Vec::new();
        }
        &mut self.out
    }

    /// The names in the other side's certificate; `None` without TLS, or if it has shown none.
    pub(crate) fn certificate_names(&self) -> Option<Vec<String>> {
        let shown = self.tls.as_ref()?.peer_certificates()?;
        shown.first().map(certificate_names)
    }

    /// Bytes that were not handed to the kernel, or to TLS.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    fn has_output(&self) -> bool {
        self.unsent() > 0 || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends what the kernel takes, and gives what has arrived to the reader. True if bytes have
    /// arrived.
    ///
    /// # Errors
    /// The connection has ended, or TLS has failed.
    pub(crate) fn exchange(&mut self, received: &mut FrameReader) -> io::Result<bool> {
        if self.tls.is_some() { self.exchange_tls(received) } else { self.exchange_plain(received) }
    }

    fn exchange_plain(&mut self, received: &mut FrameReader) -> io::Result<bool> {
        while self.sent < self.out.len() {
            let left = self.out.get(self.sent..).unwrap_or_default();
            match self.socket.write(left) {
                Ok(0) => return Err(closed()),
                Ok(count) => self.sent += count,
                Err(error) if would_block(&error) => break,
                Err(error) => return Err(error),
            }
        }
        match received.read_from(READ_BYTES, |room| self.socket.read(room)) {
            Ok(0) => Err(closed()),
            Ok(_) => Ok(true),
            Err(error) if would_block(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn exchange_tls(&mut self, received: &mut FrameReader) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        loop {
            let left = self.out.get(self.sent..).unwrap_or_default();
            let taken = if left.is_empty() { 0 } else { tls.writer().write(left)? };
            self.sent += taken;
            let mut is_full = false;
            while tls.wants_write() && !is_full {
                match tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if would_block(&error) => is_full = true,
                    Err(error) => return Err(error),
                }
            }
            if is_full || taken == 0 {
                break;
            }
        }
        match tls.read_tls(&mut self.socket) {
            Ok(0) => return Err(closed()),
            Ok(_) => {}
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        if let Err(error) = tls.process_new_packets() {
            // The alert tells the other side.
            let _ = tls.write_tls(&mut self.socket);
            return Err(io::Error::other(format!("TLS has failed: {error}")));
        }
        let mut has_received = false;
        loop {
            match received.read_from(READ_BYTES, |room| tls.reader().read(room)) {
                Ok(0) => return Err(closed()),
                Ok(_) => has_received = true,
                Err(error) if would_block(&error) => return Ok(has_received),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until bytes have arrived, or until more can be sent if there are some to send. True if
    /// bytes have arrived, or the connection has ended.
    ///
    /// # Errors
    /// `poll(2)` has failed.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let out = if self.has_output() { PollFlags::OUT } else { PollFlags::empty() };
        self.poll(PollFlags::IN | out, timeout)
    }

    /// As [`PeerStream::wait`], also with bytes to send: they are kept back.
    pub(crate) fn wait_for_input(&self, timeout: Duration) -> io::Result<bool> {
        self.poll(PollFlags::IN, timeout)
    }

    fn poll(&self, flags: PollFlags, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut sockets = [PollFd::new(&self.socket, flags)];
        match poll(&mut sockets, Some(&timeout)) {
            Ok(_) => {
                let [socket] = sockets;
                Ok(!(socket.revents() - PollFlags::OUT).is_empty())
            }
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends everything, for at most `timeout`. What arrives meanwhile is dropped.
    pub(crate) fn finish(&mut self, timeout: Duration) {
        let begin = Stopwatch::start();
        while self.has_output() && begin.elapsed() < timeout {
            let mut ignored = FrameReader::of_follower();
            if self.exchange(&mut ignored).is_err() || self.wait(timeout / 10).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn room_for_output_is_nothing_that_has_arrived() {
        const LONG: Duration = Duration::from_secs(60);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let mut stream = PeerStream::new(socket, None).unwrap();
        stream.output().push(1);
        // It returns at once, and the source looks at its log.
        assert!(!stream.wait(LONG).unwrap());
        other.write_all(&[2]).unwrap();
        while !stream.wait(LONG).unwrap() {}
        assert!(stream.exchange(&mut FrameReader::of_follower()).unwrap());
        drop(other);
        assert!(stream.wait(LONG).unwrap(), "the end of the connection ends a wait");
    }
}
