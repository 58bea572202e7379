//! The notifications of a transaction: events for the watches of a namespace, and its entry in the
//! commit stream of this writer. Both are encoded here, before the decision. The commit appends
//! them.

use std::collections::BTreeSet;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{Corruption, TxnEvent};
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{STREAM_RING_BYTES, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::commit_stream::entry::{self, BLOCKS_MAX_PATCHED, StreamedChange};
use crate::record::Form;
use crate::record::fields::is_block_name;
use crate::record::meta::{Meta, Tags, is_past, is_past_cell, split};
use crate::session::Session;
use crate::session::buffers::{BufferSpan, Buffers, TxnEntry, Write};
use crate::txn::write_set::{Stored, WriteSet};
use crate::watch::event::{Change, EventKind, TagValue, VERSION_AT};

/// A writer that sees the flag `WATCHED` finds the ring, which is made first.
const NO_RING: Corruption = Corruption("a watched namespace has no ring of events");

impl<'s> WriteSet<'s> {
    /// Encodes the events for watches, and the entry for the commit stream.
    ///
    /// # Errors
    /// `Conflict`, `Full` (a ring is to be made), `Damaged`.
    #[inline]
    pub(crate) fn notify_all(&mut self) -> Result<()> {
        let flags = self.buffers.entries.iter().fold(0, |all, entry| all | entry.flags);
        if flags & (namespace_flags::WATCHED | namespace_flags::STREAMED) == 0 {
            return Ok(());
        }
        self.notify_watches()?;
        if flags & namespace_flags::STREAMED != 0 {
            self.append_to_stream(flags & namespace_flags::LOSSLESS != 0)?;
        }
        // The rings are locked in the order of their offsets; events of one keep their order.
        let Buffers { entries, plan, .. } = &mut *self.buffers;
        let events = &mut plan.events;
        events.all.sort_by_key(|event| event.ring_at);
        for event in &events.all {
            let (from, to) = event.span;
            invariant!(from < to && to <= events.bytes.len(), "event {from}..{to} is encoded");
            invariant!(event.ring_at != 0, "event {from}..{to} has a ring");
        }
        for (at, index) in &events.versions {
            invariant!(at + 8 <= events.bytes.len(), "version at {at} lies in an event");
            invariant!(*index < entries.len(), "event of entry {index} of {}", entries.len());
        }
        Ok(())
    }

    fn notify_watches(&mut self) -> Result<()> {
        for index in 0..self.buffers.entries.len() {
            let entry = self.entry_at(index);
            if entry.write.is_none() || entry.flags & namespace_flags::WATCHED == 0 {
                continue;
            }
            let table = self.session.member.table(entry.table)?;
            let ring_at = self.session.member.watch_ring(table)?.ok_or(NO_RING)?;
            let old = self.read_again(index)?;
            let form = old.map(|(cell, _)| Form::of_record(table.kind(), &cell));
            self.add_events(index, ring_at, old, form.unwrap_or_default())?;
        }
        Ok(())
    }

    /// The events of one record, which had this form.
    fn add_events(&mut self, index: usize, ring_at: u64, old: Stored<'s>, had: Form) -> Result<()> {
        let buffers = &mut *self.buffers;
        let entry = guaranteed(buffers.entries.get(index), "an event is one of an entry");
        let (version, meta) = match old {
            Some((cell, bytes)) => (Some(cell.version()), split(cell, bytes)?.1),
            None => (None, &[][..]),
        };
        let before: Vec<TagValue<'_>> = tags_of(meta).collect();
        let announced = &mut buffers.plan.events;
        let mut add = |change: &Change<'_>, is_new: bool| {
            let from = announced.bytes.len();
            change.encode(&mut announced.bytes);
            let span = (from, announced.bytes.len());
            invariant!(span.0 + VERSION_AT + 8 <= span.1, "event {span:?} has a version");
            announced.all.push(TxnEvent { ring_at, span, is_lossless: false });
            if is_new {
                announced.versions.push((from + VERSION_AT, index));
            }
        };
        let key = entry.key.of(&buffers.bytes);
        let ended = Change {
            kind: EventKind::Expired,
            form: had,
            version: version.unwrap_or(0),
            key,
            blocks: &[],
            is_cut: false,
            before: &before,
            after: &[],
        };
        let is_past = is_past(meta)?;
        let is_there = version.is_some() && !is_past;
        if version.is_some() && is_past {
            // The first write that deletes or replaces it reports the expiry.
            add(&ended, false);
        }
        match &entry.write {
            Write::None => invariant!("a record that was only read is announced"),
            Write::Delete => {
                if is_there {
                    add(&Change { kind: EventKind::Deleted, ..ended }, false);
                }
                return Ok(());
            }
            Write::Put { .. } | Write::Object { .. } | Write::Patch { .. } | Write::Elements(_) => {
            }
        }
        let (blocks, is_cut) = changed_names(entry, &buffers.bytes);
        let after: Vec<TagValue<'_>> = match entry.meta {
            Some(span) => tags_of(span.of(&buffers.bytes)).collect(),
            None => before.clone(),
        };
        let change = Change {
            kind: if is_there { EventKind::Updated } else { EventKind::Created },
            form: entry.form,
            blocks: &blocks,
            is_cut,
            before: if is_there { &before } else { &[] },
            after: &after,
            ..ended
        };
        add(&change, true);
        Ok(())
    }

    /// The transaction's entry in the stream of this writer.
    fn append_to_stream(&mut self, is_lossless: bool) -> Result<()> {
        let ring_at = self.session.stream_ring()?;
        let buffers = &mut self.buffers;
        let announced = &mut buffers.plan.events;
        let from = announced.bytes.len();
        for (index, entry) in buffers.entries.iter().enumerate() {
            if entry.write.is_none() || entry.flags & namespace_flags::STREAMED == 0 {
                continue;
            }
            let old = entry.seen.map(|seen| self.session.stored(seen)).transpose()?.flatten();
            let is_ended = match old {
                Some((cell, _)) => is_past_cell(cell)?,
                None => false,
            };
            let object;
            let change = match &entry.write {
                Write::None => continue,
                Write::Object { copy } => {
                    object = self.session.object_parts(entry, *copy, &buffers.copies)?.concat();
                    if object.len() > VALUE_BYTES_MAX {
                        return Err(
                            Corruption("an object is larger than any that is written").into()
                        );
                    }
                    StreamedChange::Put { value: &object, meta: &[], is_set: false }
                }
                Write::Delete => StreamedChange::Deleted { is_expiry: entry.is_expiry || is_ended },
                Write::Put { value } => StreamedChange::Put {
                    value: value.of(&buffers.bytes),
                    meta: entry.meta.unwrap_or_default().of(&buffers.bytes),
                    is_set: entry.form == Form::Set,
                },
                Write::Patch { changes, .. } if changes.len() > BLOCKS_MAX_PATCHED => {
                    return Err(Error::TooManyBlocks { blocks: changes.len() });
                }
                Write::Patch { is_anew, changes } => StreamedChange::Patched {
                    is_anew: *is_anew,
                    blocks: changes
                        .iter()
                        .map(|(name, bytes)| {
                            (name.of(&buffers.bytes), bytes.map(|bytes| bytes.of(&buffers.bytes)))
                        })
                        .collect(),
                    meta: entry.meta.map(|meta| meta.of(&buffers.bytes)),
                },
                Write::Elements(elements) => StreamedChange::Elements {
                    is_set: entry.form == Form::Set,
                    is_anew: elements.is_anew,
                    elements: elements.changed(&buffers.bytes),
                    meta: entry.meta.map(|meta| meta.of(&buffers.bytes)),
                },
            };
            let key = entry.key.of(&buffers.bytes);
            let version_at = entry::encode(entry.table, key, &change, &mut announced.bytes);
            invariant!(version_at + 8 <= announced.bytes.len(), "a streamed record has a version");
            announced.versions.push((version_at, index));
        }
        let to = announced.bytes.len();
        if to > from {
            announced.all.push(TxnEvent { ring_at, span: (from, to), is_lossless });
        }
        Ok(())
    }
}

