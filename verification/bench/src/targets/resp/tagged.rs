//! Records with tags by the node's own command (`TAG`). Other servers need a script or a watch.

use super::RespTable;
use super::answers::NIL;
use super::commands::{self, RespCommands};
use crate::access::{PartReceiver, PartSet, PartsChange, RecordTag, Request, first_part};
use crate::targets::wire::{Stream, Wire};
use nearstate_model::Result;

/// The command for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagCommand {
    /// `TAG SET` or `TAG HSET`, with the condition that the record exists or does not.
    Write { must_exist: bool },
    /// `TAG SET .. KEEP XX`: SET would remove the tags.
    Value,
    /// `TAG CHANGE`.
    Retag,
    /// `EXISTS`: nothing changes.
    Exists,
    /// `DEL`, which also removes the tags.
    Delete,
}

impl TagCommand {
    /// `None` if commands of Redis suffice.
    pub(super) fn of(resp_table: &RespTable, request: &Request<'_>) -> Option<Self> {
        let has_tags = !resp_table.schema.tags.is_empty();
        match request {
            Request::Read { .. } | Request::Find { .. } => None,
            Request::Put { .. } => has_tags.then_some(Self::Write { must_exist: false }),
            Request::Delete { .. } => has_tags.then_some(Self::Delete),
            Request::Change { change: PartsChange { parts, tags, .. }, .. } => {
                match (tags.is_some(), parts.is_empty()) {
                    (true, false) => Some(Self::Write { must_exist: true }),
                    (true, true) => Some(Self::Retag),
                    (false, true) => Some(Self::Exists),
                    (false, false) => (has_tags && resp_table.is_plain()).then_some(Self::Value),
                }
            }
        }
    }

    /// Appends the command.
    pub(super) fn write(
        self,
        resp_table: &RespTable,
        request: &Request<'_>,
        out: &mut RespCommands,
    ) {
        let (key, parts, tags) = match request {
            Request::Read { key, .. } | Request::Delete { key, .. } => (*key, &[][..], &[][..]),
            Request::Find { .. } => (&[][..], &[][..], &[][..]),
            Request::Put { entry, .. } => (entry.key, entry.parts, entry.tags),
            Request::Change { change, .. } => {
                (change.key, change.parts, change.tags.map_or(&[][..], |(_, after)| after))
            }
        };
        match self {
            Self::Write { must_exist } => {
                let condition = usize::from(must_exist);
                if resp_table.is_plain() {
                    head(out, (b"SET", 3 + 2 * tags.len() + condition), resp_table, key);
                    out.word(first_part(parts));
                } else {
                    let words = 3 + 2 * parts.len() + 2 * tags.len() + condition;
                    head(out, (b"HSET", words), resp_table, key);
                    out.number(parts.len());
                    for (part, bytes) in parts {
                        out.word(resp_table.part(*part));
                        out.word(bytes);
                    }
                }
                write_tags(resp_table, tags, out);
                if must_exist {
                    out.word(b"XX");
                }
            }
            Self::Value => {
                head(out, (b"SET", 4), resp_table, key);
                out.word(first_part(parts));
                out.word(b"KEEP");
                out.word(b"XX");
            }
            Self::Retag => {
                head(out, (b"CHANGE", 2 + 2 * tags.len()), resp_table, key);
                write_tags(resp_table, tags, out);
            }
            Self::Exists | Self::Delete => {
                out.command(2);
                out.word(if self == Self::Exists { b"EXISTS" } else { b"DEL" });
                out.key(&resp_table.prefix, key);
            }
        }
    }

    /// True if it was done: the record existed, or need not exist.
    pub(super) fn receive<S: Stream>(self, wire: &mut Wire<S>) -> Result<bool> {
        match (wire.head()?, self) {
            ((b'$', NIL), Self::Write { must_exist: true } | Self::Value) => Ok(false),
            ((b'+', _), Self::Write { .. } | Self::Value) | ((b':', _), Self::Write { .. }) => {
                Ok(true)
            }
            ((b':', count), Self::Retag | Self::Exists | Self::Delete) => Ok(count > 0),
            (other, _) => Err(wire.other(other, "a reply to a command on a record with tags")),
        }
    }
}

/// `TAG name key`, with the number of words after `TAG name`.
fn head(out: &mut RespCommands, (name, words): (&[u8], usize), resp_table: &RespTable, key: &[u8]) {
    out.command(2 + words);
    out.word(b"TAG");
    out.word(name);
    out.key(&resp_table.prefix, key);
}

fn write_tags(resp_table: &RespTable, tags: &[RecordTag<'_>], out: &mut RespCommands) {
    out.number(tags.len());
    for (tag, value) in tags {
        out.word(resp_table.tag_name(*tag));
        out.word(value);
    }
}

/// Declares the tags of a table; returns the number of replies.
pub(super) fn declare(resp_table: &RespTable, out: &mut Vec<u8>) -> usize {
    for rule in resp_table.schema.tags {
        commands::head(out, if rule.is_unique { 5 } else { 4 });
        commands::word(out, b"TAG");
        commands::word(out, b"DECLARE");
        commands::two(out, &resp_table.prefix, b"*");
        commands::word(out, rule.name.as_bytes());
        if rule.is_unique {
            commands::word(out, b"UNIQUE");
        }
    }
    resp_table.schema.tags.len()
}

/// `TAG FIND`, or a command with the same first arguments.
pub(super) fn find(
    out: &mut Vec<u8>,
    command: &[u8],
    resp_table: &RespTable,
    (tag, value): RecordTag<'_>,
    wanted: PartSet,
) {
    let fields = commands::fields_of(resp_table, wanted);
    commands::head(out, 5 + fields);
    commands::word(out, b"TAG");
    commands::word(out, command);
    commands::two(out, &resp_table.prefix, b"*");
    commands::word(out, resp_table.tag_name(tag));
    commands::word(out, value);
    commands::field_names(out, resp_table, wanted, fields);
}

/// Receives the reply to `FIND`; false if no record has the tag.
pub(super) fn receive_find<S: Stream>(
    wire: &mut Wire<S>,
    resp_table: &RespTable,
    wanted: PartSet,
    key: &mut Vec<u8>,
    receive: &mut PartReceiver<'_>,
) -> Result<bool> {
    if !super::answers::receive_key(wire, &resp_table.prefix, key)? {
        return Ok(false);
    }
    if wanted.is_empty() {
        return wire.skip().map(|()| true);
    }
    super::answers::receive_parts(wire, resp_table, wanted, receive)
}
