//! Counters to which many sessions add concurrently, without locks and without conflicts.
//!
//! A record of a namespace of counters has no value; it owns one cell of sixteen stripes, and each
//! session adds to the stripe of its own number. A deleted counter starts at zero again.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{
    CellChange, CommitOutcome, CommitPlan, Expectation, PendingCell, ReadToken, RecordAccess,
    WriteDecision,
};
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result, invariant};

use crate::record::Kind;
use crate::session::{KeyLookup, Namespace, Session, check_key};
use crate::txn::RetryPolicy;
use crate::txn::room::RoomAttempts;
use crate::txn::write::{Condition, Outcome};

impl Session {
    /// Adds to a counter; creates it at zero first if it does not exist. Wraps at 64 bits.
    ///
    /// Once this has returned, the add is in every later read, also if this process is killed. If
    /// the process is killed before, the add is complete or absent. If the counter is deleted
    /// meanwhile, the add counts as one before the deletion.
    ///
    /// Cost: that of a read, and one atomic add to a cache line that only sessions with the same
    /// number modulo 16 write to. The first add costs a put. In a full region it makes room, as a
    /// put does.
    ///
    /// # Errors
    /// `WrongKind` in a namespace of other records, `KeyTooLarge`, `Full` and `Stalled` (only when
    /// it is created), `Damaged`, `Forked`; nothing was added then.
    #[inline]
    pub fn add(&self, namespace: Namespace, key: &[u8], delta: i64) -> Result<()> {
        check_counter(namespace, key)?;
        let lookup = self.lookup(namespace, key)?;
        loop {
            let held = self.member.pin()?;
            if let Some((cell, _)) = self.member.find(lookup.table, lookup.hash, key)? {
                self.member.check_namespace(namespace.index)?;
                cell.counter(0)?.add(&self.member, delta)?;
                // A page that was lost meanwhile contained the add.
                return self.member.check_not_truncated();
            }
            drop(held);
            if self.create(namespace, lookup, delta)? {
                return Ok(());
            }
            // Another session created it.
        }
    }

    /// The value of a counter; `None` if it does not exist.
    ///
    /// The sum includes every add that returned before this call, and none that started after it
    /// returned. Of concurrent adds it includes some: the stripes are read one after the other, so
    /// of two adds of different sessions it may include the later and not the earlier. If no add is
    /// negative, the values that one session reads never decrease.
    ///
    /// # Errors
    /// `WrongKind` in a namespace of other records, `KeyTooLarge`, `Damaged`, `Forked`.
    pub fn read_counter(&self, namespace: Namespace, key: &[u8]) -> Result<Option<i64>> {
        check_counter(namespace, key)?;
        let lookup = self.lookup(namespace, key)?;
        let _held = self.member.pin()?;
        let found = self.member.find(lookup.table, lookup.hash, key)?;
        self.member.check_namespace(namespace.index)?;
        let Some((cell, _)) = found else { return Ok(None) };
        let sum = cell.counter(0)?.sum()?;
        self.member.check_not_truncated()?;
        Ok(Some(sum))
    }

    /// Creates a counter, after making room for it if the region or the namespace is full. False if
    /// it exists already.
    #[cold]
    fn create(&self, namespace: Namespace, lookup: KeyLookup<'_>, delta: i64) -> Result<bool> {
        let mut room = RoomAttempts::default();
        loop {
            let create = || self.create_counter(namespace, lookup, delta);
            match self.member.with_reserve(create) {
                Err(full @ (Error::Full { .. } | Error::LimitReached { .. })) => {
                    if !self.makes_room(&full, &mut room, false)? {
                        return Err(full);
                    }
                }
                other => return other,
            }
        }
    }

