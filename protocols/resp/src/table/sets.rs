//! Set commands.

use super::{GROW, GROW_FAST, READ, READ_FAST, WRITE_FAST};
use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::sets;

const ROW: RespCommand =
    RespCommand { keys: ArgPositions::ONE, group: CommandGroup::Sets, ..super::ROW };

/// Of a large set, a part is copied.
const ADDED: &str = "O(N), N members given; O(sqrt(M)) bytes are copied for each, M members";

/// The keys of an operation are read at one instant.
const KEYS: &str = "At most 4096 different keys.";

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "sadd",
        arity: -3,
        flags: GROW_FAST,
        summary: "Adds one or more members to a set. Returns the number of members that were \
                  added.",
        complexity: ADDED,
        run: sets::sadd,
        ..ROW
    },
    RespCommand {
        name: "srem",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Removes one or more members from a set. Deletes the set if no member remains.",
        complexity: "O(N), N members given",
        run: sets::srem,
        ..ROW
    },
    RespCommand {
        name: "smembers",
        arity: 2,
        flags: READ,
        summary: "Returns all members of a set.",
        complexity: "O(N), N members of the set",
        run: sets::smembers,
        ..ROW
    },
    RespCommand {
        name: "sismember",
        arity: 3,
        flags: READ_FAST,
        summary: "Returns whether a value is a member of a set.",
        run: sets::sismember,
        ..ROW
    },
    RespCommand {
        name: "smismember",
        arity: -3,
        flags: READ_FAST,
        summary: "Returns whether each of one or more values is a member of a set.",
        complexity: "O(N), N members given",
        run: sets::smismember,
        ..ROW
    },
    RespCommand {
        name: "scard",
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the number of members of a set.",
        run: sets::scard,
        ..ROW
    },
    RespCommand {
        name: "spop",
        arity: -2,
        flags: WRITE_FAST,
        summary: "Removes and returns one or more random members of a set.",
        complexity: "O(N), N members returned",
        differs: "At most 65536 members in one call.",
        run: sets::spop,
        ..ROW
    },
    RespCommand {
        name: "srandmember",
        arity: -2,
        flags: READ,
        summary: "Returns one or more random members of a set.",
        complexity: "O(N), N members requested",
        differs: "Returns at most 65536 members, or all; with a negative count at most 64 MiB.",
        run: sets::srandmember,
        ..ROW
    },
    RespCommand {
        name: "smove",
        arity: 4,
        flags: WRITE_FAST,
        keys: ArgPositions::TWO,
        summary: "Moves a member from one set to another.",
        run: sets::smove,
        ..ROW
    },
    RespCommand {
        name: "sinter",
        arity: -2,
        flags: READ,
        keys: ArgPositions::ALL,
        summary: "Returns the members that are in all sets.",
        complexity: "O(N*M), N members of the smallest of M sets",
        differs: KEYS,
        run: sets::sinter,
        ..ROW
    },
    RespCommand {
        name: "sunion",
        arity: -2,
        flags: READ,
        keys: ArgPositions::ALL,
        summary: "Returns the members that are in any of the sets.",
        complexity: "O(N), N members of all sets",
        differs: KEYS,
        run: sets::sunion,
        ..ROW
    },
    RespCommand {
        name: "sdiff",
        arity: -2,
        flags: READ,
        keys: ArgPositions::ALL,
        summary: "Returns the members of the first set that are in none of the other sets.",
        complexity: "O(N), N members of all sets",
        differs: KEYS,
        run: sets::sdiff,
        ..ROW
    },
    RespCommand {
        name: "sinterstore",
        arity: -3,
        flags: GROW,
        keys: ArgPositions::ALL,
        summary: "Stores the members that are in all sets. Returns their number.",
        complexity: "O(N*M), N members of the smallest of M sets",
        differs: KEYS,
        run: sets::sinterstore,
        ..ROW
    },
    RespCommand {
        name: "sunionstore",
        arity: -3,
        flags: GROW,
        keys: ArgPositions::ALL,
        summary: "Stores the members that are in any of the sets. Returns their number.",
        complexity: "O(N), N members of all sets",
        differs: KEYS,
        run: sets::sunionstore,
        ..ROW
    },
    RespCommand {
        name: "sdiffstore",
        arity: -3,
        flags: GROW,
        keys: ArgPositions::ALL,
        summary: "Stores the members of the first set that are in none of the other sets. Returns \
                  their number.",
        complexity: "O(N), N members of all sets",
        differs: KEYS,
        run: sets::sdiffstore,
        ..ROW
    },
    RespCommand {
        name: "sintercard",
        arity: -3,
        flags: READ.and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 1, first: 2, step: 1 },
        summary: "Returns the number of members that are in all sets.",
        complexity: "O(N*M), N members of the smallest of M sets",
        differs: KEYS,
        run: sets::sintercard,
        ..ROW
    },
    RespCommand {
        name: "sscan",
        arity: -3,
        flags: READ,
        summary: "Iterates over the members of a set.",
        complexity: "O(N), N members returned",
        differs: "At most 1000 members in one call; a set of up to 128 members is returned whole.",
        run: sets::sscan,
        ..ROW
    },
];
