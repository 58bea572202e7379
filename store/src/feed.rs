//! What a source sends to a follower: first all records and meanwhile the log, then the log
//! (`docs/decisions/025-follow.md`).
//!
//! ```text
//! source, one thread                              writers
//! J1  walk: read some records, send them          W1  position of a commit: drawn under its locks
//! J2  entries of the log, each record whole       W2  decide
//! J3  walk ended: until := tail                   W3  publish
//! J4  after J2 of all entries up to until: joined
//! ```
//!
//! A record that J1 has read before W3 of a later commit is sent before that commit's entry,
//! because one thread does both and an entry is read after W2. What J1 has read after W3 has a
//! version, by which the follower recognizes older entries. All that J1 has read was drawn before
//! J3, so at J4 the follower has the records of exactly that position.

mod announce;
mod items;

use std::collections::{BTreeMap, VecDeque};

use nearstate_memory::{FollowPosition, LogIdentity, LoggedRecord, OldRecord, ReplicationPolicy};
use nearstate_model::{Error, OneOrMany, Result, invariant};

use crate::feed::announce::{Announced, Delay};
use crate::feed::items::send_record;
use crate::index::schema::TagSchema;
use crate::log::consumer::{CommitStream, StreamItem};
use crate::log::entry::{Absence, StreamedChange, streamed};
use crate::record::Kind;
use crate::scan::Buckets;
use crate::session::{Namespace, Session};

/// Buckets of one part of the walk: some hundred records.
const BUCKETS_AT_ONCE: usize = 64;
/// Entries of one part, so that acknowledgements are read in between.
const ENTRIES_AT_ONCE: usize = 256;
/// Acknowledged entries whose check values are remembered, at most: those of a ring.
const SENT_MAX: usize = 1 << 20;

/// The check value of a position at which the feed has read no entry.
const UNKNOWN: u64 = 0;

/// A record of a change that a follower applies.
#[derive(Clone, Debug)]
pub struct FollowedRecord<'a> {
    /// Its namespace at the source.
    pub namespace: u32,
    /// Its key.
    pub key: &'a [u8],
    /// Its version since the change; of a deleted record, its last one.
    pub version: u64,
    /// The version that the change replaces, 0 for none. `None`: any lower one.
    pub base_version: Option<u64>,
    /// The change.
    pub change: StreamedChange<'a>,
}

/// A namespace of the source.
#[derive(Clone, Debug)]
pub struct FollowedNamespace<'a> {
    /// Its number at the source.
    pub number: u32,
    /// Its name.
    pub name: &'a str,
    /// The kind of its records.
    pub kind: Kind,
    /// No version that the source has given is higher, of records that do not exist and of which
    /// no entry tells the follower: the highest stamp of its index, or a lower one if the follower
    /// was told that one before.
    pub stamp: u64,
    /// How its commits are replicated.
    pub policy: ReplicationPolicy,
    /// Its tags.
    pub tags: Vec<TagSchema>,
}

/// How a feed begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStart {
    /// Behind the follower's position.
    Continues,
    /// With all records: the follower discards what it has.
    Joins,
}

/// What a follower gets.
#[derive(Clone, Debug)]
pub enum FeedItem<'a> {
    /// A namespace whose records follow.
    Namespace(FollowedNamespace<'a>),
    /// A namespace was removed. Everything that the log has of it was sent before.
    Removed {
        /// Its number.
        number: u32,
    },
    /// A record while the follower joins. [`FollowedRecord::base_version`] is `None`, or the
    /// version itself if it continues the last item.
    Record(FollowedRecord<'a>),
    /// The follower has everything up to this entry.
    Joined(FollowPosition),
    /// A transaction.
    Entry {
        /// Its position and check value.
        place: FollowPosition,
        /// The time by which it judged expiry, in milliseconds since 1970.
        time_ms: u64,
        /// Its records.
        records: OneOrMany<FollowedRecord<'a>>,
    },
}

/// What a part of a feed has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStep {
    /// There may be more.
    More,
    /// Nothing is left to send. The follower has everything up to this position.
    Idle {
        /// A position at or behind the last entry.
        position: u64,
    },
    /// The log has lost entries that were not sent: the follower has to join again.
    Lost,
}

/// Sends the log of a region.
#[derive(Debug)]
pub struct LogFeed<'s> {
    stream: CommitStream<'s>,
    progress: Progress<'s>,
    /// Entries that were sent, the oldest first.
    sent: VecDeque<FollowPosition>,
    /// True while `sent` has each entry that was not acknowledged.
    is_exact: bool,
    acknowledged: Option<AcknowledgedPlace>,
}

