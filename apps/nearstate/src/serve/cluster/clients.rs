//! What clients of a partition see of its cluster: the members, and who owns which partition.

use std::fmt;
use std::sync::Arc;

use nearstate_cluster::PartitionId;
use nearstate_node::ClusterDriver;
use nearstate_resp::replication::{Master, MasterSource, Replica, ReplicaSource};

use crate::cluster::file::ClusterFile;
use crate::serve::peers;

/// The members of an owned partition, for `WAIT`, `ROLE` and `INFO replication`.
#[derive(Debug)]
pub(super) struct ListedMembers {
    pub(super) driver: Arc<ClusterDriver>,
    pub(super) partition: PartitionId,
}

impl ReplicaSource for ListedMembers {
    fn replicas(&self) -> Vec<Replica> {
        // A member may have what does not count yet, because it is not full or was evicted: it
        // shows only what is replicated.
        let mut replicas = peers::replicas(self.driver.members(self.partition));
        let replicated = self.driver.replicated(self.partition);
        for replica in &mut replicas {
            replica.position = replica.position.min(replicated);
        }
        replicas
    }
}

/// The owners of all partitions, for clients of a Sentinel.
pub(super) struct PartitionOwners {
    pub(super) driver: Arc<ClusterDriver>,
    pub(super) file: Arc<ClusterFile>,
}

impl fmt::Debug for PartitionOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionOwners").finish_non_exhaustive()
    }
}

impl MasterSource for PartitionOwners {
    fn masters(&self) -> Vec<Master> {
        let owned = self.driver.owners().into_iter().filter_map(|(partition, view, owner)| {
            let owner = owner?;
            let host = self.file.hosts.iter().find(|host| host.id == owner)?;
            let partition = self.file.partitions.iter().find(|of| of.id == partition)?;
            Some(Master {
                name: partition.name.clone(),
                host: host.clients.to_string(),
                port: partition.port,
                epoch: view.0,
            })
        });
        owned.collect()
    }
}
