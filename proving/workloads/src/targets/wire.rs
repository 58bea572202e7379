//! A stream with a buffer on either side: what is asked is written at once, what is answered is
//! looked at where it was read to. Nothing is allocated for a request once the buffers have grown.
//!
//! The other side is not trusted: no length of an answer makes us take memory before its bytes have
//! come, and after any error the stream is given up, because answers may be out of step.

use nearstate_model::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A server that says nothing for so long has stalled, and is reported. Twenty times the longest
/// pause that a healthy one was seen to make (a collection of garbage in a full heap).
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of one answer: above it a length is nonsense.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 30;

/// A line of a head or of an error: longer ones are nonsense.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// Bytes that are read at once at the least.
const READ_BYTES: usize = 64 << 10;

/// A TCP or Unix socket that gives up after [`PATIENCE`].
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn tcp(address: SocketAddr) -> Result<Self> {
        let open = || {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
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

/// A Unix socket that gives up after [`PATIENCE`].
pub(crate) fn unix(path: &Path) -> Result<UnixStream> {
    let open = || {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
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

/// The stream.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    /// What is to be sent.
    pub(crate) out: Vec<u8>,
    input: Vec<u8>,
    at: usize,
    end: usize,
    /// Given up, for whatever reason.
    is_lost: bool,
    /// Given up because the stream broke.
    is_cut: bool,
}

impl<S: Read + Write> Wire<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self {
            stream,
            out: Vec::new(),
            input: Vec::new(),
            at: 0,
            end: 0,
            is_lost: false,
            is_cut: false,
        }
    }

    /// Whether the stream broke: not if the server stalled, or answered what it must not.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Sends what was written to `out`. A stream that was given up says so.
    pub(crate) fn send(&mut self) -> Result<()> {
        if self.is_lost {
            self.out.clear();
            let detail = "the connection was given up after an error: connect again".to_owned();
            return Err(Error::Backend { detail });
        }
        let written = self.stream.write_all(&self.out).and_then(|()| self.stream.flush());
        self.out.clear();
        written.map_err(|e| self.lost("asking the server", &e))
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
            format!("{doing}: no sign of it for {} s", PATIENCE.as_secs())
        } else if e.kind() == ErrorKind::UnexpectedEof {
            format!("{doing}: it has closed the connection")
        } else {
            format!("{doing}: {e}")
        };
        Error::Backend { detail }
    }

    fn read(&mut self) -> Result<()> {
        self.make_room();
        let room = self.input.get_mut(self.end..).unwrap_or_default();
        match self.stream.read(room) {
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
mod tests {
    use super::*;

    /// Answers in pieces of `step` bytes.
    struct Fixed(Vec<u8>, usize, usize);

    impl Read for Fixed {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let end = self.0.len().min(self.1 + self.2.min(into.len()));
            let bytes = &self.0[self.1..end];
            into[..bytes.len()].copy_from_slice(bytes);
            self.1 = end;
            Ok(bytes.len())
        }
    }

    impl Write for Fixed {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_and_bytes_come_out_in_whatever_pieces_they_went_in() {
        for step in [1, 2, 3, 7, 100_000] {
            let long = vec![b'x'; 200_000];
            let answer = [b"first\r\n\r\n", long.as_slice(), b"third\n"].concat();
            let mut wire = Wire::new(Fixed(answer, 0, step));
            assert_eq!(wire.line().unwrap(), b"first");
            assert_eq!(wire.line().unwrap(), b"");
            assert!(wire.take(200_000).unwrap() == long.as_slice());
            assert_eq!(wire.line().unwrap(), b"third");
            assert_eq!(wire.at, wire.end);
        }
    }

    #[test]
    fn after_an_error_nothing_is_asked_any_more() {
        let mut wire = Wire::new(Fixed(b"no end".to_vec(), 0, 2));
        wire.send().unwrap();
        let error = wire.line().unwrap_err().to_string();
        assert!(error.contains("closed the connection"), "{error}");
        assert!(wire.send().unwrap_err().to_string().contains("connect again"));
        assert!(wire.is_cut());
        let mut wire = Wire::new(Fixed(vec![b'x'; 200_000], 0, 5000));
        assert!(wire.line().unwrap_err().to_string().contains("does not end"));
        assert!(!wire.is_cut(), "it is there, but says something strange");
        let mut wire = Wire::new(Fixed(vec![], 0, 1));
        assert!(wire.take(usize::MAX).is_err());
        assert!(wire.input.capacity() == 0, "a length alone takes no memory");
    }

    #[test]
    fn a_server_that_stalls_is_reported_and_not_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut wire = Wire::new(Socket::Unix(ours));
        let error = wire.line().unwrap_err();
        assert!(matches!(&error, Error::Backend { detail } if detail.contains("no sign of it")));
        drop(theirs);
        assert!(matches!(wire.send(), Err(Error::Backend { .. })));
        for away in ["unix:/no/such/folder/socket", "127.0.0.1:1", "not an address"] {
            assert!(Socket::at(away).is_err(), "{away}");
        }
    }

    #[test]
    fn numbers_are_written_and_read() {
        for value in [0, 7, 10, 99, 12_345_678_901_usize, usize::MAX] {
            let mut text = Vec::new();
            digits(value, &mut text);
            assert_eq!(text, value.to_string().into_bytes());
        }
        assert_eq!(number(b"-1"), Some(-1));
        assert_eq!(number(b"1x"), None);
        assert_eq!(number(b""), None);
    }
}
