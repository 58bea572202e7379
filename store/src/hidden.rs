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

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::schema::TagSet;

/// The first byte of a hidden namespace's name: no name of an application begins with it.
pub(crate) const HIDDEN: u8 = 1;
/// Its name.
pub(crate) const NAME: &[u8] = b"\x01index";

/// The namespace of the transactional memory's objects.
pub(crate) const OBJECTS: &[u8] = b"\x01objects";

/// Stripes of a count: writers of different stripes do not conflict.
pub(crate) const STRIPES: u8 = 8;

/// Trees of the order of expiry: writers of different ones do not conflict.
pub(crate) const EXPIRY_TREES: u64 = 16;

/// Bit of the names of roots; no other node has it.
pub(crate) const ROOT: u64 = 1 << 63;
const ROOT_EXPIRY: u64 = 1 << 62;

/// What a session remembers of the hidden namespace.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    pub(crate) table: Cell<Option<u32>>,
    /// Number of the namespace of objects, once one was asked for.
    pub(crate) objects: Cell<Option<u32>>,
    /// The last name that was given to a node.
    pub(crate) named: Cell<u64>,
    /// Commits that put a record with an end, since this session last collected.
    pub(crate) expiring: Cell<u32>,
    /// Tags of namespaces, each with the traits word under which they were read.
    pub(crate) tags: RefCell<BTreeMap<u32, (u64, Arc<TagSet>)>>,
}

/// The root of a tag's ordered index.
pub(crate) const fn tag_root(namespace: u32, tag: u8) -> u64 {
    ROOT | (namespace as u64) << 8 | tag as u64
}

/// The root of one tree of the order of expiry.
pub(crate) const fn expiry_root(tree: u64) -> u64 {
    ROOT | ROOT_EXPIRY | (tree % EXPIRY_TREES)
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

/// The key of a node.
pub(crate) fn node_key(node: u64) -> [u8; 9] {
    let mut key = [b'n'; 9];
    if let Some(name) = key.last_chunk_mut::<8>() {
        *name = node.to_be_bytes();
    }
    key
}
