//! What makes room for a transaction that a full heap has refused, so that it runs again.

use nearstate_memory::ReaderWaits;
use nearstate_model::{Error, Result};

use crate::session::Session;

/// The largest number of evacuations that free memory for one transaction.
const EVACUATIONS_MAX: u32 = 4;

/// What was done for one transaction.
#[derive(Debug, Default)]
pub(crate) struct RoomAttempts {
    evacuations: u32,
    waits: ReaderWaits,
    /// Collections of expired records.
    collections: u32,
}

impl Session {
    /// After a transaction was refused by a full heap, or because a namespace has reached its
    /// limit, which counts expired records until they are collected: true if it should run again. A
    /// transaction with a time limit waits and collects, but evacuates nothing.
    #[cold]
    pub(crate) fn makes_room(
        &self,
        refusal: &Error,
        attempts: &mut RoomAttempts,
        has_time_limit: bool,
    ) -> Result<bool> {
        if matches!(refusal, Error::LimitReached { .. }) {
            return Ok(self.collect_for_limit(&mut attempts.collections));
        }
        Ok(!has_time_limit && self.may_evacuate(attempts)?
            || self.member.wait_and_return_if_due(&mut attempts.waits)?
            || self.collect_for_room(&mut attempts.collections))
    }

    /// True if an evacuation can free memory for a transaction that found none, or if the reserve
    /// has got back what it had lent, so that it can lend again.
    fn may_evacuate(&self, attempts: &mut RoomAttempts) -> Result<bool> {
        if !self.member.is_evacuation_due() && !self.member.has_returned_lent() {
            return Ok(false);
        }
        attempts.evacuations += 1;
        if attempts.evacuations > EVACUATIONS_MAX {
            self.member.note_vain_evacuation()?;
            return Ok(false);
        }
        Ok(true)
    }
}
