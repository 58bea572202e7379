//! Many sessions that change the same record at once: whether work goes on, and for whom.

use super::desk::{Desk, missing, wrong};
use super::findings::{Goal, Row, Sheet, Unit};
use crate::legacy::content::first_word;
use crate::legacy::micro::clock::Clock;
use crate::stat::sequence_average;
use crate::table::{Align, Table, latency_text, rate_text};
use nearstate_model::{Error, Result};
use nearstate_store::{Namespace, Region, Schema};
use serde_json::{Value, json};
use std::cell::Cell;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of each record.
const BYTES: usize = 64;

/// The records that all change: one, by the path of a put; two, by intents.
const RECORDS: [(&str, &[&[u8]]); 2] =
    [("one record", &[b"shared-a"]), ("two records", &[b"shared-a", b"shared-b"])];

/// What one writer did.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    commits: u64,
    /// Runs that met a change of somebody else.
    conflicts: u64,
    /// Calls that gave up.
    given_up: u64,
    /// The longest that one call took.
    longest_ns: u64,
}

/// All numbers of writers, on one record and on two.
///
/// # Errors
/// What the region said, and `Backend` if a change was lost.
pub fn run(desk: &mut Desk<'_>) -> Result<()> {
    desk.places.unpin();
    let mut table = Table::new(&[
        ("writers of the same", Align::Left),
        ("sessions", Align::Right),
        ("commits", Align::Right),
        ("conflicts per commit", Align::Right),
        ("per writer: min", Align::Right),
        ("median", Align::Right),
        ("max", Align::Right),
        ("gave up", Align::Right),
        ("longest call", Align::Right),
    ]);
    let mut lines = Vec::new();
    let mut starved = 0.0_f64;
    for (what, keys) in RECORDS {
        let mut row = Row::new(&format!("commits of writers of {what}"), 0, Unit::Rate);
        for sessions in &desk.options.sessions {
            let step = desk.display.begin(format!("{sessions} writers of {what}"), 1);
            let place = desk.place(0)?;
            let began = Instant::now();
            let written = all_write(&place.region, keys, *sessions, desk.options.contention_ms())?;
            let seconds = began.elapsed().as_secs_f64();
            place.close_and_check()?;
            let told = Told::of(what, &written, seconds);
            row.add(&format!("{sessions} sessions"), told.commits_per_s);
            starved = starved.max(told.starved());
            step.finish_run(&format!("{}/s", rate_text(told.commits_per_s)));
            table.row(told.line());
            lines.push(told.json());
        }
        table.rule();
        desk.rows.push(row);
    }
    let mut row = Row::new("conflicting writers that never got through", 0, Unit::Count);
    row.goals = vec![Goal::AtMost(0.0)];
    row.add("the most in any run", starved);
    desk.rows.push(row);
    let title = "writers that conflict: progress and fairness".to_owned();
    desk.sheets.push(Sheet { title, table, json: Value::Array(lines) });
    desk.caveats.push(
        "conflicting writers: a thread and a session each, not pinned; every change was counted in \
         the records and none was lost"
            .to_owned(),
    );
    Ok(())
}

/// Writers of a row of the table.
#[derive(Debug)]
struct Told<'a> {
    what: &'a str,
    commits: Vec<u64>,
    commits_total: u64,
    commits_per_s: f64,
    conflicts_per_commit: f64,
    given_up: u64,
    longest_ns: u64,
}

impl<'a> Told<'a> {
    fn of(what: &'a str, written: &[Written], seconds: f64) -> Self {
        let mut commits: Vec<u64> = written.iter().map(|w| w.commits).collect();
        commits.sort_unstable();
        let commits_total = commits.iter().sum();
        let conflicts = written.iter().map(|w| w.conflicts).sum();
        Self {
            what,
            commits_total,
            commits,
            commits_per_s: sequence_average(commits_total, 1) / seconds,
            conflicts_per_commit: sequence_average(conflicts, commits_total),
            given_up: written.iter().map(|w| w.given_up).sum(),
            longest_ns: written.iter().map(|w| w.longest_ns).max().unwrap_or(0),
        }
    }

    /// How many writers committed nothing.
    fn starved(&self) -> f64 {
        let starved = self.commits.iter().filter(|commits| **commits == 0).count();
        sequence_average(starved as u64, 1)
    }

