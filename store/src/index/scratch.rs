//! Buffers for changes of indexes.

use std::sync::Arc;

use nearstate_memory::BucketLine;
use nearstate_model::invariant::guaranteed;

use crate::index::ordered::Ordered;
use crate::index::schema::TagSet;

/// Buffers that a session reuses for each transaction.
#[derive(Debug, Default)]
pub(crate) struct IndexScratch {
    pub(crate) ordered: Ordered,
    pub(crate) list: List,
    /// The key of an index entry.
    pub(crate) key: Vec<u8>,
    /// The key of the current record.
    pub(crate) record: Vec<u8>,
    /// The hash of that key.
    pub(crate) hash: u64,
    /// Records whose metadata changes.
    pub(crate) changes: Vec<MetaChange>,
    /// The values that records lose, in the order of `changes`.
    pub(crate) old_values: Vec<CollectedValue>,
    /// The values that records gain, in the order of `changes`.
    pub(crate) new_values: Vec<CollectedValue>,
    /// The bytes of old and new values.
    pub(crate) collected: Vec<u8>,
    /// The tags of the namespace that was used last: its number, and the generation of its flags at
    /// which they were read. They stay from one transaction to the next.
    pub(crate) tags: Option<(u32, u64, Arc<TagSet>)>,
}

/// A record whose metadata changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaChange {
    /// The index of its entry in the transaction.
    pub(crate) index: usize,
    /// The expiry time of the version in the region; 0: never.
    pub(crate) was_ms: u64,
    /// The range of its values in `old_values`, without the end.
    pub(crate) old: (usize, usize),
    /// The range of its values in `new_values`, without the end.
    pub(crate) new: (usize, usize),
}

/// A value that a record loses or gains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectedValue {
    /// Number of the tag.
    pub(crate) tag: u8,
    /// The range of the value in `collected`.
    pub(crate) value: (usize, usize),
    /// The start of the key of a unique tag's posting, which ends with the value.
    pub(crate) key_at: usize,
    /// The bucket of that posting, or of the part of a list that probably covers the record.
    pub(crate) bucket: BucketLine,
    /// The number of that part.
    pub(crate) part: u32,
}

impl CollectedValue {
    /// True if its tag is unique.
    #[inline]
    pub(crate) const fn has_posting(&self) -> bool {
        self.key_at != self.value.0
    }

    /// The part of a list that probably covers the record; `None` without lists.
    #[inline]
    pub(crate) fn guess(&self) -> Option<PartGuess> {
        let guess = PartGuess { number: self.part, hash: self.bucket.hash() };
        (!self.has_posting() && guess.hash != 0).then_some(guess)
    }

    #[inline]
    pub(crate) fn of<'c>(&self, collected: &'c [u8]) -> &'c [u8] {
        debug_assert!(self.key_at <= self.value.0, "a posting's key begins behind its value");
        guaranteed(collected.get(self.value.0..self.value.1), COLLECTED)
    }

    /// The key of the posting of a unique tag's value.
    #[inline]
    pub(crate) fn key<'c>(&self, collected: &'c [u8]) -> &'c [u8] {
        debug_assert!(self.key_at <= self.value.1, "a key ends before it begins");
        guaranteed(collected.get(self.key_at..self.value.1), COLLECTED)
    }
}

/// The part of a list that probably covers a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartGuess {
    /// The number of the part.
    pub(crate) number: u32,
    /// The hash of its key.
    pub(crate) hash: u64,
}

const COLLECTED: &str = "a collected value is kept until the commit";

/// The list of one value's postings.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// The key of the current part.
    pub(crate) key: Vec<u8>,
    /// The index of the list's depth in the session's cache.
    pub(crate) depth_index: usize,
    pub(crate) next: Vec<u8>,
    /// The half of a part that stays when it is split.
    pub(crate) stay: Vec<u8>,
    pub(crate) other: Vec<u8>,
}

impl IndexScratch {
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
        self.collected.clear();
    }
}
