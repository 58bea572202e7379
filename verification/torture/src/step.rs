//! Single steps: a child executes one operation instruction by instruction and is killed after each
//! of them in turn; another process verifies the region.
//!
//! Every kill is that of a real process, so the cost is the square of the number of instructions.
//! [`sweep`](crate::sweep) has more operations, and stops.

use std::fmt::Write as _;
use std::path::Path;

use nearstate_store::Region;
use serde_json::{Value, json};

use crate::content::{KeySpace, TortureKey};
use crate::error_context::ErrorContext as _;
use crate::journal::{self, WriteKind};
use crate::oracle::Oracle;
use crate::scenario::{SET_SECOND, Scenario, WRITER, WriteScript, named, prepare, verify};
use crate::spawn::{ChildCommand, ChildRole};
use crate::trace::{SweepError, TracedChild, allow};
use crate::writer::{JournaledWriter, PlannedWrite};

#[derive(Clone, Copy, Debug)]
pub struct SteppedOperation {
    pub name: &'static str,
    /// The scenario that prepares the region.
    scenario: &'static str,
    /// What the child writes; the last write is stepped.
    work: fn(&mut WriteScript, u32),
}

const fn operation(
    name: &'static str,
    scenario: &'static str,
    work: fn(&mut WriteScript, u32),
) -> SteppedOperation {
    SteppedOperation { name, scenario, work }
}

/// All operations: a put of each kind, a deletion, a patch, a cell of a fresh chunk, cells that
/// are freed and allocated again, a transaction, a split.
pub const OPERATIONS: &[SteppedOperation] = &[
    operation("insert", "insert", |s, _| s.each(WriteKind::PutAbsent, KeySpace::Own, 40..42, 300)),
    operation("replace", "replace", |s, _| s.each(WriteKind::PutVersion, KeySpace::Own, 0..3, 700)),
    operation("delete", "delete", |s, _| s.each(WriteKind::DeleteVersion, KeySpace::Own, 3..5, 0)),
    operation("patch", "patch", |s, _| s.patch(0, SET_SECOND)),
    operation("chunk", "chunk", |s, _| s.each(WriteKind::Put, KeySpace::Own, 0..1, 300)),
    operation("give", "free-4k", |s, _| s.each(WriteKind::Delete, KeySpace::Own, 0..385, 0)),
    operation("take", "free-4k", |s, _| {
        s.each(WriteKind::Delete, KeySpace::Own, 0..385, 0);
        s.each(WriteKind::Put, KeySpace::Own, 450..451, 4000);
    }),
    operation("transaction", "transaction", |s, _| {
        s.together(|s| s.each(WriteKind::Put, KeySpace::Own, 10..12, 300));
        s.together(|s| {
            s.each(WriteKind::Put, KeySpace::Own, 0..1, 300);
            s.each(WriteKind::Put, KeySpace::Own, 43..44, 300);
            s.each(WriteKind::Delete, KeySpace::Own, 5..6, 0);
        });
    }),
    operation("split", "grow", |s, number| {
        s.each(WriteKind::Put, KeySpace::Grow, number..number + 1, 20);
    }),
];

/// The result of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepRow {
    pub name: &'static str,
    /// Instructions of the whole call.
    pub instructions: u64,
    /// Kills, each after another number of instructions and followed by a verification.
    pub kills: u64,
    /// Stops, each with another process that attaches, reads and writes meanwhile.
    pub stops: u64,
    /// Writes of that process which were refused, with the name of the stopped one.
    pub refused: u64,
}

/// After which instructions to kill.
#[derive(Clone, Copy, Debug)]
pub enum StepStride {
    /// After every so many instructions.
    Every(u64),
    /// At this many instructions, in equal parts of the operation.
    Places { count: u64, seed: u64 },
}

pub fn table(rows: &[SweepRow]) -> String {
    let head = ["instructions", "kills", "stops", "refused"].map(|word| format!("{word:>13}"));
    let mut text = format!("{:<18}{}\n", "operation", head.concat());
    for row in rows {
        let numbers = [row.instructions, row.kills, row.stops, row.refused];
        let numbers = numbers.map(|number| format!("{number:>13}")).concat();
        let _ = writeln!(text, "{:<18}{numbers}", row.name);
    }
    text
}

pub fn json(rows: &[SweepRow]) -> Value {
    let rows = rows.iter().map(|row| {
        json!({
            "operation": row.name,
            "instructions": row.instructions,
            "kills": row.kills,
            "stops": row.stops,
            "refused": row.refused,
        })
    });
    Value::Array(rows.collect())
}

