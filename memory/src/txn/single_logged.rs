//! Changes one record that the log has. The steps are those of a transaction (`commit.rs`,
//! `spec/region.md`, section 9), and recovery takes it for one; what only several records need is
//! left out.

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::Cell;
use crate::heap::class::{bytes_of, class_of};
use crate::index::bucket::{
    abort, decide, depth_of, fence_behind_decision, is_link, load, units_of,
};
use crate::index::intent::{LINE_LOCK, LINE_SLOT, STATUS, TxnCell, kinds};
use crate::index::known_slot::{KnownSlot, WriteTarget};
use crate::index::lookup::{find_bucket, link_slot};
use crate::layout::{LINE, namespace_flags};
use crate::log::entry::check_value;
use crate::log::log_words;
use crate::log::words::LogWords;
use crate::member::arena::{Arena, op, undo};
use crate::member::{LOCK_WAIT_MAX, Member, lock};
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::step;
use crate::txn::fill::PendingCell;
use crate::txn::finish::{abandon, roll_back, roll_forward_single, unlock};
use crate::txn::plan::{CellChange, RecordAccess};
use crate::txn::publish::{
    CROWDED_ENTRIES, WriteDecision, WriteOutcome, locate_target, replaced_cell,
};

/// A change with such a position retires a cell more than it holds. Each of them is a cache miss.
const RELEASE_MORE_EVERY: u64 = 4;

/// The lines of its transaction, and the bytes of its cell: a line more, and that of the log.
const LINES: u64 = 1;
const TXN_BYTES: u64 = LINE * (LINES + 2);
const _: () = assert!(matches!(class_of(TXN_BYTES), Some(class) if bytes_of(class) == TXN_BYTES));

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

