//! Memory that the work on indexes needs again and again.

use std::sync::Arc;

use nearstate_model::invariant::guaranteed;

use crate::index::ordered::Ordered;
use crate::index::schema::TagSet;

/// Kept by a session from one transaction to the next.
#[derive(Debug, Default)]
pub(crate) struct IndexScratch {
    pub(crate) ordered: Ordered,
    pub(crate) list: List,
    /// The key of an index entry.
    pub(crate) key: Vec<u8>,
    /// The key of the record at hand.
    pub(crate) record: Vec<u8>,
    /// The hash of that key.
    pub(crate) hash: u64,
    /// Records whose metadata changes.
    pub(crate) changes: Vec<MetaChange>,
    /// The values that the records of the transaction lose, in the order of `changes`.
    pub(crate) old_values: Vec<CollectedValue>,
    /// The values that they get.
    pub(crate) new_values: Vec<CollectedValue>,
    /// The bytes of both.
    pub(crate) collected: Vec<u8>,
    /// The tags of the namespace at hand, and its number.
    pub(crate) tags: Option<(u32, Arc<TagSet>)>,
}

/// A record whose metadata changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaChange {
    /// Its entry in the transaction.
    pub(crate) place: usize,
    /// When it ends as the region has it; 0: never.
    pub(crate) was_ms: u64,
    /// Its values in `old_values`, and in `new_values`: the first, and the one behind the last.
    pub(crate) old: (usize, usize),
    pub(crate) new: (usize, usize),
}

/// A value that a record loses or gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectedValue {
    /// Number of the tag.
    pub(crate) tag: u8,
    /// The range of the value in `collected`.
    pub(crate) value: (usize, usize),
    /// Where the key of a unique tag's posting begins, which ends with the value, and its hash.
    pub(crate) key_at: usize,
    pub(crate) hash: u64,
}

impl CollectedValue {
    /// The value.
    #[inline]
    pub(crate) fn of<'c>(&self, collected: &'c [u8]) -> &'c [u8] {
        guaranteed(collected.get(self.value.0..self.value.1), COLLECTED)
    }

    /// The key of the posting of a unique tag's value.
    #[inline]
    pub(crate) fn key<'c>(&self, collected: &'c [u8]) -> &'c [u8] {
        guaranteed(collected.get(self.key_at..self.value.1), COLLECTED)
    }
}

const COLLECTED: &str = "a collected value is kept until the commit";

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
        self.old_values.clear();
        self.new_values.clear();
        self.tags = None;
        self.collected.clear();
    }
}
