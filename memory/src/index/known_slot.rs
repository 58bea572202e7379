//! What a writer knows about the slot of a key before it locks the bucket.

use crate::index::bucket::{LAST, entry, hash_tag, is_units};
use crate::index::lookup::{ReadToken, pick_placed};
use crate::layout::LINE;
use crate::member::Member;
use crate::region::index_table::IndexTable;

/// What a writer knows about the slot of a key before it locks the bucket.
#[derive(Clone, Copy, Debug)]
pub enum KnownSlot {
    /// Nothing.
    Unknown,
    /// The token of an earlier read, under a pin that is still held.
    Read(ReadToken),
    /// The slot to which the line of the bucket led, without a comparison of the key. If its word
    /// is unchanged under the lock, the key of its record is compared.
    Probed(ReadToken),
}

/// The key of a record, and what its reader knows about it.
#[derive(Clone, Copy, Debug)]
pub struct WriteTarget<'k> {
    /// Hash of the key.
    pub hash: u64,
    /// The key.
    pub key: &'k [u8],
    /// What is known about its slot.
    pub known: KnownSlot,
    /// The version of the record after the write, which another host has given; 0: the next one.
    pub version_imposed: u64,
}

impl<'k> WriteTarget<'k> {
    /// A record that gets its next version.
    #[inline]
    pub const fn new(hash: u64, key: &'k [u8], known: KnownSlot) -> Self {
        Self { hash, key, known, version_imposed: 0 }
    }
}

impl Member {
    /// As [`Member::probe_slot`], for a batch of writes whose buckets were prefetched.
    #[inline]
    pub fn probe_known_slot(&self, table: &IndexTable, hash: u64) -> KnownSlot {
        self.probe_slot(table, hash).map_or(KnownSlot::Unknown, KnownSlot::Probed)
    }

    /// Prefetches the header of the record that a hash may have, and the line in which it probably
    /// ends. Returns the slot to which the bucket's line leads, for [`KnownSlot::Probed`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub(crate) fn probe_slot(&self, table: &IndexTable, hash: u64) -> Option<ReadToken> {
        let line = table.bucket_line(self.map(), table.bucket_of(hash)).ok()?;
        let [_, entries @ ..] = self.map().line(line).ok()?;
        let tag = hash_tag(hash);
        let (units, place, _) = pick_placed(entries, tag);
        if !is_units(units) {
            return None;
        }
        debug_assert!(place < LAST as u64, "an entry lies in the line of its bucket");
        let at = LINE * units;
        self.map().prefetch(at);
        self.map().prefetch(at + LINE * self.last_line());
        Some(ReadToken { at, slot_at: LINE * line + 8 + 8 * place, word: entry(tag, at) })
    }
}
