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

const OPERATIONS: &[MeasuredOperation] = &[
    ("resp-get", 8000, get),
    ("resp-set", 8000, set),
    ("resp-get-pipelined", 8000, get_pipelined),
    ("resp-set-pipelined", 8000, set_pipelined),
];

/// The reply to SET.
const OK: &[u8] = b"+OK\r\n";

/// Requests of a pipeline.
const PIPELINE: usize = 16;

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

/// The GET with this number.
fn get_request(number: u64) -> Vec<u8> {
    request(&[b"GET", &key(number % RECORDS)])
}

/// The SET with this number.
fn set_request(number: u64) -> Vec<u8> {
    request(&[b"SET", &key(number % RECORDS), &VALUE])
}

/// A client of a node that has all records.
fn client_of_records() -> MeasuredResult<SocketlessClient> {
    let mut client = SocketlessClient::new()?;
    (0..RECORDS).try_for_each(|number| client.set(number))?;
    Ok(client)
}

/// The same, whose records were replaced until the heap reuses their memory.
fn client_of_reused_memory() -> MeasuredResult<SocketlessClient> {
    let mut client = SocketlessClient::new()?;
    for round in 0..9 {
        (0..RECORDS).try_for_each(|number| client.set(number * (round + 1) % RECORDS))?;
    }
    Ok(client)
}

/// Sends `inputs` one after the other. Each reply has at least `reply_min` bytes.
fn send(client: &mut SocketlessClient, inputs: &[Vec<u8>], reply_min: usize) -> MeasuredResult {
    let mut next = inputs.iter();
    measured(inputs.len() as u64, |_| {
        let length = client.request(next.next().ok_or("no request")?)?;
        if length < reply_min { Err("a reply is too short".into()) } else { Ok(()) }
    })
}

/// Sends `times` requests in pipelines.
fn send_pipelined(
    client: &mut SocketlessClient,
    times: u64,
    request: fn(u64) -> Vec<u8>,
    reply_min: usize,
) -> MeasuredResult {
    let requests: Vec<Vec<u8>> = (0..times).map(request).collect();
    let inputs: Vec<Vec<u8>> = requests.chunks(PIPELINE).map(<[_]>::concat).collect();
    send(client, &inputs, reply_min)
}

/// GET of a value of 1,000 bytes.
fn get(times: u64) -> MeasuredResult {
    let inputs: Vec<Vec<u8>> = (0..times).map(get_request).collect();
    send(&mut client_of_records()?, &inputs, VALUE.len())
}

/// SET that replaces a value of 1,000 bytes.
fn set(times: u64) -> MeasuredResult {
    let inputs: Vec<Vec<u8>> = (0..times).map(set_request).collect();
    send(&mut client_of_reused_memory()?, &inputs, OK.len())
}

/// GET in pipelines.
fn get_pipelined(times: u64) -> MeasuredResult {
    let reply_min = PIPELINE * VALUE.len();
    send_pipelined(&mut client_of_records()?, times, get_request, reply_min)
}

/// SET in pipelines.
fn set_pipelined(times: u64) -> MeasuredResult {
    let reply_min = PIPELINE * OK.len();
    send_pipelined(&mut client_of_reused_memory()?, times, set_request, reply_min)
}
