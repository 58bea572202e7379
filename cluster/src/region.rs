//! What a host's region file says about its copy of a partition.

use crate::id::{HostId, Monotonic, Revision, ViewNumber};
use crate::position::LogPosition;

/// What the copy in a host's region is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyState {
    /// Nothing: a new region, a region of another boot or of another cluster, one that was repaired
    /// or restored, or one whose content was discarded.
    Empty,
    /// A walk is not complete, so the copy has gaps.
    Joining,
    /// A complete prefix of the partition. It follows the log of a position's origin, also while it
    /// is frozen or not connected.
    Follower(LogPosition),
    /// The region writes its own log: it was promoted in the view `origin`. An ordinary region that
    /// is to become the first copy of a new cluster has the origin [`ViewNumber::NONE`].
    Owner {
        /// The view of the promotion.
        origin: ViewNumber,
    },
}

/// What a host stores in a region before it acts on it. Two words, each valid by itself; it
/// survives every process, and is lost with the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemberRecord {
    /// The highest view in which this host has frozen its copy, followed or served. It never falls.
    /// Connections of a lower view are refused.
    pub view: ViewNumber,
    /// The owner has proposed to evict this member at this revision, and does not count it.
    pub evicting: Option<(Revision, HostId)>,
}

impl MemberRecord {
    /// The record of a new region.
    pub const NEW: Self = Self { view: ViewNumber::NONE, evicting: None };

    /// The record as two words. A revision has 48 bits.
    pub fn to_words(self) -> [u64; 2] {
        let evicting =
            self.evicting.map_or(0, |(revision, host)| revision.0 << 16 | u64::from(host.0));
        [self.view.0, evicting]
    }

    /// The record of two words, which may be any.
    pub fn from_words(words: [u64; 2]) -> Self {
        let [view, evicting] = words;
        let [low, high, ..] = evicting.to_le_bytes();
        let host = u16::from_le_bytes([low, high]);
        let evicting = (host != 0).then_some((Revision(evicting >> 16), HostId(host)));
        Self { view: ViewNumber(view), evicting }
    }
}

/// Everything that the region of a partition says, read at the start of the host's process and
/// again after each effect that changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionFacts {
    /// The copy.
    pub copy: CopyState,
    /// What was stored.
    pub record: MemberRecord,
    /// The word *replicated* of the region's own log. It never falls while the log has the same
    /// identity and incarnation.
    pub replicated: u64,
    /// The word of the lease: its end on this boot's clock, [`Monotonic::BOOT`] if there is none.
    pub lease_until: Monotonic,
}

impl RegionFacts {
    /// A new region.
    pub const NEW: Self = Self {
        copy: CopyState::Empty,
        record: MemberRecord::NEW,
        replicated: 0,
        lease_until: Monotonic::BOOT,
    };
}
