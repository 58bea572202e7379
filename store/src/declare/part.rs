//! Walks over a namespace in parts, with anything between them.

use std::ops::Range;

use nearstate_model::Result;

use crate::session::{Namespace, Session};

/// A table that has so many times the buckets of when a walk over it began is walked anew: else a
/// part of the walk had as many times the records. Regions have an end: it happens a few times.
const GROWN: u64 = 4;

/// Some of the buckets that a table had when its walk began.
#[derive(Debug)]
pub(super) struct Part {
    next: u64,
    all: u64,
}

impl Part {
    /// The next ones, at most so many; and how many there are.
    pub(super) fn take(&mut self, most: u64) -> (Range<u64>, u64) {
        let from = self.next;
        self.next = from.saturating_add(most.max(1)).min(self.all);
        (from..self.next, self.all)
    }

    /// True if none is left.
    pub(super) const fn is_done(&self) -> bool {
        self.next >= self.all
    }
}

impl Session {
    /// All buckets of a namespace, to pass their locks.
    pub(super) fn locks_of(&self, namespace: Namespace) -> Result<Part> {
        Ok(Part { next: 0, all: self.member.buckets_to_pass(self.table(namespace)?)? })
    }

    /// All buckets of a namespace.
    pub(super) fn part_of(&self, namespace: Namespace) -> Result<Part> {
        Ok(Part { next: 0, all: self.member.bucket_count(self.table(namespace)?)? })
    }

    /// Begins a walk anew if the namespace has grown much, as it may while nobody goes on with it.
    pub(super) fn keep_up(&self, namespace: Namespace, part: &mut Part) -> Result<()> {
        let now = self.part_of(namespace)?;
        if now.all / GROWN >= part.all {
            *part = now;
        }
        Ok(())
    }

    /// Calls `work` with each such key of some of `all` buckets, also with those of records whose
    /// time has passed. Nothing is pinned meanwhile.
    pub(super) fn each_key(
        &self,
        namespace: Namespace,
        (part, all): (Range<u64>, u64),
        is_wanted: impl Fn(&[u8]) -> bool,
        work: impl Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let table = self.table(namespace)?;
        let (mut cells, mut keys) = (Vec::new(), Vec::new());
        for bucket in part {
            let held = self.member.pin()?;
            self.member.collect(table, bucket, all, &mut cells)?;
            for at in &cells {
                self.member.prefetch_cell_lines(*at, 1);
            }
            for at in cells.drain(..) {
                let key = self.member.cell(at)?.key()?;
                if is_wanted(key) {
                    keys.push(key.to_vec());
                }
            }
            drop(held);
            for key in keys.drain(..) {
                work(&key)?;
            }
        }
        Ok(())
    }
}
