//! A client process: connects to its target, loads its records, runs its turns, verifies.

mod window;
mod progress_report;
mod fan;

use crate::access::{Connection, StoreConnection};
use crate::clock::monotonic_ns;
use crate::meter::Meter;
use crate::protocol::{ClientCommand, ClientReport, Plan, Ran, Turn, in_words, receive, say};
use crate::random::seed_of;
use crate::result::CUT;
use crate::schedule::{Phase, Schedule};
use crate::targets::fault::Faulty;
use crate::targets::{self, Target};
use crate::wait::{Waits, thread_ns};
use crate::workloads::{self, Tally, Workload, WorkloadKind};
use fan::Fan;
use nearstate_model::{Error, Result};
use progress_report::{Answering, Pace, ProgressReporter, ReportedAccess, SLOW_STEP_NS};
use quanta::Clock;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{BufRead, Write};
use std::time::Duration;

/// Tries to connect again after a lost connection, and the pause between two: ten seconds in all,
/// many times what a warm restart of a node takes.
const RECONNECT_TRIES: u32 = 1000;
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// Nanoseconds between two words about progress.
const PROGRESS_NS: u64 = 100_000_000;

/// Runs a client: reads commands from `input` and writes reports to `output`.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    let Err(e) = begin(&mut input, &mut output) else { return Ok(()) };
    say(&mut output, &ClientReport::Failed(in_words(&e))).map_err(|_| e)
}

