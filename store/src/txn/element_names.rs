//! Elements by their names: which of several changes counts, and changes of fields as changes of
//! blocks.

use std::collections::BTreeMap;

use nearstate_model::{Error, Result, invariant};

use crate::record::BlockChange;
use crate::record::fields::is_block_name;

/// A change of one element: its name, and the value of a field; `None` removes it. Members have the
/// value `Some(b"")`.
pub(crate) type ElementChange<'a> = (&'a [u8], Option<&'a [u8]>);

/// An element: its name, and the value of a field.
pub(crate) type ElementPair<'a> = (&'a [u8], &'a [u8]);

/// Names and their indices; few names are compared one by one.
pub(super) struct NameIndex<'a>(Option<BTreeMap<&'a [u8], usize>>);

/// Up to this many comparisons need no tree.
const COMPARISONS_MAX: usize = 1024;

impl<'a> NameIndex<'a> {
    pub(super) fn of(pairs: &[ElementPair<'a>], changes: usize) -> Self {
        let is_small = (pairs.len() + changes).saturating_mul(changes) <= COMPARISONS_MAX;
        let all = || pairs.iter().enumerate().map(|(index, (name, _))| (*name, index)).collect();
        Self((!is_small).then(all))
    }

    /// The index of a name; that behind the last one if it is new.
    pub(super) fn get_or_add<T>(&mut self, name: &'a [u8], pairs: &[(&[u8], T)]) -> usize {
        match &mut self.0 {
            Some(tree) => *tree.entry(name).or_insert(pairs.len()),
            None => pairs.iter().position(|(known, _)| *known == name).unwrap_or(pairs.len()),
        }
    }
}

/// Fields as blocks; of those with one name, the last one.
pub(super) fn last_of_each<'a>(pairs: &[(&'a [u8], &'a [u8])]) -> Result<Vec<BlockChange<'a>>> {
    blocks_of(pairs.iter().map(|(name, value)| (*name, Some(*value))))
}

/// Changes of elements as changes of blocks; of those with one name, the last one. Removals of
/// names that no block has are left out.
pub(super) fn blocks_of<'a>(
    changes: impl ExactSizeIterator<Item = ElementChange<'a>>,
) -> Result<Vec<BlockChange<'a>>> {
    let mut last: Vec<(&[u8], Option<&[u8]>)> = Vec::with_capacity(changes.len());
    let mut known = NameIndex::of(&[], changes.len());
    for (name, bytes) in changes {
        if bytes.is_none() && !is_block_name(name) {
            continue;
        }
        let at = known.get_or_add(name, &last);
        invariant!(at <= last.len(), "name {at} of {}", last.len());
        match last.get_mut(at) {
            Some(known) => known.1 = bytes,
            None => last.push((name, bytes)),
        }
    }
    let block = |(name, bytes): (&'a [u8], Option<&'a [u8]>)| {
        let text = str::from_utf8(name).map_err(|_| Error::BadName { bytes: name.len() })?;
        Ok(BlockChange { name: text, bytes })
    };
    last.into_iter().map(block).collect()
}
