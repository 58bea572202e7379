//! Gives free chunks their pages before a writer needs them. A writer that takes a chunk without
//! pages waits until the kernel has cleared them: some 100 us for 256 KiB.

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::heap::bitmap::Bitmap;
use crate::heap::chunk::{ChunkIndex, chunks_used, state_of};
use crate::heap::refill::SEARCH_WINDOW;
use crate::layout::{CHUNK_BYTES, SUPER_PAGE, ordinary_chunks};
use crate::member::Member;

/// The most chunks that have pages ahead of the writers: 16 MiB, which new records fill in 10 to
/// 20 ms. Writers that are faster get pages for themselves, as without this.
pub(crate) const AHEAD_CHUNKS_MAX: u64 = 64;

/// The share of the heap that has pages ahead of the writers, at most: what a node does not give
/// back to the host.
pub(crate) const AHEAD_SHARE: u64 = 16;

const _: () = assert!(AHEAD_CHUNKS_MAX < SEARCH_WINDOW, "a call sees all that it counts");
const _: () = assert!(AHEAD_SHARE > 1, "records have most of the heap");

impl Member {
    /// Gives free chunks pages until `ahead` of them have some, [`AHEAD_CHUNKS_MAX`] and an
    /// [`AHEAD_SHARE`] of the heap at most; `most` of them in this call. Returns the number of
    /// chunks that got pages. Where the file system has none left, there are fewer.
    ///
    /// Looks at the last chunks in use, where writers of a growing region look, and adds chunks
    /// behind them. The chunks are free: any member takes them, and
    /// [`Member::release_free_chunks`] gives their pages back.
    ///
    /// Cost: the words of 512 chunks, and some 100 us for each chunk, whose lock is held meanwhile:
    /// a writer that meets it takes another chunk. 0 in a region whose pages are larger than a
    /// chunk: one takes longer, and serves several chunks.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `System`.
    pub fn commit_ahead(&self, ahead: u64, most: u64) -> Result<u64> {
        self.check_usable()?;
        let map = self.map();
        if map.word(SUPER_PAGE)?.load(Ordering::Relaxed) > CHUNK_BYTES {
            return Ok(0);
        }
        let share = ordinary_chunks(map.chunks()) / AHEAD_SHARE;
        let ahead = ahead.min(AHEAD_CHUNKS_MAX).min(share);
        let used = chunks_used(map)?;
        let window = || (used.saturating_sub(SEARCH_WINDOW)..used).map(ChunkIndex);
        let mut have = 0;
        for chunk in window() {
            let state = state_of(map, chunk)?;
            have += u64::from(state.used == 0 && state.has_pages);
        }
        invariant!(have <= SEARCH_WINDOW, "{have} chunks of {SEARCH_WINDOW} have pages");
        let wanted = ahead.saturating_sub(have).min(most);
        let mut done = 0;
        for chunk in window() {
            if done == wanted {
                return Ok(done);
            }
            let state = state_of(map, chunk)?;
            if state.used == 0 && !state.has_pages {
                match self.operation(|| self.commit_free_chunk(chunk))? {
                    Some(is_done) => done += u64::from(is_done),
                    None => return Ok(done),
                }
            }
        }
        while done < wanted {
            let Some(chunk) = self.operation(|| self.add_chunk())? else { break };
            match self.operation(|| self.commit_free_chunk(chunk))? {
                Some(is_done) => done += u64::from(is_done),
                None => break,
            }
        }
        invariant!(done <= wanted, "{done} chunks got pages, and {wanted} were wanted");
        Ok(done)
    }

    /// False if a writer has the chunk. `None` if the file system has no pages.
    fn commit_free_chunk(&self, chunk: ChunkIndex) -> Result<Option<bool>> {
        let done = self.under_chunk(chunk, None, |state| {
            // The bitmap decides: zeros must not be written over what is in use.
            let used = Bitmap::load(chunk.bitmap(self.map())?).used();
            if used != 0 || state.used != 0 || state.has_pages {
                return Ok(Some(false));
            }
            match self.commit_chunk(chunk, state) {
                Ok(()) => Ok(Some(true)),
                Err(Error::Full { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        // A busy chunk is being taken.
        Ok(done.unwrap_or(Some(false)))
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::fixture::{TestRegionPath, has_key, put_key};
    use crate::region::file::{CreateOptions, Region};

    const BYTES_MAX: u64 = 64 << 20;

    #[test]
    fn writers_use_the_pages_ahead_which_are_bounded_and_given_back() {
        let path = TestRegionPath::new("ahead");
        let options = CreateOptions { bytes_max: BYTES_MAX, ..CreateOptions::default() };
        let region = Region::create(path.path(), &options).unwrap();
        let (member, other) = (region.member().unwrap(), region.member().unwrap());
        let table = member.namespace(b"ahead", 1).unwrap();
        let (map, free) = (member.map(), || member.free_chunk_bytes().unwrap() / CHUNK_BYTES);
        assert_eq!(free(), 0);
        assert_eq!(other.commit_ahead(4, 3).unwrap(), 3);
        assert_eq!(other.commit_ahead(4, u64::MAX).unwrap(), 1);
        assert_eq!(other.commit_ahead(4, u64::MAX).unwrap(), 0, "there are four");
        let used = chunks_used(map).unwrap();
        for chunk in (used - 4..used).map(ChunkIndex) {
            assert!(map.is_allocated(chunk.start()) && map.is_allocated(chunk.end() - 1));
        }
        let mut keys = (0_u64..).map(u64::to_le_bytes);
        while free() > 0 {
            put_key(&member, table, &keys.next().unwrap()).unwrap();
            assert_eq!(chunks_used(map).unwrap(), used, "a writer has added a chunk");
        }
        let most = ordinary_chunks(map.chunks()) / AHEAD_SHARE;
        assert!(most < AHEAD_CHUNKS_MAX, "the share is the bound in a small region");
        assert_eq!(other.commit_ahead(u64::MAX, u64::MAX).unwrap(), most);
        let used = chunks_used(map).unwrap();
        assert_eq!(member.release_free_chunks(0, u64::MAX).unwrap(), most * CHUNK_BYTES);
        assert_eq!(free(), 0);
        // Chunks that have lost their pages come before new ones.
        assert_eq!(other.commit_ahead(u64::MAX, 5).unwrap(), 5);
        assert_eq!((free(), chunks_used(map).unwrap()), (5, used));
        let last = keys.next().unwrap();
        for key in (0_u64..).map(u64::to_le_bytes).take_while(|key| *key != last) {
            assert!(has_key(&member, table, &key).unwrap());
        }
        drop((member, other, region));
        let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
        assert!(report.is_clean(), "{report:#?}");
    }

    #[test]
    fn a_large_region_has_a_constant_number_of_chunks_ahead_and_a_full_one_none() {
        let path = TestRegionPath::new("ahead-large");
        let options = CreateOptions { bytes_max: 1 << 30, ..CreateOptions::default() };
        let region = Region::create(path.path(), &options).unwrap();
        let member = region.member().unwrap();
        assert_eq!(member.commit_ahead(u64::MAX, u64::MAX).unwrap(), AHEAD_CHUNKS_MAX);
        let rest = member.operation(|| {
            while member.allocate_extent(CHUNK_BYTES, false).is_ok() {}
            Ok(())
        });
        rest.unwrap();
        assert_eq!(chunks_used(member.map()).unwrap(), ordinary_chunks(member.map().chunks()));
        assert_eq!(member.commit_ahead(u64::MAX, u64::MAX).unwrap(), 0);
    }
}