fn begin(input: &mut impl BufRead, output: &mut impl Write) -> Result<()> {
    let Some(ClientCommand::Plan(plan)) = receive(input)? else {
        return Err(Error::BadArgument {
            detail: "this program's part is started by `nearstate bench run`".to_owned(),
        });
    };
    if let Some(cpu) = plan.cpu
        && let Err(why) = stay_on(cpu)
    {
        // The client runs all the same, but the report must say so.
        say(output, &ClientReport::Unbound(why))?;
    }
    let mut client = Client::new(plan)?;
    say(output, &ClientReport::Ready)?;
    while let Some(ask) = receive(input)? {
        match ask {
            ClientCommand::Plan(_) => {
                return Err(Error::BadArgument { detail: "a second plan".to_owned() });
            }
            ClientCommand::Load => client.load(output)?,
            ClientCommand::WarmUp(ops, depth) => client.warm_up(ops, depth, output)?,
            ClientCommand::Run(turn) if client.is_background() => {
                client.run_beside(&turn, output)?;
            }
            ClientCommand::Run(turn) => client.run(&turn, output)?,
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
    let ready = poll(&mut descriptors, Some(&now)).map_err(|e| Error::System {
        detail: "polling standard input".to_owned(),
        errno: e.raw_os_error(),
    })?;
    Ok(ready > 0)
}

/// The connection of a client, or its connections as one.
fn connect(
    target: &dyn Target,
    kind: &dyn WorkloadKind,
    plan: &Plan,
) -> Result<Box<dyn StoreConnection>> {
    let schema = kind.schema(&plan.parameters);
    if plan.connections <= 1 {
        return target.connect(&plan.address, &schema);
    }
    let all = Fan::open(plan.connections, || target.connect(&plan.address, &schema))?;
    Ok(Box::new(all))
}

/// Keeps this thread on one processor; else says why it is not there.
fn stay_on(cpu: usize) -> std::result::Result<(), String> {
    let away = |why: &str| {
        format!("not bound to processor {cpu} ({why}): it may have shared one with the servers")
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(away("no machine has so many"));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| away(&e.to_string()))
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
    /// Nanoseconds between two words about progress.
    progress_ns: u64,
    pace: Pace,
}

/// The monotonic clock, read by the processor's counter where it has a steady one: half of what a
/// call of the kernel's page costs, and there is one reading for each operation. Set anew for each
/// turn, because the kernel's clock is steered.
struct AnswerWatch {
    clock: Clock,
    start: u64,
    start_ns: u64,
}

impl AnswerWatch {
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
            pace: Pace::new(SLOW_STEP_NS),
        })
    }

    fn load(&mut self, output: &mut impl Write) -> Result<()> {
        let begin_ns = monotonic_ns();
        let told = ReportedAccess::new(ProgressReporter::new(self.progress_ns), output);
        let mut records = 0;
        let mut store = Answering::new(self.connection.as_mut(), &told);
        self.workload.load(&mut store, &mut |more| {
            records += more;
            told.more(more);
        })?;
        told.end()?;
        say(output, &ClientReport::Loaded(records, monotonic_ns() - begin_ns))
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
            self.pace.took(now_ns - begin_ns);
            begin_ns = now_ns;
            // This part is not measured, but the orchestrator must see progress.
            reporter.tell(output, || 0)?;
        }
        say(output, &ClientReport::Ready)
    }

    /// A step, with the connection found again if it is lost and that is allowed.
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

    /// Does something with the store, each answer of which is told of when it is time.
    #[cold]
    fn progress_report(
        &mut self,
        output: &mut impl Write,
        work: impl FnOnce(&mut dyn Workload, &mut Connection<'_>) -> Result<()>,
    ) -> Result<()> {
        let told = ReportedAccess::new(ProgressReporter::new(self.progress_ns), output);
        let mut store = Answering::new(self.connection.as_mut(), &told);
        let outcome = work(self.workload.as_mut(), &mut store);
        outcome.and(told.end())
    }

    #[cold]
    fn recover(
        &mut self,
        error: Error,
        (count, tally): (usize, &mut Tally),
        output: &mut impl Write,
    ) -> Result<()> {
        // A server that answers with an error is there, and has to be told of.
        if !self.connection.is_lost() || self.reconnects >= self.plan.reconnects {
            return Err(error);
        }
        self.reconnects += 1;
        let mut last = error;
        for _ in 0..RECONNECT_TRIES {
            match connect(self.target.as_ref(), self.kind.as_ref(), &self.plan) {
                Ok(fresh) => {
                    self.connection = self.connection.renewed(fresh);
                    match self.progress_report(output, |workload, store| workload.settle(store)) {
                        Ok(()) => {
                            self.count_cut(count, tally);
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

    /// Every operation of a step that was cut counts once, with the time that it took to come back,
    /// and apart: that time is not what an operation of its class takes, and workloads count some
    /// before and some after they were answered.
    fn count_cut(&self, count: usize, tally: &mut Tally) {
        let apart = self.kind.spec().classes.len();
        let Tally { bytes_out, bytes_in, .. } = *tally;
        *tally = Tally { bytes_out, bytes_in, ..Tally::default() };
        (0..count).for_each(|_| tally.count(apart));
    }

    fn run(&mut self, turn: &Turn, output: &mut impl Write) -> Result<()> {
        if let Some(fault) = self.plan.fault.take() {
            // Not while loading: what is lost there may be written over by all that follows.
            let connection = connect(self.target.as_ref(), self.kind.as_ref(), &self.plan)?;
            self.connection = Box::new(Faulty::often(connection, fault));
        }
        // Its megabytes are asked for before the common begin, not after.
        let mut meter = Meter::new(turn.at_ns.max(monotonic_ns()));
        Waits::default().until(turn.at_ns);
        let reconnects = self.reconnects;
        let (began_ns, began_cpu_ns) = (monotonic_ns(), thread_ns());
        let overlaps = self.overlaps(turn);
        let waits = match turn.rate {
            Some(rate) => self.open(turn, rate, &mut meter, output)?,
            None if overlaps => self.overlapped(turn, &mut meter, output)?,
            None => self.closed(turn, &mut meter, output)?,
        };
        let (ended_ns, cpu_ns) = (monotonic_ns(), thread_ns() - began_cpu_ns);
        let cpu_ns = cpu_ns.saturating_sub(waits.cpu_ns);
        let mut ran = Ran {
            ops: meter.ops,
            began_ns,
            ended_ns,
            cpu_ns,
            bytes_out: meter.bytes_out,
            bytes_in: meter.bytes_in,
            unsuccessful: meter.unsuccessful,
            reconnects: self.reconnects - reconnects,
            steps: Some(if overlaps { window::steps_of(turn.depth) } else { 1 }),
            classes: Vec::new(),
            slices: Vec::new(),
        };
        let names = self.kind.spec().classes;
        let names: Vec<&str> = names.iter().copied().chain([CUT]).collect();
        (ran.classes, ran.slices) = meter.finish(&names, ended_ns);
        say(output, &ClientReport::Ran(Box::new(ran)))
    }

    /// One operation after the other: the end of one is the begin of the next.
    fn closed(&mut self, turn: &Turn, meter: &mut Meter, output: &mut impl Write) -> Result<Waits> {
        let (mut reporter, mut waits) = (ProgressReporter::new(self.progress_ns), Waits::default());
        let depth = turn.depth.max(self.block).max(1) as u64;
        let mut done = 0;
        let watch = AnswerWatch::new(&self.clock);
        let mut begin_ns = watch.now_ns();
        while done < turn.ops {
            let count = depth.min(turn.ops - done);
            let mut tally = Tally::default();
            self.step(usize::try_from(count).unwrap_or(1), &mut tally, output)?;
            let now_ns = watch.now_ns();
            let took_ns = now_ns.saturating_sub(begin_ns);
            self.pace.took(took_ns);
            let of_block = if self.block > 1 { u64::from(tally.counted.max(1)) } else { 1 };
            meter.step(&tally, took_ns / of_block, now_ns);
            // A block may end early, or be a whole walk.
            let count = if self.block > 1 { u64::from(tally.counted) } else { count };
            done += count;
            reporter.add(count);
            begin_ns = now_ns;
            if reporter.is_due(now_ns) {
                reporter.tell(output, || meter.last_p99())?;
            }
            if turn.think_us > 0 {
                waits.pause(Duration::from_micros(turn.think_us));
                begin_ns = watch.now_ns();
            }
        }
        Ok(waits)
    }

    /// Whether this client is not measured, and runs until the others have ended.
    const fn is_background(&self) -> bool {
        self.plan.client + self.plan.background >= self.plan.clients
    }

    /// Runs until the next request arrives on standard input, which is [`ClientCommand::Stop`].
    fn run_beside(&mut self, turn: &Turn, output: &mut impl Write) -> Result<()> {
        Waits::default().until(turn.at_ns);
        let count = turn.depth.max(self.block).max(1);
        while !has_input()? {
            self.step(count, &mut Tally::default(), output)?;
        }
        say(output, &ClientReport::Ran(Box::default()))
    }

    /// Operations begin when they are due, or as soon as the store lets them.
    fn open(
        &mut self,
        turn: &Turn,
        rate: f64,
        meter: &mut Meter,
        output: &mut impl Write,
    ) -> Result<Waits> {
        let (mut reporter, mut waits) = (ProgressReporter::new(self.progress_ns), Waits::default());
        let Plan { client, clients, .. } = self.plan;
        let seed = seed_of(turn.seed, client as u64, turn.number);
        let start_ns = if turn.at_ns == 0 { monotonic_ns() } else { turn.at_ns };
        let mut schedule = Schedule::new(turn.arrivals, rate, seed, start_ns)
            .in_phase(Phase { client, clients }, monotonic_ns());
        let mut done = 0;
        let mut due = Vec::with_capacity(turn.depth);
        while done < turn.ops {
            waits.until(schedule.next_ns());
            let room = usize::try_from(turn.ops - done).unwrap_or(turn.depth).min(turn.depth);
            let begin_ns = monotonic_ns();
            schedule.take_due(begin_ns, room, &mut due);
            let mut tally = Tally::default();
            self.step(due.len(), &mut tally, output)?;
            let now_ns = monotonic_ns();
            self.pace.took(now_ns.saturating_sub(begin_ns));
            meter.due_step(&tally, &due, now_ns);
            done += due.len() as u64;
            reporter.add(due.len() as u64);
            if reporter.is_due(now_ns) {
                reporter.tell(output, || meter.last_p99())?;
            }
        }
        Ok(waits)
    }

    fn verify(&mut self, output: &mut impl Write) -> Result<()> {
        let told = ReportedAccess::new(ProgressReporter::new(self.progress_ns), output);
        let mut store = Answering::new(self.connection.as_mut(), &told);
        let verdict = self.workload.verify(&mut store, &mut |more| told.more(more))?;
        told.end()?;
        say(output, &ClientReport::Verified(verdict, self.workload.checks()))
    }
}

#[cfg(test)]
mod tests;
