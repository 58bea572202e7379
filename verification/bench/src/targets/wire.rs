//! A stream with a buffer on either side: what is asked is written at once, what is answered is
//! looked at where it was read to. Nothing is allocated for a request once the buffers have grown.
//!
//! The other side is not trusted: no length of an answer makes us take memory before its bytes have
//! come, and after any error the stream is given up, because answers may be out of step.

use nearstate_local_transport::LocalRing;
use nearstate_model::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A server that says nothing for so long has stalled, and is reported. Twenty times the longest
/// pause that a healthy one was seen to make (a collection of garbage in a full heap).
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Bytes of one answer: above it a length is nonsense.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 30;

/// A line of a head or of an error: longer ones are nonsense.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// How long a client with several messages in flight looks for answers before it sleeps. To be
/// woken takes some 10 to 20 us on a virtual machine, in which the server does all that is in
/// flight, and it costs the server as much as several requests to wake it. Several times that, as
/// pauses of a server that has work are shorter.
const LOOK: Duration = Duration::from_micros(50);

/// Bytes that are read at once at the least.
const READ_BYTES: usize = 64 << 10;

/// A stream to a server.
///
/// A client with several messages in flight must read when it cannot write: the server may not take
/// the next request before its answers are read. A stream that cannot tell which of the two is
/// possible keeps the default methods, and nothing is sent ahead over it.
pub(crate) trait Stream: Read + Write {
    /// Whether [`Stream::write_now`] never waits.
    const TELLS: bool = false;

    /// Writes what is taken at once; `WouldBlock` if nothing is.
    fn write_now(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.write(bytes)
    }

    /// Reads, and looks for a while before it sleeps; who else is on the processor goes first.
    fn read_soon(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.read(into)
    }

    /// Waits until bytes have come or are taken; whether some have come.
    fn wait(&mut self) -> std::io::Result<bool> {
        Err(ErrorKind::TimedOut.into())
    }
}

impl Stream for LocalRing {}

/// A TCP or Unix socket that gives up after [`ANSWER_MAX`].
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn tcp(address: SocketAddr) -> Result<Self> {
        let open = || {
            let stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_MAX))?;
            stream.set_write_timeout(Some(ANSWER_MAX))?;
            Ok(Self::Tcp(stream))
        };
        open().map_err(|e| away(&address.to_string(), &e))
    }

    pub(crate) fn unix(path: &Path) -> Result<Self> {
        unix(path).map(Self::Unix)
    }

    /// At an address as targets give them: `HOST:PORT` or `unix:PATH`.
    pub(crate) fn at(address: &str) -> Result<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            return Self::unix(Path::new(path));
        }
        let parsed = address.parse().map_err(|_| Error::BadArgument {
            detail: format!("{address:?} is no address: give HOST:PORT or unix:PATH"),
        })?;
        Self::tcp(parsed)
    }
}

/// A Unix socket that gives up after [`ANSWER_MAX`].
pub(crate) fn unix(path: &Path) -> Result<UnixStream> {
    let open = || {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(stream)
    };
    open().map_err(|e| away(&path.display().to_string(), &e))
}

fn away(address: &str, e: &std::io::Error) -> Error {
    Error::Backend { detail: format!("connecting to {address}: {e}") }
}

impl Read for Socket {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Socket {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Stream for Socket {
    const TELLS: bool = true;

