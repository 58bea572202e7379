//! A record as the open transaction has written it: the version in the region with the buffered
//! changes applied.

use std::cell::{Cell, OnceCell};

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use crate::record::Form;
use crate::record::collection::encode_table;
use crate::record::fields::encode_inline;
use crate::record::meta::split;
use crate::record::view::{View, WrittenRecord};
use crate::session::Namespace;
use crate::session::buffers::Write;
use crate::txn::write_set::WriteSet;

/// Records that an open transaction has written and read again. They never move, so that views can
/// borrow them until the transaction ends.
#[derive(Debug, Default)]
pub(crate) struct WrittenRecords {
    /// Bucket `n` is for 2^n records. Allocated with the first record.
    buckets: OnceCell<Box<[Bucket; BUCKETS]>>,
    count: Cell<usize>,
}

type Bucket = OnceCell<Vec<OnceCell<WrittenRecord>>>;

/// Enough for 2^48 records, more than fit into memory.
const BUCKETS: usize = 48;

fn new_buckets() -> Box<[Bucket; BUCKETS]> {
    Box::new(std::array::from_fn(|_| OnceCell::new()))
}

impl WrittenRecords {
    /// Keeps a record until the transaction ends.
    fn keep(&self, record: WrittenRecord) -> &WrittenRecord {
        let number = self.count.get() + 1;
        self.count.set(number);
        let bucket = number.ilog2() as usize;
        let (buckets, size) = (self.buckets.get_or_init(new_buckets), 1_usize << bucket);
        invariant!(number >= size && number < 2 * size, "record {number} in bucket {bucket}");
        let records = guaranteed(buckets.get(bucket), "a bucket for every number")
            .get_or_init(|| (0..size).map(|_| OnceCell::new()).collect());
        guaranteed(records.get(number - size), "a bucket has room").get_or_init(|| record)
    }
}

/// A divided collection that the transaction changes: the stored parts, seen through its changes.
fn edited_record<'t, 's: 't>(
    set: &mut WriteSet<'s>,
    index: usize,
    written: &'t WrittenRecords,
) -> Result<View<'t>> {
    let entry = set.entry_at(index);
    let Write::Elements(elements) = entry.write else { invariant!("a changed collection") };
    let elements = set.buffers.composed.elements(elements);
    invariant!(entry.form != Form::Value, "the elements of a value change");
    let seen = entry.seen.filter(|_| !elements.is_anew);
    let stored = seen.map(|seen| set.session.stored(seen)).transpose()?.flatten();
    let stored = match stored {
        Some((cell, bytes)) => Some((cell, split(cell, bytes)?)),
        None => None,
    };
    let meta = match (entry.meta, stored) {
        (Some(span), _) => set.buffers.bytes(span).to_vec(),
        (None, Some((_, (_, kept)))) => kept.to_vec(),
        (None, None) => Vec::new(),
    };
    let record = WrittenRecord {
        form: entry.form,
        key: set.buffers.bytes(entry.key).to_vec(),
        value: encode_table(0, &[], &[]),
        meta,
        edit: Some(elements.edit.clone()),
    };
    let stored = stored.map(|(cell, (value, _))| (cell, value));
    // Later changes count what this view keeps of the collection.
    set.buffers.count_kept(record.memory_bytes())?;
    Ok(View::edited(written.keep(record), stored))
}

/// The record of an entry that the transaction has written; `None` if it has deleted it.
#[cold]
pub(crate) fn written_record<'t, 's: 't>(
    set: &mut WriteSet<'s>,
    namespace: Namespace,
    index: usize,
    written: &'t WrittenRecords,
) -> Result<Option<View<'t>>> {
    if matches!(set.entry_at(index).write, Write::Elements(_)) {
        return edited_record(set, index, written).map(Some);
    }
    let entry = set.entry_at(index);
    let (write, meta, hash) = (entry.write, entry.meta, entry.hash);
    let key = set.buffers.bytes(entry.key).to_vec();
    let mut record = WrittenRecord { form: entry.form, key, ..WrittenRecord::default() };
    if let Some(span) = meta {
        record.meta.extend_from_slice(set.buffers.bytes(span));
    }
    let (is_anew, changes) = match write {
        // The namespace of objects is internal: a caller cannot name it.
        Write::None | Write::Delete | Write::Object { .. } | Write::Elements(_) => {
            return Ok(None);
        }
        Write::Put { value } => {
            record.value.extend_from_slice(set.buffers.bytes(value));
            set.buffers.count_kept(record.memory_bytes())?;
            return Ok(Some(View::written(written.keep(record))));
        }
        Write::Patch { is_anew, changes } => {
            (is_anew, set.buffers.composed.patch(changes).to_vec())
        }
    };
    let mut blocks: Vec<(String, Vec<u8>)> = Vec::new();
    if !is_anew && let (_, Some((cell, bytes))) = set.read(namespace.index, hash, &record.key)? {
        let (value, kept) = split(cell, bytes)?;
        if meta.is_none() {
            record.meta.extend_from_slice(kept);
        }
        let stored = View::protected(cell, value, namespace.kind);
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
    let pairs: Vec<(&str, &[u8])> =
        blocks.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    record.value = encode_inline(&pairs);
    set.buffers.count_kept(record.memory_bytes())?;
    Ok(Some(View::written(written.keep(record))))
}
