//! Records that are found by unique tags, in one round trip: by the node's own command, elsewhere
//! by a script.

use super::answers::{NIL, receive_parts};
use super::guard::must_be_unique;
use super::{Resp, RespTable, commands, tagged};
use crate::access::{PartReceiver, PartSet, RecordTag, TableId};
use crate::targets::wire::{Stream, Wire};
use nearstate_model::Result;

/// The record that a tag leads to: its key, then what a command says of it.
pub(super) const FIND: &[u8] = b"local key = redis.call('GET', KEYS[1])
if not key then return false end
return {key, redis.call(ARGV[2], ARGV[1] .. key, unpack(ARGV, 3))}";

impl<S: Stream> Resp<S> {
    /// Writes the request for the record that has a unique tag.
    pub(super) fn ask_find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
    ) -> Result<()> {
        let place = super::place(&self.places, table)?;
        must_be_unique(place, tag)?;
        let out = &mut self.wire.out;
        match &self.scripts {
            Some(scripts) => commands::find_request(out, &scripts.find, place, tag, wanted),
            None => tagged::find(out, b"FIND", place, tag, wanted),
        }
        Ok(())
    }

    /// Reads its answer; the key of what was found goes to `key`.
    pub(super) fn receive_find(
        &mut self,
        (table, wanted): (TableId, PartSet),
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let place = super::place(&self.places, table)?;
        if self.scripts.is_some() {
            receive_script(&mut self.wire, place, wanted, key, receive)
        } else {
            tagged::receive_find(&mut self.wire, place, wanted, key, receive)
        }
    }
}

/// Reads what the script that finds a record says: its key, then its parts.
fn receive_script<S: Stream>(
    wire: &mut Wire<S>,
    place: &RespTable,
    wanted: PartSet,
    key: &mut Vec<u8>,
    receive: &mut PartReceiver<'_>,
) -> Result<bool> {
    match wire.head()? {
        (b'$' | b'*', NIL) => return Ok(false),
        (b'*', 2) => {}
        other => return Err(wire.other(other, "a key and its parts")),
    }
    let found = wire.bulk()?;
    key.clear();
    key.extend_from_slice(&found);
    receive_parts(wire, place, wanted, receive)
}
