//! Removing a key from its leaf, and removing nodes that become empty.
//!
//! ```text
//!   branch  [a ........................ z)        [a ........................ z)
//!            |           |              |    =>    |                          |
//!       [a .... g)  [g .... p)  [p .... z)    [a ............... p)     [p .... z)
//!          left       empty       right          left, merged               right
//! ```
//!
//! The neighbour under the same branch takes over the range of the removed child: the left
//! neighbour, or for the first child the right one. If the branch has no other child, it is removed
//! too, and its own neighbour takes over its range, with the nodes along that neighbour's edge down
//! to a leaf.

use nearstate_memory::Corruption;
use nearstate_model::{Result, invariant};

use super::descent::{Descent, Nodes, ParentLink, ReadMode, as_leaf, descent_failed};
use super::node::{IndexNode, LEVEL_MAX, NodeHeader, Piece, compose};

enum KeyRemoval {
    Stale,
    Absent,
    /// The leaf has other keys.
    Remaining,
    /// It was the last key of the leaf.
    Last,
}

/// Removes a key from the leaf of a descent. False if it does not exist. `None`: the descent was
/// stale.
pub(super) fn remove<N: Nodes>(
    nodes: &mut N,
    descent: &Descent,
    key: &[u8],
    next: &mut Vec<u8>,
) -> Result<Option<bool>> {
    let (root, leaf) = (descent.root(), descent.leaf());
    let removal = nodes.read(leaf, |bytes| remove_key(bytes, root, key, next))?.transpose()?;
    match removal {
        None if leaf == root => Ok(Some(false)),
        None | Some(KeyRemoval::Stale) => Ok(None),
        Some(KeyRemoval::Absent) => Ok(Some(false)),
        Some(KeyRemoval::Last) if leaf != root => {
            Ok(remove_leaf(nodes, descent, key, next)?.then_some(true))
        }
        Some(KeyRemoval::Remaining | KeyRemoval::Last) => {
            nodes.write(leaf, next)?;
            Ok(Some(true))
        }
    }
}

fn remove_key(
    bytes: &[u8],
    root: u64,
    key: &[u8],
    next: &mut Vec<u8>,
) -> Result<KeyRemoval, Corruption> {
    let Some(node) = as_leaf(bytes, root, key)? else { return Ok(KeyRemoval::Stale) };
    let (at, is_there) = node.find(key)?;
    if !is_there {
        return Ok(KeyRemoval::Absent);
    }
    let pieces = [Piece::Run(&node, 0..at), Piece::Run(&node, at + 1..node.count())];
    compose(next, &node.header, &pieces)?;
    Ok(if node.count() == 1 { KeyRemoval::Last } else { KeyRemoval::Remaining })
}

/// The neighbour that takes over the range of a removed child.
struct MergeTarget {
    node: u64,
    level: u8,
    side: Side,
    fence: Vec<u8>,
    /// No other child remains.
    is_alone: bool,
}

/// Which fence of the merge target moves.
#[derive(Clone, Copy)]
enum Side {
    Low,
    High,
}

enum ChildRemoval {
    Stale,
    /// The branch has no other child.
    LastChild,
    /// The branch without the child is composed.
    MergeInto(MergeTarget),
}

/// Composes a branch without the child of a link. Returns the neighbour that takes over its range.
fn remove_child(
    bytes: &[u8],
    link: &ParentLink<'_>,
    next: &mut Vec<u8>,
) -> Result<ChildRemoval, Corruption> {
    let Some((node, entry)) = link.verify(bytes)? else { return Ok(ChildRemoval::Stale) };
    let count = node.count();
    if count == 1 {
        return Ok(ChildRemoval::LastChild);
    }
    let (target, side, fence) = if let Some(left) = entry.checked_sub(1) {
        let is_last = entry + 1 == count;
        let fence = if is_last { node.header.high } else { node.key(entry + 1)? };
        let pieces = [Piece::Run(&node, 0..entry), Piece::Run(&node, entry + 1..count)];
        compose(next, &node.header, &pieces)?;
        (node.child(left)?, Side::High, fence)
    } else {
        let right = node.child(1)?;
        compose(next, &node.header, &[Piece::Child(right, b""), Piece::Run(&node, 2..count)])?;
        (right, Side::Low, node.header.low)
    };
    invariant!(link.level > 0, "a leaf has no child");
    let (level, fence, is_alone) = (link.level - 1, fence.to_vec(), count == 2);
    Ok(ChildRemoval::MergeInto(MergeTarget { node: target, level, side, fence, is_alone }))
}

