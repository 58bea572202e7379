//! What replication of a log through the embedded consensus engine costs, for decision 021: three
//! engines in this process order commands of 1 KB over loopback, with their files in memory, and so
//! many are outstanding at any time.
//!
//! `cargo run --release -p nearstate-membership --example order_rate -- [COMMANDS]`

#![expect(
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "it measures times, and prints them"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearstate_membership::{MembershipConfig, MembershipHost, RaftEngine};
use nearstate_model::Result;
use nearstate_node::{ConsensusEngine as _, SharedSettings, StateMachine};

/// As many bytes as the records of the benchmarks have.
const COMMAND_BYTES: usize = 1024;

/// The commands of each row, unless the argument says otherwise.
const COMMANDS: usize = 20_000;

/// Of each row.
const OUTSTANDING: [usize; 3] = [1, 16, 256];

/// The longest wait for a leader, or for the next command.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// It keeps nothing: only the order is measured.
struct Nothing;

impl StateMachine for Nothing {
    fn apply(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

fn start(
    directory: &std::path::Path,
    host: u64,
    members: BTreeMap<u64, MembershipHost>,
) -> Result<RaftEngine> {
    let config = MembershipConfig {
        cluster: "order-rate".to_owned(),
        host,
        members,
        directory: directory.join(host.to_string()),
        election: Duration::from_millis(500),
        settings: SharedSettings::default(),
        decided: SharedSettings::default(),
        tls: None,
        machine: Arc::new(|| Box::new(Nothing)),
        report: Arc::new(String::new),
        on_refused: |_, _| (),
        begin_thread: || (),
    };
    RaftEngine::start(config, Box::new(|| ()))
}

/// Proposes commands at the leader, one by each of so many threads at a time. Returns the commands
/// of a second, and how long each one took.
fn measure(
    engine: &RaftEngine,
    outstanding: usize,
    commands: usize,
) -> std::result::Result<(f64, Vec<Duration>), Box<dyn Error>> {
    let begin = Instant::now();
    let share = commands / outstanding;
    let propose = || -> Result<Vec<Duration>> {
        let one = |_| {
            let begin = Instant::now();
            engine.propose_and_wait(vec![7; COMMAND_BYTES], WAIT_MAX)?;
            Ok(begin.elapsed())
        };
        (0..share).map(one).collect()
    };
    let taken: Result<Vec<Vec<Duration>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..outstanding).map(|_| scope.spawn(propose)).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|taken| taken.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut took: Vec<Duration> = taken?.into_iter().flatten().collect();
    let rate = f64::from(u32::try_from(took.len())?) / begin.elapsed().as_secs_f64();
    took.sort_unstable();
    // What was applied meanwhile is not needed.
    engine.take_events(&mut Vec::new());
    Ok((rate, took))
}

/// The value that a part of a thousand of the sorted values does not exceed.
fn quantile(sorted: &[Duration], per_thousand: usize) -> Duration {
    let index = sorted.len().saturating_sub(1) * per_thousand / 1000;
    sorted.get(index).copied().unwrap_or_default()
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let commands = std::env::args().nth(1).map_or(Ok(COMMANDS), |text| text.parse())?;
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let bound: std::io::Result<Vec<_>> =
        (0..3).map(|_| std::net::TcpListener::bind(("127.0.0.1", 0))).collect();
    let mut members = BTreeMap::new();
    for (id, listener) in (1..).zip(bound?) {
        let (name, address) = (format!("host-{id}"), listener.local_addr()?);
        members.insert(id, MembershipHost { name, address });
    }
    let engines: Result<Vec<RaftEngine>> =
        members.keys().map(|host| start(folder.path(), *host, members.clone())).collect();
    let engines = engines?;
    let voters: BTreeSet<u64> = members.keys().copied().collect();
    let [first, ..] = engines.as_slice() else { return Err("there is no host".into()) };
    first.initialize(&voters)?;
    first.propose_and_wait(vec![7], WAIT_MAX)?;
    let leads = |(host, _): &(&u64, &RaftEngine)| first.status().leader == Some(**host);
    let leader = members.keys().zip(&engines).find(leads).ok_or("no host leads")?.1;
    println!(
        "{COMMAND_BYTES}-byte commands, three engines, files in memory, {commands} of each row"
    );
    println!("{:>11} {:>10} {:>10} {:>10}", "outstanding", "commands/s", "p50 us", "p99 us");
    for outstanding in OUTSTANDING {
        let (rate, took) = measure(leader, outstanding, commands)?;
        let us = |per_thousand| quantile(&took, per_thousand).as_secs_f64() * 1e6;
        println!("{outstanding:>11} {rate:>10.0} {:>10.0} {:>10.0}", us(500), us(990));
    }
    Ok(())
}
