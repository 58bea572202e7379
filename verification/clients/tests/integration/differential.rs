//! Random commands to the node and to Debian's Redis: every reply is the same, byte for byte, but
//! for the list in `leeway.rs`.
//!
//! One test says the same commands in every run, the other ones by chance: `NEARSTATE_SEED` repeats
//! those of a run that failed, and `NEARSTATE_SEQUENCES` says how many sequences of them.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher as _;

use nearstate_clients::differential::{Difference, Pair, compare, shorten};
use nearstate_clients::forms::{HASHES, KEYS, SELDOM, SETS, STRINGS, WALKS};
use nearstate_clients::programs::Server;
use nearstate_clients::sequence::sequence;
use nearstate_resp::command::Group;
use nearstate_resp::table::TABLE;

/// Commands by chance in one sequence, before the look at what they left.
const LENGTH: usize = 180;

/// A quarter of a million commands, half of them in each version of the protocol.
const SEQUENCES: u64 = 1000;

/// The least that a test has compared.
const COMMANDS_MIN: usize = 200_000;

/// How many differences are shown; after as many there is no point in looking for more.
const SHOWN_MAX: usize = 25;

#[test]
fn every_reply_is_the_one_that_redis_gives() {
    every_reply_is_the_same(1, SEQUENCES);
}

#[test]
fn so_it_is_for_commands_that_nobody_has_said_before() {
    let setting = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let chance = RandomState::new().hash_one(std::process::id());
    let seed = setting("NEARSTATE_SEED").unwrap_or(chance);
    every_reply_is_the_same(seed, setting("NEARSTATE_SEQUENCES").unwrap_or(SEQUENCES));
}

/// What is said of transactions has no forms.
const OF_TRANSACTIONS: [&str; 5] = ["multi", "exec", "discard", "watch", "unwatch"];

#[test]
fn no_command_is_forgotten() {
    let groups = [Group::Strings, Group::Hashes, Group::Sets, Group::Keys, Group::Transactions];
    let forms = [STRINGS, HASHES, SETS, KEYS, SELDOM, WALKS].concat();
    let is_said = |name: &str| {
        forms.iter().any(|(form, _)| form.eq_ignore_ascii_case(name))
            || OF_TRANSACTIONS.contains(&name)
    };
    let forgotten: Vec<&str> = TABLE
        .commands()
        .iter()
        .filter(|command| groups.contains(&command.group))
        .map(|command| command.parts().0)
        .filter(|name| !is_said(name))
        .collect();
    assert!(forgotten.is_empty(), "put forms of these into forms.rs: {forgotten:?}");
}

fn every_reply_is_the_same(seed: u64, sequences: u64) {
    println!("NEARSTATE_SEED={seed} repeats this run");
    let redis = Server::redis(&[]).unwrap_or_else(|why| panic!("{why}"));
    let node = Server::node(&[]).unwrap_or_else(|why| panic!("{why}"));
    let pair = Pair { redis: redis.address, ours: node.address };
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
    assert!(found.is_empty(), "NEARSTATE_SEED={seed}: the replies above differ");
    assert!(commands >= COMMANDS_MIN || sequences < SEQUENCES, "only {commands} commands");
}
