//! String commands. A string is a record of type *value*.

use super::{GROW, GROW_FAST, READ, READ_FAST, WRITE_FAST};
use crate::command::{ArgPositions, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::{bits, strings as run};

/// Limit of the region.
const LENGTH: &str = "A value has at most 128 MiB.";

const ROW: RespCommand =
    RespCommand { keys: ArgPositions::ONE, group: CommandGroup::Strings, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "get",
        run: run::get,
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the value of a key.",
        ..ROW
    },
    RespCommand {
        name: "set",
        run: run::set,
        arity: -3,
        flags: GROW,
        summary: "Sets the value of a key, regardless of its type. Creates the key if it does not \
                  exist.",
        differs: "An EXAT or PXAT time in the past deletes the key immediately, so that DBSIZE \
                  does not count it.",
        ..ROW
    },
    RespCommand {
        name: "setnx",
        run: run::setnx,
        arity: 3,
        flags: GROW_FAST,
        summary: "Sets the value of a key if the key does not exist.",
        ..ROW
    },
    RespCommand {
        name: "setex",
        run: run::setex,
        arity: 4,
        flags: GROW,
        summary: "Sets the value and the expiration time in seconds of a key.",
        ..ROW
    },
    RespCommand {
        name: "psetex",
        run: run::psetex,
        arity: 4,
        flags: GROW,
        summary: "Sets the value and the expiration time in milliseconds of a key.",
        ..ROW
    },
    RespCommand {
        name: "getset",
        run: run::getset,
        arity: 3,
        flags: GROW_FAST,
        summary: "Sets a key to a new value and returns its previous value.",
        ..ROW
    },
    RespCommand {
        name: "getdel",
        run: run::getdel,
        arity: 2,
        flags: WRITE_FAST,
        summary: "Returns the value of a key and deletes the key.",
        ..ROW
    },
    RespCommand {
        name: "getex",
        run: run::getex,
        arity: -2,
        flags: WRITE_FAST,
        summary: "Returns the value of a key and sets or removes its expiration time.",
        ..ROW
    },
    RespCommand {
        name: "mget",
        run: run::mget,
        arity: -2,
        flags: READ_FAST,
        keys: ArgPositions::ALL,
        summary: "Returns the values of one or more keys.",
        complexity: "O(N), N keys",
        differs: "Returns the values of one instant, for up to 4096 keys. Answers BUSY if other \
                  clients' writes to these keys leave none in 100 ms and four attempts.",
        ..ROW
    },
    RespCommand {
        name: "mset",
        run: run::mset,
        arity: -3,
        flags: GROW,
        keys: ArgPositions::span(1, -1, 2),
        summary: "Atomically sets one or more keys.",
        complexity: "O(N), N keys",
        differs: "At most 4096 different keys.",
        ..ROW
    },
    RespCommand {
        name: "msetnx",
        run: run::msetnx,
        arity: -3,
        flags: GROW,
        keys: ArgPositions::span(1, -1, 2),
        summary: "Atomically sets one or more keys if none of them exists.",
        complexity: "O(N), N keys",
        differs: "At most 4096 different keys.",
        ..ROW
    },
    RespCommand {
        name: "append",
        run: run::append,
        arity: 3,
        flags: GROW_FAST,
        summary: "Appends a string to the value of a key. Creates the key if it does not exist.",
        complexity: "O(N), N bytes of the new value",
        differs: LENGTH,
        ..ROW
    },
    RespCommand {
        name: "strlen",
        run: run::strlen,
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the length of the value of a key.",
        ..ROW
    },
    RespCommand {
        name: "getrange",
        run: run::getrange,
        arity: 4,
        flags: READ,
        summary: "Returns a substring of the value of a key.",
        complexity: "O(N), N bytes of the substring",
        ..ROW
    },
    RespCommand {
        name: "setrange",
        run: run::setrange,
        arity: 4,
        flags: GROW,
        summary: "Overwrites a part of the value of a key, starting at an offset.",
        complexity: "O(N), N bytes of the new value",
        differs: LENGTH,
        ..ROW
    },
    RespCommand {
        name: "incr",
        run: run::incr,
        arity: 2,
        flags: GROW_FAST,
        summary: "Increments the integer value of a key by one. Uses 0 as initial value if the key \
                  does not exist.",
        ..ROW
    },
    RespCommand {
        name: "decr",
        run: run::decr,
        arity: 2,
        flags: GROW_FAST,
        summary: "Decrements the integer value of a key by one. Uses 0 as initial value if the key \
                  does not exist.",
        ..ROW
    },
    RespCommand {
        name: "incrby",
        run: run::incrby,
        arity: 3,
        flags: GROW_FAST,
        summary: "Increments the integer value of a key by a number. Uses 0 as initial value if \
                  the key does not exist.",
        ..ROW
    },
    RespCommand {
        name: "decrby",
        run: run::decrby,
        arity: 3,
        flags: GROW_FAST,
        summary: "Decrements the integer value of a key by a number. Uses 0 as initial value if \
                  the key does not exist.",
        ..ROW
    },
    RespCommand {
        name: "incrbyfloat",
        run: run::incrbyfloat,
        arity: 3,
        flags: GROW_FAST,
        summary: "Increments the floating-point value of a key by a number. Uses 0 as initial \
                  value if the key does not exist.",
        ..ROW
    },
    RespCommand {
        name: "setbit",
        group: CommandGroup::Bitmaps,
        run: bits::setbit,
        arity: 4,
        flags: GROW,
        summary: "Sets or clears a bit of a string. Returns its previous value.",
        complexity: "O(N), N bytes of the string",
        differs: LENGTH,
        ..ROW
    },
    RespCommand {
        name: "getbit",
        group: CommandGroup::Bitmaps,
        run: bits::getbit,
        arity: 3,
        flags: READ_FAST,
        summary: "Returns a bit of a string.",
        ..ROW
    },
    RespCommand {
        name: "bitcount",
        group: CommandGroup::Bitmaps,
        run: bits::bitcount,
        arity: -2,
        flags: READ,
        summary: "Counts the ones of a string, or of a part of it.",
        complexity: "O(N), N bytes counted",
        ..ROW
    },
];
