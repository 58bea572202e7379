//! Where the node may answer otherwise than Redis: the one list of it, with reasons. Everything
//! else is compared byte for byte.

use crate::wire::Reply;

/// How replies of a command are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The items in any order.
    Sorted,
    /// The items two by two, in any order.
    SortedPairs,
    /// A number that is a time: the same within [`CLOCK_SECONDS`].
    Seconds,
    /// The same in milliseconds.
    Millis,
    /// The kinds and the numbers of items.
    Shape,
    /// Words for ways to keep the same form of record.
    Encoding,
}

/// How much later one server may have heard a command than the other. Times that the commands set
/// are a thousand seconds apart, so this hides no difference.
const CLOCK_SECONDS: i64 = 400;

/// A command whose replies are not compared byte for byte.
#[derive(Debug)]
pub struct Leeway {
    /// Its name.
    pub command: &'static str,
    /// How they are compared.
    pub how: How,
    /// Why.
    pub why: &'static str,
}

const NO_ORDER: &str =
    "the order is undefined in Redis; here fields stand as they were first set, members ascending";
const CHANCE: &str = "what is chosen is chance";
const CLOCK: &str = "each server reads its clock when it gets to the command";

const fn leeway(command: &'static str, how: How, why: &'static str) -> Leeway {
    Leeway { command, how, why }
}

/// All of them.
pub const LEEWAYS: &[Leeway] = &[
    leeway("KEYS", How::Sorted, NO_ORDER),
    leeway("SMEMBERS", How::Sorted, NO_ORDER),
    leeway("SINTER", How::Sorted, NO_ORDER),
    leeway("SUNION", How::Sorted, NO_ORDER),
    leeway("SDIFF", How::Sorted, NO_ORDER),
    leeway("SPOP", How::Sorted, "it is always asked for all members, whose order is undefined"),
    leeway("HKEYS", How::Sorted, NO_ORDER),
    leeway("HVALS", How::Sorted, NO_ORDER),
    leeway("HGETALL", How::SortedPairs, NO_ORDER),
    leeway("HRANDFIELD", How::Shape, CHANCE),
    leeway("SRANDMEMBER", How::Shape, CHANCE),
    leeway("RANDOMKEY", How::Shape, CHANCE),
    leeway(
        "OBJECT",
        How::Encoding,
        "the way is told by what the record is now, in Redis by how it became so",
    ),
    leeway("TTL", How::Seconds, CLOCK),
    leeway("EXPIRETIME", How::Seconds, CLOCK),
    leeway("PTTL", How::Millis, CLOCK),
    leeway("PEXPIRETIME", How::Millis, CLOCK),
];

/// What is never said, because the node is known to answer otherwise.
#[derive(Debug)]
pub struct LeftOut {
    /// Whether this is it.
    pub is: fn(&[Vec<u8>]) -> bool,
    /// What the node does instead, and why.
    pub why: &'static str,
}

/// All of that. `docs/resp.md` says it too, in the column *differs*.
pub const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        is: names_no_block,
        why: "a field's name is the name of a block: 1 to 255 bytes of UTF-8 without a NUL",
    },
    LeftOut { is: is_too_long, why: "a value has at most 128 MiB, in Redis 512 MiB" },
    LeftOut {
        // The sequences have no longer ones.
        is: |_| false,
        why: "a key has at most 4096 bytes, in Redis 512 MiB",
    },
    LeftOut {
        // The sequences go on with every cursor.
        is: |_| false,
        why: "what a single call of SCAN answers, and its cursor, is the server's choice: walks \
              are compared as a whole",
    },
    LeftOut {
        is: sets_what_has_ended,
        why: "Redis counts such a key in DBSIZE until somebody asks for it; here it is not there",
    },
    LeftOut {
        is: pops_some,
        why: "which members SPOP takes is chance, and all that follows would differ",
    },
    LeftOut {
        // No single request is it: the sequences see to it.
        is: |_| false,
        why: "a watched key that was not there, has come and has gone again is as it was: EXEC \
              goes on, in Redis it does not",
    },
];

/// Errors that repeat a part of the request, which are compared up to there, and why.
pub const QUOTING: &[(&str, &str)] = &[
    (
        "-ERR Unsupported option ",
        "what is no UTF-8 is shown as U+FFFD; Redis shows the bytes, up to the first NUL",
    ),
    ("-ERR unknown subcommand '", "the same, and the subcommands that are offered are named"),
    ("-ERR unknown command '", "the same, and the nearest command that is offered is named"),
];

/// Whether a request is never said.
pub fn is_left_out(words: &[Vec<u8>]) -> bool {
    LEFT_OUT.iter().any(|left_out| (left_out.is)(words))
}

