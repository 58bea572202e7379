//! Redis' wire, as much of it as the clients of a node that is killed need.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longer than any answer takes on a busy machine: a node that does not answer ends a run.
const PATIENCE: Duration = Duration::from_secs(60);

/// More than any answer to these clients has.
const PART_MAX: usize = 1 << 20;

/// What the node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR why`
    Error(String),
    /// `:1`
    Number(i64),
    /// A bulk, or none.
    Bulk(Option<Vec<u8>>),
    /// Answers.
    Array(Vec<Self>),
}

impl Reply {
    /// What a bulk holds.
    pub(super) fn bulk(self) -> Result<Option<Vec<u8>>, String> {
        if let Self::Bulk(bytes) = self { Ok(bytes) } else { Err(format!("{self:?} is no bulk")) }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Stop {
    /// The connection has ended: the node is dead.
    Over,
    /// What must not be, in words.
    Bad(String),
}

trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A connection.
pub(super) struct Line(BufReader<Box<dyn Stream>>);

impl Line {
    /// Connects to the Unix socket.
    pub(super) fn unix(path: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(Box::new(stream))))
    }

    /// Connects over TCP.
    pub(super) fn tcp(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(Box::new(stream))))
    }

    /// Sends bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.0.get_mut().write_all(bytes).map_err(|e| ended(&e))
    }

    /// The next answer.
    pub(super) fn receive(&mut self) -> Result<Reply, Stop> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).map_err(|e| ended(&e))?;
        let Some(line) = line.strip_suffix(b"\r\n") else { return Err(Stop::Over) };
        let bad = || Stop::Bad(format!("an answer that is none: {}", line.escape_ascii()));
        let (kind, rest) = line.split_first().ok_or_else(bad)?;
        let text = std::str::from_utf8(rest).map_err(|_| bad())?;
        let number = || text.parse::<i64>().map_err(|_| bad());
        let length = |number: i64| {
            usize::try_from(number).ok().filter(|length| *length <= PART_MAX).ok_or_else(bad)
        };
        match kind {
            b'+' => Ok(Reply::Simple(text.to_owned())),
            b'-' => Ok(Reply::Error(text.to_owned())),
            b':' => Ok(Reply::Number(number()?)),
            b'$' if text == "-1" => Ok(Reply::Bulk(None)),
            b'$' => {
                let mut bulk = vec![0; length(number()?)? + 2];
                self.0.read_exact(&mut bulk).map_err(|e| ended(&e))?;
                bulk.truncate(bulk.len() - 2);
                Ok(Reply::Bulk(Some(bulk)))
            }
            b'*' => {
                let count = length(number()?)?;
                (0..count).map(|_| self.receive()).collect::<Result<_, _>>().map(Reply::Array)
            }
            _ => Err(bad()),
        }
    }

    /// Sends a request and returns its answer. An answer that does not come, or is an error, must
    /// not be.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Result<Reply, String> {
        let mut bytes = Vec::new();
        request(words, &mut bytes);
        match self.send(&bytes).and_then(|()| self.receive()) {
            Ok(Reply::Error(error)) => Err(format!("the node says {error}")),
            Ok(reply) => Ok(reply),
            Err(Stop::Over) => Err("the node has closed a connection".to_owned()),
            Err(Stop::Bad(error)) => Err(error),
        }
    }
}

/// A connection that has ended is what a kill looks like; one that hangs is not.
fn ended(error: &std::io::Error) -> Stop {
    let is_late = [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind());
    if is_late { Stop::Bad(format!("no answer in {PATIENCE:?}")) } else { Stop::Over }
}

/// Writes a request.
pub(super) fn request(words: &[&[u8]], into: &mut Vec<u8>) {
    into.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        into.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        into.extend_from_slice(word);
        into.extend_from_slice(b"\r\n");
    }
}
