//! Checks that an ordered index is consistent. Part of the offline check of a region.

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use super::descent::Nodes;
use super::node::{IndexNode, LEVEL_MAX};

/// The size of a tree: keys, nodes and height.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub keys: u64,
    /// Nodes, including the root.
    pub nodes: u64,
    /// Levels above the leaves.
    pub height: u8,
}

/// Checks every node of a tree that no session changes: each belongs to this tree and level, the
/// ranges of children fill the range of their branch without gaps, keys are in order and within
/// the fences, and only a root is empty. Calls `each` with every key in ascending order.
///
/// # Errors
/// `Damaged`, with the contradiction; what the nodes and `each` return.
pub fn check<N: Nodes>(
    nodes: &mut N,
    root: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Counts> {
    let mut counts = Counts::default();
    let Some(bytes) = nodes.peek(root, <[u8]>::to_vec)? else { return Ok(counts) };
    let top = IndexNode::parse(&bytes)?;
    if !top.header.low.is_empty() || !top.header.high.is_empty() {
        return Err(Corruption("the root of an index tree has a fence").into());
    }
    counts.height = top.header.level;
    if top.count() == 0 {
        return Ok(Counts { nodes: 1, ..counts });
    }
    let bounds = NodeBounds { root, level: top.header.level, low: Vec::new(), high: Vec::new() };
    visit(nodes, root, &bounds, &mut Visit { counts: &mut counts, each })?;
    invariant!(counts.nodes > 0, "a tree with a root has a node");
    Ok(counts)
}

/// The bounds of a node according to its parent.
struct NodeBounds {
    root: u64,
    level: u8,
    low: Vec<u8>,
    high: Vec<u8>,
}

struct Visit<'v> {
    counts: &'v mut Counts,
    each: &'v mut dyn FnMut(&[u8]) -> Result<()>,
}

/// Visits a subtree. The recursion is limited by the height of a tree: levels fall by one.
fn visit<N: Nodes>(
    nodes: &mut N,
    name: u64,
    bounds: &NodeBounds,
    seen: &mut Visit<'_>,
) -> Result<()> {
    let bytes = nodes.peek(name, <[u8]>::to_vec)?;
    let bytes = bytes.ok_or(Corruption("an index branch leads to a node that does not exist"))?;
    let node = IndexNode::parse(&bytes)?;
    let header = &node.header;
    if header.root != bounds.root || header.level != bounds.level || header.level > LEVEL_MAX {
        return Err(Corruption("an index node is of another tree or level than its branch").into());
    }
    if header.low != bounds.low || header.high != bounds.high {
        return Err(Corruption("an index node has other fences than its branch gives it").into());
    }
    if node.count() == 0 {
        return Err(Corruption("an index leaf is empty").into());
    }
    seen.counts.nodes += 1;
    let is_branch = header.level > 0;
    for entry in 0..node.count() {
        let key = node.key(entry)?;
        let is_first_child = is_branch && entry == 0;
        if is_first_child != (is_branch && key.is_empty())
            || !(is_first_child || node.covers(key))
            || (entry > 0 && node.key(entry - 1)? >= key)
        {
            return Err(Corruption("an index node's keys are not in order").into());
        }
        if !is_branch {
            seen.counts.keys += 1;
            (seen.each)(key)?;
            continue;
        }
        let low = if is_first_child { header.low } else { key };
        let high = if entry + 1 < node.count() { node.key(entry + 1)? } else { header.high };
        // A branch: its level is not 0.
        let level = guaranteed(header.level.checked_sub(1), "the level of a branch is above 0");
        let below = NodeBounds { root: bounds.root, level, low: low.to_vec(), high: high.to_vec() };
        visit(nodes, node.child(entry)?, &below, seen)?;
    }
    Ok(())
}
