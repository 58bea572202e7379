//! Where the node may reply differently from Redis: the only list of it, with reasons. Everything
//! else is compared byte for byte.

use nearstate_resp_client::RespReply;

/// How replies of a command are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyComparison {
    /// The items in any order.
    AnyOrder,
    /// The pairs of items in any order.
    PairsInAnyOrder,
    /// A time in seconds: equal within [`CLOCK_SECONDS`].
    Seconds,
    /// The same in milliseconds.
    Millis,
    /// The types and the numbers of items.
    Shape,
    /// Names of encodings of the same type of record.
    Encoding,
}

/// How much later one server may execute a command than the other. Times that the commands set are
/// a thousand seconds apart, so this hides no difference.
const CLOCK_SECONDS: i64 = 400;

/// A command whose replies are not compared byte for byte.
#[derive(Debug)]
pub struct KnownDifference {
    /// The command's name.
    pub command: &'static str,
    /// How its replies are compared.
    pub comparison: ReplyComparison,
    pub reason: &'static str,
}

const NO_ORDER: &str = "Redis does not define the order; the node returns up to 128 fields in the \
                        order in which they were first set and up to 128 members in ascending \
                        order, and more of them in the order of their hashes";
const RANDOM: &str = "the choice is random";
const CLOCK: &str = "each server reads its clock when it executes the command";

const fn known(
    command: &'static str,
    comparison: ReplyComparison,
    reason: &'static str,
) -> KnownDifference {
    KnownDifference { command, comparison, reason }
}

pub const KNOWN_DIFFERENCES: &[KnownDifference] = &[
    known("KEYS", ReplyComparison::AnyOrder, NO_ORDER),
    known("SMEMBERS", ReplyComparison::AnyOrder, NO_ORDER),
    known("SINTER", ReplyComparison::AnyOrder, NO_ORDER),
    known("SUNION", ReplyComparison::AnyOrder, NO_ORDER),
    known("SDIFF", ReplyComparison::AnyOrder, NO_ORDER),
    known(
        "SPOP",
        ReplyComparison::AnyOrder,
        "every request asks for all members, whose order Redis does not define",
    ),
    known("HKEYS", ReplyComparison::AnyOrder, NO_ORDER),
    known("HVALS", ReplyComparison::AnyOrder, NO_ORDER),
    known("HGETALL", ReplyComparison::PairsInAnyOrder, NO_ORDER),
    known("HRANDFIELD", ReplyComparison::Shape, RANDOM),
    known("SRANDMEMBER", ReplyComparison::Shape, RANDOM),
    known("RANDOMKEY", ReplyComparison::Shape, RANDOM),
    known(
        "OBJECT",
        ReplyComparison::Encoding,
        "the node derives the encoding from the record, Redis from the record's history",
    ),
    known("TTL", ReplyComparison::Seconds, CLOCK),
    known("EXPIRETIME", ReplyComparison::Seconds, CLOCK),
    known("PTTL", ReplyComparison::Millis, CLOCK),
    known("PEXPIRETIME", ReplyComparison::Millis, CLOCK),
];

/// Requests that are never sent, because the node is known to reply differently.
#[derive(Debug)]
pub struct ExcludedRequest {
    /// True if a request is one of them.
    pub matches: fn(&[Vec<u8>]) -> bool,
    /// What the node does instead, and the reason.
    pub reason: &'static str,
}

/// All of them. `docs/resp.md` lists them too, in the column *differs*.
pub const EXCLUDED_REQUESTS: &[ExcludedRequest] = &[
    ExcludedRequest {
        matches: has_invalid_field_name,
        reason: "a field's name is the name of a block: 1 to 255 bytes of UTF-8 without a NUL",
    },
    ExcludedRequest {
        matches: is_too_long,
        reason: "a value has at most 128 MiB, in Redis 512 MiB",
    },
    ExcludedRequest {
        // The generated sequences have no longer keys.
        matches: |_| false,
        reason: "a key has at most 4096 bytes, in Redis 512 MiB",
    },
    ExcludedRequest {
        // The generated sequences follow every cursor to its end.
        matches: |_| false,
        reason: "the server chooses what a single SCAN returns, and its cursor: complete \
                 iterations are compared",
    },
    ExcludedRequest {
        matches: sets_expired_key,
        reason: "Redis counts an expired key in DBSIZE until it is accessed; the node does not",
    },
    ExcludedRequest {
        matches: may_repeat_expiry_time,
        reason: "GETEX with the expiry time that the key already has is no change: EXEC executes a \
                 transaction that watches the key, Redis aborts it",
    },
    ExcludedRequest {
        matches: expires_soon,
        reason: "each server reads its clock when it executes the command: a key that expires \
                 within minutes may exist in one of them only when the next command comes",
    },
    ExcludedRequest {
        matches: pops_some_members,
        reason: "the members that SPOP removes are random, and all that follows would differ",
    },
    ExcludedRequest {
        // No single request does this: the sequences avoid it.
        matches: |_| false,
        reason: "a watched key that did not exist, was created and was deleted again is unchanged: \
                 EXEC executes the transaction, Redis aborts it",
    },
];

