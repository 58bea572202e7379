//! Waits before an operation that may use the reserve is refused (`docs/decisions/013-heap.md`).
//!
//! What operations have replaced comes free when the readers that began before have ended. A reader
//! that only waits for a processor ends within some time slices. One that is stopped, or that keeps
//! a view, may not: a member waits for it once.

use std::time::Instant;

use nearstate_model::{Result, invariant};

use super::{READERS_PAUSE, READERS_WAIT_MAX};
use crate::heap::chunk::lent;
use crate::heap::refusal::pins;
use crate::member::pin::DISTANCE;
use crate::member::refusals::ReaderWaits;
use crate::member::{Member, pin};

/// The most runs of one operation after waits: another operation may take what has come free.
pub(super) const RUNS_AFTER_WAITS_MAX: u32 = 8;

impl Member {
    /// Before an operation is refused that may use the reserve: waits for readers that may hold
    /// what was replaced, and brings back what the reserve has lent. True if the operation should
    /// run again.
    ///
    /// Cost: all waits for one operation take [`READERS_WAIT_MAX`] together. A reader that did not
    /// end meanwhile is not waited for again. Without a reader, and if a return has brought back
    /// nothing since the heap had as much free memory, some words for each chunk and a barrier.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged` (the epoch, or the file is truncated).
    #[cold]
    pub(crate) fn wait_and_return(&self, waits: &mut ReaderWaits) -> Result<bool> {
        invariant!(!self.has_pin(), "two members with pins would wait for each other");
        invariant!(self.has_no_lock(), "a member waits for readers while it holds a lock");
        invariant!(!self.is_in_operation(), "no other takes what a member keeps while it waits");
        invariant!(!self.may_use_reserve.get(), "records would be moved into the reserve");
        let known = &self.refusals.lent;
        let before = (lent(self.map())?, self.free_units()?);
        if before.0 == 0 || waits.runs >= RUNS_AFTER_WAITS_MAX {
            return Ok(false); // The whole reserve is too small for it.
        }
        let until = *waits.until.get_or_insert_with(|| Instant::now() + READERS_WAIT_MAX);
        let has_ended = self.wait_for_readers_once(until)?;
        if !has_ended && known.vain_wait.get() == Some(before) {
            return Ok(false);
        }
        if has_ended {
            known.vain_left.set(0);
            known.compacted_at.set(0);
        }
        // A failure is found again by the operation.
        let _ = self.operation(|| self.free_all());
        let _ = self.return_lent();
        self.check_usable()?;
        let after = (lent(self.map())?, self.free_units()?);
        let is_freer = after.0 < before.0 || after.1 > before.1;
        known.vain_wait.set((!is_freer).then_some(after));
        // Without more free memory it runs once: what others have freed may be in their queues.
        let may_run = is_freer || has_ended && !waits.was_vain;
        waits.was_vain |= !is_freer;
        waits.runs += u32::from(may_run);
        Ok(may_run)
    }

    /// As `wait_and_return`, for an operation that was refused while this member had a pin, which
    /// has ended. False if there was none.
    ///
    /// Cost: one load if there was none.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged` (the epoch, or the file is truncated).
    #[inline]
    pub fn wait_and_return_if_due(&self, waits: &mut ReaderWaits) -> Result<bool> {
        if !self.refusals.lent.is_wait_due.get() || self.has_pin() {
            return Ok(false);
        }
        self.refusals.lent.is_wait_due.set(false);
        self.wait_and_return(waits)
    }

    /// Waits until no pin is left that began before now, except those for which this member has
    /// waited before. True if a pin of either kind has ended.
    fn wait_for_readers_once(&self, until: Instant) -> Result<bool> {
        let retired = pin::birth_epoch(self.epoch());
        let (mut first, mut has_ended): (Option<Vec<u64>>, bool) = (None, false);
        loop {
            self.advance()?;
            let mut old = self.readers_before(retired + DISTANCE)?;
            let mut waited_for = self.refusals.lent.waited_for.borrow_mut();
            let known = waited_for.len();
            waited_for.retain(|start| old.contains(start));
            has_ended |= waited_for.len() < known;
            old.retain(|start| !waited_for.contains(start));
            let first = first.get_or_insert_with(|| old.clone());
            if old.is_empty() {
                return Ok(has_ended || !first.is_empty());
            }
            if Instant::now() >= until {
                has_ended |= first.iter().any(|start| !old.contains(start));
                waited_for.append(&mut old);
                return Ok(has_ended);
            }
            drop(waited_for);
            // It may be this processor that they wait for.
            std::thread::park_timeout(READERS_PAUSE);
        }
    }

    /// The starts of the pins that began before an epoch. Two readers can have the same.
    fn readers_before(&self, epoch: u64) -> Result<Vec<u64>> {
        let starts = pins(self.map())?.map(|(_, start)| start);
        Ok(starts.filter(|start| *start < epoch).collect())
    }
}
