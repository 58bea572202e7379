//! Changes one record that the log has. The steps are those of a transaction (`commit.rs`,
//! `spec/region.md`, section 9), and recovery takes it for one; what only several records need is
//! left out.
//!
//! All of it is a part of its caller: what the steps hand to each other stays in registers.

use nearstate_model::{Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellKind};
use crate::heap::class::{bytes_of, class_of};
use crate::heap::held::HAS_POSITION;
use crate::index::bucket::{
    abort, decide, depth_of, fence_behind_decision, is_intent, is_link, load, publish, units_of,
};
use crate::index::intent::{LINE_LOCK, LINE_SLOT, TxnCell, TxnLine, kinds};
use crate::index::known_slot::{KnownSlot, WriteTarget};
use crate::index::lookup::{find_bucket, link_slot};
use crate::layout::{Corruption, LINE, namespace_flags};
use crate::log::entry::check_of;
use crate::log::words::LogWords;
use crate::member::arena::{op, undo};
use crate::member::{LOCK_WAIT_MAX, Member, lock};
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::step;
use crate::txn::fill::PendingCell;
use crate::txn::finish::{abandon, roll_back, unlock};
use crate::txn::plan::{CellChange, RecordAccess};
use crate::txn::publish::{
    CROWDED_ENTRIES, Disposal, RecordLine, WriteDecision, WriteOutcome, locate_target, replaced,
    retire_record,
};

/// A change with such a position retires a cell more than it holds. Each of them is a cache miss.
const RELEASE_MORE_EVERY: u64 = 4;

/// The lines of its transaction, and the bytes of its cell: a line more, and that of the log.
const LINES: u64 = 1;
const TXN_BYTES: u64 = LINE * (LINES + 2);
const TXN_WORDS: usize = TXN_BYTES as usize / 8;
const TXN_CLASS: u8 = match class_of(TXN_BYTES) {
    Some(class) => class,
    None => panic!("a transaction of one record is a cell"),
};
const _: () = assert!(bytes_of(TXN_CLASS) == TXN_BYTES, "no byte of the cell is unused");

/// What the log says about a change of one record.
#[derive(Clone, Copy, Debug)]
pub struct LogRequest {
    /// The mark of the record ([`crate::log_mark`]).
    pub mark: u64,
    /// The flags of its namespace.
    pub flags: u64,
}

/// The result of [`Member::write_logged`].
#[derive(Clone, Copy, Debug)]
pub enum LoggedOutcome {
    /// The caller's decision was carried out.
    Done {
        /// As of a change that is not logged.
        outcome: WriteOutcome,
        /// Its position in the log; 0 if nothing was changed.
        position: u64,
    },
    /// Nothing was changed: a consumer of the log has taken this writer for one that was stopped,
    /// and its position for one that stays empty; or the region has no log, because a repair has
    /// removed it. The caller commits a transaction, which creates one.
    PassedOver,
}

/// The cell of its transaction.
#[derive(Clone, Copy, Debug)]
struct SingleTxn<'m> {
    cell: TxnCell<'m>,
    head: &'m [AtomicU64; 8],
    /// The line of the record.
    line: TxnLine<'m>,
    /// The line of the log.
    log: TxnLine<'m>,
}

/// The lock of its bucket, and the word that is the lock.
type BucketLock<'m> = (u64, &'m AtomicU64);

/// A change that is decided under the lock of its bucket; before that, one that keeps the record.
struct Decided<'m> {
    access: RecordAccess,
    /// The record before.
    old: Option<(Cell<'m>, RecordLine<'m>)>,
    decision: WriteDecision,
    /// Units and cells that the log holds for it.
    held: (u64, u64),
    position: u64,
    is_passed_over: bool,
}

