//! What a writer knows about the slot of a key before it locks the bucket.

use crate::index::batch::{BucketLine, BucketPlace};
use crate::index::bucket::{LAST, entry, hash_tag, is_units};
use crate::index::lookup::{ReadToken, pick_placed};
use crate::layout::LINE;
use crate::member::Member;

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
    /// Where the bucket of the hash was when it was prefetched. Its lock decides whether the key is
    /// still there.
    pub place: BucketPlace,
    /// The version of the record after the write, which another host has given; 0: the next one.
    pub version_imposed: u64,
}

impl<'k> WriteTarget<'k> {
    /// A record that gets its next version.
    #[inline]
    pub const fn new(hash: u64, key: &'k [u8], known: KnownSlot) -> Self {
        Self { hash, key, known, place: BucketPlace::UNKNOWN, version_imposed: 0 }
    }
}

impl Member {
    /// Prefetches the header of the record that the hash of a bucket may have, and the line in
    /// which it probably ends. Returns the slot to which the bucket's line leads.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub fn probe_known_slot(&self, bucket: BucketLine) -> KnownSlot {
        self.probe_slot(bucket).map_or(KnownSlot::Unknown, KnownSlot::Probed)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn probe_slot(&self, bucket: BucketLine) -> Option<ReadToken> {
        let line = bucket.line();
        let [_, entries @ ..] = self.map().line(line).ok()?;
        let tag = hash_tag(bucket.hash());
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
