//! Background work that keeps free memory usable for any size and returns it to the host
//! (`docs/decisions/015-evacuation.md`).

pub use nearstate_memory::FreeWatch;

use nearstate_memory::Evacuation;
use nearstate_model::{Result, invariant};

use crate::session::Session;

/// Moves live records together, a part at a time, so that the chunks that they leave are free as a
/// whole. Dropping it ends the work; what was moved stays moved.
#[derive(Debug)]
pub struct Defragmentation<'s> {
    session: &'s Session,
    evacuation: Option<Evacuation>,
    moved: u64,
}

impl Session {
    /// Begins to move records out of the chunks of 256 KiB with the fewest live bytes, at most an
    /// eighth of the region, if at least `share_min` percent of the memory in partly used chunks is
    /// free. `None` if less is free, while this session has a view or a transaction, and as long as
    /// nothing has changed since its last such call made no chunk free.
    ///
    /// The write path does the same work at once when it finds no room, so calling this is never
    /// necessary: it keeps writers from waiting. Other sessions read and write meanwhile.
    ///
    /// Complexity: linear in the number of chunks.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `System`.
    pub fn defragment(&self, share_min: u64) -> Result<Option<Defragmentation<'_>>> {
        let begun = self.member.begin_evacuation(share_min)?;
        Ok(begun.map(|begun| Defragmentation { session: self, evacuation: Some(begun), moved: 0 }))
    }

    /// Begins a watch, to find out later whether memory has come free since
    /// ([`Session::has_freed`]). A look for work that found none needs no other one until then.
    ///
    /// Complexity: linear in the number of sessions.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`.
    pub fn watch_free(&self) -> Result<FreeWatch> {
        self.member.watch_free()
    }

    /// False if no process has freed memory since then, and no reader or process that held some has
    /// ended.
    ///
    /// Complexity: linear in the number of sessions.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`.
    pub fn has_freed(&self, since: &FreeWatch) -> Result<bool> {
        self.member.has_freed(since)
    }

    /// The bytes of memory that no record uses, in chunks of 256 KiB that are free as a whole and
    /// that the host has not got back.
    ///
    /// Complexity: linear in the number of chunks.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn free_chunk_bytes(&self) -> Result<u64> {
        self.member.free_chunk_bytes()
    }

    /// Gets pages from the host before writers need them, so that new records need no system call:
    /// until `ahead` free chunks of 256 KiB have pages, 64 and a sixteenth of the region at most.
    /// `most` chunks get pages in this call. Returns their number; 0 also if the host has no more.
    ///
    /// For a thread that has time, as the region grows: each call replaces what writers have used
    /// since the last one. Pages are also mapped into this process, for its writers. Without a NUMA
    /// policy of the region they are on the node of this thread. They stay free memory of the
    /// region, which [`Session::release_free_memory`] returns to the host.
    ///
    /// Complexity: linear in the last 512 chunks; some 100 us for each chunk that gets pages.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `System`.
    pub fn commit_ahead(&self, ahead: u64, most: u64) -> Result<u64> {
        self.member.commit_ahead(ahead, most)
    }

    /// Gives memory of free chunks back to the host (`fallocate(2)` with `FALLOC_FL_PUNCH_HOLE`),
    /// except `keep` bytes, and at most `most` chunks of 256 KiB. Returns the bytes. The region
    /// gets pages again when it needs them; if the host has none then, the error is `Full`.
    ///
    /// Complexity: a system call of 20 to 100 us for each chunk.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `System`.
    pub fn release_free_memory(&self, keep: u64, most: u64) -> Result<u64> {
        self.member.release_free_chunks(keep, most)
    }
}

impl Defragmentation<'_> {
    /// Moves what is live in some more units of 64 bytes. True if nothing is left to do.
    ///
    /// Complexity: 10 to 100 ns for each unit that is in use, and the copies of what is moved.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Stalled`, `Damaged`, `System`. The work is over then.
    pub fn step(&mut self, units: u64) -> Result<bool> {
        let Some(evacuation) = &mut self.evacuation else { return Ok(true) };
        let done = self.session.member.continue_evacuation(evacuation, units);
        invariant!(evacuation.moved() >= self.moved, "records that were moved count again");
        self.moved = evacuation.moved();
        if !matches!(done, Ok(false)) {
            self.evacuation = None;
        }
        done
    }

    /// The number of records that were moved.
    pub const fn moved(&self) -> u64 {
        self.moved
    }
}

impl Drop for Defragmentation<'_> {
    fn drop(&mut self) {
        if let Some(evacuation) = &self.evacuation {
            // What is left are hints for other sessions, which a failure leaves as they are.
            let _ = self.session.member.give_up_evacuation(evacuation);
        }
    }
}
