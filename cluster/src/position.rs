//! How much of a partition a copy holds.

use crate::id::ViewNumber;
use std::cmp::Ordering;

/// The end of what a copy holds: the last applied position of one owner's log.
///
/// `origin` is the view in which that log began to be the partition's log. Copies are compared by
/// `(origin, position)`, as terms and indexes are in Raft: a copy that has switched to the log of
/// a later owner holds everything up to the seal of the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogPosition {
    /// The view whose owner began to write this log.
    pub origin: ViewNumber,
    /// Identity of the log (decision 021): random, of the owner's region.
    pub log: [u8; 16],
    /// Incarnation of the log.
    pub incarnation: u64,
    /// The last position that is applied. All earlier ones of the log are applied as well.
    pub position: u64,
    /// Check value of the entry at that position.
    pub check: u64,
}

impl LogPosition {
    /// Which one of two copies holds more of the partition.
    pub fn compare(&self, other: &Self) -> Ordering {
        (self.origin, self.position).cmp(&(other.origin, other.position))
    }

    /// Is this another history: the same place of the same origin, but not the same log or check
    /// value? Such a region was restored from a copy, or repaired.
    pub fn is_fork_of(&self, other: &Self) -> bool {
        self.origin == other.origin
            && ((self.log, self.incarnation) != (other.log, other.incarnation)
                || (self.position == other.position && self.check != other.check))
    }
}

impl LogPosition {
    /// Appends the 48 bytes of this position.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.origin.0.to_le_bytes());
        bytes.extend(self.log);
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.position.to_le_bytes());
        bytes.extend(self.check.to_le_bytes());
    }

    /// The position at the begin of these bytes, and what follows it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (origin, bytes) = bytes.split_first_chunk::<8>()?;
        let (log, bytes) = bytes.split_first_chunk::<16>()?;
        let (incarnation, bytes) = bytes.split_first_chunk::<8>()?;
        let (position, bytes) = bytes.split_first_chunk::<8>()?;
        let (check, bytes) = bytes.split_first_chunk::<8>()?;
        let held = Self {
            origin: ViewNumber(u64::from_le_bytes(*origin)),
            log: *log,
            incarnation: u64::from_le_bytes(*incarnation),
            position: u64::from_le_bytes(*position),
            check: u64::from_le_bytes(*check),
        };
        Some((held, bytes))
    }
}
