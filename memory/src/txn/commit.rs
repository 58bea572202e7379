//! Commits changes of several records atomically: `spec/region.md`, section 9, step by step.

use std::time::Instant;

use nearstate_model::{Error, Holder, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::{crash_point, is_planted};
use crate::heap::cell::{self, CellKind};
use crate::heap::queue::finish_line;
use crate::index::bucket::{
    abort, at_of, control, decide, depth_of, fence_behind_decision, hash_tag, intent, is_link,
    is_version, link, load, next_version, publish, stamp_of, units_of, version_count,
};
use crate::index::intent::{
    LINE_BASE, LINE_LOCK, LINE_MARK, LINE_NEW, LINE_OLD, LINE_OWNER, LINE_SLOT, LINES_MAX,
    POSITION, STATUS, TxnCell, TxnLine, kinds,
};
use crate::index::lookup::{find_bucket, link_slot, walk_chain};
use crate::layout::{Corruption, LINE};
use crate::member::arena::{Arena, LockSlot, op, undo, write_undo};
use crate::member::lock;
use crate::member::locking::TotalWait;
use crate::member::{LOCK_WAIT_MAX, LOCK_WAIT_SHORT, Member};
use crate::region::index_table::{IndexTable, NO_NAMESPACE};
use crate::region::linear_hash::step;
use crate::ring;
use crate::txn::count::WhenLocked;
use crate::txn::events::{self, TxnEvents};
use crate::txn::finish::{abandon, roll_back, roll_forward, unlock};
use crate::txn::plan::{AccessIndex, CellChange, CommitOutcome, CommitPlan, RecordAccess};
use crate::txn::publish::{CROWDED_ENTRIES, ENTRIES_MAX, locate, locate_target, replaced};
use crate::txn::usage;

/// The result of an attempt to take all locks.
#[derive(Debug)]
enum LockAttempt {
    All,
    /// A bucket was split meanwhile, so a key belongs to another bucket.
    Moved,
    /// This living process holds this lock.
    Busy(u64, Holder),
}

impl Member {
    /// In a [`Member::operation`], commits a transaction atomically: every reader sees all of it or
    /// nothing. All pending cells are published with it or freed. The caller has held a pin since
    /// its first read. `keys` are the bytes that contain the plan's keys.
    ///
    /// Cost for each record: an uncontended compare-and-swap, two stores to the line of its bucket
    /// and a line of this member. Locks are taken in the order of their offsets, which excludes
    /// deadlock. They are held for about 100 ns for each record.
    ///
    /// A full memory fence follows: what the caller loads next is not older than the commit.
    ///
    /// # Errors
    /// `Stalled`, `Full`, `LimitReached`, `Behind`, `TransactionTooLarge` (for a ring), `Damaged`,
    /// `System`. Nothing was changed then.
    pub fn commit(&self, plan: &mut CommitPlan, keys: &[u8]) -> Result<CommitOutcome> {
        invariant!(self.is_in_operation(), "another member may be taking cells");
        match self.commit_in_order(plan, keys) {
            Ok(CommitOutcome::Committed) => {
                let arena = self.arena();
                let tidied = self.tidy(plan, &arena).and_then(|()| self.count_on(plan));
                if tidied.is_err() && arena.get(undo::OP) == op::NONE {
                    self.free_pending()?;
                }
                self.check_not_truncated()?;
                Ok(CommitOutcome::Committed)
            }
            other => {
                self.free_pending()?;
                other
            }
        }
    }

    fn commit_in_order(&self, plan: &mut CommitPlan, keys: &[u8]) -> Result<CommitOutcome> {
        invariant!(self.has_no_lock(), "a transaction begins while this member holds a lock");
        let usages = plan.accesses.len() as u64;
        let first = usages + plan.usages.len();
        let events = plan.events.all.len() as u64;
        let kinds = kinds(events, plan.usages.len(), plan.is_logged);
        let txn = self.allocate_txn_cell(first + events, kinds, plan.is_logged)?;
        self.lock_all(plan, txn)?;
        crash_point!("txn.locked");
        let arena = self.arena();
        let done = match self.validate(plan, keys) {
            Ok(None) => self.write_validated(plan, (txn, usages, first), &arena),
            Ok(Some(refused)) => Ok(refused),
            Err(error) => Err(error),
        };
        if done.is_err() {
            abandon(&arena, txn);
        }
        unlock(&arena, self.lock_owner())?;
        invariant!(self.has_no_lock(), "a transaction ends while this member holds a leaf lock");
        crash_point!("txn.unlocked");
        // The commit is visible to all before its caller reads anything else.
        fence_behind_decision();
        if events != 0 && matches!(done, Ok(CommitOutcome::Committed)) {
            events::wake_all(txn)?;
        }
        done
    }

    /// A pending transaction cell with room for `lines`, and for the line of the log.
    pub(crate) fn allocate_txn_cell(
        &self,
        lines: u64,
        kinds: u64,
        is_logged: bool,
    ) -> Result<TxnCell<'_>> {
        invariant!(lines <= LINES_MAX, "a transaction of {lines} lines exceeds {LINES_MAX}");
        let at = self.allocate(LINE * (lines + 1 + u64::from(is_logged)))?;
        let [head, _, _, status, count, of_each_kind, position, _] =
            cell::first_line(self.map(), at)?;
        let class = head.load(Ordering::Relaxed) & 0xff;
        head.store(class | cell::kind_in_head(CellKind::Transaction), Ordering::Relaxed);
        status.store(0, Ordering::Relaxed);
        count.store(lines, Ordering::Relaxed);
        of_each_kind.store(kinds, Ordering::Relaxed);
        position.store(0, Ordering::Relaxed);
        Ok(TxnCell::of(self.map(), at))
    }

    /// With all locks held and all expectations validated: what the log refuses, and then the
    /// changes. `usages` and `first` are the numbers of the first lines of usages and events.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its one caller was too long")]
    fn write_validated(
        &self,
        plan: &mut CommitPlan,
        (txn, usages, first): (TxnCell<'_>, u64, u64),
        arena: &Arena<'_>,
    ) -> Result<CommitOutcome> {
        if plan.checks_fence && self.is_fenced_off_now()? {
            return Ok(CommitOutcome::Fenced(0));
        }
        let mut units = 0;
        if plan.is_logged
            && let Some(number) = plan.accesses.iter().position(RecordAccess::is_logged_write)
        {
            if self.is_fenced_off()? {
                return Ok(CommitOutcome::Fenced(number));
            }
            units = self.held_units(plan, txn)?;
            debug_assert!(units > 0, "the log holds the cell of a transaction that it has");
        }
        self.measure_usages(&mut plan.usages, &plan.accesses, (txn, usages))?;
        self.prepare_events(&plan.events, txn, first)?;
        let is_committed = self.write_all(plan, (txn, units), arena)?;
        Ok(if is_committed { CommitOutcome::Committed } else { CommitOutcome::Conflict(0) })
    }

    /// With all locks held: the units that the log will hold for a transaction that it has, if
    /// there is room for them.
    fn held_units(&self, plan: &mut CommitPlan, txn: TxnCell<'_>) -> Result<u64> {
        let (mut bytes, mut cells) = (cell::bytes_at(self.map(), txn.at)?, 1);
        for access in plan.accesses.iter().filter(|access| access.is_logged_write()) {
            let held = replaced(self.map(), access.entry, access.new_entry())?;
            (bytes, cells) = (bytes + held.0, cells + held.1);
        }
        self.check_log_room(bytes / LINE, plan.is_kept)?;
        plan.held = (bytes / LINE, cells);
        Ok(bytes / LINE)
    }

    /// Takes the locks of all buckets, in the order of their offsets. While it holds locks it waits
    /// only briefly. It waits for a busy lock without holding any: for [`LOCK_WAIT_MAX`] if one
    /// holder keeps it, and in all as [`TotalWait`] says, for all locks and holders together.
    fn lock_all(&self, plan: &mut CommitPlan, txn: TxnCell<'_>) -> Result<()> {
        let arena = self.arena();
        let (mut wait, mut is_split) = (TotalWait::default(), false);
        loop {
            self.sort_locks(plan, is_split)?;
            let mut before = 0;
            for ((lock_at, _), line) in plan.order.iter().zip(txn.all_lines()?) {
                let line = TxnLine::of(line);
                line.set(LINE_LOCK, if *lock_at == before { 0 } else { *lock_at });
                line.set(LINE_SLOT, 0);
                before = *lock_at;
            }
            let first = plan.order.len() as u64;
            usage::clear_lines(&plan.usages, txn, first)?;
            events::record_ring_locks(&plan.events, txn, first + plan.usages.len())?;
            arena.set(undo::TXN, txn.at);
            crash_point!("txn.named");
            let locked = self.lock_in_order(plan, txn);
            if matches!(locked, Ok(LockAttempt::All)) {
                return Ok(());
            }
            unlock(&arena, self.lock_owner())?;
            let locked = locked?;
            is_split |= matches!(locked, LockAttempt::Moved);
            if let LockAttempt::Busy(at, holder) = locked {
                let bounds = wait.next(Instant::now()).ok_or(Error::Stalled { holder })?;
                let payload = self.acquire_bounded(at, LockSlot::Bucket, bounds)?;
                self.release(at, LockSlot::Bucket, payload)?;
            }
        }
    }

    /// Finds the bucket of each access, and sorts the accesses by it. The depths of the buckets are
    /// compared under their locks. `is_split` is true if one of them did not fit: then they lead to
    /// the bucket.
    fn sort_locks(&self, plan: &mut CommitPlan, is_split: bool) -> Result<()> {
        let CommitPlan { accesses, order, .. } = plan;
        order.clear();
        order.reserve(accesses.len());
        let mut known: Option<(u32, &IndexTable)> = None;
        for (place, access) in (0..).map(AccessIndex).zip(&mut *accesses) {
            let table = match known {
                Some((namespace, table)) if namespace == access.namespace => table,
                _ => self.table(access.namespace)?,
            };
            known = Some((access.namespace, table));
            if is_split {
                (access.bucket, access.lock_at, _) = find_bucket(self.map(), table, access.hash)?;
            } else {
                access.bucket = table.bucket_of(access.hash);
                access.lock_at = table.bucket_at(self.map(), access.bucket)?;
            }
            order.push((access.lock_at, place));
        }
        order.sort_unstable_by_key(|(at, _)| *at);
        invariant!(order.len() == accesses.len(), "each access has one lock");
        Ok(())
    }

    fn lock_in_order(&self, plan: &mut CommitPlan, txn: TxnCell<'_>) -> Result<LockAttempt> {
        invariant!(plan.order.len() == plan.accesses.len(), "each access is locked");
        debug_assert!(
            plan.order.is_sorted_by_key(|(at, _)| *at),
            "locks are taken in the order of their offsets"
        );
        let (mut before, mut payload) = (0, 0);
        for (_, place) in &plan.order {
            let access = plan.access(*place);
            if access.lock_at != before {
                let word = self.map().word(access.lock_at)?;
                let bound = if before == 0 { LOCK_WAIT_MAX } else { LOCK_WAIT_SHORT };
                payload = match lock::try_take(word, self.lock_owner()) {
                    Ok(payload) => payload,
                    Err(_) => match self.wait_for(word, bound) {
                        Ok(payload) => payload,
                        Err(Error::Stalled { holder }) if before != 0 => {
                            return Ok(LockAttempt::Busy(access.lock_at, holder));
                        }
                        Err(error) => return Err(error),
                    },
                };
                crash_point!("txn.locking");
                before = access.lock_at;
            }
            if step(access.hash, access.bucket, depth_of(payload)).is_some() {
                return Ok(LockAttempt::Moved);
            }
        }
        let first = plan.order.len() as u64;
        if !plan.usages.is_empty()
            && let Some((at, holder)) = self.lock_usages(&mut plan.usages, txn, first)?
        {
            return Ok(LockAttempt::Busy(at, holder));
        }
        self.lock_rings(&plan.events)
    }

    /// Rings come last: their locks have the most waiters.
    fn lock_rings(&self, events: &TxnEvents) -> Result<LockAttempt> {
        invariant!(
            events.all.is_sorted_by_key(|event| event.ring_at),
            "rings are locked in the order of their offsets"
        );
        let mut before = 0;
        for event in &events.all {
            if event.ring_at == before {
                continue;
            }
            let at = ring::lock_at(event.ring_at);
            let word = self.map().word(at)?;
            if lock::try_take(word, self.lock_owner()).is_err() {
                match self.wait_for(word, LOCK_WAIT_SHORT) {
                    Ok(_) => {}
                    Err(Error::Stalled { holder }) => return Ok(LockAttempt::Busy(at, holder)),
                    Err(error) => return Err(error),
                }
            }
            crash_point!("txn.ring_locked");
            before = event.ring_at;
        }
        Ok(LockAttempt::All)
    }

    /// With all locks held: validates the expectations, makes room and assigns versions. `None`
    /// means that the commit continues.
    fn validate(&self, plan: &mut CommitPlan, keys: &[u8]) -> Result<Option<CommitOutcome>> {
        let map = self.map();
        let (mut kept, mut flags) = (NO_NAMESPACE, 0);
        for (number, access) in plan.accesses.iter_mut().enumerate() {
            // Also that of a record that is only read: what the transaction writes may depend on
            // it.
            if access.namespace != kept {
                kept = access.namespace;
                self.keep_namespace(kept)?;
                flags = self.namespace_flags(kept)?;
            }
            access.set_slot(locate_target(map, access.lock_at, access.target(keys))?);
            if let Some(refused) = access.refusal(flags, number) {
                return Ok(Some(refused));
            }
        }
        if self.may_use_reserve.get() {
            self.check_plan_growth(plan)?;
        }
        let (mut before, mut inserts, mut has_moved) = (0, 0, false);
        let CommitPlan { accesses, order, .. } = plan;
        for (lock_at, number) in &*order {
            let Some(access) = accesses.get_mut(number.0 as usize) else {
                invariant!("access {} is locked and not in the plan", number.0)
            };
            invariant!(access.lock_at == *lock_at, "access {} has another lock", number.0);
            if *lock_at != before {
                (before, inserts) = (*lock_at, 0);
            }
            if access.entry_at == 0 && matches!(access.change, CellChange::Publish(_)) {
                inserts += 1;
                has_moved |= self.make_room(access, inserts)?;
            }
            self.seal_version(access)?;
        }
        if !plan.events.all.is_empty() {
            plan.fill_event_versions();
        }
        if has_moved {
            self.locate_again(plan, keys)?;
        }
        Ok(None)
    }

    /// A transaction that uses the reserve replaces and deletes at least as much as it adds, index
    /// entries included.
    #[cold]
    fn check_plan_growth(&self, plan: &CommitPlan) -> Result<()> {
        let map = self.map();
        let (mut bytes_before, mut bytes_after) = (0, 0);
        for access in &plan.accesses {
            let is_write = match access.change {
                CellChange::Keep => false,
                CellChange::Remove => true,
                CellChange::Publish(draft) => {
                    bytes_after += cell::Cell::new(map, draft.at)?.taken_bytes()?;
                    true
                }
            };
            if is_write && access.entry_at != 0 {
                bytes_before += cell::Cell::new(map, at_of(access.entry))?.taken_bytes()?;
            }
        }
        self.check_growth(bytes_before, bytes_after)
    }

    /// Makes sure that a chain has an empty word for each of its `inserts`. Returns true if an
    /// entry moved.
    #[inline]
    pub(crate) fn make_room(&self, access: &RecordAccess, inserts: u64) -> Result<bool> {
        invariant!(inserts > 0, "room is made for no entry");
        if inserts == 1 && access.empty_at != 0 {
            return Ok(false);
        }
        self.make_room_in_chain(access.lock_at, inserts)
    }

    /// As [`Member::make_room`], if the chain may have too few empty words.
    #[inline(never)]
    fn make_room_in_chain(&self, bucket_at: u64, inserts: u64) -> Result<bool> {
        let mut has_moved = false;
        loop {
            let (mut room, mut last, mut entries) = (0, (0, 0), 0);
            walk_chain(self.map(), bucket_at, |at, value| {
                room += u64::from(value == 0);
                entries += u32::from(value != 0);
                last = (at, value);
                Ok(true)
            })?;
            if room >= inserts {
                return Ok(has_moved);
            }
            invariant!(last.0 != 0, "a chain has a last word");
            if u64::from(entries) + inserts > u64::from(ENTRIES_MAX) {
                return Err(Error::Full {
                    detail: "the index has no room to grow: delete records, or create a larger \
                             region"
                        .to_owned(),
                    heap: None,
                });
            }
            let line = self.new_line(&[last.1])?;
            let arena = self.arena();
            write_undo(&arena, last.0, last.1, link(line), op::LINE);
            crash_point!("line.recorded");
            publish(self.map().word(last.0)?, link(line));
            crash_point!("line.linked");
            finish_line(&arena, line)?;
            crash_point!("line.finished");
            has_moved = true;
        }
    }

    /// Assigns the version of a new record, and raises the stamp of a bucket that loses a record.
    /// Both are harmless if the transaction is undone.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs a sixth of it, for each record")]
    pub(crate) fn seal_version(&self, access: &mut RecordAccess) -> Result<()> {
        if access.entry_at != 0 {
            let [head, _, _, version, ..] = self.map().line(units_of(access.entry))?;
            access.version_before = Some(version.load(Ordering::Relaxed));
            let is_kept = matches!(access.change, CellChange::Keep);
            access.retired = (!is_kept).then(|| head.load(Ordering::Relaxed) as u8);
        }
        self.seal_after(access, self.map().word(access.lock_at)?)
    }

    /// As [`Member::seal_version`], of an access whose version before is known, given the word of
    /// its lock.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn seal_after(&self, access: &mut RecordAccess, word: &AtomicU64) -> Result<()> {
        let map = self.map();
        let payload = word.load(Ordering::Relaxed) & lock::PAYLOAD;
        match access.change {
            CellChange::Keep => {}
            CellChange::Publish(draft) => {
                let version = match access.version_imposed {
                    0 => next_version(access.version_before, stamp_of(payload))?,
                    imposed => imposed,
                };
                invariant!(is_version(version), "version {version:#x} of a commit");
                cell::seal(map, draft.at, version, draft.body_crc)?;
                access.version_after = Some(version);
            }
            CellChange::Remove => {
                if let Some(before) = access.version_before {
                    let before = before.max(access.version_imposed);
                    let stamp = (stamp_of(payload) + 1).max(version_count(before));
                    lock::hold_with(word, self.lock_owner(), control(depth_of(payload), stamp));
                }
            }
        }
        crash_point!("txn.sealed");
        Ok(())
    }

    /// After an entry moved to a new line: finds the slots of all accesses again.
    #[cold]
    fn locate_again(&self, plan: &mut CommitPlan, keys: &[u8]) -> Result<()> {
        for access in &mut plan.accesses {
            let key = access.key_in(keys);
            access.set_slot(locate(self.map(), access.lock_at, access.hash, key)?);
        }
        Ok(())
    }

    /// After validation: publishes the intents, decides and finishes. False if another process has
    /// aborted the transaction.
    fn write_all(
        &self,
        plan: &mut CommitPlan,
        (txn, held_units): (TxnCell<'_>, u64),
        arena: &Arena<'_>,
    ) -> Result<bool> {
        invariant!(plan.order.len() == plan.accesses.len(), "each access is published");
        invariant!(self.has_no_lock(), "intents are published while a leaf lock is held");
        arena.set(undo::WORD_OFFSET, txn.at);
        arena.set(undo::OP, op::TXN);
        crash_point!("txn.recorded");
        self.reserve_usages(&plan.usages)?;
        let mut line_at = txn.at;
        for ((_, place), line) in plan.order.iter().zip(txn.all_lines()?) {
            line_at += LINE;
            let access = plan.access(*place);
            if access.is_write() {
                self.intend(access, txn, (line_at, TxnLine::of(line)))?;
            }
        }
        crash_point!("txn.intended");
        if held_units != 0 && !self.place_in_log(txn, held_units)? {
            abort(txn.word(STATUS)?);
        }
        if !decide(txn.word(STATUS)?) {
            roll_back(arena)?;
            return Ok(false);
        }
        plan.position = txn.word(POSITION)?.load(Ordering::Relaxed);
        crash_point!("txn.decided");
        roll_forward(arena)?;
        Ok(true)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs a quarter of it, for each record")]
    pub(crate) fn intend(
        &self,
        access: &RecordAccess,
        txn: TxnCell<'_>,
        (line_at, line): (u64, TxnLine<'_>),
    ) -> Result<(u64, &AtomicU64)> {
        invariant!(access.is_write(), "a record that was only read gets an intent");
        let slot_at = match access.entry_at {
            0 => self.empty_word(access)?,
            found => found,
        };
        let word = self.map().word(slot_at)?;
        line.set(LINE_OLD, access.entry);
        line.set(LINE_NEW, access.new_entry());
        line.set(LINE_OWNER, txn.at);
        line.set(LINE_BASE, access.version_before.unwrap_or(0));
        line.set(LINE_MARK, access.log_mark);
        line.set(LINE_SLOT, slot_at);
        if is_planted("publish-early") {
            publish(word, access.new_entry());
        } else {
            publish(word, intent(hash_tag(access.hash), line_at));
        }
        crash_point!("txn.intending");
        Ok((slot_at, word))
    }

    /// An empty word of the chain: the one found before, unless this transaction has filled it.
    #[inline]
    fn empty_word(&self, access: &RecordAccess) -> Result<u64, Corruption> {
        if access.empty_at != 0 && load(self.map().word(access.empty_at)?) == 0 {
            return Ok(access.empty_at);
        }
        self.first_empty_word(access.lock_at)
    }

    #[inline(never)]
    fn first_empty_word(&self, bucket_at: u64) -> Result<u64, Corruption> {
        let mut empty = 0;
        walk_chain(self.map(), bucket_at, |at, value| {
            if value == 0 {
                empty = at;
            }
            Ok(value != 0)
        })?;
        if empty == 0 {
            Err(Corruption("a chain lost the room that was made in it"))
        } else {
            Ok(empty)
        }
    }

    /// Continues the count of a namespace whose first limit was set by a process that was killed
    /// meanwhile.
    fn count_on(&self, plan: &CommitPlan) -> Result<()> {
        for namespace in plan.usages.namespaces() {
            self.count_usage(namespace, BUCKETS_COUNTED, WhenLocked::Skip)?;
        }
        Ok(())
    }

    /// Trims queues that are too long, and grows crowded indexes.
    fn tidy(&self, plan: &CommitPlan, arena: &Arena<'_>) -> Result<()> {
        for access in &plan.accesses {
            if let Some(class) = access.retired.filter(|_| access.log_mark == 0) {
                self.trim_queue(arena, class)?;
            }
            if matches!(access.change, CellChange::Remove)
                && is_link(load(self.map().word(link_slot(access.lock_at))?))
            {
                self.compact_bucket(access.lock_at)?;
            }
            if access.crowd >= CROWDED_ENTRIES && access.entry_at == 0 && access.is_write() {
                self.split_some(self.table(access.namespace)?, access.crowd)?;
            }
        }
        if plan.position != 0 {
            // More than a transaction of this size holds, so that nothing stays for long.
            self.tidy_log(plan.position, plan.held, 1)?;
        }
        // The lines of the transaction were retired too.
        for _ in 0..=plan.accesses.len() / ACCESSES_PER_LOOK {
            self.trim_next_queue(arena)?;
        }
        Ok(())
    }
}

/// Buckets that a commit counts in a namespace whose count is not complete.
const BUCKETS_COUNTED: u64 = 8;

/// A commit examines one more queue for each of this many accesses.
const ACCESSES_PER_LOOK: usize = 8;
