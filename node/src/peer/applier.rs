//! What a follower does with the messages of its source: each is applied before it is acknowledged.

use std::sync::MutexGuard;

use nearstate_model::Result;
use nearstate_store::{FollowPosition, FollowState, Follower, Session, SourceClock};
use nearstate_wire::{Message, PositionMessage, ReceivedMessage, Refusal};

use super::convert::{absent_of, identity_of, namespace_of, record_of, records_of};
use super::events::FollowProgress;
use super::group::{PartitionGroup, by_old_number};
use super::kept::KeptLog;

/// The member of a group that follows its owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership<'g> {
    pub(crate) group: &'g PartitionGroup,
    /// The view of the connection.
    pub(crate) view: u64,
}

/// How far the messages of a connection are applied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionProgress {
    /// True until the source switches to its own log. Nothing of the old one is acknowledged.
    pub(super) is_catching_up: bool,
    /// The position at which the copy became full on this connection.
    pub(super) full_since: u64,
    /// The last position message that the driver was not told of.
    pub(super) told: Option<PositionMessage>,
    /// The stamp of the first position message.
    pub(super) first_stamp: Option<u64>,
    /// The last acknowledgement.
    pub(super) acknowledged: u64,
    pub(super) answered: u64,
    /// What the source's clock of expiry tells.
    pub(super) clock: SourceClock,
}

/// What follows from a message.
pub(super) enum AppliedMessage<'m> {
    /// Nothing is to be acknowledged.
    Unacknowledged,
    /// Everything up to this position is in the region.
    UpTo(u64),
    /// The copy is full.
    Joined(u64),
    /// The source has refused.
    Refused(Refusal<'m>),
    /// Only a follower sends such a message.
    Unexpected,
    /// The copy was getting the records of a namespace when an earlier connection ended, and the
    /// source has removed that namespace since, or it had records of a removed one: what the copy
    /// has is of no position.
    Scattered,
}

/// Applies messages.
pub(super) struct Applier<'a, 'f, 's> {
    pub(super) session: &'s Session,
    pub(super) follower: &'a mut Follower<'f>,
    pub(super) progress: &'a mut FollowProgress,
    pub(super) connection: &'a mut ConnectionProgress,
    pub(super) membership: Option<Membership<'a>>,
    /// Of a member: what it keeps, for the turn in which it applies.
    pub(super) kept: Option<MutexGuard<'a, KeptLog>>,
}

