//! Random commands to the node and to Debian's Redis: every reply is the same, byte for byte, but
//! for the list in `leeway.rs`.
//!
//! `NEARSTATE_SEED` chooses other commands, `NEARSTATE_SEQUENCES` how many sequences of them.
#![expect(clippy::print_stdout, reason = "a test says what it measured")]

use std::collections::BTreeMap;
use std::env;

use nearstate_clients::differential::{Difference, Pair, compare, shorten};
use nearstate_clients::programs::Server;
use nearstate_clients::sequence::sequence;

/// Commands by chance in one sequence, before the look at what they left.
const LENGTH: usize = 180;

/// More than a hundred thousand commands, half of them in each version of the protocol.
const SEQUENCES: u64 = 600;

/// How many differences are shown; after as many there is no point in looking for more.
const SHOWN_MAX: usize = 25;

fn setting(name: &str, usual: u64) -> u64 {
    env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

#[test]
fn every_reply_is_the_one_that_redis_gives() {
    let redis = Server::redis(&[]).unwrap_or_else(|why| panic!("{why}"));
    let node = Server::node(&[]).unwrap_or_else(|why| panic!("{why}"));
    let pair = Pair { redis: redis.address, ours: node.address };
    let (seed, sequences) =
        (setting("NEARSTATE_SEED", 1), setting("NEARSTATE_SEQUENCES", SEQUENCES));
    println!("seed {seed}: NEARSTATE_SEED={seed} repeats it");
    let mut found: BTreeMap<String, Difference> = BTreeMap::new();
    let mut commands = 0;
    for number in 0..sequences {
        let steps = sequence(seed, number, LENGTH);
        let protocol = if number % 2 == 0 { 2 } else { 3 };
        let difference = compare(pair, &steps, protocol).unwrap_or_else(|why| panic!("{why}"));
        commands += difference.as_ref().map_or(steps.len(), |difference| difference.steps.len());
        if let Some(difference) = difference {
            let shorter = shorten(pair, difference).unwrap_or_else(|why| panic!("{why}"));
            let key = format!("{} {}", shorter.command(), shorter.ours.head.escape_ascii());
            found.entry(key).or_insert(shorter);
        }
        if found.len() >= SHOWN_MAX {
            break;
        }
    }
    for difference in found.values() {
        println!("{difference}");
    }
    println!("{commands} commands compared, {} differences", found.len());
    assert!(found.is_empty(), "seed {seed}: the replies above differ");
    assert!(commands >= 100_000 || sequences < SEQUENCES, "only {commands} commands");
}
