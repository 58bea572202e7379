//! The input of a commit: what a transaction changes and expects (`spec/region.md`, section 9).

use nearstate_model::invariant;

use crate::crash::is_planted;
use crate::index::bucket::{at_of, entry, hash_tag};
use crate::index::known_slot::{KnownSlot, WriteTarget};
use crate::index::lookup::ReadToken;
use crate::layout::namespace_flags;
use crate::txn::events::TxnEvents;
use crate::txn::fill::PendingCell;
use crate::txn::publish::SlotLookup;

/// A condition that must hold for a transaction to commit.
#[derive(Clone, Copy, Debug)]
pub enum Expectation {
    /// Any record, or none.
    Any,
    /// The record that was read: the same cell, which the caller's pin has protected from reuse
    /// since the read, or no record.
    Read(ReadToken),
}

/// The change of one record.
#[derive(Clone, Copy, Debug)]
pub enum CellChange {
    /// None: the record was read.
    Keep,
    /// A new version of the record.
    Publish(PendingCell),
    /// The record is removed.
    Remove,
}

/// The number of an access in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccessIndex(pub(crate) u32);

/// One record that a transaction touches.
#[derive(Clone, Copy, Debug)]
pub struct RecordAccess {
    /// Number of its namespace.
    pub namespace: u32,
    /// Hash of its key.
    pub hash: u64,
    /// Where its key is in the bytes that come with the plan.
    pub key: (u32, u32),
    /// The condition for a commit.
    pub expect: Expectation,
    /// The change.
    pub change: CellChange,
    /// The namespace flags that the caller has handled. Validated for changes.
    pub flags: u64,
    /// What the log says about it ([`crate::log_mark`]); 0 if the log does not have it.
    pub log_mark: u64,
    /// The version of the record after the commit, which another host has given; 0: the next one.
    pub version_imposed: u64,
    /// After the commit: the version before it.
    pub version_before: Option<u64>,
    /// After the commit: the new version.
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
            change: CellChange::Keep,
            flags: 0,
            log_mark: 0,
            version_imposed: 0,
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

    /// Why this access, with its number, does not allow the commit. `flags` are those of its
    /// namespace, loaded with all locks held.
    #[inline]
    pub(crate) fn refusal(&self, flags: u64, number: usize) -> Option<CommitOutcome> {
        let is_expected = match self.expect {
            Expectation::Any => true,
            Expectation::Read(ReadToken { at: 0, .. }) => self.entry_at == 0,
            Expectation::Read(token) => self.entry_at != 0 && at_of(self.entry) == token.at,
        };
        if !is_expected && !is_planted("skip-validation") {
            return Some(CommitOutcome::Conflict(number));
        }
        if !matches!(self.change, CellChange::Keep) && flags != self.flags {
            return Some(CommitOutcome::FlagsChanged(number));
        }
        None
    }

    pub(crate) const fn is_write(&self) -> bool {
        match self.change {
            CellChange::Keep => false,
            CellChange::Publish(_) => true,
            CellChange::Remove => self.entry_at != 0,
        }
    }

    /// True for a write that the log has.
    pub(crate) const fn is_logged_write(&self) -> bool {
        self.log_mark != 0 && self.is_write()
    }

    pub(crate) const fn new_entry(&self) -> u64 {
        match self.change {
            CellChange::Publish(draft) => entry(hash_tag(self.hash), draft.at),
            CellChange::Keep | CellChange::Remove => 0,
        }
    }
}

/// What a commit does to the usage of one namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageChange {
    /// The number of the namespace.
    pub(crate) namespace: u32,
    /// Offset of the usage word that this commit holds.
    pub(crate) word_at: u64,
    /// Its payload.
    pub(crate) before: u64,
    /// Units that are added.
    pub(crate) delta: i64,
}

/// The changes of a commit, one for each namespace with limits in which it writes.
#[derive(Debug, Default)]
pub struct UsageChanges(pub(crate) Vec<UsageChange>);

impl UsageChanges {
    /// Counts what the writes of the plan to this namespace change.
    #[cold]
    pub fn add(&mut self, namespace: u32) {
        if self.0.iter().all(|known| known.namespace != namespace) {
            self.0.push(UsageChange { namespace, word_at: 0, before: 0, delta: 0 });
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) const fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The namespaces.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|change| change.namespace)
    }
}

