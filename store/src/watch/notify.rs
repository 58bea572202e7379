//! The notifications of a transaction: events for the watches of a namespace. They are encoded
//! here, before the decision. The commit appends them.

use std::collections::BTreeSet;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{Corruption, TxnEvent};
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use crate::record::Form;
use crate::record::fields::{each_inline, is_block_name};
use crate::record::meta::{Meta, Tags, expires_of, split};
use crate::session::buffers::composed_writes::ComposedWrites;
use crate::session::buffers::{BufferSpan, Buffers, TxnEntry, Write};
use crate::txn::write_set::{Stored, WriteSet};
use crate::watch::event::{Change, EventKind, TagValue, VERSION_AT};

/// A writer that sees the flag `WATCHED` finds the ring, which is made first.
const NO_RING: Corruption = Corruption("a watched namespace has no ring of events");

impl<'s> WriteSet<'s> {
    /// Encodes the events for watches. Creates the log if a namespace is logged and there is none.
    ///
    /// # Errors
    /// `Conflict`, `Full` (a ring is to be made), `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call for each transaction costs an eighth of it")]
    pub(crate) fn notify_all(&mut self) -> Result<()> {
        let flags = self.buffers.flags;
        if flags & (namespace_flags::WATCHED | namespace_flags::LOGGED) == 0 {
            return Ok(());
        }
        self.notify_watches()?;
        if flags & namespace_flags::LOGGED != 0 {
            // A repair removes it.
            self.session.member.open_log()?;
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
        let bytes_max = self.session.member.ring_entry_bytes_max(ring_at)?;
        let announced = &mut buffers.plan.events;
        let mut add = |change: &Change<'_>, is_new: bool| {
            let from = announced.bytes.len();
            change.encode(&mut announced.bytes, bytes_max);
            let span = (from, announced.bytes.len());
            invariant!(span.0 + VERSION_AT + 8 <= span.1, "event {span:?} has a version");
            announced.all.push(TxnEvent { ring_at, span });
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
        let is_past =
            entry.is_expiry || entry.had_expired || self.session.has_passed(expires_of(meta)?)?;
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
        let (blocks, is_cut) = changed_names(entry, &buffers.composed, &buffers.bytes);
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
}

/// The names of the changed blocks; true if one is left out that no block can have.
fn changed_names<'b>(
    entry: &TxnEntry,
    writes: &'b ComposedWrites,
    bytes: &'b [u8],
) -> (Vec<&'b str>, bool) {
    let text = |name: BufferSpan| str::from_utf8(name.of(bytes)).ok();
    match entry.write {
        Write::Patch { changes, .. } => {
            let name = |(name, _): &(_, _)| guaranteed(text(*name), "a name was kept from a `str`");
            (writes.patch(changes).iter().map(name).collect(), false)
        }
        Write::Elements(elements) if entry.form == Form::Blocks => {
            let elements = writes.elements(elements);
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
        Write::Put { value } if entry.form == Form::Blocks => {
            (each_inline(value.of(bytes)).map(|(name, _)| name).collect(), false)
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
