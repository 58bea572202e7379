//! A buffered stream to a server. Requests are written at once, replies are parsed in the input
//! buffer. Nothing is allocated for a request once the buffers have grown.
//!
//! The server is not trusted: memory is allocated for received bytes only, not for an announced
//! length, and any error closes the stream, because replies may be out of order.

use nearstate_local_transport::LocalRing;
use nearstate_model::{Error, Result};
use nearstate_resp_client::TimeoutSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// A server that sends nothing for this time has stalled: twenty times the longest observed pause.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest valid reply, in bytes.
pub(crate) const REPLY_BYTES_MAX: usize = 1 << 30;

/// The longest valid line of a header or of an error, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// The time that a client with several messages in flight busy-polls before it sleeps. A wake-up
/// takes 10 to 20 us, and costs the server as much as several requests.
const BUSY_POLL: Duration = Duration::from_micros(50);

/// The smallest size of a read, in bytes.
const READ_BYTES: usize = 64 << 10;

/// A stream to a server.
///
/// A client with several messages in flight must read while it cannot write, because the server may
/// accept the next request only after its replies are read. A stream that cannot report which of
/// the two is possible has the default methods, and nothing is sent ahead over it.
pub(crate) trait Stream: Read + Write {
    /// True if [`Stream::write_now`] never waits.
    const IS_NON_BLOCKING: bool = false;

    /// Writes what fits without a wait; `WouldBlock` if nothing does.
    fn write_now(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.write(bytes)
    }

    /// Reads; busy-polls before it sleeps, and yields the processor to other threads.
    fn read_soon(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.read(into)
    }

    /// Waits until bytes can be read or written; true if they can be read.
    fn wait(&mut self) -> std::io::Result<bool> {
        Err(ErrorKind::TimedOut.into())
    }
}

impl Stream for LocalRing {}

/// Connects to the address of a target: `HOST:PORT` or `unix:PATH`. The socket gives up after
/// [`REPLY_TIMEOUT`].
pub(crate) fn connect(address: &str) -> Result<TimeoutSocket> {
    let socket = if let Some(path) = address.strip_prefix("unix:") {
        TimeoutSocket::unix(Path::new(path), REPLY_TIMEOUT)
    } else {
        let parsed = address.parse().map_err(|_| {
            bad_argument!("{address:?} is not an address: give HOST:PORT or unix:PATH")
        })?;
        TimeoutSocket::tcp(parsed, REPLY_TIMEOUT)
    };
    socket.map_err(|e| backend_error!("connecting to {address}: {e}"))
}

impl Stream for TimeoutSocket {
    const IS_NON_BLOCKING: bool = true;

