//! Clients that cost little: in turns all of them ask, and then all of them read.
//!
//! What limits a comparison of servers is often the load, not the server. These clients make two
//! system calls for each request (or for each pipeline of requests), wait in `read` instead of in
//! an event loop, and never wait for one answer while others could still be asked for.

use crate::keeper::system;
use crate::legacy::content::mix;
use crate::legacy::protocol::monotonic_ns;
use crate::stat::Latencies;
use nearstate_model::{Error, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A server that says nothing for so long does not work: nobody wants to wait for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lines of numbers, and of errors, are shorter.
const LINE_BYTES_MAX: usize = 1024;

/// Requests that are sent at once while records are loaded.
const LOADED_AT_ONCE: usize = 64;

/// One client's connection.
#[derive(Debug)]
pub struct Link(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Link {
    /// Over TCP, without delays.
    ///
    /// # Errors
    /// `System`: the server refuses it.
    pub fn tcp(address: SocketAddr) -> Result<Self> {
        TcpStream::connect_timeout(&address, PATIENCE)
            .and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(Self(Socket::Tcp(stream)))
            })
            .map_err(|e| system(&format!("connecting to {address}"), &e))
    }

    /// Over a Unix socket.
    ///
    /// # Errors
    /// `System`: the server refuses it.
    pub fn unix(path: &Path) -> Result<Self> {
        UnixStream::connect(path)
            .and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(Self(Socket::Unix(stream)))
            })
            .map_err(|e| system(&format!("connecting to {}", path.display()), &e))
    }

    /// Asks whether the server is there.
    ///
    /// # Errors
    /// `System`, `Backend`: it is not, or answers something else.
    pub fn ping(&mut self) -> Result<()> {
        self.send(b"*1\r\n$4\r\nPING\r\n")?;
        let mut answer = [0; 7];
        self.receive(&mut answer)?;
        if &answer == b"+PONG\r\n" { Ok(()) } else { Err(unexpected(&answer)) }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.0 {
            Socket::Tcp(stream) => stream.write_all(bytes),
            Socket::Unix(stream) => stream.write_all(bytes),
        }
        .map_err(|e| system("asking a server", &e))
    }

    pub(super) fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        match &mut self.0 {
            Socket::Tcp(stream) => stream.read_exact(bytes),
            Socket::Unix(stream) => stream.read_exact(bytes),
        }
        .map_err(|e| system("reading a server's answer", &e))
    }

    /// A line, without its end; lines of a header are short.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let mut byte = [0];
        while line.len() < LINE_BYTES_MAX {
            self.receive(&mut byte)?;
            match byte {
                [b'\r'] => {
                    self.receive(&mut byte)?;
                    return Ok(line);
                }
                [other] => line.push(char::from(other)),
            }
        }
        Err(unexpected(line.as_bytes()))
    }

    /// A step of a walk over all keys; where the next one begins, 0 at the end.
    ///
    /// # Errors
    /// Those of the connection, and an answer that is none.
    pub fn scan(&mut self, cursor: u64, count: u64) -> Result<u64> {
        self.send(format!("SCAN {cursor} COUNT {count}\r\n").as_bytes())?;
        let (_, _) = (self.line()?, self.line()?);
        let next = self.line()?;
        let keys = self.line()?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| unexpected(text.as_bytes()));
        let keys = number(keys.strip_prefix('*').unwrap_or_default())?;
        let one = "$16\r\nkey:000000000000\r\n".len() as u64;
        let mut rest = vec![0; usize::try_from(keys * one).unwrap_or_default()];
        self.receive(&mut rest)?;
        number(&next)
    }
}

fn unexpected(answer: &[u8]) -> Error {
    let said: String = String::from_utf8_lossy(answer).chars().take(100).collect();
    Error::Backend { detail: format!("a server answered {said:?}") }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A record that is there.
    Get,
    /// The same record anew.
    Set,
}

impl Asked {
    /// As tables say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Set => "SET",
        }
    }
}

