//! Collection of expired records. A collector deletes a record in a transaction that checks its
//! expiry time again, so a record expires once even if several processes collect.
//!
//! The order of expiry has an entry for each record with an expiry time, at or before that time. A
//! write that postpones the expiry leaves the entry unchanged; the collector moves it when its time
//! has come. So a record that is written again and again has one entry while its expiry is only
//! postponed. A transaction that deletes the record, or after which it never expires, removes the
//! entry of that time from the tree of its own member. What others leave, and deletions without a
//! transaction, is found by a *sweep*, which looks at some entries of times to come.
//!
//! A host that follows another one judges no expiry of the other's records: their deletion follows.
//! It does remove and move their entries, which no log has.

mod own;
mod sweep;

use std::ops::Bound;

use nearstate_memory::Corruption;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Error, Result, invariant};

use crate::index::internal::{EXPIRY_TREES, ExpiryPass, FullPass, expiry_root};
use crate::index::ordered::{Cursor, ReadMode};
use crate::record::meta::{is_past, split};
use crate::session::Session;
use crate::tags::maintain::{expires_ms, expiry_key};
use crate::txn::write_set::WriteSet;

const CUT: Corruption = Corruption("an entry of the order of expiry is cut short");

/// The largest number of entries that one read of a tree returns.
const BATCH: usize = 64;
const _: () = assert!(BATCH > 0, "a read returns entries");

/// The number of commits of records with an expiry time after which their session collects. The
/// collection takes a few microseconds, little in comparison with sixteen commits.
const EXPIRING_MAX: u32 = 16;

/// The number of records that it collects then: twice the number of those commits, so that the
/// number of expired records falls.
const COLLECTED_MAX: usize = 32;
const _: () = assert!(COLLECTED_MAX >= EXPIRING_MAX as usize, "more are collected than are put");

/// The number of expired records that a write collects after it found no room. It is a chunk of the
/// heap or more, if they have 2 KiB.
const COLLECTED_FOR_ROOM: usize = 128;

/// How often one write does so.
const COLLECTIONS_FOR_ROOM: u32 = 4;

/// Expired records that one call passes in each tree because they cannot be deleted at present:
/// some hundred microseconds. The next call continues behind them.
const SKIPPED_MAX: usize = 1024;

/// The same for a writer that collects: together some tens of microseconds.
const SKIPPED_ASIDE_MAX: usize = 4;

/// Entries at which a write that found no room looks before their time: some hundred microseconds.
/// It may look again in each tick of the clock.
const SWEPT_FOR_ROOM: usize = 512;

/// Deletions that fail in one call. Each may be a wait for the lock of a stopped process, a second.
const FAILED_MAX: usize = 4;

/// The result of [`Session::collect_expired`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Expired records that were deleted.
    pub records: usize,
    /// True if there may be more.
    pub has_more: bool,
}

/// An entry of the order of expiry.
#[derive(Debug)]
struct ExpiryEntry {
    entry: Vec<u8>,
    namespace: u32,
    key: Vec<u8>,
}

impl ExpiryEntry {
    fn parse(entry: Vec<u8>) -> Result<Self> {
        let (_, rest) = entry.split_first_chunk::<8>().ok_or(CUT)?;
        let (namespace, key) = rest.split_first_chunk::<4>().ok_or(CUT)?;
        let (namespace, key) = (u32::from_be_bytes(*namespace), key.to_vec());
        Ok(Self { entry, namespace, key })
    }
}

/// The namespace of a due entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DueNamespace {
    /// Its expired records are deleted.
    Writable,
    /// Another host deletes them, and their deletion follows.
    Followed,
    /// None of its records can be deleted at present.
    Refused,
}

/// What one call has done.
#[derive(Debug)]
struct CollectionCall {
    collected: Collected,
    /// Entries that it may still handle.
    left: usize,
    /// Entries of each tree that it may pass.
    skipped_max: usize,
    /// Deletions that have failed.
    failures: usize,
    /// The first failure.
    failed: Option<Error>,
    cursor: Cursor,
}

impl CollectionCall {
    fn fail(&mut self, error: Error) {
        self.failures += 1;
        self.failed.get_or_insert(error);
    }

    const fn is_over(&self) -> bool {
        self.left == 0 || self.failures >= FAILED_MAX
    }
}

/// What became of a due entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    /// Its record has expired, and was deleted.
    Expired,
    /// No record needs it, or another entry serves: the entry was removed.
    Outdated,
    /// Its record expires at another time, and the entry is there now; or another session has
    /// handled it.
    Moved,
    /// Its record has expired, and another host deletes it.
    Left,
}

