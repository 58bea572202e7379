//! The encoding of a node, and the composition of new nodes from old ones.
//!
//! ```text
//! root u64 | format u8 | level u8 | entries u16 | low bytes u16 | high bytes u16
//! | end of each entry u16.. | low | high | entries          (little-endian)
//!
//! entry of a leaf (level 0): a key          entry of a branch: child u64 | separator
//! ```
//!
//! - `root` is the name of the tree, in each of its nodes. It shows if the name of a freed node was
//!   reused by another tree.
//! - A node covers the keys from `low` up to, not including, `high`. An empty `low` is below every
//!   key, an empty `high` above every key.
//! - The ends are offsets from the start of the first entry. The first separator of a branch is
//!   empty: the first child covers the keys from the branch's low fence.

use std::ops::Range;

use nearstate_memory::Corruption;
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{INDEX_KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The size of the entries at which a node is split. Small nodes are cheaper to copy, which each
/// change does, and have fewer conflicts. Large nodes make the tree lower and waste less on headers
/// and fences. At 1 KiB a leaf has about 25 identities and a branch about 50 children, and copying
/// a node takes less time than two cache misses.
pub(super) const NODE_BYTES: usize = 1024;

/// The highest level of a root. A new branch has at least two children, so such a tree would have
/// more leaves than fit into a region. A node with a higher level is damaged.
pub(super) const LEVEL_MAX: u8 = 31;

const HEAD: usize = 16;
const FORMAT: u8 = 1;
const CHILD: usize = 8;
const _: () = assert!(HEAD == 8 + 1 + 1 + 3 * 2, "root, format, level, three counts");
const _: () = assert!(INDEX_KEY_BYTES_MAX <= u16::MAX as usize, "a fence counts in 16 bits");
// A node is split at the first entry that makes it too heavy. A branch keeps four children.
const _: () = assert!(
    NODE_BYTES + 4 * (INDEX_KEY_BYTES_MAX + CHILD) <= u16::MAX as usize,
    "the ends of a crowded node count in 16 bits"
);
const _: () = assert!(
    HEAD + NODE_BYTES + 6 * (INDEX_KEY_BYTES_MAX + CHILD) <= VALUE_BYTES_MAX,
    "a node is the value of a record"
);

const CUT: Corruption = Corruption("an index node is cut short");
const LARGE: Corruption = Corruption("an index node is larger than any that is written");

/// The header of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeHeader<'a> {
    pub(super) root: u64,
    pub(super) level: u8,
    pub(super) low: &'a [u8],
    pub(super) high: &'a [u8],
}

/// A parsed node. Total: any bytes are a node or damage, which is found here or when an entry is
/// read.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexNode<'a> {
    pub(super) header: NodeHeader<'a>,
    /// Bytes before each separator: of the child in a branch, none in a leaf.
    before: usize,
    ends: &'a [[u8; 2]],
    entries: &'a [u8],
}

