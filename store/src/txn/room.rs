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
        if let Error::LimitReached { namespace, .. } = refusal {
            return Ok(self.collect_for_limit(namespace, &mut attempts.collections));
        }
        Ok(!has_time_limit && self.may_evacuate(attempts)?
            || self.member.wait_and_return_if_due(&mut attempts.waits)?
            || self.collect_for_room(&mut attempts.collections))
    }

    /// After an update of a record that was read for it: if a full region has refused it, the next
    /// read for an update makes room. The record holds a pin until then, under which nothing comes
    /// free.
    #[cold]
    pub(crate) fn note_refused_update(&self, refusal: &Error) {
        if matches!(refusal, Error::Full { .. }) {
            self.internal.is_room_due.set(true);
        }
    }

    /// Makes room if the last update was refused: moves live records together, and waits for
    /// readers or collects expired records. Not while a view of this session is held.
    #[cold]
    pub(crate) fn make_room_for_update(&self) -> Result<()> {
        if self.member.has_pin() {
            return Ok(());
        }
        self.internal.is_room_due.set(false);
        if self.member.is_evacuation_due() {
            self.member.evacuate_if_due()?;
        }
        if !self.member.wait_and_return_if_due(&mut ReaderWaits::default())? {
            self.collect_for_room(&mut 0);
        }
        Ok(())
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
