//! Strings: a record of form *value*, or of a namespace of values.

use super::{GROW, GROW_FAST, READ, READ_FAST, WRITE_FAST};
use crate::command::{ArgPositions, CommandGroup};
use crate::command_context::Command;
use crate::commands::strings as run;

/// What the region can keep.
const LENGTH: &str = "A value has at most 128 MiB.";

const ROW: Command =
    Command { keys: ArgPositions::ONE, group: CommandGroup::Strings, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "get",
        run: run::get,
        arity: 2,
        flags: READ_FAST,
        summary: "The value of a key.",
        ..ROW
    },
    Command {
        name: "set",
        run: run::set,
        arity: -3,
        flags: GROW,
        summary: "Sets a key to a value, whatever was there.",
        differs: "An EXAT or PXAT that has passed deletes the key at once: DBSIZE does not count \
                  it.",
        ..ROW
    },
    Command {
        name: "setnx",
        run: run::setnx,
        arity: 3,
        flags: GROW_FAST,
        summary: "Sets a key to a value if it is not there.",
        ..ROW
    },
    Command {
        name: "setex",
        run: run::setex,
        arity: 4,
        flags: GROW,
        summary: "Sets a key to a value that ends after some seconds.",
        ..ROW
    },
    Command {
        name: "psetex",
        run: run::psetex,
        arity: 4,
        flags: GROW,
        summary: "Sets a key to a value that ends after some milliseconds.",
        ..ROW
    },
    Command {
        name: "getset",
        run: run::getset,
        arity: 3,
        flags: GROW_FAST,
        summary: "Sets a key to a value, and answers the one before.",
        ..ROW
    },
    Command {
        name: "getdel",
        run: run::getdel,
        arity: 2,
        flags: WRITE_FAST,
        summary: "Answers the value of a key, and deletes it.",
        ..ROW
    },
    Command {
        name: "getex",
        run: run::getex,
        arity: -2,
        flags: WRITE_FAST,
        summary: "Answers the value of a key, and changes when it ends.",
        ..ROW
    },
    Command {
        name: "mget",
        run: run::mget,
        arity: -2,
        flags: READ_FAST,
        keys: ArgPositions::ALL,
        summary: "The values of some keys.",
        complexity: "O(N), N keys",
        ..ROW
    },
    Command {
        name: "mset",
        run: run::mset,
        arity: -3,
        flags: GROW,
        keys: ArgPositions::span(1, -1, 2),
        summary: "Sets some keys to values, all or none.",
        complexity: "O(N), N keys",
        ..ROW
    },
    Command {
        name: "msetnx",
        run: run::msetnx,
        arity: -3,
        flags: GROW,
        keys: ArgPositions::span(1, -1, 2),
        summary: "Sets some keys to values if none of them is there.",
        complexity: "O(N), N keys",
        ..ROW
    },
    Command {
        name: "append",
        run: run::append,
        arity: 3,
        flags: GROW_FAST,
        summary: "Appends to a value, or sets it.",
        complexity: "O(N), N bytes of the new value",
        differs: LENGTH,
        ..ROW
    },
    Command {
        name: "strlen",
        run: run::strlen,
        arity: 2,
        flags: READ_FAST,
        summary: "The length of a value.",
        ..ROW
    },
    Command {
        name: "getrange",
        run: run::getrange,
        arity: 4,
        flags: READ,
        summary: "A part of a value.",
        complexity: "O(N), N bytes of the part",
        ..ROW
    },
    Command {
        name: "setrange",
        run: run::setrange,
        arity: 4,
        flags: GROW,
        summary: "Overwrites a part of a value.",
        complexity: "O(N), N bytes of the new value",
        differs: LENGTH,
        ..ROW
    },
    Command {
        name: "incr",
        run: run::incr,
        arity: 2,
        flags: GROW_FAST,
        summary: "Adds one to the number in a value.",
        ..ROW
    },
    Command {
        name: "decr",
        run: run::decr,
        arity: 2,
        flags: GROW_FAST,
        summary: "Takes one from the number in a value.",
        ..ROW
    },
    Command {
        name: "incrby",
        run: run::incrby,
        arity: 3,
        flags: GROW_FAST,
        summary: "Adds to the number in a value.",
        ..ROW
    },
    Command {
        name: "decrby",
        run: run::decrby,
        arity: 3,
        flags: GROW_FAST,
        summary: "Takes from the number in a value.",
        ..ROW
    },
    Command {
        name: "incrbyfloat",
        run: run::incrbyfloat,
        arity: 3,
        flags: GROW_FAST,
        summary: "Adds a fraction to the number in a value.",
        ..ROW
    },
];
