//! A patch that keeps the block table's layout: pieces of the old version, copied from cell to
//! cell, with new bytes of blocks between them. The most frequent change of a UE's context.

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;

use crate::record::{BAD_LOCATION, BLOCK_INLINE_MAX, BlockChange, CUT, ENTRY, NO_TEXT, is_name};

/// The largest number of changes of a splice, which are on the stack. With more, most of the record
/// is new, and it is encoded as a whole.
const CUTS_MAX: usize = 8;

/// Bytes of a block's entry, and the offset of its size in it.
pub(crate) const ENTRY_BYTES: u32 = 8;
const _: () = assert!(ENTRY_BYTES as usize == ENTRY);
pub(crate) const SIZE_IN_ENTRY: u32 = 4;
const _: () = assert!(SIZE_IN_ENTRY + 4 == ENTRY_BYTES, "the size ends an entry");

/// An old version's block table with the bytes of some blocks replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Splice<'a> {
    /// In the order of the table.
    cuts: [Cut<'a>; CUTS_MAX],
    count: usize,
    removed_bytes: usize,
    added_bytes: usize,
}

/// Old bytes that are replaced, and the new ones.
#[derive(Clone, Copy, Debug, Default)]
struct Cut<'a> {
    old: Span,
    new: &'a [u8],
}

/// The position of a block in a table. A record is far smaller than 4 GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The offset of its size in the table's entries.
    pub(crate) size_at: u32,
}

impl Span {
    /// Its bytes.
    #[inline]
    pub(crate) fn of<'v>(&self, table: &'v [u8]) -> Option<&'v [u8]> {
        table.get(self.from as usize..self.to as usize)
    }
}

impl<'a> Splice<'a> {
    /// `None` if the layout changes: a block is added or removed, or a changed block has a separate
    /// cell, before or after the change.
    ///
    /// Complexity: the blocks of the record times the changes; no byte of a block is read.
    ///
    /// # Errors
    /// Damage: a table that is truncated, or refers to missing bytes. Without the check, the damage
    /// would get a valid checksum.
    #[inline]
    pub(crate) fn of(
        old: &'a [u8],
        children: u64,
        changes: &[BlockChange<'a>],
    ) -> Result<Option<Self>, Corruption> {
        let Some((count, rest)) = old.split_first_chunk::<4>() else { return Ok(None) };
        let end = u32::try_from(old.len()).map_err(|_| CUT)?;
        let entries_bytes = (u32::from_le_bytes(*count) as usize).checked_mul(ENTRY).ok_or(CUT)?;
        let (entries, rest) = rest.split_at_checked(entries_bytes).ok_or(CUT)?;
        let (entries, _) = entries.as_chunks::<ENTRY>();
        let names_bytes = entries.iter().map(|[name_bytes, ..]| usize::from(*name_bytes)).sum();
        let (mut names, inline) = rest.split_at_checked(names_bytes).ok_or(CUT)?;
        // One check for all names.
        str::from_utf8(names).map_err(|_| NO_TEXT)?;
        let mut splice = Self::default();
        let mut from = end - u32::try_from(inline.len()).map_err(|_| CUT)?;
        let mut entry_at = 4;
        for [name_bytes, location, c0, c1, size @ ..] in entries {
            let (name, rest) = names.split_at_checked(usize::from(*name_bytes)).ok_or(CUT)?;
            names = rest;
            let is_inline = *location == 0;
            if !is_inline
                && (*location != 1 || u64::from(u16::from_le_bytes([*c0, *c1])) >= children)
            {
                return Err(BAD_LOCATION);
            }
            let bytes = if is_inline { u32::from_le_bytes(*size) } else { 0 };
            let to = from.checked_add(bytes).filter(|to| *to <= end).ok_or(CUT)?;
            if let Some(change) = changes.iter().find(|c| is_name(c.name.as_bytes(), name)) {
                let Some(new) = change.bytes.filter(|_| is_inline) else { return Ok(None) };
                let size_at = entry_at + SIZE_IN_ENTRY;
                if !splice.add(Span { from, to, size_at }, new) {
                    return Ok(None);
                }
            }
            from = to;
            entry_at += ENTRY_BYTES;
        }
        Ok((splice.count == changes.len() && from == end).then_some(splice))
    }

    /// Replaces one more block; false if the splice is full, or the block is too large for the
    /// record's cell.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn add(&mut self, old: Span, new: &'a [u8]) -> bool {
        if new.len() > BLOCK_INLINE_MAX || self.count >= CUTS_MAX {
            return false;
        }
        debug_assert!(old.from <= old.to, "a block from {} to {}", old.from, old.to);
        debug_assert!(old.size_at >= 4 + SIZE_IN_ENTRY, "{} lies in no entry", old.size_at);
        // Insertion sort: most changes are in the order of the table.
        let later = self.cuts().iter().rev().take_while(|cut| cut.old.size_at > old.size_at);
        let later = later.count();
        *guaranteed(self.cuts.get_mut(self.count), "a splice has room for the cut") =
            Cut { old, new };
        if later > 0 {
            let later = self.cuts.get_mut(self.count - later..=self.count);
            guaranteed(later, "the later cuts are among those made").rotate_right(1);
        }
        self.count += 1;
        debug_assert!(
            self.cuts().is_sorted_by(|one, next| one.old.size_at < next.old.size_at),
            "each block is replaced once"
        );
        self.removed_bytes += (old.to - old.from) as usize;
        self.added_bytes += new.len();
        true
    }

    /// The size of `old` bytes, which contain the table, after the splice.
    ///
    /// Saturating, because `old` is read from shared memory again after the splice was made. The
    /// caller compares the result with the bytes that it writes.
    #[inline]
    pub(crate) const fn bytes_of(&self, old: usize) -> usize {
        (old + self.added_bytes).saturating_sub(self.removed_bytes)
    }

