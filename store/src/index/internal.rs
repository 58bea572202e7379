//! The internal namespace. Postings of tags, nodes of ordered indexes, counts and schemas are
//! records, changed in the transaction that changes the record that they belong to
//! (`docs/decisions/005-transactions.md`, 4).
//!
//! ```text
//! u | namespace u32 BE | tag u8 | value            -> key of the record that has the value
//! p | namespace u32 BE | tag u8 | part u32 BE | value -> keys of records that have it
//! n | node u64 BE                                  -> node of an ordered index
//! c | namespace u32 BE | tag u8 | stripe u8 | value -> how many records have the value, i64 LE
//! s | namespace u32 BE                             -> the namespace's tags
//! r                                                -> a repair builds the indexes again
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use nearstate_memory::FreeWatch;
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{KEY_BYTES_MAX, TAG_VALUE_BYTES_MAX};

use crate::index::postings::DEPTH_MAX;
use crate::index::schema::TagSet;

/// The first byte of the name of an internal namespace. Applications cannot use such a name.
pub(crate) const INTERNAL_PREFIX: u8 = 1;

/// The name of the internal namespace.
pub(crate) const NAME: &[u8] = b"\x01index";

/// The record that exists while a repair builds the indexes again.
pub(crate) const REPAIRING: &[u8] = b"r";

/// The namespace of the transactional memory's objects.
pub(crate) const OBJECTS: &[u8] = b"\x01objects";

/// Stripes of a count: writers of different stripes do not conflict.
pub(crate) const STRIPES: u8 = 8;
const _: () =
    assert!(STRIPES > 0 && STRIPES.is_power_of_two(), "sessions share the stripes evenly");

/// Trees of the order of expiry: writers of different trees do not conflict.
pub(crate) const EXPIRY_TREES: u64 = 16;

/// A bit in the names of roots, which no other node has.
pub(crate) const ROOT: u64 = 1 << 63;
const ROOT_EXPIRY: u64 = 1 << 62;
const _: () = assert!(EXPIRY_TREES.is_power_of_two(), "sessions share the trees evenly");
const _: () = assert!(ROOT & ROOT_EXPIRY == 0, "the roots of expiry have a separate bit");
const _: () = assert!((u32::MAX as u64) << 8 < ROOT_EXPIRY, "a tag's root is no tree of expiry");

/// How far a session has passed expired records that it could not delete, so that others behind
/// them are collected.
#[derive(Debug, Default)]
pub(crate) struct ExpiryPass {
    /// The last entry that was passed, by tree. Without one, the next call begins with the first.
    pub(crate) passed: BTreeMap<u64, Vec<u8>>,
    /// What there was no room for in the heap. It is tried again in the next pass, or when memory
    /// has come free.
    pub(crate) full: FullPass,
    /// The same, of the log: also when they belong to another host, which deletes in its own.
    pub(crate) behind: Vec<u32>,
}

/// Deletions of expired records for which the heap had no room.
#[derive(Debug, Default)]
pub(crate) struct FullPass {
    /// Their namespaces.
    pub(crate) namespaces: Vec<u32>,
    /// The tree and the entry of the first one.
    pub(crate) first: Option<(u64, Vec<u8>)>,
    /// The moment since which memory that comes free is watched.
    pub(crate) watch: Option<FreeWatch>,
}

/// A session's cache of the internal namespaces.
#[derive(Debug, Default)]
pub(crate) struct InternalCache {
    pub(crate) table: Cell<Option<u32>>,
    /// The number of the namespace of objects; `None` before its first use.
    pub(crate) objects: Cell<Option<u32>>,
    /// The last name of a new node.
    pub(crate) named: Cell<u64>,
    /// Commits that put a record with an expiry time, since this session last collected.
    pub(crate) expiring: Cell<u32>,
    /// The last tick of the clock at which this session found no expired record.
    pub(crate) none_due_ms: Cell<u64>,
    /// A full region has refused the update of a record that was read for it: the next one makes
    /// room before it reads.
    pub(crate) is_room_due: Cell<bool>,
    /// How far its collections of expired records have come.
    pub(crate) expiry_pass: RefCell<ExpiryPass>,
    /// The tree of the order of expiry that it sweeps, and the last entry at which it has looked.
    pub(crate) expiry_sweep: RefCell<(u64, Vec<u8>)>,
    /// The namespace of which it looks for expired records, and the next bucket.
    pub(crate) own_walk: Cell<(u32, u64)>,
    /// Collections until the next sweep, and between the last two.
    pub(crate) sweep_pause: Cell<(u32, u32)>,
    /// Tags of namespaces, each with the generation at which they were read.
    pub(crate) tags: RefCell<BTreeMap<u32, (u64, Arc<TagSet>)>>,
    /// The buffer for the key of a posting that is looked up.
    pub(crate) posting_key: RefCell<Vec<u8>>,
    /// The last known depths of lists of postings.
    depths: Depths,
}