/// The records that are asked for.
#[derive(Clone, Debug)]
pub struct Records {
    /// How many.
    pub keys: u64,
    value: Vec<u8>,
    /// What a GET is answered.
    answer: Vec<u8>,
    dice: u64,
}

impl Records {
    /// So many, with values of so many bytes.
    pub fn new(keys: u64, value_bytes: u64, seed: u64) -> Self {
        let bytes = usize::try_from(value_bytes).unwrap_or(usize::MAX);
        let value: Vec<u8> =
            (0..bytes).map(|at| b'a' + u8::try_from(at % 26).unwrap_or_default()).collect();
        let answer = [format!("${bytes}\r\n").as_bytes(), &value, b"\r\n"].concat();
        Self { keys, value, answer, dice: seed }
    }

    /// Stores all of them.
    ///
    /// # Errors
    /// Those of the connection, and an answer that is none.
    pub fn load(&self, link: &mut Link) -> Result<()> {
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        let mut next = 0;
        while next < self.keys {
            let end = self.keys.min(next + LOADED_AT_ONCE as u64);
            requests.clear();
            (next..end).for_each(|key| self.request(Asked::Set, key, &mut requests));
            let count = usize::try_from(end - next).unwrap_or_default();
            link.send(&requests)?;
            self.judge(link, Asked::Set, count, &mut answers)?;
            next = end;
        }
        Ok(())
    }

    fn request(&self, asked: Asked, key: u64, out: &mut Vec<u8>) {
        let written = match asked {
            Asked::Get => write!(out, "*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n"),
            Asked::Set => {
                let length = self.value.len();
                write!(out, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${length}\r\n")
            }
        };
        debug_assert!(written.is_ok(), "memory takes everything");
        if asked == Asked::Set {
            out.extend_from_slice(&self.value);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn any(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(1);
        mix(self.dice) % self.keys.max(1)
    }

    /// Reads the answers to `count` requests, and compares the first one byte for byte.
    fn judge(&self, link: &mut Link, asked: Asked, count: usize, into: &mut Vec<u8>) -> Result<()> {
        let one: &[u8] = match asked {
            Asked::Set => b"+OK\r\n",
            Asked::Get => &self.answer,
        };
        into.resize(one.len() * count, 0);
        link.receive(into)?;
        if into.starts_with(one) { Ok(()) } else { Err(unexpected(into)) }
    }
}

/// Some clients, and what they ask.
#[derive(Debug)]
pub struct Traffic<'r> {
    records: &'r mut Records,
    links: Vec<Link>,
    asked: Asked,
    pipeline: usize,
    requests: Vec<u8>,
    answers: Vec<u8>,
    sent: Vec<u64>,
}

impl<'r> Traffic<'r> {
    /// Clients on these connections; each sends `pipeline` requests at once.
    pub fn new(records: &'r mut Records, links: Vec<Link>, asked: Asked, pipeline: usize) -> Self {
        let (requests, answers, sent) = (Vec::new(), Vec::new(), Vec::new());
        Self { records, links, asked, pipeline, requests, answers, sent }
    }

    /// At least so many requests. How many it were. `told` is given the time of each pipeline.
    ///
    /// # Errors
    /// Those of the connections, and an answer that is none.
    pub fn run(&mut self, requests: u64, mut told: Option<&mut Latencies>) -> Result<u64> {
        let mut done = 0;
        while done < requests {
            self.sent.clear();
            for link in &mut self.links {
                self.requests.clear();
                for _ in 0..self.pipeline {
                    let key = self.records.any();
                    self.records.request(self.asked, key, &mut self.requests);
                }
                if told.is_some() {
                    self.sent.push(monotonic_ns());
                }
                link.send(&self.requests)?;
                done += self.pipeline as u64;
            }
            for (at, link) in self.links.iter_mut().enumerate() {
                self.records.judge(link, self.asked, self.pipeline, &mut self.answers)?;
                if let (Some(told), Some(sent)) = (told.as_deref_mut(), self.sent.get(at)) {
                    told.record(monotonic_ns().saturating_sub(*sent), 1);
                }
            }
        }
        Ok(done)
    }
}
