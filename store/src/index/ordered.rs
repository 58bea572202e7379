//! An ordered index: a B+-tree of keys. Its nodes are records of an internal namespace, named by
//! numbers.
//!
//! Optimistic transactions of many processes change the nodes. The tree is designed so that these
//! transactions rarely conflict:
//!
//! ```text
//!            root 7 [ -inf .. +inf )          the root never changes its name; when it is split,
//!            /        |         \             its content moves into two new nodes
//!      [ .. d )    [ d .. m )   [ m .. )      each node contains its own fences
//! ```
//!
//! - A descent only *peeks* at branches: it may be wrong, and the transaction does not depend on
//!   it. It *reads* the leaf, whose fences show whether it is the right one; if not, the descent
//!   starts again. Therefore an insert depends on one leaf only, and inserts into different leaves
//!   never conflict, even if the branches above them change.
//! - Only the split of a leaf and the removal of an empty leaf read and change branches.
//! - An empty leaf is removed, and its neighbour under the same branch takes over its range, so a
//!   queue ordered by time leaves no empty nodes. Leaves with few keys stay.
//! - Leaves have no links to each other: a walk descends for each leaf. So the change of a leaf
//!   does not affect its neighbours.
//!
//! At every moment the leaves' fences cover all keys exactly once; [`check()`] verifies it.

mod check;
mod grow;
mod shrink;
mod cursor;
mod descent;
mod node;
mod composite;

#[cfg(test)]
mod tests;

use std::ops::Bound;

use nearstate_model::limits::INDEX_KEY_BYTES_MAX;
use nearstate_model::{Error, Result};

pub use check::check;
pub use composite::{composite, composite_range, split_composite};
pub use cursor::Cursor;
pub use descent::{Nodes, ReadMode};

use descent::Descent;

/// Operations on ordered indexes, with buffers that are reused.
///
/// After an error the transaction must be aborted: it may contain a part of the changes.
#[derive(Debug, Default)]
pub struct Ordered {
    descent: Descent,
    next: Vec<u8>,
    cursor: Cursor,
}

impl Ordered {
    /// Inserts a key into the tree with this root. False if it exists already. A root that does not
    /// exist is an empty tree.
    ///
    /// Cost: peeks at the branches; reads and writes one leaf. About one insert in ten splits it.
    ///
    /// # Errors
    /// `BadArgument` for a key above [`INDEX_KEY_BYTES_MAX`], `Damaged`, what the nodes return.
    pub fn insert<N: Nodes>(&mut self, nodes: &mut N, root: u64, key: &[u8]) -> Result<bool> {
        check_key(key)?;
        for mode in descent::tries(ReadMode::Tracked) {
            if self.descent.seek_leaf(nodes, root, key, mode)? {
                let inserted = grow::insert(nodes, &self.descent, key, &mut self.next)?;
                if let Some(inserted) = inserted {
                    return Ok(inserted);
                }
            }
        }
        Err(descent::descent_failed(ReadMode::Tracked))
    }

    /// Removes a key from the tree with this root. False if it does not exist.
    ///
    /// Cost: as [`Ordered::insert`]; if the leaf becomes empty, also its branch and a neighbour.
    ///
    /// # Errors
    /// As [`Ordered::insert`].
    pub fn remove<N: Nodes>(&mut self, nodes: &mut N, root: u64, key: &[u8]) -> Result<bool> {
        check_key(key)?;
        for mode in descent::tries(ReadMode::Tracked) {
            if self.descent.seek_leaf(nodes, root, key, mode)? {
                let removed = shrink::remove(nodes, &self.descent, key, &mut self.next)?;
                if let Some(removed) = removed {
                    return Ok(removed);
                }
            }
        }
        Err(descent::descent_failed(ReadMode::Tracked))
    }

    /// Calls `each` with the keys of a range in ascending order until it returns false. The leaves
    /// are tracked: the commit succeeds only if the range between the first and the last key has
    /// not changed.
    ///
    /// A [`Cursor`] does the same for a caller that uses the nodes between two keys.
    ///
    /// # Errors
    /// `Damaged`, what the nodes and `each` return.
    pub fn walk<N: Nodes>(
        &mut self,
        nodes: &mut N,
        root: u64,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: impl FnMut(&[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.cursor.begin(root, range, ReadMode::Tracked);
        drain(&mut self.cursor, nodes, each)
    }

    /// As [`Ordered::walk`], but untracked: each leaf is as it was at some moment of the walk. For
    /// reports, and for candidates that are checked individually.
    ///
    /// # Errors
    /// As [`Ordered::walk`]; `Conflict` if the tree changes faster than it can be walked.
    pub fn walk_untracked<N: Nodes>(
        &mut self,
        nodes: &mut N,
        root: u64,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: impl FnMut(&[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.cursor.begin(root, range, ReadMode::Untracked);
        drain(&mut self.cursor, nodes, each)
    }

    /// Writes the smallest key to `out`, tracked. False, with an empty `out`, if there is none.
    ///
    /// # Errors
    /// As [`Ordered::walk`].
    pub fn first<N: Nodes>(&mut self, nodes: &mut N, root: u64, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        self.cursor.begin(root, (Bound::Unbounded, Bound::Unbounded), ReadMode::Tracked);
        let first = self.cursor.next(nodes)?;
        out.extend_from_slice(first.unwrap_or_default());
        Ok(first.is_some())
    }
}

fn drain<N: Nodes>(
    cursor: &mut Cursor,
    nodes: &mut N,
    mut each: impl FnMut(&[u8]) -> Result<bool>,
) -> Result<()> {
    while let Some(key) = cursor.next(nodes)? {
        if !each(key)? {
            break;
        }
    }
    Ok(())
}

fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > INDEX_KEY_BYTES_MAX {
        return Err(Error::BadArgument {
            detail: format!(
                "a key of {} bytes is too long for an ordered index, whose limit is \
                 {INDEX_KEY_BYTES_MAX}: give the tag a shorter value",
                key.len()
            ),
        });
    }
    Ok(())
}
