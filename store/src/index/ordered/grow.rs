//! Inserting a key: into its leaf, or by splitting nodes from the leaf upwards.
//!
//! Everything that a split depends on is read and checked before the first write, so a stale
//! descent changes nothing.

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result, invariant};

use super::descent::{Descent, Nodes, ParentLink, as_leaf};
use super::node::{IndexNode, LEVEL_MAX, NodeHeader, Piece, compose, name_child};

enum Insertion {
    Stale,
    Present,
    /// The new content fits into the node.
    Fits,
    /// The new content is too large for one node; the new entry has this index.
    Overfull(usize),
}

/// The split of a node: its content with the new entry, whose index is `new`, and the first entry
/// of the right part.
struct NodeSplit {
    content: Vec<u8>,
    new: usize,
    at: usize,
}

/// Inserts a key into the leaf of a descent. False if it exists already. `None`: the descent was
/// stale.
pub(super) fn insert<N: Nodes>(
    nodes: &mut N,
    descent: &Descent,
    key: &[u8],
    next: &mut Vec<u8>,
) -> Result<Option<bool>> {
    let (root, leaf) = (descent.root(), descent.leaf());
    let added = nodes.read(leaf, |bytes| add(bytes, root, key, next))?.transpose()?;
    match added {
        None if leaf == root => {
            let header = NodeHeader { root, level: 0, low: b"", high: b"" };
            compose(next, &header, &[Piece::Key(key)])?;
            nodes.write(root, next)?;
            Ok(Some(true))
        }
        None | Some(Insertion::Stale) => Ok(None),
        Some(Insertion::Present) => Ok(Some(false)),
        Some(Insertion::Fits) => {
            nodes.write(leaf, next)?;
            Ok(Some(true))
        }
        Some(Insertion::Overfull(new)) => {
            let content = std::mem::take(next);
            Ok(split(nodes, descent, key, NodeSplit::plan(content, new)?)?.then_some(true))
        }
    }
}

fn add(bytes: &[u8], root: u64, key: &[u8], next: &mut Vec<u8>) -> Result<Insertion, Corruption> {
    let Some(node) = as_leaf(bytes, root, key)? else { return Ok(Insertion::Stale) };
    let (at, is_there) = node.find(key)?;
    if is_there {
        return Ok(Insertion::Present);
    }
    insert_entry(&node, at, Piece::Key(key), next)
}

fn insert_entry(
    node: &IndexNode<'_>,
    at: usize,
    new: Piece<'_>,
    next: &mut Vec<u8>,
) -> Result<Insertion, Corruption> {
    let pieces = [Piece::Run(node, 0..at), new, Piece::Run(node, at..node.count())];
    compose(next, &node.header, &pieces)?;
    Ok(if IndexNode::parse(next)?.is_crowded() { Insertion::Overfull(at) } else { Insertion::Fits })
}

/// A branch with a new child after the one that is split. The child has no name yet.
fn add_child(
    bytes: &[u8],
    link: &ParentLink<'_>,
    separator: &[u8],
    next: &mut Vec<u8>,
) -> Result<Option<(Insertion, usize)>, Corruption> {
    let Some((node, entry)) = link.verify(bytes)? else { return Ok(None) };
    let added = insert_entry(&node, entry + 1, Piece::Child(0, separator), next)?;
    Ok(Some((added, entry + 1)))
}

/// Splits the leaf, and every branch that becomes too large. False: the descent was stale.
fn split<N: Nodes>(nodes: &mut N, descent: &Descent, key: &[u8], leaf: NodeSplit) -> Result<bool> {
    let mut cuts = vec![leaf];
    let mut top = None;
    for level in 1..=LEVEL_MAX {
        let Some(link) = descent.parent_link(level, key) else { break };
        let mut content = Vec::new();
        invariant!(cuts.len() == usize::from(level), "{} cuts below level {level}", cuts.len());
        let cut = guaranteed(cuts.last(), "the leaf is cut first");
        let separator = cut.separator()?;
        let inserted =
            nodes.read(link.node, |bytes| add_child(bytes, &link, separator, &mut content))?;
        match inserted.transpose()?.flatten() {
            Some((Insertion::Overfull(new), _)) => cuts.push(NodeSplit::plan(content, new)?),
            Some((Insertion::Fits, new)) => {
                top = Some((link.node, content, new));
                break;
            }
            Some((Insertion::Stale | Insertion::Present, _)) => {
                invariant!("a child is added to a branch without a search")
            }
            None => return Ok(false),
        }
    }
    let mut new_child = None;
    for (node, mut cut) in descent.below(LEVEL_MAX + 1).zip(cuts) {
        if let Some(child) = new_child {
            name_child(&mut cut.content, cut.new, child)?;
        }
        new_child = cut.make(nodes, node)?;
    }
    invariant!(
        top.is_some() == new_child.is_some(),
        "the highest new node has a parent, unless the root was split"
    );
    if let (Some((node, mut content, new)), Some(child)) = (top, new_child) {
        name_child(&mut content, new, child)?;
        nodes.write(node, &content)?;
    }
    Ok(true)
}

impl NodeSplit {
    fn plan(content: Vec<u8>, new: usize) -> Result<Self, Corruption> {
        let node = IndexNode::parse(&content)?;
        let (at, count) = (node.choose_cut(new), node.count());
        invariant!(0 < at && at < count, "a node of {count} entries is cut at {at}");
        Ok(Self { content, new, at })
    }

    fn separator(&self) -> Result<&[u8], Corruption> {
        IndexNode::parse(&self.content)?.separator(self.at)
    }

    /// Writes the two parts. The left part keeps the name; the right one gets a new name, which is
    /// returned. Both parts of a root get new names and become its children.
    fn make<N: Nodes>(&self, nodes: &mut N, name: u64) -> Result<Option<u64>> {
        let node = IndexNode::parse(&self.content)?;
        let (header, separator) = (node.header, node.separator(self.at)?);
        let mut part = Vec::with_capacity(self.content.len());
        let right = NodeHeader { low: separator, ..header };
        let all = self.at..node.count();
        if header.level == 0 {
            compose(&mut part, &right, &[Piece::Run(&node, all)])?;
        } else {
            let first = Piece::Child(node.child(self.at)?, b"");
            compose(&mut part, &right, &[first, Piece::Run(&node, self.at + 1..node.count())])?;
        }
        let right = nodes.create(&part)?;
        invariant!(right != name, "a new node has an unused name");
        let left = NodeHeader { high: separator, ..header };
        compose(&mut part, &left, &[Piece::Run(&node, 0..self.at)])?;
        if name != header.root {
            nodes.write(name, &part)?;
            return Ok(Some(right));
        }
        if header.level >= LEVEL_MAX {
            return Err(Error::Full {
                detail: "an ordered index has reached its largest height: remove keys".to_owned(),
                heap: None,
            });
        }
        let left = nodes.create(&part)?;
        invariant!(left != right && left != name, "a new node has an unused name");
        let above = NodeHeader { level: header.level + 1, ..header };
        let children = [Piece::Child(left, b""), Piece::Child(right, separator)];
        compose(&mut part, &above, &children)?;
        nodes.write(name, &part)?;
        Ok(None)
    }
}
