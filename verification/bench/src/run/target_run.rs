//! One target in a run: its database, its clients, its result.

use super::ramp::{self, RampStep};
use super::{BenchContext, TargetOutcome, memory_bytes, wished};
use crate::client_pool::{ClientPool, Listener};
use crate::processes;
use crate::protocol::{Fault, Plan, Ran, STOPPED, Turn, in_words};
use crate::result::{ClassResult, Drive, Round, Slice, TargetResult};
use crate::space;
use crate::stat::Latencies;
use crate::table::{count_text, counted, latency_text, rate_text};
use crate::targets::{Database, Need, Support, Target};
use crate::workloads::Requirements;
use nearstate_model::Result;
use std::collections::BTreeMap;
use std::time::Instant;

/// Operations of a client in a round at the least, when rounds are measured by time.
const ROUND_OPS_MIN: u64 = 200;

/// A target's place in a run. After a fault only [`TargetRun::close`] does anything.
pub(super) struct TargetRun<'a> {
    context: &'a BenchContext<'a>,
    target: &'a dyn Target,
    running: Option<Running>,
    /// Turns that its clients had.
    turns: u64,
    /// Clients that run elsewhere than they were to.
    pub(super) unbound: Vec<String>,
    /// The turn that was under way when its part ended: what was measured in it is lost.
    unshown: Option<String>,
    pub(super) result: TargetResult,
}

struct Running {
    // The clients go first.
    pool: ClientPool,
    database: Box<dyn Database>,
}

