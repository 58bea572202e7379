//! The steps of a batch of reads: the cache misses of many keys overlap. First the buckets are
//! requested, then the records to which they lead, then the records are read.

use crate::heap::cell::Cell;
use crate::index::bucket::{hash_tag, is_units};
use crate::index::lookup::{NONE, READ_LINES, of_key_at, pick};
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::region::index_table::IndexTable;

const _: () = assert!(!is_units(NONE), "a probe that leads nowhere leads to no record");

/// Where a bucket's line led for a hash, without a comparison of the key.
#[derive(Clone, Copy, Debug)]
pub struct Probe(u64);

impl Probe {
    /// Nowhere.
    pub const NOWHERE: Self = Self(NONE);
}

/// The bucket of a hash, as far as this process knows, and its line.
#[derive(Clone, Copy, Debug)]
pub struct BucketLine {
    hash: u64,
    line: u64,
}

impl BucketLine {
    /// That of no bucket: a probe leads nowhere.
    pub const NONE: Self = Self { hash: 0, line: u64::MAX };

    /// The hash.
    #[inline]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The line, counted from the start of the region.
    #[inline]
    pub(crate) const fn line(&self) -> u64 {
        self.line
    }
}

/// The number of a bucket and its line, which a write looks up once.
#[derive(Clone, Copy, Debug)]
pub struct BucketPlace {
    bucket: u64,
    line: u64,
}

impl BucketPlace {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { bucket: 0, line: BucketLine::NONE.line };

    /// The bucket, which is that of this hash.
    #[inline]
    pub const fn of(&self, hash: u64) -> BucketLine {
        BucketLine { hash, line: self.line }
    }
}

impl Member {
    /// Prefetches the bucket of a hash. Returns where it is, for [`crate::WriteTarget::place`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub fn prefetch_place(&self, table: &IndexTable, hash: u64) -> BucketPlace {
        let bucket = table.bucket_of(hash);
        let Ok(line) = table.bucket_line(self.map(), bucket) else { return BucketPlace::UNKNOWN };
        self.map().prefetch(line.wrapping_mul(LINE));
        BucketPlace { bucket, line }
    }

    /// The number and the offset of the bucket of a hash. `place` is what a write knows of it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn locate_bucket(
        &self,
        table: &IndexTable,
        hash: u64,
        place: BucketPlace,
    ) -> Result<(u64, u64), Corruption> {
        if place.line != BucketPlace::UNKNOWN.line {
            return Ok((place.bucket, place.line.wrapping_mul(LINE)));
        }
        let bucket = table.bucket_of(hash);
        Ok((bucket, table.bucket_at(self.map(), bucket)?))
    }

    #[inline]
    fn bucket_line(&self, table: &IndexTable, hash: u64) -> BucketLine {
        let bucket = table.bucket_of(hash);
        match table.bucket_line(self.map(), bucket) {
            Ok(line) => BucketLine { hash, line },
            Err(_) => BucketLine { hash, ..BucketLine::NONE },
        }
    }

    /// Prefetches the bucket of a hash: the first step of a batch.
    #[inline]
    pub fn prefetch_bucket(&self, table: &IndexTable, hash: u64) -> BucketLine {
        let at = self.bucket_line(table, hash);
        self.map().prefetch(at.line.wrapping_mul(LINE));
        at
    }

    /// Prefetches the first lines of the record that a hash may have, and the line in which it
    /// probably ends, if its bucket is in the cache.
    #[inline]
    pub fn prefetch_record(&self, table: &IndexTable, hash: u64, lines: u64) {
        let probe = self.probe(self.bucket_line(table, hash), lines);
        if probe.0 != NONE {
            self.map().prefetch(LINE * (probe.0 + self.lines.get()));
        }
    }

    /// The line in which the record that was read as a whole last ends, counted from its first. The
    /// next record probably ends there too.
    #[inline]
    pub fn last_line(&self) -> u64 {
        self.lines.get()
    }

    /// Prefetches the first lines of the record to which a bucket's line leads, for
    /// [`Member::find_probed`]: the second step.
    #[inline]
    pub fn probe(&self, at: BucketLine, lines: u64) -> Probe {
        let Ok([_, entries @ ..]) = self.map().line(at.line) else { return Probe(NONE) };
        let (units, _) = pick(entries, hash_tag(at.hash));
        if !is_units(units) {
            return Probe(NONE);
        }
        self.map().prefetch_lines(LINE * units, lines);
        Probe(units)
    }

    /// Prefetches all of the record of a probe, of which the first `lines` lines were requested:
    /// for a caller that reads the whole value soon.
    #[inline]
    pub fn prefetch_rest(&self, probe: Probe, lines: u64) {
        if probe.0 != NONE {
            let last = self.lines.get().min(READ_LINES);
            self.map().prefetch_lines(LINE * (probe.0 + lines), (last + 1).saturating_sub(lines));
        }
    }

    /// True if the pin protects the cells to which all probes since its begin have led. Then they
    /// may be used as long as it is held. If not, the records are searched again.
    ///
    /// The order is that of P4 to P6 (`member/pin.rs`) with several entries: all of them are loaded
    /// before the epoch. What extends the pin afterwards does not weaken it.
    #[inline]
    pub fn protects_probes(&self) -> bool {
        self.is_protected()
    }

    /// The record that a probe has led to, if it has this key. `None` decides nothing: the bucket
    /// may have been split, and a damaged record is found again by [`Member::find`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub fn find_probed(&self, probe: Probe, hash: u64, key: &[u8]) -> Option<(Cell<'_>, &[u8])> {
        debug_assert!(is_units(probe.0) || probe.0 == NONE, "a probe leads to a line or nowhere");
        // Nowhere is a line outside of the region.
        of_key_at(self.map(), probe.0, hash, key)
    }

    /// Notes that a record is read as a whole: the next one probably ends in the same line.
    #[inline]
    pub fn note_whole(&self, cell: &Cell<'_>) {
        self.lines.set(cell.last_line());
    }
}