    /// Least, middle and most.
    fn spread(&self) -> [u64; 3] {
        [0, self.commits.len() / 2, self.commits.len().saturating_sub(1)]
            .map(|at| self.commits.get(at).copied().unwrap_or(0))
    }

    fn line(&self) -> Vec<String> {
        let [least, middle, most] = self.spread().map(|n| n.to_string());
        vec![
            self.what.to_owned(),
            self.commits.len().to_string(),
            self.commits_total.to_string(),
            format!("{:.3}", self.conflicts_per_commit),
            least,
            middle,
            most,
            self.given_up.to_string(),
            latency_text(sequence_average(self.longest_ns, 1)),
        ]
    }

    fn json(&self) -> Value {
        let [least, middle, most] = self.spread();
        json!({
            "what": self.what,
            "sessions": self.commits.len(),
            "commits": self.commits_total,
            "commits_per_s": self.commits_per_s,
            "conflicts_per_commit": self.conflicts_per_commit,
            "commits_per_writer": {"min": least, "median": middle, "max": most},
            "gave_up": self.given_up,
            "longest_call_ns": self.longest_ns,
        })
    }
}

fn all_write(region: &Region, keys: &[&[u8]], sessions: u64, time_ms: u64) -> Result<Vec<Written>> {
    let session = region.session()?;
    let namespace = session.namespace("shared", &Schema::default())?;
    for key in keys {
        session.put(namespace, key, &[0; BYTES])?;
    }
    let threads = usize::try_from(sessions).unwrap_or(usize::MAX);
    let start = Barrier::new(threads);
    let written: Result<Vec<Written>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| write(region, namespace, keys, (&start, time_ms))))
            .collect();
        let ended = writers.into_iter().map(|writer| match writer.join() {
            Ok(written) => written,
            Err(_) => Err(wrong("a writer panicked")),
        });
        ended.collect()
    });
    let written = written?;
    let commits: u64 = written.iter().map(|w| w.commits).sum();
    for key in keys {
        let view = session.get(namespace, key)?.ok_or_else(missing)?;
        let counted = first_word(view.bytes());
        if counted != commits {
            let text = format!("{commits} transactions committed and {counted} changes are there");
            return Err(wrong(&text));
        }
    }
    Ok(written)
}

/// One writer: all are ready before any begins.
fn write(
    region: &Region,
    namespace: Namespace,
    keys: &[&[u8]],
    (start, time_ms): (&Barrier, u64),
) -> Result<Written> {
    let session = region.session();
    start.wait();
    let session = session?;
    let end = Instant::now() + Duration::from_millis(time_ms);
    let mut written = Written::default();
    let runs = Cell::new(0_u64);
    let mut begin_ns = Clock::Wall.now_ns();
    while Instant::now() < end {
        runs.set(0);
        let done = session.transact(|txn| {
            runs.set(runs.get() + 1);
            for key in keys {
                let record = txn.get(namespace, key)?.ok_or_else(missing)?;
                let mut value = [0; BYTES];
                let count = first_word(record.bytes()) + 1;
                if let Some((to, _)) = value.split_first_chunk_mut::<8>() {
                    *to = count.to_le_bytes();
                }
                txn.put(namespace, key, &value)?;
            }
            Ok(())
        });
        match done {
            Ok(()) => {
                written.commits += 1;
                written.conflicts += runs.get() - 1;
            }
            Err(Error::Deadline { .. }) => {
                written.given_up += 1;
                written.conflicts += runs.get();
            }
            Err(other) => return Err(other),
        }
        let now_ns = Clock::Wall.now_ns();
        written.longest_ns = written.longest_ns.max(now_ns - begin_ns);
        begin_ns = now_ns;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_least_middle_and_most_of_the_writers() {
        let of = |commits, conflicts| Written { commits, conflicts, ..Written::default() };
        let told = Told::of("one record", &[of(30, 10), of(10, 20), of(20, 0)], 2.0);
        assert_eq!(told.spread(), [10, 20, 30]);
        assert!((told.conflicts_per_commit - 0.5).abs() < 1e-9);
        assert!((told.commits_per_s - 30.0).abs() < 1e-9);
        assert!(told.starved() < 0.5);
        let told = Told::of("one record", &[of(30, 10), of(0, 20), of(0, 0)], 2.0);
        assert!((told.starved() - 2.0).abs() < 1e-9);
    }
}
