//! One target in a run: its database, its clients, its result.

use super::ramp::{self, RampStep};
use super::{BenchContext, TargetOutcome, memory_bytes, needed};
use crate::client_pool::{ClientPool, NoProgress, ProgressListener};
use crate::processes;
use crate::progress::ProgressStep;
use crate::protocol::{ClientResult, Fault, Plan, STOPPED, Trial, error_text};
use crate::result::{ClassResult, LoadSettings, Round, TargetResult, TimeSlice};
use crate::space;
use crate::stat::{Latencies, as_f64};
use crate::table::{count_text, counted, latency_text, rate_text};
use crate::targets::{Database, DatabaseSpec, Support, Target};
use crate::workloads::Requirements;
use nearstate_model::Result;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Looks at a server behind an error of its clients, and the pause between two: the kernel closes
/// the sockets of a process that was killed before it shows that it has ended.
const DEATH_LOOKS: u32 = 50;
const DEATH_PAUSE: Duration = Duration::from_millis(10);

/// The smallest number of operations of a client in a round that is limited by time.
const ROUND_OPS_MIN: u64 = 200;

/// A target in a run. After an error only [`TargetRun::close`] has an effect.
pub(super) struct TargetRun<'a> {
    context: &'a BenchContext<'a>,
    target: &'a dyn Target,
    running: Option<Running>,
    /// Trials of its clients.
    trials: u64,
    /// Clients that could not be bound to their processor.
    pub(super) unbound: Vec<String>,
    /// The round that was interrupted and is not reported.
    unfinished: Option<String>,
    pub(super) result: TargetResult,
}

struct Running {
    // The clients go first.
    pool: ClientPool,
    database: Box<dyn Database>,
}

impl<'a> TargetRun<'a> {
    #[expect(clippy::borrowed_box, reason = "the box owns the target")]
    pub(super) fn new(
        context: &'a BenchContext<'a>,
        target: &'a Box<dyn Target>,
        version: &str,
    ) -> Self {
        let requirements = context.kind.requirements(&context.parameters);
        let layout = context.options.layout.as_deref();
        let result = TargetResult {
            name: target.name().to_owned(),
            version: version.to_owned(),
            ways: support_of(target.as_ref(), requirements, layout),
            ..TargetResult::default()
        };
        let target = target.as_ref();
        let (unbound, unfinished) = (Vec::new(), None);
        Self { context, target, running: None, trials: 0, unbound, unfinished, result }
    }

    /// Starts the database and its clients; prints which of these are not bound to a processor.
    pub(super) fn start(&mut self, spec: &DatabaseSpec) {
        match self.try_start(spec) {
            Ok(mut running) => {
                let name = self.target.name();
                for why in running.pool.unbound.drain(..) {
                    self.context.display.print(&format!("  {name}: {why}"));
                    self.unbound.push(format!("{name}: {why}"));
                }
                self.running = Some(running);
            }
            // Stopping a run is not a fault of a target.
            Err(e) if e.to_string().contains(STOPPED) => {}
            Err(e) => self.result.invalid.push(format!("could not be started: {}", error_text(&e))),
        }
    }

    fn try_start(&self, spec: &DatabaseSpec) -> Result<Running> {
        // Another process may have taken the space since it was checked.
        let own = [(self.target.name(), self.target.folder_bytes(spec))];
        space::fits(&spec.folder, &own, spec.records, space::free_bytes(&spec.folder)?)?;
        let database = self.target.start(spec)?;
        let context = self.context;
        let plan = Plan {
            workload: context.kind.name().to_owned(),
            parameters: context.parameters.clone(),
            target: self.target.name().to_owned(),
            address: database.address(),
            clients: usize::try_from(context.options.clients).unwrap_or(1),
            background: context.background(),
            connections: usize::try_from(context.options.connections).unwrap_or(1),
            reconnects: context.options.reconnects.max(u64::from(self.is_to_be_killed())),
            fault: context.options.fault,
            ..Plan::default()
        };
        let (clients, servers) = context.pinning.clone().unwrap_or_default();
        // A store in the clients' processes leaves the servers' processor to background clients.
        let background = if database.processes().is_empty() { &servers } else { &clients };
        let pool = ClientPool::start(&plan, (&clients, background), context.stop)?;
        Ok(Running { pool, database })
    }

    fn is_to_be_killed(&self) -> bool {
        self.context.options.kill.as_deref() == Some(self.target.name())
    }