impl<'a> IndexNode<'a> {
    #[inline]
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Corruption> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(CUT)?;
        let [r0, r1, r2, r3, r4, r5, r6, r7, format, level, c0, c1, l0, l1, h0, h1] = *head;
        if format != FORMAT || level > LEVEL_MAX {
            return Err(Corruption("an index node of a form that does not exist"));
        }
        let count = usize::from(u16::from_le_bytes([c0, c1]));
        let (ends, rest) = rest.split_at_checked(2 * count).ok_or(CUT)?;
        let (ends, _) = ends.as_chunks::<2>();
        let (low, rest) = rest.split_at_checked(u16::from_le_bytes([l0, l1]).into()).ok_or(CUT)?;
        let (high, entries) =
            rest.split_at_checked(u16::from_le_bytes([h0, h1]).into()).ok_or(CUT)?;
        if level > 0 && count == 0 {
            return Err(Corruption("an index branch without a child"));
        }
        let root = u64::from_le_bytes([r0, r1, r2, r3, r4, r5, r6, r7]);
        let before = if level == 0 { 0 } else { CHILD };
        Ok(Self { header: NodeHeader { root, level, low, high }, before, ends, entries })
    }

    #[inline]
    pub(super) const fn count(&self) -> usize {
        self.ends.len()
    }

    /// True if the key is between the fences.
    #[inline]
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        self.header.low <= key && (self.header.high.is_empty() || key < self.header.high)
    }

    /// The start of an entry, which is the end of the one before it.
    #[inline]
    fn start(&self, entry: usize) -> usize {
        match entry.checked_sub(1).and_then(|before| self.ends.get(before)) {
            Some(end) => u16::from_le_bytes(*end).into(),
            None => 0,
        }
    }

    /// The bytes of some entries.
    #[inline]
    fn bytes(&self, entries: &Range<usize>) -> Result<&'a [u8], Corruption> {
        self.entries.get(self.start(entries.start)..self.start(entries.end)).ok_or(CUT)
    }

    /// A leaf's key, or a branch's separator.
    #[inline]
    pub(super) fn key(&self, entry: usize) -> Result<&'a [u8], Corruption> {
        if entry >= self.count() {
            return Err(CUT);
        }
        self.bytes(&(entry..entry + 1))?.get(self.before..).ok_or(CUT)
    }

    /// A branch's child.
    #[inline]
    pub(super) fn child(&self, entry: usize) -> Result<u64, Corruption> {
        if entry >= self.count() || self.before != CHILD {
            return Err(CUT);
        }
        let (child, _) =
            self.bytes(&(entry..entry + 1))?.split_first_chunk::<CHILD>().ok_or(CUT)?;
        Ok(u64::from_le_bytes(*child))
    }

    /// The first entry whose key is not below this one, and true if it is equal.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<(usize, bool), Corruption> {
        let (mut from, mut to) = (0, self.count());
        while from < to {
            let middle = usize::midpoint(from, to);
            debug_assert!(from <= middle && middle < to, "{middle} of {from}..{to}");
            match self.key(middle)?.cmp(key) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return Ok((middle, true)),
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        Ok((from, false))
    }

    /// The entry of the child that covers a key: the last one whose separator is not above it.
    #[inline]
    pub(super) fn child_of(&self, key: &[u8]) -> Result<usize, Corruption> {
        let (entry, is_there) = self.find(key)?;
        Ok(if is_there { entry } else { entry.saturating_sub(1) })
    }

    /// Bytes of all entries and of their ends, which [`NODE_BYTES`] bounds. Fences do not count:
    /// otherwise a node with two long fences would be split again and again.
    #[inline]
    fn weight(&self) -> usize {
        self.entries.len() + 2 * self.count()
    }

    /// True if the node must be split. Each part must keep at least a key, or two children.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.weight() > NODE_BYTES && self.count() >= 2 * self.part_min()
    }

    const fn part_min(&self) -> usize {
        if self.header.level == 0 { 1 } else { 2 }
    }

    /// Chooses the first entry of the right part for the split of a crowded node, whose entry `new`
    /// was just added: in the middle of the bytes. If the tree grows at an end (times, rising
    /// numbers), the old part stays full and the new entry gets its own part.
    pub(super) fn choose_cut(&self, new: usize) -> usize {
        invariant!(self.count() >= 2 * self.part_min(), "{} entries are split", self.count());
        invariant!(new < self.count(), "entry {new} of {} is new", self.count());
        let (first, last) = (self.part_min(), self.count() - self.part_min());
        if self.header.high.is_empty() && new + 1 == self.count() {
            return last;
        }
        if self.header.low.is_empty() && new + 1 == first {
            return first;
        }
        let heavier = |cut: usize| {
            let left = self.start(cut) + 2 * cut;
            left.max(self.weight().saturating_sub(left))
        };
        let cut = (first..=last).min_by_key(|cut| heavier(*cut));
        guaranteed(cut, "a crowded node has a cut between its parts")
    }

    /// The shortest byte string that is above all earlier keys and not above the key of an entry.
    pub(super) fn separator(&self, entry: usize) -> Result<&'a [u8], Corruption> {
        let key = self.key(entry)?;
        if self.header.level > 0 {
            return Ok(key);
        }
        let before = self.key(entry.checked_sub(1).ok_or(CUT)?)?;
        let same = before.iter().zip(key).take_while(|(left, right)| left == right).count();
        Ok(key.get(..=same).unwrap_or(key))
    }
}

