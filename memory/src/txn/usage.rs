//! The part of a commit that counts what the records of namespaces with limits take
//! (`usage.rs`): the usage words are locked after the buckets, and change with the decision.

use nearstate_model::{Error, Holder, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::Cell;
use crate::index::bucket::at_of;
use crate::index::intent::{LINE_LOCK, LINE_NEW, LINE_OLD, LINE_RING, LINE_SLOT, TxnCell, TxnLine};
use crate::layout::{Corruption, LINE, USAGE_STRIPES, entry_of};
use crate::member::lock;
use crate::member::{LOCK_WAIT_SHORT, Member};
use crate::region::index_table::NamespaceIdentity;
use crate::region::map::Map;
use crate::txn::plan::{CellChange, RecordAccess, UsageChange, UsageChanges};
use crate::usage;

/// Before the cell of the transaction is named: its lines for usage words, from `first` on, name no
/// lock.
pub(crate) fn clear_lines(
    changes: &UsageChanges,
    txn: TxnCell<'_>,
    first: u64,
) -> Result<(), Corruption> {
    for index in first..first + changes.len() {
        let line = txn.line(index)?;
        for which in [LINE_LOCK, LINE_SLOT, LINE_RING] {
            line.set(which, 0);
        }
    }
    Ok(())
}

impl Member {
    /// Locks a usage word for each change, with all buckets locked. Returns the offset of a busy
    /// one if every word of a namespace has a living owner.
    pub(crate) fn lock_usages(
        &self,
        changes: &mut UsageChanges,
        txn: TxnCell<'_>,
        first: u64,
    ) -> Result<Option<(u64, Holder)>> {
        for (index, change) in (first..).zip(&mut changes.0) {
            // A bucket of the namespace is locked, so from here on it is not removed, and its words
            // are not those of the next one.
            self.keep_namespace(change.namespace)?;
            if let Some(holder) = self.lock_usage(change, txn.line(index)?)? {
                return Ok(Some((change.word_at, holder)));
            }
            crash_point!("usage.locking");
        }
        Ok(None)
    }

    /// Takes the first free usage word. If there is none: the holder of its own one.
    fn lock_usage(&self, change: &mut UsageChange, line: TxnLine<'_>) -> Result<Option<Holder>> {
        let own = u64::from(self.index());
        for stripe in own..own + USAGE_STRIPES as u64 {
            change.word_at = usage::stripe_at(change.namespace, stripe);
            line.set(LINE_LOCK, change.word_at);
            if let Ok(payload) = lock::try_take(self.map().word(change.word_at)?, self.lock_owner())
            {
                change.before = payload;
                return Ok(None);
            }
        }
        change.word_at = usage::stripe_at(change.namespace, own);
        line.set(LINE_LOCK, change.word_at);
        match self.wait_for(self.map().word(change.word_at)?, LOCK_WAIT_SHORT) {
            Ok(payload) => {
                change.before = payload;
                Ok(None)
            }
            Err(Error::Stalled { holder }) => Ok(Some(holder)),
            Err(error) => Err(error),
        }
    }

    /// With all locks held: computes what each change adds, and records it in the lines.
    pub(crate) fn measure_usages(
        &self,
        changes: &mut UsageChanges,
        accesses: &[RecordAccess],
        (txn, first): (TxnCell<'_>, u64),
    ) -> Result<(), Corruption> {
        for (index, change) in (first..).zip(&mut changes.0) {
            let counted = usage::counted(self.map(), change.namespace)?;
            change.delta = 0;
            for access in accesses.iter().filter(|access| access.namespace == change.namespace) {
                if usage::is_counted(counted, usage::position_of(access.hash)) {
                    change.delta += units_added(self.map(), access)?;
                }
            }
            let line = txn.line(index)?;
            line.set(LINE_OLD, change.before);
            line.set(LINE_NEW, usage::changed(change.before, change.delta));
        }
        crash_point!("usage.measured");
        Ok(())
    }

    /// Before the decision: reserves what is added. What a follower applies, its source has
    /// committed: a limit that only the copy has refuses none of it.
    ///
    /// # Errors
    /// `LimitReached`; `Damaged`.
    pub(crate) fn reserve_usages(&self, changes: &UsageChanges) -> Result<()> {
        for change in &changes.0 {
            invariant!(change.word_at != 0, "a usage word is changed without its lock");
            let word = self.map().word(change.word_at)?;
            if usage::reserve(word, self.lock_owner(), change.before, change.delta) {
                crash_point!("usage.reserved");
                if !self.is_follower() {
                    self.check_hard_limit(change)?;
                }
            }
        }
        Ok(())
    }

    fn check_hard_limit(&self, change: &UsageChange) -> Result<()> {
        let (map, number) = (self.map(), change.namespace);
        let limit_bytes = usage::limits(map, number)?.hard_bytes;
        let words = usage::stripes(map, number)?;
        let used = || usage::units_in(words).saturating_mul(LINE);
        if limit_bytes == 0 || used() <= limit_bytes {
            return Ok(());
        }
        // What killed processes have reserved does not count.
        for word in words {
            let owner = lock::owner_of(word.load(Ordering::Acquire));
            if owner != 0 && owner != self.lock_owner() {
                self.recover_if_dead(lock::member_of(owner))?;
            }
        }
        let used_bytes = used();
        if used_bytes <= limit_bytes {
            return Ok(());
        }
        let name = NamespaceIdentity::load(map, entry_of(number))?.name;
        Err(Error::LimitReached {
            namespace: String::from_utf8_lossy(&name).into_owned(),
            used_bytes: used_bytes.saturating_sub(change.delta.unsigned_abs() * LINE),
            limit_bytes,
        })
    }
}

/// The units that a write adds.
fn units_added(map: &Map, access: &RecordAccess) -> Result<i64, Corruption> {
    if !access.is_write() {
        return Ok(0);
    }
    let units = |at: u64| -> Result<i64, Corruption> {
        let bytes = Cell::new(map, at)?.taken_bytes()?;
        Ok((bytes / LINE).cast_signed())
    };
    let before = if access.entry_at == 0 { 0 } else { units(at_of(access.entry))? };
    let after = match access.change {
        CellChange::Publish(draft) => units(draft.at)?,
        CellChange::Keep | CellChange::Remove => 0,
    };
    Ok(after - before)
}

/// After the decision: the usage words get the payloads that the lines name as [`LINE_NEW`] or
/// [`LINE_OLD`]. Idempotent: the words are still locked. Recovery calls it as well.
pub(crate) fn finish(txn: TxnCell<'_>, which: u64) -> Result<(), Corruption> {
    for index in txn.usage_lines()? {
        let line = txn.line(index)?;
        let word = txn.map().word(line.get(LINE_LOCK))?;
        let owner = lock::owner_of(word.load(Ordering::Relaxed));
        if owner == 0 {
            return Err(Corruption("a transaction does not hold a usage word that it changes"));
        }
        invariant!(line.get(LINE_SLOT) == 0, "a usage word is no entry of an index");
        lock::hold_with(word, owner, line.get(which));
        crash_point!("usage.settled");
    }
    Ok(())
}