    /// Runs `work` on the running target; an error ends its part of the run.
    fn attempt(&mut self, what: &str, work: impl FnOnce(&mut Self, &mut Running) -> Result<()>) {
        let Some(mut running) = self.running.take() else { return };
        let outcome = work(self, &mut running).and_then(|()| running.database.alive());
        match outcome {
            Ok(()) => self.running = Some(running),
            Err(e) if e.to_string().contains(STOPPED) => {}
            Err(e) => {
                let e = error_text(&e);
                let death = death_after(|| running.database.alive());
                let why = match death.filter(|death| !e.contains(death)) {
                    Some(death) => format!("{what}: {e} ({death})"),
                    None => format!("{what}: {e}"),
                };
                self.context.display.print(&format!("  {}: INVALID, {why}", self.target.name()));
                self.result.invalid.push(why);
            }
        }
    }

    pub(super) fn load(&mut self) {
        self.attempt("loading", |target_run, running| {
            let title = format!("{}, loading", target_run.target.name());
            let (records, _) = target_run.context.kind.size(&target_run.context.parameters);
            let mut bar = target_run.context.display.begin(title, records);
            target_run.result.loaded = running.pool.load(&mut bar)?;
            if !target_run.context.options.no_settle {
                target_run.result.settled = running.database.after_load()?;
            }
            let (records, ns) = target_run.result.loaded;
            let rate = rate_text(per_second(records, ns));
            bar.finish_run(&format!("{}, {rate}/s", counted(records, "record")));
            Ok(())
        });
    }

    pub(super) fn run_trial(&mut self, round: usize, load: &LoadSettings) {
        if self.running.is_none() {
            return;
        }
        self.try_trial(round, load);
        if self.running.is_none() && self.result.rounds.len() <= round {
            self.unfinished = Some(format!(
                "{}: round {} was interrupted and is not reported",
                self.target.name(),
                round + 1
            ));
        }
    }

    fn try_trial(&mut self, round: usize, load: &LoadSettings) {
        self.attempt("running", |target_run, running| {
            let title = format!("{}, round {}", target_run.target.name(), round + 1);
            let clients = load.clients as u64;
            let mut bar = target_run.context.display.begin(title, load.ops * clients);
            bar.phase("warming up");
            let warmed = target_run.warm_up(running, load)?;
            let ops = target_run.ops(load, warmed);
            bar.phase("running");
            let trial = target_run.trial(load, ops);
            let is_middle = round == load.rounds / 2;
            let left = (is_middle && target_run.is_to_be_killed()).then_some(ops * clients / 2);
            let done = measured(running, &trial, left, &mut bar)?;
            target_run.result.reconnects += done.1;
            let latencies = done.0.latencies();
            bar.finish_run(&format!(
                "{:>9}/s  p50 {:>9}  p99 {:>9}",
                rate_text(done.0.rate()),
                latency_text(as_f64(latencies.percentile(50.0))),
                latency_text(as_f64(latencies.percentile(99.0)))
            ));
            target_run.result.rounds.push(done.0);
            Ok(())
        });
    }

    /// The next trial with this number of operations of each client, driven as the rounds are.
    fn trial(&mut self, load: &LoadSettings, ops: u64) -> Trial {
        self.trials += 1;
        Trial {
            ops,
            depth: load.depth,
            rate: load.rate.map(|rate| rate / as_f64(load.clients as u64)),
            arrivals: load.arrivals,
            seed: self.context.parameters.seed,
            number: self.trials - 1,
            think_us: load.think_us,
            at_ns: 0,
        }
    }

    /// Runs unmeasured operations, at most for the time of a round; returns number and seconds.
    fn warm_up(&self, running: &mut Running, load: &LoadSettings) -> Result<(u64, f64)> {
        let round_s = self.context.options.round_time;
        let (mut done, mut took_s) = (0, 0.0);
        let before = Instant::now();
        while let Some(more) = warm_up_step(load.warm_up, round_s, done, took_s) {
            running.pool.warm_up(more, load.depth, &mut NoProgress)?;
            done += more;
            took_s = before.elapsed().as_secs_f64();
        }
        Ok((done, took_s))
    }

