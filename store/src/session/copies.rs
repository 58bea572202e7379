//! A transaction's private copies of objects, which callers change until the commit.
//!
//! A copy never moves, so that the C API can return a pointer into it, and it is aligned for every
//! C type. If only a part of an object is opened, only that part is copied. The rest is taken from
//! the region at the commit.

use std::ops::Range;

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result, invariant};

/// The alignment of C's `malloc`, sufficient for every basic type.
const ALIGN: usize = 16;
const _: () = assert!(ALIGN.is_power_of_two(), "an alignment is a power of two");

const NO_COPY: &str = "a copy of the transaction is named by its index";
const CUT: Corruption = Corruption("an object is shorter than when it was opened");

/// One private copy.
#[derive(Debug, Default)]
struct ObjectCopy {
    /// The object starts at `from`, where the memory is aligned. Empty while the copy is borrowed.
    memory: Vec<u8>,
    from: usize,
    len: usize,
    /// The filled ranges, ascending, with gaps between them.
    filled: Vec<Range<usize>>,
    /// A caller is writing into it.
    is_borrowed: bool,
}

/// All copies of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    all: Vec<ObjectCopy>,
    /// Bytes of all copies.
    pub(crate) bytes: usize,
}

/// A copy that a caller writes into, until [`Copies::return_copy`].
#[derive(Debug)]
pub(crate) struct BorrowedCopy {
    memory: Vec<u8>,
    from: usize,
}

impl BorrowedCopy {
    pub(crate) fn part(&mut self, range: &Range<usize>) -> &mut [u8] {
        let (from, to) = (self.from + range.start, self.from + range.end);
        guaranteed(self.memory.get_mut(from..to), "a part lies within its object")
    }
}

impl Copies {
    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.bytes = 0;
    }

    /// Adds a copy of `len` zero bytes. A new object is filled: the region has no version of it. A
    /// page of a large copy is allocated by the kernel when it is first written.
    pub(crate) fn add(&mut self, len: usize, is_new: bool) -> usize {
        let memory = vec![0; len + ALIGN - 1];
        let from = memory.as_ptr().align_offset(ALIGN);
        invariant!(from < ALIGN, "a copy is aligned by skipping {from} bytes");
        let mut filled = Vec::new();
        if is_new && len > 0 {
            filled.push(0..len);
        }
        self.all.push(ObjectCopy { memory, from, len, filled, is_borrowed: false });
        self.bytes += len;
        self.all.len() - 1
    }

    pub(crate) fn len(&self, which: usize) -> usize {
        guaranteed(self.all.get(which), NO_COPY).len
    }

    fn get(&mut self, which: usize) -> Result<&mut ObjectCopy> {
        let copy = guaranteed(self.all.get_mut(which), NO_COPY);
        if copy.is_borrowed {
            return Err(borrowed());
        }
        invariant!(copy.memory.len() == copy.len + ALIGN - 1, "copy {which} is complete");
        Ok(copy)
    }

    /// Fills a part from the object as it was read, except where it is filled already.
    pub(crate) fn fill(&mut self, which: usize, part: Range<usize>, old: &[u8]) -> Result<()> {
        let copy = self.get(which)?;
        invariant!(part.end <= copy.len, "{part:?} lies in an object of {} bytes", copy.len);
        if part.is_empty() || copy.filled.iter().any(|f| f.start <= part.start && part.end <= f.end)
        {
            return Ok(());
        }
        // The object is read from the region again: its size is checked, not asserted.
        if old.len() < part.end {
            return Err(CUT.into());
        }
        let mut merged = part.clone();
        let mut at = part.start;
        let mut others = Vec::with_capacity(copy.filled.len() + 1);
        for filled in copy.filled.drain(..) {
            if filled.end < part.start || filled.start > part.end {
                others.push(filled);
                continue;
            }
            take(&mut copy.memory, copy.from, at..filled.start, old);
            at = at.max(filled.end);
            merged = merged.start.min(filled.start)..merged.end.max(filled.end);
        }
        take(&mut copy.memory, copy.from, at..part.end, old);
        let at = others.partition_point(|filled| filled.start < merged.start);
        others.insert(at, merged);
        invariant!(
            others.is_sorted_by(|one, next| one.end < next.start),
            "the filled parts of a copy ascend without touching: {others:?}"
        );
        copy.filled = others;
        Ok(())
    }

    /// The bytes of a part, which is filled.
    pub(crate) fn part(&mut self, which: usize, range: &Range<usize>) -> Result<&[u8]> {
        let copy = self.get(which)?;
        let (from, to) = (copy.from + range.start, copy.from + range.end);
        Ok(guaranteed(copy.memory.get(from..to), "a part lies within its object"))
    }

    /// A pointer to a part. It may be written through until the transaction ends.
    pub(crate) fn pointer(&mut self, which: usize, range: &Range<usize>) -> Result<*mut u8> {
        let copy = self.get(which)?;
        invariant!(
            range.start <= range.end && range.end <= copy.len,
            "{range:?} lies in an object of {} bytes",
            copy.len
        );
        Ok(copy.memory.as_mut_ptr().wrapping_add(copy.from + range.start))
    }

    /// Lends a copy to a caller. Until it is returned, every other use of it is refused.
    pub(crate) fn borrow_copy(&mut self, which: usize) -> Result<BorrowedCopy> {
        let copy = self.get(which)?;
        copy.is_borrowed = true;
        Ok(BorrowedCopy { memory: std::mem::take(&mut copy.memory), from: copy.from })
    }

    pub(crate) fn return_copy(&mut self, which: usize, borrowed: BorrowedCopy) {
        let copy = guaranteed(self.all.get_mut(which), NO_COPY);
        invariant!(copy.is_borrowed && copy.memory.is_empty(), "copy {which} is returned once");
        invariant!(borrowed.from == copy.from, "copy {which} is returned unchanged");
        copy.memory = borrowed.memory;
        copy.is_borrowed = false;
    }

    /// The object after the commit, in parts: filled ranges from the copy, the rest from `old`.
    pub(crate) fn parts<'a>(&'a self, which: usize, old: &'a [u8]) -> Result<Vec<&'a [u8]>> {
        let copy = guaranteed(self.all.get(which), NO_COPY);
        if copy.is_borrowed {
            return Err(borrowed());
        }
        let mut parts = Vec::with_capacity(2 * copy.filled.len() + 1);
        let mut at = 0;
        for filled in &copy.filled {
            // The object is read from the region again: its size is checked, not asserted.
            parts.push(old.get(at..filled.start).ok_or(CUT)?);
            let (from, to) = (copy.from + filled.start, copy.from + filled.end);
            parts.push(guaranteed(
                copy.memory.get(from..to),
                "a filled part lies within its object",
            ));
            at = filled.end;
        }
        if at < copy.len {
            parts.push(old.get(at..copy.len).ok_or(CUT)?);
        }
        Ok(parts)
    }
}

