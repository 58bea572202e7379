//! Searches by unique tags in one round trip: by the node's own command, or by a script.

use super::answers::{receive_key, receive_parts};
use super::guard::must_be_unique;
use super::{Resp, commands, tagged};
use crate::access::{PartReceiver, PartSet, RecordTag, TableId};
use crate::targets::wire::Stream;
use nearstate_model::Result;

/// The record that has a tag: its key, then the reply to a command with that key.
pub(super) const FIND: &[u8] = b"local key = redis.call('GET', KEYS[1])
if not key then return false end
return {key, redis.call(ARGV[2], ARGV[1] .. key, unpack(ARGV, 3))}";

impl<S: Stream> Resp<S> {
    /// Writes the request for the record that has a unique tag.
    pub(super) fn request_find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
    ) -> Result<()> {
        let resp_table = super::resp_table(&self.tables, table)?;
        must_be_unique(resp_table, tag)?;
        let out = &mut self.wire.out;
        match &self.scripts {
            Some(scripts) => commands::find_request(out, &scripts.find, resp_table, tag, wanted),
            None => tagged::find(out, b"FIND", resp_table, tag, wanted),
        }
        Ok(())
    }

    /// Receives its reply; writes the key of the record to `key`.
    pub(super) fn receive_find(
        &mut self,
        (table, wanted): (TableId, PartSet),
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let resp_table = super::resp_table(&self.tables, table)?;
        if self.scripts.is_none() {
            return tagged::receive_find(&mut self.wire, resp_table, wanted, key, receive);
        }
        let is_found = receive_key(&mut self.wire, b"", key)?;
        Ok(is_found && receive_parts(&mut self.wire, resp_table, wanted, receive)?)
    }
}
