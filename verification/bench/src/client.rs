//! A client process: connects to its target, loads its records, runs its trials, verifies.

mod window;
mod progress_report;
mod connection_fan;

use crate::access::{Connection, StoreConnection};
use crate::clock::monotonic_ns;
use crate::cpus;
use crate::meter::Meter;
use crate::protocol::{
    ClientCommand, ClientReport, ClientResult, Plan, Trial, error_text, receive, send,
};
use crate::random::seed_of;
use crate::reaper::system;
use crate::result::{CUT, Round};
use crate::schedule::{Phase, Schedule};
use crate::targets::fault::FaultyConnection;
use crate::targets::{self, Target};
use crate::wait::{Waits, thread_ns};
use crate::workloads::{self, Tally, Workload, WorkloadKind};
use connection_fan::ConnectionFan;
use nearstate_model::{Error, Result};
use progress_report::{ProgressReporter, ReportingStore, SLOW_STEP_NS, SharedProgress, StepPace};
use quanta::Clock;
use std::io::{BufRead, Write};
use std::time::Duration;

/// Attempts to reconnect after a lost connection, and the pause between two: ten seconds in all,
/// much longer than a warm restart of a node.
const RECONNECT_TRIES: u32 = 1000;
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// Nanoseconds between two reports of progress.
const PROGRESS_NS: u64 = 100_000_000;

/// Runs a client: reads commands from `input` and writes reports to `output`.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    let Err(e) = run_commands(&mut input, &mut output) else { return Ok(()) };
    send(&mut output, &ClientReport::Failed(error_text(&e))).map_err(|_| e)
}

fn run_commands(input: &mut impl BufRead, output: &mut impl Write) -> Result<()> {
    let Some(ClientCommand::Plan(plan)) = receive(input)? else {
        return Err(bad_argument!("this command is started by `nearstate bench run`"));
    };
    if let Some(cpu) = plan.cpu
        && let Err(why) = bind_to_cpu(cpu)
    {
        // The client still runs, but the report must mention it.
        send(output, &ClientReport::Unbound(why))?;
    }
    let mut client = Client::new(plan)?;
    send(output, &ClientReport::Ready)?;
    while let Some(command) = receive(input)? {
        match command {
            ClientCommand::Plan(_) => {
                return Err(bad_argument!("a second plan"));
            }
            ClientCommand::Load => client.load(output)?,
            ClientCommand::WarmUp(ops, depth) => client.warm_up(ops, depth, output)?,
            ClientCommand::Run(trial) if client.is_background() => {
                client.run_in_background(&trial, output)?;
            }
            ClientCommand::Run(trial) => client.run(&trial, output)?,
            // The run that it ended is over.
            ClientCommand::Stop => {}
            ClientCommand::Verify => client.verify(output)?,
        }
    }
    Ok(())
}

