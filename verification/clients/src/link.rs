//! A connection that says what it is told and hands replies back as they came.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::wire::{Reply, request};

/// Longer than any reply takes on a busy machine: a server that does not answer fails a test, and
/// does not hang it.
const REPLY_MAX: Duration = Duration::from_secs(60);

/// A connection.
#[derive(Debug)]
pub struct Link {
    stream: BufReader<TcpStream>,
}

impl Link {
    /// Connects, and changes to this version of the protocol.
    ///
    /// # Errors
    /// Why there is no connection.
    pub fn open(address: SocketAddr, protocol: u8) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|why| format!("{address}: {why}"))?;
        stream.set_nodelay(true).map_err(|why| why.to_string())?;
        stream.set_read_timeout(Some(REPLY_MAX)).map_err(|why| why.to_string())?;
        stream.set_write_timeout(Some(REPLY_MAX)).map_err(|why| why.to_string())?;
        let mut link = Self { stream: BufReader::new(stream) };
        let greeting = link.ask(&[b"HELLO".to_vec(), protocol.to_string().into_bytes()])?;
        let wanted = if protocol == 3 { b'%' } else { b'*' };
        if greeting.kind() == wanted { Ok(link) } else { Err(format!("HELLO: {greeting}")) }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// Why they cannot be sent.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.get_mut().write_all(bytes).map_err(|why| format!("cannot send: {why}"))
    }

    /// The next reply.
    ///
    /// # Errors
    /// Why there is none.
    pub fn reply(&mut self) -> Result<Reply, String> {
        Reply::read(&mut self.stream)
    }

    /// One request and its reply.
    ///
    /// # Errors
    /// Why there is none.
    pub fn ask(&mut self, words: &[Vec<u8>]) -> Result<Reply, String> {
        self.send(&request(words))?;
        self.reply()
    }
}