/// A piece of a new node.
#[derive(Clone, Debug)]
pub(super) enum Piece<'a> {
    /// Entries of an old node.
    Run(&'a IndexNode<'a>, Range<usize>),
    /// A key of a leaf.
    Key(&'a [u8]),
    /// A child of a branch, and its separator.
    Child(u64, &'a [u8]),
}

impl Piece<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Run(_, entries) => entries.len(),
            Self::Key(_) | Self::Child(..) => 1,
        }
    }

    fn bytes(&self) -> Result<usize, Corruption> {
        match self {
            Self::Run(node, entries) => node.bytes(entries).map(<[u8]>::len),
            Self::Key(key) => Ok(key.len()),
            Self::Child(_, separator) => Ok(CHILD + separator.len()),
        }
    }
}

/// Composes a node of pieces into `out`, cleared first. Cost: a copy for each piece, whatever the
/// number of entries.
pub(super) fn compose(
    out: &mut Vec<u8>,
    header: &NodeHeader<'_>,
    pieces: &[Piece<'_>],
) -> Result<(), Corruption> {
    invariant!(header.level <= LEVEL_MAX, "a node of level {}", header.level);
    let narrow = |bytes: usize| u16::try_from(bytes).map_err(|_| LARGE);
    let count = pieces.iter().map(Piece::count).sum();
    out.clear();
    out.extend_from_slice(&header.root.to_le_bytes());
    out.extend_from_slice(&[FORMAT, header.level]);
    for field in [count, header.low.len(), header.high.len()] {
        out.extend_from_slice(&narrow(field)?.to_le_bytes());
    }
    invariant!(out.len() == HEAD, "a head of {} bytes", out.len());
    let mut end = 0;
    for piece in pieces {
        if let Piece::Run(node, _) = piece {
            invariant!(
                (node.header.level == 0) == (header.level == 0),
                "entries of level {} in a node of level {}",
                node.header.level,
                header.level
            );
        }
        invariant!(
            matches!(piece, Piece::Run(..))
                || matches!(piece, Piece::Key(_)) == (header.level == 0),
            "a leaf has keys, and a branch has children"
        );
        let bytes = piece.bytes()?;
        narrow(end + bytes)?;
        if let Piece::Run(node, entries) = piece {
            // The shift of all ends of the run. The last end was just checked.
            let moved = narrow(end)?.wrapping_sub(narrow(node.start(entries.start))?);
            let ends = node.ends.get(entries.clone()).ok_or(CUT)?;
            let moved = ends.iter().map(|end| u16::from_le_bytes(*end).wrapping_add(moved));
            out.extend(moved.flat_map(u16::to_le_bytes));
        } else {
            out.extend_from_slice(&narrow(end + bytes)?.to_le_bytes());
        }
        end += bytes;
    }
    invariant!(out.len() == HEAD + 2 * count, "{count} entries have an end each");
    out.extend_from_slice(header.low);
    out.extend_from_slice(header.high);
    let entries_at = out.len();
    for piece in pieces {
        match piece {
            Piece::Run(node, entries) => out.extend_from_slice(node.bytes(entries)?),
            Piece::Key(key) => out.extend_from_slice(key),
            Piece::Child(child, separator) => {
                out.extend_from_slice(&child.to_le_bytes());
                out.extend_from_slice(separator);
            }
        }
    }
    // The runs are read from shared memory again: their sum is checked, not asserted.
    if out.len() - entries_at == end { Ok(()) } else { Err(CUT) }
}

/// Sets the child of a branch's entry, which was composed before the child had a name.
pub(super) fn name_child(bytes: &mut [u8], entry: usize, child: u64) -> Result<(), Corruption> {
    let node = IndexNode::parse(bytes)?;
    let at = bytes.len() - node.entries.len() + node.start(entry);
    let field = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<CHILD>).ok_or(CUT)?;
    *field = child.to_le_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn leaf(keys: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        let header = NodeHeader { root: 1, level: 0, low: b"", high: b"" };
        let pieces: Vec<_> = keys.iter().map(|key| Piece::Key(key)).collect();
        compose(&mut out, &header, &pieces).unwrap();
        out
    }

    fn all(node: &IndexNode<'_>) -> Vec<Vec<u8>> {
        (0..node.count()).map(|entry| node.key(entry).unwrap().to_vec()).collect()
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_node_or_damage_and_never_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120),
            key in prop::collection::vec(any::<u8>(), 0..4),
            count in 0_u8..8,
            level in 0_u8..3,
        ) {
            for (at, byte) in [(8, FORMAT), (9, level), (10, count), (11, 0), (13, 0), (15, 0)] {
                if let Some(to) = bytes.get_mut(at) {
                    *to = byte;
                }
            }
            if let Ok(node) = IndexNode::parse(&bytes) {
                let level = node.header.level;
                let _ = (node.find(&key), node.child_of(&key), node.covers(&key));
                let _ = node.is_crowded() && node.choose_cut(0) > 0;
                for entry in 0..10 {
                    let _ = (node.key(entry), node.child(entry), node.separator(entry));
                }
                let mut out = Vec::new();
                let new = if level == 0 { Piece::Key(&key) } else { Piece::Child(7, &key) };
                let pieces = [Piece::Run(&node, 0..1), new, Piece::Run(&node, 1..3)];
                let _ = compose(&mut out, &node.header, &pieces);
                let _ = name_child(&mut bytes, 1, 7);
            }
        }

        #[test]
        fn a_composed_node_has_the_entries_of_its_pieces(
            keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..9), 1..30),
            new in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let keys: Vec<_> = keys.into_iter().collect();
            let bytes = leaf(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let node = IndexNode::parse(&bytes).unwrap();
            let found = node.find(&new).unwrap();
            prop_assert_eq!(found, match keys.binary_search(&new) {
                Ok(at) => (at, true),
                Err(at) => (at, false),
            });
            let (at, count) = (found.0, node.count());
            let mut out = Vec::new();
            let header = NodeHeader { low: b"low", high: b"hi", ..node.header };
            let pieces = [Piece::Run(&node, 0..at), Piece::Key(&new), Piece::Run(&node, at..count)];
            compose(&mut out, &header, &pieces).unwrap();
            let mut expected = keys.clone();
            expected.insert(at, new);
            let grown = IndexNode::parse(&out).unwrap();
            prop_assert_eq!(all(&grown), expected);
            prop_assert_eq!((grown.header.low, grown.header.high), (&b"low"[..], &b"hi"[..]));
        }

        #[test]
        fn a_separator_is_the_shortest_between_two_keys(
            left in prop::collection::vec(0_u8..3, 0..9),
            right in prop::collection::vec(0_u8..3, 0..9),
        ) {
            prop_assume!(left < right);
            let bytes = leaf(&[&left, &right]);
            let node = IndexNode::parse(&bytes).unwrap();
            let separator = node.separator(1).unwrap();
            prop_assert!(left.as_slice() < separator && separator <= right.as_slice());
            let shorter = &separator[..separator.len() - 1];
            prop_assert!(shorter <= left.as_slice());
        }
    }

    #[test]
    fn a_child_covers_the_keys_from_its_separator() {
        let mut bytes = Vec::new();
        let header = NodeHeader { root: 1, level: 1, low: b"b", high: b"x" };
        let pieces = [Piece::Child(7, b""), Piece::Child(0, b"m"), Piece::Child(9, b"p")];
        compose(&mut bytes, &header, &pieces).unwrap();
        name_child(&mut bytes, 1, 8).unwrap();
        let node = IndexNode::parse(&bytes).unwrap();
        let keys: [&[u8]; 6] = [b"b", b"l\xff", b"m", b"o", b"p", b"w"];
        let children = keys.map(|key| node.child(node.child_of(key).unwrap()).unwrap());
        assert_eq!(children, [7, 7, 8, 8, 9, 9]);
        assert!(node.covers(b"b") && !node.covers(b"a") && !node.covers(b"x"));
    }

    #[test]
    fn a_split_halves_the_bytes_except_at_an_end_of_the_tree() {
        let keys: Vec<Vec<u8>> =
            (0..40_u8).map(|key| vec![key; if key < 10 { 90 } else { 10 }]).collect();
        let bytes = leaf(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let node = IndexNode::parse(&bytes).unwrap();
        assert!(node.is_crowded());
        assert_eq!(node.choose_cut(20), 7, "7 x 92 of 1280 bytes");
        assert_eq!(node.choose_cut(39), 39, "the tree grows at its end");
        assert_eq!(node.choose_cut(0), 1, "the tree grows at its start");
        let inner =
            IndexNode { header: NodeHeader { low: b"\0", high: b"\xff", ..node.header }, ..node };
        assert_eq!((inner.choose_cut(39), inner.choose_cut(0)), (7, 7));
    }
}
