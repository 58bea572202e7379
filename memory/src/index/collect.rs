//! The walk over all records of a namespace: what belonged to a bucket, wherever splits have moved
//! it since.

use std::cell::Cell;

use nearstate_model::Result;

use crate::atomic::AtomicU64;
use crate::heap::cell;
use crate::index::bucket::{WORDS, at_of, begin, depth_of, entry_tag, is_link, is_unmoved, load};
use crate::index::lookup::{ZERO_BUCKET, decided, link_slot, walk_chain_with};
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::region::index_table::IndexTable;

impl Member {
    /// Collects the offsets of all records that belonged to bucket `bucket` when the namespace had
    /// `buckets` buckets, wherever splits have moved them since. A walk over all buckets below a
    /// count that was read once visits every record that is not removed exactly once.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn collect_bucket(
        &self,
        table: &IndexTable,
        bucket: u64,
        buckets: u64,
        out: &mut Vec<u64>,
    ) -> Result<()> {
        debug_assert!(bucket < buckets, "bucket {bucket} of {buckets}");
        let level = (buckets | 1).ilog2();
        let is_split = bucket < buckets - (1 << level) || bucket >= 1 << level;
        let depth = if is_split { level + 1 } else { level };
        let at = table.bucket_at(self.map(), bucket)?;
        let [word, entries @ ..] = self.map().words::<WORDS>(at)?;
        let control = begin(word);
        let before = out.len();
        if depth_of(control) == depth {
            let mut last = 0;
            for entry in entries {
                last = self.load_protected(entry);
                if entry_tag(last) == 0 {
                    continue;
                }
                let entry = decided(self.map(), last)?;
                if entry != 0 {
                    out.push(at_of(entry));
                }
            }
            if !is_link(last) && is_unmoved(word, control) {
                return self.check_not_truncated();
            }
            out.truncate(before);
        }
        self.collect_split(table, bucket, depth, out)
    }

    #[cold]
    fn collect_split(
        &self,
        table: &IndexTable,
        bucket: u64,
        depth: u32,
        out: &mut Vec<u64>,
    ) -> Result<()> {
        let before = out.len();
        loop {
            let mut is_simple = true;
            if self.collect_family(table, bucket, depth, out, &mut is_simple)? {
                if !is_simple {
                    let mut tail = out.split_off(before);
                    tail.sort_unstable();
                    tail.dedup();
                    out.append(&mut tail);
                }
                debug_assert!(out.len() >= before, "what was collected before is kept");
                return self.check_not_truncated();
            }
            out.truncate(before);
        }
    }

    /// One bucket and those that were split from it since it had `depth`. False if anything moved
    /// meanwhile.
    fn collect_family(
        &self,
        table: &IndexTable,
        bucket: u64,
        depth: u32,
        out: &mut Vec<u64>,
        is_simple: &mut bool,
    ) -> Result<bool> {
        let at = table.bucket_at(self.map(), bucket)?;
        let word = self.map().word(at)?;
        let control = begin(word);
        let now = depth_of(control);
        if now == 0 {
            return Err(ZERO_BUCKET.into());
        }
        *is_simple &= now == depth && !is_link(load(self.map().word(link_slot(at))?));
        self.collect_chain(at, out, |entry| Ok(at_of(decided(self.map(), entry)?)))?;
        if !is_unmoved(word, control) {
            return Ok(false);
        }
        for bit in depth..now.min(48) {
            if !self.collect_family(table, bucket | 1 << bit, bit + 1, out, is_simple)? {
                return Ok(false);
            }
        }
        Ok(is_unmoved(word, control))
    }

    /// Appends the cells of a bucket's chain, which the caller's pin then protects. `cell_of`
    /// returns the cell of a word, or 0. When the pin is extended, only this chain is walked again:
    /// what was collected before stays protected.
    pub(crate) fn collect_chain(
        &self,
        bucket_at: u64,
        out: &mut Vec<u64>,
        cell_of: impl Fn(u64) -> Result<u64, Corruption>,
    ) -> Result<(), Corruption> {
        let before = out.len();
        loop {
            let is_protected = Cell::new(true);
            let load_or_end = |word: &AtomicU64| {
                let seen = load(word);
                is_protected.set(is_protected.get() && self.keep_protected());
                if is_protected.get() { seen } else { 0 }
            };
            let walked = walk_chain_with(self.map(), bucket_at, load_or_end, |_, word| {
                let at = cell_of(word)?;
                if at != 0 {
                    out.push(at);
                }
                Ok(true)
            });
            // Without protection an overflow line may have been reused.
            if is_protected.get() {
                return walked;
            }
            out.truncate(before);
        }
    }

    /// Prefetches the first lines of a record's cell.
    #[inline]
    pub fn prefetch_cell_lines(&self, at: u64, lines: u64) {
        (0..lines).for_each(|line| self.map().prefetch(at + LINE * line));
    }

    /// The cell at an offset that [`Member::collect_bucket`] returned under the same pin.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn cell_at(&self, at: u64) -> Result<cell::Cell<'_>> {
        Ok(cell::Cell::new(self.map(), at)?)
    }
}
