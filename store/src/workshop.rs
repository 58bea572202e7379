//! Memory that the work on indexes needs again and again.

use crate::ordered::Ordered;

/// Kept by a session from one transaction to the next.
#[derive(Debug, Default)]
pub(crate) struct Workshop {
    pub(crate) ordered: Ordered,
    /// The key of an index entry.
    pub(crate) key: Vec<u8>,
    /// What the record at hand is to carry.
    pub(crate) meta: Vec<u8>,
    /// The key of the record at hand.
    pub(crate) record: Vec<u8>,
}
