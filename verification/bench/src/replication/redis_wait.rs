//! Redis with one or two replicas, without persistence. A write that is waited for is `SET` and
//! `WAIT 1` in one message.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use nearstate_local_cluster::{HostProcess, wait_until};
use nearstate_model::Result;
use nearstate_resp_client::{RespClient, RespReply, TimeoutSocket, encode_request};

use super::{OUTSTANDING, ReplicatedCase, ReplicatedTarget, TargetFolder, failed, key, value};
use crate::peers::installed;
use crate::targets::free_port;

/// The longest start, and the longest reply.
const START_MAX: Duration = Duration::from_secs(20);
const REPLY_MAX: Duration = Duration::from_secs(10);

/// A primary and its replicas.
pub(super) struct RedisWait {
    client: RespClient<TimeoutSocket>,
    /// The primary first.
    servers: Vec<HostProcess>,
    _folder: TargetFolder,
}

fn connect(port: u16) -> Option<RespClient<TimeoutSocket>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TimeoutSocket::tcp(address, REPLY_MAX).ok().map(RespClient::new)
}

impl RedisWait {
    pub(super) fn start(folder: PathBuf, replicas: usize) -> Result<Self> {
        let program = installed("redis-server", "redis")?.to_string_lossy().into_owned();
        let folder = TargetFolder::create(folder)?;
        let start = |port: u16, primary: Option<u16>| {
            HostProcess::redis(&program, port, primary, &folder.0).map_err(failed)
        };
        let primary = free_port()?;
        let mut servers = vec![start(primary, None)?];
        for _ in 0..replicas {
            servers.push(start(free_port()?, Some(primary))?);
        }
        let (mut client, all) = (None, replicas.to_string());
        wait_until("the replicas have what was written", START_MAX, || {
            client = connect(primary);
            let Some(client) = &mut client else { return Ok(false) };
            let set = client.request(&[b"SET", b"ready", b"1"]);
            let wait = client.request(&[b"WAIT", all.as_bytes(), b"100"]);
            let has_all = matches!(wait, Ok(RespReply::Integer(count))
                if usize::try_from(count) == Ok(replicas));
            Ok(set.is_ok() && has_all)
        })
        .map_err(failed)?;
        let client = client.ok_or_else(|| failed("no connection to Redis"))?;
        Ok(Self { client, servers, _folder: folder })
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
        if waits {
            self.waited(1)?;
        }
        Ok(())
    }

    /// Takes the reply of a `WAIT`.
    fn waited(&mut self, replicas: usize) -> Result<()> {
        let reply = self.client.receive().map_err(failed)?;
        if let RespReply::Integer(count) = reply
            && usize::try_from(count).is_ok_and(|count| count >= replicas)
        {
            return Ok(());
        }
        Err(failed(format!("WAIT: the replicas do not have it: {reply:?}")))
    }

    fn replicas(&self) -> usize {
        self.servers.len() - 1
    }
}

impl ReplicatedTarget for RedisWait {
    fn name(&self) -> &'static str {
        if self.replicas() == 1 { "redis-wait" } else { "redis-wait-2" }
    }

    fn durability(&self) -> &'static str {
        if self.replicas() == 1 {
            "two processes, in memory: a fail-over may lose it (another replica may win)"
        } else {
            "two of three processes, in memory: a fail-over may lose it (the other replica may win)"
        }
    }

    fn processes(&self) -> Vec<u32> {
        self.servers.iter().map(HostProcess::id).collect()
    }

    fn followers(&self) -> Vec<u32> {
        self.servers.iter().skip(1).map(HostProcess::id).collect()
    }

    fn read(&mut self, _: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>> {
        let reply = self.client.request(&[b"GET", key(number).as_bytes()]).map_err(failed)?;
        reply.into_bulk().map_err(failed)
    }

    fn wait_replicated(&mut self) -> Result<Vec<u64>> {
        let (replicas, mut request) = (self.replicas(), Vec::new());
        encode_request(&[b"WAIT", replicas.to_string().as_bytes(), b"10000"], &mut request);
        self.client.send(&request).map_err(failed)?;
        self.waited(replicas).map(|()| Vec::new())
    }

    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool> {
        match case {
            ReplicatedCase::Put => self.set(number..number + 1, false)?,
            ReplicatedCase::Update | ReplicatedCase::Insert | ReplicatedCase::Steady => {
                return Ok(false);
            }
            ReplicatedCase::PutAndWait => self.set(number..number + 1, true)?,
            ReplicatedCase::Outstanding => self.set(number..number + OUTSTANDING, true)?,
        }
        Ok(true)
    }
}
