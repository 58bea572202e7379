//! What a transaction is to do, as its caller writes it down (`spec/region.md`, section 9).

use crate::index::bucket::{entry, tag_of};
use crate::index::lookup::ReadToken;
use crate::txn::events::TxnEvents;
use crate::txn::publish::{PendingCell, SlotLookup, WriteTarget};

/// What must be there for a transaction to commit.
#[derive(Clone, Copy, Debug)]
pub enum Expectation {
    /// Whatever is there.
    Any,
    /// What was read: this very cell, which the caller's pin has kept from reuse since it read it,
    /// or no record.
    Read(ReadToken),
}

/// What a transaction does with a record.
#[derive(Clone, Copy, Debug)]
pub enum RecordChange {
    /// It was read.
    Keep,
    /// It gets this version.
    Publish(PendingCell),
    /// It goes.
    Remove,
}

/// One record that a transaction touches.
#[derive(Clone, Copy, Debug)]
pub struct RecordAccess {
    /// Number of its namespace.
    pub namespace: u32,
    /// Hash of its key.
    pub hash: u64,
    /// Where its key stands in the bytes that come with the plan.
    pub key: (u32, u32),
    /// What must be there.
    pub expect: Expectation,
    /// What becomes of it.
    pub change: RecordChange,
    /// The namespace's traits that the caller has seen to; judged for changes.
    pub flags: u64,
    /// Version that was there, after the commit.
    pub version_before: Option<u64>,
    /// Version that is there, after the commit of a new one.
    pub version_after: Option<u64>,
    pub(crate) bucket: u64,
    pub(crate) lock_at: u64,
    pub(crate) entry_at: u64,
    pub(crate) entry: u64,
    pub(crate) empty_at: u64,
    pub(crate) crowd: u32,
    pub(crate) retired: Option<u8>,
}

impl RecordAccess {
    /// A record that is read.
    #[inline]
    pub const fn new(namespace: u32, hash: u64, key: (u32, u32)) -> Self {
        Self {
            namespace,
            hash,
            key,
            expect: Expectation::Any,
            change: RecordChange::Keep,
            flags: 0,
            version_before: None,
            version_after: None,
            bucket: 0,
            lock_at: 0,
            entry_at: 0,
            entry: 0,
            empty_at: 0,
            crowd: 0,
            retired: None,
        }
    }

    pub(crate) const fn is_write(&self) -> bool {
        match self.change {
            RecordChange::Keep => false,
            RecordChange::Publish(_) => true,
            RecordChange::Remove => self.entry_at != 0,
        }
    }

    pub(crate) const fn new_entry(&self) -> u64 {
        match self.change {
            RecordChange::Publish(draft) => entry(tag_of(self.hash), draft.at),
            RecordChange::Keep | RecordChange::Remove => 0,
        }
    }
}

/// What a transaction does, each record once.
#[derive(Debug, Default)]
pub struct CommitPlan {
    /// The records.
    pub accesses: Vec<RecordAccess>,
    /// What watchers and the commit stream are told.
    pub events: TxnEvents,
    /// Accesses in the order of their locks: where the lock is, and the number of the access.
    pub(crate) order: Vec<(u64, u32)>,
}

impl CommitPlan {
    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.accesses.clear();
        self.events.clear();
        self.order.clear();
    }

    /// The events get the versions that their records will have.
    pub(crate) fn fill_event_versions(&mut self) {
        for index in 0..self.events.versions.len() {
            let Some((at, number)) = self.events.versions.get(index).copied() else { break };
            let access = self.accesses.get(number);
            let version = access.and_then(|access| access.version_after.or(access.version_before));
            self.events.set_version(at, version.unwrap_or(0));
        }
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// All of it happened.
    Committed,
    /// Nothing happened: the record of this access is not what was expected.
    Conflict(usize),
    /// Nothing happened: the traits of this access's namespace are not what was expected.
    FlagsChanged(usize),
}

impl RecordAccess {
    /// Its key among the bytes that come with the plan.
    #[inline]
    pub(crate) fn key_in<'k>(&self, keys: &'k [u8]) -> &'k [u8] {
        keys.get(self.key.0 as usize..self.key.1 as usize).unwrap_or_default()
    }

    /// What is known of its record.
    #[inline]
    pub(crate) fn target<'k>(&self, keys: &'k [u8]) -> WriteTarget<'k> {
        let token = match self.expect {
            Expectation::Any => None,
            Expectation::Read(token) => Some(token),
        };
        WriteTarget { hash: self.hash, key: self.key_in(keys), token }
    }

    #[inline]
    pub(crate) const fn set_slot(&mut self, place: SlotLookup) {
        self.entry_at = place.entry_at;
        self.entry = place.entry;
        self.empty_at = place.empty_at;
        self.crowd = place.entries + 1;
    }
}
