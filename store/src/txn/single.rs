//! Writes of one record. In a namespace without indexes, watches and limits a write takes the
//! direct path of `write.rs` and `patch.rs`; elsewhere it is a transaction of one record.

use nearstate_memory::{BucketLine, KnownSlot};
use nearstate_model::{Error, Result, invariant};

use crate::read::BATCH;
use crate::record::view::View;
use crate::record::{BlockChange, Form, Kind};
use crate::session::buffers::Metadata;
use crate::session::{KeyLookup, Namespace, Session, wrong_kind};
use crate::txn::room::RoomAttempts;
use crate::txn::write::{Condition, Outcome};
use crate::txn::{RetryPolicy, Txn};

impl Session {
    /// Puts a record and returns its version. The tags and the expiry of the old version are
    /// removed. Every process sees the new version from the store that publishes it.
    ///
    /// Cost: a copy of the value and its checksum outside any lock; then the lock of the key's
    /// bucket for about 50 ns. In a full region a put that does not grow waits for readers that
    /// hold what was replaced, 100 ms at most, before it is refused.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `WrongKind`, `Full`, `Stalled`, `Damaged`, `Forked`; nothing
    /// was changed then. In a namespace that is logged also `Fenced`, `Behind`,
    /// `TransactionTooLarge`. In one that has tags or limits, or is watched, a put is a transaction
    /// of one record: then also `Deadline`, `BadArgument` (a tag is required).
    #[inline]
    pub fn put(&self, namespace: Namespace, key: &[u8], value: &[u8]) -> Result<u64> {
        match self.put_if(namespace, key, value, Condition::Always)? {
            Outcome::Done { version } => Ok(version),
            Outcome::Refused { current } => refused_always(current),
        }
    }

