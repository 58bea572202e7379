//! A record as a transaction sees it: the bytes in the region, or what the transaction has written.

use nearstate_memory::Cell;
use nearstate_model::Result;

use crate::record::members::Members;
use crate::record::meta::{Meta, Tags, split};
use crate::record::{Form, Kind, Place, Table};
use crate::session::Namespace;
use crate::session::buffers::Write;
use crate::txn::write_set::WriteSet;

/// A record as a transaction sees it.
#[derive(Clone, Debug)]
pub struct Record<'t> {
    source: Source<'t>,
}

#[derive(Clone, Debug)]
enum Source<'t> {
    /// As the region has it; the transaction's pin keeps it.
    Stored { cell: Cell<'t>, value: &'t [u8], form: Form },
    /// As the transaction has written it: a copy, for its buffer may move.
    Own(Box<Own>),
}

#[derive(Clone, Debug, Default)]
struct Own {
    form: Form,
    value: Vec<u8>,
    blocks: Vec<(String, Vec<u8>)>,
    meta: Vec<u8>,
}

impl<'t> Record<'t> {
    #[inline]
    pub(crate) const fn stored(cell: Cell<'t>, value: &'t [u8], kind: Kind) -> Self {
        let form = Form::of(kind, &cell);
        Self { source: Source::Stored { cell, value, form } }
    }

    /// What the record is.
    #[inline]
    pub const fn form(&self) -> Form {
        match &self.source {
            Source::Stored { form, .. } => *form,
            Source::Own(own) => own.form,
        }
    }

    /// The value of a record that has one unnamed block; empty for one of another form.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match (self.form(), &self.source) {
            (Form::Value, Source::Stored { value, .. }) => value,
            (Form::Value, Source::Own(own)) => &own.value,
            (Form::Blocks | Form::Set, _) => &[],
        }
    }

    /// The members of a set; none for a record of another form. A damaged set has none; the offline
    /// check names it.
    pub fn members(&self) -> Members<'_> {
        let set = match (self.form(), &self.source) {
            (Form::Set, Source::Stored { value, .. }) => Members::new(value),
            (Form::Set, Source::Own(own)) => Members::new(&own.value),
            (Form::Value | Form::Blocks, _) => return Members::default(),
        };
        set.unwrap_or_default()
    }

    /// The version that was read; `None` for what the transaction itself has written.
    #[inline]
    pub const fn version(&self) -> Option<u64> {
        match &self.source {
            Source::Stored { cell, .. } => Some(cell.version()),
            Source::Own(_) => None,
        }
    }

    /// The bytes of a named block. Linear in the number of blocks.
    pub fn block(&self, name: &str) -> Option<&[u8]> {
        self.blocks().find(|(found, _)| *found == name).map(|(_, bytes)| bytes)
    }

    /// All named blocks. A damaged table ends early; the offline check names it.
    pub fn blocks(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let blocks = match &self.source {
            Source::Stored { cell, value, form: Form::Blocks } => blocks_of(cell, value),
            Source::Stored { .. } => Vec::new(),
            Source::Own(own) => {
                own.blocks.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect()
            }
        };
        blocks.into_iter()
    }

    /// What stands behind the value; empty if nothing does.
    pub(crate) fn meta(&self) -> &[u8] {
        match &self.source {
            Source::Stored { cell, .. } => {
                let parts = cell.value().and_then(|bytes| split(*cell, bytes));
                parts.map_or(&[], |(_, meta)| meta)
            }
            Source::Own(own) => &own.meta,
        }
    }

    /// All tags: (name, value) pairs in ascending order.
    pub fn tags(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let tags = Meta::split(self.meta()).map_or(Tags::none(), |(_, meta)| meta.tags());
        tags.filter_map(Result::ok)
    }

    /// When the record ends by itself, in milliseconds since 1970; 0: never.
    pub fn expires_ms(&self) -> u64 {
        Meta::split(self.meta()).map_or(0, |(_, meta)| meta.expires_ms)
    }
}

/// The blocks of a record in the region, as far as its table is whole.
fn blocks_of<'v>(cell: &Cell<'v>, value: &'v [u8]) -> Vec<(&'v str, &'v [u8])> {
    let mut blocks = Vec::new();
    let Ok(mut table) = Table::new(value) else { return blocks };
    while let Ok(Some(block)) = table.next() {
        let bytes = match block.place {
            Place::Inline(bytes) => bytes,
            Place::Child(child) => match cell.block(child) {
                Ok(bytes) => bytes,
                Err(_) => break,
            },
        };
        blocks.push((block.name, bytes));
    }
    blocks
}

/// A record that the transaction itself has written.
#[cold]
pub(crate) fn own_record<'t>(
    set: &mut WriteSet<'_>,
    namespace: Namespace,
    hash: u64,
    key: &[u8],
) -> Result<Option<Record<'t>>> {
    let place = set.place_of(namespace.index, hash, key);
    let Some(entry) = place.and_then(|place| set.buffers.entries.get(place)) else {
        return Ok(None);
    };
    let (write, meta) = (entry.write.clone(), entry.meta);
    let mut own = Own { form: entry.form, ..Own::default() };
    if let Some(span) = meta {
        own.meta.extend_from_slice(set.buffers.bytes(span));
    }
    let (is_anew, changes) = match write {
        // Objects are no records of a namespace that a caller can name.
        Write::None | Write::Delete | Write::Object { .. } => return Ok(None),
        Write::Put { value } => {
            own.value.extend_from_slice(set.buffers.bytes(value));
            return Ok(Some(Record { source: Source::Own(Box::new(own)) }));
        }
        Write::Patch { is_anew, changes } => (is_anew, changes),
    };
    if !is_anew && let (_, Some((cell, bytes))) = set.read(namespace.index, hash, key)? {
        let (value, kept) = split(cell, bytes)?;
        if meta.is_none() {
            own.meta.extend_from_slice(kept);
        }
        let owned = |(name, bytes): (&str, &[u8])| (name.to_owned(), bytes.to_vec());
        own.blocks.extend(blocks_of(&cell, value).into_iter().map(owned));
    }
    for (name, bytes) in changes {
        let name = str::from_utf8(set.buffers.bytes(name)).unwrap_or_default().to_owned();
        let known = own.blocks.iter().position(|(known, _)| *known == name);
        match (known, bytes.map(|bytes| set.buffers.bytes(bytes).to_vec())) {
            (Some(place), Some(bytes)) => {
                if let Some((_, old)) = own.blocks.get_mut(place) {
                    *old = bytes;
                }
            }
            (Some(place), None) => drop(own.blocks.remove(place)),
            (None, Some(bytes)) => own.blocks.push((name, bytes)),
            (None, None) => {}
        }
    }
    Ok(Some(Record { source: Source::Own(Box::new(own)) }))
}
