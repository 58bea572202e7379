//! What clients of a partition see of its cluster: the members, and which host owns which
//! partition.

use std::fmt;
use std::sync::Arc;

use nearstate_cluster::PartitionId;
use nearstate_node::{ClusterDriver, FollowerStats};
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
        let members = self.driver.members(self.partition);
        counted(members, self.driver.replicated(self.partition))
    }
}

/// A member may have what does not count yet, because it is not full or was evicted: it shows only
/// what is replicated.
fn counted(members: Vec<FollowerStats>, replicated: u64) -> Vec<Replica> {
    let mut replicas = peers::replicas(members);
    for replica in &mut replicas {
        replica.position = replica.position.min(replicated);
    }
    replicas
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
        let owned = self.driver.owners().into_iter().filter_map(|known| {
            let host = self.file.hosts.iter().find(|host| host.id == known.host)?;
            let partition = self.file.partitions.iter().find(|of| of.id == known.partition)?;
            Some(Master {
                name: partition.name.clone(),
                host: host.clients.to_string(),
                port: partition.port,
                epoch: known.view.0,
                is_down: !known.is_confirmed,
            })
        });
        owned.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_resp::replication::Replicas;

    #[derive(Debug)]
    struct Fixed(Vec<Replica>);

    impl ReplicaSource for Fixed {
        fn replicas(&self) -> Vec<Replica> {
            self.0.clone()
        }
    }

    #[test]
    fn wait_counts_no_member_for_what_is_not_replicated() {
        let member = |acknowledged| FollowerStats {
            name: "b".to_owned(),
            address: ([127, 0, 0, 1], 7000).into(),
            is_joining: false,
            acknowledged,
            tail: 200,
            acknowledged_ms: 0,
        };
        // One has more than what counts: it was evicted, or has just become full.
        let members = vec![member(100), member(60)];
        let replicas = Replicas::default();
        replicas.set(Arc::new(Fixed(counted(members, 80))));
        assert_eq!([60, 80, 81, 100].map(|at| replicas.count_with(at)), [2, 1, 0, 0]);
    }
}
