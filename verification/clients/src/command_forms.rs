//! The forms of the commands that both servers support, for random requests.

/// One or several arguments of a request.
#[derive(Clone, Copy, Debug)]
pub enum ArgForm {
    Key,
    /// One to four keys.
    Keys,
    /// The number of keys, then the keys.
    CountedKeys,
    /// Any bytes.
    Value,
    /// One to three pairs of a key and a value.
    KeyValues,
    /// An integer, rarely something else.
    Integer,
    /// A floating-point number, rarely something else.
    Float,
    /// A field name of a hash.
    Field,
    /// One to four field names.
    Fields,
    /// One to three pairs of a field and a value.
    FieldValues,
    /// A member of a set.
    Member,
    /// One to four members.
    Members,
    /// An index into a value, from either end.
    Index,
    /// An offset into a value.
    Offset,
    /// Seconds from now, far from those of every other request.
    Seconds,
    /// The same in milliseconds.
    Millis,
    /// Seconds since 1970.
    At,
    /// Milliseconds since 1970.
    AtMillis,
    /// Seconds since 1970 that no other request has.
    UniqueAt,
    /// The same in milliseconds.
    UniqueAtMillis,
    Glob,
    /// One of these, which may be several arguments or none.
    OneOf(&'static [&'static str]),
    /// These, in half of the requests.
    Maybe(&'static [ArgForm]),
}

use ArgForm::{
    At, AtMillis, CountedKeys, Field, FieldValues, Fields, Float, Glob, Index, Integer, Key,
    KeyValues, Keys, Maybe, Member, Members, Millis, Offset, OneOf, Seconds, UniqueAt,
    UniqueAtMillis, Value,
};

/// A command and the arguments that follow its name.
pub type CommandForm = (&'static str, &'static [ArgForm]);

const WHEN: ArgForm = OneOf(&["", "", "", "NX", "XX", "nx", "XX GET", "NX GET", "GET", "NX XX"]);

/// Conditions of EXPIRE that do not compare expiry times.
const IF: ArgForm = OneOf(&["", "", "", "", "NX", "XX", "nx", "XX NX", "nonsense"]);
/// Conditions that do. Used only with points in time: those that two relative times lead to differ
/// by what the clock has moved, which is not the same for both servers.
const IF_FAR: ArgForm = OneOf(&["", "", "GT", "LT", "gt", "LT GT", "NX GT", "XX LT", "XX GT"]);

pub const STRINGS: &[CommandForm] = &[
    ("APPEND", &[Key, Value]),
    ("DECR", &[Key]),
    ("DECRBY", &[Key, Integer]),
    ("GET", &[Key]),
    ("GET", &[Key]),
    ("GETDEL", &[Key]),
    ("GETEX", &[Key]),
    ("GETEX", &[Key, OneOf(&["PERSIST", "persist", "KEEPTTL", "PERSIST EX 100000", "EX"])]),
    ("GETEX", &[Key, OneOf(&["EX"]), Seconds]),
    ("GETEX", &[Key, OneOf(&["PX"]), Millis]),
    ("GETEX", &[Key, OneOf(&["EXAT"]), At]),
    ("GETEX", &[Key, OneOf(&["PXAT"]), AtMillis]),
    ("GETEX", &[Key, OneOf(&["EXAT"]), UniqueAt]),
    ("GETEX", &[Key, OneOf(&["PXAT"]), UniqueAtMillis]),
    ("GETRANGE", &[Key, Index, Index]),
    ("GETSET", &[Key, Value]),
    ("INCR", &[Key]),
    ("INCRBY", &[Key, Integer]),
    ("INCRBYFLOAT", &[Key, Float]),
    ("MGET", &[Keys]),
    ("MSET", &[KeyValues]),
    ("MSETNX", &[KeyValues]),
    ("PSETEX", &[Key, Millis, Value]),
    ("SET", &[Key, Value]),
    ("SET", &[Key, Integer]),
    ("SET", &[Key, Float]),
    ("SET", &[Key, Value, WHEN]),
    ("SET", &[Key, Value, WHEN, OneOf(&["EX"]), Seconds]),
    ("SET", &[Key, Value, OneOf(&["PX"]), Millis, WHEN]),
    ("SET", &[Key, Value, WHEN, OneOf(&["EXAT"]), At]),
    ("SET", &[Key, Value, OneOf(&["PXAT"]), AtMillis]),
    ("SET", &[Key, Value, OneOf(&["KEEPTTL", "keepttl xx", "EX", "KEEPTTL EX 100000"])]),
    ("SETEX", &[Key, Seconds, Value]),
    ("SETNX", &[Key, Value]),
    ("SETRANGE", &[Key, Offset, Value]),
    ("STRLEN", &[Key]),
];

