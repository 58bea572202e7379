//! What makes room for a transaction that a full heap has refused, so that it runs again.

use nearstate_model::Result;

use crate::session::Session;

/// The largest number of evacuations that free memory for one transaction.
const EVACUATIONS_MAX: u32 = 4;

/// What was done for one transaction.
#[derive(Debug, Default)]
pub(crate) struct RoomAttempts {
    evacuations: u32,
    /// Waits for readers.
    waits: u32,
    /// Collections of expired records.
    pub(crate) collections: u32,
}

impl Session {
    /// True if an evacuation can free memory for a transaction that found none, or if the reserve
    /// has got back what it had lent, so that it can lend again.
    #[cold]
    pub(crate) fn may_evacuate(&self, attempts: &mut RoomAttempts) -> Result<bool> {
        let is_due = self.member.is_evacuation_due() || self.member.has_returned_lent();
        if is_due && attempts.evacuations < EVACUATIONS_MAX {
            attempts.evacuations += 1;
            return Ok(true);
        }
        // Others have replaced records that readers hold.
        if self.member.waits_for_lent_if_due(&mut attempts.waits)? {
            return Ok(true);
        }
        if is_due {
            self.member.note_vain_evacuation()?;
        }
        Ok(false)
    }
}
