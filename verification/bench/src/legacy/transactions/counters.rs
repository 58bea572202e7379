//! Counters that one process adds to, and two at once.

use super::desk::{Desk, missing, wrong};
use super::findings::{Goal, Row, Unit};
use crate::legacy::micro::clock::Clock;
use crate::legacy::micro::companion::{Companion, Terms, at_once};
use crate::legacy::micro::role::{COUNTERS, Role};
use crate::stat::sequence_average;
use crate::table::rate_text;
use nearstate_model::Result;
use nearstate_store::{Kind, Schema};

/// Adds of one process in a turn, for each operation of other measures' turns: an add is short, and
/// a turn has to be long beside the moment in which two processes begin.
const ADDS: u64 = 100;

/// Name, counter of each process.
const ARMS: [(&str, &[&str]); 3] = [
    ("two processes, one counter", &["shared", "shared"]),
    ("two processes, one each", &["own-0", "own-1"]),
    ("one process", &["alone"]),
];

/// All arms in turns.
///
/// # Errors
/// What the region said, and `Backend` if an add was lost.
pub fn run(desk: &mut Desk<'_>) -> Result<()> {
    desk.places.unpin();
    let place = desk.place(0)?;
    let session = place.region.session()?;
    let schema = Schema { kind: Kind::Counters, ..Default::default() };
    let namespace = session.namespace(COUNTERS, &schema)?;
    let (rounds, ops) = (desk.options.rounds(), desk.options.ops() * ADDS);
    let mut row = Row::new("adds to shared counters, together", 0, Unit::Rate);
    row.goals = vec![Goal::AtLeast(20e6)];
    let step = desk.display.begin(row.title.clone(), rounds);
    let cpus = [desk.places.measuring, desk.places.companion];
    for _ in 0..rounds {
        for (name, keys) in ARMS {
            let mut started = Vec::new();
            for (key, cpu) in keys.iter().zip(cpus) {
                let terms = Terms { records: 0, ops, value_bytes: 0, cpu: Some(cpu), seed: 0 };
                started.push(Companion::start(Role::Add, key, &place.path, &terms)?);
            }
            let took = at_once(started)?;
            let all = ops * keys.len() as u64;
            let ns = match desk.options.clock {
                Clock::Wall => sequence_average(took.wall_ns, all),
                Clock::Thread => sequence_average(took.used_ns, all * keys.len() as u64),
            };
            row.add(name, 1e9 / ns);
        }
        step.done(1);
    }
    let text = row.arms.iter().map(|arm| format!("{} {}/s", arm.name, rate_text(arm.median())));
    step.finish_run(&text.collect::<Vec<_>>().join(", "));
    desk.rows.push(row);
    // Each process adds once more, before it is ready.
    for (key, processes) in [("shared", 2), ("own-0", 1), ("own-1", 1), ("alone", 1)] {
        let counted = session.read_counter(namespace, key.as_bytes())?.ok_or_else(missing)?;
        let expected = rounds * processes * (ops + 1);
        if u64::try_from(counted) != Ok(expected) {
            return Err(wrong(&format!("{expected} adds to {key} and {counted} are there")));
        }
    }
    if cpus[0] == cpus[1] {
        desk.caveats.push("counters: both processes had to share one processor".to_owned());
    }
    drop(session);
    place.close_and_check()
}
