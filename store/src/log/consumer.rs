//! The commit stream: the committed transactions of logged namespaces in one order, which a
//! consumer (replication, a durable log) reads where they are, without touching the writers
//! (`docs/decisions/021-log.md`).
//!
//! The log is bounded. What happens when its consumer is behind is declared with a namespace: the
//! oldest entries are lost and the consumer learns how many, or, as long as one namespace asks for
//! it, commits are refused with `Behind` until it has caught up.
//!
//! Order: of two transactions, the one that was committed first comes first, if they touch a common
//! record, or if one began after the other had ended.

use std::time::Duration;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{
    Corruption, FollowPosition, FollowState, LogEntry, LogRead, LogReader, LoggedRecord, Pin,
};
use nearstate_model::{Error, OneOrMany, Result, invariant};

use crate::log::entry::{Absence, StreamedRecord, StreamedVersions, streamed, versions};
use crate::record::Kind;
use crate::session::{Namespace, Session, wrong_kind};

/// What becomes of a full log. The region has one for all logged namespaces, so this is a property
/// of the log: each [`Session::stream`] sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest transactions are lost, and the consumer learns how many. Writers never wait.
    #[default]
    LoseOldest,
    /// Commits are refused with `Behind` until the consumer has acknowledged some.
    Refuse,
}

/// One step of a consumer.
#[derive(Clone, Copy, Debug)]
pub enum StreamItem<'c> {
    /// A committed transaction.
    Transaction(StreamEntry<'c>),
    /// At most this number of transactions is lost: read the records again. Positions at which
    /// nothing was committed count as well.
    Lost {
        /// How many.
        transactions: u64,
    },
}

/// A committed transaction: its records of logged namespaces.
#[derive(Clone, Copy, Debug)]
pub struct StreamEntry<'c> {
    /// Number of the writer's session. One that attaches later may have the same number.
    pub writer: u32,
    /// Position of the transaction in the log ([`Session::receipt_at`]). Positions rise. They have
    /// gaps where a commit was given up.
    pub number: u64,
    entry: LogEntry<'c>,
}

impl<'c> StreamEntry<'c> {
    /// The records, each with what became of it, in the order in which the transaction named them.
    /// Ends early at bytes that are damaged.
    pub fn records(&self) -> impl Iterator<Item = Result<StreamedRecord<'c>, Corruption>> {
        self.records_with(self.entry.time_ms().map(Absence::At))
    }

    pub(crate) fn records_with(&self, absence: Result<Absence, Corruption>) -> EntryRecords<'c> {
        let records = match self.entry.single_record() {
            Ok(Some(record)) => Ok(OneOrMany::One(record)),
            Ok(None) => self.entry.records().map(OneOrMany::from),
            Err(damage) => Err(damage),
        };
        let (records, damage) = match records {
            Ok(records) => (records, None),
            Err(damage) => (OneOrMany::NONE, Some(damage)),
        };
        EntryRecords { records: records.into_iter(), damage, absence }
    }

    /// The records as they were before and after the transaction, whole.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn versions(&self) -> Result<Vec<StreamedVersions<'c>>> {
        let mut all = Vec::new();
        for record in self.entry.records()? {
            all.extend(versions(&record)?);
        }
        Ok(all)
    }

    /// The time by which the transaction judged what has expired, in milliseconds since 1970.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn time_ms(&self) -> Result<u64> {
        Ok(self.entry.time_ms()?)
    }

    /// A check value of the transaction. Two transactions of one position that differ have
    /// different ones.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn check_value(&self) -> Result<u64> {
        Ok(self.entry.check_value()?)
    }
}

/// The records of an entry, up to one whose bytes are damaged.
pub(crate) struct EntryRecords<'c> {
    records: <OneOrMany<LoggedRecord<'c>> as IntoIterator>::IntoIter,
    /// The entry itself is damaged: it has no records then.
    damage: Option<Corruption>,
    absence: Result<Absence, Corruption>,
}

impl<'c> Iterator for EntryRecords<'c> {
    type Item = Result<StreamedRecord<'c>, Corruption>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let Some(record) = self.records.next() else { return self.damage.take().map(Err) };
        let record = self.absence.and_then(|absence| streamed(&record, absence));
        if record.is_err() {
            self.records = OneOrMany::NONE.into_iter();
        }
        Some(record)
    }
}

/// A consumer of the log. Its current entry holds memory of the region until the next call of
/// [`CommitStream::next`].
#[derive(Debug)]
pub struct CommitStream<'s> {
    session: &'s Session,
    reader: LogReader,
    /// Protects the current entry, and so many entries with it.
    pin: Option<Pin<'s>>,
    pinned: u32,
}

/// The entries that a consumer reads under one pin. It is as old as the first one then, and what
/// was retired since is not used again before it is released: some microseconds, for a consumer
/// that reads on.
const ENTRIES_OF_PIN: u32 = 16;

