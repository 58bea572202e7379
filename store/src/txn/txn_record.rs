//! A record as the open transaction has written it: a copy of its buffered changes, applied to the
//! version that the region has.

use nearstate_model::{Result, invariant};

use crate::record::meta::split;
use crate::record::view::{View, WrittenRecord};
use crate::record::{Block, Form, Place, encode, size_of_block};
use crate::session::Namespace;
use crate::session::buffers::Write;
use crate::txn::write_set::WriteSet;

/// The record of an entry that the transaction has written; `None` if it has deleted it.
#[cold]
pub(crate) fn written_record<'t>(
    set: &mut WriteSet<'_>,
    namespace: Namespace,
    place: usize,
) -> Result<Option<View<'t>>> {
    let entry = set.entry_at(place);
    let (write, meta, hash) = (entry.write.clone(), entry.meta, entry.hash);
    let key = set.buffers.bytes(entry.key).to_vec();
    let mut record = WrittenRecord { form: entry.form, key, ..WrittenRecord::default() };
    if let Some(span) = meta {
        record.meta.extend_from_slice(set.buffers.bytes(span));
    }
    let (is_anew, changes) = match write {
        // The namespace of objects is internal: a caller cannot name it.
        Write::None | Write::Delete | Write::Object { .. } => return Ok(None),
        Write::Put { value } => {
            record.value.extend_from_slice(set.buffers.bytes(value));
            return Ok(Some(View::written(Box::new(record))));
        }
        Write::Patch { is_anew, changes } => (is_anew, changes),
    };
    let mut blocks: Vec<(String, Vec<u8>)> = Vec::new();
    if !is_anew && let (_, Some((cell, bytes))) = set.read(namespace.index, hash, &record.key)? {
        let (value, kept) = split(cell, bytes)?;
        if meta.is_none() {
            record.meta.extend_from_slice(kept);
        }
        let stored = View::in_txn(cell, value, namespace.kind);
        blocks.extend(stored.blocks().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())));
    }
    for (name, bytes) in changes {
        let name = set.buffers.text(name).to_owned();
        let Some(bytes) = bytes.map(|bytes| set.buffers.bytes(bytes).to_vec()) else {
            blocks.retain(|(known, _)| *known != name);
            continue;
        };
        match blocks.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = bytes,
            None => blocks.push((name, bytes)),
        }
    }
    invariant!(record.form == Form::Blocks, "only a record of named blocks is patched");
    let table: Vec<Block<'_>> = blocks.iter().map(|(name, bytes)| inline(name, bytes)).collect();
    record.value = encode(&table);
    Ok(Some(View::written(Box::new(record))))
}

fn inline<'a>(name: &'a str, bytes: &'a [u8]) -> Block<'a> {
    Block { name, place: Place::Inline(bytes), bytes: size_of_block(bytes) }
}