/// How far a follower is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FeedPhase {
    /// J1 and J2.
    Walking,
    /// J3: it is full when it has the entries up to this position.
    Joining { until: u64 },
    /// It has all records: entries are sent as differences.
    Full,
}

/// Takes what a feed sends.
pub trait FeedSink {
    /// Takes an item.
    ///
    /// # Errors
    /// Those of the sink. They end the step.
    fn send(&mut self, item: FeedItem<'_>) -> Result<()>;

    /// True if the step should end, although there is more.
    fn is_full(&self) -> bool {
        false
    }
}

impl<F: FnMut(FeedItem<'_>) -> Result<()>> FeedSink for F {
    fn send(&mut self, item: FeedItem<'_>) -> Result<()> {
        self(item)
    }
}

/// What a follower has acknowledged: the last entry, and the position up to which there is no other
/// one, so that it has everything up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcknowledgedPlace {
    /// The last entry.
    pub entry: FollowPosition,
    /// Not below that of the entry.
    pub position: u64,
}

/// What the follower of a feed has, and what it gets next.
#[derive(Debug)]
struct Progress<'s> {
    session: &'s Session,
    /// The namespaces that the follower knows.
    known: BTreeMap<u32, Announced>,
    /// The namespaces that are left to walk.
    walk: VecDeque<(Namespace, Buckets)>,
    phase: FeedPhase,
    /// The last entry.
    last: FollowPosition,
    /// The number of declarations at the last look.
    declarations: Option<u64>,
    is_first_look: bool,
    /// The end of the log at the first look of a feed that continues: up to there it has entries of
    /// namespaces that the follower knows from an earlier connection, and that were removed since.
    older_until: u64,
    /// What is announced when the entries before it were sent.
    delay: Delay,
}

impl Session {
    /// A feed for a follower that has applied `applied` of the log `of`.
    ///
    /// # Errors
    /// `BadArgument`: the log has never given that position, so the region's file was restored from
    /// a copy; `Damaged`, `Forked`.
    pub fn log_feed(
        &self,
        of: LogIdentity,
        applied: FollowPosition,
    ) -> Result<(LogFeed<'_>, FeedStart)> {
        self.log_feed_behind(of, applied, None)
    }

    /// As [`Session::log_feed`], for a follower that has acknowledged `known` of this log on
    /// another connection.
    ///
    /// # Errors
    /// As [`Session::log_feed`].
    pub fn log_feed_behind(
        &self,
        of: LogIdentity,
        applied: FollowPosition,
        known: Option<AcknowledgedPlace>,
    ) -> Result<(LogFeed<'_>, FeedStart)> {
        let behind = if of == self.log_identity()? && applied.position != 0 {
            self.continues_behind(applied, known)?
        } else {
            None
        };
        let (start, from) = match behind {
            Some(from) => (FeedStart::Continues, from),
            None => (FeedStart::Joins, self.member.log_tail()?),
        };
        let (phase, last) = match start {
            FeedStart::Continues => (FeedPhase::Full, applied),
            // The follower has it when it has all records.
            FeedStart::Joins => (FeedPhase::Walking, self.last_entry()?),
        };
        let progress = Progress {
            session: self,
            known: BTreeMap::new(),
            walk: VecDeque::new(),
            phase,
            last,
            declarations: None,
            is_first_look: true,
            older_until: 0,
            delay: Delay::default(),
        };
        let stream = self.commit_stream_behind(from)?;
        invariant!(stream.passed_position() == from, "a feed begins behind its position");
        let acknowledged = (start == FeedStart::Continues)
            .then_some(AcknowledgedPlace { entry: applied, position: from });
        let sent = VecDeque::new();
        Ok((LogFeed { stream, progress, sent, is_exact: true, acknowledged }, start))
    }

