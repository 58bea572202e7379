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

const NO_ORDER: &str = "the order is undefined in Redis; ours is the order of insertion";
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
    leeway("TTL", How::Seconds, CLOCK),
    leeway("EXPIRETIME", How::Seconds, CLOCK),
    leeway("PTTL", How::Millis, CLOCK),
    leeway("PEXPIRETIME", How::Millis, CLOCK),
];

/// Commands of the compared groups that are never said here, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[];

/// Whether both servers have answered the same, as far as the list asks.
pub fn is_same(words: &[Vec<u8>], redis: &Reply, ours: &Reply) -> bool {
    redis == ours || leeway_of(words).is_some_and(|leeway| fits(leeway.how, redis, ours))
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

fn is_shaped(redis: &Reply, ours: &Reply) -> bool {
    let is_chosen = redis.body.is_some() && ours.body.is_some();
    (is_chosen || redis.head == ours.head)
        && redis.kind() == ours.kind()
        && redis.items.len() == ours.items.len()
        && redis.items.iter().zip(&ours.items).all(|(redis, ours)| is_shaped(redis, ours))
}
