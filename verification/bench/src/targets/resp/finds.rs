//! Records that are found by unique tags, in one round trip: by the node's own command, elsewhere
//! by a script.

use super::answers::{NIL, hear_parts};
use super::guard::must_be_unique;
use super::{Place, Resp, commands, tagged};
use crate::access::{Hear, Parts, Table, Tag};
use crate::targets::wire::{Stream, Wire};
use nearstate_model::Result;

/// The record that a tag leads to: its key, then what a command says of it.
pub(super) const FIND: &[u8] = b"local key = redis.call('GET', KEYS[1])
if not key then return false end
return {key, redis.call(ARGV[2], ARGV[1] .. key, unpack(ARGV, 3))}";

impl<S: Stream> Resp<S> {
    /// Writes the request for the record that has a unique tag.
    pub(super) fn ask_find(&mut self, table: Table, tag: Tag<'_>, wanted: Parts) -> Result<()> {
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
    pub(super) fn hear_find(
        &mut self,
        (table, wanted): (Table, Parts),
        key: &mut Vec<u8>,
        hear: &mut Hear<'_>,
    ) -> Result<bool> {
        let place = super::place(&self.places, table)?;
        if self.scripts.is_some() {
            hear_script(&mut self.wire, place, wanted, key, hear)
        } else {
            tagged::hear_find(&mut self.wire, place, wanted, key, hear)
        }
    }
}

/// Reads what the script that finds a record says: its key, then its parts.
fn hear_script<S: Stream>(
    wire: &mut Wire<S>,
    place: &Place,
    wanted: Parts,
    key: &mut Vec<u8>,
    hear: &mut Hear<'_>,
) -> Result<bool> {
    match wire.head()? {
        (b'$' | b'*', NIL) => return Ok(false),
        (b'*', 2) => {}
        other => return Err(wire.other(other, "a key and its parts")),
    }
    let found = wire.bulk()?;
    key.clear();
    key.extend_from_slice(&found);
    hear_parts(wire, place, wanted, hear)
}