    /// Puts a record if a condition holds of the current one; checked and written in one step.
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
        let lookup = self.lookup(namespace, key)?;
        self.put_at(namespace, (lookup, KnownSlot::Unknown), value, condition)
    }

    #[inline]
    fn put_at(
        &self,
        namespace: Namespace,
        (lookup, probed): (KeyLookup<'_>, KnownSlot),
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        let before = self.last_position.get();
        let direct = || self.put_direct(namespace, (lookup, probed), value, condition);
        match self.member.with_reserve(direct) {
            Ok(Some(outcome)) => return self.when_replicated(before, outcome),
            Ok(None) => {}
            Err(error) => self.make_room_after(error)?,
        }
        let key = lookup.key;
        self.change_in_txn(namespace, key, condition, |txn| txn.put(namespace, key, value))
    }

    /// Puts many records, one after the other, as [`Session::put`] does. The cache misses of 16
    /// records at a time overlap.
    ///
    /// # Errors
    /// As [`Session::put`]. The records before the one that failed were put.
    ///
    /// ```
    /// # use nearstate_store::{CreateOptions, Region, Schema};
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// let ue = session.namespace("ue", &Schema::default())?;
    /// session.put_batch(ue, &[(b"imsi-1", b"registered"), (b"imsi-2", b"idle")])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_batch(&self, namespace: Namespace, records: &[(&[u8], &[u8])]) -> Result<()> {
        let table = self.table(namespace)?;
        for records in records.chunks(BATCH) {
            let mut buckets = [BucketLine::NONE; BATCH];
            for (bucket, (key, _)) in buckets.iter_mut().zip(records) {
                *bucket = self.member.prefetch_bucket(table, self.hash(key));
            }
            let mut probed = [KnownSlot::Unknown; BATCH];
            for (known, bucket) in probed.iter_mut().zip(buckets).take(records.len()) {
                *known = self.member.probe_known_slot(bucket);
            }
            for ((key, value), (bucket, known)) in
                records.iter().zip(buckets.into_iter().zip(probed))
            {
                let hash = bucket.hash();
                // The lines that the put would prefetch are already being loaded.
                debug_assert!(hash == self.hash(key), "a record is put with another one's hash");
                let lookup = KeyLookup { table, hash, key, form: Form::Value, is_seen: true };
                self.put_at(namespace, (lookup, known), value, Condition::Always)?;
            }
        }
        Ok(())
    }

    /// Deletes a record and its index entries. False if the record does not exist or has expired.
    /// Where commits wait until they are replicated, this waits as well: an earlier deletion may be
    /// the reason, and may not be replicated.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`, `Forked`; in a namespace that has tags or limits, is watched or logged
    /// also `Full`, `Deadline`, `Fenced`, `Behind`.
    #[inline]
    pub fn delete(&self, namespace: Namespace, key: &[u8]) -> Result<bool> {
        Ok(matches!(self.delete_if(namespace, key, Condition::Present)?, Outcome::Done { .. }))
    }

    /// Deletes a record if a condition holds of it; checked and deleted in one step.
    ///
    /// # Errors
    /// `WrongKind` for a value condition on named blocks; else as [`Session::delete`].
    pub fn delete_if(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        // In a namespace that is logged, a deletion takes a cell of the log.
        let before = self.last_position.get();
        let outcome = match self.member.with_reserve(|| {
            self.member.note_deletion(|| true);
            self.delete_direct(namespace, key, condition)
        })? {
            Some(outcome) => self.when_replicated(before, outcome)?,
            None if namespace.kind() == Kind::Counters => {
                return self.delete_counted(namespace, key, condition);
            }
            None => self.change_in_txn(namespace, key, condition, |txn| {
                txn.delete(namespace, key).map(drop)
            })?,
        };
        if matches!(outcome, Outcome::Refused { current: None }) {
            self.wait_unchanged(namespace.index)?;
        }
        Ok(outcome)
    }

    /// Changes some blocks of a record in one step; the other blocks, the tags and the expiry stay
    /// as they are. Creates the record if it does not exist and the condition allows it.
    ///
    /// Cost: blocks above 512 bytes are copied only if they change; smaller ones are always copied.
    ///
    /// # Errors
    /// `WrongKind` in a namespace of values, `BadName`, `TooManyBlocks`, `KeyTooLarge`,
    /// `ValueTooLarge`, `Full`, `Stalled`, `Damaged`, `Forked`, `Deadline` (other sessions change
    /// the record all the time); nothing was changed then. In a namespace that is watched, logged
    /// or has limits, and of a new record in one that has tags, also as [`Session::put`].
    pub fn patch(
        &self,
        namespace: Namespace,
        key: &[u8],
        changes: &[BlockChange<'_>],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        let before = self.last_position.get();
        let direct = || self.patch_direct(namespace, key, changes, condition);
        match self.member.with_reserve(direct) {
            Ok(Some(outcome)) => return self.when_replicated(before, outcome),
            Ok(None) => {}
            Err(error) => self.make_room_after(error)?,
        }
        self.change_in_txn(namespace, key, condition, |txn| txn.patch(namespace, key, changes))
    }

    /// After the error of a direct write: if it is `Full` and expired records were collected, the
    /// write is tried again, as a transaction. Else it is returned.
    #[cold]
    #[inline(never)]
    fn make_room_after(&self, error: Error) -> Result<()> {
        if matches!(error, Error::Full { .. }) && self.collect_for_room(&mut 0) {
            return Ok(());
        }
        Err(error)
    }

    /// Puts a record with tags and an expiry, in a transaction of its own. Returns the new version.
    ///
    /// # Errors
    /// As [`Txn::put_with_metadata`] and [`Txn::commit`]; `Deadline` instead of `Conflict`.
    pub fn put_with_metadata(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
        metadata: Metadata<'_>,
    ) -> Result<Outcome> {
        self.change_in_txn(namespace, key, Condition::Always, |txn| {
            txn.put_with_metadata(namespace, key, value, metadata)
        })
    }

    /// Puts a value, and keeps the tags and the expiry of the record; a new one has none. Returns
    /// the new version.
    ///
    /// Cost: that of a transaction that reads the record.
    ///
    /// # Errors
    /// As [`Session::put_with_metadata`].
    pub fn put_keeping_metadata(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
    ) -> Result<Outcome> {
        self.change_in_txn(namespace, key, Condition::Always, |txn| {
            let record = txn.get(namespace, key)?;
            let tags: Vec<(&str, &[u8])> = record.iter().flat_map(View::tags).collect();
            let expires_ms = record.as_ref().map_or(0, View::expires_ms);
            txn.put_with_metadata(namespace, key, value, Metadata { tags: &tags, expires_ms })
        })
    }

    /// A write of one record as a transaction, which maintains indexes and notifies watches.
    #[cold]
    fn change_in_txn(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
        change: impl Fn(&Txn<'_>) -> Result<()>,
    ) -> Result<Outcome> {
        if !namespace.kind().has(Form::Value) && matches!(condition, Condition::Value(_)) {
            return Err(wrong_kind(namespace.kind(), "compare a value", "compare its version"));
        }
        let tries = RetryPolicy::default().tries;
        invariant!(tries > 0, "a write is tried");
        let mut room = RoomAttempts::default();
        for attempt in 1..=tries {
            match self.try_in_txn(namespace, key, condition, &change) {
                Err(Error::Conflict { .. }) => self.pause(attempt),
                Err(full @ (Error::Full { .. } | Error::LimitReached { .. })) => {
                    if !self.makes_room(&full, &mut room, false)? {
                        return Err(full);
                    }
                }
                other => return other,
            }
        }
        Err(Error::Deadline { tries })
    }

    fn try_in_txn(
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
                .map(|view| (view.version(), (view.form() == Form::Value).then(|| view.bytes())));
            let current = seen.map(|(version, _)| version);
            if !condition.holds_of(seen) {
                return Ok(Outcome::Refused { current });
            }
            current
        };
        change(&txn)?;
        let (mut after, mut count) = (None, 0);
        txn.commit_with_versions(|changed, version| {
            if changed == key {
                after = version;
            }
            count += 1;
        })?;
        invariant!(count <= 1, "a write of one record commits {count}");
        Ok(match after.or(current) {
            Some(version) => Outcome::Done { version },
            // A delete of a record that does not exist.
            None => Outcome::Refused { current: None },
        })
    }
}

/// A put without a condition cannot be refused.
#[cold]
fn refused_always(current: Option<u64>) -> ! {
    invariant!("a put without a condition was refused at version {current:?}")
}