impl Session {
    /// Logs the commits of a namespace from now on, with this policy. A namespace that is logged
    /// stays so.
    ///
    /// The log takes a 64th of the heap, from 512 KiB to 8 MiB, permanently, and holds what its
    /// transactions have replaced: at most a sixteenth of the heap. A transaction that replaces
    /// more than an eighth of that is refused with `Behind` while the log holds more than half of
    /// it. Adds to counters are not logged.
    ///
    /// # Errors
    /// `BadArgument`: the region follows another one, so its own log goes nowhere; `Fenced`: it is
    /// that of an owner without a lease; `Full`, `Stalled`, `Damaged`, `Forked`.
    pub fn stream(&self, namespace: Namespace, when_full: WhenFull) -> Result<()> {
        self.log_namespace(namespace, when_full, true)
    }

    /// As [`Session::stream`]. The node of an owner logs namespaces also before it has a lease.
    pub(crate) fn log_namespace(
        &self,
        namespace: Namespace,
        when_full: WhenFull,
        checks_fence: bool,
    ) -> Result<()> {
        if namespace.kind() == Kind::Counters {
            return Err(wrong_kind(namespace.kind(), "stream", ""));
        }
        let is_new = !self.is_logged(namespace)?;
        if is_new && self.is_copy()? {
            let detail = "this region follows another one, and its own log goes nowhere: a \
                          namespace of its own is local until the region is promoted";
            return Err(Error::BadArgument { detail: detail.to_owned() });
        }
        if is_new && checks_fence {
            // Again under the lock. Here it leaves the flag as it is.
            self.check_not_fenced_now(namespace.index)?;
        }
        self.member.open_log()?;
        invariant!(namespace.kind() != Kind::Counters, "adds to counters are not logged");
        let is_lossless = when_full == WhenFull::Refuse;
        self.member.update_namespace_flags(namespace.index, |word| {
            let word = word | namespace_flags::LOGGED;
            if is_lossless {
                word | namespace_flags::LOSSLESS
            } else {
                word & !namespace_flags::LOSSLESS
            }
        })?;
        // Later commits follow the new policy; earlier ones are already in the log.
        self.member.drain_writers(self.table(namespace)?)?;
        if is_new && !checks_fence {
            self.member.end_log_declaration(namespace.index)?;
        } else if is_new && !self.member.end_log_declaration_unless_fenced(namespace.index)? {
            return Err(self.fenced(namespace.index)?);
        }
        if is_lossless { self.member.keep_log() } else { self.relax_streams() }
    }

    /// True while the region is a copy that a follower keeps.
    pub(crate) fn is_copy(&self) -> Result<bool> {
        Ok(self.following()?.is_some_and(|following| match following.state {
            FollowState::Joining | FollowState::Extending | FollowState::Full => true,
            FollowState::Promoting | FollowState::Demoting => false,
        }))
    }

    /// The log refuses no commits any more, unless a namespace wants it.
    pub(crate) fn relax_streams(&self) -> Result<()> {
        // Before the namespaces: a later declaration changes it.
        let policy = self.member.log_policy()?;
        if self.is_any_lossless()? { Ok(()) } else { self.member.relax_log(policy) }
    }

    fn is_any_lossless(&self) -> Result<bool> {
        for entry in self.member.namespaces()? {
            if self.member.namespace_flags(entry.index)? & namespace_flags::LOSSLESS != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A consumer of the log that begins behind a position. It acknowledges nothing by itself:
    /// [`Session::acknowledge_to`].
    ///
    /// # Errors
    /// `Forked`.
    pub fn commit_stream_behind(&self, position: u64) -> Result<CommitStream<'_>> {
        let reader = self.member.log_reader_behind(position)?;
        Ok(CommitStream { session: self, reader, pin: None, pinned: 0 })
    }

    /// The last entry of the own log: position 0 if the log has none.
    ///
    /// Complexity: linear in the entries behind the last one that a follower has acknowledged.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn last_entry(&self) -> Result<FollowPosition> {
        let shipped = self.member.shipped_position()?;
        let floor = self.member.log_floor_position()?;
        let mut last = shipped;
        let mut stream =
            self.commit_stream_behind(shipped.position.max(floor.saturating_sub(1)))?;
        while let Some(item) = stream.next()? {
            if let StreamItem::Transaction(entry) = item {
                invariant!(
                    entry.number > last.position || last == shipped,
                    "entry {} is read after {}",
                    entry.number,
                    last.position
                );
                last = FollowPosition { position: entry.number, check: entry.check_value()? };
            }
        }
        Ok(last)
    }

