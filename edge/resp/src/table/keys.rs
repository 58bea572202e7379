//! Keys, whatever their records are.

use super::{GROW, READ, READ_FAST, WRITE, WRITE_FAST};
use crate::client::Command;
use crate::command::{Categories, Flags, Group, Places, Walk};

const ROW: Command = Command { keys: Places::ONE, group: Group::Keys, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "del",
        arity: -2,
        flags: WRITE,
        keys: Places::ALL,
        summary: "Deletes keys.",
        complexity: "O(N), N keys given",
        ..ROW
    },
    Command {
        name: "unlink",
        arity: -2,
        flags: WRITE_FAST,
        keys: Places::ALL,
        summary: "Deletes keys.",
        complexity: "O(N), N keys given",
        differs: "Does what DEL does: memory is given back later by whoever writes, in both.",
        ..ROW
    },
    Command {
        name: "exists",
        arity: -2,
        flags: READ_FAST,
        keys: Places::ALL,
        summary: "How many of the keys are there.",
        complexity: "O(N), N keys given",
        ..ROW
    },
    Command {
        name: "type",
        arity: 2,
        flags: READ_FAST,
        summary: "The form of a record: string, hash, set or none.",
        ..ROW
    },
    Command {
        name: "rename",
        arity: 3,
        flags: WRITE,
        keys: Places::TWO,
        summary: "Gives a record another key, whatever was there.",
        ..ROW
    },
    Command {
        name: "renamenx",
        arity: 3,
        flags: WRITE_FAST,
        keys: Places::TWO,
        summary: "Gives a record another key if that is free.",
        ..ROW
    },
    Command {
        name: "copy",
        arity: -3,
        flags: GROW,
        keys: Places::TWO,
        summary: "Copies a record to another key.",
        complexity: "O(N), N bytes of the record",
        differs: "`DB` takes 0 only: there is one database.",
        ..ROW
    },
    Command {
        name: "touch",
        arity: -2,
        flags: READ_FAST,
        keys: Places::ALL,
        summary: "How many of the keys are there.",
        complexity: "O(N), N keys given",
        differs: "Touches nothing: there is no eviction.",
        ..ROW
    },
    Command {
        name: "expire",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end after some seconds.",
        ..ROW
    },
    Command {
        name: "pexpire",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end after some milliseconds.",
        ..ROW
    },
    Command {
        name: "expireat",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end at a time in seconds since 1970.",
        ..ROW
    },
    Command {
        name: "pexpireat",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end at a time in milliseconds since 1970.",
        ..ROW
    },
    Command {
        name: "ttl",
        arity: 2,
        flags: READ_FAST,
        summary: "How many seconds a key has left.",
        ..ROW
    },
    Command {
        name: "pttl",
        arity: 2,
        flags: READ_FAST,
        summary: "How many milliseconds a key has left.",
        ..ROW
    },
    Command {
        name: "expiretime",
        arity: 2,
        flags: READ_FAST,
        summary: "When a key ends, in seconds since 1970.",
        ..ROW
    },
    Command {
        name: "pexpiretime",
        arity: 2,
        flags: READ_FAST,
        summary: "When a key ends, in milliseconds since 1970.",
        ..ROW
    },
    Command { name: "persist", arity: 2, flags: WRITE_FAST, summary: "Lets a key not end.", ..ROW },
    Command {
        name: "keys",
        arity: 2,
        flags: READ,
        keys: Places::No,
        walk: Walk::Pattern(1),
        also: Categories::DANGEROUS,
        summary: "All keys that match a pattern.",
        complexity: "O(N), N keys of the namespace, or of all",
        differs: "A pattern that begins with a literal `{ns},` walks that namespace only.",
        ..ROW
    },
    Command {
        name: "scan",
        arity: -2,
        flags: READ,
        keys: Places::No,
        walk: Walk::Match,
        summary: "Walks the keys in parts.",
        complexity: "O(1) a call, O(N) for all N keys",
        differs: "A MATCH that begins with a literal `{ns},` walks that namespace only.",
        ..ROW
    },
    Command {
        name: "randomkey",
        flags: READ,
        keys: Places::No,
        walk: Walk::All,
        summary: "A key by chance.",
        ..ROW
    },
    Command {
        name: "dbsize",
        flags: READ_FAST,
        keys: Places::No,
        walk: Walk::All,
        summary: "How many keys there are.",
        complexity: "O(N), N namespaces",
        ..ROW
    },
    Command {
        name: "flushdb",
        arity: -1,
        flags: WRITE,
        keys: Places::No,
        walk: Walk::All,
        also: Categories::DANGEROUS,
        summary: "Deletes all keys.",
        complexity: "O(N), N keys",
        differs: "The same as FLUSHALL: there is one database. ASYNC and SYNC do the same.",
        ..ROW
    },
    Command {
        name: "flushall",
        arity: -1,
        flags: WRITE,
        keys: Places::No,
        walk: Walk::All,
        also: Categories::DANGEROUS,
        summary: "Deletes all keys.",
        complexity: "O(N), N keys",
        differs: "ASYNC and SYNC do the same.",
        ..ROW
    },
    Command {
        name: "object",
        arity: -2,
        flags: Flags::CONTAINER,
        keys: Places::No,
        summary: "Looks into a record.",
        differs: "Has no subcommand but ENCODING.",
        ..ROW
    },
    Command {
        name: "object|encoding",
        arity: 3,
        flags: READ,
        keys: Places::span(2, 2, 1),
        summary: "How a record is kept.",
        differs: "The words are Redis'; what lies in the region is the same for all sizes.",
        ..ROW
    },
];
