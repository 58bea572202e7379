//! Transactions: several records, all or none, at one instant for every process.
//!
//! Optimistic: reads and writes are private until `commit`, which takes a short lock for each
//! record, validates what was read, and makes everything visible by one store
//! (`spec/region.md`, section 9).

pub(crate) mod object;
pub(crate) mod for_update;
mod single;
pub(crate) mod room;
pub(crate) mod elements;
mod whole_hash;
mod element_names;
pub(crate) mod txn_record;
mod commit;
mod element_draft;
pub(crate) mod write_set;
pub(crate) mod patch;
pub(crate) mod write;
pub(crate) mod address;

use std::cell::RefCell;
use std::time::Duration;

use nearstate_model::limits::{KEY_BYTES_MAX, TRANSACTION_TRIES, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::collection::is_divided;
use crate::record::meta::{self, is_past, split};
use crate::record::view::View;
use crate::record::{BlockChange, Form, Kind};
use crate::session::buffers::{Metadata, Write};
use crate::session::{Namespace, Session, check_key, wrong_kind};
use crate::txn::element_names::ElementChange;
use crate::txn::elements::NewCollection;
use crate::txn::patch::{check_patch, other_form};
use crate::txn::room::RoomAttempts;
use crate::txn::txn_record::{WrittenRecords, written_record};
use crate::txn::write::Condition;
use crate::txn::write_set::{WriteSet, torn};

/// The limits for retries of a transaction while other sessions change the records that it reads.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The largest number of runs, including the first.
    pub tries: u32,
    /// No further run starts after this time, except the first [`RUNS_MIN`]. A run is not
    /// interrupted, and its commit may wait for locks for a second.
    pub within: Option<Duration>,
}

/// As many runs are allowed whatever time they take. A process that gets no processor during its
/// first run has had one conflict: that is no sign of conflicts that last.
pub const RUNS_MIN: u32 = 4;

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { tries: TRANSACTION_TRIES, within: None }
    }
}

/// An open transaction. Dropping it aborts it; nothing was written.
///
/// Transactions and operations on single records are strictly serializable: they have one common
/// order, in which an operation that started after another had ended comes after it.
///
/// The reads of a transaction are a consistent snapshot: every read checks that all earlier reads
/// are still valid, and returns `Conflict` if they are not. A transaction holds a pin, as a view
/// does, so keep it short.
#[derive(Debug)]
pub struct Txn<'s> {
    pub(crate) set: RefCell<WriteSet<'s>>,
    written: WrittenRecords,
}

impl Session {
    /// Begins a transaction. Several may be open in one session; they are independent.
    ///
    /// Cost: a pin. The first one, and those that are open at the same time for the first time,
    /// allocate buffers that the session keeps.
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
    /// Each conflict means that another session has committed a write.
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
    /// `body` may return any error type that converts from the store's. It runs again only after a
    /// conflict that the store has reported to `body` or at the commit, or after `Full` at the
    /// commit if memory can be freed: live records are moved, expired ones are collected, and
    /// a transaction that makes the content no larger waits for readers, 100 ms at most. Every
    /// other error ends the transaction and is returned unchanged.
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

