//! What a driver is started with.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use nearstate_cluster::{ClusterConfig, ClusterLevel, HostId, PartitionId};
use nearstate_store::{NamespaceRules, Region};
use nearstate_wire::SharedSettings;

use super::notice::ClusterNotice;
use crate::peer::{ClientTls, PeerEvent};
use crate::realtime::RealtimeMode;

/// Where a host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// Its name, under which it follows.
    pub name: String,
    /// Where members connect: `host:port`.
    pub peer: String,
    /// The name or address where clients connect.
    pub clients: String,
}

/// A copy on this host.
#[derive(Clone, Debug)]
pub struct CopyConfig {
    /// The number of the partition.
    pub partition: PartitionId,
    /// The region.
    pub region: Region,
    /// Where clients reach the partition, on the host that owns it.
    pub port: u16,
}

/// What a driver needs.
pub struct DriverConfig {
    /// This host.
    pub host: HostId,
    /// The rules' configuration.
    pub cluster: ClusterConfig,
    /// The settings that all hosts share.
    pub settings: SharedSettings,
    /// The id of the cluster, in messages between members.
    pub cluster_id: [u8; 16],
    /// All hosts.
    pub hosts: BTreeMap<HostId, HostAddress>,
    /// The copies on this host.
    pub copies: Vec<CopyConfig>,
    /// TLS of connections to owners.
    pub tls: Option<ClientTls>,
    /// The highest level that this program can do.
    pub highest: ClusterLevel,
    /// Which namespaces are replicated, and how.
    pub namespaces: NamespaceRules,
    /// A process that is stopped while it holds a lock for which a change of the role waits may be
    /// killed.
    pub kills_stopped: bool,
    /// The clock of expiry of an owned partition is that of the host at once, whatever happens to
    /// that. Otherwise it approaches it by a hundredth of the time that passes.
    pub is_host_clock: bool,
    /// Whether the thread that keeps leases runs before ordinary threads, with locked memory.
    pub realtime: RealtimeMode,
    /// Told what happens to connections.
    pub on_peer_event: fn(&PeerEvent<'_>),
    /// Told what happens.
    pub on_notice: Arc<dyn Fn(&ClusterNotice) + Send + Sync>,
}

impl fmt::Debug for DriverConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverConfig").field("host", &self.host).finish_non_exhaustive()
    }
}