impl Session {
    /// Deletes expired records with their tags, at most `limit`. Watches return one event for each,
    /// even if several processes collect. Reads never return an expired record; the collection
    /// frees memory and sends events. Call it periodically, in any process.
    ///
    /// Time is that of the region's clock ([`Session::now_ms_coarse`]). If the clock of the host is
    /// set back, expired records that were not collected are visible again.
    ///
    /// Complexity: a transaction for each expired record, and one for each record whose expiry was
    /// postponed, or that was deleted: its entry is moved or removed, and counts towards `limit`.
    /// Now and then also a look at 32 entries whose time has not come.
    /// Records that cannot be deleted at present do not hold back others. Those of a namespace
    /// whose writers are refused (`Fenced`) are left without an error until writers are admitted.
    /// One that fails (a stopped process has its lock), and all of a namespace for which there is
    /// no room in the log, are tried again when the session has passed all others, which takes
    /// several calls if more than a thousand are left. Those of a namespace for which there is no
    /// room in the heap are tried again as soon as memory has come free for one of them.
    ///
    /// # Errors
    /// `Full`, `Behind`, `Stalled`, `TransactionTooLarge`: a record fails, and none was deleted.
    /// `Damaged`, `System`, `Forked`.
    pub fn collect_expired(&self, limit: usize) -> Result<Collected> {
        let (collected, failed) = self.collect_due(limit, SKIPPED_MAX);
        self.sweep_if_due();
        match failed {
            Some(error) if collected.records == 0 || !is_passing(&error) => Err(error),
            _ => Ok(collected),
        }
    }

    /// As [`Session::collect_expired`]. Also returns the first failure.
    fn collect_due(&self, limit: usize, skipped_max: usize) -> (Collected, Option<Error>) {
        let mut pass = self.internal.expiry_pass.take();
        let (collected, cursor) = <(Collected, Cursor)>::default();
        let (left, failures, failed) = (limit, 0, None);
        let mut call = CollectionCall { collected, left, skipped_max, failures, failed, cursor };
        self.try_full_again(&mut pass, &mut call);
        let mut is_at_end = true;
        let first = u64::from(self.member.index());
        for tree in first..first + EXPIRY_TREES {
            is_at_end &= self.collect_tree(tree, &mut pass, &mut call);
        }
        if is_at_end {
            pass.full = FullPass::default();
            pass.behind.clear();
        }
        self.internal.expiry_pass.replace(pass);
        let CollectionCall { mut collected, left, failed, .. } = call;
        // Without a deletion the next call is left to the caller's interval.
        let is_partial = !is_at_end || failed.is_some();
        collected.has_more |= left == 0 || collected.records != 0 && is_partial;
        (collected, failed)
    }

    /// Tries the first entry again for whose deletion there was no room, if memory may have come
    /// free since. If it is deleted, all that was passed is tried again. So what a reader held is
    /// collected when its view has ended, and while one holds it, no call tries all of it.
    fn try_full_again(&self, pass: &mut ExpiryPass, call: &mut CollectionCall) {
        let (Some((tree, entry)), Some(watch)) = (&pass.full.first, &pass.full.watch) else {
            return;
        };
        if matches!(self.member.has_freed(watch), Ok(false)) {
            return;
        }
        let (tree, entry) = (*tree, ExpiryEntry::parse(entry.clone()));
        let FullPass { namespaces, .. } = std::mem::take(&mut pass.full);
        // Before the attempt: what comes free after it is seen by the next one.
        pass.full.watch = self.member.watch_free().ok();
        let is_left = entry.is_ok_and(|entry| self.handle_next(tree, &entry, pass, call));
        if is_left && pass.full.first.is_some() {
            pass.full.namespaces = namespaces;
        } else {
            pass.full = FullPass::default();
            pass.passed.clear();
        }
    }

    /// There was no room for the deletion of an entry's record: those of its namespace are passed.
    /// Not before memory that comes free is watched, which the first failure begins.
    fn note_full(&self, tree: u64, entry: &ExpiryEntry, full: &mut FullPass) {
        if full.watch.is_none() {
            full.watch = self.member.watch_free().ok();
            return;
        }
        if !full.namespaces.contains(&entry.namespace) {
            full.namespaces.push(entry.namespace);
        }
        full.first.get_or_insert_with(|| (tree, entry.entry.clone()));
    }

