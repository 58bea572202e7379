//! How a host takes part in the engine.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_node::{SharedSettings, StateMachine};
use openraft::SnapshotPolicy;

use crate::limits::{ENTRIES_KEPT, ENTRIES_SENT_MAX, SNAPSHOT_INTERVAL, SNAPSHOT_PART_BYTES};

use super::connection::MemberTls;

/// A host that may vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipHost {
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
pub struct MembershipConfig {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of this host.
    pub host: u64,
    /// All hosts, this one included.
    pub members: BTreeMap<u64, MembershipHost>,
    /// The directory of vote, log and snapshot.
    pub directory: PathBuf,
    /// A host that has not heard the leader for this long, or up to a third longer, stands for
    /// election.
    pub election: Duration,
    /// The settings that all hosts share. A host with other ones is refused.
    pub settings: SharedSettings,
    /// Those that were decided when the cluster was created: the directory has them.
    pub decided: SharedSettings,
    /// Certificates. `None`: plain text.
    pub tls: Option<MemberTls>,
    /// Makes the state machine in its first state.
    pub machine: MachineFactory,
    /// What this host reports of itself to the others. It is called on a thread of its own: while
    /// it blocks, this host reports nothing, and orders commands as before.
    pub report: ReportSource,
    /// Called when a connection was refused, with the reason.
    pub on_refused: fn(SocketAddr, &str),
    /// Called on the thread of the engine before anything else. Threads that it starts inherit the
    /// scheduling that it chooses.
    pub begin_thread: fn(),
}

impl fmt::Debug for MembershipConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipConfig").field("host", &self.host).finish_non_exhaustive()
    }
}

impl MembershipConfig {
    /// The interval of the leader's messages.
    pub(crate) fn heartbeat(&self) -> Duration {
        (self.election / 8).max(Duration::from_millis(1))
    }

    /// How long a request to another member takes at most: a leader that is lost is replaced within
    /// an election.
    pub(crate) fn request_max(&self) -> Duration {
        self.election * 2
    }

    /// How long this host waits for a leader before it stands for election: one to four thirds of
    /// the election time, another time for each host. Openraft draws a random time once for each
    /// process: two hosts with nearly the same one would stand at the same time, and divide the
    /// votes, at each loss of a leader.
    pub(crate) fn wait_for_leader(&self) -> Duration {
        let before = self.members.range(..self.host).fold(0_u32, |count, _| count + 1);
        let all = self.members.iter().fold(0_u32, |count, _| count + 1).max(1);
        self.election + self.election * before / (3 * all)
    }

    /// Openraft waits for its upper bound and then for a random time between both bounds.
    pub(crate) fn openraft(&self) -> Result<openraft::Config> {
        let ms = u64::try_from(self.election.as_millis()).unwrap_or(u64::MAX);
        let half = u64::try_from(self.wait_for_leader().as_millis() / 2).unwrap_or(u64::MAX).max(3);
        let config = openraft::Config {
            cluster_name: self.cluster.clone(),
            election_timeout_min: half - 1,
            election_timeout_max: half + 1,
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::raft) fn host(host: u64, hosts: u64) -> MembershipConfig {
        let member = |number: u64| {
            let address = SocketAddr::from(([127, 0, 0, 1], 7000));
            (number, MembershipHost { name: format!("h{number}"), address })
        };
        MembershipConfig {
            cluster: "c".to_owned(),
            host,
            members: (1..=hosts).map(member).collect(),
            directory: PathBuf::new(),
            election: Duration::from_millis(150),
            settings: SharedSettings::default(),
            decided: SharedSettings::default(),
            tls: None,
            machine: Arc::new(|| unreachable!("no engine is started")),
            report: Arc::new(String::new),
            on_refused: |_, _| {},
            begin_thread: || {},
        }
    }

    #[test]
    fn no_two_hosts_stand_for_election_at_the_same_time() {
        for hosts in [1, 2, 3, 5] {
            let bounds: Vec<(u64, u64)> = (1..=hosts)
                .map(|number| host(number, hosts).openraft().unwrap())
                .map(|config| (config.election_timeout_min, config.election_timeout_max))
                .map(|(min, max)| (min + max, 2 * max - 1))
                .collect();
            assert!(bounds.iter().all(|(first, last)| *first >= 148 && *last <= 202), "{bounds:?}");
            let apart = |pair: &[(u64, u64)]| pair[0].1 + 5 < pair[1].0;
            assert!(bounds.windows(2).all(apart), "{bounds:?}");
        }
    }
}
