//! A transaction's private copies of objects: where a caller writes until the commit.
//!
//! A copy never moves, so that a face may hand out a pointer into it, and it begins where any C
//! type may begin. Of an object of which only a part is opened, only that part is copied; the rest
//! comes from the region at the commit.

use std::ops::Range;

use nearstate_model::{Error, Result};

/// What `malloc` promises in C: the alignment of every basic type.
const ALIGN: usize = 16;

/// One private copy.
#[derive(Debug, Default)]
struct Copy {
    /// The bytes, behind as many as the alignment takes. Empty while a caller has it.
    room: Vec<u8>,
    from: usize,
    len: usize,
    /// What is filled: ascending, without gaps of no bytes.
    filled: Vec<Range<usize>>,
    /// A caller is writing into it.
    is_lent: bool,
}

/// All of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    all: Vec<Copy>,
    /// Bytes of all of them.
    pub(crate) bytes: usize,
}

/// A copy that a caller has for itself, to be given back.
#[derive(Debug)]
pub(crate) struct Lent {
    room: Vec<u8>,
    from: usize,
}

impl Lent {
    pub(crate) fn part(&mut self, range: &Range<usize>) -> &mut [u8] {
        let (from, to) = (self.from + range.start, self.from + range.end);
        self.room.get_mut(from..to).unwrap_or_default()
    }
}

impl Copies {
    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.bytes = 0;
    }

    /// A copy of `len` bytes, all of them 0. Nothing of it is filled unless `is_new`: then there is
    /// no other version of the object, and all of it is. The memory of a large one is touched where
    /// it is written.
    pub(crate) fn add(&mut self, len: usize, is_new: bool) -> usize {
        let room = vec![0; len + ALIGN - 1];
        let from = room.as_ptr().align_offset(ALIGN).min(ALIGN - 1);
        let mut filled = Vec::new();
        if is_new && len > 0 {
            filled.push(0..len);
        }
        self.all.push(Copy { room, from, len, filled, is_lent: false });
        self.bytes += len;
        self.all.len() - 1
    }

    pub(crate) fn len(&self, which: usize) -> usize {
        self.all.get(which).map_or(0, |copy| copy.len)
    }

    fn get(&mut self, which: usize) -> Result<&mut Copy> {
        match self.all.get_mut(which) {
            Some(copy) if !copy.is_lent => Ok(copy),
            _ => Err(lent()),
        }
    }

    /// Fills a part from the object as it was read, but for what is filled already.
    pub(crate) fn fill(&mut self, which: usize, part: Range<usize>, old: &[u8]) -> Result<()> {
        let copy = self.get(which)?;
        if part.is_empty() || copy.filled.iter().any(|f| f.start <= part.start && part.end <= f.end)
        {
            return Ok(());
        }
        let mut merged = part.clone();
        let mut at = part.start;
        let mut others = Vec::with_capacity(copy.filled.len() + 1);
        for filled in copy.filled.drain(..) {
            if filled.end < part.start || filled.start > part.end {
                others.push(filled);
                continue;
            }
            take(&mut copy.room, copy.from, at..filled.start, old);
            at = at.max(filled.end);
            merged = merged.start.min(filled.start)..merged.end.max(filled.end);
        }
        take(&mut copy.room, copy.from, at..part.end, old);
        let place = others.partition_point(|filled| filled.start < merged.start);
        others.insert(place, merged);
        copy.filled = others;
        Ok(())
    }

    /// The bytes of a part, which is filled.
    pub(crate) fn part(&mut self, which: usize, range: &Range<usize>) -> Result<&[u8]> {
        let copy = self.get(which)?;
        let (from, to) = (copy.from + range.start, copy.from + range.end);
        Ok(copy.room.get(from..to).unwrap_or_default())
    }

    /// Where a part begins, to be written through until the transaction ends.
    pub(crate) fn pointer(&mut self, which: usize, range: &Range<usize>) -> Result<*mut u8> {
        let copy = self.get(which)?;
        Ok(copy.room.as_mut_ptr().wrapping_add(copy.from + range.start))
    }

    /// Hands a copy to a caller. Until it is given back nothing else can be done with it.
    pub(crate) fn lend(&mut self, which: usize) -> Result<Lent> {
        let copy = self.get(which)?;
        copy.is_lent = true;
        Ok(Lent { room: std::mem::take(&mut copy.room), from: copy.from })
    }

    pub(crate) fn give_back(&mut self, which: usize, lent: Lent) {
        if let Some(copy) = self.all.get_mut(which) {
            copy.room = lent.room;
            copy.is_lent = false;
        }
    }

    /// The object after the commit, in parts: what is filled from the copy, the rest from `old`.
    pub(crate) fn parts<'a>(&'a self, which: usize, old: &'a [u8]) -> Result<Vec<&'a [u8]>> {
        let Some(copy) = self.all.get(which).filter(|copy| !copy.is_lent) else {
            return Err(lent());
        };
        let mut parts = Vec::with_capacity(2 * copy.filled.len() + 1);
        let mut at = 0;
        for filled in &copy.filled {
            parts.push(old.get(at..filled.start).unwrap_or_default());
            let (from, to) = (copy.from + filled.start, copy.from + filled.end);
            parts.push(copy.room.get(from..to).unwrap_or_default());
            at = filled.end;
        }
        parts.push(old.get(at..copy.len).unwrap_or_default());
        Ok(parts)
    }
}

/// Copies a range of the object into the same place of the copy; a turned one is none.
fn take(room: &mut [u8], from: usize, range: Range<usize>, old: &[u8]) {
    let place = from + range.start..from + range.end;
    if let (Some(old), Some(new)) = (old.get(range), room.get_mut(place)) {
        new.copy_from_slice(old);
    }
}

#[cold]
fn lent() -> Error {
    Error::BadArgument {
        detail: "the object is being written by the function that is running now: use the bytes \
                 that it was given, or come back when it has returned"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Parts are opened in any order, overlapping, and written; the commit sees each written
        /// byte, and the old one wherever none was written.
        #[test]
        fn a_copy_opened_in_parts_becomes_the_whole_object(
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
                    let mut lent = copies.lend(which).unwrap();
                    lent.part(&range).fill(round);
                    expected[range].fill(round);
                    copies.give_back(which, lent);
                }
                let whole: Vec<u8> = copies.parts(which, &old).unwrap().concat();
                prop_assert_eq!(&whole, &expected);
            }
        }
    }

    #[test]
    fn a_lent_copy_is_refused_to_others() {
        let mut copies = Copies::default();
        let which = copies.add(8, true);
        let lent = copies.lend(which).unwrap();
        assert!(copies.part(which, &(0..8)).is_err());
        assert!(copies.pointer(which, &(0..8)).is_err());
        assert!(copies.lend(which).is_err());
        assert!(copies.parts(which, &[]).is_err());
        copies.give_back(which, lent);
        assert_eq!(copies.part(which, &(0..8)).unwrap(), [0; 8]);
    }
}