    /// The position behind which the log continues for a follower that has applied `applied`.
    /// `None`: it has forgotten what the follower lacks.
    fn continues_behind(
        &self,
        applied: FollowPosition,
        known: Option<AcknowledgedPlace>,
    ) -> Result<Option<u64>> {
        let fork = || {
            Err(Error::BadArgument {
                detail: format!(
                    "the follower has applied position {} of this log, and the log has another \
                     entry there or none: the source's region was restored from a copy, or \
                     damaged. Give the follower a new region",
                    applied.position
                ),
            })
        };
        if self.member.log_tail()? < applied.position {
            return fork();
        }
        // The floor first: what the log forgets afterwards is noticed as lost, while an entry that
        // was acknowledged in between could be passed over.
        let floor = self.member.log_floor_position()?;
        let shipped = self.member.shipped_position()?;
        if let Some(known) = known
            && known.entry == applied
            && floor <= known.position + 1
        {
            // The log may have forgotten the entry itself, which the slowest follower has.
            return Ok(Some(known.position));
        }
        if shipped == applied {
            let passed = if self.member.log_identity()?.origin == 0 {
                // It is the last entry that any follower has acknowledged. What the log has
                // forgotten behind it are positions without entries, which were acknowledged, or
                // what was lost.
                applied.position.max(self.member.log_acknowledged()?)
            } else {
                // It is the last entry up to which the owner's log was released. Others may have
                // acknowledged more.
                applied.position
            };
            let is_kept = floor <= passed + 1;
            return Ok(is_kept.then(|| applied.position.max(floor.saturating_sub(1))));
        }
        if applied.check == UNKNOWN {
            // No entry is at the position where a successor's log begins.
            let begins = self.member.takeover()?.map(|takeover| takeover.position);
            let is_kept = begins == Some(applied.position) && floor <= applied.position + 1;
            return Ok(is_kept.then_some(applied.position));
        }
        let mut stream = self.commit_stream_behind(applied.position - 1)?;
        match stream.next()? {
            Some(StreamItem::Transaction(entry)) if entry.number == applied.position => {
                if entry.check_value()? == applied.check {
                    // Not behind the floor: others may have entries below it that this one lacks,
                    // and that are not forgotten yet, or are lost to it.
                    return Ok(Some(applied.position));
                }
                fork()
            }
            Some(StreamItem::Transaction(_)) | None => fork(),
            Some(StreamItem::Lost { .. }) => Ok(None),
        }
    }
}