    /// Handles the due entries of a tree. True if it has come to their end.
    fn collect_tree(&self, tree: u64, pass: &mut ExpiryPass, call: &mut CollectionCall) -> bool {
        let mut passed = pass.passed.remove(&tree).unwrap_or_default();
        let (mut after, mut skipped) = (passed.clone(), 0);
        let is_at_end = loop {
            if call.is_over() || skipped > call.skipped_max {
                break false;
            }
            let limit = BATCH.min(call.left);
            let due = match self.due_entries((tree, &mut call.cursor), &after, limit) {
                Ok(due) => due,
                Err(error) => {
                    call.fail(error);
                    break true;
                }
            };
            let Some(last) = due.last() else { break true };
            after.clone_from(&last.entry);
            invariant!(due.len() <= call.left, "{} entries of {} are due", due.len(), call.left);
            for entry in &due {
                if call.is_over() {
                    break;
                }
                if self.handle_next(tree, entry, pass, call) {
                    skipped += 1;
                    passed.clone_from(&entry.entry);
                }
            }
        };
        if !is_at_end && !passed.is_empty() {
            pass.passed.insert(tree, passed);
        }
        is_at_end
    }

    /// Handles a due entry. True if it stays as it is.
    fn handle_next(
        &self,
        tree: u64,
        entry: &ExpiryEntry,
        pass: &mut ExpiryPass,
        call: &mut CollectionCall,
    ) -> bool {
        let namespace = self.due_namespace(entry.namespace, pass);
        if namespace == DueNamespace::Refused {
            return true;
        }
        match self.handle_due(tree, entry, namespace == DueNamespace::Followed) {
            // The others: its writers are refused since this moment.
            Ok(Handled::Left) | Err(Error::Fenced { .. } | Error::NotOwner { .. }) => return true,
            Ok(Handled::Expired) => call.collected.records += 1,
            Ok(Handled::Outdated | Handled::Moved) => {}
            // Another session deletes it.
            Err(Error::Conflict { .. }) => call.collected.has_more = true,
            // Its namespace was removed in this moment: the next collection finds that.
            Err(Error::BadArgument { .. })
                if self.member.check_namespace(entry.namespace).is_err() =>
            {
                call.collected.has_more = true;
            }
            Err(error) => {
                if matches!(error, Error::Behind { .. }) {
                    pass.behind.push(entry.namespace);
                } else if matches!(error, Error::Full { .. }) {
                    self.note_full(tree, entry, &mut pass.full);
                }
                call.fail(error);
                return true;
            }
        }
        call.left -= 1;
        false
    }

    /// Whether the expired records of a namespace are deleted here and now.
    fn due_namespace(&self, namespace: u32, pass: &ExpiryPass) -> DueNamespace {
        if pass.full.namespaces.contains(&namespace) {
            return DueNamespace::Refused;
        }
        // Entries of one that was removed are taken out.
        if self.member.check_namespace(namespace).is_err() {
            return DueNamespace::Writable;
        }
        match self.member.namespace_flags(namespace) {
            Ok(flags) if flags & namespace_flags::FOLLOWED != 0 => DueNamespace::Followed,
            // The log has no room for their deletions.
            Ok(_) if pass.behind.contains(&namespace) => DueNamespace::Refused,
            Ok(flags)
                if flags & namespace_flags::LOGGED != 0
                    && self.member.is_fenced_off_now().is_ok_and(|is_refused| is_refused) =>
            {
                DueNamespace::Refused
            }
            // An error of the flags is one of the deletion.
            Ok(_) | Err(_) => DueNamespace::Writable,
        }
    }

