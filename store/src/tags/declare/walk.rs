//! Walks over a namespace in parts, with anything between them.

use std::ops::Range;

use nearstate_model::{Result, invariant};

use crate::session::{Namespace, Session};

/// A table that has so many times the buckets of when a walk over it began is walked anew: else a
/// part of the walk had as many times the records. Regions have an end: it happens a few times.
const GROWN: u64 = 4;

/// The buckets that a table had when its walk began, and how far that is.
#[derive(Debug)]
pub(super) struct BucketWalk {
    next: u64,
    all: u64,
    /// Keys of the bucket before, which are still to be worked on, the next one last.
    keys: Vec<Vec<u8>>,
}

impl BucketWalk {
    const fn of(all: u64) -> Self {
        Self { next: 0, all, keys: Vec::new() }
    }

    /// The next ones, at most so many.
    pub(super) fn take(&mut self, most: u64) -> Range<u64> {
        let from = self.next;
        // A caller may ask for as many as it likes: there are no more than all.
        self.next = from.saturating_add(most.max(1)).min(self.all);
        invariant!(from <= self.next, "a walk goes on from {from} to {}", self.next);
        from..self.next
    }

    /// True if none is left.
    pub(super) const fn is_done(&self) -> bool {
        self.next >= self.all && self.keys.is_empty()
    }
}

impl Session {
    /// All buckets of a namespace, to pass their locks.
    pub(super) fn locks_of(&self, namespace: Namespace) -> Result<BucketWalk> {
        Ok(BucketWalk::of(self.member.buckets_to_drain(self.table(namespace)?)?))
    }

    /// All buckets of a namespace.
    pub(super) fn part_of(&self, namespace: Namespace) -> Result<BucketWalk> {
        Ok(BucketWalk::of(self.member.bucket_count(self.table(namespace)?)?))
    }

    /// Begins a walk anew if the namespace has grown much, as it may while the declaration is
    /// paused. True if it has.
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

    /// Calls `work` with each such key of the next buckets, at most so many, also with those of
    /// records whose time has passed. Nothing is pinned meanwhile. After an error the walk goes on
    /// with the key that met it.
    pub(super) fn each_key(
        &self,
        namespace: Namespace,
        (part, most): (&mut BucketWalk, u64),
        is_wanted: impl Fn(&[u8]) -> bool,
        mut work: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let table = self.table(namespace)?;
        let mut cells = Vec::new();
        // What is left of a bucket counts as one.
        let mut left = most.max(1) - u64::from(!part.keys.is_empty());
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