/// The names of the changed blocks; true if one is left out that no block can have.
fn changed_names<'b>(entry: &'b TxnEntry, bytes: &'b [u8]) -> (Vec<&'b str>, bool) {
    let text = |name: BufferSpan| str::from_utf8(name.of(bytes)).ok();
    match &entry.write {
        Write::Patch { changes, .. } => {
            let name = |(name, _): &(_, _)| guaranteed(text(*name), "a name was kept from a `str`");
            (changes.iter().map(name).collect(), false)
        }
        Write::Elements(elements) if entry.form == Form::Blocks => {
            let names: BTreeSet<&[u8]> = match &elements.announced {
                Some(names) => names.iter().map(|name| name.of(bytes)).collect(),
                None => elements.changed(bytes).into_iter().map(|(name, _)| name).collect(),
            };
            let is_possible = |name: &&&[u8]| is_block_name(name);
            let possible = names.iter().filter(is_possible);
            let blocks: Vec<&str> = possible.filter_map(|name| str::from_utf8(name).ok()).collect();
            let is_cut = blocks.len() < names.len();
            (blocks, is_cut)
        }
        Write::None
        | Write::Delete
        | Write::Put { .. }
        | Write::Object { .. }
        | Write::Elements(_) => (Vec::new(), false),
    }
}

fn tags_of(meta: &[u8]) -> impl Iterator<Item = TagValue<'_>> {
    let meta = if meta.is_empty() { None } else { Meta::split(meta).ok() };
    meta.map_or(Tags::none(), |(_, meta)| meta.tags()).filter_map(Result::ok)
}

impl Session {
    /// The ring of this writer's stream, made if there is none. Nothing may be pending.
    fn stream_ring(&self) -> Result<u64> {
        match self.member.stream_ring(self.member.index())? {
            Some(ring_at) => Ok(ring_at),
            None => self.member.open_stream_ring(STREAM_RING_BYTES),
        }
    }
}
