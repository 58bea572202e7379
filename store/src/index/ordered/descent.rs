//! The way from the root to a leaf, and how far it may be believed.

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result, invariant};

use super::node::{IndexNode, LEVEL_MAX};

/// Storage of the nodes. An implementation returns the bytes of a node whole, never torn.
///
/// A transaction sees its own writes, whether it peeks or reads.
pub trait Nodes {
    /// Untracked: what is seen may have changed since, and the transaction does not rest on it.
    /// `None`: there is no such node now.
    ///
    /// # Errors
    /// What the transaction answers.
    fn peek<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>>;

    /// Tracked: what is seen (also that there is nothing) must still be so when the transaction
    /// commits, and agrees with all that was read before it in this transaction.
    ///
    /// # Errors
    /// `Conflict` if it no longer agrees; what the transaction answers.
    fn read<R>(&mut self, node: u64, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>>;

    /// Replaces a node's bytes; the node need not exist.
    ///
    /// # Errors
    /// What the transaction answers.
    fn write(&mut self, node: u64, bytes: &[u8]) -> Result<()>;

    /// Makes a node, and names it as no node is named now.
    ///
    /// # Errors
    /// What the transaction answers.
    fn create(&mut self, bytes: &[u8]) -> Result<u64>;

    /// Gives a node up.
    ///
    /// # Errors
    /// What the transaction answers.
    fn free(&mut self, node: u64) -> Result<()>;
}

/// How nodes are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// The transaction rests on what is seen.
    #[default]
    Tracked,
    /// It does not.
    Untracked,
}

/// Ways down that only peek before one is tracked whole. A way goes wrong when a node on it is
/// split or taken out within the microsecond between two looks; eight times in a row means that
/// the branches are in constant motion, and then resting on them as well is what ends.
const PEEKED_MAX: usize = 8;
/// Ways down of a walk that tracks nothing, before it gives up.
const UNTRACKED_MAX: usize = 64;

/// How to look at the branches, try by try, for an operation that looks at its leaf like this.
pub(super) fn tries(leaf: Sight) -> impl Iterator<Item = Sight> {
    let is_tracked = leaf == Sight::Tracked;
    let peeked = if is_tracked { PEEKED_MAX } else { UNTRACKED_MAX };
    std::iter::repeat_n(Sight::Untracked, peeked).chain(is_tracked.then_some(Sight::Tracked))
}

/// Every way down went wrong. Tracked nodes agree with each other, so if even they lead astray, the
/// tree contradicts itself.
#[cold]
pub(super) fn astray(sight: Sight) -> Error {
    match sight {
        Sight::Tracked => {
            Corruption("an index branch leads to a node that does not know it").into()
        }
        Sight::Untracked => {
            Error::Conflict { detail: "an ordered index changed all through a walk".to_owned() }
        }
    }
}

/// Looks at a node in one way or the other.
#[inline]
pub(super) fn look<N: Nodes, R>(
    nodes: &mut N,
    sight: Sight,
    node: u64,
    read: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>> {
    match sight {
        Sight::Tracked => nodes.read(node, read),
        Sight::Untracked => nodes.peek(node, read),
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
    /// Goes down to the leaf that seems responsible for a key; the leaf's own fences decide, which
    /// the caller judges. False: the way led nowhere.
    pub(super) fn seek_leaf<N: Nodes>(
        &mut self,
        nodes: &mut N,
        root: u64,
        key: &[u8],
        sight: Sight,
    ) -> Result<bool> {
        self.path.clear();
        self.path.push(root);
        let mut at = (root, None);
        loop {
            invariant!(
                self.path.len() <= usize::from(LEVEL_MAX) + 1,
                "a way down of {} nodes",
                self.path.len()
            );
            match look(nodes, sight, at.0, |bytes| step(bytes, root, at.1, key))?.transpose()? {
                // No root: an empty tree, whose root is its leaf.
                None => return Ok(at.0 == root),
                Some(DescentStep::Stale) => return Ok(false),
                Some(DescentStep::Arrived) => return Ok(true),
                Some(DescentStep::Down { child, level }) => {
                    invariant!(at.1.is_none_or(|above| level < above), "levels fall on a way down");
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
        *guaranteed(self.path.first(), "a way down begins at the root")
    }

    pub(super) fn leaf(&self) -> u64 {
        *guaranteed(self.path.last(), "a way down ends at a leaf")
    }

    /// What the node at a level claims of the child it led to.
    pub(super) fn claim<'k>(&self, level: u8, key: &'k [u8]) -> Option<Claim<'k>> {
        let mut upwards = self.path.iter().rev().skip(usize::from(level).checked_sub(1)?);
        invariant!(level <= LEVEL_MAX, "no branch has level {level}");
        let child = *upwards.next()?;
        let node = *upwards.next()?;
        Some(Claim { root: self.root(), node, level, child, key })
    }

    /// The nodes below a level.
    pub(super) fn below(&self, level: u8) -> impl Iterator<Item = u64> {
        self.path.iter().rev().take(level.into()).copied()
    }
}

/// One step down. Levels fall by one with each, so a way ends whatever the bytes say.
#[inline]
fn step(bytes: &[u8], root: u64, level: Option<u8>, key: &[u8]) -> Result<DescentStep, Corruption> {
    let node = IndexNode::parse(bytes)?;
    let found = node.shape.level;
    if node.shape.root != root || level.is_some_and(|level| level != found) {
        return Ok(DescentStep::Stale);
    }
    let Some(level) = found.checked_sub(1) else { return Ok(DescentStep::Arrived) };
    Ok(DescentStep::Down { child: node.child(node.child_of(key)?)?, level })
}

/// The node of a leaf's bytes, if it is a leaf of this tree and responsible for the key.
#[inline]
pub(super) fn as_leaf<'a>(
    bytes: &'a [u8],
    root: u64,
    key: &[u8],
) -> Result<Option<IndexNode<'a>>, Corruption> {
    let node = IndexNode::parse(bytes)?;
    let is_it = node.shape.root == root && node.shape.level == 0 && node.covers(key);
    Ok(is_it.then_some(node))
}

/// That a branch leads to a child with a key: what a way down saw, and what is judged again on the
/// branch as it is before it is changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'k> {
    root: u64,
    pub(super) node: u64,
    pub(super) level: u8,
    child: u64,
    key: &'k [u8],
}

impl Claim<'_> {
    /// The branch, and its entry that leads to the child; `None` if it does not.
    pub(super) fn judge<'a>(
        &self,
        bytes: &'a [u8],
    ) -> Result<Option<(IndexNode<'a>, usize)>, Corruption> {
        let node = IndexNode::parse(bytes)?;
        let shape = &node.shape;
        if shape.root != self.root || shape.level != self.level || !node.covers(self.key) {
            return Ok(None);
        }
        let entry = node.child_of(self.key)?;
        Ok((node.child(entry)? == self.child).then_some((node, entry)))
    }
}
