//! Scans of a namespace: records in slot order, keys by prefix or glob, and counts.

use nearstate_memory::IndexTable;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Result, invariant};

use crate::glob;
use crate::read::{BATCH, BATCH_LINES};
use crate::record::meta::{Meta, is_past, is_past_cell, split};
use crate::record::view::View;
use crate::session::{Namespace, Session};

/// The keys that a listing returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern<'a> {
    /// All keys.
    All,
    /// Keys that start with these bytes.
    Prefix(&'a [u8]),
    /// Keys that match this glob, as `KEYS` of Redis: `*`, `?`, `[a-z]`, `[^a]`, `\x`.
    Glob(&'a [u8]),
}

impl Pattern<'_> {
    fn matches(&self, key: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => key.starts_with(prefix),
            Self::Glob(pattern) => glob::matches(pattern, key),
        }
    }
}

/// An iterator over the records of a namespace, in the order of their slots in the index.
///
/// A record that exists during the whole scan is returned exactly once; one that is put or deleted
/// meanwhile at most once. Writers are never blocked. About twenty records are pinned at a time, so
/// a long scan does not delay the reuse of memory for long.
#[derive(Debug)]
pub struct Scan<'s> {
    session: &'s Session,
    namespace: Namespace,
    buckets: u64,
    bucket: u64,
    cells: Vec<u64>,
    /// The current record is `cells[next - 1]`.
    next: usize,
    pin: Option<nearstate_memory::Pin<'s>>,
}

/// Counts of the records of a part of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// All records.
    pub records: u64,
    /// Records with an expiry time.
    pub expiring: u64,
}

impl Scan<'_> {
    /// Moves to the next record without reading it. False at the end.
    ///
    /// Cost: one cache line of the index for every three or four records.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    #[inline]
    pub fn step(&mut self) -> Result<bool> {
        if self.next < self.cells.len() {
            self.next += 1;
            return Ok(true);
        }
        self.fill(0)
    }

    /// The current record; `None` before the first step and after the last. The view borrows the
    /// iterator.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    #[inline]
    pub fn view(&self) -> Result<Option<View<'_>>> {
        match self.next.checked_sub(1).and_then(|present| self.cells.get(present)) {
            Some(at) => {
                let pin = self.session.member.pin()?;
                let cell = self.session.member.cell_at(*at)?;
                let (value, _) = split(cell, cell.value()?)?;
                Ok(Some(View::new(pin, cell, value, self.namespace.kind)))
            }
            None => Ok(None),
        }
    }

    /// Moves to the next record and returns it; `None` at the end.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    #[expect(clippy::should_implement_trait, reason = "it lends: a view ends before the next step")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<View<'_>>> {
        if self.next < self.cells.len() {
            self.next += 1;
        } else if !self.fill(BATCH_LINES)? {
            return Ok(None);
        }
        self.view()
    }

    /// Adds the unexpired records of the next bucket. The caller holds a pin.
    fn collect_next_bucket(&mut self, table: &IndexTable) -> Result<()> {
        let (member, cells) = (&self.session.member, &mut self.cells);
        member.collect_bucket(table, self.bucket, self.buckets, cells)?;
        member.check_namespace(self.namespace.index)?;
        self.bucket += 1;
        if member.namespace_flags(self.namespace.index)? & namespace_flags::EXPIRING != 0 {
            self.session.drop_past(cells)?;
        }
        Ok(())
    }

    /// Collects the records of some buckets under a new pin, and prefetches `lines` of each.
    fn fill(&mut self, lines: u64) -> Result<bool> {
        invariant!(self.next == self.cells.len(), "{} records are left", self.cells.len());
        invariant!(self.bucket <= self.buckets, "bucket {} of {}", self.bucket, self.buckets);
        self.cells.clear();
        self.next = 0;
        let table = self.session.table(self.namespace)?;
        self.pin = None;
        let pin = self.session.member.pin()?;
        while self.bucket < self.buckets && self.cells.len() < BATCH {
            if let Err(error) = self.collect_next_bucket(table) {
                // The collected records are not pinned after this returns.
                self.cells.clear();
                return Err(error);
            }
        }
        if self.cells.is_empty() {
            return Ok(false);
        }
        for at in &self.cells {
            self.session.member.prefetch_cell_lines(*at, lines);
        }
        self.next = 1;
        self.pin = Some(pin);
        Ok(true)
    }
}

/// A scan in parts: the buckets of the index that are left, of those that existed at its start. It
/// holds no pin and no lock between parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    next: u64,
    all: u64,
}

impl Buckets {
    /// The number of buckets at the start.
    pub const fn count(&self) -> u64 {
        self.all
    }

    /// The number of buckets that are left.
    pub const fn left(&self) -> u64 {
        debug_assert!(self.next <= self.all, "a walk ends at the last bucket");
        self.all - self.next
    }

