//! What the reserve lends, and what ordinary allocations leave (`docs/decisions/013-heap.md`).

use nearstate_model::{Result, invariant};

use crate::heap::chunk::{ChunkIndex, chunks_used, lent, state_of};
use crate::heap::refill::no_room;
use crate::layout::{CHUNK_UNITS, ordinary_chunks};
use crate::member::Member;

/// The share of the heap that ordinary allocations leave while a reader is stalled: what
/// operations replace and delete does not come free then, and the reserve is a 64th.
const STALLED_SHARE: u64 = 32;

/// The share of the reserve that is kept for deletions while a reader is stalled. Each node of an
/// index is held once, and its next versions come free, so that what is kept serves as many
/// deletions as there are nodes of so many bytes.
const DELETIONS_SHARE: u64 = 2;

const _: () = assert!(STALLED_SHARE != 0 && DELETIONS_SHARE > 1, "shares divide");

impl Member {
    /// True if a reader was stalled when this member last looked at the pins.
    pub(crate) fn has_stalled_reader(&self) -> bool {
        !self.safe_epochs.borrow().stalled.is_empty()
    }

    /// The end of the chunks of the reserve that the current operation may use. The last chunk is
    /// kept for the compaction of another one, and for deletions; while a reader is stalled, a half
    /// of the reserve is: deletions succeed although the reader holds what the rest has lent.
    pub(crate) fn lendable_end(&self) -> u64 {
        let (known, chunks) = (&self.refusals.lent, self.map().chunks());
        let ordinary = ordinary_chunks(chunks);
        let reserve = chunks - ordinary;
        invariant!(reserve != 0, "a heap has a reserve");
        if known.is_compacting.get() || known.is_deletion.get() {
            chunks
        } else if self.has_stalled_reader() {
            chunks - reserve.div_ceil(DELETIONS_SHARE)
        } else {
            chunks - 1
        }
    }

    /// Units that ordinary allocations leave for operations that do not make the content larger,
    /// apart from the reserve: none, unless a reader is stalled.
    pub(crate) fn kept_for_stalled(&self) -> u64 {
        if self.has_stalled_reader() {
            ordinary_chunks(self.map().chunks()) * CHUNK_UNITS / STALLED_SHARE
        } else {
            0
        }
    }

    /// Fails if an ordinary allocation would leave fewer free units than the reserve has lent, and
    /// than are kept while a reader is stalled: what frees memory must not run out of it.
    pub(crate) fn keep_reserve(&self, units: u64) -> Result<()> {
        if self.may_use_reserve.get() || self.refusals.lent.is_returning.get() {
            return Ok(());
        }
        let map = self.map();
        let kept = lent(map)? + self.kept_for_stalled();
        let used = chunks_used(map)?;
        let mut free = (ordinary_chunks(map.chunks()) - used) * CHUNK_UNITS;
        let mut chunks = (0..used).map(ChunkIndex);
        while kept != 0 && free < kept + units {
            let Some(chunk) = chunks.next() else { return Err(no_room()) };
            free += state_of(map, chunk)?.free();
        }
        Ok(())
    }
}
