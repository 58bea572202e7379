//! Changing one record. Where nobody needs to be told and no index to be kept this is the path of
//! `write.rs` and `patch.rs`; elsewhere it is a transaction of one record.

use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_model::{Error, Result};

use crate::record::{BlockChange, Form};
use crate::session::{Namespace, Session, wrong_kind};
use crate::txn::Txn;
use crate::txn::write::{Condition, Outcome};

impl Session {
    /// Puts a record: its version. Every process sees it from the one store that publishes it on.
    /// Tags and an expiry that the record had are gone with its old value.
    ///
    /// Cost: a copy of the value and its checksum outside any lock; then the lock of the key's
    /// bucket for about 50 ns.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `WrongKind`, `Full`, `Stalled`, `Damaged`, `Forked`; nothing
    /// was changed then. In a namespace that has tags, is watched or streamed a put is a
    /// transaction of one record: then also `Deadline`, `BadArgument` (a tag is required),
    /// `Behind`, `TransactionTooLarge`.
    #[inline]
    pub fn put(&self, namespace: Namespace, key: &[u8], value: &[u8]) -> Result<u64> {
        match self.put_if(namespace, key, value, Condition::Always)? {
            Outcome::Done { version } => Ok(version),
            Outcome::Refused { .. } => Ok(0),
        }
    }

    /// Puts a record if a condition holds of the present one; judged and done in one step.
    ///
    /// # Errors
    /// As [`Session::put`].
    #[inline]
    pub fn put_if(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        match self.put_plainly(namespace, key, value, condition)? {
            Some(outcome) => Ok(outcome),
            None => {
                self.change_told(namespace, key, condition, |txn| txn.put(namespace, key, value))
            }
        }
    }

    /// Deletes a record, and what indexes have of it. False if there was none, or its time has
    /// passed.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`, `Forked`; in a namespace that has tags, is watched or streamed also
    /// `Full`, `Deadline`, `Behind`.
    #[inline]
    pub fn delete(&self, namespace: Namespace, key: &[u8]) -> Result<bool> {
        Ok(matches!(self.delete_if(namespace, key, Condition::Present)?, Outcome::Done { .. }))
    }

    /// Deletes a record if a condition holds of it; judged and done in one step.
    ///
    /// # Errors
    /// `WrongKind` for a value condition on named blocks; else as [`Session::delete`].
    pub fn delete_if(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        match self.delete_plainly(namespace, key, condition)? {
            Some(outcome) => Ok(outcome),
            None => self
                .change_told(namespace, key, condition, |txn| txn.delete(namespace, key).map(drop)),
        }
    }

    /// Changes some blocks of a record, all of them in one step; the others, the tags and the
    /// expiry stay as they are. Creates the record if there is none and the condition allows it.
    ///
    /// Cost: blocks above 512 bytes are copied only if they change; smaller ones are copied along.
    ///
    /// # Errors
    /// `WrongKind` in a namespace of values, `BadName`, `TooManyBlocks`, `KeyTooLarge`,
    /// `ValueTooLarge`, `Full`, `Stalled`, `Damaged`, `Forked`, `Deadline` (others change it all
    /// the time); nothing was changed then. In a namespace that is watched or streamed, and of a
    /// new record in one that has tags, also as [`Session::put`].
    pub fn patch(
        &self,
        namespace: Namespace,
        key: &[u8],
        changes: &[BlockChange<'_>],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        if let Some(outcome) = self.patch_plainly(namespace, key, changes, condition)? {
            return Ok(outcome);
        }
        self.change_told(namespace, key, condition, |txn| txn.patch(namespace, key, changes))
    }

    /// A change of one record that indexes or watchers take part in.
    #[cold]
    fn change_told(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
        change: impl Fn(&Txn<'_>) -> Result<()>,
    ) -> Result<Outcome> {
        if !namespace.kind().has(Form::Value) && matches!(condition, Condition::Value(_)) {
            return Err(wrong_kind(namespace.kind(), "compare a value", "compare its version"));
        }
        for tries in 1..=TRANSACTION_TRIES {
            match self.try_told(namespace, key, condition, &change) {
                Err(Error::Conflict { .. }) => self.pause(tries),
                other => return other,
            }
        }
        Err(Error::Deadline { tries: TRANSACTION_TRIES })
    }

    fn try_told(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
        change: &impl Fn(&Txn<'_>) -> Result<()>,
    ) -> Result<Outcome> {
        let txn = self.begin()?;
        let current = {
            let record = txn.get(namespace, key)?;
            let seen = record
                .as_ref()
                .map(|r| (r.version().unwrap_or(0), (r.form() == Form::Value).then(|| r.bytes())));
            let current = seen.map(|(version, _)| version);
            if !condition.holds_of(seen) {
                return Ok(Outcome::Refused { current });
            }
            current
        };
        change(&txn)?;
        let mut after = None;
        txn.commit_with_versions(|changed, version| {
            if changed == key {
                after = version;
            }
        })?;
        match after.or(current) {
            Some(version) => Ok(Outcome::Done { version }),
            None => Ok(Outcome::Refused { current: None }),
        }
    }
}
