//! The hidden namespace: postings of unique tags, nodes of ordered indexes, counts and schemas are
//! records like all others, changed by the transaction of the record that they belong to
//! (`docs/decisions/005-transactions.md`, 4).
//!
//! ```text
//! u | namespace u32 BE | tag u8 | value            -> key of the record that has the value
//! n | node u64 BE                                  -> node of an ordered index
//! c | namespace u32 BE | tag u8 | stripe u8 | value -> how many records have the value, u64 LE
//! s | namespace u32 BE                             -> the namespace's tags
//! ```

use std::cell::Cell;

use nearstate_model::Result;

use crate::buffers::Write;
use crate::ordered::Nodes;
use crate::record::Kind;
use crate::session::Session;
use crate::writeset::WriteSet;

/// The first byte of a hidden namespace's name: no name of an application begins with it.
pub(crate) const HIDDEN: u8 = 1;
const NAME: &[u8] = b"\x01index";

/// Stripes of a count: writers of different stripes do not conflict.
pub(crate) const STRIPES: u8 = 8;

/// Trees of the order of expiry: writers of different ones do not conflict.
pub(crate) const EXPIRY_TREES: u64 = 16;

const ROOT: u64 = 1 << 63;
const ROOT_EXPIRY: u64 = 1 << 62;

/// What a session remembers of the hidden namespace.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    table: Cell<Option<u32>>,
    /// The last name that was given to a node.
    named: Cell<u64>,
}

/// The root of a tag's ordered index.
pub(crate) const fn tag_root(namespace: u32, tag: u8) -> u64 {
    ROOT | (namespace as u64) << 8 | tag as u64
}

/// The root of one tree of the order of expiry.
pub(crate) const fn expiry_root(tree: u64) -> u64 {
    ROOT | ROOT_EXPIRY | tree % EXPIRY_TREES
}

/// The key of a unique tag's posting.
pub(crate) fn posting_key(namespace: u32, tag: u8, value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(b'u');
    out.extend_from_slice(&namespace.to_be_bytes());
    out.push(tag);
    out.extend_from_slice(value);
}

/// The key of a stripe of a count.
pub(crate) fn count_key(namespace: u32, tag: u8, stripe: u8, value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(b'c');
    out.extend_from_slice(&namespace.to_be_bytes());
    out.extend_from_slice(&[tag, stripe]);
    out.extend_from_slice(value);
}

/// The key of a namespace's tags.
pub(crate) fn schema_key(namespace: u32) -> [u8; 5] {
    let [a, b, c, d] = namespace.to_be_bytes();
    [b's', a, b, c, d]
}

fn node_key(node: u64) -> [u8; 9] {
    let mut key = [b'n'; 9];
    if let Some(name) = key.last_chunk_mut::<8>() {
        *name = node.to_be_bytes();
    }
    key
}

impl Session {
    /// Number of the hidden namespace. Nothing may be pending.
    pub(crate) fn hidden_table(&self) -> Result<u32> {
        if let Some(table) = self.hidden.table.get() {
            return Ok(table);
        }
        let table = self.member.namespace(NAME, Kind::Value.code())?.index();
        self.hidden.table.set(Some(table));
        Ok(table)
    }

    /// A name for a node that probably no other has; whoever uses it makes sure.
    fn name_node(&self) -> u64 {
        let mut seed = [0; 20];
        let last = self.hidden.named.get();
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        for (place, byte) in seed.iter_mut().zip(
            (last.to_le_bytes().into_iter())
                .chain(nanos.to_le_bytes())
                .chain(self.member.index().to_le_bytes()),
        ) {
            *place = byte;
        }
        let name = self.hash(&seed) & (ROOT - 1);
        self.hidden.named.set(name);
        name
    }
}

/// What a transaction has of a record of the hidden namespace.
pub(crate) enum Own {
    /// It was deleted in this transaction.
    Gone,
    /// It was written in this transaction.
    Written,
    /// Neither.
    Not,
}

impl WriteSet<'_> {
    /// What this transaction has done with a record.
    pub(crate) fn own(&self, place: Option<usize>) -> Own {
        match place.and_then(|place| self.buffers.entries.get(place)).map(|entry| &entry.write) {
            Some(Write::Put { .. } | Write::Patch { .. }) => Own::Written,
            Some(Write::Delete) => Own::Gone,
            Some(Write::None) | None => Own::Not,
        }
    }

    /// The value that this transaction has put.
    pub(crate) fn own_value(&self, place: Option<usize>) -> &[u8] {
        match place.and_then(|place| self.buffers.entries.get(place)).map(|entry| &entry.write) {
            Some(Write::Put { value }) => self.buffers.bytes(*value),
            _ => &[],
        }
    }

    /// A record of the hidden namespace as this transaction has it, tracked: `read` sees its value.
    pub(crate) fn hidden_value<R>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let table = self.session.hidden_table()?;
        let hash = self.session.hash(key);
        let place = self.place_of(table, hash, key);
        match self.own(place) {
            Own::Written => return Ok(Some(read(self.own_value(place)))),
            Own::Gone => return Ok(None),
            Own::Not => {}
        }
        let (_, stored) = self.read(table, hash, key)?;
        Ok(stored.map(|(_, value)| read(value)))
    }

    /// Puts a record of the hidden namespace.
    pub(crate) fn put_hidden(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let table = self.session.hidden_table()?;
        let hash = self.session.hash(key);
        let place = self.entry(table, hash, key)?;
        self.put(place, value, &[])
    }

    /// Deletes a record of the hidden namespace.
    pub(crate) fn delete_hidden(&mut self, key: &[u8]) -> Result<()> {
        let table = self.session.hidden_table()?;
        let hash = self.session.hash(key);
        let place = self.entry(table, hash, key)?;
        self.delete(place);
        Ok(())
    }
}

impl Nodes for WriteSet<'_> {
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let key = node_key(node);
        let table = self.session.hidden_table()?;
        let hash = self.session.hash(&key);
        let place = self.place_of(table, hash, &key);
        match self.own(place) {
            Own::Written => return Ok(Some(read(self.own_value(place)))),
            Own::Gone => return Ok(None),
            Own::Not => {}
        }
        let found = self.session.member.find(self.session.member.table(table)?, hash, &key)?;
        Ok(found.map(|(_, value)| read(value)))
    }

    fn read<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.hidden_value(&node_key(node), read)
    }

    fn write(&mut self, node: u64, bytes: &[u8]) -> Result<()> {
        self.put_hidden(&node_key(node), bytes)
    }

    fn create(&mut self, bytes: &[u8]) -> Result<u64> {
        loop {
            let node = self.session.name_node();
            // Tracked: that there is none must still be so at the commit.
            if self.hidden_value(&node_key(node), |_| ())?.is_none() {
                self.put_hidden(&node_key(node), bytes)?;
                return Ok(node);
            }
        }
    }

    fn free(&mut self, node: u64) -> Result<()> {
        self.delete_hidden(&node_key(node))
    }
}
