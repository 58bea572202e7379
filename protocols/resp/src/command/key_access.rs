//! How commands access their keys, in the words of `COMMAND GETKEYSANDFLAGS`.

use super::CommandFlags;
use crate::parse::Args;

/// The words of a key: `RO` reads it, `RW` changes it, `OW` overwrites it, `RM` deletes it. Then
/// what happens to the value: `access` returns it, `update` changes it, `insert` adds to it,
/// `delete` removes from it.
pub(crate) type KeyWords = &'static [&'static str];

/// The words of the key with this number in a request, from 0. They are those of Redis; for other
/// commands they follow from the flags.
pub(crate) fn key_words(
    name: &str,
    flags: CommandFlags,
    number: usize,
    args: Args<'_>,
) -> KeyWords {
    match (name, number) {
        ("set", _) => {
            let options = args.from(3);
            let has_get = options.iter().any(|option| option.eq_ignore_ascii_case(b"get"));
            if has_get { &["RW", "access", "update"] } else { &["OW", "update"] }
        }
        ("copy" | "rename", 1)
        | ("sdiffstore" | "sunionstore", 0)
        | ("mset" | "psetex" | "restore" | "setex", _) => &["OW", "update"],
        ("renamenx", 1) | ("msetnx" | "setnx", _) => &["OW", "insert"],
        ("sinterstore", 0)
        | (
            "expire" | "expireat" | "hmset" | "hset" | "persist" | "pexpire" | "pexpireat"
            | "setrange",
            _,
        ) => &["RW", "update"],
        ("smove", 1) | ("append" | "hsetnx" | "sadd", _) => &["RW", "insert"],
        ("hdel" | "srem", _) => &["RW", "delete"],
        ("getdel" | "rename" | "renamenx" | "smove" | "spop", _) => &["RW", "access", "delete"],
        ("del" | "unlink", _) => &["RM", "delete"],
        (
            "exists" | "hexists" | "hlen" | "hstrlen" | "memory|usage" | "scard" | "sismember"
            | "strlen" | "touch" | "type" | "watch",
            _,
        ) => &["RO"],
        (name, _) if name.starts_with("object|") => &["RO"],
        ("copy" | "sdiffstore" | "sinterstore" | "sunionstore", _) => &["RO", "access"],
        _ if flags.has(CommandFlags::WRITE) => &["RW", "access", "update"],
        _ if flags.has(CommandFlags::READONLY) => &["RO", "access"],
        // A script may do both.
        _ => &["RW", "access", "update"],
    }
}