    #[inline]
    fn cuts(&self) -> &[Cut<'a>] {
        guaranteed(self.cuts.get(..self.count), "a splice has at most CUTS_MAX cuts")
    }

    /// Calls `each` with the new bytes in order. The table begins at `table_at`.
    ///
    /// A piece that is missing in `old`, which is in shared memory, is empty. The caller compares
    /// the sum with [`Splice::bytes_of`].
    #[inline]
    pub(crate) fn pieces(
        &self,
        old: &[u8],
        table_at: usize,
        mut each: impl FnMut(&[u8]) -> Result<(), Corruption>,
    ) -> Result<(), Corruption> {
        let mut end = 0;
        // The entries precede all blocks.
        for cut in self.cuts() {
            if cut.new.len() != (cut.old.to - cut.old.from) as usize {
                let size_at = table_at + cut.old.size_at as usize;
                let size = u32::try_from(cut.new.len()).ok();
                let size = guaranteed(size, "BLOCK_INLINE_MAX fits into 32 bits").to_le_bytes();
                each(old.get(end..size_at).unwrap_or_default())?;
                each(&size)?;
                end = size_at + size.len();
            }
        }
        for cut in self.cuts() {
            each(old.get(end..table_at + cut.old.from as usize).unwrap_or_default())?;
            each(cut.new)?;
            end = table_at + cut.old.to as usize;
        }
        each(old.get(end..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Block, BlockContent, BlockTable, encode};

    /// The table with its blocks changed, one by one.
    fn encoded_anew(blocks: &[(String, Vec<u8>)], changes: &[BlockChange<'_>]) -> Vec<u8> {
        let all: Vec<Block<'_>> = blocks
            .iter()
            .map(|(name, bytes)| {
                let change = changes.iter().find(|change| change.name == name);
                let bytes = change.and_then(|change| change.bytes).unwrap_or(bytes);
                let size = u32::try_from(bytes.len()).unwrap();
                Block { name: name.as_str(), content: BlockContent::Inline(bytes), bytes: size }
            })
            .collect();
        encode(&all)
    }

    /// The result of a splice, with bytes before and after the table.
    fn spliced(splice: &Splice<'_>, old: &[u8]) -> Vec<u8> {
        let (mut out, old) = (Vec::new(), [b"key", old, b"tags"].concat());
        splice
            .pieces(&old, 3, |piece| {
                out.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
        assert_eq!(out.len(), splice.bytes_of(old.len()));
        out.strip_prefix(b"key").unwrap().strip_suffix(b"tags").unwrap().to_vec()
    }

    fn blocks() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        prop::collection::btree_map("[a-h]{1,3}", bytes(), 1..20)
            .prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn a_splice_equals_a_new_encoding(
            blocks in blocks(),
            new in prop::collection::vec((any::<prop::sample::Index>(), ".{0,50}"), 0..20),
        ) {
            let old = encoded_anew(&blocks, &[]);
            let mut changes: Vec<BlockChange<'_>> = Vec::new();
            for (index, bytes) in &new {
                let name = &blocks[index.index(blocks.len())].0;
                if changes.iter().all(|change| change.name != name) {
                    changes.push(BlockChange { name, bytes: Some(bytes.as_bytes()) });
                }
            }
            let splice = Splice::of(&old, 0, &changes).unwrap();
            prop_assert_eq!(splice.is_some(), changes.len() <= CUTS_MAX);
            if let Some(splice) = splice {
                prop_assert_eq!(spliced(&splice, &old), encoded_anew(&blocks, &changes));
            }
        }

        #[test]
        fn any_bytes_are_spliced_or_not_and_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            name in "[a-c]{1,2}",
        ) {
            let changes = [BlockChange { name: &name, bytes: Some(b"new") }];
            if let Ok(Some(splice)) = Splice::of(&bytes, 1, &changes) {
                let out = spliced(&splice, &bytes);
                prop_assert!(BlockTable::new(&out).is_ok());
            }
        }
    }

    #[test]
    fn a_change_of_the_layout_is_not_spliced() {
        let long = [7; BLOCK_INLINE_MAX + 1];
        let block = |name, content, bytes| Block { name, content, bytes };
        let old = encode(&[
            block("a", BlockContent::Inline(b"1"), 1),
            block("b", BlockContent::Child(0), 600),
        ]);
        let to = |name, bytes| [BlockChange { name, bytes }];
        assert!(Splice::of(&old, 1, &to("a", Some(b"22"))).unwrap().is_some());
        assert!(Splice::of(&old, 1, &to("a", Some(&long))).unwrap().is_none());
        assert!(Splice::of(&old, 1, &to("a", None)).unwrap().is_none());
        assert!(Splice::of(&old, 1, &to("b", Some(b"2"))).unwrap().is_none());
        assert!(Splice::of(&old, 1, &to("c", Some(b"3"))).unwrap().is_none());
        assert!(Splice::of(&[], 0, &to("a", Some(b"1"))).unwrap().is_none());
        assert!(Splice::of(old.get(..old.len() - 1).unwrap(), 1, &to("a", Some(b"1"))).is_err());
        assert_eq!(Splice::of(&old, 0, &to("a", Some(b"1"))).unwrap_err(), BAD_LOCATION);
        let mut damaged = old.clone();
        damaged[4 + ENTRY + 1] = 2;
        assert_eq!(Splice::of(&damaged, 1, &to("a", Some(b"1"))).unwrap_err(), BAD_LOCATION);
        damaged = old;
        damaged[4 + 2 * ENTRY + 1] = 0xff;
        assert_eq!(Splice::of(&damaged, 1, &to("a", Some(b"1"))).unwrap_err(), NO_TEXT);
    }
}
