//! The descent from the root to a leaf, and the access to nodes.

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result, invariant};

use super::node::{IndexNode, LEVEL_MAX};

/// The nodes of a transaction. An implementation never returns a torn node.
///
/// A transaction sees its own writes, whether it peeks or reads.
pub trait Nodes {
    /// Reads a node untracked: it may change afterwards, and the transaction does not depend on it.
    /// `None` if the node does not exist.
    ///
    /// # Errors
    /// What the transaction returns.
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>>;

    /// Reads a node tracked: it is consistent with all earlier tracked reads, and the commit
    /// succeeds only if the node has not changed. This includes that it does not exist.
    ///
    /// # Errors
    /// `Conflict` if the reads are inconsistent; what the transaction returns.
    fn read<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>>;

    /// Replaces a node's bytes; the node need not exist.
    ///
    /// # Errors
    /// What the transaction returns.
    fn write(&mut self, node: u64, bytes: &[u8]) -> Result<()>;

    /// Creates a node with an unused name.
    ///
    /// # Errors
    /// What the transaction returns.
    fn create(&mut self, bytes: &[u8]) -> Result<u64>;

    /// Deletes a node.
    ///
    /// # Errors
    /// What the transaction returns.
    fn free(&mut self, node: u64) -> Result<()>;
}

/// How nodes are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// Nodes become part of the read set: a later change is a conflict.
    #[default]
    Tracked,
    /// Nodes may change before the commit.
    Untracked,
}

/// Descents that only peek, before one that tracks all branches. A descent fails if a node on its
/// path is split or removed within the microsecond between two reads. After eight failures in a
/// row the branches change constantly, and only a tracked descent is sure to end.
const PEEKED_MAX: usize = 8;

/// The largest number of descents of an untracked walk.
const UNTRACKED_MAX: usize = 64;

/// The modes in which the branches are read, attempt by attempt, for an operation that reads its
/// leaf in this mode.
pub(super) fn tries(leaf: ReadMode) -> impl Iterator<Item = ReadMode> {
    let is_tracked = leaf == ReadMode::Tracked;
    let peeked = if is_tracked { PEEKED_MAX } else { UNTRACKED_MAX };
    std::iter::repeat_n(ReadMode::Untracked, peeked).chain(is_tracked.then_some(ReadMode::Tracked))
}

/// The error after every descent has failed. Tracked nodes are consistent: if a descent over them
/// fails, the tree is damaged.
#[cold]
pub(super) fn descent_failed(mode: ReadMode) -> Error {
    match mode {
        ReadMode::Tracked => {
            Corruption("an index branch leads to a node that does not know it").into()
        }
        ReadMode::Untracked => {
            Error::Conflict { detail: "an ordered index changed during each attempt".to_owned() }
        }
    }
}

/// Reads a node in this mode.
#[inline]
pub(super) fn read_node<N: Nodes, R>(
    nodes: &mut N,
    mode: ReadMode,
    node: u64,
    read: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>> {
    match mode {
        ReadMode::Tracked => nodes.read(node, read),
        ReadMode::Untracked => nodes.peek(node, read),
    }
}

/// The names of the nodes from the root to a leaf.
#[derive(Debug, Default)]
pub(super) struct Descent {
    path: Vec<u64>,
}

enum DescentStep {
    Stale,
    Arrived,
    Down { child: u64, level: u8 },
}

impl Descent {
    /// Descends to the leaf that is probably responsible for a key. The caller checks the fences of
    /// the leaf. False: a node on the path was stale.
    pub(super) fn seek_leaf<N: Nodes>(
        &mut self,
        nodes: &mut N,
        root: u64,
        key: &[u8],
        mode: ReadMode,
    ) -> Result<bool> {
        self.path.clear();
        self.path.push(root);
        let mut at = (root, None);
        loop {
            invariant!(
                self.path.len() <= usize::from(LEVEL_MAX) + 1,
                "a descent over {} nodes",
                self.path.len()
            );
            match read_node(nodes, mode, at.0, |bytes| step(bytes, root, at.1, key))?.transpose()? {
                // No root: an empty tree, whose root is its leaf.
                None => return Ok(at.0 == root),
                Some(DescentStep::Stale) => return Ok(false),
                Some(DescentStep::Arrived) => return Ok(true),
                Some(DescentStep::Down { child, level }) => {
                    invariant!(at.1.is_none_or(|above| level < above), "levels fall on a descent");
                    self.path.push(child);
                    if level == 0 {
                        return Ok(true);
                    }
                    at = (child, Some(level));
                }
            }
        }
    }

    pub(super) fn root(&self) -> u64 {
        *guaranteed(self.path.first(), "a descent starts at the root")
    }

    pub(super) fn leaf(&self) -> u64 {
        *guaranteed(self.path.last(), "a descent ends at a leaf")
    }

    /// The link of the branch at a level to the child on the path.
    pub(super) fn parent_link<'k>(&self, level: u8, key: &'k [u8]) -> Option<ParentLink<'k>> {
        let mut upwards = self.path.iter().rev().skip(usize::from(level).checked_sub(1)?);
        invariant!(level <= LEVEL_MAX, "no branch has level {level}");
        let child = *upwards.next()?;
        let node = *upwards.next()?;
        Some(ParentLink { root: self.root(), node, level, child, key })
    }

    /// The nodes below a level.
    pub(super) fn below(&self, level: u8) -> impl Iterator<Item = u64> {
        self.path.iter().rev().take(level.into()).copied()
    }
}

/// One step down. Each step lowers the level by one, so a descent ends whatever the bytes are.
#[inline]
fn step(bytes: &[u8], root: u64, level: Option<u8>, key: &[u8]) -> Result<DescentStep, Corruption> {
    let node = IndexNode::parse(bytes)?;
    let found = node.header.level;
    if node.header.root != root || level.is_some_and(|level| level != found) {
        return Ok(DescentStep::Stale);
    }
    let Some(level) = found.checked_sub(1) else { return Ok(DescentStep::Arrived) };
    Ok(DescentStep::Down { child: node.child(node.child_of(key)?)?, level })
}

/// The node, if it is a leaf of this tree that covers the key.
#[inline]
pub(super) fn as_leaf<'a>(
    bytes: &'a [u8],
    root: u64,
    key: &[u8],
) -> Result<Option<IndexNode<'a>>, Corruption> {
    let node = IndexNode::parse(bytes)?;
    let is_right = node.header.root == root && node.header.level == 0 && node.covers(key);
    Ok(is_right.then_some(node))
}

/// The entry of a branch that led a descent to a child. It is verified on the tracked branch before
/// the branch is changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParentLink<'k> {
    root: u64,
    pub(super) node: u64,
    pub(super) level: u8,
    child: u64,
    key: &'k [u8],
}

impl ParentLink<'_> {
    /// The branch and its entry that leads to the child; `None` if it no longer does.
    pub(super) fn verify<'a>(
        &self,
        bytes: &'a [u8],
    ) -> Result<Option<(IndexNode<'a>, usize)>, Corruption> {
        let node = IndexNode::parse(bytes)?;
        let header = &node.header;
        if header.root != self.root || header.level != self.level || !node.covers(self.key) {
            return Ok(None);
        }
        let entry = node.child_of(self.key)?;
        Ok((node.child(entry)? == self.child).then_some((node, entry)))
    }
}
