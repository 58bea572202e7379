//! The faults, drawn from the seed.

use crate::rng::Rng;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterFault {
    /// The owner's host: its link is cut, then everything on it is killed.
    HostLost,
    /// The owner's node is killed, and not started again before another host owns the partition.
    NodeKilled,
    /// The owner's node is killed and started again at once.
    NodeRestarted,
    /// The owner's node is stopped for more than a lease.
    NodeStopped,
    /// What the owner sends to the members does not arrive.
    OwnerMute,
    /// What the members send to the owner does not arrive.
    OwnerDeaf,
    /// The disk of the owner's membership is full, then its node is killed.
    DiskFullThenKilled,
    /// The disk of a member's membership is full.
    MemberDiskFull,
    /// A member's host is lost.
    MemberLost,
    /// The writer on the owner's host is killed.
    WriterKilled,
    /// The writer on the owner's host sleeps through the loss of its node, and wakes afterwards.
    WriterStopped,
}

impl ClusterFault {
    /// All of them, each with its share in percent.
    const SHARES: [(Self, u32); 11] = [
        (Self::HostLost, 26),
        (Self::NodeKilled, 14),
        (Self::NodeRestarted, 9),
        (Self::NodeStopped, 13),
        (Self::OwnerMute, 9),
        (Self::OwnerDeaf, 9),
        (Self::DiskFullThenKilled, 5),
        (Self::MemberDiskFull, 3),
        (Self::MemberLost, 4),
        (Self::WriterKilled, 3),
        (Self::WriterStopped, 5),
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostLost => "host cut off, then killed",
            Self::NodeKilled => "node killed",
            Self::NodeRestarted => "node restarted",
            Self::NodeStopped => "node stopped",
            Self::OwnerMute => "owner mute",
            Self::OwnerDeaf => "owner deaf",
            Self::DiskFullThenKilled => "disk full, node killed",
            Self::MemberDiskFull => "member's disk full",
            Self::MemberLost => "member's host lost",
            Self::WriterKilled => "writer killed",
            Self::WriterStopped => "writer sleeps, node killed",
        }
    }

    /// True if another host must own the partition afterwards.
    pub const fn moves_the_owner(self) -> bool {
        self.loses_the_owner() || matches!(self, Self::OwnerMute | Self::OwnerDeaf)
    }

    /// True if the owner's process is gone.
    pub const fn loses_the_owner(self) -> bool {
        matches!(
            self,
            Self::HostLost | Self::NodeKilled | Self::DiskFullThenKilled | Self::WriterStopped
        )
    }

    /// True if it needs links or disks of the hosts' own.
    pub const fn needs_namespaces(self) -> bool {
        matches!(
            self,
            Self::OwnerMute | Self::OwnerDeaf | Self::DiskFullThenKilled | Self::MemberDiskFull
        )
    }

    /// The next fault. The first one is the loss of the owner's host.
    pub fn draw(rng: &mut Rng, round: u64, has_namespaces: bool) -> Self {
        loop {
            let mut draw = if round == 1 { 0 } else { rng.u32(..100) };
            for (fault, share) in Self::SHARES {
                if draw < share {
                    if has_namespaces || !fault.needs_namespaces() {
                        return fault;
                    }
                    break;
                }
                draw -= share;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_drawn_and_the_shares_are_all_of_them() {
        assert_eq!(ClusterFault::SHARES.iter().map(|(_, share)| share).sum::<u32>(), 100);
        let mut rng = crate::rng::seeded(&[1]);
        let mut drawn: Vec<_> =
            (2..2000).map(|round| ClusterFault::draw(&mut rng, round, true)).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), ClusterFault::SHARES.len());
        let is_possible = |round| !ClusterFault::draw(&mut rng, round, false).needs_namespaces();
        assert!((1..500).all(is_possible));
    }
}
