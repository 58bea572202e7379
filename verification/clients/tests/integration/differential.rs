//! Random commands to the node and to Debian's Redis: every reply is the same, byte for byte, apart
//! from the list in `known_differences.rs`.
//!
//! One test sends the same commands in every run, the other random ones. `NEARSTATE_SEED` repeats
//! the commands of a failed run, and `NEARSTATE_SEQUENCES` sets the number of sequences.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher as _;

use nearstate_clients::command_forms::{HASHES, ITERATIONS, KEYS, RARE, SETS, STRINGS};
use nearstate_clients::differential::{ReplyDifference, ServerPair, compare, shorten};
use nearstate_clients::programs::TestServer;
use nearstate_clients::sequence::{CommandStep, sequence};
use nearstate_resp::command::CommandGroup;
use nearstate_resp::table::TABLE;

/// Random commands of one sequence, before all records are read.
const LENGTH: usize = 180;

/// A quarter of a million commands, half of them in each version of the protocol.
const SEQUENCES: u64 = 1000;

/// Commands that a test compares at least.
const COMMANDS_MIN: usize = 200_000;

/// Differences that are printed. The test ends when it has found as many.
const SHOWN_MAX: usize = 25;

#[test]
fn every_reply_is_the_same_as_from_redis() {
    compare_sequences(1, SEQUENCES);
}

#[test]
fn every_reply_to_commands_of_a_new_seed_is_the_same_as_from_redis() {
    let setting = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let random = RandomState::new().hash_one(std::process::id());
    let seed = setting("NEARSTATE_SEED").unwrap_or(random);
    compare_sequences(seed, setting("NEARSTATE_SEQUENCES").unwrap_or(SEQUENCES));
}

/// The sequences send these without a form.
const TXN_COMMANDS: [&str; 5] = ["multi", "exec", "discard", "watch", "unwatch"];

/// Each server has a payload of its own, so that only other replies of these are compared, by
/// [`dump_and_restore_refuse_as_redis_does`].
const PAYLOAD_COMMANDS: [&str; 2] = ["dump", "restore"];

#[test]
fn dump_and_restore_refuse_as_redis_does() {
    let redis = TestServer::redis(&[]).unwrap_or_else(|error| panic!("{error}"));
    let node = TestServer::node(&[]).unwrap_or_else(|error| panic!("{error}"));
    let pair = ServerPair { redis: redis.address, node: node.address };
    let commands: [&[&str]; 10] = [
        &["DUMP", "absent"],
        &["DUMP"],
        &["RESTORE", "absent", "0", "no payload"],
        &["RESTORE", "absent", "-1", "no payload"],
        &["RESTORE", "absent", "soon", "no payload"],
        &["RESTORE", "absent", "0"],
        &["RESTORE", "absent", "0", "no payload", "MAYBE"],
        &["SET", "present", "1"],
        &["RESTORE", "present", "0", "no payload"],
        &["RESTORE", "present", "0", "no payload", "REPLACE"],
    ];
    let steps: Vec<CommandStep> = commands
        .iter()
        .map(|words| CommandStep {
            client: 0,
            args: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
            cursor_at: None,
        })
        .collect();
    let difference = compare(pair, &steps, 2).unwrap_or_else(|error| panic!("{error}"));
    assert!(difference.is_none(), "{}", difference.unwrap());
}

#[test]
fn every_command_of_the_table_is_compared() {
    let groups = [
        CommandGroup::Strings,
        CommandGroup::Hashes,
        CommandGroup::Sets,
        CommandGroup::Keys,
        CommandGroup::Transactions,
    ];
    let forms = [STRINGS, HASHES, SETS, KEYS, RARE, ITERATIONS].concat();
    let is_compared = |name: &str| {
        forms.iter().any(|(form, _)| form.eq_ignore_ascii_case(name))
            || TXN_COMMANDS.contains(&name)
            || PAYLOAD_COMMANDS.contains(&name)
    };
    let missing: Vec<&str> = TABLE
        .commands()
        .iter()
        .filter(|command| groups.contains(&command.group))
        .map(|command| command.name_and_subcommand().0)
        .filter(|name| !is_compared(name))
        .collect();
    assert!(missing.is_empty(), "add forms of these to command_forms.rs: {missing:?}");
}

fn compare_sequences(seed: u64, sequences: u64) {
    println!("NEARSTATE_SEED={seed} repeats this run");
    let redis = TestServer::redis(&[]).unwrap_or_else(|error| panic!("{error}"));
    let node = TestServer::node(&[]).unwrap_or_else(|error| panic!("{error}"));
    let pair = ServerPair { redis: redis.address, node: node.address };
    let mut differences: BTreeMap<String, ReplyDifference> = BTreeMap::new();
    let mut commands = 0;
    for number in 0..sequences {
        let steps = sequence(seed, number, LENGTH);
        let protocol = if number % 2 == 0 { 2 } else { 3 };
        let difference = compare(pair, &steps, protocol).unwrap_or_else(|error| panic!("{error}"));
        commands += difference.as_ref().map_or(steps.len(), |difference| difference.steps.len());
        if let Some(difference) = difference {
            let shorter = shorten(pair, difference).unwrap_or_else(|error| panic!("{error}"));
            let reply: String = shorter.node.to_string().chars().take(40).collect();
            let key = format!("{} {reply}", shorter.command());
            differences.entry(key).or_insert(shorter);
        }
        if differences.len() >= SHOWN_MAX {
            break;
        }
    }
    for difference in differences.values() {
        println!("{difference}");
    }
    println!("{commands} commands compared, {} differences", differences.len());
    assert!(differences.is_empty(), "NEARSTATE_SEED={seed}: the replies above differ");
    assert!(commands >= COMMANDS_MIN || sequences < SEQUENCES, "only {commands} commands");
}
