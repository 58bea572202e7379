//! Redis with one replica, both without persistence. A write that is waited for is `SET` and `WAIT`
//! in one message.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use nearstate_local_cluster::{HostProcess, wait_until};
use nearstate_model::Result;
use nearstate_resp_client::{RespClient, RespReply, encode_request};

use super::{OUTSTANDING, ReplicatedCase, ReplicatedTarget, failed, key, value};
use crate::peers::installed;
use crate::targets::free_port;

/// The longest start, and the longest reply.
const START_MAX: Duration = Duration::from_secs(20);
const REPLY_MAX: Duration = Duration::from_secs(10);

/// A primary and its replica.
pub(super) struct RedisWait {
    client: RespClient<TcpStream>,
    servers: [HostProcess; 2],
    folder: PathBuf,
}

fn connect(port: u16) -> Option<RespClient<TcpStream>> {
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(REPLY_MAX)).ok()?;
    Some(RespClient::new(stream))
}

impl RedisWait {
    pub(super) fn start(folder: PathBuf) -> Result<Self> {
        let program = installed("redis-server", "redis")?.to_string_lossy().into_owned();
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let ports = [free_port()?, free_port()?];
        let start = |port: u16, of: Option<u16>| {
            let [port, of] =
                [Some(port), of].map(|port| port.map_or(String::new(), |p| p.to_string()));
            let dir = folder.to_string_lossy();
            let mut words = vec![program.as_str(), "--bind", "127.0.0.1", "--port", &port];
            words.extend(["--save", "", "--appendonly", "no", "--dir", &dir]);
            // The replica gets the first copy over the socket, at once.
            words.extend(["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]);
            if !of.is_empty() {
                words.extend(["--replicaof", "127.0.0.1", &of]);
            }
            HostProcess::start(&[], &words, &folder.join("log")).map_err(failed)
        };
        let [primary, replica] = ports;
        let servers = [start(primary, None)?, start(replica, Some(primary))?];
        let mut client = None;
        wait_until("a replica has what was written", START_MAX, || {
            client = connect(primary);
            let Some(client) = &mut client else { return Ok(false) };
            let set = client.request(&[b"SET", b"ready", b"1"]);
            let wait = client.request(&[b"WAIT", b"1", b"100"]);
            Ok(set.is_ok() && matches!(wait, Ok(RespReply::Integer(1))))
        })
        .map_err(failed)?;
        let client = client.ok_or_else(|| failed("no connection to Redis"))?;
        Ok(Self { client, servers, folder })
    }

    fn set(&mut self, numbers: std::ops::Range<u64>, waits: bool) -> Result<()> {
        let (mut request, count) = (Vec::new(), numbers.end - numbers.start);
        for number in numbers {
            encode_request(&[b"SET", key(number).as_bytes(), &value(number)], &mut request);
        }
        if waits {
            encode_request(&[b"WAIT", b"1", b"10000"], &mut request);
        }
        self.client.send(&request).map_err(failed)?;
        for _ in 0..count {
            if !self.client.receive().map_err(failed)?.is_ok() {
                return Err(failed("SET was refused"));
            }
        }
        if waits && self.client.receive().map_err(failed)? != RespReply::Integer(1) {
            return Err(failed("WAIT: the replica does not have it"));
        }
        Ok(())
    }
}

impl Drop for RedisWait {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl ReplicatedTarget for RedisWait {
    fn name(&self) -> &'static str {
        "redis-wait"
    }

    fn durability(&self) -> &'static str {
        "two processes, in memory: a fail-over may lose it (another replica may win)"
    }

    fn processes(&self) -> Vec<u32> {
        self.servers.iter().map(HostProcess::id).collect()
    }

    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool> {
        match case {
            ReplicatedCase::Put => self.set(number..number + 1, false)?,
            ReplicatedCase::Update => return Ok(false),
            ReplicatedCase::PutAndWait => self.set(number..number + 1, true)?,
            ReplicatedCase::Outstanding => self.set(number..number + OUTSTANDING, true)?,
        }
        Ok(true)
    }
}