    /// Operations of each client: `load.ops`, or as many as fit into the time of a round.
    fn ops(&self, load: &LoadSettings, (warmed, warmed_s): (u64, f64)) -> u64 {
        let Some(round_s) = self.context.options.round_time else { return load.ops };
        if warmed == 0 {
            return load.ops;
        }
        let took_s = warmed_s.max(1e-9) / as_f64(warmed) + as_f64(load.think_us) / 1e6;
        let offered = load.rate.map_or(f64::INFINITY, |rate| rate / as_f64(load.clients as u64));
        let fits = (1.0 / took_s).min(offered) * round_s;
        crate::random::whole(fits).clamp(ROUND_OPS_MIN.min(load.ops), load.ops)
    }

    /// The rate of a closed loop without pauses, from the rounds or from one more trial.
    fn closed_rate(&mut self, running: &mut Running, load: &LoadSettings) -> Result<f64> {
        if let Some(rate) = ramp::closed_rate(load, &self.result.rounds) {
            return Ok(rate);
        }
        let ops = ramp::closed_ops(load, &self.result.rounds);
        let trial = self.trial(load, ops);
        let trial = Trial { rate: None, think_us: 0, ..trial };
        let (round, reconnects) = measured(running, &trial, None, &mut NoProgress)?;
        self.result.reconnects += reconnects;
        Ok(round.rate())
    }

    /// Finds the highest rate with a p99 below a bound.
    pub(super) fn find_rate(&mut self, load: &LoadSettings, bound_ns: u64) {
        self.attempt("climbing", |target_run, running| {
            let title = format!("{}, ramp", target_run.target.name());
            let bar = target_run.context.display.begin(title, ramp::POINTS_MAX as u64);
            bar.phase("a closed loop");
            let closed = target_run.closed_rate(running, load)?;
            let measure = |RampStep { offered, ops }| {
                bar.phase(&format!("{}/s", rate_text(offered)));
                let clients = as_f64(load.clients as u64);
                let ops = (ops / load.clients as u64).max(1);
                let rate = Some(offered / clients);
                let trial = Trial { rate, think_us: 0, ..target_run.trial(load, ops) };
                let (round, reconnects) = measured(running, &trial, None, &mut NoProgress)?;
                target_run.result.reconnects += reconnects;
                bar.done(1);
                Ok(round)
            };
            let (points, outcome) = ramp::RampSearch::new(closed, bound_ns).all(measure);
            target_run.result.ramp = points;
            outcome?;
            let best = target_run.result.ramp.iter().filter(|point| point.is_sustained);
            let best = best.map(|point| point.offered).fold(0.0, f64::max);
            bar.finish_run(&format!(
                "{}/s with a p99 below {}",
                rate_text(best),
                latency_text(as_f64(bound_ns))
            ));
            Ok(())
        });
    }

    pub(super) fn verify(&mut self) {
        if !self.target.keeps() {
            return;
        }
        self.attempt("verifying", |target_run, running| {
            let title = format!("{}, verifying", target_run.target.name());
            let (records, _) = target_run.context.kind.size(&target_run.context.parameters);
            let mut bar = target_run.context.display.begin(title, records);
            target_run.result.memory_bytes = memory_bytes(running.database.as_mut());
            let (verdict, checks) = running.pool.verify(&mut bar)?;
            bar.finish_run(&format!(
                "{}, {} wrong",
                counted(verdict.records, "record"),
                count_text(verdict.wrong)
            ));
            if verdict.wrong > 0 {
                let examples = verdict.examples.join("; ");
                let wrong = match verdict.wrong {
                    1 => "1 record, or an answer about it, is".to_owned(),
                    wrong => format!("{wrong} records, or answers about them, are"),
                };
                let why = format!("{wrong} not what was written and acknowledged: {examples}");
                target_run.result.invalid.push(why);
            }
            target_run.result.invalid.extend(target_run.unnoticed_fault());
            for check in checks.iter().filter(|check| !check.holds()) {
                target_run.result.invalid.push(format!(
                    "the generator is off: {} is {:.4}, not {:.4}",
                    check.name, check.found, check.expected
                ));
            }
            (target_run.result.verdict, target_run.result.checks) = (Some(verdict), checks);
            Ok(())
        });
    }

    /// Reports an injected fault that no client has noticed.
    fn unnoticed_fault(&self) -> Option<String> {
        let fault = self.context.options.fault.filter(|fault| *fault != Fault::Stall)?;
        self.result.invalid.is_empty().then(|| {
            format!(
                "the fault that was planted ({fault}) was not noticed: the workload has no \
                 operation that meets it, or too few (give more --ops)"
            )
        })
    }

