//! Which namespaces a follower is told of, and when.
//!
//! A removal draws no position, so a look at the catalog may see it long before the entries of the
//! namespace are sent. They come first: a follower that discarded the records earlier would lack
//! what these entries move to other namespaces, and might become the owner like that. Only a
//! namespace that was logged later than it was created does not wait: its records are walked, and
//! the walk must begin before any entry behind the declaration is sent. A follower that discards
//! records for it is no complete copy until the walk has ended.

use nearstate_memory::FollowPosition;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::{OneOrMany, Result, invariant};

use super::items::{announce_one, of_entry, send_record};
use super::{FeedItem, FeedPhase, FeedSink, Progress};
use crate::log::consumer::StreamEntry;
use crate::log::entry::{Absence, StreamedRecord};
use crate::session::Namespace;

/// A namespace that the follower knows.
#[derive(Clone, Debug)]
pub(super) struct Announced {
    name: String,
    /// The part of the flags that changes with the tags, as the follower knows them.
    schema: u64,
    /// The part that it does not know yet, and the end of the log when it was seen: the entries up
    /// to there may contradict the new tags.
    pending: Option<(u64, u64)>,
    /// It was removed, and the entries up to here may be its own.
    removed_at: Option<u64>,
}

/// The lowest position at which something is to be announced that waits for the entries before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delay(Option<u64>);

impl Delay {
    fn add(&mut self, position: u64) {
        self.0 = Some(self.0.map_or(position, |known| known.min(position)));
    }
}

