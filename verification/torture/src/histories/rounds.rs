//! Rounds: processes execute operations on a few records, some are killed and restarted, and what
//! they recorded is checked.

use std::fs;
use std::time::Instant;

use nearstate_store::{CreateOptions, Region, Session};

use super::checker::{CheckerVerdict, HistoryChecker};
use super::history::{History, HistoryOp, WrittenValue};
use super::model::HistoryModel;
use super::options::{Detector, HistoryOptions, HistoryTotals, Violation, first_value};
use super::process_group::{ProcessGroup, ProcessRecord};
use super::recorded_txn::{KeyMap, OperationError, RecordedTxn, RoundContext};
use crate::clock::now_ns;
use crate::region_access::{clean_up, create_folder};
use crate::rng::{Rng, percent, seeded};
use crate::spawn::ChildCommand;
use crate::verify::check_clean;

/// Number of the process that prepares a round and reads the final state.
const COORDINATOR: u64 = 255;

struct HistoryRun<'r> {
    options: &'r HistoryOptions,
    checker: HistoryChecker,
    group: ProcessGroup<'r>,
    rng: Rng,
    totals: HistoryTotals,
    coordinator: Option<(Session, KeyMap)>,
}

/// Runs all rounds, and calls `tick` after each.
pub fn play(
    options: &HistoryOptions,
    starter: &ChildCommand,
    tick: &mut dyn FnMut(&HistoryTotals),
) -> Result<HistoryTotals, String> {
    let begin = Instant::now();
    let folder = &options.folder;
    create_folder(folder)?;
    let mut rounds = HistoryRun {
        options,
        checker: HistoryChecker::start()?,
        group: ProcessGroup::new(options, starter),
        rng: seeded(&[options.seed, 3 << 32]),
        totals: HistoryTotals::default(),
        coordinator: None,
    };
    let done = rounds.all(tick);
    let HistoryRun { mut totals, group, .. } = rounds;
    drop(group);
    totals.seconds = begin.elapsed().as_secs_f64();
    clean_up(done, folder, |Violation(by, text)| {
        let (round, seed) = (totals.rounds, options.seed);
        format!("{by:?}: {text}\n(round {round} of seed {seed}; files: {})", folder.display())
    })?;
    Ok(totals)
}

