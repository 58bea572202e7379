//! Keys, whatever their records are.

use super::{GROW, READ, READ_FAST, WRITE, WRITE_FAST};
use crate::command::{AclCategories, ArgPositions, CommandFlags, CommandGroup, KeyspaceScope};
use crate::command_context::Command;
use crate::commands::{expiry, keys, keyspace};

const ROW: Command = Command { keys: ArgPositions::ONE, group: CommandGroup::Keys, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "del",
        arity: -2,
        flags: WRITE,
        keys: ArgPositions::ALL,
        summary: "Deletes keys.",
        complexity: "O(N), N keys given",
        differs: "All at one instant, or none, if one transaction takes them: 4096 records, with \
                  what the indexes of their tags add. Else in parts of 1000, each at one instant, \
                  and an error says how many keys are done. Counters are deleted last, each alone.",
        run: keys::del,
        ..ROW
    },
    Command {
        name: "unlink",
        arity: -2,
        flags: WRITE_FAST,
        keys: ArgPositions::ALL,
        summary: "Deletes keys.",
        complexity: "O(N), N keys given",
        differs: "Does what DEL does: memory is given back later by whoever writes, in both.",
        run: keys::del,
        ..ROW
    },
    Command {
        name: "exists",
        arity: -2,
        flags: READ_FAST,
        keys: ArgPositions::ALL,
        summary: "How many of the keys are there.",
        complexity: "O(N), N keys given",
        run: keys::exists,
        ..ROW
    },
    Command {
        name: "type",
        arity: 2,
        flags: READ_FAST,
        summary: "The form of a record: string, hash, set or none.",
        run: keys::type_of,
        ..ROW
    },
    Command {
        name: "rename",
        arity: 3,
        flags: WRITE,
        keys: ArgPositions::TWO,
        summary: "Gives a record another key, whatever was there.",
        complexity: "O(N), N bytes of the record",
        run: keys::rename,
        ..ROW
    },
    Command {
        name: "renamenx",
        arity: 3,
        flags: WRITE_FAST,
        keys: ArgPositions::TWO,
        summary: "Gives a record another key if that is free.",
        complexity: "O(N), N bytes of the record",
        run: keys::renamenx,
        ..ROW
    },
    Command {
        name: "copy",
        arity: -3,
        flags: GROW,
        keys: ArgPositions::TWO,
        summary: "Copies a record to another key.",
        complexity: "O(N), N bytes of the record",
        differs: "`DB` takes 0 only: there is one database. Tags are copied too: the value of a \
                  unique tag is taken then, and answers `TAGTAKEN`.",
        run: keys::copy,
        ..ROW
    },
    Command {
        name: "touch",
        arity: -2,
        flags: READ_FAST,
        keys: ArgPositions::ALL,
        summary: "How many of the keys are there.",
        complexity: "O(N), N keys given",
        differs: "Touches nothing: there is no eviction.",
        run: keys::exists,
        ..ROW
    },
    Command {
        name: "expire",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end after some seconds.",
        run: expiry::expire,
        ..ROW
    },
    Command {
        name: "pexpire",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end after some milliseconds.",
        run: expiry::pexpire,
        ..ROW
    },
    Command {
        name: "expireat",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end at a time in seconds since 1970.",
        run: expiry::expireat,
        ..ROW
    },
    Command {
        name: "pexpireat",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Lets a key end at a time in milliseconds since 1970.",
        run: expiry::pexpireat,
        ..ROW
    },
    Command {
        name: "ttl",
        arity: 2,
        flags: READ_FAST,
        summary: "How many seconds a key has left.",
        run: expiry::ttl,
        ..ROW
    },
    Command {
        name: "pttl",
        arity: 2,
        flags: READ_FAST,
        summary: "How many milliseconds a key has left.",
        run: expiry::pttl,
        ..ROW
    },
    Command {
        name: "expiretime",
        arity: 2,
        flags: READ_FAST,
        summary: "When a key ends, in seconds since 1970.",
        run: expiry::expiretime,
        ..ROW
    },
    Command {
        name: "pexpiretime",
        arity: 2,
        flags: READ_FAST,
        summary: "When a key ends, in milliseconds since 1970.",
        run: expiry::pexpiretime,
        ..ROW
    },
    Command {
        name: "persist",
        arity: 2,
        flags: WRITE_FAST,
        summary: "Lets a key not end.",
        run: expiry::persist,
        ..ROW
    },
    Command {
        name: "keys",
        arity: 2,
        flags: READ,
        keys: ArgPositions::None,
        walk: KeyspaceScope::Pattern(1),
        also: AclCategories::DANGEROUS,
        summary: "All keys that match a pattern.",
        complexity: "O(N), N keys of the namespace, or of all",
        differs: "A pattern that begins with a literal `{ns},` walks that namespace only. Keys \
                  that come or go meanwhile may be answered or not.",
        run: keyspace::keys,
        ..ROW
    },
    Command {
        name: "scan",
        arity: -2,
        flags: READ,
        keys: ArgPositions::None,
        walk: KeyspaceScope::Match,
        summary: "Walks the keys in parts.",
        complexity: "O(1) a call, O(N) for all N keys",
        differs: "A MATCH that begins with a literal `{ns},` walks that namespace only. Between \
                  MULTI and EXEC the walk is whole in one call.",
        run: keyspace::scan,
        ..ROW
    },
    Command {
        name: "randomkey",
        flags: READ,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        summary: "A key by chance.",
        run: keyspace::randomkey,
        ..ROW
    },
    Command {
        name: "dbsize",
        flags: READ_FAST,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        summary: "How many keys there are.",
        complexity: "O(N), N keys",
        differs: "Keys that come or go meanwhile may be counted or not.",
        run: keyspace::dbsize,
        ..ROW
    },
    Command {
        name: "flushdb",
        arity: -1,
        flags: WRITE,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        also: AclCategories::DANGEROUS,
        summary: "Deletes all keys.",
        complexity: "O(N), N keys",
        differs: "The same as FLUSHALL: there is one database.",
        run: keyspace::flush,
        ..ROW
    },
    Command {
        name: "flushall",
        arity: -1,
        flags: WRITE,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        also: AclCategories::DANGEROUS,
        summary: "Deletes all keys.",
        complexity: "O(N), N keys",
        differs: "Deletes in parts, whether ASYNC or SYNC: keys that come meanwhile may stay. \
                  Between MULTI and EXEC at most 1000 keys, at one instant.",
        run: keyspace::flush,
        ..ROW
    },
    Command {
        name: "object",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        keys: ArgPositions::None,
        summary: "Looks into a record.",
        differs: "Has no subcommand but ENCODING.",
        ..ROW
    },
    Command {
        name: "object|encoding",
        arity: 3,
        flags: READ,
        keys: ArgPositions::span(2, 2, 1),
        summary: "How a record is kept.",
        differs: "The word is told by what the record is now, in Redis by how it became so; what \
                  lies in the region is the same for all.",
        run: keys::encoding,
        ..ROW
    },
];
