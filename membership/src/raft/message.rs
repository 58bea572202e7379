//! The messages between members. A connection begins with a hello; then each request has one reply.
//!
//! A message is its size (4 bytes), its check value (8 bytes) and JSON. Every size is checked
//! before memory is taken for it.

use std::collections::BTreeSet;
use std::io;

use nearstate_node::{ENGINE_COMMAND_BYTES_MAX, SNAPSHOT_BYTES_MAX, SharedSettings};
use nearstate_wire::SettingsSummary;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{EntryPayload, RaftLogId as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use xxhash_rust::xxh3::xxh3_64;

use crate::limits::MESSAGE_BYTES_MAX;

use super::types::TypeConfig;

/// The format of the messages.
pub(crate) const FORMAT: u32 = 2;

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberHello {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// The name of the cluster.
    pub(crate) cluster: String,
    /// The host that has connected.
    pub(crate) from: u64,
    /// The host that it means to reach.
    pub(crate) to: u64,
    /// The settings that all hosts share.
    pub(crate) settings: HelloSettings,
}

/// The settings of a host: see [`SettingsSummary`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HelloSettings {
    digest: [u8; 16],
    text: String,
}

impl HelloSettings {
    pub(crate) fn of(settings: &SharedSettings) -> Self {
        let SettingsSummary { digest, text } = settings.summary();
        Self { digest, text: text.to_owned() }
    }

    /// A text that is too long is one that does not fit into a hello.
    pub(crate) fn summary(&self) -> SettingsSummary<'_> {
        SettingsSummary { digest: self.digest, text: &self.text }
    }
}

/// A request of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum MemberRequest {
    Append(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<TypeConfig>),
    /// A command that the leader is to order.
    Propose(Vec<u8>),
    /// What the member reports of itself.
    Report,
    /// The leader lets a host vote, or takes its vote.
    ChangeVote {
        host: u64,
        votes: bool,
        /// The voters that were looked at. Hosts of earlier versions send none, and ignore them.
        #[serde(default)]
        checked: Option<BTreeSet<u64>>,
    },
}

/// The reply to a request, or to a hello.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum MemberReply {
    /// The hello is accepted.
    Welcome,
    Append(AppendEntriesResponse<u64>),
    Vote(VoteResponse<u64>),
    Snapshot(InstallSnapshotResponse<u64>),
    /// The command was applied with this index.
    Proposed(u64),
    /// The vote of the host was changed.
    VoteChanged,
    /// Nothing was changed: these hosts vote, not those that were looked at. Only for a request
    /// that names them.
    OtherVoters(BTreeSet<u64>),
    /// What the member reports of itself.
    Report(String),
    /// The member does not do it.
    Refused(String),
}

impl MemberRequest {
    /// Checks what the engine relies on, and that the member speaks for itself.
    pub(crate) fn check(&self, from: u64) -> Result<(), String> {
        let speaks_for = |vote: &openraft::Vote<u64>| {
            let named = vote.leader_id.voted_for();
            if named == Some(from) {
                return Ok(());
            }
            Err(format!("host {from} sends a message of {named:?}"))
        };
        match self {
            Self::Append(request) => {
                speaks_for(&request.vote)?;
                let mut next = request.prev_log_id.map_or(0, |id| id.index.saturating_add(1));
                for entry in &request.entries {
                    let index = entry.get_log_id().index;
                    if index != next {
                        return Err(format!("entry {index} is at the place of entry {next}"));
                    }
                    next = next.saturating_add(1);
                    if let EntryPayload::Normal(command) = &entry.payload {
                        check_command(&command.0)?;
                    }
                }
                Ok(())
            }
            Self::Vote(request) => speaks_for(&request.vote),
            Self::Snapshot(request) => {
                speaks_for(&request.vote)?;
                let end = request.offset.saturating_add(request.data.len() as u64);
                if end > SNAPSHOT_BYTES_MAX as u64 {
                    return Err(format!("a snapshot of {end} bytes"));
                }
                Ok(())
            }
            Self::Propose(command) => check_command(command),
            Self::Report | Self::ChangeVote { .. } => Ok(()),
        }
    }
}

fn check_command(command: &[u8]) -> Result<(), String> {
    if command.len() > ENGINE_COMMAND_BYTES_MAX {
        return Err(format!("a command of {} bytes", command.len()));
    }
    Ok(())
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Sends a message.
pub(crate) async fn send<S>(stream: &mut S, message: &impl Serialize) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    let payload = serde_json::to_vec(message)?;
    let size = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= MESSAGE_BYTES_MAX);
    let size = size.ok_or_else(|| invalid(format!("a message of {} bytes", payload.len())))?;
    let check = xxh3_64(&payload).to_le_bytes();
    let parts: [&[u8]; 3] = [&size.to_le_bytes(), &check, &payload];
    stream.write_all(&parts.concat()).await?;
    stream.flush().await
}

/// Receives a message of at most `bytes_max` bytes.
pub(crate) async fn receive<T, S>(stream: &mut S, bytes_max: usize) -> io::Result<T>
where
    T: DeserializeOwned,
    S: AsyncRead + Unpin,
{
    let mut size = [0; 4];
    stream.read_exact(&mut size).await?;
    let mut check = [0; 8];
    stream.read_exact(&mut check).await?;
    let size = u32::from_le_bytes(size) as usize;
    if size > bytes_max {
        return Err(invalid(format!("a message of {size} bytes, at most {bytes_max} are allowed")));
    }
    let mut payload = vec![0; size];
    stream.read_exact(&mut payload).await?;
    if xxh3_64(&payload).to_le_bytes() != check {
        return Err(invalid("the check value of a message is wrong".to_owned()));
    }
    serde_json::from_slice(&payload).map_err(|error| invalid(format!("no valid message ({error})")))
}