pub const HASHES: &[CommandForm] = &[
    ("HDEL", &[Key, Fields]),
    ("HEXISTS", &[Key, Field]),
    ("HGET", &[Key, Field]),
    ("HGETALL", &[Key]),
    ("HINCRBY", &[Key, Field, Integer]),
    ("HINCRBYFLOAT", &[Key, Field, Float]),
    ("HKEYS", &[Key]),
    ("HLEN", &[Key]),
    ("HMGET", &[Key, Fields]),
    ("HMSET", &[Key, FieldValues]),
    ("HRANDFIELD", &[Key]),
    ("HRANDFIELD", &[Key, Integer, OneOf(&["", "WITHVALUES", "withvalues", "WITHVALUE"])]),
    ("HSET", &[Key, FieldValues]),
    ("HSET", &[Key, FieldValues]),
    ("HSET", &[Key, Field, Integer]),
    ("HSETNX", &[Key, Field, Value]),
    ("HSTRLEN", &[Key, Field]),
    ("HVALS", &[Key]),
];

pub const SETS: &[CommandForm] = &[
    ("SADD", &[Key, Members]),
    ("SADD", &[Key, Members]),
    ("SADD", &[Key, Integer]),
    ("SCARD", &[Key]),
    ("SDIFF", &[Keys]),
    ("SDIFFSTORE", &[Key, Keys]),
    ("SINTER", &[Keys]),
    ("SINTERCARD", &[CountedKeys]),
    ("SINTERCARD", &[CountedKeys, OneOf(&["LIMIT"]), Integer]),
    ("SINTERCARD", &[Integer, Keys]),
    ("SINTERSTORE", &[Key, Keys]),
    ("SISMEMBER", &[Key, Member]),
    ("SMEMBERS", &[Key]),
    ("SMISMEMBER", &[Key, Members]),
    ("SMOVE", &[Key, Key, Member]),
    ("SPOP", &[Key, OneOf(&["1000", "1000", "0", "-1", "x", "9223372036854775807"])]),
    ("SRANDMEMBER", &[Key]),
    ("SRANDMEMBER", &[Key, OneOf(&["1", "3", "100", "-1", "-5", "0", "x", "3 3"])]),
    ("SREM", &[Key, Members]),
    ("SUNION", &[Keys]),
    ("SUNIONSTORE", &[Key, Keys]),
];

/// Keys of any kind.
pub const KEYS: &[CommandForm] = &[
    ("COPY", &[Key, Key, OneOf(&["", "REPLACE", "replace", "DB 0", "DB", "DB 0 REPLACE"])]),
    ("DBSIZE", &[]),
    ("DEL", &[Keys]),
    ("EXISTS", &[Keys]),
    ("EXPIRE", &[Key, Seconds, IF]),
    ("EXPIREAT", &[Key, At, IF]),
    ("EXPIREAT", &[Key, At, IF_FAR]),
    ("EXPIRETIME", &[Key]),
    ("KEYS", &[Glob]),
    ("OBJECT", &[OneOf(&["ENCODING", "encoding"]), Key]),
    ("PERSIST", &[Key]),
    ("PEXPIRE", &[Key, Millis, IF]),
    ("PEXPIREAT", &[Key, AtMillis, IF]),
    ("PEXPIREAT", &[Key, AtMillis, IF_FAR]),
    ("PEXPIRETIME", &[Key]),
    ("PTTL", &[Key]),
    ("RANDOMKEY", &[]),
    ("RENAME", &[Key, Key]),
    ("RENAMENX", &[Key, Key]),
    ("TOUCH", &[Keys]),
    ("TTL", &[Key]),
    ("TYPE", &[Key]),
    ("UNLINK", &[Keys]),
];

/// Commands that change everything or nothing: rarely sent.
pub const RARE: &[CommandForm] = &[
    ("FLUSHALL", &[OneOf(&["", "SYNC", "ASYNC", "nonsense"])]),
    ("FLUSHDB", &[OneOf(&["", "SYNC", "async"])]),
    ("PING", &[Maybe(&[Value])]),
    ("ECHO", &[Value]),
    ("SELECT", &[OneOf(&["0", "x", "0 0"])]),
    ("SCAN", &[OneOf(&["x", "-1x", "0 COUNT 0", "0 COUNT x", "0 MATCH", "0 NONSENSE 1"])]),
    ("SSCAN", &[Key, OneOf(&["x", "0 COUNT 0", "0 COUNT x", "0 MATCH"])]),
    ("HSCAN", &[Key, OneOf(&["x", "0 COUNT 0", "0 COUNT x", "0 MATCH"])]),
    ("OBJECT", &[OneOf(&["", "ENCODING"])]),
];

/// Iterations without their cursor, which precedes the last argument form.
pub const ITERATIONS: &[CommandForm] = &[
    ("SCAN", &[OneOf(&["", "COUNT 1", "COUNT 3", "COUNT 1000", "count 2"])]),
    ("SCAN", &[OneOf(&["TYPE string", "TYPE hash COUNT 2", "TYPE set", "TYPE list"])]),
    ("SCAN", &[Maybe(&[OneOf(&["MATCH"]), Glob])]),
    ("HSCAN", &[Key, OneOf(&["", "COUNT 1", "MATCH f*", "MATCH *1 COUNT 2"])]),
    ("SSCAN", &[Key, OneOf(&["", "COUNT 1", "MATCH m*", "MATCH *1 COUNT 2"])]),
];