/// What a transaction does. Each record occurs once.
#[derive(Debug, Default)]
pub struct CommitPlan {
    /// The records.
    pub accesses: Vec<RecordAccess>,
    /// Events for watchers and the commit stream.
    pub events: TxnEvents,
    /// The namespaces with limits in which it writes.
    pub usages: UsageChanges,
    /// True if the log has one of its changes.
    pub(crate) is_logged: bool,
    /// True if it is refused while writes of logged namespaces are, also if the log has none of its
    /// changes.
    pub checks_fence: bool,
    /// True if one of its logged namespaces must lose no entry of the log.
    pub(crate) is_kept: bool,
    /// The units and the cells that the log holds for it.
    pub(crate) held: (u64, u64),
    /// After the commit: its position in the log, or 0.
    pub position: u64,
    /// Accesses in the order of their locks: the offset of the lock, and the number of the access.
    pub(crate) order: Vec<(u64, AccessIndex)>,
}

impl CommitPlan {
    /// Removes everything, and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.accesses.clear();
        self.events.clear();
        self.usages.clear();
        self.order.clear();
        (self.is_logged, self.is_kept, self.position) = (false, false, 0);
        self.checks_fence = false;
    }

    /// Adds an access. What it writes in a namespace with limits is counted.
    #[inline]
    pub fn add(&mut self, access: RecordAccess) {
        debug_assert!(access.key.0 <= access.key.1, "a key ends before it begins");
        self.accesses.push(access);
        if access.log_mark != 0 {
            self.is_logged = true;
            self.is_kept |= access.flags & namespace_flags::LOSSLESS != 0;
        }
        if access.flags & namespace_flags::LIMITED != 0 {
            self.usages.add(access.namespace);
        }
    }

    /// The access with this number.
    #[inline]
    pub(crate) fn access(&self, index: AccessIndex) -> &RecordAccess {
        match self.accesses.get(index.0 as usize) {
            Some(access) => access,
            None => invariant!("access {} is locked and not in the plan", index.0),
        }
    }

    /// Inserts the new versions of the records into the events.
    pub(crate) fn fill_event_versions(&mut self) {
        for index in 0..self.events.versions.len() {
            let Some((at, number)) = self.events.versions.get(index).copied() else {
                invariant!("a plan lost the version of event {index}")
            };
            let Some(access) = self.accesses.get(number) else {
                invariant!("an event names access {number} of {}", self.accesses.len())
            };
            // 0 stands for a record that was absent before and after: a removal of nothing.
            let version = access.version_after.or(access.version_before).unwrap_or(0);
            self.events.set_version(at, version);
        }
    }
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// All changes were made.
    Committed,
    /// Nothing was changed: the record of this access is not the expected one.
    Conflict(usize),
    /// Nothing was changed: the namespace flags of this access are not the expected ones.
    FlagsChanged(usize),
    /// Nothing was changed: the log would have this access, and its writers are refused
    /// ([`crate::Member::is_fenced_off`]).
    Fenced(usize),
}

impl RecordAccess {
    /// Its key, from the bytes that come with the plan.
    #[inline]
    pub(crate) fn key_in<'k>(&self, keys: &'k [u8]) -> &'k [u8] {
        let (from, to) = (self.key.0 as usize, self.key.1 as usize);
        match keys.get(from..to) {
            Some(key) => key,
            None => invariant!("a key at {from}..{to} of {} bytes", keys.len()),
        }
    }

    /// Its key and read token.
    #[inline]
    pub(crate) fn target<'k>(&self, keys: &'k [u8]) -> WriteTarget<'k> {
        let known = match self.expect {
            Expectation::Any => KnownSlot::Unknown,
            Expectation::Read(token) => KnownSlot::Read(token),
        };
        WriteTarget::new(self.hash, self.key_in(keys), known)
    }

    #[inline]
    pub(crate) const fn set_slot(&mut self, place: SlotLookup<'_>) {
        debug_assert!((place.entry_at == 0) == (place.entry == 0), "a slot has an entry");
        self.entry_at = place.entry_at;
        self.entry = place.entry;
        self.empty_at = place.empty_at;
        self.crowd = place.entries + 1;
    }
}