/// Removes an empty leaf, and every branch without another child. False: the descent was stale.
fn remove_leaf<N: Nodes>(
    nodes: &mut N,
    descent: &Descent,
    key: &[u8],
    next: &mut Vec<u8>,
) -> Result<bool> {
    let root = descent.root();
    let mut found = None;
    for level in 1..=LEVEL_MAX {
        let Some(link) = descent.parent_link(level, key) else { break };
        let removal = nodes.read(link.node, |bytes| remove_child(bytes, &link, next))?;
        match removal.transpose()? {
            None | Some(ChildRemoval::Stale) => return Ok(false),
            Some(ChildRemoval::LastChild) => {}
            Some(ChildRemoval::MergeInto(target)) => {
                found = Some((link, target));
                break;
            }
        }
    }
    let Some((link, target)) = found else {
        compose(next, &NodeHeader { root, level: 0, low: b"", high: b"" }, &[])?;
        nodes.write(root, next)?;
        free_all(nodes, descent.below(LEVEL_MAX + 1).filter(|node| *node != root))?;
        return Ok(true);
    };
    // A root with one child left is that child: the tree becomes lower.
    let becomes = if link.node == root && target.is_alone { root } else { target.node };
    if becomes == target.node {
        nodes.write(link.node, next)?;
    }
    extend_fences(nodes, root, &target, becomes, next)?;
    if becomes != target.node {
        invariant!(becomes == root, "only the root takes over the content of a child");
        nodes.free(target.node)?;
    }
    free_all(nodes, descent.below(link.level))?;
    Ok(true)
}

fn free_all<N: Nodes>(nodes: &mut N, mut names: impl Iterator<Item = u64>) -> Result<()> {
    names.try_for_each(|node| nodes.free(node))
}

/// Moves the fence of the merge target, and that of each node along its edge down to a leaf. The
/// merge target itself is written under the name that it `becomes`.
fn extend_fences<N: Nodes>(
    nodes: &mut N,
    root: u64,
    target: &MergeTarget,
    becomes: u64,
    next: &mut Vec<u8>,
) -> Result<()> {
    let mut from = target.node;
    let mut name = becomes;
    invariant!(target.level < LEVEL_MAX, "a child of level {}", target.level);
    for level in (0..=target.level).rev() {
        let moved = nodes.read(from, |bytes| move_fence(bytes, root, (level, target), next))?;
        // The branch above was read tracked, so its child exists.
        let below =
            moved.transpose()?.flatten().ok_or_else(|| descent_failed(ReadMode::Tracked))?;
        nodes.write(name, next)?;
        (from, name) = (below, below);
    }
    Ok(())
}

/// Composes a node with the fence of the merge target. Returns its child along that edge (unused
/// for a leaf).
fn move_fence(
    bytes: &[u8],
    root: u64,
    (level, target): (u8, &MergeTarget),
    next: &mut Vec<u8>,
) -> Result<Option<u64>, Corruption> {
    let node = IndexNode::parse(bytes)?;
    if node.header.root != root || node.header.level != level {
        return Ok(None);
    }
    let count = node.count();
    let (header, edge) = match target.side {
        Side::Low => (NodeHeader { low: &target.fence, ..node.header }, 0),
        // A branch has a child, or it is damaged. The edge of an empty leaf is not used.
        Side::High => (NodeHeader { high: &target.fence, ..node.header }, count.saturating_sub(1)),
    };
    compose(next, &header, &[Piece::Run(&node, 0..count)])?;
    Ok(Some(if level == 0 { root } else { node.child(edge)? }))
}