    #[inline]
    fn write_now(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(send(&*self, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn read_soon(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let begin = Instant::now();
        loop {
            match recv(&*self, &mut *into, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => return Ok(bytes),
                Err(Errno::WOULDBLOCK) if begin.elapsed() < BUSY_POLL => std::thread::yield_now(),
                Err(Errno::WOULDBLOCK) => return self.read(into),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn wait(&mut self) -> std::io::Result<bool> {
        let mut sockets = [PollFd::new(self, PollFlags::IN | PollFlags::OUT)];
        let timeout = Timespec::try_from(REPLY_TIMEOUT).ok();
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) => Ok(sockets.iter().any(|one| one.revents().contains(PollFlags::IN))),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// The messages in flight of a connection, the oldest first: true if it was sent. A message that
/// needs replies before it can be written is not sent, nor are those after it.
#[derive(Debug, Default)]
pub(crate) struct SentAhead(VecDeque<bool>);

impl SentAhead {
    /// True if the next one may be sent.
    pub(crate) fn may_send(&self) -> bool {
        self.0.back() != Some(&false)
    }

    /// True if replies are outstanding.
    pub(crate) fn is_owed(&self) -> bool {
        self.0.front() == Some(&true)
    }

    /// Adds the next one.
    pub(crate) fn push(&mut self, has_left: bool) {
        self.0.push_back(has_left);
    }

    /// Removes the oldest; true if it was sent.
    pub(crate) fn pop(&mut self) -> bool {
        self.0.pop_front().unwrap_or(false)
    }
}

/// The buffered stream.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    /// The message that is held back, then further output.
    pub(crate) out: Vec<u8>,
    /// Bytes of the message that is held back.
    held: usize,
    input: Vec<u8>,
    at: usize,
    end: usize,
    /// Closed, for any reason.
    is_lost: bool,
    /// Closed because the connection broke.
    is_cut: bool,
    /// True if it busy-polls before it sleeps.
    is_busy_polling: bool,
}

impl<S: Stream> Wire<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self {
            stream,
            out: Vec::new(),
            held: 0,
            input: Vec::new(),
            at: 0,
            end: 0,
            is_lost: false,
            is_cut: false,
            is_busy_polling: false,
        }
    }

    /// Sets busy-polling before a sleep: useful while further messages are in flight.
    pub(crate) const fn set_busy_poll(&mut self, is_busy_polling: bool) {
        self.is_busy_polling = is_busy_polling;
    }

    /// True if the connection broke; not if the server stalled or sent an invalid reply.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    #[cfg(test)]
    pub(crate) const fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends a message whose replies are read later. While received replies are unread, the message
    /// is held back until they are read, or until the next message. So a client that is slower than
    /// its server sends half as often, and one that waits for its server sends at once.
    pub(crate) fn send_or_hold(&mut self) -> Result<()> {
        if self.held == 0 && self.at < self.end {
            self.held = self.out.len();
            return Ok(());
        }
        self.send()
    }

    /// Removes the output after the message that is held back.
    pub(crate) fn discard_output(&mut self) {
        self.out.truncate(self.held);
    }

    /// Sends `out`. Fails if the stream is closed.
    pub(crate) fn send(&mut self) -> Result<()> {
        self.held = 0;
        if self.is_lost {
            self.out.clear();
            return Err(backend_error!("the connection was closed after an error: connect again"));
        }
        let out = std::mem::take(&mut self.out);
        let written = self.write(&out);
        self.out = out;
        self.out.clear();
        written
    }

    /// Writes, and reads what arrives meanwhile: a server may accept nothing until its replies are
    /// read.
    fn write(&mut self, mut left: &[u8]) -> Result<()> {
        const WRITING: &str = "sending a request";
        while !left.is_empty() {
            let can_read = match self.stream.write_now(left) {
                Ok(0) => return Err(self.lost(WRITING, &ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    left = left.get(bytes..).unwrap_or_default();
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.stream.wait(),
                Err(e) => return Err(self.lost(WRITING, &e)),
            };
            if can_read.map_err(|e| self.lost(WRITING, &e))? {
                if self.end - self.at > REPLY_BYTES_MAX {
                    return Err(self.invalid_reply("more than was requested"));
                }
                self.read()?;
            }
        }
        self.stream.flush().map_err(|e| self.lost(WRITING, &e))
    }

    /// The next `bytes` of the reply.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Result<&[u8]> {
        self.need(bytes)?;
        let from = self.at;
        self.at += bytes;
        Ok(self.input.get(from..self.at).unwrap_or_default())
    }

    /// Reads until `bytes` bytes are in the buffer.
    #[inline]
    pub(crate) fn need(&mut self, bytes: usize) -> Result<()> {
        if bytes > REPLY_BYTES_MAX {
            return Err(self.invalid_reply("a reply that is too long"));
        }
        while self.end - self.at < bytes {
            self.read()?;
        }
        Ok(())
    }

    /// The next line, without its end.
    #[inline]
    pub(crate) fn line(&mut self) -> Result<&[u8]> {
        let mut searched = 0;
        loop {
            let unread = self.input.get(self.at + searched..self.end).unwrap_or_default();
            if let Some(more) = unread.iter().position(|byte| *byte == b'\n') {
                let from = self.at;
                self.at = from + searched + more + 1;
                let line = self.input.get(from..from + searched + more).unwrap_or_default();
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            searched = self.end - self.at;
            if searched > LINE_BYTES_MAX {
                return Err(self.invalid_reply("a line that does not end"));
            }
            self.read()?;
        }
    }

    /// Closes the stream after an invalid reply.
    #[cold]
    pub(crate) fn invalid_reply(&mut self, what: &str) -> Error {
        self.is_lost = true;
        backend_error!("the server answered {what}")
    }

    /// Closes the stream after an error of the server.
    #[cold]
    pub(crate) fn refused(&mut self, text: &str) -> Error {
        self.is_lost = true;
        backend_error!("{}", text.chars().take(500).collect::<String>())
    }

    #[cold]
    fn lost(&mut self, doing: &str, e: &std::io::Error) -> Error {
        let is_late = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        // A stall is not a broken connection: a reconnect would hide it.
        (self.is_lost, self.is_cut) = (true, !is_late);
        let detail = if is_late {
            format!("{doing}: no reply for {} s", REPLY_TIMEOUT.as_secs())
        } else if e.kind() == ErrorKind::UnexpectedEof {
            format!("{doing}: the server has closed the connection")
        } else {
            format!("{doing}: {e}")
        };
        Error::Backend { detail }
    }

    fn read(&mut self) -> Result<()> {
        const READING: &str = "reading a reply";
        if self.held > 0 {
            self.send()?;
        }
        self.reserve();
        let free = self.input.get_mut(self.end..).unwrap_or_default();
        let read =
            if self.is_busy_polling { self.stream.read_soon(free) } else { self.stream.read(free) };
        match read {
            Ok(0) => Err(self.lost(READING, &ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => {
                self.end += bytes;
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(self.lost(READING, &e)),
        }
    }

    /// Frees buffer space for a read: discards the bytes that were taken, and doubles the buffer
    /// only if received bytes fill it.
    fn reserve(&mut self) {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        } else if self.at > 0 && self.end == self.input.len() {
            self.input.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
        }
        if self.end == self.input.len() {
            self.input.resize((2 * self.end).max(READ_BYTES), 0);
        }
    }
}

/// Appends a number in decimal digits.
#[inline]
pub(crate) fn digits(number: usize, out: &mut Vec<u8>) {
    let mut text = [0_u8; 20];
    let mut left = number;
    let mut used = 0;
    for digit in text.iter_mut().rev() {
        #[expect(clippy::cast_possible_truncation, reason = "a digit")]
        {
            *digit = b'0' + (left % 10) as u8;
        }
        left /= 10;
        used += 1;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(text.get(text.len() - used..).unwrap_or_default());
}

/// Parses a decimal number.
#[inline]
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
