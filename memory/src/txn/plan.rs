//! What a transaction is to do, as its caller writes it down (`spec/region.md`, section 9).

use crate::index::bucket::{entry, tag_of};
use crate::index::lookup::Seen;
use crate::txn::announce::Announcements;
use crate::txn::publish::{Draft, Place, Target};

/// What must be there for a transaction to commit.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// Whatever is there.
    Anything,
    /// What was read: this very cell, which the caller's pin has kept from reuse since it read it,
    /// or no record.
    Seen(Seen),
}

/// What a transaction does with a record.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// It was read.
    Keep,
    /// It gets this version.
    Publish(Draft),
    /// It goes.
    Remove,
}

/// One record that a transaction touches.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Number of its namespace.
    pub table: u32,
    /// Hash of its key.
    pub hash: u64,
    /// Where its key stands in the bytes that come with the plan.
    pub key: (u32, u32),
    /// What must be there.
    pub expect: Expect,
    /// What becomes of it.
    pub change: Change,
    /// The namespace's traits that the caller has seen to; judged for changes.
    pub traits: u64,
    /// Version that was there, after the commit.
    pub before: Option<u64>,
    /// Version that is there, after the commit of a new one.
    pub after: Option<u64>,
    pub(crate) bucket: u64,
    pub(crate) lock_at: u64,
    pub(crate) found_at: u64,
    pub(crate) found: u64,
    pub(crate) empty_at: u64,
    pub(crate) crowd: u32,
    pub(crate) retired: Option<u8>,
}

impl Access {
    /// A record that is read.
    #[inline]
    pub const fn new(table: u32, hash: u64, key: (u32, u32)) -> Self {
        Self {
            table,
            hash,
            key,
            expect: Expect::Anything,
            change: Change::Keep,
            traits: 0,
            before: None,
            after: None,
            bucket: 0,
            lock_at: 0,
            found_at: 0,
            found: 0,
            empty_at: 0,
            crowd: 0,
            retired: None,
        }
    }

    pub(crate) const fn is_write(&self) -> bool {
        match self.change {
            Change::Keep => false,
            Change::Publish(_) => true,
            Change::Remove => self.found_at != 0,
        }
    }

    pub(crate) const fn new_entry(&self) -> u64 {
        match self.change {
            Change::Publish(draft) => entry(tag_of(self.hash), draft.at),
            Change::Keep | Change::Remove => 0,
        }
    }
}

/// What a transaction does, each record once.
#[derive(Debug, Default)]
pub struct Plan {
    /// The records.
    pub accesses: Vec<Access>,
    /// What watchers and the commit stream are told.
    pub announced: Announcements,
    /// Accesses in the order of their locks: where the lock is, and the number of the access.
    pub(crate) order: Vec<(u64, u32)>,
}

impl Plan {
    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.accesses.clear();
        self.announced.clear();
        self.order.clear();
    }

    /// The events get the versions that their records will have.
    pub(crate) fn tell_versions(&mut self) {
        for index in 0..self.announced.versions.len() {
            let Some((at, number)) = self.announced.versions.get(index).copied() else { break };
            let access = self.accesses.get(number);
            let version = access.and_then(|access| access.after.or(access.before));
            self.announced.set_version(at, version.unwrap_or(0));
        }
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// All of it happened.
    Done,
    /// Nothing happened: the record of this access is not what was expected.
    Conflict(usize),
    /// Nothing happened: the traits of this access's namespace are not what was expected.
    Changed(usize),
}

impl Access {
    /// Its key among the bytes that come with the plan.
    #[inline]
    pub(crate) fn key_in<'k>(&self, keys: &'k [u8]) -> &'k [u8] {
        keys.get(self.key.0 as usize..self.key.1 as usize).unwrap_or_default()
    }

    /// What is known of its record.
    #[inline]
    pub(crate) fn target<'k>(&self, keys: &'k [u8]) -> Target<'k> {
        let seen = match self.expect {
            Expect::Anything => None,
            Expect::Seen(seen) => Some(seen),
        };
        Target { hash: self.hash, key: self.key_in(keys), seen }
    }

    #[inline]
    pub(crate) const fn note_place(&mut self, place: Place) {
        self.found_at = place.found_at;
        self.found = place.found;
        self.empty_at = place.empty_at;
        self.crowd = place.entries + 1;
    }
}