    /// As [`Session::transact`], with another retry policy.
    ///
    /// # Errors
    /// As [`Session::transact`].
    pub fn transact_within<T, E: From<Error>>(
        &self,
        retry_policy: RetryPolicy,
        mut body: impl FnMut(&Txn<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (mut tries, mut attempts) = (0, RoomAttempts::default());
        let start = retry_policy.within.map(|_| nearstate_memory::since_boot());
        let is_late = || {
            let spent = start.map(|start| nearstate_memory::since_boot().saturating_sub(start));
            spent >= retry_policy.within && spent.is_some()
        };
        loop {
            tries += 1;
            invariant!(tries <= retry_policy.tries.max(1), "run {tries} of {}", retry_policy.tries);
            let txn = self.begin()?;
            match body(&txn) {
                Ok(done) => match txn.commit() {
                    Ok(()) => return Ok(done),
                    Err(Error::Conflict { .. }) => {}
                    Err(full @ (Error::Full { .. } | Error::LimitReached { .. })) => {
                        // The next run starts with an evacuation, which needs a session without a
                        // pin.
                        let has_tries = tries < retry_policy.tries;
                        let may_run = has_tries && !is_late();
                        if !may_run || !self.makes_room(&full, &mut attempts, start.is_some())? {
                            return Err(full.into());
                        }
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                },
                // The error may have another type, so the transaction records its conflicts.
                // It ends here: its pin would hold what others free during the pause.
                Err(_) if txn.has_conflict() => drop(txn),
                Err(error) => return Err(error),
            }
            if tries >= retry_policy.tries || tries >= RUNS_MIN && is_late() {
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

    /// Pauses between two tries: longer each time, and not as long as other sessions.
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
    /// Cost: that of [`Session::get`], and a load for each earlier read (a search for each absent
    /// record), so the cost of all reads is quadratic in their number.
    ///
    /// # Errors
    /// `Conflict`: an earlier read is no longer valid; `TransactionTooLarge`; `WrongKind` in a
    /// namespace of counters; `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its result would be returned through memory")]
    pub fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>> {
        if namespace.kind == Kind::Counters {
            return Err(wrong_kind(namespace.kind, "read", ""));
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let index = set.find_entry(namespace.index, hash, key);
        if let Some(index) = index
            && set.is_written(index)
        {
            return written_record(&mut set, namespace, index, &self.written);
        }
        let (_, stored) = set.read_at(index, namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(None) };
        if !cell.has_meta() {
            return Ok(Some(View::protected(cell, bytes, namespace.kind)));
        }
        let (value, meta) = split(cell, bytes)?;
        let is_expired = is_past(cell, meta)?;
        Ok((!is_expired).then(|| View::protected(cell, value, namespace.kind)))
    }

    /// Puts a record with this value, without tags and expiry. Replaces an existing record of any
    /// form. The rules of the namespace for tags are checked at the commit.
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
    /// As [`Txn::put`]; `BadArgument`: too many tags, or a tag without a name or too long.
    /// [`Txn::commit`] reports a value that is taken, and a missing required tag.
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
        let index = if let Some(index) = set.last_entry_of(namespace.index, key) {
            index
        } else {
            let hash = set.session.hash(key);
            set.entry(namespace.index, hash, key)?
        };
        set.put_with_metadata(index, value, metadata)
    }

    /// Puts a set of members, in any order; duplicates count once. Replaces a record of any form.
    /// [`Txn::add_members`] adds members to a set.
    ///
    /// # Errors
    /// As [`Txn::put_with_metadata`]; `WrongKind` in a namespace that is not mixed; `BadArgument`:
    /// a set without members (delete the record).
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
        if members.is_empty() {
            return Err(Error::BadArgument { detail: "a set has at least one member".to_owned() });
        }
        let meta = encode_meta(metadata)?;
        let pairs: Vec<(&[u8], &[u8])> = members.iter().map(|member| (*member, &[][..])).collect();
        let new = NewCollection { form: Form::Set, pairs: &pairs, meta: &meta, changed: None };
        self.put_collection(namespace, key, &new)
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
        let (index, stored) = set.read(namespace.index, hash, key)?;
        let is_gone = match stored {
            Some((cell, bytes)) => is_past(cell, split(cell, bytes)?.1)?,
            None => false,
        };
        let entry = set.entry_at(index);
        let is_written = !entry.write.is_none();
        let is_stored_divided = match stored {
            Some((cell, bytes)) if !is_written && !is_gone => {
                namespace.kind == Kind::Mixed && is_divided(split(cell, bytes)?.0)
            }
            _ => false,
        };
        let form = match stored {
            _ if is_written => (!entry.write.is_delete()).then_some(entry.form),
            Some((cell, _)) if !is_gone => Some(Form::of(namespace.kind, &cell)),
            _ => None,
        };
        if let Some(form) = form.filter(|form| *form != Form::Blocks) {
            return Err(other_form(form));
        }
        if is_stored_divided || matches!(entry.write, Write::Elements(_)) {
            drop(set);
            let changes: Vec<ElementChange<'_>> =
                changes.iter().map(|change| (change.name.as_bytes(), change.bytes)).collect();
            return self.change_elements(namespace, key, Form::Blocks, &changes).map(drop);
        }
        if is_gone && !is_written {
            set.delete(index);
        }
        set.patch(index, changes)
    }

    /// Replaces the tags and the expiry of a record; its value or blocks stay as they are. False if
    /// the record does not exist.
    ///
    /// Cost: a copy of the value; blocks above 512 bytes are not copied, or above 1 KiB in a hash
    /// that was put whole.
    ///
    /// # Errors
    /// `BadArgument` as [`Txn::put_with_metadata`]; `WrongKind` in a namespace of counters;
    /// `Conflict`, `TransactionTooLarge`, `Damaged`.
    pub fn set_metadata(
        &self,
        namespace: Namespace,
        key: &[u8],
        metadata: Metadata<'_>,
    ) -> Result<bool> {
        let Some(record) = self.get(namespace, key)? else { return Ok(false) };
        let form = record.form();
        if record.is_divided() {
            drop(record);
            return self.set_metadata_of_parts(namespace, key, form, metadata).map(|()| true);
        }
        let value = record.bytes().to_vec();
        let members: Vec<Vec<u8>> = record.members().map(<[u8]>::to_vec).collect();
        drop(record);
        if form == Form::Set {
            let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
            return self.put_members(namespace, key, &members, metadata).map(|()| true);
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let index = set.entry(namespace.index, hash, key)?;
        let meta = encode_meta(metadata)?;
        if form == Form::Value {
            set.put(index, &value, &meta)?;
        } else {
            set.buffers.check_room(meta.len())?;
            set.patch(index, &[])?;
            set.set_meta(index, &meta)?;
        }
        Ok(true)
    }

    /// Deletes a record. False if it does not exist or has expired.
    ///
    /// # Errors
    /// `Conflict`, `TransactionTooLarge`, `Damaged`; `WrongKind` in a namespace of counters, whose
    /// records [`Session::delete`] deletes.
    pub fn delete(&self, namespace: Namespace, key: &[u8]) -> Result<bool> {
        if namespace.kind == Kind::Counters {
            return Err(wrong_kind(namespace.kind, "read", ""));
        }
        // No record has a longer key, and an entry of the commit stream could not contain it.
        if key.len() > KEY_BYTES_MAX {
            return Ok(false);
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let index = set.find_entry(namespace.index, hash, key);
        let (index, exists) = if let Some(index) = index.filter(|index| set.is_written(*index)) {
            (index, !set.is_deleted(index))
        } else {
            let (index, stored) = set.read_ends_at(index, namespace.index, hash, key)?;
            let exists = match stored {
                Some((cell, bytes)) => !is_past(cell, split(cell, bytes)?.1)?,
                None => false,
            };
            (index, exists)
        };
        set.delete(index);
        Ok(exists)
    }

    /// Deletes many records, validated together as by [`Txn::validated_once`]. Returns how many
    /// existed.
    ///
    /// # Errors
    /// As [`Txn::delete`]; some of the records may then be deleted in the transaction.
    pub fn delete_all(&self, records: &[(Namespace, &[u8])]) -> Result<usize> {
        self.validated_once(|| {
            let mut deleted = 0;
            for (namespace, key) in records {
                deleted += usize::from(self.delete(*namespace, key)?);
            }
            invariant!(deleted <= records.len(), "{deleted} of {} are deleted", records.len());
            Ok(deleted)
        })
    }

    /// Runs reads and validates them together, once, after the last one. Their cost is linear in
    /// their number instead of quadratic.
    ///
    /// Until then the reads may be inconsistent with each other. Effects of `reads` must be part of
    /// the transaction, or be undone after a `Conflict`.
    ///
    /// # Errors
    /// `Conflict`: a read is no longer valid; what `reads` returns.
    pub fn validated_once<T>(&self, reads: impl FnOnce() -> Result<T>) -> Result<T> {
        let validate_later = |is_later| {
            std::mem::replace(&mut self.set.borrow_mut().buffers.is_validated_later, is_later)
        };
        let was_later = validate_later(true);
        let done = reads();
        let is_later = validate_later(was_later);
        invariant!(is_later, "reads are validated later until their function returns");
        if !was_later {
            // Checked first: inconsistent reads may have caused the error.
            self.set.borrow_mut().check()?;
        }
        done
    }

    /// The keys of a namespace that the transaction has written so far: each with true for a put or
    /// patch, false for a delete. For scans within a transaction, which return the records of the
    /// region without these writes.
    pub fn written(&self, namespace: Namespace) -> Vec<(Vec<u8>, bool)> {
        let set = self.set.borrow();
        let entries = set.buffers.entries.iter();
        let own = entries.filter(|entry| entry.table == namespace.index && !entry.write.is_none());
        own.map(|entry| (set.buffers.bytes(entry.key).to_vec(), !entry.write.is_delete())).collect()
    }

    /// Commits: every process sees all writes from one instant on, or none. A transaction that only
    /// read takes no lock and stores nothing; it fails only if one of its reads has failed, or if
    /// the file of the region was truncated (`Damaged`).
    ///
    /// Cost: the changes of indexes (a record for each unique value, a part of a list or a leaf for
    /// each other value); then the lock of each record that was read or written, in one order for
    /// all sessions. It waits for locks two seconds at most, and a few milliseconds at most while
    /// it holds some. It ends with a full memory fence, so that the caller's next reads are not
    /// older than the commit. Afterwards it may collect some expired records.
    ///
    /// # Errors
    /// `Conflict`: a record that was read has changed since, or the flags of a namespace;
    /// `TagTaken`; `BadArgument`: a record lacks a required tag; `TransactionTooLarge`, including
    /// the changes of indexes, or for the commit stream; `Behind`; `Full`, `Stalled`, `Damaged`,
    /// `Forked`, `System`. Nothing was changed then. `NotReplicated`, `Lost`: the commit is made in
    /// this region, and a namespace wants that it is replicated
    /// ([`CommitWait`](crate::CommitWait)).
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
            // All reads were consistent at the moment of the last one. A lost page reads as zeros,
            // which are not what was stored.
            return if set.buffers.is_torn {
                Err(torn())
            } else {
                session.member.check_not_truncated()
            };
        }
        let before = session.last_position.get();
        let done = session.member.operation(|| set.commit_all());
        if let Ok(written) = done {
            invariant!(written <= set.buffers.entries.len(), "a commit keeps its entries");
            if !set.buffers.plan.events.all.is_empty() {
                session.own_changes.add(&set.buffers);
            }
            let entries = set.buffers.entries.iter().take(written).enumerate();
            for (index, entry) in entries.filter(|(_, entry)| !entry.write.is_none()) {
                each(set.buffers.bytes(entry.key), set.buffers.version_after(index));
            }
        }
        let is_logged = session.last_position.get() != before;
        let found_nothing = if is_logged { None } else { set.deletion_of_nothing() };
        // Its pin as well.
        drop(set);
        session.member.return_lent_if_due();
        session.collect_some();
        done?;
        if is_logged {
            return session.wait_for_commit();
        }
        found_nothing.map_or(Ok(()), |namespace| session.wait_unchanged(namespace))
    }

    /// True once a read of the transaction has returned `Conflict`.
    fn has_conflict(&self) -> bool {
        self.set.borrow().buffers.has_conflict()
    }

    /// The number of writes of records so far (objects are not counted). If a part of the work
    /// fails and the number is unchanged, the transaction contains nothing of that part.
    pub fn changes(&self) -> u64 {
        self.set.borrow().buffers.changes
    }

    /// Aborts the transaction, as a drop does.
    pub fn abort(self) {}
}

/// Encoded metadata; empty for a record without tags and expiry.
pub(crate) fn encode_meta(metadata: Metadata<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if !metadata.tags.is_empty() || metadata.expires_ms != 0 {
        meta::encode(metadata.expires_ms, metadata.tags, &mut out)?;
    }
    Ok(out)
}
