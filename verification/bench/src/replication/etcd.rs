//! etcd with three members in memory, over gRPC: `put` of one connection, or of 64 requests at a
//! time on one.
//!
//! The two messages that this needs are encoded here: a library of gRPC would bring code generation
//! for them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use nearstate_local_cluster::{HostProcess, wait_until};
use nearstate_model::Result;
use tokio::runtime::Runtime;

use super::{OUTSTANDING, ReplicatedCase, ReplicatedTarget, TargetFolder, failed, key, value};
use crate::clock::monotonic_ns as now_ns;
use crate::peers::program;
use crate::targets::free_port;

/// The longest start.
const START_MAX: Duration = Duration::from_secs(30);

/// Puts by which the leader is found: through another member a put takes one more hop.
const TRIAL_PUTS: u64 = 50;

const MEMBERS: usize = 3;

/// Three members, and a connection to their leader.
pub(super) struct Etcd {
    runtime: Runtime,
    client: SendRequest<Bytes>,
    members: Vec<HostProcess>,
    _folder: TargetFolder,
}

/// A field of bytes of a message of Protocol Buffers.
fn field(number: u8, bytes: &[u8], into: &mut BytesMut) {
    into.put_u8(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        into.put_u8(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    into.put_u8(u8::try_from(length).unwrap_or(0));
    into.extend_from_slice(bytes);
}

/// `PutRequest { key, value }`, or `RangeRequest { key }` without a value, in a frame of gRPC.
fn frame_of(key: &[u8], value: Option<&[u8]>) -> Bytes {
    let mut message = BytesMut::new();
    field(1, key, &mut message);
    if let Some(value) = value {
        field(2, value, &mut message);
    }
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(&message);
    frame.freeze()
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Bytes>> {
    let stream = tokio::net::TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let (client, connection) = h2::client::handshake(stream).await.map_err(failed)?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// One put, until it is committed.
async fn put(client: SendRequest<Bytes>, number: u64) -> Result<()> {
    let frame = frame_of(key(number).as_bytes(), Some(&value(number)));
    call(client, "Put", frame).await.map(drop)
}

/// The value of a field of a message of Protocol Buffers that has bytes.
fn bytes_of(mut message: &[u8], wanted: u64) -> Option<&[u8]> {
    let number = |message: &mut &[u8]| {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let (byte, rest) = message.split_first()?;
            *message = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
    };
    loop {
        let tag = number(&mut message)?;
        let length = number(&mut message)?;
        // A field is a number, which has been read, or has a length and bytes.
        if tag & 7 == 2 {
            let (bytes, rest) = message.split_at_checked(usize::try_from(length).ok()?)?;
            if tag >> 3 == wanted {
                return Some(bytes);
            }
            message = rest;
        }
    }
}

/// The value in a frame with a `RangeResponse`: in the first of its `kvs`.
fn value_in(frame: &[u8]) -> Option<Vec<u8>> {
    let found = bytes_of(frame.get(5..)?, 2)?;
    bytes_of(found, 5).map(<[u8]>::to_vec)
}

/// A call of a method. Returns the body of the response.
async fn call(client: SendRequest<Bytes>, method: &str, frame: Bytes) -> Result<BytesMut> {
    let request = Request::post(format!("http://127.0.0.1/etcdserverpb.KV/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(failed)?;
    let mut client = client.ready().await.map_err(failed)?;
    let (response, mut stream) = client.send_request(request, false).map_err(failed)?;
    stream.send_data(frame, true).map_err(failed)?;
    let mut body = response.await.map_err(failed)?.into_body();
    let mut received = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(failed)?;
        body.flow_control().release_capacity(chunk.len()).map_err(failed)?;
        received.extend_from_slice(&chunk);
    }
    let trailers = body.trailers().await.map_err(failed)?;
    let status = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
    match status {
        Some(status) if status == "0" => Ok(received),
        status => Err(failed(format!("etcd: grpc-status {status:?}"))),
    }
}

impl Etcd {
    pub(super) fn start(folder: PathBuf) -> Result<Self> {
        let etcd = program("etcd")
            .ok_or_else(|| failed("etcd is not installed: apt-get install -y etcd-server"))?;
        let folder = TargetFolder::create(folder)?;
        let mut ports = Vec::new();
        for _ in 0..MEMBERS {
            ports.push((free_port()?, free_port()?));
        }
        let all = ports.iter().enumerate();
        let all = all.map(|(member, (_, peer))| format!("m{member}=http://127.0.0.1:{peer}"));
        let all = all.collect::<Vec<_>>().join(",");
        let mut members = Vec::new();
        for (member, (client, peer)) in ports.iter().enumerate() {
            let (client, peer) =
                (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
            let (name, dir) = (format!("m{member}"), folder.0.join(format!("m{member}")));
            let (program, dir) = (etcd.to_string_lossy(), dir.to_string_lossy());
            let mut words = vec![program.as_ref(), "--name", &name, "--data-dir", &dir];
            words.extend(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            words.extend(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            words.extend(["--initial-cluster", &all, "--logger", "zap", "--log-level", "error"]);
            let log = folder.0.join(format!("m{member}.log"));
            members.push(HostProcess::start(&[], &words, &log).map_err(failed)?);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let addresses: Vec<_> =
            ports.iter().map(|(client, _)| SocketAddr::from(([127, 0, 0, 1], *client))).collect();
        let client = leader(&runtime, &addresses)?;
        Ok(Self { runtime, client, members, _folder: folder })
    }
}

/// A connection to the member with the fastest puts, once all members serve.
fn leader(runtime: &Runtime, addresses: &[SocketAddr]) -> Result<SendRequest<Bytes>> {
    let mut found: Vec<(u64, SendRequest<Bytes>)> = Vec::new();
    for address in addresses {
        let mut connected = None;
        wait_until("etcd serves", START_MAX, || {
            let served = runtime.block_on(async {
                let client = connect(*address).await?;
                put(client.clone(), 0).await.map(|()| client)
            });
            connected = served.ok();
            Ok(connected.is_some())
        })
        .map_err(failed)?;
        let client = connected.ok_or_else(|| failed("no connection to etcd"))?;
        let begin = now_ns();
        runtime.block_on(async {
            for number in 0..TRIAL_PUTS {
                put(client.clone(), number).await?;
            }
            Ok::<_, nearstate_model::Error>(())
        })?;
        found.push((now_ns() - begin, client));
    }
    let fastest = found.into_iter().min_by_key(|(ns, _)| *ns);
    fastest.map(|(_, client)| client).ok_or_else(|| failed("etcd has no members"))
}

impl ReplicatedTarget for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn durability(&self) -> &'static str {
        "two of three members, on tmpfs here (fsync costs nothing): survives one host"
    }

    fn processes(&self) -> Vec<u32> {
        self.members.iter().map(HostProcess::id).collect()
    }

    fn read(&mut self, _: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>> {
        let frame = frame_of(key(number).as_bytes(), None);
        let response = self.runtime.block_on(call(self.client.clone(), "Range", frame))?;
        Ok(value_in(&response))
    }

    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool> {
        let client = &self.client;
        match case {
            ReplicatedCase::Put
            | ReplicatedCase::Update
            | ReplicatedCase::Insert
            | ReplicatedCase::Steady => return Ok(false),
            ReplicatedCase::PutAndWait => self.runtime.block_on(put(client.clone(), number))?,
            ReplicatedCase::Outstanding => self.runtime.block_on(async {
                let puts: Vec<_> = (number..number + OUTSTANDING)
                    .map(|number| tokio::spawn(put(client.clone(), number)))
                    .collect();
                for put in puts {
                    put.await.map_err(failed)??;
                }
                Ok::<_, nearstate_model::Error>(())
            })?,
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_encoded_as_grpc_and_protocol_buffers_do() {
        let frame = frame_of(b"k", Some(&[7; 200]));
        assert_eq!(frame.get(..10), Some(&[0, 0, 0, 0, 206, 0x0a, 1, b'k', 0x12, 0xc8][..]));
        assert_eq!((frame.len(), frame.get(10)), (211, Some(&1)));
    }

    #[test]
    fn the_value_of_the_first_record_of_a_response_is_found() {
        let (mut record, mut response) = (BytesMut::new(), BytesMut::from(&[0; 5][..]));
        field(1, b"key", &mut record);
        // The revision 300, as a number.
        record.extend_from_slice(&[0x10, 0xac, 0x02]);
        field(5, &[7; 200], &mut record);
        field(1, b"header", &mut response);
        assert_eq!(value_in(&response), None, "no record was found");
        field(2, &record, &mut response);
        assert_eq!(value_in(&response), Some(vec![7; 200]));
    }
}
