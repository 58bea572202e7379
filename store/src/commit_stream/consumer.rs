//! The commit stream: every writer of a streamed namespace keeps an ordered log of its committed
//! transactions in the region, which a consumer (replication, a durable log) reads without touching
//! the writers.
//!
//! A writer's log is bounded, and one for all namespaces. What happens when its consumer is behind
//! is declared with a namespace: the oldest entries are lost and the consumer learns how many, or,
//! as long as one namespace asks for it, commits are refused with `Behind` until it has caught up.
//!
//! Order: a writer's transactions stand in its log in the order of their commits. Of two writers'
//! transactions that touch the same record the first one's entry is there before the second
//! commits, and the versions of the record say which came first.

use nearstate_memory::Corruption;
use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{RingRead, RingReader, RingStart};
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use crate::commit_stream::entry::{StreamedRecord, decode};
use crate::record::Kind;
use crate::session::{Namespace, Session, wrong_kind};

/// What becomes of a full stream. A session has one stream for all streamed namespaces that it
/// writes to, so this is a property of the stream: it is set when the stream is made, by the
/// namespaces of that transaction, and for all streams that there are by each [`Session::stream`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest transactions are lost, and the consumer learns how many. Writers never wait.
    #[default]
    LoseOldest,
    /// Commits are refused with `Behind` until the consumer has acknowledged some.
    Refuse,
}

/// One step of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamItem<'c> {
    /// A committed transaction.
    Transaction(StreamEntry<'c>),
    /// This number of the writer's transactions is lost: read the affected records again.
    Lost {
        /// Number of the writer's session.
        writer: u32,
        /// How many.
        transactions: u64,
    },
}

/// A committed transaction: its records of streamed namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEntry<'c> {
    /// Number of the writer's session. One that attaches later may have the same number.
    pub writer: u32,
    /// Number of the transaction in the writer's stream: one more than that of the one before.
    pub number: u64,
    bytes: &'c [u8],
}

impl<'c> StreamEntry<'c> {
    /// The records, each with what became of it. Ends early at bytes that are damaged.
    pub fn records(&self) -> impl Iterator<Item = Result<StreamedRecord<'c>, Corruption>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || match decode(&mut rest) {
            Ok(record) => record.map(Ok),
            Err(damage) => {
                rest = &[];
                Some(Err(damage))
            }
        })
    }
}

/// A consumer of all writers' streams.
#[derive(Debug)]
pub struct CommitStream<'s> {
    session: &'s Session,
    /// The reader of each session's stream, if it exists.
    readers: Vec<Option<RingReader>>,
    next: usize,
    bytes: Vec<u8>,
}

impl Session {
    /// Streams the commits of a namespace from now on, with this policy; the streams of sessions
    /// that wrote before get it as well.
    ///
    /// Each session that writes takes [`nearstate_model::limits::STREAM_RING_BYTES`] of the heap,
    /// permanently; a later session with the same number continues the stream. A transaction of
    /// more than a quarter of that is refused with `TransactionTooLarge`. Adds to counters are not
    /// streamed.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`, `Forked`.
    pub fn stream(&self, namespace: Namespace, when_full: WhenFull) -> Result<()> {
        if namespace.kind() == Kind::Counters {
            return Err(wrong_kind(namespace.kind(), "stream", ""));
        }
        let is_lossless = when_full == WhenFull::Refuse;
        self.member.update_namespace_flags(namespace.index, |word| {
            let word = word | namespace_flags::STREAMED;
            if is_lossless {
                word | namespace_flags::LOSSLESS
            } else {
                word & !namespace_flags::LOSSLESS
            }
        })?;
        // Later commits follow the new policy; earlier ones are already in their rings.
        self.member.drain_writers(self.table(namespace)?)?;
        // A writer's stream is one for all namespaces: it refuses as long as one of them wants it.
        if is_lossless { self.set_streams_lossless(true) } else { self.relax_streams() }
    }

    /// Streams refuse no commits any more, unless a namespace wants it.
    pub(crate) fn relax_streams(&self) -> Result<()> {
        if self.is_any_lossless()? { Ok(()) } else { self.set_streams_lossless(false) }
    }

    fn set_streams_lossless(&self, is_lossless: bool) -> Result<()> {
        for index in 0..self.member.member_slots()? {
            if let Some(ring_at) = self.member.stream_ring(index)? {
                self.member.set_ring_lossless(ring_at, is_lossless)?;
            }
        }
        Ok(())
    }

    fn is_any_lossless(&self) -> Result<bool> {
        for entry in self.member.namespaces()? {
            if self.member.namespace_flags(entry.index)? & namespace_flags::LOSSLESS != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A consumer of all streams, from what was last acknowledged on. One consumer acknowledges;
    /// others may read along. It takes no lock, and no writer waits for it, or is refused for it
    /// but by [`WhenFull::Refuse`].
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    pub fn commit_stream(&self) -> Result<CommitStream<'_>> {
        self.member.check_usable()?;
        Ok(CommitStream { session: self, readers: Vec::new(), next: 0, bytes: Vec::new() })
    }
}

impl CommitStream<'_> {
    /// The next transaction of any writer, or `None` if there is none at present. Never waits;
    /// looks at each writer in turn, so nothing says which of two writers' transactions came first
    /// but the versions of their records.
    ///
    /// Complexity: linear in the sessions that there ever were at once, if there is nothing new.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    #[expect(clippy::should_implement_trait, reason = "it lends: an entry ends before the next")]
    pub fn next(&mut self) -> Result<Option<StreamItem<'_>>> {
        let sessions = self.session.member.member_slots()? as usize;
        self.readers.resize_with(sessions, || None);
        invariant!(self.readers.len() == sessions, "{sessions} sessions have a reader slot each");
        let mut found = None;
        for _ in 0..sessions {
            // Each in its turn, also after one that is damaged.
            let index = self.next % sessions;
            self.next = index + 1;
            let slot = guaranteed(self.readers.get_mut(index), "each session has a reader slot");
            let writer = guaranteed(u32::try_from(index).ok(), "sessions count in 32 bits");
            if slot.is_none()
                && let Some(ring_at) = self.session.member.stream_ring(writer)?
            {
                invariant!(ring_at != 0, "the stream of session {writer} has a ring");
                *slot = Some(self.session.member.ring_reader(ring_at, RingStart::Acked)?);
            }
            let Some(reader) = slot else { continue };
            match reader.next(&mut self.bytes)? {
                RingRead::Empty => {}
                RingRead::Entry { number } => found = Some((writer, Ok(number))),
                RingRead::Lost { entries } => found = Some((writer, Err(entries))),
            }
            if found.is_some() {
                break;
            }
        }
        let Some((writer, what)) = found else { return Ok(None) };
        Ok(Some(match what {
            Ok(number) => {
                StreamItem::Transaction(StreamEntry { writer, number, bytes: &self.bytes })
            }
            Err(transactions) => StreamItem::Lost { writer, transactions },
        }))
    }

    /// Acknowledges everything that was read: a stream that refuses when it is full may overwrite
    /// it.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn acknowledge(&self) -> Result<()> {
        self.readers.iter().flatten().try_for_each(RingReader::ack)
    }
}
