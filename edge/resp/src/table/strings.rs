//! Strings: a record of form *value*, or of a namespace of values.

use super::{GROW, GROW_FAST, READ, READ_FAST, WRITE_FAST};
use crate::client::Command;
use crate::command::{Group, Places};

const ROW: Command = Command { keys: Places::ONE, group: Group::Strings, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command { name: "get", arity: 2, flags: READ_FAST, summary: "The value of a key.", ..ROW },
    Command {
        name: "set",
        arity: -3,
        flags: GROW,
        summary: "Sets a key to a value, whatever was there.",
        ..ROW
    },
    Command {
        name: "setnx",
        arity: 3,
        flags: GROW_FAST,
        summary: "Sets a key to a value if it is not there.",
        ..ROW
    },
    Command {
        name: "setex",
        arity: 4,
        flags: GROW,
        summary: "Sets a key to a value that ends after some seconds.",
        ..ROW
    },
    Command {
        name: "psetex",
        arity: 4,
        flags: GROW,
        summary: "Sets a key to a value that ends after some milliseconds.",
        ..ROW
    },
    Command {
        name: "getset",
        arity: 3,
        flags: GROW_FAST,
        summary: "Sets a key to a value, and answers the one before.",
        ..ROW
    },
    Command {
        name: "getdel",
        arity: 2,
        flags: WRITE_FAST,
        summary: "Answers the value of a key, and deletes it.",
        ..ROW
    },
    Command {
        name: "getex",
        arity: -2,
        flags: WRITE_FAST,
        summary: "Answers the value of a key, and changes when it ends.",
        ..ROW
    },
    Command {
        name: "mget",
        arity: -2,
        flags: READ_FAST,
        keys: Places::ALL,
        summary: "The values of some keys.",
        complexity: "O(N), N keys",
        ..ROW
    },
    Command {
        name: "mset",
        arity: -3,
        flags: GROW,
        keys: Places::span(1, -1, 2),
        summary: "Sets some keys to values, all or none.",
        complexity: "O(N), N keys",
        ..ROW
    },
    Command {
        name: "msetnx",
        arity: -3,
        flags: GROW,
        keys: Places::span(1, -1, 2),
        summary: "Sets some keys to values if none of them is there.",
        complexity: "O(N), N keys",
        ..ROW
    },
    Command {
        name: "append",
        arity: 3,
        flags: GROW_FAST,
        summary: "Appends to a value, or sets it.",
        complexity: "O(N), N bytes of the new value",
        ..ROW
    },
    Command {
        name: "strlen",
        arity: 2,
        flags: READ_FAST,
        summary: "The length of a value.",
        ..ROW
    },
    Command {
        name: "getrange",
        arity: 4,
        flags: READ,
        summary: "A part of a value.",
        complexity: "O(N), N bytes of the part",
        ..ROW
    },
    Command {
        name: "setrange",
        arity: 4,
        flags: GROW,
        summary: "Overwrites a part of a value.",
        complexity: "O(N), N bytes of the new value",
        ..ROW
    },
    Command {
        name: "incr",
        arity: 2,
        flags: GROW_FAST,
        summary: "Adds one to the number in a value.",
        ..ROW
    },
    Command {
        name: "decr",
        arity: 2,
        flags: GROW_FAST,
        summary: "Takes one from the number in a value.",
        ..ROW
    },
    Command {
        name: "incrby",
        arity: 3,
        flags: GROW_FAST,
        summary: "Adds to the number in a value.",
        ..ROW
    },
    Command {
        name: "decrby",
        arity: 3,
        flags: GROW_FAST,
        summary: "Takes from the number in a value.",
        ..ROW
    },
    Command {
        name: "incrbyfloat",
        arity: 3,
        flags: GROW_FAST,
        summary: "Adds a fraction to the number in a value.",
        ..ROW
    },
];
