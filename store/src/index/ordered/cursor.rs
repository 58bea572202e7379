//! An iterator over the keys of a range, leaf by leaf.
//!
//! The cursor copies each leaf, so its caller may change records, and even the same tree, between
//! two keys. It continues at the high fence of a leaf, so no key is returned twice, whatever is
//! inserted or removed. Changes of a leaf after it was copied are not returned; in a tracked walk,
//! such a change by another session is a conflict.

use std::ops::Bound;

use nearstate_memory::Corruption;
use nearstate_model::Result;

use super::descent::{Descent, Nodes, ReadMode, as_leaf, descent_failed, read_node, tries};
use super::node::IndexNode;

/// Returns the keys of a range in ascending order.
#[derive(Debug, Default)]
pub struct Cursor {
    root: u64,
    mode: ReadMode,
    state: State,
    /// The next leaf is the one that covers this key.
    from: Vec<u8>,
    /// True if `from` itself is not in the range.
    is_after: bool,
    to: End,
    descent: Descent,
    leaf: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The next leaf must be copied.
    Before,
    /// The next key is this entry of the leaf.
    At(usize),
    #[default]
    Done,
}

/// The end of the range.
#[derive(Debug, Default)]
struct End {
    key: Vec<u8>,
    is_bounded: bool,
    is_inclusive: bool,
}

impl End {
    /// True if a key is beyond the range.
    fn is_before(&self, key: &[u8]) -> bool {
        self.is_bounded && (self.key.as_slice() < key || (!self.is_inclusive && self.key == key))
    }
}

impl Cursor {
    /// A cursor before the first key of a range of the tree with this root.
    pub fn new(root: u64, range: (Bound<&[u8]>, Bound<&[u8]>), mode: ReadMode) -> Self {
        let mut cursor = Self::default();
        cursor.begin(root, range, mode);
        cursor
    }

    /// Sets the cursor before the first key of a range, keeping its memory.
    pub fn begin(&mut self, root: u64, (from, to): (Bound<&[u8]>, Bound<&[u8]>), mode: ReadMode) {
        (self.root, self.mode, self.state) = (root, mode, State::Before);
        self.is_after = matches!(from, Bound::Excluded(_));
        self.to.is_inclusive = matches!(to, Bound::Included(_));
        self.to.is_bounded = !matches!(to, Bound::Unbounded);
        for (buffer, bound) in [(&mut self.from, from), (&mut self.to.key, to)] {
            buffer.clear();
            match bound {
                Bound::Included(key) | Bound::Excluded(key) => buffer.extend_from_slice(key),
                Bound::Unbounded => {}
            }
        }
    }

    /// The next key. `None` at the end, and after an error.
    ///
    /// # Errors
    /// As [`Ordered::walk`](super::Ordered::walk).
    pub fn next<N: Nodes>(&mut self, nodes: &mut N) -> Result<Option<&[u8]>> {
        let before = std::mem::replace(&mut self.state, State::Done);
        let Some(entry) = self.advance(nodes, before)? else { return Ok(None) };
        let key = IndexNode::parse(&self.leaf)?.key(entry)?;
        if self.to.is_before(key) {
            return Ok(None);
        }
        debug_assert!(self.state == State::Done, "the cursor was stopped before");
        self.state = State::At(entry + 1);
        Ok(Some(key))
    }

    /// The entry of the next key, after a move to its leaf if needed.
    fn advance<N: Nodes>(&mut self, nodes: &mut N, mut state: State) -> Result<Option<usize>> {
        loop {
            let entry = match state {
                State::Done => return Ok(None),
                State::At(entry) => entry,
                State::Before => match self.fetch(nodes)? {
                    Some(entry) => entry,
                    None => return Ok(None),
                },
            };
            let node = IndexNode::parse(&self.leaf)?;
            if entry < node.count() {
                return Ok(Some(entry));
            }
            // The next leaf starts at this leaf's high fence. If the range ends there, the next
            // leaf is not read, so that a change of it is no conflict.
            let high = node.header.high;
            if high.is_empty() || self.to.is_before(high) {
                return Ok(None);
            }
            // The fence was read from shared memory: it is checked, not asserted.
            if high <= self.from.as_slice() {
                return Err(Corruption("an index leaf ends before its first key").into());
            }
            self.from.clear();
            self.from.extend_from_slice(high);
            self.is_after = false;
            state = State::Before;
        }
    }

    /// Copies the leaf that covers `from`. Returns its first entry in the range.
    fn fetch<N: Nodes>(&mut self, nodes: &mut N) -> Result<Option<usize>> {
        for mode in tries(self.mode) {
            if !self.descent.seek_leaf(nodes, self.root, &self.from, mode)? {
                continue;
            }
            let (name, copy) = (self.descent.leaf(), &mut self.leaf);
            let (root, from, is_after) = (self.root, self.from.as_slice(), self.is_after);
            let seen = read_node(nodes, self.mode, name, |bytes| {
                let Some(node) = as_leaf(bytes, root, from)? else { return Ok(None) };
                copy.clear();
                copy.extend_from_slice(bytes);
                let (entry, is_there) = node.find(from)?;
                Ok::<_, Corruption>(Some(entry + usize::from(is_there && is_after)))
            })?;
            match seen.transpose()? {
                // An empty tree.
                None if name == self.root => return Ok(None),
                None | Some(None) => {}
                Some(Some(entry)) => return Ok(Some(entry)),
            }
        }
        Err(descent_failed(self.mode))
    }
}
