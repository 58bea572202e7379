//! An ordered index: a B+-tree of keys whose nodes are byte strings, each under a name.
//!
//! The nodes are records of an internal namespace, changed inside optimistic transactions of many
//! processes, and the tree is made so that these rarely meet:
//!
//! ```text
//!            root 7 [ -inf .. +inf )          the root never changes its name; when it is split,
//!            /        |         \             its content moves into two new nodes
//!      [ .. d )    [ d .. m )   [ m .. )      each node carries its own fences
//! ```
//!
//! - A way down only *peeks*: it may take a wrong turn, and nothing of it is remembered. The leaf
//!   at its end is *read*, and says by its own fences whether it is the right one. If not, the way
//!   begins again. So an insert rests on one leaf: two inserts into different leaves never
//!   conflict, however busy the branches above them are.
//! - Only a split or a leaf that becomes empty reads and changes branches too.
//! - A leaf that becomes empty is taken out, and its neighbour under the same branch takes over its
//!   fences, so a queue ordered by time leaves no trail. Leaves that are merely sparse stay.
//! - There are no links between leaves: a walk goes down again for each of them. A leaf is then
//!   changed without a word to its neighbours.
//!
//! At every moment the leaves' fences cover all keys once; [`check()`] proves it.

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

/// Works on ordered indexes, and keeps the memory that it needs for the next operation.
///
/// After an error the transaction must be given up: nodes may have been written already.
#[derive(Debug, Default)]
pub struct Ordered {
    descent: Descent,
    next: Vec<u8>,
    cursor: Cursor,
}

impl Ordered {
    /// Inserts a key into the tree with this root. False if it is there already. A root that does
    /// not exist is an empty tree.
    ///
    /// Cost: peeks at the branches, one leaf read and written. About one insert in ten splits it.
    ///
    /// # Errors
    /// `BadArgument` for a key above [`INDEX_KEY_BYTES_MAX`], `Damaged`, what the nodes answer.
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

    /// Removes a key from the tree with this root. False if it is not there.
    ///
    /// Cost: as [`Ordered::insert`]; a leaf that becomes empty costs its branch and a neighbour
    /// too.
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

    /// Calls `each` with the keys of a range in ascending order until it says false. The leaves are
    /// tracked: at the commit there is no other key between the first and the last one.
    ///
    /// A [`Cursor`] does the same for a caller that needs the nodes in between.
    ///
    /// # Errors
    /// `Damaged`, what the nodes and `each` answer.
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

    /// As [`Ordered::walk`], but the transaction does not rest on what is seen: each leaf is as it
    /// was at some moment of the walk. For reports, and for candidates that are checked one
    /// by one.
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

    /// The smallest key of all, tracked, replaces what is in `out`. False: there is none, and `out`
    /// is empty.
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
                "a key of {} bytes for an ordered index: at most {INDEX_KEY_BYTES_MAX} are \
                 ordered; give the tag a shorter value",
                key.len()
            ),
        });
    }
    Ok(())
}
