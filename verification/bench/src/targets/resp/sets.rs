//! Sets: one SADD for each member, and SMEMBERS.

use super::{Resp, commands};
use crate::targets::wire::Stream;
use nearstate_model::Result;

impl<S: Stream> Resp<S> {
    /// Adds a member; false if the set had it.
    pub(super) fn sadd(&mut self, set: &[u8], member: &[u8]) -> Result<bool> {
        commands::request(&mut self.wire.out, &[b"SADD", set, member]);
        self.send()?;
        match self.wire.head()? {
            (b':', added @ (0 | 1)) => Ok(added == 1),
            other => Err(self.wire.other(other, "the number of new members")),
        }
    }

    /// Delivers all members of a set.
    pub(super) fn smembers(&mut self, set: &[u8], receive: &mut dyn FnMut(&[u8])) -> Result<()> {
        commands::request(&mut self.wire.out, &[b"SMEMBERS", set]);
        self.send()?;
        for _ in 0..self.wire.array()? {
            receive(&self.wire.bulk()?);
        }
        Ok(())
    }
}
