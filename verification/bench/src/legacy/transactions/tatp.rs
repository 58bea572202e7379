//! Telecom Application Transaction Processing: the published mix of seven transactions on a home
//! location register, over one region in one process, verified by a model that does the same.

pub mod database;
pub mod model;
pub mod tally;
pub mod population;
pub mod requests;
pub mod rows;

use super::desk::{Desk, wrong};
use super::findings::{Goal, Row, Sheet, Unit};
use crate::legacy::micro::clock::Clock;
use crate::stat::{Latencies, sequence_average};
use crate::table::{Align, Table, latency_text, rate_text};
use database::Database;
use model::Model;
use nearstate_model::Result;
use requests::{KINDS, Kind, Request, Requests};
use serde_json::{Value, json};
use tally::Tally;

/// What a row, its key and its share of the index take at most, a subscriber with all that belongs
/// to it, and twice that for what is replaced.
const SUBSCRIBER_ROOM: u64 = 2 * 10 * 256;

/// Operations of the turn in which each transaction's time is taken, for each one of a normal turn.
const TIMED: u64 = 5;

/// Loads, runs in turns with and without transactions, takes latencies, verifies.
///
/// # Errors
/// What the region said, and `Backend` if it does not answer or hold what the model does.
pub fn run(desk: &mut Desk<'_>) -> Result<()> {
    let subscribers = desk.options.subscribers;
    let seed = desk.options.seed;
    let place = desk.place(u64::from(subscribers) * SUBSCRIBER_ROOM)?;
    let database = Database::of(&place.region)?;
    let step = desk.display.begin(format!("{subscribers} TATP subscribers"), subscribers.into());
    database.load(seed, subscribers, || step.done(1))?;
    step.finish();
    desk.collapse(&place, &format!("TATP, {subscribers} subscribers"))?;
    let mut bench = Bench {
        model: Model::fresh(seed, subscribers)?,
        requests: Requests::new(seed + 1, subscribers),
        clock: desk.options.clock,
        total: Tally::default(),
        database,
    };
    let mut row = Row::new("TATP transactions, one core", subscribers.into(), Unit::Rate);
    row.goals = vec![Goal::AtLeast(1.5e6)];
    let step = desk.display.begin(row.title.clone(), desk.options.rounds());
    for _ in 0..desk.options.rounds() {
        for (name, way) in [("transactions", Way::Transact), ("plain operations", Way::Plain)] {
            // The first turn brings back what the other arm has driven out of the caches.
            bench.turn(desk.options.ops() / 5, way)?;
            row.add(name, 1e9 / bench.turn(desk.options.ops(), way)?);
        }
        step.done(1);
    }
    let text = row.arms.iter().map(|arm| format!("{} {}/s", arm.name, rate_text(arm.median())));
    step.finish_run(&text.collect::<Vec<_>>().join(", "));
    desk.rows.push(row);
    let latencies = bench.latencies(desk.options.ops() * TIMED)?;
    let verified = bench.database.verify(&bench.model)?;
    desk.sheets.push(sheet(&bench.total, &latencies));
    desk.caveats.push(format!(
        "TATP: {} transactions were run again on a model in this process: the same successes, the \
         same rows read, and {verified} rows of five tables the same at the end; latencies include \
         {} for the reading of the clock",
        bench.total.total(),
        latency_text(reading_ns())
    ));
    drop(bench);
    place.close_and_check()
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Transact,
    Plain,
}

#[derive(Debug)]
struct Bench {
    database: Database,
    model: Model,
    requests: Requests,
    clock: Clock,
    total: Tally,
}

impl Bench {
    fn drawn(&mut self, ops: u64) -> Vec<Request> {
        self.requests.by_ref().take(usize::try_from(ops).unwrap_or(usize::MAX)).collect()
    }

    /// One turn; nanoseconds for each transaction.
    fn turn(&mut self, ops: u64, way: Way) -> Result<f64> {
        let requests = self.drawn(ops);
        let mut tally = Tally::default();
        let begin_ns = self.clock.now_ns();
        match way {
            Way::Transact => {
                for request in &requests {
                    self.database.transact(request, &mut tally)?;
                }
            }
            Way::Plain => {
                for request in &requests {
                    self.database.plain(request, &mut tally)?;
                }
            }
        }
        let ns = self.clock.now_ns() - begin_ns;
        self.follow(&requests, &tally)?;
        Ok(sequence_average(ns, ops))
    }