/// Errors that repeat a part of the request, which are compared up to there, with reasons.
pub const QUOTING_ERRORS: &[(&str, &str)] = &[
    (
        "ERR Unsupported option ",
        "bytes that are not UTF-8 are shown as U+FFFD; Redis shows the bytes up to the first NUL",
    ),
    ("ERR unknown subcommand '", "the same, and the node names the supported subcommands"),
    ("ERR unknown command '", "the same, and the node names the closest supported command"),
];

/// Whether a request is never sent.
pub fn is_excluded(args: &[Vec<u8>]) -> bool {
    EXCLUDED_REQUESTS.iter().any(|excluded| (excluded.matches)(args))
}

fn is_named(args: &[Vec<u8>], names: &[&str]) -> bool {
    let Some(command) = args.first() else { return false };
    names.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(command))
}

fn has_invalid_field_name(args: &[Vec<u8>]) -> bool {
    let is_invalid = |name: &Vec<u8>| {
        !(1..=255).contains(&name.len()) || name.contains(&0) || str::from_utf8(name).is_err()
    };
    let has_pairs = is_named(args, &["HSET", "HMSET"]);
    let has_one = is_named(args, &["HSETNX", "HINCRBY", "HINCRBYFLOAT"]);
    let mut fields = args.iter().skip(2).step_by(2);
    has_pairs && fields.any(is_invalid) || has_one && args.get(2).is_some_and(is_invalid)
}

fn number(arg: &[u8]) -> Option<i64> {
    str::from_utf8(arg).ok()?.parse().ok()
}

/// No other command has so large an offset.
fn is_too_long(args: &[Vec<u8>]) -> bool {
    let offset = args.get(2).and_then(|arg| number(arg));
    is_named(args, &["SETRANGE"]) && offset.is_some_and(|offset| offset >= 100 << 20)
}

fn sets_expired_key(args: &[Vec<u8>]) -> bool {
    let is_past = |pair: &[Vec<u8>]| {
        let [option, time] = pair else { return false };
        let is_time = ["EXAT", "PXAT"].iter().any(|at| at.as_bytes().eq_ignore_ascii_case(option));
        is_time && number(time).is_some_and(|time| (1..1_000_000_000).contains(&time))
    };
    is_named(args, &["SET"]) && args.windows(2).any(is_past)
}

/// A relative expiry time that may pass while a sequence is sent. The generated ones are far
/// longer, but an argument may be replaced.
fn expires_soon(args: &[Vec<u8>]) -> bool {
    let is_soon = |arg: &Vec<u8>, units_per_second: i64| {
        number(arg).is_some_and(|time| (1..CLOCK_SECONDS * units_per_second).contains(&time))
    };
    let is_option = |word: &Vec<u8>, name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let is_soon_option = |pair: &[Vec<u8>]| {
        let [option, time] = pair else { return false };
        is_option(option, "EX") && is_soon(time, 1)
            || is_option(option, "PX") && is_soon(time, 1000)
    };
    let third = args.get(2);
    is_named(args, &["EXPIRE", "SETEX"]) && third.is_some_and(|time| is_soon(time, 1))
        || is_named(args, &["PEXPIRE", "PSETEX"]) && third.is_some_and(|time| is_soon(time, 1000))
        || is_named(args, &["SET", "GETEX"]) && args.windows(2).any(is_soon_option)
}