/// Copies a range of the object into the copy. An empty or reversed range, which is filled already,
/// copies nothing.
fn take(memory: &mut [u8], from: usize, range: Range<usize>, old: &[u8]) {
    if range.start >= range.end {
        return;
    }
    let target = from + range.start..from + range.end;
    let new = guaranteed(memory.get_mut(target), "a part lies within its copy");
    new.copy_from_slice(guaranteed(old.get(range), "a part lies within its object"));
}

#[cold]
fn borrowed() -> Error {
    Error::BadArgument {
        detail: "a function is writing the object: use the bytes that it was given, or open the \
                 object again after it has returned"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Parts are opened in any order, overlapping, and written. The result has each written
        /// byte, and the old one elsewhere.
        #[test]
        fn a_copy_that_was_opened_in_parts_gives_the_whole_object(
            len in 1..200_usize,
            opens in prop::collection::vec((0..200_usize, 0..60_usize, any::<bool>()), 0..12),
        ) {
            let old: Vec<u8> = (0..=u8::MAX).take(len).collect();
            let mut expected = old.clone();
            let mut copies = Copies::default();
            let which = copies.add(len, false);
            let mut first = None;
            for (round, (at, bytes, writes)) in (100_u8..).zip(opens) {
                let from = at.min(len);
                let range = from..(from + bytes).min(len);
                copies.fill(which, range.clone(), &old).unwrap();
                prop_assert_eq!(copies.part(which, &range).unwrap(), &expected[range.clone()]);
                let here = copies.pointer(which, &(0..0)).unwrap();
                prop_assert_eq!(*first.get_or_insert(here), here);
                prop_assert_eq!(here.align_offset(ALIGN), 0);
                if writes {
                    let mut lent = copies.borrow_copy(which).unwrap();
                    lent.part(&range).fill(round);
                    expected[range].fill(round);
                    copies.return_copy(which, lent);
                }
                let whole: Vec<u8> = copies.parts(which, &old).unwrap().concat();
                prop_assert_eq!(&whole, &expected);
            }
        }
    }

    #[test]
    fn a_borrowed_copy_is_refused_to_other_callers() {
        let mut copies = Copies::default();
        let which = copies.add(8, true);
        let lent = copies.borrow_copy(which).unwrap();
        assert!(copies.part(which, &(0..8)).is_err());
        assert!(copies.pointer(which, &(0..8)).is_err());
        assert!(copies.borrow_copy(which).is_err());
        assert!(copies.parts(which, &[]).is_err());
        copies.return_copy(which, lent);
        assert_eq!(copies.part(which, &(0..8)).unwrap(), [0; 8]);
    }
}
