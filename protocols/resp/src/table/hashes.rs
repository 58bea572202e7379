//! Hashes: a record of form *named blocks*; a field is a block.

use super::{GROW_FAST, READ, READ_FAST, WRITE_FAST};
use crate::command::{ArgPositions, CommandGroup};
use crate::command_context::Command;
use crate::commands::hashes;

const ROW: Command = Command { keys: ArgPositions::ONE, group: CommandGroup::Hashes, ..super::ROW };

/// What the region can keep.
const FIELDS: &str = "At most 1024 fields, with names of 1 to 255 bytes of UTF-8 without a NUL.";

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "hset",
        arity: -4,
        flags: GROW_FAST,
        summary: "Sets fields of a hash; answers how many are new.",
        complexity: "O(N), N fields given",
        differs: FIELDS,
        run: hashes::hset,
        ..ROW
    },
    Command {
        name: "hmset",
        arity: -4,
        flags: GROW_FAST,
        summary: "Sets fields of a hash; answers OK.",
        complexity: "O(N), N fields given",
        differs: FIELDS,
        run: hashes::hmset,
        ..ROW
    },
    Command {
        name: "hsetnx",
        arity: 4,
        flags: GROW_FAST,
        summary: "Sets a field of a hash if it is not there.",
        differs: FIELDS,
        run: hashes::hsetnx,
        ..ROW
    },
    Command {
        name: "hget",
        arity: 3,
        flags: READ_FAST,
        summary: "The value of a field.",
        run: hashes::hget,
        ..ROW
    },
    Command {
        name: "hmget",
        arity: -3,
        flags: READ_FAST,
        summary: "The values of some fields.",
        complexity: "O(N), N fields given",
        run: hashes::hmget,
        ..ROW
    },
    Command {
        name: "hgetall",
        arity: 2,
        flags: READ,
        summary: "All fields with their values.",
        complexity: "O(N), N fields of the hash",
        run: hashes::hgetall,
        ..ROW
    },
    Command {
        name: "hdel",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Deletes fields; with the last one the key.",
        complexity: "O(N), N fields given",
        run: hashes::hdel,
        ..ROW
    },
    Command {
        name: "hexists",
        arity: 3,
        flags: READ_FAST,
        summary: "Whether a field is there.",
        run: hashes::hexists,
        ..ROW
    },
    Command {
        name: "hlen",
        arity: 2,
        flags: READ_FAST,
        summary: "How many fields there are.",
        run: hashes::hlen,
        ..ROW
    },
    Command {
        name: "hkeys",
        arity: 2,
        flags: READ,
        summary: "The names of all fields.",
        complexity: "O(N), N fields of the hash",
        run: hashes::hkeys,
        ..ROW
    },
    Command {
        name: "hvals",
        arity: 2,
        flags: READ,
        summary: "The values of all fields.",
        complexity: "O(N), N fields of the hash",
        run: hashes::hvals,
        ..ROW
    },
    Command {
        name: "hincrby",
        arity: 4,
        flags: GROW_FAST,
        summary: "Adds to the number in a field.",
        differs: FIELDS,
        run: hashes::hincrby,
        ..ROW
    },
    Command {
        name: "hincrbyfloat",
        arity: 4,
        flags: GROW_FAST,
        summary: "Adds a fraction to the number in a field.",
        differs: FIELDS,
        run: hashes::hincrbyfloat,
        ..ROW
    },
    Command {
        name: "hstrlen",
        arity: 3,
        flags: READ_FAST,
        summary: "The length of a field's value.",
        run: hashes::hstrlen,
        ..ROW
    },
    Command {
        name: "hscan",
        arity: -3,
        flags: READ,
        summary: "Walks the fields of a hash in parts.",
        complexity: "O(N), N fields of the hash",
        differs: "Answers the whole hash in one call, whatever COUNT says.",
        run: hashes::hscan,
        ..ROW
    },
    Command {
        name: "hrandfield",
        arity: -2,
        flags: READ,
        summary: "Fields by chance.",
        complexity: "O(N), N fields of the hash",
        differs: "With a count below zero at most 65536 fields and 64 MiB are answered.",
        run: hashes::hrandfield,
        ..ROW
    },
];
