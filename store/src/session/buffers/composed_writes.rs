//! The parts of a transaction's writes that take memory of their own: patches of named blocks, and
//! changes of divided collections.

use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;

use crate::session::buffers::{BlockWrite, ElementsWrite, Write};

/// The place of a write in its list of the buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteIndex(u32);

/// The patches and the changes of divided collections that a transaction makes.
#[derive(Debug, Default)]
pub(crate) struct ComposedWrites {
    /// The changed blocks of each patch. Those behind the used ones are kept for the patches of
    /// later transactions.
    patches: Vec<Vec<BlockWrite>>,
    patches_used: usize,
    /// The changes of each divided collection; `None` while one is being changed.
    elements: Vec<Option<ElementsWrite>>,
}

impl ComposedWrites {
    /// The changed blocks of a patch.
    pub(crate) fn patch(&self, index: WriteIndex) -> &[BlockWrite] {
        debug_assert!((index.0 as usize) < self.patches_used, "a patch of this transaction");
        guaranteed(self.patches.get(index.0 as usize).map(Vec::as_slice), NO_WRITE)
    }

    pub(super) fn patch_mut(&mut self, index: WriteIndex) -> &mut Vec<BlockWrite> {
        debug_assert!((index.0 as usize) < self.patches_used, "a patch of this transaction");
        guaranteed(self.patches.get_mut(index.0 as usize), NO_WRITE)
    }

    /// Adds a patch without changes.
    pub(crate) fn add_patch(&mut self) -> WriteIndex {
        if self.patches_used == self.patches.len() {
            self.patches.push(Vec::new());
        }
        self.patches_used += 1;
        let index = last_of(self.patches_used);
        debug_assert!(self.patch(index).is_empty(), "a new patch has no changes");
        index
    }

    /// Adds a patch with these changes.
    pub(crate) fn add_patch_of(&mut self, changes: Vec<BlockWrite>) -> WriteIndex {
        let index = self.add_patch();
        *self.patch_mut(index) = changes;
        index
    }

    /// Removes all writes. The memory of some small patches is kept.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.patches_used != 0 {
            self.clear_patches();
        }
        self.elements.clear();
    }

    fn clear_patches(&mut self) {
        self.patches.truncate(PATCHES_KEPT);
        for changes in self.patches.iter_mut().take(self.patches_used) {
            changes.clear();
            if changes.capacity() > CHANGES_KEPT {
                *changes = Vec::new();
            }
        }
        self.patches_used = 0;
    }

    /// The changes of a divided collection.
    pub(crate) fn elements(&self, index: WriteIndex) -> &ElementsWrite {
        let elements = self.elements.get(index.0 as usize);
        guaranteed(elements.and_then(Option::as_ref), NO_WRITE)
    }

    /// Adds the changes of a divided collection.
    pub(crate) fn add_elements(&mut self, write: ElementsWrite) -> Write {
        self.elements.push(Some(write));
        Write::Elements(last_of(self.elements.len()))
    }

    /// Takes the changes of a divided collection, which are given back with
    /// [`ComposedWrites::give_elements`].
    pub(crate) fn take_elements(&mut self, index: WriteIndex) -> ElementsWrite {
        guaranteed(self.elements.get_mut(index.0 as usize).and_then(Option::take), NO_WRITE)
    }

    /// Removes changes of a divided collection that change nothing.
    pub(crate) fn drop_elements(&mut self, index: WriteIndex) {
        self.take_elements(index);
        if index.0 as usize + 1 == self.elements.len() {
            self.elements.pop();
        }
    }

    pub(crate) fn give_elements(&mut self, index: WriteIndex, write: ElementsWrite) {
        let place = guaranteed(self.elements.get_mut(index.0 as usize), NO_WRITE);
        invariant!(place.is_none(), "the changes of a collection were taken");
        *place = Some(write);
    }
}

/// Patches whose memory a session keeps between transactions, and the most changes of one that is
/// kept: 20 KiB in all.
pub(super) const PATCHES_KEPT: usize = 64;
pub(super) const CHANGES_KEPT: usize = 16;

const NO_WRITE: &str = "a write names what the buffers have of it";

/// The index of the last of so many writes.
fn last_of(writes: usize) -> WriteIndex {
    let index = writes.checked_sub(1).and_then(|last| u32::try_from(last).ok());
    WriteIndex(guaranteed(index, "a transaction has fewer than 2^32 writes"))
}

#[cfg(test)]
impl ComposedWrites {
    /// How many patches, and how many changes of them, the kept memory has room for.
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.patches.len(), self.patches.iter().map(Vec::capacity).sum())
    }
}