/// Whether standard input has something to read.
fn has_input() -> Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let input = std::io::stdin();
    let mut descriptors = [PollFd::new(&input, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = poll(&mut descriptors, Some(&now));
    Ok(ready.map_err(|e| system("polling standard input", &e.into()))? > 0)
}

/// The connection of a client; several connections are used as one.
fn connect(
    target: &dyn Target,
    kind: &dyn WorkloadKind,
    plan: &Plan,
) -> Result<Box<dyn StoreConnection>> {
    let schema = kind.schema(&plan.parameters);
    if plan.connections <= 1 {
        return target.connect(&plan.address, &schema);
    }
    let all = ConnectionFan::open(plan.connections, || target.connect(&plan.address, &schema))?;
    Ok(Box::new(all))
}

/// Binds this thread to one processor; returns why if it cannot.
fn bind_to_cpu(cpu: usize) -> std::result::Result<(), String> {
    cpus::bind(&[cpu]).map_err(|e| {
        format!("not bound to processor {cpu} ({e}): it may have shared one with the servers")
    })
}

struct Client {
    plan: Plan,
    target: Box<dyn Target>,
    kind: Box<dyn WorkloadKind>,
    connection: Box<dyn StoreConnection>,
    workload: Box<dyn Workload>,
    clock: Clock,
    reconnects: u64,
    /// Operations of a block, [`WorkloadKind::block_ops`].
    block: usize,
    /// Nanoseconds between two reports of progress.
    progress_ns: u64,
    pace: StepPace,
}

/// The monotonic clock, read from the time stamp counter if that is constant: half the cost of
/// `clock_gettime`. Synchronized at the start of each trial, because the kernel adjusts its clock.
struct TrialClock {
    clock: Clock,
    start: u64,
    start_ns: u64,
}

impl TrialClock {
    fn new(clock: &Clock) -> Self {
        Self { start: clock.raw(), start_ns: monotonic_ns(), clock: clock.clone() }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.start_ns + self.clock.delta_as_nanos(self.start, self.clock.raw())
    }
}

impl Client {
    fn new(plan: Plan) -> Result<Self> {
        let target = targets::named(&plan.target)?;
        let kind = workloads::named(&plan.workload)?;
        let connection = connect(target.as_ref(), kind.as_ref(), &plan)?;
        let block = usize::try_from(kind.block_ops(&plan.parameters)).unwrap_or(1);
        let workload = kind.client(&plan.parameters, plan.client, plan.clients)?;
        let clock = Clock::new();
        let progress_ns = PROGRESS_NS;
        Ok(Self {
            plan,
            target,
            kind,
            connection,
            workload,
            clock,
            reconnects: 0,
            block,
            progress_ns,
            pace: StepPace::new(SLOW_STEP_NS),
        })
    }

    fn load(&mut self, output: &mut impl Write) -> Result<()> {
        let begin_ns = monotonic_ns();
        let progress = SharedProgress::new(ProgressReporter::new(self.progress_ns), output);
        let mut records = 0;
        let mut store = ReportingStore::new(self.connection.as_mut(), &progress);
        self.workload.load(&mut store, &mut |more| {
            records += more;
            progress.add(more);
        })?;
        progress.finish()?;
        send(output, &ClientReport::Loaded(records, monotonic_ns() - begin_ns))
    }

    fn warm_up(&mut self, ops: u64, depth: usize, output: &mut impl Write) -> Result<()> {
        let (mut left, mut reporter) = (ops, ProgressReporter::new(self.progress_ns));
        let depth = depth.max(self.block);
        let mut begin_ns = monotonic_ns();
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(depth).min(depth).max(1);
            let mut tally = Tally::default();
            self.step(count, &mut tally, output)?;
            left = left.saturating_sub(count as u64);
            let now_ns = monotonic_ns();
            self.pace.update(now_ns - begin_ns);
            begin_ns = now_ns;
            // This part is not measured, but the orchestrator must see progress.
            reporter.report(output, || 0)?;
        }
        send(output, &ClientReport::Ready)
    }

    /// A step. Reconnects if the connection is lost and the options allow it.
    #[inline]
    fn step(&mut self, count: usize, tally: &mut Tally, output: &mut impl Write) -> Result<()> {
        let outcome = if self.pace.is_slow() {
            self.progress_report(output, |workload, store| workload.step(store, count, tally))
        } else {
            self.workload.step(self.connection.as_mut(), count, tally)
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(e) => self.recover(e, (count, tally), output),
        }
    }

    /// Runs `work` on a store that reports progress after replies.
    #[cold]
    fn progress_report(
        &mut self,
        output: &mut impl Write,
        work: impl FnOnce(&mut dyn Workload, &mut Connection<'_>) -> Result<()>,
    ) -> Result<()> {
        let progress = SharedProgress::new(ProgressReporter::new(self.progress_ns), output);
        let mut store = ReportingStore::new(self.connection.as_mut(), &progress);
        let outcome = work(self.workload.as_mut(), &mut store);
        outcome.and(progress.finish())
    }

    #[cold]
    fn recover(
        &mut self,
        error: Error,
        (count, tally): (usize, &mut Tally),
        output: &mut impl Write,
    ) -> Result<()> {
        if !self.connection.is_lost() || self.reconnects >= self.plan.reconnects {
            return Err(error);
        }
        self.reconnects += 1;
        let mut last = error;
        for _ in 0..RECONNECT_TRIES {
            match connect(self.target.as_ref(), self.kind.as_ref(), &self.plan) {
                Ok(fresh) => {
                    self.connection = self.connection.renewed(fresh);
                    match self.progress_report(output, |workload, store| {
                        workload.resolve_unanswered(store)
                    }) {
                        Ok(()) => {
                            self.count_interrupted(count, tally);
                            return Ok(());
                        }
                        Err(e) if self.connection.is_lost() => last = e,
                        Err(e) => return Err(e),
                    }
                }
                Err(e @ (Error::Backend { .. } | Error::System { .. })) => last = e,
                Err(e) => return Err(e),
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
        Err(last)
    }

    /// Counts every operation of an interrupted step once, in a class of its own: its time includes
    /// the reconnection.
    fn count_interrupted(&self, count: usize, tally: &mut Tally) {
        let apart = self.kind.spec().classes.len();
        let Tally { bytes_out, bytes_in, .. } = *tally;
        *tally = Tally { bytes_out, bytes_in, ..Tally::default() };
        (0..count).for_each(|_| tally.count(apart));
    }

    fn run(&mut self, trial: &Trial, output: &mut impl Write) -> Result<()> {
        if let Some(fault) = self.plan.fault.take() {
            // Not while loading: later writes may overwrite what is lost there.
            let connection = connect(self.target.as_ref(), self.kind.as_ref(), &self.plan)?;
            self.connection = Box::new(FaultyConnection::periodic(connection, fault));
        }
        // Its megabytes are allocated before the common start.
        let mut meter = Meter::new(trial.at_ns.max(monotonic_ns()));
        Waits::default().until(trial.at_ns);
        let reconnects = self.reconnects;
        let (began_ns, began_cpu_ns) = (monotonic_ns(), thread_ns());
        let overlaps = self.overlaps(trial);
        let waits = match trial.rate {
            Some(rate) => self.run_open_loop(trial, rate, &mut meter, output)?,
            None if overlaps => self.run_overlapped(trial, &mut meter, output)?,
            None => self.run_closed_loop(trial, &mut meter, output)?,
        };
        let (ended_ns, cpu_ns) = (monotonic_ns(), thread_ns() - began_cpu_ns);
        let cpu_ns = cpu_ns.saturating_sub(waits.cpu_ns);
        let mut round = Round {
            ops: meter.ops,
            client_cpu_ns: cpu_ns,
            bytes_out: meter.bytes_out,
            bytes_in: meter.bytes_in,
            unsuccessful: meter.unsuccessful,
            steps: Some(if overlaps { window::steps_of(trial.depth) } else { 1 }),
            ..Round::default()
        };
        let names = self.kind.spec().classes;
        let names: Vec<&str> = names.iter().copied().chain([CUT]).collect();
        (round.classes, round.slices) = meter.finish(&names, ended_ns);
        let reconnects = self.reconnects - reconnects;
        let result = ClientResult { round, began_ns, ended_ns, reconnects };
        send(output, &ClientReport::Finished(Box::new(result)))
    }

    /// One operation after the other: each starts when the one before ends.
    fn run_closed_loop(
        &mut self,
        trial: &Trial,
        meter: &mut Meter,
        output: &mut impl Write,
    ) -> Result<Waits> {
        let (mut reporter, mut waits) = (ProgressReporter::new(self.progress_ns), Waits::default());
        let depth = trial.depth.max(self.block).max(1) as u64;
        let mut done = 0;
        let clock = TrialClock::new(&self.clock);
        let mut begin_ns = clock.now_ns();
        while done < trial.ops {
            let count = depth.min(trial.ops - done);
            let mut tally = Tally::default();
            self.step(usize::try_from(count).unwrap_or(1), &mut tally, output)?;
            let now_ns = clock.now_ns();
            let took_ns = now_ns.saturating_sub(begin_ns);
            self.pace.update(took_ns);
            let of_block = if self.block > 1 { u64::from(tally.counted.max(1)) } else { 1 };
            meter.step(&tally, took_ns / of_block, now_ns);
            let count = if self.block > 1 { u64::from(tally.counted) } else { count };
            done += count;
            reporter.add(count);
            begin_ns = now_ns;
            if reporter.is_due(now_ns) {
                reporter.report(output, || meter.last_p99())?;
                // The next step starts after the report.
                begin_ns = clock.now_ns();
            }
            if trial.think_us > 0 {
                waits.pause(Duration::from_micros(trial.think_us));
                begin_ns = clock.now_ns();
            }
        }
        Ok(waits)
    }

    /// True if this client is not measured, and runs until the others have ended.
    const fn is_background(&self) -> bool {
        self.plan.client + self.plan.background >= self.plan.clients
    }

    /// Runs until the next request arrives on standard input, which is [`ClientCommand::Stop`].
    fn run_in_background(&mut self, trial: &Trial, output: &mut impl Write) -> Result<()> {
        Waits::default().until(trial.at_ns);
        let count = trial.depth.max(self.block).max(1);
        while !has_input()? {
            self.step(count, &mut Tally::default(), output)?;
        }
        send(output, &ClientReport::Finished(Box::default()))
    }

    /// Operations start when they are due, or as soon as the operations before have ended.
    fn run_open_loop(
        &mut self,
        trial: &Trial,
        rate: f64,
        meter: &mut Meter,
        output: &mut impl Write,
    ) -> Result<Waits> {
        let (mut reporter, mut waits) = (ProgressReporter::new(self.progress_ns), Waits::default());
        let Plan { client, clients, .. } = self.plan;
        let seed = seed_of(trial.seed, client as u64, trial.number);
        let start_ns = if trial.at_ns == 0 { monotonic_ns() } else { trial.at_ns };
        let mut schedule = Schedule::new(trial.arrivals, rate, seed, start_ns)
            .in_phase(Phase { client, clients }, monotonic_ns());
        let mut done = 0;
        let mut due = Vec::with_capacity(trial.depth);
        while done < trial.ops {
            waits.until(schedule.next_ns());
            let room = usize::try_from(trial.ops - done).unwrap_or(trial.depth).min(trial.depth);
            let begin_ns = monotonic_ns();
            schedule.take_due(begin_ns, room, &mut due);
            let mut tally = Tally::default();
            self.step(due.len(), &mut tally, output)?;
            let now_ns = monotonic_ns();
            self.pace.update(now_ns.saturating_sub(begin_ns));
            meter.due_step(&tally, &due, now_ns);
            done += due.len() as u64;
            reporter.add(due.len() as u64);
            if reporter.is_due(now_ns) {
                reporter.report(output, || meter.last_p99())?;
            }
        }
        Ok(waits)
    }

    fn verify(&mut self, output: &mut impl Write) -> Result<()> {
        let progress = SharedProgress::new(ProgressReporter::new(self.progress_ns), output);
        let mut store = ReportingStore::new(self.connection.as_mut(), &progress);
        let verdict = self.workload.verify(&mut store, &mut |more| progress.add(more))?;
        progress.finish()?;
        send(output, &ClientReport::Verified(verdict, self.workload.checks()))
    }
}

#[cfg(test)]
mod tests;
