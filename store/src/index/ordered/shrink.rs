//! Removing a key from its leaf, and taking out what becomes empty by it.
//!
//! ```text
//!   branch  [a ........................ z)        [a ........................ z)
//!            |           |              |    =>    |                          |
//!       [a .... g)  [g .... p)  [p .... z)    [a ............... p)     [p .... z)
//!          left       empty       right          left, the heir            right
//! ```
//!
//! The neighbour under the same branch inherits the fences: the left one, for the first child the
//! right one. If the branch has no other child, it goes too, and the neighbour is one of its own
//! kind; then the nodes along that neighbour's edge, down to a leaf, inherit with it.

use nearstate_memory::Corruption;
use nearstate_model::{Result, invariant};

use super::descent::{Claim, Descent, Nodes, Sight, as_leaf, astray};
use super::node::{IndexNode, LEVEL_MAX, Piece, Shape, compose};

enum Taken {
    Stale,
    Absent,
    /// The new content is whole.
    Rest,
    /// It was the leaf's last key.
    Last,
}

/// Removes a key from the leaf of a way down: whether it was there. `None`: the way was stale.
pub(super) fn remove<N: Nodes>(
    nodes: &mut N,
    descent: &Descent,
    key: &[u8],
    next: &mut Vec<u8>,
) -> Result<Option<bool>> {
    let (root, leaf) = (descent.root(), descent.leaf());
    let taken = nodes.read(leaf, |bytes| take(bytes, root, key, next))?.transpose()?;
    match taken {
        None if leaf == root => Ok(Some(false)),
        None | Some(Taken::Stale) => Ok(None),
        Some(Taken::Absent) => Ok(Some(false)),
        Some(Taken::Last) if leaf != root => {
            Ok(take_out(nodes, descent, key, next)?.then_some(true))
        }
        Some(Taken::Rest | Taken::Last) => {
            nodes.write(leaf, next)?;
            Ok(Some(true))
        }
    }
}

fn take(bytes: &[u8], root: u64, key: &[u8], next: &mut Vec<u8>) -> Result<Taken, Corruption> {
    let Some(node) = as_leaf(bytes, root, key)? else { return Ok(Taken::Stale) };
    let (at, is_there) = node.find(key)?;
    if !is_there {
        return Ok(Taken::Absent);
    }
    let pieces = [Piece::Run(&node, 0..at), Piece::Run(&node, at + 1..node.count())];
    compose(next, &node.shape, &pieces)?;
    Ok(if node.count() == 1 { Taken::Last } else { Taken::Rest })
}

/// The neighbour that inherits.
struct Heir {
    node: u64,
    level: u8,
    side: Side,
    fence: Vec<u8>,
    /// No other child remains.
    is_alone: bool,
}

/// Which fence of the heir moves.
#[derive(Clone, Copy)]
enum Side {
    Low,
    High,
}

enum Disowned {
    Stale,
    /// The branch has no other child.
    Barren,
    /// The new content is whole.
    To(Heir),
}

/// A branch without the child that it is claimed to have, and who inherits from that.
fn disown(bytes: &[u8], claim: &Claim<'_>, next: &mut Vec<u8>) -> Result<Disowned, Corruption> {
    let Some((node, entry)) = claim.judge(bytes)? else { return Ok(Disowned::Stale) };
    let count = node.count();
    if count == 1 {
        return Ok(Disowned::Barren);
    }
    let (heir, side, fence) = if let Some(left) = entry.checked_sub(1) {
        let is_last = entry + 1 == count;
        let fence = if is_last { node.shape.high } else { node.key(entry + 1)? };
        let pieces = [Piece::Run(&node, 0..entry), Piece::Run(&node, entry + 1..count)];
        compose(next, &node.shape, &pieces)?;
        (node.child(left)?, Side::High, fence)
    } else {
        let right = node.child(1)?;
        compose(next, &node.shape, &[Piece::Child(right, b""), Piece::Run(&node, 2..count)])?;
        (right, Side::Low, node.shape.low)
    };
    invariant!(claim.level > 0, "a leaf has no child");
    let (level, fence, is_alone) = (claim.level - 1, fence.to_vec(), count == 2);
    Ok(Disowned::To(Heir { node: heir, level, side, fence, is_alone }))
}