impl<'a> TargetRun<'a> {
    #[expect(clippy::borrowed_box, reason = "the box is where the target lives")]
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
            settled: None,
            ways: ways_of(target.as_ref(), requirements, layout),
            declined: None,
            loaded: (0, 0),
            rounds: Vec::new(),
            ramp: Vec::new(),
            memory_bytes: None,
            verdict: None,
            checks: Vec::new(),
            reconnects: 0,
            invalid: Vec::new(),
        };
        let target = target.as_ref();
        let (unbound, unshown) = (Vec::new(), None);
        Self { context, target, running: None, turns: 0, unbound, unshown, result }
    }

    /// Starts the database and its clients; says which of these are not where they were to run.
    pub(super) fn start(&mut self, need: &Need) {
        match self.try_start(need) {
            Ok(mut running) => {
                let name = self.target.name();
                for why in running.pool.unbound.drain(..) {
                    self.context.display.say(&format!("  {name}: {why}"));
                    self.unbound.push(format!("{name}: {why}"));
                }
                self.running = Some(running);
            }
            // Stopping a run is not a fault of a target.
            Err(e) if e.to_string().contains(STOPPED) => {}
            Err(e) => self.result.invalid.push(format!("could not be started: {}", in_words(&e))),
        }
    }

    fn try_start(&self, need: &Need) -> Result<Running> {
        // Another process may have taken the space since it was checked.
        let own = [(self.target.name(), self.target.folder_bytes(need))];
        space::fits(&need.folder, &own, need.records, space::free_bytes(&need.folder)?)?;
        let database = self.target.start(need)?;
        let context = self.context;
        let plan = Plan {
            workload: context.kind.name().to_owned(),
            parameters: context.parameters.clone(),
            target: self.target.name().to_owned(),
            address: database.address(),
            client: 0,
            clients: usize::try_from(context.options.clients).unwrap_or(1),
            background: context.background(),
            connections: usize::try_from(context.options.connections).unwrap_or(1),
            cpu: None,
            reconnects: context.options.reconnects.max(u64::from(self.is_to_be_killed())),
            fault: context.options.fault,
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

    /// Does something with the running target; what goes wrong ends its part.
    fn attempt(&mut self, what: &str, work: impl FnOnce(&mut Self, &mut Running) -> Result<()>) {
        let Some(mut running) = self.running.take() else { return };
        let outcome = work(self, &mut running).and_then(|()| running.database.alive());
        match outcome {
            Ok(()) => self.running = Some(running),
            Err(e) if e.to_string().contains(STOPPED) => {}
            Err(e) => {
                let e = in_words(&e);
                let death = running.database.alive().err().map(|death| in_words(&death));
                let why = match death.filter(|death| !e.contains(death)) {
                    Some(death) => format!("{what}: {e} ({death})"),
                    None => format!("{what}: {e}"),
                };
                self.context.display.say(&format!("  {}: INVALID, {why}", self.target.name()));
                self.result.invalid.push(why);
            }
        }
    }

    pub(super) fn load(&mut self) {
        self.attempt("loading", |target_run, running| {
            let title = format!("{}, loading", target_run.target.name());
            let (records, _) = target_run.context.kind.size(&target_run.context.parameters);
            let mut bar = Bar(target_run.context.display.begin(title, records));
            target_run.result.loaded = running.pool.load(&mut bar)?;
            if !target_run.context.options.no_settle {
                target_run.result.settled = running.database.settle()?;
            }
            let (records, ns) = target_run.result.loaded;
            let rate = rate_text(per_second(records, ns));
            bar.0.finish_run(&format!("{}, {rate}/s", counted(records, "record")));
            Ok(())
        });
    }

    pub(super) fn take_turn(&mut self, round: usize, drive: &Drive) {
        if self.running.is_none() {
            return;
        }
        self.try_turn(round, drive);
        if self.running.is_none() && self.result.rounds.len() <= round {
            self.unshown = Some(format!(
                "{}: round {} was not over; what was done in it is not shown",
                self.target.name(),
                round + 1
            ));
        }
    }

    fn try_turn(&mut self, round: usize, drive: &Drive) {
        self.attempt("running", |target_run, running| {
            let title = format!("{}, round {}", target_run.target.name(), round + 1);
            let clients = drive.clients as u64;
            let mut bar = Bar(target_run.context.display.begin(title, drive.ops * clients));
            bar.0.phase("warming up");
            let warmed = target_run.warm_up(running, drive)?;
            let ops = target_run.ops(drive, warmed);
            bar.0.phase("running");
            let turn = target_run.turn(drive, ops);
            let is_middle = round == drive.rounds / 2;
            let left = (is_middle && target_run.is_to_be_killed()).then_some(ops * clients / 2);
            let done = measured(running, &turn, left, &mut bar)?;
            target_run.result.reconnects += done.1;
            let latencies = done.0.latencies();
            bar.0.finish_run(&format!(
                "{:>9}/s  p50 {:>9}  p99 {:>9}",
                rate_text(done.0.rate()),
                latency_text(to_f64(latencies.percentile(50.0))),
                latency_text(to_f64(latencies.percentile(99.0)))
            ));
            target_run.result.rounds.push(done.0);
            Ok(())
        });
    }

    /// The next turn, of so many operations of each client, driven as the rounds are.
    fn turn(&mut self, drive: &Drive, ops: u64) -> Turn {
        self.turns += 1;
        Turn {
            ops,
            depth: drive.depth,
            rate: drive.rate.map(|rate| rate / to_f64(drive.clients as u64)),
            arrivals: drive.arrivals,
            seed: self.context.parameters.seed,
            number: self.turns - 1,
            think_us: drive.think_us,
            at_ns: 0,
        }
    }

    /// Operations that are not measured: all, or as many as are done in the time of a round. How
    /// many each client did, and the seconds that they took.
    fn warm_up(&self, running: &mut Running, drive: &Drive) -> Result<(u64, f64)> {
        let round_s = self.context.options.round_time;
        let (mut done, mut took_s) = (0, 0.0);
        let before = Instant::now();
        while let Some(more) = warm_up_step(drive.warm_up, round_s, done, took_s) {
            running.pool.warm_up(more, drive.depth, &mut Quiet)?;
            done += more;
            took_s = before.elapsed().as_secs_f64();
        }
        Ok((done, took_s))
    }

    /// Operations of each client: as many as were asked for, or as fit into the time of a round at
    /// the rate of the warm-up.
    fn ops(&self, drive: &Drive, (warmed, warmed_s): (u64, f64)) -> u64 {
        let Some(round_s) = self.context.options.round_time else { return drive.ops };
        if warmed == 0 {
            return drive.ops;
        }
        let took_s = warmed_s.max(1e-9) / to_f64(warmed) + to_f64(drive.think_us) / 1e6;
        let offered = drive.rate.map_or(f64::INFINITY, |rate| rate / to_f64(drive.clients as u64));
        let fits = (1.0 / took_s).min(offered) * round_s;
        crate::random::whole(fits).clamp(ROUND_OPS_MIN.min(drive.ops), drive.ops)
    }

    /// What a closed loop without pauses does: the rounds have told it, or one more turn does.
    fn closed_rate(&mut self, running: &mut Running, drive: &Drive) -> Result<f64> {
        if let Some(rate) = ramp::closed_rate(drive, &self.result.rounds) {
            return Ok(rate);
        }
        let ops = ramp::closed_ops(drive, &self.result.rounds);
        let turn = self.turn(drive, ops);
        let turn = Turn { rate: None, think_us: 0, ..turn };
        let (round, reconnects) = measured(running, &turn, None, &mut Quiet)?;
        self.result.reconnects += reconnects;
        Ok(round.rate())
    }

    /// Finds the highest rate whose p99 stays below a bound.
    pub(super) fn climb(&mut self, drive: &Drive, bound_ns: u64) {
        self.attempt("climbing", |target_run, running| {
            let title = format!("{}, ramp", target_run.target.name());
            let bar = target_run.context.display.begin(title, ramp::POINTS_MAX as u64);
            bar.phase("a closed loop");
            let closed = target_run.closed_rate(running, drive)?;
            let measure = |RampStep { offered, ops }| {
                bar.phase(&format!("{}/s", rate_text(offered)));
                let clients = to_f64(drive.clients as u64);
                let ops = (ops / drive.clients as u64).max(1);
                let rate = Some(offered / clients);
                let turn = Turn { rate, think_us: 0, ..target_run.turn(drive, ops) };
                let (round, reconnects) = measured(running, &turn, None, &mut Quiet)?;
                target_run.result.reconnects += reconnects;
                bar.done(1);
                Ok(round)
            };
            let (points, outcome) = ramp::Climb::new(closed, bound_ns).all(measure);
            target_run.result.ramp = points;
            outcome?;
            let best = target_run.result.ramp.iter().filter(|point| point.is_sustained);
            let best = best.map(|point| point.offered).fold(0.0, f64::max);
            bar.finish_run(&format!(
                "{}/s with a p99 below {}",
                rate_text(best),
                latency_text(to_f64(bound_ns))
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
            let mut bar = Bar(target_run.context.display.begin(title, records));
            target_run.result.memory_bytes = memory_bytes(running.database.as_mut());
            let (verdict, checks) = running.pool.verify(&mut bar)?;
            bar.0.finish_run(&format!(
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
            target_run.result.invalid.extend(target_run.unnoticed());
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

    /// Reports a planted fault that no client has met.
    fn unnoticed(&self) -> Option<String> {
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
        (self.result, self.unshown)
    }
}

/// How a target has what a workload requirements for, in words.
fn ways_of(
    target: &dyn Target,
    requirements: Requirements,
    layout: Option<&str>,
) -> Vec<(String, String)> {
    let words = |way: &Support| match way {
        Support::Native => "native".to_owned(),
        Support::Emulated(how) => format!("emulated: {how}"),
        Support::Declined(why) => format!("no: {why}"),
    };
    let ways = wished(requirements, &target.capabilities_in(layout));
    ways.iter().map(|(name, way)| ((*name).to_owned(), words(way))).collect()
}

/// One turn, with the time that the target's processes took; and the reconnects. After `kill_after`
/// operations the target's server is killed and started again.
fn measured(
    running: &mut Running,
    turn: &Turn,
    kill_after: Option<u64>,
    listener: &mut impl Listener,
) -> Result<(Round, u64)> {
    let Running { pool, database } = running;
    let begin_ns = processes::cpu_ns(&database.processes());
    let mut watcher =
        Watcher { listener, database: database.as_mut(), kill_after, begin_ns, ns: 0 };
    let ran = pool.run(turn, &mut watcher)?;
    if watcher.kill_after.is_some() {
        // The turn ended before the report of its half: the kill then happens between two turns.
        watcher.kill_after = Some(0);
        watcher.look()?;
    }
    let server_cpu_ns = watcher.server_ns();
    let reconnects = ran.iter().map(|ran| ran.reconnects).sum();
    Ok((together(ran, server_cpu_ns), reconnects))
}

/// Passes progress on, and kills the target's server when it is time.
struct Watcher<'w, L> {
    listener: &'w mut L,
    database: &'w mut dyn Database,
    kill_after: Option<u64>,
    /// What the server's processes had taken when the turn, or their life, began.
    begin_ns: u64,
    /// What those that were killed have taken in this turn.
    ns: u64,
}

impl<L: Listener> Watcher<'_, L> {
    fn server_ns(&self) -> u64 {
        let now_ns = processes::cpu_ns(&self.database.processes());
        self.ns + now_ns.saturating_sub(self.begin_ns)
    }
}

impl<L: Listener> Listener for Watcher<'_, L> {
    fn progress(&mut self, more: u64, p99_ns: u64) {
        self.listener.progress(more, p99_ns);
        self.kill_after = self.kill_after.map(|left| left.saturating_sub(more));
    }

    fn look(&mut self) -> Result<()> {
        if self.kill_after == Some(0) {
            self.kill_after = None;
            self.ns = self.server_ns();
            self.begin_ns = 0;
            self.database.crash()?;
        }
        self.listener.look()
    }
}

/// What all clients did, as one.
fn together(ran: Vec<Ran>, server_cpu_ns: u64) -> Round {
    let began_ns = ran.iter().map(|ran| ran.began_ns).min().unwrap_or(0);
    let ended_ns = ran.iter().map(|ran| ran.ended_ns).max().unwrap_or(0);
    let mut steps = ran.iter().map(|ran| ran.steps);
    let first = steps.next().flatten();
    let mut round = Round {
        wall_ns: ended_ns.saturating_sub(began_ns),
        server_cpu_ns,
        steps: first.filter(|_| steps.all(|one| one == first)),
        ..Round::default()
    };
    let mut classes: BTreeMap<String, Latencies> = BTreeMap::new();
    let mut order = Vec::new();
    let mut slices: Vec<Slice> = Vec::new();
    for one in ran {
        round.ops += one.ops;
        round.client_cpu_ns += one.cpu_ns;
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
        slices = side_by_side(&slices, &one.slices);
    }
    let result = |name: String| {
        let latencies = classes.get(&name).map(|all| all.pairs().collect());
        ClassResult { name, latencies: latencies.unwrap_or_default() }
    };
    round.classes = order.into_iter().map(result).collect();
    round.slices = slices;
    round
}

/// Slices of two clients: brought to the same length, then added one by one.
fn side_by_side(first: &[Slice], second: &[Slice]) -> Vec<Slice> {
    let length = |slices: &[Slice]| slices.first().map_or(0, |slice| slice.ms);
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
        let ops = one.ops + other.ops;
        let weighed = one.p50_ns * one.ops + other.p50_ns * other.ops;
        one.p50_ns = weighed.checked_div(ops).unwrap_or(0);
        one.ops = ops;
        one.p99_ns = one.p99_ns.max(other.p99_ns);
        one.max_ns = one.max_ns.max(other.max_ns);
    }
    long
}

/// Operations of the next piece of a warm-up that may take so many seconds, after so many that took
/// so long; `None` when it is over.
fn warm_up_step(all: u64, bound_s: Option<f64>, done: u64, took_s: f64) -> Option<u64> {
    let left = all.checked_sub(done).filter(|left| *left > 0)?;
    let Some(bound_s) = bound_s else { return Some(left) };
    if done == 0 {
        return Some(left.min(ROUND_OPS_MIN));
    }
    let left_s = bound_s - took_s;
    let fits = to_f64(done) / took_s.max(1e-9) * left_s.max(0.0);
    (left_s > 0.0).then(|| left.min(crate::random::whole(fits).max(1)))
}

fn per_second(count: u64, ns: u64) -> f64 {
    to_f64(count) * 1e9 / to_f64(ns.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "counts and times of one run, shown with digits")]
pub(super) const fn to_f64(count: u64) -> f64 {
    count as f64
}

/// Progress as a bar.
struct Bar<'d>(crate::progress::ProgressStep<'d>);

impl Listener for Bar<'_> {
    fn progress(&mut self, more: u64, p99_ns: u64) {
        self.0.done(more);
        if p99_ns > 0 {
            self.0.phase(&format!("p99 {}", latency_text(to_f64(p99_ns))));
        }
    }
}

/// Discards progress.
struct Quiet;

impl Listener for Quiet {
    fn progress(&mut self, _: u64, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::geode::GeodeTarget;

    #[test]
    fn a_round_tells_how_steps_travelled_if_all_clients_drove_alike() {
        let of = |steps: [Option<usize>; 2]| {
            let ran = steps.map(|steps| Ran { steps, ..Ran::default() });
            together(ran.to_vec(), 0).steps
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
    fn what_a_target_can_do_is_told_of_the_layout_it_runs_in() {
        let requirements = Requirements { transaction: true, ..Requirements::default() };
        let of = |layout| ways_of(&GeodeTarget, requirements, layout).remove(0);
        let (name, one) = of(None);
        assert_eq!(name, "transactions");
        assert!(!one.starts_with("no: "), "one server: {one}");
        for layout in ["zones", "partitioned:2:1"] {
            let (_, way) = of(Some(layout));
            assert!(way.starts_with("no: "), "{layout}: {way}");
        }
    }
}
