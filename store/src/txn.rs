//! Transactions: several records, all or none, at one instant for every process.
//!
//! Optimistic: reads and writes are private until `commit`, which takes a short lock for each
//! record, judges that what was read is still so, and makes everything visible by one store
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

use nearstate_model::limits::{TRANSACTION_TRIES, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result};

use crate::record::members;
use crate::record::meta::{self, is_past, split};
use crate::record::{BlockChange, Form, Kind};
use crate::session::buffers::Metadata;
use crate::session::{Namespace, Session, check_key, wrong_kind};
use crate::txn::patch::{check_patch, other_form};
use crate::txn::txn_record::{Record, own_record};
use crate::txn::write::Condition;
use crate::txn::write_set::WriteSet;

/// How long a transaction is tried again when others change what it has read.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The most runs, the first one included.
    pub tries: u32,
    /// No further run begins after so long. A run is not cut short, and its commit may wait for
    /// locks for a second.
    pub within: Option<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { tries: TRANSACTION_TRIES, within: None }
    }
}

/// An open transaction. Dropping it aborts it: nothing was written yet.
///
/// Transactions are strictly serializable, together with every operation on one record: there is
/// one order of all of them, and one that began after another had ended stands behind it.
///
/// What it reads stands still for it: every read checks that all earlier ones are still so, and
/// answers `Conflict` if they are not. It holds a pin, as a view does, so keep it short.
#[derive(Debug)]
pub struct Txn<'s> {
    pub(crate) set: RefCell<WriteSet<'s>>,
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
        Ok(Txn { set: RefCell::new(WriteSet::new(self)?) })
    }

    /// Runs `body` in a transaction and commits it; runs it again when others have changed what it
    /// had read, with growing pauses, at most [`TRANSACTION_TRIES`] times.
    ///
    /// Each conflict means that somebody else's transaction or write went through.
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
    /// # Errors
    /// `Deadline` after the last try; what `body` returns, other than `Conflict`; and what
    /// [`Txn::commit`] returns.
    pub fn transact<T>(&self, body: impl FnMut(&Txn<'_>) -> Result<T>) -> Result<T> {
        self.transact_within(RetryPolicy::default(), body)
    }

    /// As [`Session::transact`], with other bounds.
    ///
    /// # Errors
    /// As [`Session::transact`].
    pub fn transact_within<T>(
        &self,
        retry_policy: RetryPolicy,
        mut body: impl FnMut(&Txn<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut tries = 0;
        let begun = retry_policy.within.map(|_| nearstate_memory::since_boot());
        loop {
            tries += 1;
            let txn = self.begin()?;
            let done = body(&txn).and_then(|answer| txn.commit().map(|()| answer));
            match done {
                Err(Error::Conflict { .. }) => {}
                other => return other,
            }
            let spent = begun.map(|begun| nearstate_memory::since_boot().saturating_sub(begun));
            let is_late = spent >= retry_policy.within && spent.is_some();
            if tries >= retry_policy.tries || is_late {
                return Err(Error::Deadline { tries });
            }
            self.pause(tries);
        }
    }

    /// Puts a record that ends by itself.
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
        let labels = Metadata { expires_ms, ..Metadata::default() };
        self.transact(|txn| txn.put_with_metadata(namespace, key, value, labels))
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
    /// The record of a key: what this transaction has written, else what is in the region.
    ///
    /// Cost: that of [`Session::get`], and a load for each record that was read before (of one that
    /// was not there a search): the square of the reads, in all.
    ///
    /// # Errors
    /// `Conflict`: what was read earlier is not so any more; `TransactionTooLarge`; `WrongKind` in
    /// a namespace of counters; `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<Record<'_>>> {
        if namespace.kind == Kind::Counters {
            return Err(wrong_kind(namespace.kind, "read", ""));
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let place = set.place_of(namespace.index, hash, key);
        if let Some(place) = place
            && set.buffers.entries.get(place).is_some_and(|entry| !entry.write.is_none())
        {
            return own_record(&mut set, namespace, hash, key);
        }
        let (_, stored) = set.read_at(place, namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(None) };
        if !cell.has_meta() {
            return Ok(Some(Record::stored(cell, bytes, namespace.kind)));
        }
        let (value, meta) = split(cell, bytes)?;
        let is_gone = is_past(meta)?;
        Ok((!is_gone).then(|| Record::stored(cell, value, namespace.kind)))
    }

    /// Puts a record: this value, no tags, no expiry, whatever it had before. What the namespace
    /// says of tags is judged at the commit.
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
        labels: Metadata<'_>,
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
        set.put_with_metadata(place, value, labels)
    }

    /// Puts a set of members, in any order; what is given twice counts once. Whatever the record
    /// was before is gone.
    ///
    /// Cost: linear in the bytes of all members, as is each change of a set.
    ///
    /// # Errors
    /// As [`Txn::put_with_metadata`]; `WrongKind` in a namespace that is not mixed; `BadArgument`: a set
    /// without members (delete the record), or with more than [`MEMBERS_OF_SET_MAX`].
    ///
    /// [`MEMBERS_OF_SET_MAX`]: nearstate_model::limits::MEMBERS_OF_SET_MAX
    pub fn put_members(
        &self,
        namespace: Namespace,
        key: &[u8],
        members: &[&[u8]],
        labels: Metadata<'_>,
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
        let meta = encode_meta(labels)?;
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
        let own = set.buffers.entries.get(place).filter(|entry| !entry.write.is_none());
        let form = match (own, stored) {
            (Some(entry), _) => (!entry.write.is_delete()).then_some(entry.form),
            (None, Some((cell, _))) if !is_gone => Some(Form::of(namespace.kind, &cell)),
            (None, _) => None,
        };
        if let Some(form) = form.filter(|form| *form != Form::Blocks) {
            return Err(other_form(form));
        }
        if is_gone && set.buffers.entries.get(place).is_some_and(|entry| entry.write.is_none()) {
            set.delete(place);
        }
        set.patch(place, changes)
    }

    /// Gives a record these tags and this expiry instead of what it had; its value or its blocks
    /// stay as they are. False if there is no such record.
    ///
    /// Cost: a copy of the value; of blocks above 512 bytes none.
    ///
    /// # Errors
    /// `BadArgument` as [`Txn::put_with_metadata`]; `WrongKind` in a namespace of counters; `Conflict`,
    /// `TransactionTooLarge`, `Damaged`.
    pub fn label(&self, namespace: Namespace, key: &[u8], labels: Metadata<'_>) -> Result<bool> {
        let Some(record) = self.get(namespace, key)? else { return Ok(false) };
        let form = record.form();
        let value = record.bytes().to_vec();
        let members: Vec<Vec<u8>> = record.members().map(<[u8]>::to_vec).collect();
        drop(record);
        if form == Form::Set {
            let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
            return self.put_members(namespace, key, &members, labels).map(|()| true);
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let place = set.entry(namespace.index, hash, key)?;
        let meta = encode_meta(labels)?;
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

    /// Deletes many records: how many of them were there. As [`Txn::delete`] of each, but judged
    /// together, as by [`Txn::judged_once`].
    ///
    /// # Errors
    /// As [`Txn::delete`]; some of them may be deleted in the transaction then.
    pub fn delete_all(&self, records: &[(Namespace, &[u8])]) -> Result<usize> {
        self.judged_once(|| {
            let mut gone = 0;
            for (namespace, key) in records {
                gone += usize::from(self.delete(*namespace, key)?);
            }
            Ok(gone)
        })
    }

    /// Reads of this transaction that are judged together: whether all still stand is looked at
    /// once, after the last, so that their cost is linear in their number, not its square.
    ///
    /// Until then they may not fit together: what `reads` does because of them is the transaction's
    /// own, or is taken back after a `Conflict`.
    ///
    /// # Errors
    /// `Conflict`: what was read is not so any more; what `reads` returns.
    pub fn judged_once<T>(&self, reads: impl FnOnce() -> Result<T>) -> Result<T> {
        let judge_later = |is_later| {
            std::mem::replace(&mut self.set.borrow_mut().buffers.is_judged_later, is_later)
        };
        let was_later = judge_later(true);
        let done = reads();
        judge_later(was_later);
        if !was_later {
            // First: an error may come of reads that do not fit together.
            self.set.borrow_mut().check()?;
        }
        done
    }

    /// The keys of a namespace that the transaction has written so far: each with true if it puts a
    /// record there, false if it deletes it. For whoever walks a namespace within a transaction: a
    /// walk meets what is in the region, which has none of this yet.
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
        let mut set = self.set.into_inner();
        let session = set.session;
        if set.is_read_only() {
            let done = set.commit();
            set.give_back();
            return done;
        }
        let done = set.index_all().and_then(|_| set.tell_all()).and_then(|()| set.commit());
        set.give_back();
        session.collect_some();
        done
    }

    /// Commits, and tells the version that each written record has now (`None`: deleted), in the
    /// order in which they were first touched; only their keys, not their namespaces.
    ///
    /// # Errors
    /// As [`Txn::commit`].
    pub fn commit_with_versions(self, mut each: impl FnMut(&[u8], Option<u64>)) -> Result<()> {
        let mut set = self.set.into_inner();
        let written = match set.index_all().and_then(|n| set.tell_all().map(|()| n)) {
            Ok(written) => written,
            Err(error) => {
                set.give_back();
                return Err(error);
            }
        };
        if let Err(error) = set.commit() {
            set.give_back();
            return Err(error);
        }
        for entry in set.buffers.entries.iter().take(written).filter(|e| !e.write.is_none()) {
            each(set.buffers.bytes(entry.key), entry.after);
        }
        let session = set.session;
        set.give_back();
        session.collect_some();
        Ok(())
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
pub(crate) fn encode_meta(labels: Metadata<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if !labels.tags.is_empty() || labels.expires_ms != 0 {
        meta::encode(labels.expires_ms, labels.tags, &mut out)?;
    }
    Ok(out)
}
