//! Walks over a namespace in parts.

use std::ops::Range;

use nearstate_model::{Result, invariant};

use crate::session::{Namespace, Session};

/// A walk restarts if the number of buckets has grown by this factor since its start. Otherwise a
/// part of the walk would have that many times the records. The size of a region is limited, so
/// this happens a few times only.
const GROWN: u64 = 4;

/// A walk over the buckets that a table had at the start of the walk.
#[derive(Debug)]
pub(super) struct BucketWalk {
    next: u64,
    all: u64,
    /// Keys of the previous bucket that are left, the next one last.
    keys: Vec<Vec<u8>>,
}

impl BucketWalk {
    const fn of(all: u64) -> Self {
        Self { next: 0, all, keys: Vec::new() }
    }

    /// The next `count` buckets, or as many as are left.
    pub(super) fn take(&mut self, count: u64) -> Range<u64> {
        let from = self.next;
        // A caller may request any number.
        self.next = from.saturating_add(count.max(1)).min(self.all);
        invariant!(from <= self.next, "a walk advances from {from} to {}", self.next);
        from..self.next
    }

    /// True if no bucket and no key is left.
    pub(super) const fn is_done(&self) -> bool {
        self.next >= self.all && self.keys.is_empty()
    }
}

impl Session {
    /// A walk over the locks of a namespace.
    pub(super) fn locks_of(&self, namespace: Namespace) -> Result<BucketWalk> {
        Ok(BucketWalk::of(self.member.buckets_to_drain(self.table(namespace)?)?))
    }

    /// A walk over the buckets of a namespace.
    pub(super) fn part_of(&self, namespace: Namespace) -> Result<BucketWalk> {
        Ok(BucketWalk::of(self.member.bucket_count(self.table(namespace)?)?))
    }

    /// Restarts a walk if the namespace has grown by a factor of [`GROWN`]. True if it has.
    pub(super) fn restart_if_grown(
        &self,
        namespace: Namespace,
        part: &mut BucketWalk,
    ) -> Result<bool> {
        let now = self.part_of(namespace)?;
        let has_grown = now.all / GROWN >= part.all;
        if has_grown {
            *part = now;
        }
        Ok(has_grown)
    }

    /// Calls `work` with each wanted key of the next `count` buckets, including keys of expired
    /// records. No pin is held during `work`. If `work` fails, the next call continues with the
    /// same key.
    pub(super) fn each_key(
        &self,
        namespace: Namespace,
        (part, count): (&mut BucketWalk, u64),
        is_wanted: impl Fn(&[u8]) -> bool,
        mut work: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let table = self.table(namespace)?;
        let mut cells = Vec::new();
        invariant!(part.next <= part.all, "bucket {} of {}", part.next, part.all);
        // The rest of a bucket counts as one.
        let mut left = count.max(1) - u64::from(!part.keys.is_empty());
        loop {
            while let Some(key) = part.keys.last() {
                work(key)?;
                part.keys.pop();
            }
            if left == 0 || part.next >= part.all {
                return Ok(());
            }
            left -= 1;
            invariant!(part.next < part.all, "bucket {} of {}", part.next, part.all);
            invariant!(cells.is_empty(), "the cells of the last bucket were read");
            let held = self.member.pin()?;
            self.member.collect_bucket(table, part.next, part.all, &mut cells)?;
            self.member.check_namespace(namespace.index)?;
            for at in &cells {
                self.member.prefetch_cell_lines(*at, 1);
            }
            for at in cells.drain(..).rev() {
                let key = self.member.cell_at(at)?.key()?;
                if is_wanted(key) {
                    part.keys.push(key.to_vec());
                }
            }
            drop(held);
            part.next += 1;
        }
    }
}