fn is_named(words: &[Vec<u8>], names: &[&str]) -> bool {
    let Some(name) = words.first() else { return false };
    names.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(name))
}

fn names_no_block(words: &[Vec<u8>]) -> bool {
    let is_no_block = |name: &Vec<u8>| {
        !(1..=255).contains(&name.len()) || name.contains(&0) || str::from_utf8(name).is_err()
    };
    let pairs = is_named(words, &["HSET", "HMSET"]);
    let single = is_named(words, &["HSETNX", "HINCRBY", "HINCRBYFLOAT"]);
    let mut fields = words.iter().skip(2).step_by(2);
    pairs && fields.any(is_no_block) || single && words.get(2).is_some_and(is_no_block)
}

fn number(word: &[u8]) -> Option<i64> {
    str::from_utf8(word).ok()?.parse().ok()
}

/// A place so far behind is said nowhere else.
fn is_too_long(words: &[Vec<u8>]) -> bool {
    let place = words.get(2).and_then(|word| number(word));
    is_named(words, &["SETRANGE"]) && place.is_some_and(|place| place >= 100 << 20)
}

fn sets_what_has_ended(words: &[Vec<u8>]) -> bool {
    let has_passed = |pair: &[Vec<u8>]| {
        let [option, end] = pair else { return false };
        let is_end = ["EXAT", "PXAT"].iter().any(|at| at.as_bytes().eq_ignore_ascii_case(option));
        is_end && number(end).is_some_and(|end| (1..1_000_000_000).contains(&end))
    };
    is_named(words, &["SET"]) && words.windows(2).any(has_passed)
}

fn pops_some(words: &[Vec<u8>]) -> bool {
    // No set has a thousand members here.
    let is_some = match words {
        [_, _] => true,
        [_, _, count] => number(count).is_some_and(|count| (1..1000).contains(&count)),
        _ => false,
    };
    is_some && is_named(words, &["SPOP"])
}

/// Whether both servers have answered the same, as far as the list asks.
pub fn is_same(words: &[Vec<u8>], redis: &Reply, ours: &Reply) -> bool {
    redis == ours
        || leeway_of(words).is_some_and(|leeway| fits(leeway.how, redis, ours))
        || QUOTING.iter().any(|(begin, _)| {
            redis.head.starts_with(begin.as_bytes()) && ours.head.starts_with(begin.as_bytes())
        })
}

fn leeway_of(words: &[Vec<u8>]) -> Option<&'static Leeway> {
    let name = words.first()?;
    LEEWAYS.iter().find(|leeway| leeway.command.as_bytes().eq_ignore_ascii_case(name))
}

fn fits(how: How, redis: &Reply, ours: &Reply) -> bool {
    match how {
        How::Sorted => redis.head == ours.head && sorted(redis, 1) == sorted(ours, 1),
        How::SortedPairs => redis.head == ours.head && sorted(redis, 2) == sorted(ours, 2),
        How::Seconds => is_near(redis, ours, CLOCK_SECONDS),
        How::Millis => is_near(redis, ours, CLOCK_SECONDS * 1000),
        How::Shape => is_shaped(redis, ours),
        How::Encoding => form(redis).is_some() && form(redis) == form(ours),
    }
}

fn sorted(reply: &Reply, each: usize) -> Vec<&[Reply]> {
    let mut items: Vec<&[Reply]> = reply.items.chunks(each).collect();
    items.sort();
    items
}

fn is_near(redis: &Reply, ours: &Reply, most: i64) -> bool {
    match (redis.number(), ours.number()) {
        // Below 0 stand the answers `no key` and `no end`.
        (Some(redis), Some(ours)) => {
            redis >= 0 && ours >= 0 && redis.abs_diff(ours) <= most.unsigned_abs()
        }
        _ => false,
    }
}

/// Which form of record a word of OBJECT ENCODING stands for: of the small ways of a hash and of a
/// set only one is the same.
fn form(reply: &Reply) -> Option<u8> {
    match reply.body.as_deref()? {
        b"int" | b"embstr" | b"raw" => Some(1),
        b"listpack" | b"intset" | b"hashtable" => Some(2),
        _ => None,
    }
}

fn is_shaped(redis: &Reply, ours: &Reply) -> bool {
    let is_chosen = redis.body.is_some() && ours.body.is_some();
    (is_chosen || redis.head == ours.head)
        && redis.kind() == ours.kind()
        && redis.items.len() == ours.items.len()
        && redis.items.iter().zip(&ours.items).all(|(redis, ours)| is_shaped(redis, ours))
}