impl Member {
    /// As [`Member::write_target`], for a record of a namespace that is logged. Nothing but the
    /// record is changed with it: the namespace has no index, watch or limit that the change
    /// concerns.
    ///
    /// Cost: that of [`Member::write_target`], a cell of three lines, two atomic additions and two
    /// compare-and-swaps.
    ///
    /// # Errors
    /// As [`Member::write_target`]; `Behind`, `TransactionTooLarge`: the log has no room. Nothing
    /// was changed then.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs 80 instructions, most of them moves")]
    pub fn write_logged(
        &self,
        table: &IndexTable,
        target: WriteTarget<'_>,
        draft: Option<PendingCell>,
        log: LogRequest,
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<LoggedOutcome> {
        invariant!(self.is_in_operation(), "another member may be taking cells");
        invariant!(log.mark != 0, "a record of the log has a mark");
        let Some(words) = self.known_log_words()? else {
            self.free_pending()?;
            return Ok(LoggedOutcome::PassedOver);
        };
        self.prefetch_held();
        let change = draft.map_or(CellChange::Remove, CellChange::Publish);
        let mut access = RecordAccess::new(table.index(), target.hash, (0, 0));
        (access.change, access.log_mark) = (change, log.mark);
        access.version_imposed = target.version_imposed;
        let (old, decision, held) = (None, WriteDecision::Keep, (0, 0));
        let (position, is_passed_over) = (0, false);
        let mut decided = Decided { access, old, decision, held, position, is_passed_over };
        let done = self.write_in_log((table, target), &mut decided, (log, words), choose);
        if let Err(error) = done {
            self.free_pending()?;
            return Err(error);
        }
        if decided.is_passed_over || decided.decision == WriteDecision::Keep {
            self.free_pending()?;
        } else {
            // The change is committed: a failure to tidy is not one of this call.
            let tidied = self.tidy_logged(table, &decided);
            if tidied.is_err() && self.arena().get(undo::OP) == op::NONE {
                self.free_pending()?;
            }
        }
        self.check_not_truncated()?;
        if decided.is_passed_over {
            return Ok(LoggedOutcome::PassedOver);
        }
        let Decided { access, decision, position, .. } = decided;
        let (version_before, version_after) = (access.version_before, access.version_after);
        let outcome = WriteOutcome { decision, version_before, version_after };
        Ok(LoggedOutcome::Done { outcome, position })
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn write_in_log<'m>(
        &'m self,
        (table, target): (&IndexTable, WriteTarget<'_>),
        decided: &mut Decided<'m>,
        log: (LogRequest, LogWords<'_>),
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<()> {
        invariant!(self.has_no_lock(), "a transaction begins while this member holds a lock");
        let txn = self.allocate_single_txn()?;
        let (lock_at, lock) = self.lock_for_log(table, target, txn)?;
        decided.access.lock_at = lock_at;
        crash_point!("txn.locked");
        let done = self.decide_logged(decided, (target, txn, lock), log, choose);
        if done.is_err() {
            abandon(&self.arena(), txn.cell);
        }
        lock::release(lock, lock.load(Ordering::Relaxed));
        fence_behind_decision();
        crash_point!("txn.unlocking");
        self.arena().set(undo::TXN, 0);
        crash_point!("txn.unlocked");
        done
    }

    /// A pending cell of a logged transaction with one line.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn allocate_single_txn(&self) -> Result<SingleTxn<'_>> {
        let at = self.allocate_of(TXN_CLASS, TXN_BYTES)?;
        let words = self.map().words::<TXN_WORDS>(at)?;
        let ([head, line, log], []) = words.as_chunks::<8>() else {
            invariant!("the cell of a transaction has three lines")
        };
        let [first, _, _, status, count, of_each_kind, position, _] = head;
        debug_assert!(
            first.load(Ordering::Relaxed) as u8 == TXN_CLASS,
            "an allocated cell has the class that was asked for"
        );
        let first_word = u64::from(TXN_CLASS) | cell::kind_in_head(CellKind::Transaction);
        first.store(first_word, Ordering::Relaxed);
        status.store(0, Ordering::Relaxed);
        count.store(LINES, Ordering::Relaxed);
        of_each_kind.store(kinds(0, 0, true), Ordering::Relaxed);
        position.store(0, Ordering::Relaxed);
        let cell = TxnCell::of(self.map(), at);
        Ok(SingleTxn { cell, head, line: TxnLine::of(line), log: TxnLine::of(log) })
    }

    /// Takes the lock of the bucket that holds a hash, which the line of the transaction names.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn lock_for_log(
        &self,
        table: &IndexTable,
        WriteTarget { hash, place, .. }: WriteTarget<'_>,
        txn: SingleTxn<'_>,
    ) -> Result<BucketLock<'_>> {
        txn.line.set(LINE_SLOT, 0);
        let (bucket, at) = self.locate_bucket(table, hash, place)?;
        let (lock, payload) = self.take_for_log(at, txn)?;
        if step(hash, bucket, depth_of(payload)).is_none() {
            return Ok((at, lock));
        }
        self.lock_split_for_log(table, hash, txn)
    }

    /// As [`Member::lock_for_log`], if the bucket that was locked was split.
    #[cold]
    fn lock_split_for_log(
        &self,
        table: &IndexTable,
        hash: u64,
        txn: SingleTxn<'_>,
    ) -> Result<BucketLock<'_>> {
        loop {
            unlock(&self.arena(), self.lock_owner())?;
            let (bucket, at, _) = find_bucket(self.map(), table, hash)?;
            let (lock, payload) = self.take_for_log(at, txn)?;
            if step(hash, bucket, depth_of(payload)).is_none() {
                return Ok((at, lock));
            }
        }
    }

