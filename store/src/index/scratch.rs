//! Memory that the work on indexes needs again and again.

use crate::index::ordered::Ordered;

/// Kept by a session from one transaction to the next.
#[derive(Debug, Default)]
pub(crate) struct IndexScratch {
    pub(crate) ordered: Ordered,
    pub(crate) list: List,
    /// The key of an index entry.
    pub(crate) key: Vec<u8>,
    /// What the record at hand is to carry.
    pub(crate) meta: Vec<u8>,
    /// The key of the record at hand.
    pub(crate) record: Vec<u8>,
    /// The hash of that key.
    pub(crate) hash: u64,
    /// Records of which something changes beside their value.
    pub(crate) changes: Vec<MetaChange>,
    /// What the records of the transaction are to get.
    pub(crate) new_values: Vec<NewValue>,
    /// Values and keys of these.
    pub(crate) collected: Vec<u8>,
}

/// A record of which something changes beside its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaChange {
    /// Its entry in the transaction.
    pub(crate) place: usize,
    /// True if it has tags or an end in the region.
    pub(crate) has_old: bool,
    /// When it ends as the region has it; 0: never.
    pub(crate) was_ms: u64,
}

/// A value that a record is to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewValue {
    /// The record's entry in the transaction.
    pub(crate) place: usize,
    /// Number of the tag.
    pub(crate) tag: u8,
    /// The range of the value in `collected`.
    pub(crate) value: (usize, usize),
    /// Where the key of its posting stands, and its hash.
    pub(crate) key: (usize, usize),
    pub(crate) hash: u64,
}

/// The list of one value's postings.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// The key of the part at hand, whose number can be changed.
    pub(crate) key: Vec<u8>,
    /// Where the depth of the list is remembered.
    pub(crate) memory: usize,
    pub(crate) next: Vec<u8>,
    pub(crate) other: Vec<u8>,
}

impl IndexScratch {
    /// For a record with this key.
    #[inline]
    pub(crate) fn set_record(&mut self, hash: u64, key: &[u8]) {
        self.record.clear();
        self.record.extend_from_slice(key);
        self.hash = hash;
    }

    /// Clears what was collected for the last commit.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.changes.clear();
        self.new_values.clear();
        self.collected.clear();
    }
}
