//! Tag commands, an extension of Redis: `docs/decisions/011-tags-over-resp.md`.

use super::{GROW, READ, READ_FAST};
use crate::command::{AclCategories, ArgPositions, CommandFlags, CommandGroup, KeyspaceScope};
use crate::command_context::RespCommand;
use crate::commands::tags;

const ROW: RespCommand =
    RespCommand { group: CommandGroup::Tags, differs: "Is not there.", ..super::ROW };

/// Commands on one record.
const OF_KEY: RespCommand = RespCommand { keys: ArgPositions::span(2, 2, 1), ..ROW };

/// Commands on a namespace, written as `{ns},*`.
const OF_NAMESPACE: RespCommand = RespCommand { walk: KeyspaceScope::Pattern(2), ..ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "tag",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for records with tags, which index the records. See \
                  docs/decisions/011-tags-over-resp.md.",
        differs: "Not in Redis.",
        ..ROW
    },
    RespCommand {
        name: "tag|declare",
        arity: -4,
        flags: GROW,
        // Cannot be undone, and may make later writes fail.
        also: AclCategories::DANGEROUS,
        summary: "Declares a tag for the namespace `{ns},*`, with the options UNIQUE, ORDERED, \
                  COUNTED and REQUIRED.",
        complexity: "O(N), N records of the namespace. If records contradict the declaration, \
                     O(M), M entries of all indexes",
        differs: "Not in Redis. Not allowed between MULTI and EXEC. A declaration cannot be \
                  removed; a namespace has at most 32 tags. Other clients are served during the \
                  command. If the connection is lost or the region is full, repeat the command: \
                  until it succeeds, lookups by the tag are rejected.",
        run: tags::declare,
        ..OF_NAMESPACE
    },
    RespCommand {
        name: "tag|set",
        arity: -5,
        flags: GROW,
        summary: "Sets the value of a key and its tags, or keeps the current tags with KEEP. NX \
                  and XX as in SET.",
        complexity: "O(N), N tags added and removed; O(log(M)) for each ORDERED tag, M records",
        differs: "Not in Redis. A record has at most 64 tags with values of at most 1024 bytes. \
                  TAGTAKEN: another record has the value of a unique tag, and nothing was changed.",
        run: tags::set,
        ..OF_KEY
    },
    RespCommand {
        name: "tag|hset",
        arity: -7,
        flags: GROW,
        summary: "Sets fields of a hash and all of its tags, with NX or XX. Returns the number of \
                  fields that were added.",
        complexity: "O(N), N fields and tags added and removed; O(log(M)) for each ORDERED tag, M \
                     records",
        differs: "Not in Redis. Limits and errors as for TAG SET and HSET.",
        run: tags::hset,
        ..OF_KEY
    },
    RespCommand {
        name: "tag|change",
        arity: -4,
        flags: GROW,
        summary: "Replaces the tags of a key. Returns whether the key exists.",
        complexity: "O(N), N bytes of the record",
        differs: "Not in Redis. Limits and errors as for TAG SET.",
        run: tags::change,
        ..OF_KEY
    },
    RespCommand {
        name: "tag|of",
        arity: 3,
        flags: READ_FAST,
        summary: "Returns the tags of a key with their values.",
        run: tags::of,
        differs: "Not in Redis.",
        ..OF_KEY
    },
    RespCommand {
        name: "tag|find",
        arity: -5,
        flags: READ,
        summary: "Returns the key and the record that have a value of a unique tag: the whole \
                  record or some fields of a hash.",
        complexity: "O(N), N bytes of the record",
        differs: "Not in Redis. Between MULTI and EXEC the lookup uses the tags as of MULTI.",
        run: tags::find,
        ..OF_NAMESPACE
    },
    RespCommand {
        name: "tag|keys",
        arity: -5,
        flags: READ,
        summary: "Returns the keys of all records that have a value of a tag, or at most COUNT of \
                  them.",
        complexity: "O(N), N keys returned, and expired records that are not yet collected",
        differs: "Not in Redis. Rejected if more than 4096 keys match and COUNT is not given. \
                  Returns BUSY if more than 16384 matching records have expired; some of them are \
                  then collected. Between MULTI and EXEC as for TAG FIND.",
        run: tags::keys,
        ..OF_NAMESPACE
    },
    RespCommand {
        name: "tag|watch",
        arity: 5,
        flags: READ.and(CommandFlags::NOSCRIPT),
        summary: "Monitors a value of a unique tag and the record that has it, until the next \
                  EXEC.",
        differs: "Not in Redis. Counts as a key of WATCH. UNWATCH, DISCARD and EXEC remove it.",
        run: tags::watch,
        ..OF_NAMESPACE
    },
];