    /// Another host has everything up to a position of the log: it is replicated.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn acknowledge_to(&self, position: u64) -> Result<()> {
        self.member.acknowledge_log_to(position)
    }

    /// The position up to which the log counts as replicated.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn replicated_position(&self) -> Result<u64> {
        self.member.log_acknowledged()
    }

    /// True if a process may wait for what is behind the replicated position: a source of the log
    /// sends it at once. It stays true behind a wait that was given up, until the next
    /// acknowledgement.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_replication_awaited(&self) -> Result<bool> {
        self.member.is_acknowledgement_awaited()
    }

    /// A source that has sent everything sleeps until a process waits for what is replicated, for
    /// at most `bound`. False, at once, if one may wait already. A commit alone wakes no source.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn sleep_until_awaited(&self, bound: Duration) -> Result<bool> {
        self.member.sleep_until_awaited(bound)
    }

    /// The calling thread sends the log: processes that wait for what it sends spin only while it
    /// runs on another processor. `told`: what the last call has returned, 0 for the first.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn tell_source_cpu(&self, told: u64) -> Result<u64> {
        self.member.tell_source_cpu(told)
    }

    /// The highest position of the log that was drawn.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn log_tail_position(&self) -> Result<u64> {
        self.member.log_tail()
    }

    /// No consumer needs the entries of the log up to a position: one that keeps entries
    /// ([`WhenFull::Refuse`]) may forget them. `counted`: what each consumer that counts has. When
    /// the log is full, a commit lets it forget that, and is refused if it is not enough.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn release_to(&self, position: u64, counted: u64) -> Result<()> {
        self.member.release_log_to(position, counted)
    }

    /// As [`Session::release_to`], for an owner's log, of which `last` is the last entry up to
    /// `position`: a member whose last entry it is continues behind it, also if the log has
    /// forgotten it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn release_behind(
        &self,
        last: Option<FollowPosition>,
        (position, counted): (u64, u64),
    ) -> Result<()> {
        if let Some(last) = last
            && self.member.log_floor_position()? <= position
        {
            // Stored first: what the log forgets is told by it.
            self.member.set_released_entry(last)?;
        }
        self.release_to(position, counted)
    }

    /// A consumer of the log, from what was last acknowledged on. One consumer acknowledges; others
    /// may read along. It takes no lock, and no writer waits for it, or is refused for it but by
    /// [`WhenFull::Refuse`].
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    pub fn commit_stream(&self) -> Result<CommitStream<'_>> {
        let reader = self.member.log_reader()?;
        Ok(CommitStream { session: self, reader, pin: None, pinned: 0 })
    }
}

impl CommitStream<'_> {
    /// The next transaction, or `None` if there is none at present. Waits at most 100 us, for a
    /// writer that is in its commit: then it is passed over, and tries again at another position.
    ///
    /// Complexity: a line of the ring and the lines of the transaction.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    #[expect(clippy::should_implement_trait, reason = "it lends: an entry ends before the next")]
    pub fn next(&mut self) -> Result<Option<StreamItem<'_>>> {
        // A consumer that never releases would keep its first pin.
        let reused = self.pin.take().filter(|_| self.pinned < ENTRIES_OF_PIN);
        let (pin, pinned) = match reused {
            Some(pin) => (pin, self.pinned + 1),
            None => (self.session.member.pin()?, 1),
        };
        let before = self.reader.next_position();
        let read = self.session.member.read_log(&mut self.reader, &pin)?;
        // A missing page reads as zeros, which look like an empty log.
        self.session.member.check_not_truncated()?;
        invariant!(self.reader.next_position() >= before, "a reader of the log goes back");
        match read {
            LogRead::Empty => Ok(None),
            LogRead::Lost { entries } => Ok(Some(StreamItem::Lost { transactions: entries })),
            LogRead::Entry(entry) => {
                (self.pin, self.pinned) = (Some(pin), pinned);
                let (writer, number) = (entry.writer()?, entry.position());
                invariant!(number >= before, "entry {number} is read after its successor");
                Ok(Some(StreamItem::Transaction(StreamEntry { writer, number, entry })))
            }
        }
    }

    /// Releases the memory of the current entry before the next call of [`Self::next`]: a consumer
    /// that waits must not hold back the reuse of memory.
    pub fn release(&mut self) {
        self.pin = None;
    }

    /// Everything up to this position was read: it is decided, or has no entry.
    pub const fn passed_position(&self) -> u64 {
        debug_assert!(self.reader.next_position() != 0, "positions begin at 1");
        self.reader.next_position() - 1
    }

    /// The position of the next entry.
    pub(crate) const fn next_position(&self) -> u64 {
        self.reader.next_position()
    }

    /// Acknowledges everything that was read: it is replicated ([`Session::is_replicated`]), and a
    /// log that refuses when it is full may forget it. What was lost never counts as replicated.
    /// Wakes those that wait for it.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn acknowledge(&mut self) -> Result<()> {
        self.session.member.acknowledge_log(&mut self.reader)
    }
}