    /// Stops clients and database.
    pub(super) fn close(self) -> TargetOutcome {
        drop(self.running);
        (self.result, self.unfinished)
    }
}

/// How the server of a failed trial has ended; `None` if it goes on.
fn death_after(mut alive: impl FnMut() -> Result<()>) -> Option<String> {
    for _ in 0..DEATH_LOOKS {
        if let Err(death) = alive() {
            return Some(error_text(&death));
        }
        std::thread::sleep(DEATH_PAUSE);
    }
    None
}

/// How a target supports the requirements of a workload.
fn support_of(
    target: &dyn Target,
    requirements: Requirements,
    layout: Option<&str>,
) -> Vec<(String, String)> {
    let words = |way: &Support| match way {
        Support::Native => "native".to_owned(),
        Support::Emulated(how) => format!("emulated: {how}"),
        Support::Declined(why) => format!("no: {why}"),
    };
    let ways = needed(requirements, &target.capabilities_in(layout));
    ways.iter().map(|(name, way)| ((*name).to_owned(), words(way))).collect()
}

/// One trial, and its reconnects. After `kill_after` operations the server is killed and restarted.
fn measured(
    running: &mut Running,
    trial: &Trial,
    kill_after: Option<u64>,
    listener: &mut impl ProgressListener,
) -> Result<(Round, u64)> {
    let Running { pool, database } = running;
    let begin_ns = processes::cpu_ns(&database.processes());
    let mut watcher =
        Watcher { listener, database: database.as_mut(), kill_after, begin_ns, ns: 0 };
    let ran = pool.run(trial, &mut watcher)?;
    if watcher.kill_after.is_some() {
        // The trial ended before the report of its half: the kill then happens between two trials.
        watcher.kill_after = Some(0);
        watcher.poll()?;
    }
    let server_cpu_ns = watcher.server_ns();
    let reconnects = ran.iter().map(|ran| ran.reconnects).sum();
    Ok((combined(ran, server_cpu_ns), reconnects))
}

/// Passes progress on, and kills the server after `kill_after` operations.
struct Watcher<'w, L> {
    listener: &'w mut L,
    database: &'w mut dyn Database,
    kill_after: Option<u64>,
    /// Processor time of the server at its start, or at the start of the trial.
    begin_ns: u64,
    /// Processor time of killed processes in this trial.
    ns: u64,
}

impl<L: ProgressListener> Watcher<'_, L> {
    fn server_ns(&self) -> u64 {
        let now_ns = processes::cpu_ns(&self.database.processes());
        self.ns + now_ns.saturating_sub(self.begin_ns)
    }
}

impl<L: ProgressListener> ProgressListener for Watcher<'_, L> {
    fn progress(&mut self, more: u64, p99_ns: u64) {
        self.listener.progress(more, p99_ns);
        self.kill_after = self.kill_after.map(|left| left.saturating_sub(more));
    }

    fn poll(&mut self) -> Result<()> {
        if self.kill_after == Some(0) {
            self.kill_after = None;
            self.ns = self.server_ns();
            self.begin_ns = 0;
            self.database.crash()?;
        }
        self.listener.poll()
    }
}

/// The results of all clients as one round.
fn combined(ran: Vec<ClientResult>, server_cpu_ns: u64) -> Round {
    let began_ns = ran.iter().map(|ran| ran.began_ns).min().unwrap_or(0);
    let ended_ns = ran.iter().map(|ran| ran.ended_ns).max().unwrap_or(0);
    let mut steps = ran.iter().map(|ran| ran.round.steps);
    let first = steps.next().flatten();
    let mut round = Round {
        wall_ns: ended_ns.saturating_sub(began_ns),
        server_cpu_ns,
        steps: first.filter(|_| steps.all(|one| one == first)),
        ..Round::default()
    };
    let mut classes: BTreeMap<String, Latencies> = BTreeMap::new();
    let mut order = Vec::new();
    let mut slices: Vec<TimeSlice> = Vec::new();
    for one in ran.into_iter().map(|ran| ran.round) {
        round.ops += one.ops;
        round.client_cpu_ns += one.client_cpu_ns;
        round.bytes_out += one.bytes_out;
        round.bytes_in += one.bytes_in;
        round.unsuccessful += one.unsuccessful;
        for class in one.classes {
            if !order.contains(&class.name) {
                order.push(class.name.clone());
            }
            let all = classes.entry(class.name).or_default();
            for (ns, count) in class.latencies {
                all.record(ns, count);
            }
        }
        slices = merged_slices(&slices, &one.slices);
    }
    let result = |name: String| {
        let latencies = classes.get(&name).map(|all| all.pairs().collect());
        ClassResult { name, latencies: latencies.unwrap_or_default() }
    };
    round.classes = order.into_iter().map(result).collect();
    round.slices = slices;
    round
}

