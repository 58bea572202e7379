//! What a transaction tells: events for the watchers of a namespace, and its entry in the commit
//! stream of this writer. Both are encoded here, before the decision, and appended by the commit.

use nearstate_memory::TxnEvent;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::Result;
use nearstate_model::limits::STREAM_RING_BYTES;

use crate::log::commit::{self, Step};
use crate::record::Form;
use crate::record::meta::{Meta, Tags, is_past, is_past_cell, split};
use crate::session::Session;
use crate::session::buffers::Write;
use crate::txn::write_set::{Stored, WriteSet};
use crate::watch::event::{Change, EventKind, TagValue, VERSION_AT};

impl<'s> WriteSet<'s> {
    /// Encodes what the watchers and the stream are told.
    ///
    /// # Errors
    /// `Conflict`, `Full` (a ring is to be made), `Damaged`.
    #[inline]
    pub(crate) fn notify_all(&mut self) -> Result<()> {
        let told = self.buffers.entries.iter().fold(0, |all, entry| all | entry.flags);
        if told & (namespace_flags::WATCHED | namespace_flags::STREAMED) == 0 {
            return Ok(());
        }
        self.tell_watchers()?;
        if told & namespace_flags::STREAMED != 0 {
            self.tell_stream(told & namespace_flags::LOSSLESS != 0)?;
        }
        // The rings are locked in the order of their offsets; events of one keep their order.
        self.buffers.plan.events.all.sort_by_key(|event| event.ring_at);
        Ok(())
    }

    fn tell_watchers(&mut self) -> Result<()> {
        for place in 0..self.buffers.entries.len() {
            let Some(entry) = self.buffers.entries.get(place) else { break };
            if entry.write.is_none() || entry.flags & namespace_flags::WATCHED == 0 {
                continue;
            }
            let table = self.session.member.table(entry.table)?;
            let Some(ring_at) = self.session.member.watch_ring(table)? else { continue };
            let old = self.read_again(place)?;
            let form = old.map(|(cell, _)| Form::of_record(table.kind(), &cell));
            self.tell(place, ring_at, old, form.unwrap_or_default())?;
        }
        Ok(())
    }

    /// The events of one record, which had this form.
    fn tell(&mut self, place: usize, ring_at: u64, old: Stored<'s>, had: Form) -> Result<()> {
        let buffers = &mut self.buffers;
        let Some(entry) = buffers.entries.get(place) else { return Ok(()) };
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
            announced.all.push(TxnEvent { ring_at, span, is_lossless: false });
            if is_new {
                announced.versions.push((from + VERSION_AT, place));
            }
        };
        let key = entry.key.of(&buffers.bytes);
        let ended = Change {
            kind: EventKind::Expired,
            form: had,
            version: version.unwrap_or(0),
            key,
            blocks: &[],
            before: &before,
            after: &[],
        };
        let is_past = is_past(meta)?;
        let is_there = version.is_some() && !is_past;
        if version.is_some() && is_past {
            // The first write that deletes or replaces it reports the expiry.
            add(&ended, false);
        }
        let mut blocks: Vec<&str> = Vec::new();
        match &entry.write {
            Write::None => return Ok(()),
            Write::Delete => {
                if is_there {
                    add(&Change { kind: EventKind::Deleted, ..ended }, false);
                }
                return Ok(());
            }
            Write::Put { .. } | Write::Object { .. } => {}
            Write::Patch { changes, .. } => {
                let name = |(name, _): &(crate::session::buffers::BufferSpan, _)| {
                    str::from_utf8(name.of(&buffers.bytes)).unwrap_or_default()
                };
                blocks.extend(changes.iter().map(name));
            }
        }
        let after: Vec<TagValue<'_>> = match entry.meta {
            Some(span) => tags_of(span.of(&buffers.bytes)).collect(),
            None => before.clone(),
        };
        let change = Change {
            kind: if is_there { EventKind::Updated } else { EventKind::Created },
            form: entry.form,
            blocks: &blocks,
            before: if is_there { &before } else { &[] },
            after: &after,
            ..ended
        };
        add(&change, true);
        Ok(())
    }

    /// The transaction's entry in the stream of this writer.
    fn tell_stream(&mut self, is_keeping: bool) -> Result<()> {
        let ring_at = self.session.stream_ring()?;
        let buffers = &mut self.buffers;
        let announced = &mut buffers.plan.events;
        let from = announced.bytes.len();
        for (place, entry) in buffers.entries.iter().enumerate() {
            if entry.write.is_none() || entry.flags & namespace_flags::STREAMED == 0 {
                continue;
            }
            let old = entry.seen.map(|seen| self.session.stored(seen)).transpose()?.flatten();
            let is_ended = match old {
                Some((cell, _)) => is_past_cell(cell)?,
                None => false,
            };
            let object;
            let step = match &entry.write {
                Write::None => continue,
                Write::Object { copy } => {
                    object = self.session.object_parts(entry, *copy, &buffers.copies)?.concat();
                    Step::Put { value: &object, meta: &[], is_set: false }
                }
                Write::Delete => Step::Deleted { is_expiry: entry.is_expiry || is_ended },
                Write::Put { value } => Step::Put {
                    value: value.of(&buffers.bytes),
                    meta: entry.meta.unwrap_or_default().of(&buffers.bytes),
                    is_set: entry.form == Form::Set,
                },
                Write::Patch { is_anew, changes } => Step::Patched {
                    is_anew: *is_anew,
                    blocks: changes
                        .iter()
                        .map(|(name, bytes)| {
                            (name.of(&buffers.bytes), bytes.map(|bytes| bytes.of(&buffers.bytes)))
                        })
                        .collect(),
                    meta: entry.meta.map(|meta| meta.of(&buffers.bytes)),
                },
            };
            let key = entry.key.of(&buffers.bytes);
            let version_at = commit::encode(entry.table, key, &step, &mut announced.bytes);
            announced.versions.push((version_at, place));
        }
        let to = announced.bytes.len();
        if to > from {
            announced.all.push(TxnEvent { ring_at, span: (from, to), is_lossless: is_keeping });
        }
        Ok(())
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