impl LogFeed<'_> {
    /// True until the follower has all records.
    pub fn is_joining(&self) -> bool {
        self.progress.phase != FeedPhase::Full
    }

    /// Sends a part: namespaces that are new since the last call if `looks` (a walk over the
    /// catalog), some entries, and some records of the walk.
    ///
    /// # Errors
    /// `Damaged`, `Forked`; those of the sink.
    pub fn step(&mut self, looks: bool, sink: &mut dyn FeedSink) -> Result<FeedStep> {
        if looks || self.progress.declarations.is_none() {
            let sent = self.sent_position();
            self.progress.announce(sent, &[], sink)?;
        }
        // Entries first: the log forgets them, and the records of the walk stay.
        let mut step = FeedStep::More;
        for _ in 0..ENTRIES_AT_ONCE {
            self.progress.announce_due(self.sent_position(), sink)?;
            self.end_joining(sink)?;
            step = self.send_entry(sink)?;
            if step != FeedStep::More || sink.is_full() {
                break;
            }
        }
        // The caller may wait for long: for a follower that takes nothing.
        self.stream.release();
        self.progress.announce_due(self.sent_position(), sink)?;
        match step {
            FeedStep::Lost => return Ok(step),
            // The stream has passed positions without entries.
            FeedStep::Idle { .. } => step = FeedStep::Idle { position: self.sent_position() },
            FeedStep::More => {}
        }
        let has_more = self.progress.walk_some(sink)?;
        if self.progress.phase == FeedPhase::Walking && !has_more {
            let until = self.progress.session.member.log_tail()?;
            invariant!(self.progress.walk.is_empty(), "a walk ends before its last namespace");
            self.progress.phase = FeedPhase::Joining { until };
        }
        self.end_joining(sink)?;
        Ok(if self.is_joining() { FeedStep::More } else { step })
    }

    /// The position behind which the feed continues: it needs no earlier entry.
    pub const fn sent_position(&self) -> u64 {
        debug_assert!(self.stream.next_position() != 0, "positions begin at 1");
        self.stream.next_position() - 1
    }

    /// J4.
    fn end_joining(&mut self, sink: &mut dyn FeedSink) -> Result<()> {
        if let FeedPhase::Joining { until } = self.progress.phase
            && self.stream.next_position() > until
        {
            invariant!(self.progress.walk.is_empty(), "a copy has all records of a walk");
            self.progress.phase = FeedPhase::Full;
            if self.progress.last.position == 0 {
                // The log has no entry, or has forgotten the last one.
                self.progress.last = FollowPosition { position: until, check: UNKNOWN };
            }
            self.sent.push_back(self.progress.last);
            sink.send(FeedItem::Joined(self.progress.last))?;
        }
        Ok(())
    }

    fn send_entry(&mut self, sink: &mut dyn FeedSink) -> Result<FeedStep> {
        let progress = &mut self.progress;
        let position = self.stream.next_position();
        let entry = match self.stream.next()? {
            None => return Ok(FeedStep::Idle { position: position - 1 }),
            Some(StreamItem::Lost { .. }) => return Ok(FeedStep::Lost),
            Some(StreamItem::Transaction(entry)) => entry,
        };
        let place = FollowPosition { position: entry.number, check: entry.check_value()? };
        if progress.declarations != Some(progress.session.member.log_declarations()?) {
            // It is sent after the look.
            progress.announce(position - 1, &[], sink)?;
        }
        let unknown = progress.send_records(&entry, place, true, sink)?;
        if !unknown.is_empty() {
            // They were not live yet at the last look, or waited for the entries before this one.
            progress.announce(position - 1, &unknown, sink)?;
            progress.send_records(&entry, place, false, sink)?;
        }
        // A follower applies entries in their order: one that is older would be lost to it.
        invariant!(place.position >= position, "the log goes back to {}", place.position);
        progress.last = place;
        if self.sent.len() < SENT_MAX {
            debug_assert!(
                self.sent.back().is_none_or(|last| last.position <= place.position),
                "entries are sent in their order"
            );
            self.sent.push_back(place);
        } else {
            self.is_exact = false;
        }
        Ok(FeedStep::More)
    }

    /// What the follower has acknowledged. `None`: it has not all records yet.
    pub const fn acknowledged_place(&self) -> Option<AcknowledgedPlace> {
        self.acknowledged
    }

    /// The position of the last entry that was sent, or of the end of the walk.
    pub const fn last_position(&self) -> u64 {
        self.progress.last.position
    }

    /// The follower has applied everything up to a position: it is replicated.
    ///
    /// # Errors
    /// `BadArgument`: it was not sent; `Damaged`, `Forked`.
    pub fn acknowledged(&mut self, position: u64) -> Result<()> {
        let last = self.take_acknowledged(position)?;
        if self.is_joining() {
            return Ok(());
        }
        if let Some(place) = last {
            self.progress.session.member.set_shipped_position(place)?;
        }
        self.progress.session.acknowledge_to(position)
    }

    /// The follower has applied everything up to a position. What that means for the group, its
    /// driver says.
    ///
    /// # Errors
    /// `BadArgument`: it was not sent; `Damaged`, `Forked`.
    pub fn note_acknowledged(&mut self, position: u64) -> Result<()> {
        self.take_acknowledged(position).map(drop)
    }

    /// Returns the last entry that was not acknowledged before.
    fn take_acknowledged(&mut self, position: u64) -> Result<Option<FollowPosition>> {
        if position > self.sent_position() {
            let detail =
                format!("the follower acknowledges position {position}, which was not sent");
            return Err(Error::BadArgument { detail });
        }
        if self.is_joining() {
            return Ok(None);
        }
        let mut last = None;
        while let Some(place) = self.sent.front().filter(|place| place.position <= position) {
            last = Some(*place);
            self.sent.pop_front();
        }
        let entry = last.or(self.acknowledged.map(|known| known.entry));
        // An answer to a message of a walk, or to the first one, acknowledges nothing.
        let before = self.acknowledged.map_or(0, |known| known.position);
        self.acknowledged = entry.filter(|_| self.is_exact).map(|entry| AcknowledgedPlace {
            entry,
            position: position.max(before).max(entry.position),
        });
        Ok(last)
    }
}

impl Progress<'_> {
    /// Walks a part of the first namespace that is left. False if none is.
    fn walk_some(&mut self, sink: &mut dyn FeedSink) -> Result<bool> {
        let session = self.session;
        let Some((namespace, buckets)) = self.walk.front_mut() else { return Ok(false) };
        let namespace = *namespace;
        let number = namespace.number();
        let mut has_more = true;
        for _ in 0..BUCKETS_AT_ONCE {
            let walked = session.walk_stored(namespace, buckets, 1, |view| {
                let new = view.region_cell();
                let (old, base_version, is_expiry) = (OldRecord::NONE, 0, false);
                let record = LoggedRecord { namespace: number, base_version, is_expiry, old, new };
                send_record(streamed(&record, Absence::All)?, sink)
            });
            has_more = match walked {
                // It was removed meanwhile, and has no records.
                Err(_) if !session.has_namespace(namespace) => false,
                other => other?,
            };
            // At least one bucket: a writer that is faster than the connection delays no walk.
            if !has_more || sink.is_full() {
                break;
            }
        }
        if !has_more {
            let walked = self.walk.pop_front();
            invariant!(
                walked.is_some_and(|(walked, _)| walked == namespace),
                "a walk ends with another namespace"
            );
        }
        Ok(has_more || !self.walk.is_empty())
    }
}