const DEPTH_IS_KEPT: &str = "the depth of a list is in the cache";

/// Depths of lists, by a hash of their keys. A depth may be wrong: each part contains its own.
#[derive(Debug)]
struct Depths(Vec<Cell<u8>>);

/// A kilobyte per session: enough for about a thousand values in use.
const DEPTHS: usize = 1024;
const _: () = assert!(DEPTHS <= 1 << 16, "the index of a depth has 16 bits");

impl Default for Depths {
    fn default() -> Self {
        Self(vec![Cell::new(0); DEPTHS])
    }
}

impl InternalCache {
    /// The last known depth of a list.
    #[inline]
    pub(crate) fn depth_of(&self, index: usize) -> u8 {
        guaranteed(self.depths.0.get(index), DEPTH_IS_KEPT).get()
    }

    #[inline]
    pub(crate) fn set_depth(&self, index: usize, depth: u8) {
        debug_assert!(depth <= DEPTH_MAX, "a list of depth {depth}");
        guaranteed(self.depths.0.get(index), DEPTH_IS_KEPT).set(depth);
    }
}

/// The index of a list's depth, from the key of any of its parts.
#[inline]
pub(crate) fn depth_index(key: &[u8]) -> usize {
    let last = key.last_chunk::<8>().map_or(0, |last| u64::from_le_bytes(*last));
    // The upper bits of a product depend on all bits of its factors.
    let [.., a, b] = last.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    usize::from(u16::from_le_bytes([a, b])) % DEPTHS
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
    append_posting_key(namespace, tag, value, out);
}

/// As [`posting_key`], appended to `out`.
#[inline]
pub(crate) fn append_posting_key(namespace: u32, tag: u8, value: &[u8], out: &mut Vec<u8>) {
    let [a, b, c, d] = namespace.to_be_bytes();
    let prefix: [u8; POSTING_VALUE_AT] = [b'u', a, b, c, d, tag];
    out.extend_from_slice(&prefix);
    out.extend_from_slice(value);
}

/// The key of part 0 of a list of postings.
#[inline]
pub(crate) fn list_key(namespace: u32, tag: u8, value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let [a, b, c, d] = namespace.to_be_bytes();
    out.extend_from_slice(&[b'p', a, b, c, d, tag, 0, 0, 0, 0]);
    debug_assert!(out.len() == VALUE_AT, "the value follows the part's number");
    out.extend_from_slice(value);
}

/// The common prefix of the keys of all lists of a tag.
pub(crate) fn list_prefix(namespace: u32, tag: u8, out: &mut Vec<u8>) {
    list_key(namespace, tag, &[], out);
    invariant!(out.len() == VALUE_AT, "a list's key without a value has {} bytes", out.len());
    out.truncate(PART_AT);
}

/// Sets the part's number in a key from [`list_key`].
#[inline]
pub(crate) fn name_part(number: u32, key: &mut [u8]) {
    debug_assert!(key.first() == Some(&b'p'), "the key is one of a part");
    let field = key.get_mut(PART_AT..VALUE_AT);
    guaranteed(field, "the key of a part has its number").copy_from_slice(&number.to_be_bytes());
}

/// The offset of the part's number in the key of a part; [`VALUE_AT`] is that of the value.
const PART_AT: usize = 1 + 4 + 1;
/// The offset of the value in the key of a unique tag's posting.
pub(crate) const POSTING_VALUE_AT: usize = 1 + 4 + 1;
pub(crate) const VALUE_AT: usize = PART_AT + 4;
const _: () = assert!(
    VALUE_AT + TAG_VALUE_BYTES_MAX <= KEY_BYTES_MAX,
    "the keys of the internal namespace are keys of records"
);

/// The key of a stripe of a count.
pub(crate) fn count_key(namespace: u32, tag: u8, stripe: u8, value: &[u8], out: &mut Vec<u8>) {
    invariant!(stripe < STRIPES, "a count has no stripe {stripe}");
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
    let name = key.last_chunk_mut::<8>();
    *guaranteed(name, "a node's key ends with its name") = node.to_be_bytes();
    key
}