/// Takes an empty leaf out, and every branch that had nothing else. False: the way was stale.
fn take_out<N: Nodes>(
    nodes: &mut N,
    descent: &Descent,
    key: &[u8],
    next: &mut Vec<u8>,
) -> Result<bool> {
    let root = descent.root();
    let mut found = None;
    for level in 1..=LEVEL_MAX {
        let Some(claim) = descent.claim(level, key) else { break };
        let disowned = nodes.read(claim.node, |bytes| disown(bytes, &claim, next))?;
        match disowned.transpose()? {
            None | Some(Disowned::Stale) => return Ok(false),
            Some(Disowned::Barren) => {}
            Some(Disowned::To(heir)) => {
                found = Some((claim, heir));
                break;
            }
        }
    }
    let Some((claim, heir)) = found else {
        compose(next, &Shape { root, level: 0, low: b"", high: b"" }, &[])?;
        nodes.write(root, next)?;
        free_all(nodes, descent.below(LEVEL_MAX + 1).filter(|node| *node != root))?;
        return Ok(true);
    };
    // A root with one child left is that child: the tree becomes lower.
    let becomes = if claim.node == root && heir.is_alone { root } else { heir.node };
    if becomes == heir.node {
        nodes.write(claim.node, next)?;
    }
    inherit(nodes, root, &heir, becomes, next)?;
    if becomes != heir.node {
        invariant!(becomes == root, "only the root takes over the content of a child");
        nodes.free(heir.node)?;
    }
    free_all(nodes, descent.below(claim.level))?;
    Ok(true)
}

fn free_all<N: Nodes>(nodes: &mut N, mut names: impl Iterator<Item = u64>) -> Result<()> {
    names.try_for_each(|node| nodes.free(node))
}

/// Moves the heir's fence, and that of each node along its edge down to a leaf. The heir itself is
/// written under the name that it `becomes`.
fn inherit<N: Nodes>(
    nodes: &mut N,
    root: u64,
    heir: &Heir,
    becomes: u64,
    next: &mut Vec<u8>,
) -> Result<()> {
    let mut from = heir.node;
    let mut name = becomes;
    invariant!(heir.level < LEVEL_MAX, "a child of level {}", heir.level);
    for level in (0..=heir.level).rev() {
        let moved = nodes.read(from, |bytes| move_fence(bytes, root, (level, heir), next))?;
        // What was read of the branch above still holds, so this child must be there.
        let below = moved.transpose()?.flatten().ok_or_else(|| astray(Sight::Tracked))?;
        nodes.write(name, next)?;
        (from, name) = (below, below);
    }
    Ok(())
}

/// A node with the heir's fence, and its child along that edge (for a leaf, anything).
fn move_fence(
    bytes: &[u8],
    root: u64,
    (level, heir): (u8, &Heir),
    next: &mut Vec<u8>,
) -> Result<Option<u64>, Corruption> {
    let node = IndexNode::parse(bytes)?;
    if node.shape.root != root || node.shape.level != level {
        return Ok(None);
    }
    let count = node.count();
    let (shape, edge) = match heir.side {
        Side::Low => (Shape { low: &heir.fence, ..node.shape }, 0),
        // A branch has a child, or it is damaged. The edge of an empty leaf is not used.
        Side::High => (Shape { high: &heir.fence, ..node.shape }, count.saturating_sub(1)),
    };
    compose(next, &shape, &[Piece::Run(&node, 0..count)])?;
    Ok(Some(if level == 0 { root } else { node.child(edge)? }))
}