/// A child's role: executes an operation, named by `NAME:NUMBER`; the last write is stepped.
pub fn play(folder: &Path, what: &str) -> Result<(), String> {
    let (name, number) = what.split_once(':').ok_or("expected NAME:NUMBER")?;
    let number = number.parse().map_err(|_| "NUMBER is not a number")?;
    let operation = OPERATIONS
        .iter()
        .find(|operation| operation.name == name)
        .ok_or_else(|| format!("unknown operation {name:?}"))?;
    allow()?;
    let mut script = WriteScript::default();
    (operation.work)(&mut script, number);
    let last: Vec<PlannedWrite> = script.0.pop().ok_or("the operation has no writes")?;
    let mut writer = JournaledWriter::open(folder, WRITER, 0)?;
    for orders in script.0 {
        writer.work(&orders)?;
    }
    writer.is_stepped = true;
    writer.work(&last)
}

/// Kills children at instructions of every operation. `tick` receives the operation and the
/// progress.
pub fn sweep(
    folder: &Path,
    starter: &ChildCommand,
    stride: StepStride,
    tick: &mut dyn FnMut(&str, u64, u64),
) -> Result<Vec<SweepRow>, SweepError> {
    let mut rows = Vec::new();
    for operation in OPERATIONS {
        let scenario = named(operation.scenario)
            .ok_or_else(|| SweepError::Violation(format!("no scenario {}", operation.scenario)))?;
        let context = |at: u64| {
            let name = operation.name;
            move |error: String| {
                SweepError::Violation(format!("{name} killed after {at} instructions: {error}"))
            }
        };
        // Once to the end, to count the instructions.
        let (_, whole) = one(folder, starter, operation, scenario, u64::MAX)?;
        let step = match stride {
            StepStride::Every(step) => step,
            StepStride::Places { count, .. } => (whole / count).max(1),
        };
        let mut row = SweepRow { name: operation.name, instructions: whole, ..SweepRow::default() };
        let mut at = 0;
        loop {
            tick(operation.name, at, whole);
            let (mut oracle, done) = one(folder, starter, operation, scenario, at)?;
            row.kills += 1;
            verify(folder, scenario, &mut oracle).map_err(context(at))?;
            if done < at {
                break;
            }
            at += step;
        }
        rows.push(row);
    }
    std::fs::remove_dir_all(folder)
        .map_err(|e| SweepError::Violation(format!("cannot clean up: {e}")))?;
    Ok(rows)
}

/// Runs one child, killed after `limit` instructions or at the end of the call. Returns how many it
/// executed.
fn one(
    folder: &Path,
    starter: &ChildCommand,
    operation: &SteppedOperation,
    scenario: &Scenario,
    limit: u64,
) -> Result<(Oracle, u64), SweepError> {
    let context = |error: String| SweepError::Violation(format!("{}: {error}", operation.name));
    let mut oracle = prepare(folder, scenario).map_err(context)?;
    let number = match operation.name {
        "split" => find_split(folder, &mut oracle).map_err(context)?,
        _ => 0,
    };
    let more = format!("{}:{number}", operation.name);
    let role = ChildRole { role: "step", more: &more, ..ChildRole::default() };
    let child = TracedChild::start(starter, folder, &role)?;
    let mut done = 0;
    while done < limit && child.step().map_err(context)? {
        done += 1;
    }
    child.kill().map_err(context)?;
    Ok((oracle, done))
}

/// Fills the growing namespace until an insert of one key splits a bucket, three times in a row;
/// deletes the key and returns its number. The next insert of it splits another bucket.
fn find_split(folder: &Path, oracle: &mut Oracle) -> Result<u32, String> {
    let file = journal::path_of(folder, WRITER);
    let entries = journal::read(&file).context("journal")?;
    let base = journal::next_base(&entries);
    journal::begin(&file, base).context("journal")?;
    let region = Region::attach(&folder.join("region")).context("attach")?;
    let buckets = || -> Result<u64, String> {
        let all = region.inspect().context("inspect")?.namespaces;
        Ok(all.iter().find(|entry| entry.name == b"grow-0").map_or(0, |entry| entry.buckets))
    };
    let mut writer = JournaledWriter::open(folder, WRITER, 0)?;
    let mut change = |op, number| {
        let key = TortureKey { space: KeySpace::Grow, writer: WRITER, number };
        writer.order(PlannedWrite { op, key, len: 20, mask: 0 })
    };
    for number in 0..2000 {
        let mut splits = 0;
        for _ in 0..3 {
            let before = buckets()?;
            change(WriteKind::Put, number)?;
            if buckets()? == before {
                break;
            }
            splits += 1;
            change(WriteKind::Delete, number)?;
        }
        if splits == 3 {
            drop(writer);
            crate::scenario::report_journal(folder, oracle)?;
            return Ok(number);
        }
    }
    Err("no insert splits".to_owned())
}
