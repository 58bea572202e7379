//! Limits of a cluster, each with its reason and with what happens when it is reached.

/// Hosts of a cluster. Placement is static, and each host applies the commands of all partitions.
/// A larger configuration is refused.
pub const HOSTS_MAX: usize = 64;

/// Copies of a partition. Each copy costs its owner one connection and one thread. A larger number
/// is refused.
pub const COPIES_MAX: usize = 7;

/// Partitions of a cluster: each one is a region file and a port at each host of its group. More
/// are refused.
pub const PARTITIONS_MAX: usize = 256;

/// Bytes of the name of a host or a partition. A longer one is refused.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of an encoded command, exact for the longest kind. A longer input is no command.
pub const CLUSTER_COMMAND_BYTES_MAX: usize = 64;

/// The shortest lease: three scheduler ticks of a busy machine, and several round trips. These
/// limits of other crates follow from it: `ELECTION_MIN` (the cluster file), `LEASE_LOOK_MS`
/// (`memory`), `INDEXED_AT_ONCE` and `REPLICATION_WAIT_MAX` (`store`).
pub const LEASE_MS_MIN: u32 = 300;

/// The longest lease. A fail-over takes at least as long.
pub const LEASE_MS_MAX: u32 = 10_000;

/// The clocks of two hosts may run 2 % fast and 2 % slow: then one lease of the slow clock is
/// 1.02 / 0.98 = 1.041 leases of the fast one. The owner's lease is shorter by 1/25 and
/// [`LEASE_MARGIN_NS`]: (1 - 1/25) * 1.0409 = 0.9992 < 1.
pub const LEASE_MARGIN_DIVISOR: u64 = 25;

/// The part of the margin that does not depend on the lease: resolution of clocks.
pub const LEASE_MARGIN_NS: u64 = 2_000_000;

/// Leases for which a member waits for the first message of a new owner, which promotes its copy
/// first. Later, one lease without a message is suspicious.
pub const FIRST_MESSAGE_LEASES: u64 = 4;

/// Leases from the decision on after which the steps of a promotion count for nothing: one that
/// takes longer is given up, however far it is. At a lease of 300 ms a minute, in which 10^9
/// records are promoted.
pub const PROMOTION_LEASES: u64 = 200;

/// Leases for which an excluded owner with an intact region waits for the seal before it asks to
/// be the owner again. The members report within two leases if they live.
pub const RETURN_LEASES: u64 = 4;

/// Leases for which members wait for the report of the host that an operator prefers, before they
/// report without it, and with n > 2 for those of all full members, before fewer decide. A member
/// reports within one if it lives; the excluded owner returns after [`RETURN_LEASES`].
pub const YIELD_LEASES: u64 = 2;

/// Leases for which a host keeps a copy that is longer than the seal while fewer than n members are
/// full, in case that the new owner is lost before the others have caught up. A member that lives
/// catches up in one. The partition has one complete copy less for as long, and serves nothing.
pub const KEEP_COPY_LEASES: u64 = 4;

/// Renewals of a degraded owner in each promise. The next one is proposed when the one before it is
/// applied, or has reached the end of its life: of those that are slow, one may be lost.
pub const RENEWALS_PER_LEASE: u64 = 4;

/// A proposal that was not ordered within this part of a lease is given up. A suspicion that is
/// ordered long after its reason has passed costs a fail-over.
pub const PROPOSALS_PER_LEASE: u64 = 2;

/// Leases without an owner before an operator's task gives a partition to a host: within one each
/// member with a complete copy may report, and within another one its report is ordered. While an
/// operator prefers a host, and with n > 2, members decide up to [`YIELD_LEASES`] later, and so
/// much longer a task waits.
pub const FORCE_LEASES: u64 = 2;

/// Leases for which an owner that is drained refuses writers while its log is replicated. Later
/// they are admitted again, and the command fails.
pub const DRAIN_LEASES: u64 = 4;

/// Leases for which writers that are refused wait for a host that is only preferred: one that lives
/// catches up in one. Later the members choose.
pub const PREFERENCE_LEASES: u64 = 1;

/// Leases without a renewal after which an owner whose copy alone suffices counts as silent: then
/// it has had no lease for one of them.
pub const SILENT_RENEWAL_LEASES: u64 = 2;

/// The entries that a copy may lack when a degraded owner begins to count it. Writers that wait for
/// replication wait until it has them.
pub const ADMIT_ENTRIES_MAX: u64 = 4_096;

/// The shortest time after which one copy suffices, in leases: the owner that was lost may be back
/// by then, and a member is not counted for longer than it takes to evict one.
pub const DEGRADE_LEASES_MIN: u32 = 2;

/// The longest time after which one copy suffices: one day. A longer one is refused.
pub const DEGRADE_MS_MAX: u32 = 86_400_000;

/// Leases without an acknowledgement after which the owner tries to evict a member.
pub const EVICT_LEASES: u64 = 2;

/// The highest view and revision behind which a partition continues (`RaiseView`): regions store
/// views in 48 bits and revisions in 32, and half of them are left. No cluster gets there. Higher
/// ones are refused.
pub const RAISED_VIEW_MAX: u64 = 1 << 47;

/// The views between the highest one that is known and that in which a partition continues: more
/// than a host that did not answer can have seen beyond the others. A cluster that is excluded once
/// a minute gets there in two years.
pub const RAISED_VIEW_STEP: u64 = 1 << 20;

/// See [`RAISED_VIEW_MAX`].
pub const RAISED_REVISION_MAX: u64 = 1 << 31;