    /// Names the lock at an offset in the line of the transaction, and takes it. Returns its word
    /// and its payload.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn take_for_log(&self, at: u64, txn: SingleTxn<'_>) -> Result<(&AtomicU64, u64)> {
        let arena = self.arena();
        txn.line.set(LINE_LOCK, at);
        arena.set(undo::TXN, txn.cell.at);
        crash_point!("txn.named");
        let lock = self.map().word(at)?;
        let payload = match lock::try_take(lock, self.lock_owner()) {
            Ok(payload) => payload,
            Err(_) => match self.wait_for(lock, LOCK_WAIT_MAX) {
                Ok(payload) => payload,
                Err(error) => {
                    arena.set(undo::TXN, 0);
                    return Err(error);
                }
            },
        };
        crash_point!("txn.locking");
        Ok((lock, payload))
    }

    /// With the lock held: the caller decides, and the decision is carried out.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn decide_logged<'m>(
        &'m self,
        decided: &mut Decided<'m>,
        (target, txn, lock): (WriteTarget<'_>, SingleTxn<'_>, &AtomicU64),
        (log, words): (LogRequest, LogWords<'_>),
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<()> {
        let (map, access) = (self.map(), &mut decided.access);
        let place = locate_target(map, access.lock_at, target)?;
        let cell_of = |line| (Cell::of_line(map, units_of(place.entry), line), line);
        let old = place.line.map(cell_of);
        access.set_slot(place);
        access.version_before = old.map(|(cell, _)| cell.version());
        decided.old = old;
        let decision = choose(old.map(|(cell, _)| cell))?;
        let is_kept = match (decision, access.change) {
            (WriteDecision::Keep, _) => true,
            (WriteDecision::Remove, CellChange::Remove) => old.is_none(),
            (WriteDecision::Publish, CellChange::Publish(_)) => false,
            (WriteDecision::Publish, _) => {
                invariant!("a caller publishes a record without a pending cell")
            }
            (WriteDecision::Remove, _) => invariant!("a caller removes a record that it drafted"),
        };
        if is_kept {
            return Ok(());
        }
        decided.decision = decision;
        if self.may_use_reserve.get() {
            self.check_single_growth(access.change, access.entry)?;
        }
        let is_insert = access.entry_at == 0;
        if is_insert && self.make_room(access, 1)? {
            let known = KnownSlot::Unknown;
            access.set_slot(locate_target(map, access.lock_at, WriteTarget { known, ..target })?);
        }
        let (bytes, cells) = match old {
            None => (0, 0),
            Some((cell, line)) if cell.children() == 0 => (cell::bytes_of(map, line)?, 1),
            Some(_) => replaced(map, access.entry, access.new_entry())?,
        };
        decided.held = ((bytes + TXN_BYTES) / LINE, cells + 1);
        let must_keep = log.flags & namespace_flags::LOSSLESS != 0;
        self.check_room_in(words, decided.held.0, must_keep)?;
        // Behind what is refused: a removal raises the stamp of the bucket.
        self.seal_after(&mut decided.access, lock)?;
        self.publish_logged(decided, txn, words)
    }

    /// A change that uses the reserve replaces or deletes at least as much as it adds.
    #[cold]
    fn check_single_growth(&self, change: CellChange, old_entry: u64) -> Result<()> {
        let bytes_before = match old_entry {
            0 => 0,
            old => Cell::at_units(self.map(), units_of(old))?.taken_bytes()?,
        };
        let bytes_after = match change {
            CellChange::Publish(draft) => Cell::new(self.map(), draft.at)?.taken_bytes()?,
            CellChange::Keep | CellChange::Remove => 0,
        };
        self.check_growth(bytes_before, bytes_after)
    }

    /// Publishes the intent, places the transaction in the log, decides and finishes.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn publish_logged(
        &self,
        decided: &mut Decided<'_>,
        txn: SingleTxn<'_>,
        words: LogWords<'_>,
    ) -> Result<()> {
        invariant!(decided.access.lock_at != 0, "a change is logged without its bucket's lock");
        let (arena, access) = (self.arena(), &decided.access);
        arena.set(undo::WORD_OFFSET, txn.cell.at);
        arena.set(undo::OP, op::TXN);
        crash_point!("txn.recorded");
        let (slot_at, slot) = self.intend(access, txn.cell, (txn.cell.line_at(0), txn.line))?;
        crash_point!("txn.intended");
        let [.., status, _, _, _, _] = txn.head;
        let base = access.version_before.unwrap_or(0);
        let said = [slot_at, access.entry, access.new_entry(), base, access.log_mark];
        let (units, place) = (decided.held.0, (txn.cell.at, txn.head, txn.log));
        let position = self.place_in(words, place, check_of(0, said), units)?;
        if position == 0 {
            abort(status);
        }
        if !decide(status) {
            decided.is_passed_over = true;
            return Ok(roll_back(&self.arena())?);
        }
        decided.position = position;
        crash_point!("txn.decided");
        Ok(self.roll_forward_single(decided, txn, slot)?)
    }

    /// As `finish::roll_forward`, for a transaction of the log with one line, which stands for a
    /// record that the log has: the same stores in the same order, so recovery completes it by
    /// that. The intent is in place in its `slot`, because only its own transaction replaces it
    /// while its writer lives.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn roll_forward_single(
        &self,
        decided: &Decided<'_>,
        txn: SingleTxn<'_>,
        slot: &AtomicU64,
    ) -> Result<(), Corruption> {
        let (map, arena, position) = (self.map(), self.arena(), decided.position);
        invariant!(position != 0, "a transaction of the log is committed without a position");
        debug_assert!(is_intent(load(slot)), "an intent was replaced before its transaction ended");
        let new = decided.access.new_entry();
        publish(slot, new);
        crash_point!("txn.replacing");
        if new == 0 {
            txn.cell.raise_stamp(decided.access.lock_at)?;
        }
        crash_point!("txn.replaced");
        arena.set(undo::PENDING, 0);
        crash_point!("txn.unpended");
        let txn_link = arena.hold_txn(txn.cell.at, txn.head);
        if new != 0 {
            let [_, next, ..] = map.line(units_of(new))?;
            next.store(HAS_POSITION | position, Ordering::Release);
        }
        match decided.old {
            None => {}
            Some((old, line)) if old.children() == 0 => {
                arena.hold_behind(txn_link, (old.at(), line));
            }
            Some(_) => {
                retire_record(&self.arena(), decided.access.entry, new, Disposal::Held)?;
            }
        }
        crash_point!("txn.retired");
        crash_point!("txn.cell_retired");
        arena.set(undo::OP, op::NONE);
        Ok(())
    }

    /// Compacts the bucket, grows a crowded index, and retires what the log holds no longer.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn tidy_logged(&self, table: &IndexTable, decided: &Decided<'_>) -> Result<()> {
        let access = &decided.access;
        if decided.decision == WriteDecision::Remove
            && is_link(load(self.map().word(link_slot(access.lock_at))?))
        {
            self.compact_bucket(access.lock_at)?;
        }
        if access.crowd >= CROWDED_ENTRIES && access.entry_at == 0 {
            self.split_some(table, access.crowd)?;
        }
        // A little more than the change holds, so that nothing stays for long.
        let more = u64::from(decided.position.is_multiple_of(RELEASE_MORE_EVERY));
        self.tidy_log(decided.position, decided.held, more)?;
        self.trim_next_queue(&self.arena())
    }
}
