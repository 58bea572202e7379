//! A region file as the simulator sees it: the log entries that a copy contains, in their order,
//! and the words that survive a process.

use nearstate_cluster::{CopyState, LogPosition, MemberRecord, Monotonic, RegionState, ViewNumber};

/// One committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SimulatedEntry {
    /// The log in which it was written.
    pub(crate) log: u64,
    /// Its position there, from 1.
    pub(crate) position: u64,
    /// Unique in a run.
    pub(crate) id: u64,
    /// Check value of everything up to here.
    pub(crate) check: u64,
}

/// What the copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    Empty,
    Joining,
    Follower,
    Owner,
}

/// A region file.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) copy: Copy,
    /// The view in which the log began that is written or followed here.
    pub(crate) origin: ViewNumber,
    /// That log.
    pub(crate) log: u64,
    /// How many entries are older than that log.
    pub(crate) base: usize,
    /// The log that an owner's region has followed up to there: itself, its origin, and how many
    /// entries are older than that.
    pub(crate) taken_over: Option<(u64, ViewNumber, usize)>,
    pub(crate) content: Vec<SimulatedEntry>,
    pub(crate) record: MemberRecord,
    pub(crate) replicated: u64,
    pub(crate) lease_until: Monotonic,
    /// Writers are refused.
    pub(crate) is_fenced: bool,
    /// Those that had passed the check before have ended their commit, since they are refused.
    pub(crate) is_drained: bool,
}

impl Region {
    pub(crate) fn new() -> Self {
        Self {
            copy: Copy::Empty,
            origin: ViewNumber::NONE,
            log: 0,
            base: 0,
            taken_over: None,
            content: Vec::new(),
            record: MemberRecord::NEW,
            replicated: 0,
            lease_until: Monotonic::BOOT,
            is_fenced: true,
            is_drained: false,
        }
    }

    /// Is the content a complete prefix?
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.copy, Copy::Follower | Copy::Owner)
    }

    pub(crate) fn check(&self) -> u64 {
        self.content.last().map_or(0, |entry| entry.check)
    }

    /// The check value of the first `length` entries.
    pub(crate) fn check_at(&self, length: usize) -> Option<u64> {
        match length.checked_sub(1) {
            None => Some(0),
            Some(last) => self.content.get(last).map(|entry| entry.check),
        }
    }

    pub(crate) fn position(&self) -> u64 {
        (self.content.len() - self.base) as u64
    }

    pub(crate) fn held(&self) -> LogPosition {
        let mut log = [0; 16];
        log[..8].copy_from_slice(&self.log.to_le_bytes());
        LogPosition {
            origin: self.origin,
            log,
            incarnation: 1,
            position: self.position(),
            check: self.check(),
        }
    }

    pub(crate) fn facts(&self) -> RegionState {
        RegionState {
            copy: match self.copy {
                Copy::Empty => CopyState::Empty,
                Copy::Joining => CopyState::Joining,
                Copy::Follower => CopyState::Follower(self.held()),
                Copy::Owner => CopyState::Owner { origin: self.origin },
            },
            record: self.record,
            replicated: self.replicated,
            lease_until: self.lease_until,
        }
    }

    /// A local process commits.
    pub(crate) fn commit(&mut self, id: u64) -> SimulatedEntry {
        let position = self.position() + 1;
        let check = mix(self.check(), id);
        let entry = SimulatedEntry { log: self.log, position, id, check };
        self.content.push(entry);
        entry
    }

    /// Becomes a region that writes a log of its own.
    pub(crate) fn promote(&mut self, log: u64, origin: ViewNumber) {
        let has_followed = self.copy == Copy::Follower;
        self.taken_over = has_followed.then_some((self.log, self.origin, self.base));
        self.copy = Copy::Owner;
        self.log = log;
        self.origin = origin;
        self.base = self.content.len();
        self.replicated = 0;
        (self.is_fenced, self.is_drained) = (true, false);
    }

    /// Becomes a copy that ends at the seal, if it is an owner's whose log is the sealed one or has
    /// followed that from there on.
    pub(crate) fn undo_behind(&mut self, seal: &LogPosition) -> bool {
        if self.copy != Copy::Owner {
            return false;
        }
        let own = (self.log, self.origin, self.base);
        for (log, origin, base) in self.taken_over.into_iter().chain([own]) {
            let end = base + seal.position as usize;
            let is_there = end <= self.content.len() && (log == own.0 || end == self.base);
            let mut wanted = *seal;
            wanted.log[..8].copy_from_slice(&log.to_le_bytes());
            wanted.origin = origin;
            if is_there && wanted == *seal && self.check_at(end) == Some(seal.check) {
                self.content.truncate(end);
                (self.log, self.origin, self.base) = (log, origin, base);
                (self.copy, self.is_fenced, self.taken_over) = (Copy::Follower, true, None);
                return true;
            }
        }
        false
    }

    /// Writers are admitted.
    pub(crate) fn unfence(&mut self) {
        (self.is_fenced, self.is_drained) = (false, false);
    }

    /// Discards the content.
    pub(crate) fn discard(&mut self, copy: Copy) {
        let record = self.record;
        *self = Self { copy, record, ..Self::new() };
    }
}

/// A check value of a history and one more transaction.
pub(crate) fn mix(check: u64, id: u64) -> u64 {
    (check ^ id.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .rotate_left(23)
        .wrapping_mul(0xD6E8_FEB8_6659_FD93)
}
