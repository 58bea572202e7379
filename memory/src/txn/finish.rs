//! The part of a commit that recovery repeats for a dead member: it rolls an undecided transaction
//! back or a decided one forward, and releases its locks (`spec/region.md`, section 9).

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::held::HAS_POSITION;
use crate::index::bucket::units_of;
use crate::index::intent::{
    LINE_LOCK, LINE_NEW, LINE_OLD, LINE_SLOT, POSITION, TxnCell, TxnLine, TxnOutcome,
};
use crate::layout::Corruption;
use crate::log;
use crate::member::arena::{Arena, op, undo};
use crate::member::lock;
use crate::txn::events;
use crate::txn::publish::{Disposal, retire_record};
use crate::txn::usage;

/// Aborts the transaction in the undo record, unless it is committed. Returns how it ended.
pub(crate) fn abort_unless_committed(arena: &Arena<'_>) -> Result<TxnOutcome, Corruption> {
    TxnCell::of(arena.map, arena.get(undo::WORD_OFFSET)).abort_unless_committed()
}

/// Replaces the intents of an undecided transaction by the old entries. Idempotent. Recovery calls
/// it for a dead member.
pub(crate) fn roll_back(arena: &Arena<'_>) -> Result<(), Corruption> {
    let txn = TxnCell::of(arena.map, arena.get(undo::WORD_OFFSET));
    txn.replace_intents(LINE_OLD)?;
    usage::finish(txn, LINE_OLD)?;
    if txn.is_logged()? {
        // Before the cell is retired: no reader of the log finds it from here on.
        log::give_back(txn)?;
    }
    crash_point!("txn.undone");
    arena.set(undo::OP, op::NONE);
    Ok(())
}

/// Completes a decided transaction. Idempotent. Recovery calls it for a dead member.
pub(crate) fn roll_forward(arena: &Arena<'_>) -> Result<(), Corruption> {
    let txn = TxnCell::of(arena.map, arena.get(undo::WORD_OFFSET));
    txn.replace_intents(LINE_NEW)?;
    crash_point!("txn.replaced");
    let (events, usages) = txn.events_and_usages()?;
    if events != 0 {
        events::append_all(txn)?;
    }
    if usages != 0 {
        usage::finish(txn, LINE_NEW)?;
    }
    // Before anything is retired: otherwise a cell in transit could still head the pending list.
    arena.set(undo::PENDING, 0);
    crash_point!("txn.unpended");
    let position = if txn.is_logged()? { txn.word(POSITION)?.load(Ordering::Relaxed) } else { 0 };
    if position != 0 {
        // First: what follows it in the queue was replaced by it.
        arena.hold(txn.at)?;
    }
    for line in txn.all_lines()? {
        let line = TxnLine::of(line);
        if line.get(LINE_SLOT) != 0 {
            let new = line.get(LINE_NEW);
            let is_logged = position != 0 && log::entry::mark_of(line) != 0;
            if new != 0 {
                // Until now its link on the pending list, which ends with this transaction.
                let [_, next, ..] = arena.map.line(units_of(new))?;
                let word = if is_logged { HAS_POSITION | position } else { 0 };
                next.store(word, Ordering::Release);
            }
            let disposal = if is_logged { Disposal::Held } else { Disposal::Retired };
            retire_record(arena, line.get(LINE_OLD), new, disposal)?;
        }
    }
    if events != 0 {
        events::retire_all(arena, txn)?;
    }
    crash_point!("txn.retired");
    // Last: readers and the loops above need the lines until here.
    if position == 0 {
        arena.retire(txn.at)?;
    }
    crash_point!("txn.cell_retired");
    arena.set(undo::OP, op::NONE);
    Ok(())
}

/// Recovery: wakes the readers of rings to which a dead member appended.
pub(crate) fn wake(arena: &Arena<'_>) -> Result<(), Corruption> {
    events::wake_all(TxnCell::of(arena.map, arena.get(undo::WORD_OFFSET)))
}

/// Releases the locks that a transaction's cell names and `owner` holds.
pub(crate) fn unlock(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let at = arena.get(undo::TXN);
    if at == 0 {
        return Ok(());
    }
    let txn = TxnCell::of(arena.map, at);
    for line in txn.all_lines()? {
        let lock_at = TxnLine::of(line).get(LINE_LOCK);
        if lock_at != 0 {
            let word = arena.map.word(lock_at)?;
            let seen = word.load(Ordering::Relaxed);
            if lock::owner_of(seen) == owner {
                lock::release(word, seen);
                crash_point!("txn.unlocking");
            }
        }
    }
    arena.set(undo::TXN, 0);
    Ok(())
}

/// After an error. Before the decision the intents are replaced by the old entries. After it only
/// corruption can have stopped the work, and published cells must not be freed.
#[cold]
pub(crate) fn abandon(arena: &Arena<'_>, txn: TxnCell<'_>) {
    if arena.get(undo::OP) != op::TXN {
        return;
    }
    let is_undone =
        txn.abort_unless_committed() == Ok(TxnOutcome::Aborted) && roll_back(arena).is_ok();
    if !is_undone {
        arena.set(undo::PENDING, 0);
        arena.set(undo::OP, op::NONE);
    }
}