    /// The next `count` buckets, or as many as are left.
    fn take(&mut self, count: u64) -> std::ops::Range<u64> {
        let from = self.next;
        // A caller may request any number.
        self.next = from.saturating_add(count.max(1)).min(self.all);
        invariant!(from <= self.next, "a walk advances from {from} to {}", self.next);
        from..self.next
    }
}

impl Session {
    /// Starts a scan in parts of a namespace.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn buckets(&self, namespace: Namespace) -> Result<Buckets> {
        self.member.check_usable()?;
        Ok(Buckets { next: 0, all: self.member.bucket_count(self.table(namespace)?)? })
    }

    /// Scans the next `count` buckets. False after the last.
    ///
    /// A record that exists during the whole scan is returned exactly once; one that is put or
    /// deleted meanwhile at most once.
    ///
    /// # Errors
    /// `Damaged`, `Forked`; what `each` returns.
    pub fn walk_buckets(
        &self,
        namespace: Namespace,
        buckets: &mut Buckets,
        count: u64,
        each: impl FnMut(View<'_>) -> Result<()>,
    ) -> Result<bool> {
        self.member.check_usable()?;
        let part = buckets.take(count);
        self.walk_range(namespace, part, buckets.all, each)?;
        Ok(buckets.next < buckets.all)
    }

    /// As [`Session::walk_buckets`], with the expired records that were not collected yet: what a
    /// copy of the namespace has.
    ///
    /// # Errors
    /// `Damaged`, `Forked`; what `each` returns.
    pub fn walk_stored(
        &self,
        namespace: Namespace,
        buckets: &mut Buckets,
        count: u64,
        mut each: impl FnMut(View<'_>) -> Result<()>,
    ) -> Result<bool> {
        self.member.check_usable()?;
        let part = buckets.take(count);
        let each = |at: u64| each(self.stored_view(namespace, at)?);
        self.walk_cells(namespace, part, buckets.all, each)?;
        Ok(buckets.next < buckets.all)
    }

    /// The record of a key, also one that has expired and was not collected yet.
    ///
    /// # Errors
    /// As [`Session::get`].
    pub fn get_stored(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>> {
        let lookup = self.lookup(namespace, key)?;
        let _held = self.member.pin()?;
        match self.member.find(lookup.table, lookup.hash, key)? {
            Some((cell, _)) => self.stored_view(namespace, cell.at()).map(Some),
            None => Ok(None),
        }
    }

    /// The caller holds a pin.
    fn stored_view(&self, namespace: Namespace, at: u64) -> Result<View<'_>> {
        let pin = self.member.pin()?;
        let cell = self.member.cell_at(at)?;
        let (value, _) = split(cell, cell.value()?)?;
        Ok(View::new(pin, cell, value, namespace.kind))
    }

    /// As [`Session::walk_buckets`], but only counts. The records are not read, unless some of them
    /// expire.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn count_buckets(
        &self,
        namespace: Namespace,
        buckets: &mut Buckets,
        count: u64,
    ) -> Result<u64> {
        self.member.check_usable()?;
        let part = buckets.take(count);
        self.count_range(namespace, part, buckets.all)
    }

    /// An iterator over all records of a namespace.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn scan(&self, namespace: Namespace) -> Result<Scan<'_>> {
        self.member.check_usable()?;
        let buckets = self.member.bucket_count(self.table(namespace)?)?;
        let (cells, next, pin) = (Vec::new(), 0, None);
        Ok(Scan { session: self, namespace, buckets, bucket: 0, cells, next, pin })
    }

    /// Scans a part of a namespace: some buckets of the index from number `from`. Returns the
    /// number for the next call, also by another process, or `None` at the end.
    ///
    /// A record that exists from the first part to the last is returned at least once; at most
    /// twice if the index grows meanwhile.
    ///
    /// # Errors
    /// `Damaged`, `Forked`; what `each` returns.
    pub fn walk_part(
        &self,
        namespace: Namespace,
        from: u64,
        buckets: u64,
        each: impl FnMut(View<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        self.member.check_usable()?;
        let table = self.table(namespace)?;
        let all = self.member.bucket_count(table)?;
        let to = from.saturating_add(buckets.max(1)).min(all);
        self.walk_range(namespace, from..to, all, each)?;
        Ok((to < all).then_some(to))
    }

    /// Calls `each` with the records of some of `all` buckets.
    fn walk_range(
        &self,
        namespace: Namespace,
        part: std::ops::Range<u64>,
        all: u64,
        mut each: impl FnMut(View<'_>) -> Result<()>,
    ) -> Result<()> {
        self.walk_cells(namespace, part, all, |at| {
            let pin = self.member.pin()?;
            let cell = self.member.cell_at(at)?;
            let (value, meta) = split(cell, cell.value()?)?;
            if meta.is_empty() || !is_past(cell, meta)? {
                each(View::new(pin, cell, value, namespace.kind))?;
            }
            Ok(())
        })
    }

    /// Calls `each` with the cells of some of `all` buckets, under a pin for each bucket.
    fn walk_cells(
        &self,
        namespace: Namespace,
        part: std::ops::Range<u64>,
        all: u64,
        mut each: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        invariant!(part.end <= all, "buckets up to {} of {all}", part.end);
        let table = self.table(namespace)?;
        let mut cells = Vec::new();
        for bucket in part {
            debug_assert!(cells.is_empty(), "the cells of the last bucket were read");
            let _held = self.member.pin()?;
            self.member.collect_bucket(table, bucket, all, &mut cells)?;
            self.member.check_namespace(namespace.index)?;
            for at in &cells {
                self.member.prefetch_cell_lines(*at, BATCH_LINES);
            }
            for at in cells.drain(..) {
                each(at)?;
            }
        }
        Ok(())
    }

    /// The number of records of some of `all` buckets.
    fn count_range(
        &self,
        namespace: Namespace,
        part: std::ops::Range<u64>,
        all: u64,
    ) -> Result<u64> {
        invariant!(part.end <= all, "buckets up to {} of {all}", part.end);
        let table = self.table(namespace)?;
        let mut cells = Vec::new();
        let mut count = 0;
        for bucket in part {
            let _held = self.member.pin()?;
            self.member.collect_bucket(table, bucket, all, &mut cells)?;
            self.member.check_namespace(namespace.index)?;
            if self.member.namespace_flags(namespace.index)? & namespace_flags::EXPIRING != 0 {
                self.drop_past(&mut cells)?;
            }
            count += cells.len() as u64;
            cells.clear();
        }
        Ok(count)
    }

    /// Calls `each` with every key that matches. Complexity: linear in the namespace.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn list(
        &self,
        namespace: Namespace,
        pattern: Pattern<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let mut scan = self.scan(namespace)?;
        while let Some(view) = scan.next()? {
            if pattern.matches(view.key()) {
                each(view.key());
            }
        }
        self.check_not_truncated()
    }

    /// The number of records of a namespace. Reads the index, not the records (unless some of them
    /// expire): 10 million records take about 20 ms.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn count(&self, namespace: Namespace) -> Result<u64> {
        let buckets = self.member.bucket_count(self.table(namespace)?)?;
        self.count_range(namespace, 0..buckets, buckets)
    }

    /// Counts a part of a namespace, as [`Session::walk_part`] scans one: some buckets of the index
    /// from number `from`. Returns the counts and the number for the next call, or `None` at the
    /// end. Reads no record unless some of the namespace expire.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn count_part(
        &self,
        namespace: Namespace,
        from: u64,
        buckets: u64,
    ) -> Result<(RecordCounts, Option<u64>)> {
        self.member.check_usable()?;
        let table = self.table(namespace)?;
        let all = self.member.bucket_count(table)?;
        let to = from.saturating_add(buckets.max(1)).min(all);
        let mut cells = Vec::new();
        let mut counts = RecordCounts::default();
        for bucket in from..to {
            let _held = self.member.pin()?;
            self.member.collect_bucket(table, bucket, all, &mut cells)?;
            self.member.check_namespace(namespace.index)?;
            let may_expire =
                self.member.namespace_flags(namespace.index)? & namespace_flags::EXPIRING != 0;
            for at in cells.drain(..) {
                let is_past = may_expire && self.count_expiry(at, &mut counts)?;
                counts.records += u64::from(!is_past);
            }
        }
        invariant!(
            counts.expiring <= counts.records,
            "{} of {} records expire",
            counts.expiring,
            counts.records
        );
        Ok((counts, (to < all).then_some(to)))
    }

    /// True if a record has expired; counts it if it will expire. The caller holds a pin.
    fn count_expiry(&self, at: u64, counts: &mut RecordCounts) -> Result<bool> {
        let cell = self.member.cell_at(at)?;
        if !cell.has_meta() {
            return Ok(false);
        }
        let (_, meta) = split(cell, cell.value()?)?;
        let is_past = is_past(cell, meta)?;
        let expires = !is_past && Meta::split(meta)?.1.expires_ms != 0;
        counts.expiring += u64::from(expires);
        Ok(is_past)
    }

    /// Calls `each` with every record of a namespace that no other session changes, including
    /// expired ones.
    pub(crate) fn each_stored(
        &self,
        namespace: Namespace,
        each: &mut dyn FnMut(nearstate_memory::Cell<'_>) -> Result<()>,
    ) -> Result<()> {
        let table = self.table(namespace)?;
        let buckets = self.member.bucket_count(table)?;
        let mut cells = Vec::new();
        for bucket in 0..buckets {
            let _held = self.member.pin()?;
            self.member.collect_bucket(table, bucket, buckets, &mut cells)?;
            for at in cells.drain(..) {
                each(self.member.cell_at(at)?)?;
            }
        }
        Ok(())
    }

    /// Removes expired records from those that were collected under the caller's pin.
    fn drop_past(&self, cells: &mut Vec<u64>) -> Result<()> {
        let mut failed = Ok(());
        cells.retain(|at| match self.member.cell_at(*at).and_then(is_past_cell) {
            Ok(is_past) => !is_past,
            Err(error) => {
                failed = Err(error);
                false
            }
        });
        failed
    }
}
