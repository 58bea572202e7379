//! Requests to the Redis protocol, without a socket: bytes in, bytes out.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use nearstate_instructions::{
    MeasuredOperation, MeasuredResult, RECORDS, VALUE, key, measured, new_region, run,
};
use nearstate_node::clock::Clock;
use nearstate_node::{ConnectionHandler, Core, CoreParts, PeerAddress, PeerIdentity, Protocol};
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{RespServer, RespSettings};
use nearstate_resp::table::TABLE;

const OPERATIONS: &[MeasuredOperation] = &[("resp-get", 8000, get), ("resp-set", 8000, set)];

fn main() -> ExitCode {
    run(OPERATIONS)
}

/// A client's connection to a node of one core.
struct SocketlessClient {
    handler: Box<dyn ConnectionHandler>,
    output: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl SocketlessClient {
    fn new() -> MeasuredResult<Self> {
        let (region, folder) = new_region()?;
        let core = Core::new(CoreParts::single(region, Clock::new_virtual()))?;
        let server = Arc::new(RespServer::new(RespSettings::new(Users::open(&TABLE))));
        let service = RespProtocol::new(server).on_core(&core)?;
        let address = "127.0.0.1:6379".parse()?;
        let address = PeerAddress::Tcp { remote: address, local: address };
        let handler = service.accept(&PeerIdentity { id: 1, address, certificate: None });
        Ok(Self { handler, output: Vec::with_capacity(1 << 16), _folder: folder })
    }

    /// Handles one request. The length of the reply.
    fn request(&mut self, request: &[u8]) -> MeasuredResult<usize> {
        self.output.clear();
        let consumed = self.handler.on_input(request, &mut self.output);
        if consumed.bytes != request.len() || self.output.first() == Some(&b'-') {
            return Err(String::from_utf8_lossy(&self.output).into());
        }
        Ok(self.output.len())
    }

    fn set(&mut self, number: u64) -> MeasuredResult {
        let request = request(&[b"SET", &key(number), &VALUE]);
        self.request(&request).map(drop)
    }
}

/// A request in the form in which clients send it.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// GET of a value of 1,000 bytes.
fn get(times: u64) -> MeasuredResult {
    let mut client = SocketlessClient::new()?;
    (0..RECORDS).try_for_each(|number| client.set(number))?;
    let requests: Vec<Vec<u8>> =
        (0..times).map(|number| request(&[b"GET", &key(number % RECORDS)])).collect();
    let mut next = requests.iter();
    measured(times, |_| {
        let length = client.request(next.next().ok_or("no request")?)?;
        if length < VALUE.len() { Err("no record".into()) } else { Ok(()) }
    })
}

/// SET that replaces a value of 1,000 bytes.
fn set(times: u64) -> MeasuredResult {
    let mut client = SocketlessClient::new()?;
    for round in 0..9 {
        (0..RECORDS).try_for_each(|number| client.set(number * (round + 1) % RECORDS))?;
    }
    let requests: Vec<Vec<u8>> =
        (0..times).map(|number| request(&[b"SET", &key(number % RECORDS), &VALUE])).collect();
    let mut next = requests.iter();
    measured(times, |_| client.request(next.next().ok_or("no request")?).map(drop))
}
