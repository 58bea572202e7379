//! Transactions: several records, all or none, at one instant for every process.
//!
//! Optimistic: reads and writes are private until `commit`, which takes a short lock for each
//! record, validates what was read, and makes everything visible by one store
//! (`spec/region.md`, section 9).

pub(crate) mod object;
pub(crate) mod for_update;
mod single;
pub(crate) mod txn_record;
pub(crate) mod write_set;
mod patch;
pub(crate) mod write;
pub(crate) mod address;

use std::cell::RefCell;
use std::time::Duration;

use nearstate_model::limits::{KEY_BYTES_MAX, TRANSACTION_TRIES, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::members;
use crate::record::meta::{self, is_past, split};
use crate::record::view::View;
use crate::record::{BlockChange, Form, Kind};
use crate::session::buffers::Metadata;
use crate::session::{Namespace, Session, check_key, wrong_kind};
use crate::txn::patch::{check_patch, other_form};
use crate::txn::txn_record::{WrittenRecords, written_record};
use crate::txn::write::Condition;
use crate::txn::write_set::WriteSet;

/// How long a transaction is retried while others change the records that it reads.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The most runs, the first one included.
    pub tries: u32,
    /// No further run begins after so long. A run is not cut short, and its commit may wait for
    /// locks for a second.
    pub within: Option<Duration>,
}

/// How often moving records makes room for one transaction: a chunk for each of its cells, and one
/// more time.
const EVACUATIONS_MAX: u32 = 4;

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { tries: TRANSACTION_TRIES, within: None }
    }
}

/// An open transaction. Dropping it aborts it: nothing was written yet.
///
/// Transactions are strictly serializable, together with every operation on one record: there is
/// one order of all of them, and one that began after another had ended comes after it.
///
/// Its reads are a consistent snapshot: every read checks that all earlier reads are still valid
/// and returns `Conflict` if they are not. It holds a pin, as a view does, so keep it short.
#[derive(Debug)]
pub struct Txn<'s> {
    pub(crate) set: RefCell<WriteSet<'s>>,
    written: WrittenRecords,
}

