//! Gives the pages of free chunks back to the host.

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::bitmap::Bitmap;
use crate::heap::chunk::{ChunkIndex, chunks_used, state_of};
use crate::layout::{CHUNK_BYTES, SUPER_PAGE};
use crate::member::arena::LockSlot;
use crate::member::{Member, lock};

impl Member {
    /// The bytes of chunks that have pages and no allocated unit. The reserve does not count.
    ///
    /// Cost: the words of all chunks, 32 bytes for each MiB of the heap.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn free_chunk_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for chunk in (0..chunks_used(self.map())?).map(ChunkIndex) {
            let state = state_of(self.map(), chunk)?;
            bytes += if state.used == 0 && state.has_pages { CHUNK_BYTES } else { 0 };
        }
        Ok(bytes)
    }

    /// Gives the pages of free chunks back to the host, except `keep` bytes, and at most `most`
    /// chunks of 256 KiB. Returns the bytes. A chunk gets pages again before it is used. The
    /// reserve keeps its pages.
    ///
    /// Cost: a system call of 20 to 100 us for each chunk; its lock is held meanwhile. 0 on a file
    /// system without holes, and in a region whose pages are larger than a chunk.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `System`.
    pub fn release_free_chunks(&self, keep: u64, most: u64) -> Result<u64> {
        self.check_usable()?;
        let map = self.map();
        if map.word(SUPER_PAGE)?.load(Ordering::Relaxed) > CHUNK_BYTES {
            return Ok(0);
        }
        let (mut left, mut released) = (self.free_chunk_bytes()?.saturating_sub(keep), 0);
        // From the end: searches take the first chunks first.
        for chunk in (0..chunks_used(map)?).rev().map(ChunkIndex) {
            if left < CHUNK_BYTES || released >= most.saturating_mul(CHUNK_BYTES) {
                break;
            }
            let state = state_of(map, chunk)?;
            if state.used != 0 || !state.has_pages {
                continue;
            }
            invariant!(left >= CHUNK_BYTES, "more is released than is free");
            match self.operation(|| self.release_chunk(chunk))? {
                Some(true) => (left, released) = (left - CHUNK_BYTES, released + CHUNK_BYTES),
                Some(false) => break, // No holes here.
                None => {}
            }
        }
        Ok(released)
    }

    /// `None` if the chunk is busy or was used meanwhile, false if its pages cannot be released.
    fn release_chunk(&self, chunk: ChunkIndex) -> Result<Option<bool>> {
        let map = self.map();
        let done = self.under_chunk(chunk, None, |state| {
            // The bitmap decides: a flipped bit of the word must not free what is in use.
            let used = u64::from(Bitmap::load(chunk.bitmap(map)?).used());
            if used != 0 || !state.has_pages {
                state.used = used;
                return Ok(None);
            }
            // First the word: a chunk that is said to have no pages gets them before it is used. A
            // kill in between leaves pages that the next use finds.
            invariant!(self.has_lock(LockSlot::Leaf), "a chunk loses pages without its lock");
            state.has_pages = false;
            lock::hold_with(map.word(chunk.word_at(map))?, self.lock_owner(), state.encode());
            crash_point!("release.noted");
            let is_done = map.release(chunk.start(), CHUNK_BYTES)?;
            state.has_pages = !is_done;
            crash_point!("release.done");
            Ok(Some(is_done))
        })?;
        Ok(done.flatten())
    }
}