impl HistoryRun<'_> {
    fn all(&mut self, tick: &mut dyn FnMut(&HistoryTotals)) -> Result<(), Violation> {
        self.open(true)?;
        while self.totals.rounds < self.options.rounds {
            let result = self.round();
            self.totals.rounds += 1;
            self.totals.kills = self.group.kills;
            self.record_violation(result)?;
            let is_last = self.totals.rounds == self.options.rounds;
            if is_last || self.totals.rounds.is_multiple_of(self.options.rounds_per_check) {
                let result = self.check();
                let is_damaged = result.is_err();
                self.record_violation(result)?;
                if !is_last {
                    self.open(is_damaged)?;
                }
            }
            tick(&self.totals);
        }
        Ok(())
    }

    /// A survey counts a violation. Otherwise it ends the run.
    fn record_violation(&mut self, result: Result<(), Violation>) -> Result<(), Violation> {
        match result {
            Err(Violation(by, text)) if self.options.is_survey => {
                *self.totals.caught.entry(by).or_default() += 1;
                self.totals.first.entry(by).or_insert(text);
                Ok(())
            }
            other => other,
        }
    }

    fn open(&mut self, is_new: bool) -> Result<(), Violation> {
        let path = self.options.folder.join("region");
        let bad = |e: nearstate_store::Error| Violation(Detector::Process, format!("region: {e}"));
        if is_new {
            let _ = fs::remove_file(&path);
            let options = CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() };
            drop(Region::create(&path, &options).map_err(bad)?);
        }
        let session = Region::attach(&path).and_then(|region| region.session()).map_err(bad)?;
        let places = KeyMap::open(&session).map_err(|e| Violation(Detector::Process, e))?;
        self.coordinator = Some((session, places));
        self.group.start_all()
    }

    /// Ends all processes, some of them by a kill, and runs the offline check.
    fn check(&mut self) -> Result<(), Violation> {
        let is_killed = self.options.kills_percent > 0 && percent(&mut self.rng, 50);
        self.group.end_all(is_killed)?;
        self.totals.kills = self.group.kills;
        self.coordinator = None;
        self.totals.checks += 1;
        check_clean(&self.options.folder.join("region"))
            .map_err(|e| Violation(Detector::Check, e))?;
        Ok(())
    }

    fn round(&mut self) -> Result<(), Violation> {
        let number = self.totals.rounds;
        let all = HistoryModel::ALL;
        let model = self.options.model.unwrap_or_else(|| {
            all.get(self.rng.usize(..4)).copied().unwrap_or(HistoryModel::Registers)
        });
        let start = self.prepare(model, number).map_err(coordinator_violation)?;
        let name = format!("{}-{}-{number}", self.options.seed, model.name());
        let mut history = History::new(name, model, &start);
        let played = self.group.play(model, number, &mut self.rng);
        let last = self.read_end(model, number).map_err(coordinator_violation)?;
        self.clean(model, number).map_err(coordinator_violation)?;
        self.collect(&mut history, played?, last)?;
        self.check_history(&history)
    }

    fn context(&self, model: HistoryModel, round: u64) -> Result<RoundContext<'_>, OperationError> {
        let (session, places) =
            self.coordinator.as_ref().ok_or_else(|| "no open session".to_owned())?;
        Ok(RoundContext { session, places: *places, model, round })
    }

    /// Writes the model's initial values.
    fn prepare(
        &self,
        model: HistoryModel,
        round: u64,
    ) -> Result<Vec<Option<WrittenValue>>, OperationError> {
        let context = self.context(model, round)?;
        let mut txn = RecordedTxn::new(&context, first_value(round, COORDINATOR, 0))?;
        for key in 0..model.keys() {
            if let Some(payload) = model.start(key) {
                txn.put(key, payload)?;
            }
        }
        let written = txn.writes.clone();
        txn.commit()?;
        let of = |key| written.iter().find(|written| written.key == key).copied();
        Ok((0..model.keys()).map(of).collect())
    }

    /// Reads the final state after all processes have ended, as one more transaction and as single
    /// reads.
    fn read_end(&self, model: HistoryModel, round: u64) -> Result<Vec<HistoryOp>, OperationError> {
        let context = self.context(model, round)?;
        let client = u32::from(self.options.processes);
        let op = |call, reads| HistoryOp {
            client,
            call,
            ret: now_ns(),
            is_unknown: false,
            reads,
            writes: Vec::new(),
        };
        let call = now_ns();
        let mut txn = RecordedTxn::new(&context, 0)?;
        for key in 0..model.keys() {
            txn.get(key)?;
        }
        let reads = txn.reads();
        txn.commit()?;
        let mut ops = vec![op(call, reads)];
        for key in 0..model.keys() {
            let call = now_ns();
            let value = context.get(key)?;
            ops.push(op(call, vec![(key, value)]));
        }
        Ok(ops)
    }

    fn clean(&self, model: HistoryModel, round: u64) -> Result<(), OperationError> {
        let context = self.context(model, round)?;
        for key in 0..model.keys() {
            let location = context.location(key);
            context.session.delete(location.namespace, &location.key)?;
        }
        Ok(())
    }

    fn collect(
        &mut self,
        history: &mut History,
        played: Vec<ProcessRecord>,
        last: Vec<HistoryOp>,
    ) -> Result<(), Violation> {
        for ProcessRecord { process, text, deaths } in played {
            let counted = history
                .take(u32::from(process), &text, &deaths)
                .map_err(|e| Violation(Detector::Process, e))?;
            self.totals.operations += counted.ops;
            self.totals.transactions_and_writes_done += counted.done;
            self.totals.refused += counted.refused;
            self.totals.cut_short += counted.unknown;
        }
        self.totals.operations += last.len() as u64;
        history.ops.extend(last);
        history.bound_unknown();
        Ok(())
    }

    /// Both the checker and the invariants are evaluated, so that a survey counts what each
    /// detects.
    fn check_history(&mut self, history: &History) -> Result<(), Violation> {
        let folder = &self.options.folder;
        let page = folder.join(format!("{}.html", history.name));
        let ruling = self
            .checker
            .ask(history, &page)
            .map_err(|error| Violation(Detector::Process, error))?;
        let snapshots = history.check_snapshots();
        self.totals.histories_checked += u64::from(ruling != CheckerVerdict::Undecided);
        self.totals.histories_undecided += u64::from(ruling == CheckerVerdict::Undecided);
        self.totals.snapshots_checked += snapshots.as_ref().copied().unwrap_or(0);
        if ruling != CheckerVerdict::Illegal && snapshots.is_ok() {
            return Ok(());
        }
        let file = folder.join(format!("{}.json", history.name));
        let text = history.json(0, "").to_string();
        fs::write(&file, text).map_err(|e| Violation(Detector::Process, e.to_string()))?;
        let broken = snapshots.err().map(|e| Violation(Detector::Invariant, e));
        if ruling == CheckerVerdict::Illegal {
            let text = format!(
                "history {} is not strictly serializable: {} and {}",
                history.name,
                file.display(),
                page.display()
            );
            self.record_violation(broken.map_or(Ok(()), Err))?;
            return Err(Violation(Detector::History, text));
        }
        broken.map_or(Ok(()), Err)
    }
}

fn coordinator_violation(stop: OperationError) -> Violation {
    Violation(
        Detector::Process,
        match stop {
            OperationError::Conflict => "a conflict without another writer".to_owned(),
            OperationError::Violation(text) => format!("before or after a round: {text}"),
        },
    )
}