impl Session {
    /// Begins a transaction. Several may be open in one session; they know nothing of one another.
    ///
    /// Cost: a pin. The session lends its buffers to one of them, the others allocate.
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    #[inline]
    pub fn begin(&self) -> Result<Txn<'_>> {
        if self.member.is_evacuation_due() {
            self.member.evacuate_if_due()?;
        }
        let set = RefCell::new(WriteSet::new(self)?);
        Ok(Txn { set, written: WrittenRecords::default() })
    }

    /// Runs `body` in a transaction and commits it. After a conflict it runs again, with growing
    /// pauses, at most [`TRANSACTION_TRIES`] times.
    ///
    /// Each conflict means that a write of another session was committed.
    ///
    /// ```
    /// # use nearstate_store::{CreateOptions, Region, Schema};
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// let session_data = session.namespace("sessions", &Schema::default())?;
    /// let by_teid = session.namespace("teids", &Schema::default())?;
    /// session.transact(|txn| {
    ///     txn.put(session_data, b"imsi-1/5", b"pdu session")?;
    ///     txn.put(by_teid, b"teid-77", b"imsi-1/5")
    /// })?; // both or none, also after a SIGKILL
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `body` returns any error type into which the store's converts. Only a conflict that the
    /// store has reported to `body` or at the commit makes it run again, and a commit that finds no
    /// room (`Full`) if moving live records can make some. Every other error ends the transaction
    /// and is returned as it is.
    ///
    /// ```
    /// use nearstate_store::{CreateOptions, Error, Region, Schema};
    ///
    /// #[derive(Debug)]
    /// enum AttachError {
    ///     UnknownSubscriber,
    ///     Store(Error),
    /// }
    ///
    /// impl From<Error> for AttachError {
    ///     fn from(error: Error) -> Self {
    ///         Self::Store(error)
    ///     }
    /// }
    ///
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// let subscribers = session.namespace("subscribers", &Schema::default())?;
    /// let attached = session.transact(|txn| {
    ///     let Some(_) = txn.get(subscribers, b"imsi-1")? else {
    ///         return Err(AttachError::UnknownSubscriber); // not run again
    ///     };
    ///     txn.put(subscribers, b"imsi-1", b"attached")?;
    ///     Ok(())
    /// });
    /// assert!(matches!(attached, Err(AttachError::UnknownSubscriber)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Deadline` after the last try; the error of `body`; and those of [`Txn::commit`].
    pub fn transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&Txn<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_within(RetryPolicy::default(), body)
    }

    /// As [`Session::transact`], with other bounds.
    ///
    /// # Errors
    /// As [`Session::transact`].
    pub fn transact_within<T, E: From<Error>>(
        &self,
        retry_policy: RetryPolicy,
        mut body: impl FnMut(&Txn<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (mut tries, mut evacuations) = (0, 0);
        let start = retry_policy.within.map(|_| nearstate_memory::since_boot());
        loop {
            tries += 1;
            invariant!(tries <= retry_policy.tries.max(1), "run {tries} of {}", retry_policy.tries);
            let txn = self.begin()?;
            match body(&txn) {
                Ok(done) => match txn.commit() {
                    Ok(()) => return Ok(done),
                    Err(Error::Conflict { .. }) => {}
                    Err(full @ Error::Full { .. }) => {
                        // The next run begins without a pin, and finds the room that is made then.
                        let has_tries = tries < retry_policy.tries && retry_policy.within.is_none();
                        if !has_tries || !self.may_evacuate(&mut evacuations)? {
                            return Err(full.into());
                        }
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                },
                // The error may have another type; the transaction records its own errors.
                Err(_) if txn.has_conflict() => {}
                Err(error) => return Err(error),
            }
            let spent = start.map(|start| nearstate_memory::since_boot().saturating_sub(start));
            let is_late = spent >= retry_policy.within && spent.is_some();
            if tries >= retry_policy.tries || is_late {
                return Err(Error::Deadline { tries }.into());
            }
            self.pause(tries);
        }
    }

    /// Puts a record with an expiry time.
    ///
    /// # Errors
    /// As [`Session::transact`].
    pub fn put_until(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<()> {
        let metadata = Metadata { expires_ms, ..Metadata::default() };
        self.transact(|txn| txn.put_with_metadata(namespace, key, value, metadata))
    }

    /// True if moving records can make room for a transaction that found none.
    #[cold]
    pub(crate) fn may_evacuate(&self, evacuations: &mut u32) -> Result<bool> {
        if !self.member.is_evacuation_due() {
            return Ok(false);
        }
        *evacuations += 1;
        if *evacuations > EVACUATIONS_MAX {
            self.member.note_vain_evacuation()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Between two tries: longer each time, and not as long as others wait.
    pub(crate) fn pause(&self, tries: u32) {
        let spins = 1_u32 << tries.min(SPINS_LOG_MAX);
        let mine = self.member.index().wrapping_mul(0x9e37_79b9).wrapping_add(tries) % spins.max(1);
        for _ in 0..spins / 2 + mine {
            std::hint::spin_loop();
        }
        if tries > SPINS_LOG_MAX {
            std::thread::yield_now();
        }
    }
}

/// The longest pause between two tries: 2^10 spins are some 20 us, ten times a commit.
const SPINS_LOG_MAX: u32 = 10;

impl Txn<'_> {
    /// The record of a key: the transaction's own write, otherwise the record in the region.
    ///
    /// Cost: that of [`Session::get`], and a load for each record that was read before (of one that
    /// was not there a search): the square of the reads, in all.
    ///
    /// # Errors
    /// `Conflict`: what was read earlier is not so any more; `TransactionTooLarge`; `WrongKind` in
    /// a namespace of counters; `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>> {
        if namespace.kind == Kind::Counters {
            return Err(wrong_kind(namespace.kind, "read", ""));
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let place = set.place_of(namespace.index, hash, key);
        if let Some(place) = place
            && set.is_written(place)
        {
            return written_record(&mut set, namespace, place, &self.written);
        }
        let (_, stored) = set.read_at(place, namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(None) };
        if !cell.has_meta() {
            return Ok(Some(View::in_txn(cell, bytes, namespace.kind)));
        }
        let (value, meta) = split(cell, bytes)?;
        let is_expired = is_past(meta)?;
        Ok((!is_expired).then(|| View::in_txn(cell, value, namespace.kind)))
    }

    /// Puts a record: this value, no tags, no expiry, whatever it had before. The
    /// rules of the namespace for tags are checked at the commit.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `WrongKind`, `TransactionTooLarge`.
    #[inline]
    pub fn put(&self, namespace: Namespace, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with_metadata(namespace, key, value, Metadata::default())
    }

    /// Puts a record with tags and an expiry.
    ///
    /// # Errors
    /// As [`Txn::put`]; `BadArgument` for too many tags, or one without a name or too long. That a
    /// value is taken, or a required tag missing, is found by [`Txn::commit`].
    pub fn put_with_metadata(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
        metadata: Metadata<'_>,
    ) -> Result<()> {
        check_key(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes: value.len() });
        }
        if !namespace.kind.has(Form::Value) {
            return Err(wrong_kind(namespace.kind, "put a value", "patch its blocks"));
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let place = set.entry(namespace.index, hash, key)?;
        set.put_with_metadata(place, value, metadata)
    }

    /// Puts a set of members, in any order; duplicates count once. Replaces a record of any form.
    ///
    /// Cost: linear in the bytes of all members, as is each change of a set.
    ///
    /// # Errors
    /// As [`Txn::put_with_metadata`]; `WrongKind` in a namespace that is not mixed; `BadArgument`:
    /// a set without members (delete the record), or with more than [`MEMBERS_OF_SET_MAX`].
    ///
    /// [`MEMBERS_OF_SET_MAX`]: nearstate_model::limits::MEMBERS_OF_SET_MAX
    pub fn put_members(
        &self,
        namespace: Namespace,
        key: &[u8],
        members: &[&[u8]],
        metadata: Metadata<'_>,
    ) -> Result<()> {
        check_key(key)?;
        if !namespace.kind.has(Form::Set) {
            return Err(Error::WrongKind {
                detail: "sets are for namespaces of kind mixed: open another".to_owned(),
            });
        }
        let value = members::encode(members)?;
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let place = set.entry(namespace.index, hash, key)?;
        let meta = encode_meta(metadata)?;
        set.put(place, &value, &meta)?;
        set.set_form(place, Form::Set);
        Ok(())
    }

    /// Changes some blocks of a record; the others, its tags and its expiry stay as they are.
    /// Creates the record if there is none.
    ///
    /// # Errors
    /// `WrongKind`, `BadName`, `TooManyBlocks`, `KeyTooLarge`, `ValueTooLarge`, `Conflict`,
    /// `TransactionTooLarge`, `Damaged`.
    pub fn patch(
        &self,
        namespace: Namespace,
        key: &[u8],
        changes: &[BlockChange<'_>],
    ) -> Result<()> {
        check_patch(namespace, key, changes, Condition::Always)?;
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let (place, stored) = set.read(namespace.index, hash, key)?;
        let is_gone = match stored {
            Some((cell, bytes)) => is_past(split(cell, bytes)?.1)?,
            None => false,
        };
        let entry = set.entry_at(place);
        let is_written = !entry.write.is_none();
        let form = match stored {
            _ if is_written => (!entry.write.is_delete()).then_some(entry.form),
            Some((cell, _)) if !is_gone => Some(Form::of(namespace.kind, &cell)),
            _ => None,
        };
        if let Some(form) = form.filter(|form| *form != Form::Blocks) {
            return Err(other_form(form));
        }
        if is_gone && !is_written {
            set.delete(place);
        }
        set.patch(place, changes)
    }

    /// Replaces the tags and the expiry of a record; its value or its blocks
    /// stay as they are. False if there is no such record.
    ///
    /// Cost: a copy of the value; of blocks above 512 bytes none.
    ///
    /// # Errors
    /// `BadArgument` as [`Txn::put_with_metadata`]; `WrongKind` in a namespace of counters;
    /// `Conflict`,
    /// `TransactionTooLarge`, `Damaged`.
    pub fn set_metadata(
        &self,
        namespace: Namespace,
        key: &[u8],
        metadata: Metadata<'_>,
    ) -> Result<bool> {
        let Some(record) = self.get(namespace, key)? else { return Ok(false) };
        let form = record.form();
        let value = record.bytes().to_vec();
        let members: Vec<Vec<u8>> = record.members().map(<[u8]>::to_vec).collect();
        drop(record);
        if form == Form::Set {
            let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
            return self.put_members(namespace, key, &members, metadata).map(|()| true);
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let place = set.entry(namespace.index, hash, key)?;
        let meta = encode_meta(metadata)?;
        if form == Form::Value {
            set.put(place, &value, &meta)?;
        } else {
            set.patch(place, &[])?;
            set.set_meta(place, &meta)?;
        }
        Ok(true)
    }

    /// Deletes a record. False if there is none, or its time has passed.
    ///
    /// # Errors
    /// `Conflict`, `TransactionTooLarge`, `Damaged`; `WrongKind` in a namespace of counters, whose
    /// records [`Session::delete`] deletes.
    pub fn delete(&self, namespace: Namespace, key: &[u8]) -> Result<bool> {
        if namespace.kind == Kind::Counters {
            return Err(wrong_kind(namespace.kind, "read", ""));
        }
        // No record has a longer key, and no entry of a stream could name it.
        if key.len() > KEY_BYTES_MAX {
            return Ok(false);
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let place = set.place_of(namespace.index, hash, key);
        let (place, is_there) = if let Some(place) = place.filter(|place| set.is_written(*place)) {
            (place, !set.is_deleted(place))
        } else {
            let (place, stored) = set.read_ends_at(place, namespace.index, hash, key)?;
            let is_there = match stored {
                Some((cell, bytes)) => !is_past(split(cell, bytes)?.1)?,
                None => false,
            };
            (place, is_there)
        };
        set.delete(place);
        Ok(is_there)
    }

    /// Deletes many records. Returns how many existed. As [`Txn::delete`] of each, but validated
    /// together, as by [`Txn::validated_once`].
    ///
    /// # Errors
    /// As [`Txn::delete`]; some of them may be deleted in the transaction then.
    pub fn delete_all(&self, records: &[(Namespace, &[u8])]) -> Result<usize> {
        self.validated_once(|| {
            let mut gone = 0;
            for (namespace, key) in records {
                gone += usize::from(self.delete(*namespace, key)?);
            }
            invariant!(gone <= records.len(), "{gone} of {} records are deleted", records.len());
            Ok(gone)
        })
    }

    /// Runs reads that are validated together, once, after the last one. Their cost is linear in
    /// their number instead of quadratic.
    ///
    /// Until then the reads may be inconsistent with each other. What `reads` does because of them
    /// must be part of the transaction, or be undone after a `Conflict`.
    ///
    /// # Errors
    /// `Conflict`: what was read is not so any more; what `reads` returns.
    pub fn validated_once<T>(&self, reads: impl FnOnce() -> Result<T>) -> Result<T> {
        let validate_later = |is_later| {
            std::mem::replace(&mut self.set.borrow_mut().buffers.is_validated_later, is_later)
        };
        let was_later = validate_later(true);
        let done = reads();
        let is_later = validate_later(was_later);
        invariant!(is_later, "reads are validated later until their function returns");
        if !was_later {
            // First: an error may come of reads that do not fit together.
            self.set.borrow_mut().check()?;
        }
        done
    }

    /// The keys of a namespace that the transaction has written so far: each with true if it puts a
    /// record there, false if it deletes it. For a scan within a transaction: the
    /// scan returns the records of the region, which does not have these writes yet.
    pub fn written(&self, namespace: Namespace) -> Vec<(Vec<u8>, bool)> {
        let set = self.set.borrow();
        let entries = set.buffers.entries.iter();
        let own = entries.filter(|entry| entry.table == namespace.index && !entry.write.is_none());
        own.map(|entry| (set.buffers.bytes(entry.key).to_vec(), !entry.write.is_delete())).collect()
    }

    /// Commits: everything that was written is there at one instant, for every process, or nothing
    /// is. A transaction that only read takes no lock and stores nothing; it fails only if a read
    /// of it has failed.
    ///
    /// Cost: the indexes first (a record for each unique value, a part of a list or a leaf for each
    /// other one); then the lock of each record that was read or written, taken in one order. Waits
    /// at most for a second or two, and never while it keeps others waiting for more than some
    /// milliseconds. A full memory fence stands behind it: what its caller reads next is not older.
    /// Some records past their time may be collected in passing, after it is done.
    ///
    /// # Errors
    /// `Conflict`: something that was read was changed meanwhile, or what the namespace asks of its
    /// writers. `TagTaken`; `BadArgument`: a record lacks a required tag; `TransactionTooLarge`,
    /// with what the indexes add, or for its commit stream; `Behind`; `Full`, `Stalled`, `Damaged`,
    /// `Forked`, `System`. Nothing was changed then.
    #[inline]
    pub fn commit(self) -> Result<()> {
        self.commit_with_versions(|_, _| {})
    }

    /// As [`Txn::commit`]; afterwards calls `each` with the key and the version of each written
    /// record (`None`: deleted), in the order in which the transaction first touched them.
    ///
    /// # Errors
    /// As [`Txn::commit`].
    #[inline]
    pub fn commit_with_versions(self, mut each: impl FnMut(&[u8], Option<u64>)) -> Result<()> {
        let mut set = self.set.into_inner();
        let session = set.session;
        if set.is_read_only() {
            let done = set.commit();
            set.release_buffers();
            return done;
        }
        let done = session
            .member
            .operation(|| set.prepare().and_then(|written| set.commit().map(|()| written)));
        if let Ok(written) = done {
            invariant!(written <= set.buffers.entries.len(), "a commit keeps its entries");
            for entry in set.buffers.entries.iter().take(written).filter(|e| !e.write.is_none()) {
                each(set.buffers.bytes(entry.key), entry.after);
            }
        }
        set.release_buffers();
        session.collect_some();
        done.map(drop)
    }

    /// True once a read of the transaction has returned `Conflict`.
    fn has_conflict(&self) -> bool {
        self.set.borrow().buffers.has_conflict()
    }

    /// How often a record was written in it so far (objects are not counted). If a part of its work
    /// fails and this is the same as before that part, nothing of the part is in the transaction.
    pub fn changes(&self) -> u64 {
        self.set.borrow().buffers.changes
    }

    /// Gives everything up. The same as dropping it.
    pub fn abort(self) {}
}

/// Encoded meta; empty if there is nothing to say.
pub(crate) fn encode_meta(metadata: Metadata<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if !metadata.tags.is_empty() || metadata.expires_ms != 0 {
        meta::encode(metadata.expires_ms, metadata.tags, &mut out)?;
    }
    Ok(out)
}