    #[inline]
    fn write_now(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(send(self.fd(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn read_soon(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let begin = Instant::now();
        loop {
            match recv(self.fd(), &mut *into, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => return Ok(bytes),
                Err(Errno::WOULDBLOCK) if begin.elapsed() < LOOK => std::thread::yield_now(),
                Err(Errno::WOULDBLOCK) => return self.read(into),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn wait(&mut self) -> std::io::Result<bool> {
        let mut sockets = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN | PollFlags::OUT)];
        let retry_policy = Timespec::try_from(ANSWER_MAX).ok();
        match poll(&mut sockets, retry_policy.as_ref()) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) => Ok(sockets.iter().any(|one| one.revents().contains(PollFlags::IN))),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// Messages of a connection that were sent ahead, the oldest first: whether each has left. One that
/// needs answers before it can be written has not, and none has that comes behind such a one.
#[derive(Debug, Default)]
pub(crate) struct SentAhead(VecDeque<bool>);

impl SentAhead {
    /// Whether the next one may leave.
    pub(crate) fn may_leave(&self) -> bool {
        self.0.back() != Some(&false)
    }

    /// Whether answers are outstanding.
    pub(crate) fn is_owed(&self) -> bool {
        self.0.front() == Some(&true)
    }

    /// Notes the next one.
    pub(crate) fn note(&mut self, has_left: bool) {
        self.0.push_back(has_left);
    }

    /// Forgets the oldest; whether it has left. One that was never noted has not.
    pub(crate) fn forget(&mut self) -> bool {
        self.0.pop_front().unwrap_or(false)
    }
}

/// The stream.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    /// What is to be sent, behind what is held.
    pub(crate) out: Vec<u8>,
    /// Bytes of the message that is held.
    held: usize,
    input: Vec<u8>,
    at: usize,
    end: usize,
    /// Given up, for whatever reason.
    is_lost: bool,
    /// Given up because the stream broke.
    is_cut: bool,
    /// Whether it looks for answers before it sleeps.
    is_looking: bool,
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
            is_looking: false,
        }
    }

    /// Whether to look for answers for a while before sleeping: worth it while answers to further
    /// messages are in flight.
    pub(crate) const fn look(&mut self, is_looking: bool) {
        self.is_looking = is_looking;
    }

    /// Whether the stream broke: not if the server stalled, or answered what it must not.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    #[cfg(test)]
    pub(crate) const fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends a message whose answers are taken later. While received answers to others are not
    /// taken yet, it is held until they are taken, or until there is one more: so a client that has
    /// more to do than its server sends half as often, and one that waits for its server sends at
    /// once.
    pub(crate) fn leave(&mut self) -> Result<()> {
        if self.held == 0 && self.at < self.end {
            self.held = self.out.len();
            return Ok(());
        }
        self.send()
    }

    /// Forgets what was written behind the message that is held.
    pub(crate) fn unwrite(&mut self) {
        self.out.truncate(self.held);
    }

    /// Sends what was written to `out`. A stream that was given up says so.
    pub(crate) fn send(&mut self) -> Result<()> {
        self.held = 0;
        if self.is_lost {
            self.out.clear();
            let detail = "the connection was given up after an error: connect again".to_owned();
            return Err(Error::Backend { detail });
        }
        let out = std::mem::take(&mut self.out);
        let written = self.write(&out);
        self.out = out;
        self.out.clear();
        written
    }

    /// Writes, and keeps what comes meanwhile: a server that is not read from takes nothing either.
    fn write(&mut self, mut left: &[u8]) -> Result<()> {
        const ASKING: &str = "asking the server";
        while !left.is_empty() {
            let comes = match self.stream.write_now(left) {
                Ok(0) => return Err(self.lost(ASKING, &ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    left = left.get(bytes..).unwrap_or_default();
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.stream.wait(),
                Err(e) => return Err(self.lost(ASKING, &e)),
            };
            if comes.map_err(|e| self.lost(ASKING, &e))? {
                if self.end - self.at > ANSWER_BYTES_MAX {
                    return Err(self.strange("more than was asked"));
                }
                self.read()?;
            }
        }
        self.stream.flush().map_err(|e| self.lost(ASKING, &e))
    }

    /// The next `bytes` of the answer.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Result<&[u8]> {
        self.need(bytes)?;
        let from = self.at;
        self.at += bytes;
        Ok(self.input.get(from..self.at).unwrap_or_default())
    }

    /// Makes sure that so many bytes can be taken.
    #[inline]
    pub(crate) fn need(&mut self, bytes: usize) -> Result<()> {
        if bytes > ANSWER_BYTES_MAX {
            return Err(self.strange("an answer of more bytes than any answer has"));
        }
        while self.end - self.at < bytes {
            self.read()?;
        }
        Ok(())
    }

    /// The next line, without its end.
    #[inline]
    pub(crate) fn line(&mut self) -> Result<&[u8]> {
        let mut looked = 0;
        loop {
            let there = self.input.get(self.at + looked..self.end).unwrap_or_default();
            if let Some(more) = there.iter().position(|byte| *byte == b'\n') {
                let from = self.at;
                self.at = from + looked + more + 1;
                let line = self.input.get(from..from + looked + more).unwrap_or_default();
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            looked = self.end - self.at;
            if looked > LINE_BYTES_MAX {
                return Err(self.strange("a line that does not end"));
            }
            self.read()?;
        }
    }

    /// Gives the stream up: it answered what it must not.
    #[cold]
    pub(crate) fn strange(&mut self, what: &str) -> Error {
        self.is_lost = true;
        Error::Backend { detail: format!("the server answered {what}") }
    }

    /// Gives the stream up for a reason that the server gave.
    #[cold]
    pub(crate) fn refused(&mut self, text: &str) -> Error {
        self.is_lost = true;
        Error::Backend { detail: text.chars().take(500).collect() }
    }

    #[cold]
    fn lost(&mut self, doing: &str, e: &std::io::Error) -> Error {
        let is_late = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        // A server that stalls is there: connecting again would hide it.
        (self.is_lost, self.is_cut) = (true, !is_late);
        let detail = if is_late {
            format!("{doing}: no sign of it for {} s", ANSWER_MAX.as_secs())
        } else if e.kind() == ErrorKind::UnexpectedEof {
            format!("{doing}: it has closed the connection")
        } else {
            format!("{doing}: {e}")
        };
        Error::Backend { detail }
    }

    fn read(&mut self) -> Result<()> {
        if self.held > 0 {
            self.send()?;
        }
        self.make_room();
        let room = self.input.get_mut(self.end..).unwrap_or_default();
        let read =
            if self.is_looking { self.stream.read_soon(room) } else { self.stream.read(room) };
        match read {
            Ok(0) => {
                let e = std::io::Error::from(ErrorKind::UnexpectedEof);
                Err(self.lost("reading the server's answer", &e))
            }
            Ok(bytes) => {
                self.end += bytes;
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(self.lost("reading the server's answer", &e)),
        }
    }

    /// What was taken is forgotten; the buffer doubles only when bytes that have come fill it.
    fn make_room(&mut self) {
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
    for place in text.iter_mut().rev() {
        #[expect(clippy::cast_possible_truncation, reason = "a digit")]
        {
            *place = b'0' + (left % 10) as u8;
        }
        left /= 10;
        used += 1;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(text.get(text.len() - used..).unwrap_or_default());
}

/// A number in decimal digits, perhaps with a minus.
#[inline]
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
