//! Hash commands.

use super::{GROW_FAST, READ, READ_FAST, WRITE_FAST};
use crate::command::{ArgPositions, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::hashes;

const ROW: RespCommand =
    RespCommand { keys: ArgPositions::ONE, group: CommandGroup::Hashes, ..super::ROW };

/// The limit of `DUMP`.
const FIELDS: &str = "A name has at most 65535 bytes.";

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "hset",
        arity: -4,
        flags: GROW_FAST,
        summary: "Sets one or more fields of a hash. Returns the number of fields that were added.",
        complexity: "O(N), N fields given",
        differs: FIELDS,
        run: hashes::hset,
        ..ROW
    },
    RespCommand {
        name: "hmset",
        arity: -4,
        flags: GROW_FAST,
        summary: "Sets one or more fields of a hash. Returns OK.",
        complexity: "O(N), N fields given",
        differs: FIELDS,
        run: hashes::hmset,
        ..ROW
    },
    RespCommand {
        name: "hsetnx",
        arity: 4,
        flags: GROW_FAST,
        summary: "Sets a field of a hash if the field does not exist.",
        differs: FIELDS,
        run: hashes::hsetnx,
        ..ROW
    },
    RespCommand {
        name: "hget",
        arity: 3,
        flags: READ_FAST,
        summary: "Returns the value of a field of a hash.",
        run: hashes::hget,
        ..ROW
    },
    RespCommand {
        name: "hmget",
        arity: -3,
        flags: READ_FAST,
        summary: "Returns the values of one or more fields of a hash.",
        complexity: "O(N), N fields given",
        run: hashes::hmget,
        ..ROW
    },
    RespCommand {
        name: "hgetall",
        arity: 2,
        flags: READ,
        summary: "Returns all fields and values of a hash.",
        complexity: "O(N), N fields of the hash",
        run: hashes::hgetall,
        ..ROW
    },
    RespCommand {
        name: "hdel",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Deletes one or more fields of a hash. Deletes the hash if no field remains.",
        complexity: "O(N), N fields given",
        run: hashes::hdel,
        ..ROW
    },
    RespCommand {
        name: "hexists",
        arity: 3,
        flags: READ_FAST,
        summary: "Returns whether a field exists in a hash.",
        run: hashes::hexists,
        ..ROW
    },
    RespCommand {
        name: "hlen",
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the number of fields of a hash.",
        run: hashes::hlen,
        ..ROW
    },
    RespCommand {
        name: "hkeys",
        arity: 2,
        flags: READ,
        summary: "Returns all fields of a hash.",
        complexity: "O(N), N fields of the hash",
        run: hashes::hkeys,
        ..ROW
    },
    RespCommand {
        name: "hvals",
        arity: 2,
        flags: READ,
        summary: "Returns all values of a hash.",
        complexity: "O(N), N fields of the hash",
        run: hashes::hvals,
        ..ROW
    },
    RespCommand {
        name: "hincrby",
        arity: 4,
        flags: GROW_FAST,
        summary: "Increments the integer value of a field of a hash by a number.",
        differs: FIELDS,
        run: hashes::hincrby,
        ..ROW
    },
    RespCommand {
        name: "hincrbyfloat",
        arity: 4,
        flags: GROW_FAST,
        summary: "Increments the floating-point value of a field of a hash by a number.",
        differs: FIELDS,
        run: hashes::hincrbyfloat,
        ..ROW
    },
    RespCommand {
        name: "hstrlen",
        arity: 3,
        flags: READ_FAST,
        summary: "Returns the length of the value of a field of a hash.",
        run: hashes::hstrlen,
        ..ROW
    },
    RespCommand {
        name: "hscan",
        arity: -3,
        flags: READ,
        summary: "Iterates over the fields and values of a hash.",
        complexity: "O(N), N fields returned",
        differs: "At most 1000 fields in one call; a hash of up to 128 fields is returned whole. \
                  NOVALUES as in Redis 7.4.",
        run: hashes::hscan,
        ..ROW
    },
    RespCommand {
        name: "hrandfield",
        arity: -2,
        flags: READ,
        summary: "Returns one or more random fields of a hash.",
        complexity: "O(N), N fields requested",
        differs: "Returns at most 65536 fields, or all; with a negative count at most 64 MiB.",
        run: hashes::hrandfield,
        ..ROW
    },
];