    /// The first entries of a tree after `after` whose time has passed. The cursor keeps its memory
    /// from one tree to the next.
    fn due_entries(
        &self,
        (tree, cursor): (u64, &mut Cursor),
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<ExpiryEntry>> {
        let now = self.member.expiry_now_ms_coarse()?.saturating_add(1).to_be_bytes();
        self.entries_in((tree, cursor), (Bound::Excluded(after), Bound::Excluded(&now[..])), limit)
    }

    /// The first entries of a tree in a range.
    fn entries_in(
        &self,
        (tree, cursor): (u64, &mut Cursor),
        range: (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
    ) -> Result<Vec<ExpiryEntry>> {
        cursor.begin(expiry_root(tree), range, ReadMode::Untracked);
        read_entries(&mut WriteSet::new(self)?, cursor, limit)
    }

    /// Handles a due entry: deletes its record if it has expired, unless that `is_left` to another
    /// host, or moves the entry to the record's expiry time.
    fn handle_due(&self, tree: u64, due: &ExpiryEntry, is_left: bool) -> Result<Handled> {
        let set = &mut WriteSet::new(self)?;
        let mut scratch = set.buffers.take_scratch();
        let root = expiry_root(tree);
        let existed = scratch.ordered.remove(set, root, &due.entry);
        let handled = existed.and_then(|existed| {
            if !existed {
                return Ok(Handled::Moved); // Another session has handled it.
            }
            if self.member.check_namespace(due.namespace).is_err() {
                // Its namespace was removed, and the number is not used again.
                return Ok(Handled::Outdated);
            }
            let hash = self.hash(&due.key);
            let (index, stored) = set.read(due.namespace, hash, &due.key)?;
            let Some((cell, bytes)) = stored else { return Ok(Handled::Outdated) };
            let (_, meta) = split(cell, bytes)?;
            let expires = expires_ms(meta);
            // A follower that applies an entry judges no expiry, and would move it to where it is.
            let is_due = expires != 0 && expires <= self.member.expiry_now_ms_coarse()?;
            if is_past(cell, meta)? || is_left && is_due {
                if is_left {
                    return Ok(Handled::Left);
                }
                set.delete(index);
                set.entry_mut(index).is_expiry = true;
                return Ok(Handled::Expired);
            }
            if expires == 0 {
                return Ok(Handled::Outdated);
            }
            let mut key = Vec::with_capacity(due.entry.len());
            expiry_key(expires, due.namespace, &due.key, &mut key);
            let is_new = scratch.ordered.insert(set, root, &key)?;
            Ok(if is_new { Handled::Moved } else { Handled::Outdated })
        });
        set.buffers.give_scratch(scratch);
        let handled = handled?;
        if handled != Handled::Left {
            set.index_all()?;
            set.notify_all()?;
            set.commit()?;
        }
        Ok(handled)
    }

    /// Collects a few expired records after enough commits of records with an expiry time, so that
    /// writers limit the number of expired records even if no process collects.
    #[inline]
    pub(crate) fn collect_some(&self) {
        if self.internal.expiring.get() >= EXPIRING_MAX {
            self.collect_now();
        }
    }

    #[cold]
    fn collect_now(&self) {
        self.internal.expiring.set(0);
        // A failure is no error of the write.
        let _ = self.aside(|session| session.collect_due(COLLECTED_MAX, SKIPPED_ASIDE_MAX));
        self.sweep_if_due();
    }

    /// After a write found no room: collects some expired records, at most a few times for one
    /// write. True if the write may find room now. A session that found none looks again after the
    /// next tick of the clock (1 to 10 ms), or after a write of its own with an expiry: in a region
    /// full of records that expire later the order of expiry is not read for each refused write.
    #[cold]
    #[inline(never)]
    pub(crate) fn collect_for_room(&self, collections: &mut u32) -> bool {
        self.collect_for_write(collections, |session| {
            session.collects_due() || session.sweep_entries(SWEPT_FOR_ROOM) != 0
        })
    }

    /// The same after a write to a namespace that has reached its limit, to which entries of the
    /// order of expiry do not count. First among its own records, then in the order of expiry.
    #[cold]
    pub(crate) fn collect_for_limit(&self, name: &str, collections: &mut u32) -> bool {
        self.collect_for_write(collections, |session| {
            session.collect_own(name) != 0 || session.collects_due()
        })
    }

    /// `collects` is true if it has found some.
    fn collect_for_write(&self, collections: &mut u32, collects: impl Fn(&Self) -> bool) -> bool {
        let now = nearstate_memory::now_ms_coarse();
        if *collections >= COLLECTIONS_FOR_ROOM || self.internal.none_due_ms.get() == now {
            return false;
        }
        *collections += 1;
        let may_have_room = self.aside(collects);
        if !may_have_room {
            self.internal.none_due_ms.set(now);
        }
        may_have_room
    }

    /// Collects some of the records that expired first. True if there may be room now.
    fn collects_due(&self) -> bool {
        let (collected, _) = self.collect_due(COLLECTED_FOR_ROOM, SKIPPED_ASIDE_MAX);
        collected.records != 0 || collected.has_more
    }

    /// Collects for a write of this session. The receipt of the write is not that of a record that
    /// is collected.
    fn aside<T>(&self, collect: impl FnOnce(&Self) -> T) -> T {
        let (last, owed) = (self.last_position.get(), self.owed_position.get());
        let collected = collect(self);
        self.last_position.set(last);
        self.owed_position.set(owed);
        collected
    }
}

/// The next entries of a cursor.
fn read_entries(
    set: &mut WriteSet<'_>,
    cursor: &mut Cursor,
    limit: usize,
) -> Result<Vec<ExpiryEntry>> {
    let mut due = Vec::new();
    while due.len() < limit {
        let entry = match cursor.next(set) {
            Ok(Some(entry)) => entry,
            Ok(None) | Err(Error::Conflict { .. }) => break,
            Err(error) => return Err(error),
        };
        due.push(ExpiryEntry::parse(entry.to_vec())?);
    }
    invariant!(due.len() <= limit, "{} entries, and {limit} at most", due.len());
    Ok(due)
}

/// True for a failure of one record, after which others may be deleted.
const fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::Full { .. }
            | Error::Behind { .. }
            | Error::Stalled { .. }
            | Error::TransactionTooLarge { .. }
    )
}

#[cfg(test)]
mod tests;
