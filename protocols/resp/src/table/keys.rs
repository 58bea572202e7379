//! Commands for keys of all types.

use super::{GROW, READ, READ_FAST, WRITE, WRITE_FAST};
use crate::command::{AclCategories, ArgPositions, CommandFlags, CommandGroup, KeyspaceScope};
use crate::command_context::RespCommand;
use crate::commands::{dump, expiry, keys, scan};

const ROW: RespCommand =
    RespCommand { keys: ArgPositions::ONE, group: CommandGroup::Keys, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "del",
        arity: -2,
        flags: WRITE,
        keys: ArgPositions::ALL,
        summary: "Deletes one or more keys.",
        complexity: "O(N), N keys given",
        differs: "Atomic if one transaction can hold all changes: 4096 records, including changes \
                  of tag indexes. Otherwise deletes atomic batches of 1000 keys, and an error \
                  reports how many keys were processed. Counters are deleted last, one at a time.",
        run: keys::del,
        ..ROW
    },
    RespCommand {
        name: "unlink",
        arity: -2,
        flags: WRITE_FAST,
        keys: ArgPositions::ALL,
        summary: "Deletes one or more keys.",
        complexity: "O(N), N keys given",
        differs: "Same as DEL: writers reclaim the memory later, with both commands.",
        run: keys::del,
        ..ROW
    },
    RespCommand {
        name: "exists",
        arity: -2,
        flags: READ_FAST,
        keys: ArgPositions::ALL,
        summary: "Returns how many of the specified keys exist.",
        complexity: "O(N), N keys given",
        differs: "As MGET.",
        run: keys::exists,
        ..ROW
    },
    RespCommand {
        name: "type",
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the type of the value of a key: string, hash, set or none.",
        run: keys::type_of,
        ..ROW
    },
    RespCommand {
        name: "rename",
        arity: 3,
        flags: WRITE,
        keys: ArgPositions::TWO,
        summary: "Renames a key and overwrites the destination.",
        complexity: "O(N), N bytes of the record",
        run: keys::rename,
        ..ROW
    },
    RespCommand {
        name: "renamenx",
        arity: 3,
        flags: WRITE_FAST,
        keys: ArgPositions::TWO,
        summary: "Renames a key if the new name does not exist.",
        complexity: "O(N), N bytes of the record",
        run: keys::renamenx,
        ..ROW
    },
    RespCommand {
        name: "copy",
        arity: -3,
        flags: GROW,
        keys: ArgPositions::TWO,
        summary: "Copies the value of a key to another key.",
        complexity: "O(N), N bytes of the record",
        differs: "`DB` accepts 0 only: there is one database. Tags are copied too. If a tag is \
                  unique, its value is already taken and COPY returns `TAGTAKEN`.",
        run: keys::copy,
        ..ROW
    },
    RespCommand {
        name: "touch",
        arity: -2,
        flags: READ_FAST,
        keys: ArgPositions::ALL,
        summary: "Returns how many of the specified keys exist.",
        complexity: "O(N), N keys given",
        differs: "As MGET. Does not change access times: there is no eviction.",
        run: keys::exists,
        ..ROW
    },
    RespCommand {
        name: "expire",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Sets the expiration time of a key in seconds.",
        run: expiry::expire,
        ..ROW
    },
    RespCommand {
        name: "pexpire",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Sets the expiration time of a key in milliseconds.",
        run: expiry::pexpire,
        ..ROW
    },
    RespCommand {
        name: "expireat",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Sets the expiration time of a key to a Unix timestamp in seconds.",
        run: expiry::expireat,
        ..ROW
    },
    RespCommand {
        name: "pexpireat",
        arity: -3,
        flags: WRITE_FAST,
        summary: "Sets the expiration time of a key to a Unix timestamp in milliseconds.",
        run: expiry::pexpireat,
        ..ROW
    },
    RespCommand {
        name: "ttl",
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the remaining time to live of a key in seconds.",
        run: expiry::ttl,
        ..ROW
    },
    RespCommand {
        name: "pttl",
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the remaining time to live of a key in milliseconds.",
        run: expiry::pttl,
        ..ROW
    },
    RespCommand {
        name: "expiretime",
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the expiration time of a key as a Unix timestamp in seconds.",
        run: expiry::expiretime,
        ..ROW
    },
    RespCommand {
        name: "pexpiretime",
        arity: 2,
        flags: READ_FAST,
        summary: "Returns the expiration time of a key as a Unix timestamp in milliseconds.",
        run: expiry::pexpiretime,
        ..ROW
    },
    RespCommand {
        name: "persist",
        arity: 2,
        flags: WRITE_FAST,
        summary: "Removes the expiration time of a key.",
        run: expiry::persist,
        ..ROW
    },
    RespCommand {
        name: "keys",
        arity: 2,
        flags: READ,
        keys: ArgPositions::None,
        walk: KeyspaceScope::Pattern(1),
        also: AclCategories::DANGEROUS,
        summary: "Returns all keys that match a pattern.",
        complexity: "O(N), N keys of the namespace or of all namespaces",
        differs: "A pattern that starts with a literal `{ns},` scans that namespace only. Keys \
                  that are created or deleted during the command may or may not be returned.",
        run: scan::keys,
        ..ROW
    },
    RespCommand {
        name: "scan",
        arity: -2,
        flags: READ,
        keys: ArgPositions::None,
        walk: KeyspaceScope::Match,
        summary: "Iterates over the keys.",
        complexity: "O(1) per call, O(N) for a complete iteration over N keys",
        differs: "A MATCH pattern that starts with a literal `{ns},` scans that namespace only. \
                  Between MULTI and EXEC one call returns all keys.",
        run: scan::scan,
        ..ROW
    },
    RespCommand {
        name: "randomkey",
        flags: READ,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        summary: "Returns a random key.",
        run: scan::randomkey,
        ..ROW
    },
    RespCommand {
        name: "dbsize",
        flags: READ_FAST,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        summary: "Returns the number of keys.",
        complexity: "O(N), N keys",
        differs: "Keys that are created or deleted during the command may or may not be counted.",
        run: scan::dbsize,
        ..ROW
    },
    RespCommand {
        name: "flushdb",
        arity: -1,
        flags: WRITE,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        also: AclCategories::DANGEROUS,
        summary: "Deletes all keys.",
        complexity: "O(N), N keys",
        differs: "Same as FLUSHALL: there is one database.",
        run: scan::flush,
        ..ROW
    },
    RespCommand {
        name: "flushall",
        arity: -1,
        flags: WRITE,
        keys: ArgPositions::None,
        walk: KeyspaceScope::All,
        also: AclCategories::DANGEROUS,
        summary: "Deletes all keys.",
        complexity: "O(N), N keys",
        differs: "Deletes in batches, with ASYNC and with SYNC: keys that are created during the \
                  command may remain. Between MULTI and EXEC, deletes at most 1000 keys, \
                  atomically.",
        run: scan::flush,
        ..ROW
    },
    RespCommand {
        name: "dump",
        arity: 2,
        flags: READ,
        summary: "Returns a payload of the value of a key, for RESTORE.",
        complexity: "O(N), N bytes of the record",
        differs: "Uses a format of its own, with a version and a checksum, described in \
                  `protocols/resp/src/dump_payload.rs`. It includes the tags. Redis cannot restore \
                  it.",
        run: dump::dump,
        ..ROW
    },
    RespCommand {
        name: "restore",
        arity: -4,
        flags: GROW,
        also: AclCategories::DANGEROUS,
        summary: "Creates a key from a payload of DUMP.",
        complexity: "O(N), N bytes of the record",
        differs: "Restores payloads of this server only. Tags that the namespace does \
                  not declare are stored without an index. IDLETIME and FREQ are checked and have \
                  no effect.",
        run: dump::restore,
        ..ROW
    },
    RespCommand {
        name: "object",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        keys: ArgPositions::None,
        summary: "Contains commands that inspect the value of a key.",
        ..ROW
    },
    RespCommand {
        name: "object|freq",
        arity: 3,
        flags: READ,
        keys: ArgPositions::span(2, 2, 1),
        summary: "Returns the access frequency of a key.",
        differs: "Always an error, as in Redis without an LFU policy: there is no eviction.",
        run: keys::freq,
        ..ROW
    },
    RespCommand {
        name: "object|idletime",
        arity: 3,
        flags: READ,
        keys: ArgPositions::span(2, 2, 1),
        summary: "Returns the seconds since the last access of a key.",
        differs: "Always 0: accesses by embedded processes leave no trace.",
        run: keys::idletime,
        ..ROW
    },
    RespCommand {
        name: "object|refcount",
        arity: 3,
        flags: READ,
        keys: ArgPositions::span(2, 2, 1),
        summary: "Returns the reference count of the value of a key.",
        differs: "Always 1: values are not shared.",
        run: keys::refcount,
        ..ROW
    },
    RespCommand {
        name: "object|encoding",
        arity: 3,
        flags: READ,
        keys: ArgPositions::span(2, 2, 1),
        summary: "Returns the encoding of the value of a key.",
        differs: "The encoding name depends on the current value, in Redis on its history. The \
                  region stores all encodings alike.",
        run: keys::encoding,
        ..ROW
    },
];
