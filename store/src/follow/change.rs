//! How a follower writes one change into its transaction.

use nearstate_memory::Corruption;
use nearstate_model::{Error, Result};

use crate::log::entry::StreamedChange;
use crate::record::members::Members;
use crate::record::meta::{Meta, expires_of, split};
use crate::record::{BlockChange, Form, Kind};
use crate::session::Namespace;
use crate::session::buffers::Metadata;
use crate::txn::Txn;
use crate::txn::write_set::Stored;

/// Decoded metadata, which borrows the encoded bytes.
#[derive(Debug, Default)]
pub(super) struct Decoded<'a> {
    pub(super) tags: Vec<(&'a str, &'a [u8])>,
    expires_ms: u64,
}

impl<'a> Decoded<'a> {
    pub(super) fn of(meta: &'a [u8]) -> Result<Self> {
        if meta.is_empty() {
            return Ok(Self::default());
        }
        let (_, meta) = Meta::split(meta)?;
        let tags = meta.tags().collect::<Result<Vec<_>, Corruption>>()?;
        Ok(Self { tags, expires_ms: meta.expires_ms })
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata { tags: &self.tags, expires_ms: self.expires_ms }
    }
}

/// A name, and the bytes that it stands for; `None` removes it.
pub(super) type NamedChange<'a> = (&'a [u8], Option<&'a [u8]>);

/// The changes of blocks.
pub(super) fn changes_of<'a>(blocks: &[NamedChange<'a>]) -> Result<Vec<BlockChange<'a>>> {
    let change = |(name, bytes): &NamedChange<'a>| -> Result<BlockChange<'a>> {
        let name = str::from_utf8(name);
        let name = name.map_err(|_| Corruption("a block's name is not UTF-8"))?;
        Ok(BlockChange { name, bytes: *bytes })
    };
    blocks.iter().map(change).collect()
}

/// The changes that remove nothing.
fn present<'a>(changes: &[NamedChange<'a>]) -> Vec<(&'a [u8], &'a [u8])> {
    changes.iter().filter_map(|(name, value)| value.map(|value| (*name, value))).collect()
}

/// A record that a change is written to.
#[derive(Clone, Copy)]
pub(super) struct ChangedRecord<'t, 's, 'k> {
    pub(super) txn: &'t Txn<'s>,
    pub(super) namespace: Namespace,
    pub(super) key: &'k [u8],
}

impl ChangedRecord<'_, '_, '_> {
    /// Writes a change into the transaction.
    pub(super) fn write(self, change: &StreamedChange<'_>) -> Result<()> {
        let Self { txn, namespace, key } = self;
        match change {
            StreamedChange::Put { value, meta, is_set: false } => {
                let meta = Decoded::of(meta)?;
                txn.put_with_metadata(namespace, key, value, meta.metadata())
            }
            StreamedChange::Put { value, meta, is_set: true } => {
                let members: Vec<&[u8]> = Members::new(value)?.collect();
                let meta = Decoded::of(meta)?;
                txn.put_members(namespace, key, &members, meta.metadata())
            }
            StreamedChange::Patched { is_anew: true, blocks, meta } => {
                self.put_fields(&present(blocks), meta.unwrap_or_default())
            }
            StreamedChange::Patched { is_anew: false, blocks, meta } => {
                self.patch(blocks)?;
                self.set_metadata(*meta)
            }
            StreamedChange::Elements { is_set: true, is_anew: true, elements, meta } => {
                let members: Vec<&[u8]> = elements.iter().map(|(member, _)| *member).collect();
                let meta = Decoded::of(meta.unwrap_or_default())?;
                txn.put_members(namespace, key, &members, meta.metadata())
            }
            StreamedChange::Elements { is_set: false, is_anew: true, elements, meta } => {
                self.put_fields(&present(elements), meta.unwrap_or_default())
            }
            StreamedChange::Elements { is_set, is_anew: false, elements, meta } => {
                let form = if *is_set { Form::Set } else { Form::Blocks };
                txn.change_elements(namespace, key, form, elements)?;
                self.set_metadata(*meta)
            }
            StreamedChange::Deleted { .. } => txn.delete(namespace, key).map(drop),
        }
    }

    /// Writes the record as it is.
    pub(super) fn write_unchanged(self, index: usize) -> Result<()> {
        let meta = match self.txn.set.borrow_mut().read_again(index)? {
            Some((cell, bytes)) => split(cell, bytes)?.1.to_vec(),
            None => return Ok(()),
        };
        self.set_metadata(Some(&meta))
    }

    /// Puts a record of these blocks or fields, which may be none.
    fn put_fields(self, pairs: &[(&[u8], &[u8])], meta: &[u8]) -> Result<()> {
        let Self { txn, namespace, key } = self;
        let meta = Decoded::of(meta)?;
        if !pairs.is_empty() {
            return txn.put_fields(namespace, key, pairs, meta.metadata());
        }
        txn.delete(namespace, key)?;
        txn.patch(namespace, key, &[])?;
        txn.set_metadata(namespace, key, meta.metadata()).map(drop)
    }

    fn patch(self, blocks: &[NamedChange<'_>]) -> Result<()> {
        let Self { txn, namespace, key } = self;
        if namespace.kind() == Kind::Mixed {
            return txn.change_elements(namespace, key, Form::Blocks, blocks).map(drop);
        }
        txn.patch(namespace, key, &changes_of(blocks)?)
    }

    fn set_metadata(self, meta: Option<&[u8]>) -> Result<()> {
        let Some(meta) = meta else { return Ok(()) };
        let meta = Decoded::of(meta)?;
        self.txn.set_metadata(self.namespace, self.key, meta.metadata()).map(drop)
    }
}

/// True if the record had expired at this time of its source.
pub(super) fn had_expired(stored: Stored<'_>, time_ms: u64) -> Result<bool> {
    let Some((cell, bytes)) = stored.filter(|(cell, _)| cell.has_meta()) else { return Ok(false) };
    let expires_ms = expires_of(split(cell, bytes)?.1)?;
    Ok(expires_ms != 0 && expires_ms <= time_ms)
}

/// A change that replaces another version than the copy has.
pub(super) fn not_a_copy(key: &[u8], version: u64, base: u64) -> Error {
    let key = String::from_utf8_lossy(key);
    Error::Damaged {
        detail: format!(
            "record {key:?} has version {version}, and the change from the source replaces version \
             {base}: this region is not a copy of it. Start the follower with --discard"
        ),
    }
}