/// The sums of the slices of two clients, after they have been brought to the same length.
fn merged_slices(first: &[TimeSlice], second: &[TimeSlice]) -> Vec<TimeSlice> {
    let length = |slices: &[TimeSlice]| slices.first().map_or(0, |slice| slice.ms);
    let (mut first, mut second) = (first.to_vec(), second.to_vec());
    while !first.is_empty() && !second.is_empty() && length(&first) != length(&second) {
        let shorter = if length(&first) < length(&second) { &mut first } else { &mut second };
        *shorter = crate::meter::merged(shorter);
        if shorter.len() < 2 {
            break;
        }
    }
    let (mut long, short) =
        if first.len() >= second.len() { (first, second) } else { (second, first) };
    for (one, other) in long.iter_mut().zip(&short) {
        *one = one.merged(*other);
    }
    long
}

/// Operations of the next part of a warm-up of at most `bound_s`; `None` at its end.
fn warm_up_step(all: u64, bound_s: Option<f64>, done: u64, took_s: f64) -> Option<u64> {
    let left = all.checked_sub(done).filter(|left| *left > 0)?;
    let Some(bound_s) = bound_s else { return Some(left) };
    if done == 0 {
        return Some(left.min(ROUND_OPS_MIN));
    }
    let left_s = bound_s - took_s;
    let fits = as_f64(done) / took_s.max(1e-9) * left_s.max(0.0);
    (left_s > 0.0).then(|| left.min(crate::random::whole(fits).max(1)))
}

fn per_second(count: u64, ns: u64) -> f64 {
    as_f64(count) * 1e9 / as_f64(ns.max(1))
}

impl ProgressListener for ProgressStep<'_> {
    fn progress(&mut self, more: u64, p99_ns: u64) {
        self.done(more);
        if p99_ns > 0 {
            self.phase(&format!("p99 {}", latency_text(as_f64(p99_ns))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::geode::GeodeTarget;

    #[test]
    fn a_round_has_the_number_of_steps_if_it_is_the_same_for_all_clients() {
        let of = |steps: [Option<usize>; 2]| {
            let round = |steps| Round { steps, ..Round::default() };
            let ran = steps.map(|steps| ClientResult { round: round(steps), ..Default::default() });
            combined(ran.to_vec(), 0).steps
        };
        assert_eq!(of([Some(4), Some(4)]), Some(4));
        assert_eq!(of([Some(4), Some(1)]), None);
        assert_eq!(of([Some(4), None]), None);
    }

    #[test]
    fn a_warm_up_ends_with_its_operations_or_with_its_time() {
        assert_eq!(warm_up_step(100_000, None, 0, 0.0), Some(100_000));
        assert_eq!(warm_up_step(100_000, None, 100_000, 9.0), None);
        assert_eq!(warm_up_step(0, Some(1.0), 0, 0.0), None);
        assert_eq!(warm_up_step(100_000, Some(1.0), 0, 0.0), Some(200));
        // 200 took a tenth of the time: nine times as many fit into the rest.
        assert_eq!(warm_up_step(100_000, Some(1.0), 200, 0.1), Some(1800));
        assert_eq!(warm_up_step(1_000, Some(1.0), 200, 0.1), Some(800));
        assert_eq!(warm_up_step(100_000, Some(1.0), 2000, 1.1), None);
    }

    #[test]
    fn the_support_of_a_target_depends_on_its_layout() {
        let requirements = Requirements { transaction: true, ..Requirements::default() };
        let of = |layout| support_of(&GeodeTarget, requirements, layout).remove(0);
        let (name, one) = of(None);
        assert_eq!(name, "transactions");
        assert!(!one.starts_with("no: "), "one server: {one}");
        for layout in ["zones", "partitioned:2:1"] {
            let (_, way) = of(Some(layout));
            assert!(way.starts_with("no: "), "{layout}: {way}");
        }
    }
}