/// A change that is decided under the lock of its bucket; before that, one that keeps the record.
struct Decided<'m> {
    access: RecordAccess,
    /// The record before.
    old: Option<Cell<'m>>,
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
    #[inline(never)]
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
        let Some(words) = log_words(self.map())? else {
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
        let done = self.write_in_log((table, target), &mut decided, (log, &words), choose);
        if let Err(error) = done {
            self.free_pending()?;
            return Err(error);
        }
        if decided.is_passed_over || decided.decision == WriteDecision::Keep {
            self.free_pending()?;
        } else {
            // The change is committed: a failure to tidy is not one of this call.
            let arena = self.arena();
            let tidied = self.tidy_logged(table, &decided, &arena);
            if tidied.is_err() && arena.get(undo::OP) == op::NONE {
                self.free_pending()?;
            }
        }
        self.check_not_truncated()?;
        if decided.is_passed_over {
            return Ok(LoggedOutcome::PassedOver);
        }
        let Decided { access, decision, position, .. } = &decided;
        let (decision, position) = (*decision, *position);
        let (version_before, version_after) = (access.version_before, access.version_after);
        let outcome = WriteOutcome { decision, version_before, version_after };
        Ok(LoggedOutcome::Done { outcome, position })
    }

    fn write_in_log<'m>(
        &'m self,
        (table, target): (&IndexTable, WriteTarget<'_>),
        decided: &mut Decided<'m>,
        log: (LogRequest, &LogWords<'_>),
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<()> {
        invariant!(self.has_no_lock(), "a transaction begins while this member holds a lock");
        let txn = self.allocate_txn_cell(LINES, kinds(0, 0, true), true)?;
        let arena = self.arena();
        decided.access.lock_at = self.lock_for_log(table, target.hash, txn, &arena)?;
        crash_point!("txn.locked");
        let done = self.decide_logged(decided, (target, txn), log, choose);
        if done.is_err() {
            abandon(&arena, txn);
        }
        let word = self.map().word(decided.access.lock_at)?;
        lock::release(word, word.load(Ordering::Relaxed));
        fence_behind_decision();
        crash_point!("txn.unlocking");
        arena.set(undo::TXN, 0);
        crash_point!("txn.unlocked");
        done
    }

    /// Takes the lock of the bucket that holds a hash, which the line of the transaction names.
    #[inline]
    fn lock_for_log(
        &self,
        table: &IndexTable,
        hash: u64,
        txn: TxnCell<'_>,
        arena: &Arena<'_>,
    ) -> Result<u64> {
        let line = txn.line(0)?;
        line.set(LINE_SLOT, 0);
        let mut bucket = table.bucket_of(hash);
        let mut at = table.bucket_at(self.map(), bucket)?;
        loop {
            line.set(LINE_LOCK, at);
            arena.set(undo::TXN, txn.at);
            crash_point!("txn.named");
            let word = self.map().word(at)?;
            let payload = match lock::try_take(word, self.lock_owner()) {
                Ok(payload) => payload,
                Err(_) => match self.wait_for(word, LOCK_WAIT_MAX) {
                    Ok(payload) => payload,
                    Err(error) => {
                        arena.set(undo::TXN, 0);
                        return Err(error);
                    }
                },
            };
            crash_point!("txn.locking");
            if step(hash, bucket, depth_of(payload)).is_none() {
                return Ok(at);
            }
            // The bucket was split.
            unlock(arena, self.lock_owner())?;
            (bucket, at, _) = find_bucket(self.map(), table, hash)?;
        }
    }

    /// With the lock held: the caller decides, and the decision is carried out.
    #[inline]
    fn decide_logged<'m>(
        &'m self,
        decided: &mut Decided<'m>,
        (target, txn): (WriteTarget<'_>, TxnCell<'_>),
        (log, words): (LogRequest, &LogWords<'_>),
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<()> {
        let (map, access) = (self.map(), &mut decided.access);
        access.set_slot(locate_target(map, access.lock_at, target)?);
        let old = match access.entry_at {
            0 => None,
            _ => Some(Cell::at_units(map, units_of(access.entry))?),
        };
        access.version_before = old.map(|cell| cell.version());
        decided.old = old;
        let decision = choose(old)?;
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
            self.check_single_growth(access, old)?;
        }
        let is_insert = access.entry_at == 0;
        if is_insert && self.make_room(access, 1)? {
            let known = KnownSlot::Unknown;
            access.set_slot(locate_target(map, access.lock_at, WriteTarget { known, ..target })?);
        }
        self.seal_after(access)?;
        let (bytes, cells) = match old {
            None => (0, 0),
            Some(old) => replaced_cell(map, old, access.new_entry())?,
        };
        decided.held = ((bytes + TXN_BYTES) / LINE, cells + 1);
        let must_keep = log.flags & namespace_flags::LOSSLESS != 0;
        self.check_room_in(words, decided.held.0, must_keep)?;
        self.publish_logged(decided, txn, words)
    }

    /// A change that uses the reserve replaces or deletes at least as much as it adds.
    #[cold]
    fn check_single_growth(&self, access: &RecordAccess, old: Option<Cell<'_>>) -> Result<()> {
        let bytes_before = old.map_or(Ok(0), |cell| cell.taken_bytes())?;
        let bytes_after = match access.change {
            CellChange::Publish(draft) => Cell::new(self.map(), draft.at)?.taken_bytes()?,
            CellChange::Keep | CellChange::Remove => 0,
        };
        self.check_growth(bytes_before, bytes_after)
    }

    /// Publishes the intent, places the transaction in the log, decides and finishes.
    #[inline]
    fn publish_logged(
        &self,
        decided: &mut Decided<'_>,
        txn: TxnCell<'_>,
        words: &LogWords<'_>,
    ) -> Result<()> {
        invariant!(decided.access.lock_at != 0, "a change is logged without its bucket's lock");
        let arena = self.arena();
        arena.set(undo::WORD_OFFSET, txn.at);
        arena.set(undo::OP, op::TXN);
        crash_point!("txn.recorded");
        let line = txn.line(0)?;
        self.intend(&decided.access, txn, (txn.line_at(0), line))?;
        crash_point!("txn.intended");
        let (check, status) = (check_value(std::iter::once(line.words())), txn.word(STATUS)?);
        let position = self.place_in(words, (txn, txn.line(1)?), check, decided.held.0)?;
        if position == 0 {
            abort(status);
        }
        if !decide(status) {
            decided.is_passed_over = true;
            return Ok(roll_back(&arena)?);
        }
        decided.position = position;
        crash_point!("txn.decided");
        Ok(roll_forward_single(&arena, txn, &decided.access, (decided.old, position))?)
    }

    /// Compacts the bucket, grows a crowded index, and retires what the log holds no longer.
    fn tidy_logged(
        &self,
        table: &IndexTable,
        decided: &Decided<'_>,
        arena: &Arena<'_>,
    ) -> Result<()> {
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
        self.trim_next_queue(arena)
    }
}