    /// The model does the same, and must have seen the same.
    fn follow(&mut self, requests: &[Request], tally: &Tally) -> Result<()> {
        let mut expected = Tally::default();
        for request in requests {
            self.model.run(request, &mut expected);
        }
        if *tally != expected {
            return Err(wrong(&format!("TATP: {tally:?} where the model has {expected:?}")));
        }
        for (all, some) in
            [(&mut self.total.runs, tally.runs), (&mut self.total.successes, tally.successes)]
        {
            for (all, some) in all.iter_mut().zip(some) {
                *all += some;
            }
        }
        Ok(())
    }

    /// The time of every single transaction, by kind.
    fn latencies(&mut self, ops: u64) -> Result<[Latencies; 7]> {
        let requests = self.drawn(ops);
        let mut tally = Tally::default();
        let mut times = Vec::with_capacity(requests.len());
        for request in &requests {
            let begin_ns = Clock::Wall.now_ns();
            self.database.transact(request, &mut tally)?;
            times.push(Clock::Wall.now_ns() - begin_ns);
        }
        self.follow(&requests, &tally)?;
        let mut out = std::array::from_fn(|_| Latencies::new());
        for (request, ns) in requests.iter().zip(times) {
            if let Some(latencies) = out.get_mut(request.kind.index()) {
                latencies.record(ns.max(1), 1);
            }
        }
        Ok(out)
    }
}

/// What two readings of the clock with nothing between them take.
fn reading_ns() -> f64 {
    const READINGS: u64 = 10_000;
    let begin_ns = Clock::Wall.now_ns();
    for _ in 1..READINGS {
        std::hint::black_box(Clock::Wall.now_ns());
    }
    sequence_average(Clock::Wall.now_ns() - begin_ns, READINGS)
}

fn sheet(tally: &Tally, latencies: &[Latencies; 7]) -> Sheet {
    let mut table = Table::new(&[
        ("TATP transaction", Align::Left),
        ("share", Align::Right),
        ("success", Align::Right),
        ("published", Align::Right),
        ("by its rules", Align::Right),
        ("mean", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("p99.9", Align::Right),
        ("max", Align::Right),
    ]);
    let mut kinds = Vec::new();
    let mut all = Latencies::new();
    for (kind, seen) in KINDS.into_iter().zip(latencies) {
        all.add(seen);
        let percent = |amount: f64| format!("{amount:.2} %");
        table.row(
            [
                kind.name().to_owned(),
                format!("{} %", kind.percent()),
                percent(tally.percent(kind)),
                percent(kind.published()),
                percent(kind.by_the_rules()),
            ]
            .into_iter()
            .chain(times(seen))
            .collect(),
        );
        kinds.push(kind_json(kind, tally, seen));
    }
    table.rule();
    let whole = ["all", "100 %", "", "", ""].map(str::to_owned);
    table.row(whole.into_iter().chain(times(&all)).collect());
    Sheet {
        title: "TATP: success and latency of each transaction".to_owned(),
        table,
        json: Value::Array(kinds),
    }
}

fn times(seen: &Latencies) -> [String; 5] {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds far below 2^53")]
    let text = |ns: u64| latency_text(ns as f64);
    let at = |percent| text(seen.percentile(percent));
    [latency_text(seen.mean()), at(50.0), at(99.0), at(99.9), text(seen.max())]
}

fn kind_json(kind: Kind, tally: &Tally, seen: &Latencies) -> Value {
    json!({
        "transaction": kind.name(),
        "runs": tally.runs.get(kind.index()),
        "success_percent": tally.percent(kind),
        "published_percent": kind.published(),
        "by_its_rules_percent": kind.by_the_rules(),
        "mean_ns": seen.mean(),
        "p50_ns": seen.percentile(50.0),
        "p99_ns": seen.percentile(99.0),
        "p999_ns": seen.percentile(99.9),
        "max_ns": seen.max(),
        "latencies_ns": seen.pairs().collect::<Vec<(u64, u64)>>(),
    })
}