/// Expiry times in seconds that the sequences use once each.
pub(crate) const UNIQUE_TIMES: std::ops::Range<i64> = 4_100_000_000..4_900_000_000;

fn may_repeat_expiry_time(args: &[Vec<u8>]) -> bool {
    let repeats = |pair: &[Vec<u8>]| {
        let [option, time] = pair else { return false };
        let units = match option.to_ascii_uppercase().as_slice() {
            b"EXAT" => 1,
            b"PXAT" => 1000,
            _ => return false,
        };
        number(time).is_some_and(|time| time > 0 && !UNIQUE_TIMES.contains(&(time / units)))
    };
    is_named(args, &["GETEX"]) && args.windows(2).any(repeats)
}

fn pops_some_members(args: &[Vec<u8>]) -> bool {
    // No set of the sequences has a thousand members.
    let is_some = match args {
        [_, _] => true,
        [_, _, count] => number(count).is_some_and(|count| (1..1000).contains(&count)),
        _ => false,
    };
    is_some && is_named(args, &["SPOP"])
}

/// Whether both servers replied the same, apart from known differences.
pub fn is_same(args: &[Vec<u8>], redis: &RespReply, node: &RespReply) -> bool {
    redis == node
        || known_difference(args).is_some_and(|known| is_equal(known.comparison, redis, node))
        || QUOTING_ERRORS.iter().any(|(prefix, _)| {
            let quotes = |reply: &RespReply| {
                matches!(reply, RespReply::Error(text) if text.starts_with(prefix.as_bytes()))
            };
            quotes(redis) && quotes(node)
        })
}

fn known_difference(args: &[Vec<u8>]) -> Option<&'static KnownDifference> {
    let name = args.first()?;
    KNOWN_DIFFERENCES.iter().find(|known| known.command.as_bytes().eq_ignore_ascii_case(name))
}

fn is_equal(comparison: ReplyComparison, redis: &RespReply, node: &RespReply) -> bool {
    match comparison {
        ReplyComparison::AnyOrder => {
            is_head_equal(redis, node) && sorted(redis, 1) == sorted(node, 1)
        }
        ReplyComparison::PairsInAnyOrder => {
            is_head_equal(redis, node) && sorted(redis, 2) == sorted(node, 2)
        }
        ReplyComparison::Seconds => is_near(redis, node, CLOCK_SECONDS),
        ReplyComparison::Millis => is_near(redis, node, CLOCK_SECONDS * 1000),
        ReplyComparison::Shape => has_same_shape(redis, node),
        ReplyComparison::Encoding => {
            encoded_type(redis).is_some_and(|t| encoded_type(node) == Some(t))
        }
    }
}

/// Whether both are aggregates of one type and size, or the same reply.
fn is_head_equal(redis: &RespReply, node: &RespReply) -> bool {
    if redis.items().is_empty() && node.items().is_empty() {
        return redis == node;
    }
    redis.type_byte() == node.type_byte() && redis.items().len() == node.items().len()
}

fn sorted(reply: &RespReply, each: usize) -> Vec<&[RespReply]> {
    let mut items: Vec<&[RespReply]> = reply.items().chunks(each).collect();
    items.sort();
    items
}

fn is_near(redis: &RespReply, node: &RespReply, limit: i64) -> bool {
    match (redis, node) {
        // Negative numbers mean "no such key" and "no expiry".
        (RespReply::Integer(redis @ 0..), RespReply::Integer(node @ 0..)) => {
            redis.abs_diff(*node) <= limit.unsigned_abs()
        }
        _ => false,
    }
}

/// The type of record that a name of OBJECT ENCODING belongs to. Of the compact encodings of a hash
/// and of a set only one has the same name.
fn encoded_type(reply: &RespReply) -> Option<u8> {
    let RespReply::Bulk(name) = reply else { return None };
    match name.as_slice() {
        b"int" | b"embstr" | b"raw" => Some(1),
        b"listpack" | b"intset" | b"hashtable" => Some(2),
        _ => None,
    }
}

fn has_same_shape(redis: &RespReply, node: &RespReply) -> bool {
    if matches!((redis, node), (RespReply::Bulk(_), RespReply::Bulk(_))) {
        return true;
    }
    is_head_equal(redis, node)
        && redis.items().iter().zip(node.items()).all(|(redis, node)| has_same_shape(redis, node))
}