impl Progress<'_> {
    /// Sends the records of an entry that the follower needs, as it needs them: a follower that is
    /// full gets them in one item. Returns the namespaces that exist and that it does not know. If
    /// there are some and `needs_all`, nothing was sent.
    pub(super) fn send_records(
        &self,
        entry: &StreamEntry<'_>,
        place: FollowPosition,
        needs_all: bool,
        sink: &mut dyn FeedSink,
    ) -> Result<Vec<u32>> {
        let time_ms = entry.time_ms()?;
        let unknown = if self.phase == FeedPhase::Full {
            let (records, unknown) = self.records_of(entry, Absence::At(time_ms), of_entry)?;
            if !needs_all || unknown.is_empty() {
                sink.send(FeedItem::Entry { place, time_ms, records })?;
            }
            unknown
        } else {
            let (records, unknown) = self.records_of(entry, Absence::All, |record| record)?;
            if !needs_all || unknown.is_empty() {
                records.into_iter().try_for_each(|record| send_record(record, sink))?;
            }
            unknown
        };
        Ok(unknown)
    }

    /// The records of an entry that the follower needs, and the namespaces that exist and that it
    /// does not know. Not among the records are those of namespaces that were created and removed
    /// between two looks.
    fn records_of<'e, T>(
        &self,
        entry: &StreamEntry<'e>,
        absence: Absence,
        as_needed: impl Fn(StreamedRecord<'e>) -> T,
    ) -> Result<(OneOrMany<T>, Vec<u32>)> {
        let (mut records, mut unknown) = (OneOrMany::NONE, Vec::new());
        for record in entry.records_with(Ok(absence)) {
            let record = record?;
            if self.known.contains_key(&record.namespace) {
                records.push(as_needed(record));
            } else if self.session.has_namespace_number(record.namespace) {
                unknown.push(record.namespace);
            } else if entry.number <= self.older_until {
                // The follower knows whether it has it.
                records.push(as_needed(record));
            }
        }
        Ok((records, unknown))
    }

    /// Sends what waited for the entries up to `sent`.
    pub(super) fn announce_due(&mut self, sent: u64, sink: &mut dyn FeedSink) -> Result<()> {
        if self.delay.0.is_some_and(|position| position <= sent) {
            self.announce(sent, &[], sink)?;
        }
        Ok(())
    }

    /// Sends the namespaces that are logged now and were not before, those whose tags have changed,
    /// and those that were removed. Everything up to `sent` was sent. The next entry has records of
    /// the namespaces `needed`, so that all entries of removed ones with their names were sent.
    pub(super) fn announce(
        &mut self,
        sent: u64,
        needed: &[u32],
        sink: &mut dyn FeedSink,
    ) -> Result<()> {
        let session = self.session;
        // Before the look: R2.
        let declarations = session.member.log_declarations()?;
        let all = session.namespaces()?;
        self.delay = Delay::default();
        self.announce_removed(&all, (sent, needed), sink)?;
        // At the first look of a feed that continues, the follower has all that was declared before
        // its position.
        let skips_known = self.is_first_look && self.phase == FeedPhase::Full;
        if skips_known {
            self.older_until = session.member.log_tail()?;
        }
        let mut is_settled = true;
        for (name, namespace) in all {
            let number = namespace.number();
            if !session.has_namespace_number(number) {
                // It was removed while the list was read.
                continue;
            }
            let flags = session.member.namespace_flags(number)?;
            if flags & namespace_flags::LOGGED == 0 {
                continue;
            }
            let Some(since) = session.member.logged_since(number)? else {
                // N3 follows, here or in a process that declares it again.
                is_settled = false;
                continue;
            };
            let schema = schema_of(flags);
            match self.known.get_mut(&number) {
                None => {
                    let is_born_logged = session.member.is_born_logged(number)?;
                    if !is_born_logged {
                        self.announce_predecessor(&name, sink)?;
                    } else if !needed.contains(&number)
                        && let Some(position) = self.waits_for(&name, since)
                        && position > sent
                    {
                        self.delay.add(position);
                        continue;
                    }
                    let is_known = skips_known && since <= self.last.position;
                    announce_one(session, (&name, namespace), is_known, sink)?;
                    let known = Announced { name, schema, pending: None, removed_at: None };
                    let before = self.known.insert(number, known);
                    invariant!(before.is_none(), "namespace {number} is announced twice");
                    let is_in_log = self.phase == FeedPhase::Full && is_born_logged;
                    if !is_in_log && !is_known {
                        // Its records from before the declaration are not in the log.
                        self.phase = FeedPhase::Walking;
                        self.walk.push_back((namespace, session.buckets(namespace)?));
                    }
                }
                Some(known) if known.schema == schema => {}
                Some(known) => match known.pending {
                    Some((seen, tail)) if seen == schema && sent >= tail => {
                        (known.schema, known.pending) = (schema, None);
                        announce_one(session, (&name, namespace), true, sink)?;
                    }
                    Some((seen, _)) if seen == schema => {}
                    Some(_) | None => {
                        known.pending = Some((schema, session.member.log_tail()?));
                    }
                },
            }
        }
        self.declarations = is_settled.then_some(declarations);
        self.is_first_look = false;
        Ok(())
    }

    /// Sends the removals of namespaces whose entries were all sent.
    fn announce_removed(
        &mut self,
        all: &[(String, Namespace)],
        (sent, needed): (u64, &[u32]),
        sink: &mut dyn FeedSink,
    ) -> Result<()> {
        let session = self.session;
        let is_live = |number: u32| session.has_namespace_number(number);
        let mut tail = None;
        for (number, known) in &mut self.known {
            if known.removed_at.is_none() && !is_live(*number) {
                // The removal has waited for all writers of the namespace, and is over.
                let tail = *tail.get_or_insert(session.member.log_tail()?);
                known.removed_at = Some(tail);
            }
        }
        self.walk.retain(|(namespace, _)| is_live(namespace.number()));
        // Of one name, one namespace exists after the other.
        let successors: Vec<&str> = all
            .iter()
            .filter(|(_, one)| needed.contains(&one.number()))
            .map(|(name, _)| name.as_str())
            .collect();
        let mut due = Vec::new();
        for (number, known) in &self.known {
            let Some(position) = known.removed_at else { continue };
            if position <= sent || successors.contains(&known.name.as_str()) {
                due.push(*number);
            } else {
                self.delay.add(position);
            }
        }
        for number in due {
            let removed = self.known.remove(&number);
            invariant!(removed.is_some(), "the removal of an unknown namespace is sent");
            sink.send(FeedItem::Removed { number })?;
        }
        Ok(())
    }

    /// Sends the removal of an older namespace of this name. One is behind the other.
    fn announce_predecessor(&mut self, name: &str, sink: &mut dyn FeedSink) -> Result<()> {
        let is_older = |known: &Announced| known.removed_at.is_some() && known.name == name;
        let older = self.known.iter().find(|(_, known)| is_older(known));
        if let Some(number) = older.map(|(number, _)| *number) {
            self.known.remove(&number);
            sink.send(FeedItem::Removed { number })?;
        }
        Ok(())
    }

    /// The position up to which there may be entries of an older namespace of this name, which the
    /// follower knows from this connection or from an earlier one.
    fn waits_for(&self, name: &str, since: u64) -> Option<u64> {
        let mut known = self.known.values();
        let older = known.find(|known| known.removed_at.is_some() && known.name == name);
        let is_new = since > self.last.position;
        older.and_then(|known| known.removed_at).or(is_new.then_some(self.older_until))
    }
}

/// What of a namespace's flags changes with its tags and its policy.
const fn schema_of(flags: u64) -> u64 {
    flags & !(namespace_flags::GENERATION - 1) | flags & namespace_flags::REPLICATED
}