impl Applier<'_, '_, '_> {
    /// The higher view that this host has seen, which ends the connection.
    pub(super) fn higher_view(&self) -> Result<Option<u64>> {
        let Some(member) = self.membership else { return Ok(None) };
        let seen = self.session.view_seen()?;
        Ok(Some(seen).filter(|seen| *seen > member.view))
    }

    /// Applies one message.
    pub(super) fn apply<'m>(
        &mut self,
        received: ReceivedMessage<'m>,
    ) -> Result<AppliedMessage<'m>> {
        // It is kept first: applying takes it apart. What is not applied after all ends the
        // connection, and the next one begins what is kept anew.
        if let Some(kept) = &mut self.kept {
            kept.push(&received.message, || received.keep())?;
        }
        let applied = self.apply_content(received.message);
        if applied.is_err()
            && let Some(kept) = &mut self.kept
        {
            kept.clear();
        }
        applied
    }

    fn apply_content<'m>(&mut self, message: Message<'m>) -> Result<AppliedMessage<'m>> {
        match message {
            Message::Namespace(message) => self.follower.namespace(&namespace_of(&message)?)?,
            Message::Removed { number } => self.follower.remove_namespace(number)?,
            Message::Record(message) => {
                self.follower.apply_joining(&record_of(message))?;
                self.progress.records += 1;
                self.progress.is_joining = true;
            }
            Message::Absent(message) => {
                self.follower.apply_joining(&absent_of(&message))?;
                self.progress.is_joining = true;
            }
            Message::Joined { position, check } => {
                self.join(FollowPosition { position, check })?;
                return Ok(AppliedMessage::Joined(position));
            }
            Message::Entry(_) | Message::Switch(_) if self.is_scattered() => {
                return Ok(AppliedMessage::Scattered);
            }
            Message::Entry(message) => {
                let place = FollowPosition { position: message.position, check: message.check };
                let time_ms = message.time_ms;
                self.follower.apply_entry(place, time_ms, &records_of(message))?;
                self.progress.entries += 1;
                self.progress.position = place.position;
                if !self.connection.is_catching_up {
                    return Ok(AppliedMessage::UpTo(place.position));
                }
            }
            Message::Position(message) => return self.take_position(message),
            Message::Switch(message) => {
                let to = identity_of(message.source_id, (message.incarnation, message.origin));
                let place = FollowPosition { position: message.position, check: message.check };
                self.follower.switch(to, place, &by_old_number(&message.numbers))?;
                if let Some(kept) = &mut self.kept {
                    // The numbers of the namespaces were those of the old log.
                    kept.clear();
                    kept.begin_at(place);
                }
                self.connection.is_catching_up = false;
                self.connection.full_since = place.position;
                self.progress.position = place.position;
                return Ok(AppliedMessage::Joined(place.position));
            }
            Message::Refusal(refusal) => return Ok(AppliedMessage::Refused(refusal)),
            Message::Hello(_) | Message::Welcome(_) | Message::Acknowledge(_) => {
                return Ok(AppliedMessage::Unexpected);
            }
        }
        Ok(AppliedMessage::Unacknowledged)
    }

    fn join(&mut self, place: FollowPosition) -> Result<()> {
        self.follower.complete(place)?;
        self.progress.is_joining = false;
        self.progress.position = place.position;
        self.connection.full_since = place.position;
        if let Some(kept) = &mut self.kept {
            kept.begin_at(place);
        }
        Ok(())
    }

    /// A source that has records for a copy that is extended sends them before anything else.
    fn is_scattered(&self) -> bool {
        self.follower.state() == FollowState::Extending && !self.progress.is_joining
    }

    fn take_position<'m>(&mut self, message: PositionMessage) -> Result<AppliedMessage<'m>> {
        // The first message of a source may precede its namespaces.
        if message.position != 0 || self.connection.first_stamp.is_some() {
            self.follower.note_tail(message.position, message.tail)?;
        }
        if message.position != 0 && self.is_scattered() {
            return Ok(AppliedMessage::Scattered);
        }
        if message.clock_ms != 0 {
            self.session.follow_clock(&mut self.connection.clock, message.clock_ms)?;
        }
        self.progress.tail = message.tail;
        self.progress.position = self.progress.position.max(message.position);
        if !self.progress.is_joining
            && self.session.following()?.is_some_and(|known| known.reached < message.position)
        {
            // What is acknowledged is reported, also after a kill, and read.
            self.follower.set_reached(message.position)?;
        }
        self.session.wake_readers()?;
        self.connection.told = Some(message);
        self.connection.first_stamp.get_or_insert(message.stamp);
        if let Some(kept) = &mut self.kept {
            kept.trim(message.floor);
        }
        if let Some(member) = self.membership {
            let is_full = !self.progress.is_joining && self.connection.full_since != 0;
            if is_full && message.replicated >= self.connection.full_since && member.group.settles()
            {
                self.session.settle_receipts()?;
            }
        }
        Ok(AppliedMessage::UpTo(message.position))
    }
}

#[cfg(test)]
mod tests {
    use nearstate_store::{
        CreateOptions, EventKind, FeedItem, FeedStep, Filter, LogIdentity, Metadata, Notice,
        Region, Schema, WhenFull, now_ms,
    };
    use nearstate_wire::{AbsentMessage, NamespaceKind, NamespaceMessage};
    use tempfile::TempDir;

    use super::super::convert::send_item;

    use super::*;

    fn created(folder: &TempDir, name: &str) -> Region {
        let create = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        Region::create(&folder.path().join(name), &create).unwrap()
    }

