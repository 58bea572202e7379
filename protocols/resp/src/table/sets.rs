//! Sets: a record of form *set*.

use super::{GROW_FAST, READ, READ_FAST, WRITE_FAST};
use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::Command;
use crate::commands::sets;

const ROW: Command = Command { keys: ArgPositions::ONE, group: CommandGroup::Sets, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "sadd",
        arity: -3,
        flags: GROW_FAST,
        summary: "Adds members to a set; answers how many are new.",
        complexity: "O(N), N members of the set, which is written anew",
        differs: "A set has at most 1048576 members.",
        run: sets::sadd,
        ..ROW
    },
    Command {
        name: "srem",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Takes members from a set; with the last one the key.",
        complexity: "O(N), N members of the set, which is written anew",
        run: sets::srem,
        ..ROW
    },
    Command {
        name: "smembers",
        arity: 2,
        flags: READ,
        summary: "All members.",
        complexity: "O(N), N members of the set",
        run: sets::smembers,
        ..ROW
    },
    Command {
        name: "sismember",
        arity: 3,
        flags: READ_FAST,
        summary: "Whether this is a member.",
        run: sets::sismember,
        ..ROW
    },
    Command {
        name: "smismember",
        arity: -3,
        flags: READ_FAST,
        summary: "Whether these are members, one by one.",
        complexity: "O(N), N members given",
        run: sets::smismember,
        ..ROW
    },
    Command {
        name: "scard",
        arity: 2,
        flags: READ_FAST,
        summary: "How many members there are.",
        run: sets::scard,
        ..ROW
    },
    Command {
        name: "spop",
        arity: -2,
        flags: WRITE_FAST,
        summary: "Takes members by chance, and answers them.",
        complexity: "O(N), N members of the set, which is written anew",
        run: sets::spop,
        ..ROW
    },
    Command {
        name: "srandmember",
        arity: -2,
        flags: READ,
        summary: "Members by chance.",
        complexity: "O(N), N members of the set, or asked for",
        differs: "With a count below zero at most 65536 members and 64 MiB are answered.",
        run: sets::srandmember,
        ..ROW
    },
    Command {
        name: "smove",
        arity: 4,
        flags: WRITE_FAST,
        keys: ArgPositions::TWO,
        summary: "Moves a member from one set to another.",
        complexity: "O(N), N members of the set, which is written anew",
        differs: "A set has at most 1048576 members.",
        run: sets::smove,
        ..ROW
    },
    Command {
        name: "sinter",
        arity: -2,
        flags: READ,
        keys: ArgPositions::ALL,
        summary: "What all sets have.",
        complexity: "O(N*M), N members of the smallest, M sets",
        run: sets::sinter,
        ..ROW
    },
    Command {
        name: "sunion",
        arity: -2,
        flags: READ,
        keys: ArgPositions::ALL,
        summary: "What any of the sets has.",
        complexity: "O(N), N members of all sets",
        run: sets::sunion,
        ..ROW
    },
    Command {
        name: "sdiff",
        arity: -2,
        flags: READ,
        keys: ArgPositions::ALL,
        summary: "What the first set has and no other.",
        complexity: "O(N), N members of all sets",
        run: sets::sdiff,
        ..ROW
    },
    Command {
        name: "sintercard",
        arity: -3,
        flags: READ.and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 1, first: 2, step: 1 },
        summary: "How many members all sets have.",
        complexity: "O(N*M), N members of the smallest, M sets",
        run: sets::sintercard,
        ..ROW
    },
    Command {
        name: "sscan",
        arity: -3,
        flags: READ,
        summary: "Walks the members of a set in parts.",
        complexity: "O(N), N members of the set",
        differs: "Answers the whole set in one call, whatever COUNT says.",
        run: sets::sscan,
        ..ROW
    },
];
