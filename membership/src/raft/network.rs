//! Requests to other members. Each target of openraft has a connection of its own, on which one
//! request follows the other; a request that fails or takes too long closes it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, Timeout, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, RPCTypes, RaftLogId as _};

use crate::limits::MESSAGE_BYTES_MAX;

use super::config::MembershipConfig;
use super::connection::{MemberStream, MemberTls};
use super::heard::HeardHosts;
use super::message::{
    FORMAT, HelloSettings, MemberHello, MemberReply, MemberRequest, receive, send,
};
use super::types::{LogId, TypeConfig};

/// The way to one member.
pub(crate) struct MemberClient {
    config: Arc<MembershipConfig>,
    target: u64,
    stream: Option<Box<dyn MemberStream>>,
}

impl MemberClient {
    pub(crate) fn new(config: Arc<MembershipConfig>, target: u64) -> Self {
        Self { config, target, stream: None }
    }

    pub(crate) fn target(&self) -> u64 {
        self.target
    }

    async fn connect(&self) -> io::Result<Box<dyn MemberStream>> {
        let config = &self.config;
        let Some(member) = config.members.get(&self.target) else {
            return Err(io::Error::other(format!("host {} is not configured", self.target)));
        };
        let tls = config.tls.as_ref();
        let target = (member.address, member.name.as_str());
        let mut stream = MemberTls::connect(tls, target, config.request_max()).await?;
        let hello = MemberHello {
            format: FORMAT,
            cluster: config.cluster.clone(),
            from: config.host,
            to: self.target,
            settings: HelloSettings::of(&config.settings),
        };
        send(&mut stream, &hello).await?;
        match receive(&mut stream, MESSAGE_BYTES_MAX).await? {
            MemberReply::Welcome => Ok(stream),
            reply @ (MemberReply::Append(_)
            | MemberReply::Vote(_)
            | MemberReply::Snapshot(_)
            | MemberReply::Proposed(_)
            | MemberReply::VoteChanged
            | MemberReply::OtherVoters(_)
            | MemberReply::Report(_)
            | MemberReply::Refused(_)) => Err(unexpected(&reply)),
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn call(
        &mut self,
        request: &MemberRequest,
        max: Duration,
    ) -> io::Result<MemberReply> {
        // The connection is put back only after a reply: a call that was given up closes it.
        let stream = self.stream.take();
        let exchange = async {
            let mut stream = match stream {
                Some(stream) => stream,
                None => self.connect().await?,
            };
            send(&mut stream, request).await?;
            let reply = receive(&mut stream, MESSAGE_BYTES_MAX).await?;
            Ok::<_, io::Error>((stream, reply))
        };
        let (stream, reply) = tokio::time::timeout(max, exchange)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no reply in time"))??;
        self.stream = Some(stream);
        Ok(reply)
    }
}

pub(crate) fn unexpected(reply: &MemberReply) -> io::Error {
    match reply {
        MemberReply::Refused(reason) => io::Error::other(reason.clone()),
        MemberReply::Welcome
        | MemberReply::Append(_)
        | MemberReply::Vote(_)
        | MemberReply::Snapshot(_)
        | MemberReply::Proposed(_)
        | MemberReply::VoteChanged
        | MemberReply::OtherVoters(_)
        | MemberReply::Report(_) => io::Error::other("the reply belongs to another request"),
    }
}

/// Makes the clients of openraft.
#[derive(Clone, Debug)]
pub(crate) struct NetworkFactory {
    pub(crate) config: Arc<MembershipConfig>,
    pub(crate) heard: Arc<HeardHosts>,
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = MemberNetwork;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> MemberNetwork {
        MemberNetwork {
            client: MemberClient::new(Arc::clone(&self.config), target),
            heard: Arc::clone(&self.heard),
            acknowledged: None,
        }
    }
}

/// The way of openraft to one member.
pub(crate) struct MemberNetwork {
    client: MemberClient,
    heard: Arc<HeardHosts>,
    /// The last entry that the member has acknowledged to this leader.
    acknowledged: Option<LogId>,
}

impl MemberNetwork {
    async fn request<E: std::error::Error>(
        &mut self,
        (action, request): (RPCTypes, MemberRequest),
        option: &RPCOption,
    ) -> Result<MemberReply, RPCError<u64, BasicNode, E>> {
        let timeout = option.hard_ttl();
        let called = self.client.call(&request, timeout).await;
        if let Ok(MemberReply::Append(_) | MemberReply::Snapshot(_)) = &called {
            self.heard.note_answer(self.client.target);
        }
        called.map_err(|error| {
            if error.kind() == io::ErrorKind::TimedOut {
                let (id, target) = (self.client.config.host, self.client.target);
                return RPCError::Timeout(Timeout { action, id, target, timeout });
            }
            RPCError::Unreachable(Unreachable::new(&error))
        })
    }
}

impl MemberNetwork {
    /// A member that does not have what it has acknowledged has lost its directory. Openraft takes
    /// that for a bug, and panics. It is told of a failed request, and goes on with the others.
    fn checked<E: std::error::Error>(
        &mut self,
        (previous, last): (Option<LogId>, Option<LogId>),
        reply: AppendEntriesResponse<u64>,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, E>> {
        match &reply {
            AppendEntriesResponse::Success => {
                self.acknowledged = self.acknowledged.max(last);
            }
            AppendEntriesResponse::PartialSuccess(upto) => {
                self.acknowledged = self.acknowledged.max(*upto);
            }
            AppendEntriesResponse::Conflict if previous <= self.acknowledged => {
                let reason = "the member lacks what it has acknowledged: its directory is lost";
                return Err(RPCError::Network(NetworkError::new(&io::Error::other(reason))));
            }
            AppendEntriesResponse::Conflict | AppendEntriesResponse::HigherVote(_) => {}
        }
        Ok(reply)
    }
}

fn wrong<E: std::error::Error>(reply: &MemberReply) -> RPCError<u64, BasicNode, E> {
    RPCError::Network(NetworkError::new(&unexpected(reply)))
}

impl RaftNetwork<TypeConfig> for MemberNetwork {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let previous = rpc.prev_log_id;
        let last = rpc.entries.last().map(|entry| *entry.get_log_id()).or(previous);
        let request = (RPCTypes::AppendEntries, MemberRequest::Append(rpc));
        match self.request(request, &option).await? {
            MemberReply::Append(reply) => self.checked((previous, last), reply),
            reply @ (MemberReply::Welcome
            | MemberReply::Vote(_)
            | MemberReply::Snapshot(_)
            | MemberReply::Proposed(_)
            | MemberReply::VoteChanged
            | MemberReply::OtherVoters(_)
            | MemberReply::Report(_)
            | MemberReply::Refused(_)) => Err(wrong(&reply)),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<
        InstallSnapshotResponse<u64>,
        RPCError<u64, BasicNode, RaftError<u64, InstallSnapshotError>>,
    > {
        let request = (RPCTypes::InstallSnapshot, MemberRequest::Snapshot(rpc));
        match self.request(request, &option).await? {
            MemberReply::Snapshot(reply) => Ok(reply),
            reply @ (MemberReply::Welcome
            | MemberReply::Append(_)
            | MemberReply::Vote(_)
            | MemberReply::Proposed(_)
            | MemberReply::VoteChanged
            | MemberReply::OtherVoters(_)
            | MemberReply::Report(_)
            | MemberReply::Refused(_)) => Err(wrong(&reply)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        match self.request((RPCTypes::Vote, MemberRequest::Vote(rpc)), &option).await? {
            MemberReply::Vote(reply) => Ok(reply),
            reply @ (MemberReply::Welcome
            | MemberReply::Append(_)
            | MemberReply::Snapshot(_)
            | MemberReply::Proposed(_)
            | MemberReply::VoteChanged
            | MemberReply::OtherVoters(_)
            | MemberReply::Report(_)
            | MemberReply::Refused(_)) => Err(wrong(&reply)),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(self.client.config.heartbeat()))
    }
}