    /// False if it exists already.
    fn create_counter(
        &self,
        namespace: Namespace,
        lookup: KeyLookup<'_>,
        delta: i64,
    ) -> Result<bool> {
        let drafted = self.member.allocate_counter(delta).and_then(|counter| {
            invariant!(counter != 0, "a counter has a cell for its stripes");
            self.draft(lookup, &counter.to_le_bytes(), &[], &[])
        });
        let draft = match drafted {
            Ok(draft) => draft,
            Err(error) => {
                self.member.free_pending()?;
                return Err(error);
            }
        };
        let flags = self.member.namespace_flags(namespace.index)?;
        if flags & namespace_flags::LIMITED != 0 {
            return self.create_counted(namespace, lookup, (draft, flags));
        }
        let done = self.member.write_record(
            lookup.table,
            lookup.hash,
            lookup.key,
            Some(draft),
            |record| {
                lookup.table.keep_namespace(namespace.index)?;
                // With limits it is counted, by another call.
                let flags = self.member.namespace_flags(namespace.index)?;
                let is_direct = flags & namespace_flags::LIMITED == 0;
                let is_created = record.is_none() && is_direct;
                Ok(if is_created { WriteDecision::Publish } else { WriteDecision::Keep })
            },
        )?;
        invariant!(done.decision != WriteDecision::Remove, "creating a counter removes no record");
        invariant!(
            done.version_before.is_none() || done.decision == WriteDecision::Keep,
            "a counter is created only if there is none"
        );
        Ok(done.decision == WriteDecision::Publish)
    }

    /// Deletes a counter in a namespace with limits if a condition on its version holds.
    pub(crate) fn delete_counted(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        let lookup = self.lookup(namespace, key)?;
        let tries = RetryPolicy::default().tries;
        for attempt in 1..=tries {
            // The pin of an attempt ends with it: under a pin nothing comes free.
            let done = self.member.with_reserve(|| {
                self.member.note_deletion(|| true);
                self.try_delete_counted(namespace, lookup, condition)
            })?;
            match done {
                Some(outcome) => return Ok(outcome),
                None => self.pause(attempt),
            }
        }
        Err(Error::Deadline { tries })
    }

    /// `None` if another session has changed the counter or the flags of the namespace meanwhile.
    fn try_delete_counted(
        &self,
        namespace: Namespace,
        lookup: KeyLookup<'_>,
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        let _held = self.member.pin()?;
        let flags = self.member.namespace_flags(namespace.index)?;
        let found = self.lookup_current(namespace.index, lookup.hash, lookup.key)?;
        let current = found.record.map(|(cell, _)| cell.version());
        let Some(version) =
            current.filter(|_| condition.holds_of(current.map(|version| (version, None))))
        else {
            return Ok(Some(Outcome::Refused { current }));
        };
        let mut access = access_of(namespace, lookup);
        (access.change, access.flags) = (CellChange::Remove, flags);
        access.expect = Expectation::Read(found.token);
        let mut plan = CommitPlan::default();
        plan.add(access);
        match self.member.commit(&mut plan, lookup.key)? {
            CommitOutcome::Committed => Ok(Some(Outcome::Done { version })),
            CommitOutcome::Conflict(_) | CommitOutcome::FlagsChanged(_) => Ok(None),
            CommitOutcome::Fenced(_) => invariant!("counters are not logged"),
        }
    }

    /// Publishes a new counter in a namespace with limits. False if it exists, or the flags of the
    /// namespace have changed.
    fn create_counted(
        &self,
        namespace: Namespace,
        lookup: KeyLookup<'_>,
        (draft, flags): (PendingCell, u64),
    ) -> Result<bool> {
        invariant!(flags & namespace_flags::LIMITED != 0, "a counter without limits is counted");
        let mut access = access_of(namespace, lookup);
        (access.change, access.flags) = (CellChange::Publish(draft), flags);
        access.expect = Expectation::Read(ReadToken::absent());
        let mut plan = CommitPlan::default();
        plan.add(access);
        Ok(self.member.commit(&mut plan, lookup.key)? == CommitOutcome::Committed)
    }
}

/// The access of a plan whose only key is that of a lookup.
fn access_of(namespace: Namespace, lookup: KeyLookup<'_>) -> RecordAccess {
    let end = u32::try_from(lookup.key.len());
    let end = guaranteed(end.ok(), "the length of a key was checked");
    RecordAccess::new(namespace.index, lookup.hash, (0, end))
}

#[inline]
fn check_counter(namespace: Namespace, key: &[u8]) -> Result<()> {
    check_key(key)?;
    if namespace.kind != Kind::Counters {
        return Err(Error::WrongKind {
            detail: "records of this namespace are not counters: open one with Kind::Counters"
                .to_owned(),
        });
    }
    Ok(())
}
