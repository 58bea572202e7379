//! How a host takes part in the engine.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_node::StateMachine;
use openraft::SnapshotPolicy;

use crate::limits::{ENTRIES_KEPT, ENTRIES_SENT_MAX, SNAPSHOT_INTERVAL, SNAPSHOT_PART_BYTES};

use super::connection::MemberTls;

/// A host that may vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftMember {
    /// Its name, which its certificate has.
    pub name: String,
    /// Where it listens for other members.
    pub address: SocketAddr,
}

/// Makes the state machine in its first state.
pub type MachineFactory = Arc<dyn Fn() -> Box<dyn StateMachine> + Send + Sync>;

/// Tells what a host reports of itself.
pub type ReportSource = Arc<dyn Fn() -> String + Send + Sync>;

/// How this host takes part.
#[derive(Clone)]
pub struct RaftConfig {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of this host.
    pub host: u64,
    /// All hosts, this one included.
    pub members: BTreeMap<u64, RaftMember>,
    /// The directory of vote, log and snapshot.
    pub directory: PathBuf,
    /// A host that has not heard the leader for this long, or up to a third longer, stands for
    /// election.
    pub election: Duration,
    /// Certificates. `None`: plain text.
    pub tls: Option<MemberTls>,
    /// Makes the state machine in its first state.
    pub machine: MachineFactory,
    /// What this host reports of itself to the others. It must not block.
    pub report: ReportSource,
    /// Called when a connection was refused, with the reason.
    pub on_refused: fn(SocketAddr, &str),
}

impl fmt::Debug for RaftConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftConfig").field("host", &self.host).finish_non_exhaustive()
    }
}

impl RaftConfig {
    /// The interval of the leader's messages.
    pub(crate) fn heartbeat(&self) -> Duration {
        (self.election / 8).max(Duration::from_millis(1))
    }

    /// Openraft waits for its upper bound and then for a random time between both bounds. So a
    /// third and two thirds give one to four thirds of the wanted time.
    pub(crate) fn openraft(&self) -> Result<openraft::Config> {
        let ms = u64::try_from(self.election.as_millis()).unwrap_or(u64::MAX);
        let config = openraft::Config {
            cluster_name: self.cluster.clone(),
            election_timeout_min: (ms / 3).max(2),
            election_timeout_max: (ms * 2 / 3).max(4),
            heartbeat_interval: u64::try_from(self.heartbeat().as_millis()).unwrap_or(u64::MAX),
            install_snapshot_timeout: ms * 4,
            max_payload_entries: ENTRIES_SENT_MAX,
            replication_lag_threshold: SNAPSHOT_INTERVAL * 2,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_INTERVAL),
            snapshot_max_chunk_size: SNAPSHOT_PART_BYTES,
            max_in_snapshot_log_to_keep: ENTRIES_KEPT,
            purge_batch_size: ENTRIES_KEPT,
            ..openraft::Config::default()
        };
        config.validate().map_err(|error| Error::BadArgument {
            detail: format!("an election time-out of {ms} ms is not possible ({error})"),
        })
    }
}
