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
    /// A complete copy that also gets a namespace that had records when it came into the log. It is
    /// not frozen and not reported, and keeps what it has.
    Extending,
    /// A complete prefix of the partition. It follows the log of a position's origin, also while it
    /// is frozen or not connected.
    Follower(LogPosition),
    /// The region writes its own log: it was promoted in the view `origin`. An ordinary region that
    /// is to become the first copy of a new cluster has the origin [`ViewNumber::NONE`].
    Owner {
        /// The view of the promotion.
        origin: ViewNumber,
    },
    /// An owner's that was to become an empty copy, and is half-way. It has all its records, and no
    /// log that goes on. It is not frozen and not reported.
    Demoting,
}

/// What a host stores in a region before it acts on it. Two words, each valid by itself. The region
/// raises the view by a maximum. The other word is a plain store: the one process of the host
/// stores no revision below that which it has read. They survive every process, and are lost with
/// the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemberRecord {
    /// The highest view in which this host has frozen its copy, followed or served. Connections of
    /// a lower view are refused.
    pub view: ViewNumber,
    /// The last revision on which this host has acted. A process that starts with an older
    /// applied state waits until it has applied up to here.
    pub revision: Revision,
    /// The owner has proposed to evict this member at `revision`, and does not count it. If the
    /// partition is degraded at that revision, it is the one that the owner counts again.
    pub evicting: Option<HostId>,
}

impl MemberRecord {
    /// The record of a new region.
    pub const NEW: Self = Self { view: ViewNumber::NONE, revision: Revision(0), evicting: None };

    /// The record as two words. A region stores 32 bits of the revision: 49 days at
    /// 1,000 a second, and more than 100 years at one a second.
    pub fn to_words(self) -> [u64; 2] {
        let host = self.evicting.map_or(0, |host| host.0);
        [self.view.0, (self.revision.0 << 16) | u64::from(host)]
    }

    /// The record of two words, which may be any.
    pub fn from_words(words: [u64; 2]) -> Self {
        let [view, acted] = words;
        let [low, high, ..] = acted.to_le_bytes();
        let host = u16::from_le_bytes([low, high]);
        let evicting = (host != 0).then_some(HostId(host));
        Self { view: ViewNumber(view), revision: Revision(acted >> 16), evicting }
    }
}

/// The state that the region of a partition has stored, read at the start of the host's process and
/// again after each effect that changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionState {
    /// The copy.
    pub copy: CopyState,
    /// What was stored.
    pub record: MemberRecord,
    /// The word *replicated* of the region's own log. It never falls while the log has the same
    /// identity and incarnation.
    pub replicated: u64,
    /// The word of the lease: its end on this boot's clock, [`Monotonic::BOOT`] if there is none.
    /// An earlier process may have stored it: it bounds what members have granted, and is no lease.
    pub lease_until: Monotonic,
}

impl RegionState {
    /// A new region.
    pub const NEW: Self = Self {
        copy: CopyState::Empty,
        record: MemberRecord::NEW,
        replicated: 0,
        lease_until: Monotonic::BOOT,
    };
}
