//! What a host knows about its partitions, for operators.

use std::collections::{BTreeMap, BTreeSet};

use nearstate_cluster::{ClusterLevel, HostId};

use crate::consensus::EngineStatus;

/// A member of a partition, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub host: HostId,
    /// The position up to which it has everything. `None`: it joins.
    pub position: Option<u64>,
    /// Milliseconds since its last acknowledgement.
    pub silent_ms: u64,
    /// The age of the first entry that it does not have, in milliseconds; 0 if it has all. `None`:
    /// it joins, or this host does not know the age.
    pub lag_ms: Option<u64>,
}

/// A partition, as this host knows it.
#[expect(clippy::struct_excessive_bools, reason = "a report of independent conditions")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// The number of the partition.
    pub partition: u32,
    /// The view.
    pub view: u64,
    /// True if the membership tells this host what it decides, or has since the start. Otherwise
    /// the owner and the members that count may be others.
    pub is_known: bool,
    /// The owner. `None`: it is excluded, and the members report.
    pub owner: Option<HostId>,
    /// The owner that was excluded.
    pub excluded: Option<HostId>,
    /// The hosts that have reported, while there is no owner.
    pub reports: Vec<HostId>,
    /// The reports that are needed.
    pub reports_needed: usize,
    /// The hosts of the group, in their order.
    pub group: Vec<HostId>,
    /// The members whose copies count.
    pub full: BTreeSet<HostId>,
    /// True while the owner's copy suffices, because the other one of two is missing.
    pub is_degraded: bool,
    /// True while one copy suffices and its host, which is another one, shows no life.
    pub is_degraded_owner_silent: bool,
    /// True while a drain holds the writers, and has ended before the membership has decided it.
    pub is_drain_undecided: bool,
    /// The last view in which this host has acted with its region, in this boot; 0: none.
    pub view_seen: u64,
    /// The last revision on which this host has acted with its region, in this boot; 0: none.
    pub revision_seen: u64,
    /// True if the region has seen a later state than the membership has: its host waits for it.
    pub is_state_older: bool,
    /// True if this copy has all records of a moment.
    pub is_complete: bool,
    /// The part of this host: a word in lower case.
    pub role: &'static str,
    /// Milliseconds until the lease of this host ends; 0: it has none.
    pub lease_ms: u64,
    /// The view in which the log of [`position`](Self::position) began to be the partition's: of
    /// two copies, the one with the higher origin holds more, then the one with the higher
    /// position. 0: the copy is not complete.
    pub origin: u64,
    /// The end of the own log, or the last position that this copy has applied.
    pub position: u64,
    /// What is replicated of the own log.
    pub replicated: u64,
    /// The last position of the last sealed log.
    pub sealed: Option<u64>,
    /// What an operator has given up, at the last time: the view, the longest position that was
    /// known, and the one at which the owner began.
    pub loss: Option<(u64, Option<u64>, Option<u64>)>,
    /// The bytes of this copy's heap that are free, without those for which its file system has no
    /// pages. Growing commits are refused when the owner, or a member that counts, has none.
    pub bytes_free: u64,
    /// What the file system of the region has left, if that is less than the pages that the heap
    /// has not got yet: then it is why [`bytes_free`](Self::bytes_free) is less than in the heap.
    pub file_system_bytes_free: Option<u64>,
    /// False if the file system of the region was not measured in the last 5 s, or does not tell.
    /// Then [`bytes_free`](Self::bytes_free) is what the heap has.
    pub is_file_system_known: bool,
    /// The bytes that the heap of this copy can have.
    pub bytes_max: u64,
    /// The promotions that the versions of the partition's records allow yet, of
    /// [`PROMOTIONS_MAX`](nearstate_store::PROMOTIONS_MAX).
    pub promotions_left: u64,
    /// How far the clock by which records expire is ahead of the wall clock of this host, in
    /// milliseconds.
    pub clock_shift_ms: i64,
    /// The members, if this host is the owner.
    pub members: Vec<MemberStatus>,
}

/// What a host knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// How the membership is.
    pub engine: EngineStatus,
    /// The decided level.
    pub level: ClusterLevel,
    /// The index of the last decision in [`copies`](Self::copies).
    pub applied: u64,
    /// The partitions, in the order of their numbers.
    pub copies: Vec<CopyStatus>,
    /// Milliseconds since the last message of each host that this process has heard, about
    /// replication or by the engine.
    pub silent_ms: BTreeMap<HostId, u64>,
    /// True if the thread that keeps leases runs before ordinary threads, and the program is locked
    /// in memory.
    pub is_realtime: bool,
}
