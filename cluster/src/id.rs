//! Numbers of hosts, partitions, views and revisions, and the clock of a host.

use std::fmt;

/// The number of a host in the cluster file, from 1. It never names another host later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u16);

/// The number of a partition in the cluster file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

/// The number of a period in which a partition has at most one owner, from 1. Each exclusion of an
/// owner begins the next one. A connection between hosts belongs to one view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewNumber(pub u64);

impl ViewNumber {
    /// No view: the value of a region that has not belonged to a cluster.
    pub const NONE: Self = Self(0);

    /// The first view of a partition.
    pub const FIRST: Self = Self(1);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Counts the changes of a partition's membership. A command that names an earlier revision has no
/// effect, so a proposal that arrives late or twice is harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of a new partition.
    pub const FIRST: Self = Self(1);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A time of one host's clock since its boot, in nanoseconds. The clock never goes back and counts
/// suspended time (`CLOCK_BOOTTIME`). Times of two hosts, or of two boots, are not comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The time of the boot. It has passed always, so it is the end of a lease that never was.
    pub const BOOT: Self = Self(0);

    /// This time, `nanoseconds` later.
    #[must_use]
    pub fn plus(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ViewNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