    /// The messages have the time by which the source has judged expiry.
    #[test]
    fn a_record_that_is_put_over_an_expired_one_is_announced_as_at_its_source() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let regions = ["source", "copy"].map(|name| created(&folder, name));
        let [source, copy] = regions.each_ref().map(|region| region.session().unwrap());
        let ue = source.namespace("ue", &Schema::default()).unwrap();
        source.stream(ue, WhenFull::Refuse).unwrap();
        let (mut feed, _) =
            source.log_feed(LogIdentity::default(), FollowPosition::default()).unwrap();
        let mut progress = FollowProgress::default();
        let mut follower = copy.follow().unwrap();
        follower.begin(source.log_identity().unwrap()).unwrap();
        let mut applier = Applier {
            session: &copy,
            follower: &mut follower,
            progress: &mut progress,
            connection: &mut ConnectionProgress::default(),
            membership: None,
            kept: None,
        };
        let mut run = || {
            while feed
                .step(true, &mut |item: FeedItem<'_>| {
                    let mut apply =
                        |message: &Message<'_>| applier.apply_content(message.clone()).map(drop);
                    send_item(item, || 0, &mut apply)
                })
                .unwrap()
                == FeedStep::More
            {}
        };
        run();
        let metadata = Metadata { tags: &[], expires_ms: 1 };
        source.transact(|txn| txn.put_with_metadata(ue, b"k", b"v", metadata)).unwrap();
        run();
        let mirrored = copy.namespace("ue", &Schema::default()).unwrap();
        let mut watch = copy.watch(mirrored, Filter::Namespace).unwrap();
        source.put(ue, b"k", b"anew").unwrap();
        run();
        let mut kinds = Vec::new();
        while let Some(Notice::Event(event)) = watch.next().unwrap() {
            kinds.push(event.kind);
        }
        assert_eq!(kinds, [EventKind::Expired, EventKind::Created]);
    }

    /// A copy that was being extended when its connection ended takes no entry on the next one, and
    /// acknowledges nothing, unless it is extended again.
    #[test]
    fn a_copy_whose_extension_was_given_up_has_to_join_again() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let region = created(&folder, "copy");
        let (session, mut progress) = (region.session().unwrap(), FollowProgress::default());
        let mut follower = session.follow().unwrap();
        follower.begin(identity_of([7; 16], (1, 0))).unwrap();
        let mut connection = ConnectionProgress::default();
        let mut applier = Applier {
            session: &session,
            follower: &mut follower,
            progress: &mut progress,
            connection: &mut connection,
            membership: None,
            kept: None,
        };
        let namespace = Message::Namespace(NamespaceMessage {
            number: 1,
            kind: NamespaceKind::Value,
            stamp: 0,
            name: "late",
            commits_wait: false,
            tags: Vec::new(),
        });
        let absent = || Message::Absent(AbsentMessage { namespace: 1, version: 1, key: b"key" });
        let told = PositionMessage {
            position: 9,
            check: 0,
            tail: 9,
            stamp: 1,
            replicated: 0,
            floor: 0,
            answered: 0,
            is_leased: false,
            clock_ms: now_ms() + 60_000,
        };
        applier.apply_content(namespace).unwrap();
        applier.apply_content(Message::Joined { position: 5, check: 5 }).unwrap();
        let up_to = applier.apply_content(Message::Position(told)).unwrap();
        assert!(matches!(up_to, AppliedMessage::UpTo(9)), "a full copy");
        assert!(session.clock_shift_ms().unwrap() > 50_000, "it has the clock of its source");
        applier.apply_content(absent()).unwrap();
        assert_eq!(applier.follower.state(), FollowState::Extending);
        assert!(matches!(
            applier.apply_content(Message::Position(told)).unwrap(),
            AppliedMessage::UpTo(9)
        ));
        // Another connection.
        *applier.progress = FollowProgress::default();
        let scattered = applier.apply_content(Message::Position(told)).unwrap();
        assert!(matches!(scattered, AppliedMessage::Scattered));
        let walking = PositionMessage { position: 0, ..told };
        let walked = applier.apply_content(Message::Position(walking)).unwrap();
        assert!(matches!(walked, AppliedMessage::UpTo(0)));
        applier.apply_content(absent()).unwrap();
        assert!(matches!(
            applier.apply_content(Message::Position(told)).unwrap(),
            AppliedMessage::UpTo(9)
        ));
    }
}
