//! The executor of a node's core without a store: yields, suspended tasks, deadlines, new tasks and
//! messages between cores; the same with tasks of tokio for comparison.
//!
//! The workload does not use its target, so `bench run executor` runs it with the target `null`.

use super::support::share;
use super::{ClientPart, Parameters, Tally, Workload, WorkloadKind, WorkloadSpec};
use crate::access::Connection;
use crate::cpus;
use crate::reaper::system;
use nearstate_model::Result;
use nearstate_node::clock::Clock;
use nearstate_node::executor::{
    Executor, ExecutorConfig, Inbox, InboxSender, SpinPolicy, TaskClass, TaskEvent, inbox, timeout,
    yield_now,
};
use std::rc::Rc;
use std::time::Duration;

/// Tasks that take turns.
const TASKS: usize = 1000;

/// Longer than a message takes, so that neither side sleeps.
const BUSY_POLL: Duration = Duration::from_millis(5);

/// The workload.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorCosts;

/// Runs a number of operations.
type Measure = fn(u64) -> Result<()>;

const VARIANTS: [(&str, &str); 10] = [
    ("yield", "yields of one task"),
    ("yield-1000", "yields of 1,000 tasks"),
    ("suspend-1000", "1,000 tasks, each suspended and resumed by the last"),
    ("deadline", "a deadline set and cancelled"),
    ("spawn", "a task started and ended"),
    ("clock", "readings of the node's clock"),
    ("tokio-yield", "yields of one task of tokio"),
    ("tokio-yield-1000", "yields of 1,000 tasks of tokio"),
    ("cross-core", "a message to another thread and back, both busy-polling"),
    ("cross-core-asleep", "a message to another thread and back, both sleeping"),
];

/// Operations of a block and the loop, for each variant.
const LOOPS: [(u64, Measure); VARIANTS.len()] = [
    (100_000, |ops| yields(ops, 1)),
    (100_000, |ops| yields(ops, TASKS)),
    (100_000, suspend),
    (100_000, deadlines),
    (10_000, spawns),
    (100_000, clock),
    (100_000, |ops| tokio_yields(ops, 1)),
    (100_000, |ops| tokio_yields(ops, TASKS)),
    (10_000, |ops| round_trips(SpinPolicy::Always { time: BUSY_POLL }, ops)),
    (1_000, |ops| round_trips(SpinPolicy::Never, ops)),
];

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "executor",
    title: "the executor of a node's core, without a store",
    source: "this project",
    variants: &VARIANTS,
    records: 512,
    classes: &["operation"],
    is_pipelined: false,
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for ExecutorCosts {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn default_targets(&self) -> &'static [&'static str] {
        &["null"]
    }

    fn size(&self, _: &Parameters) -> (u64, u64) {
        (0, 0)
    }

    fn block_ops(&self, parameters: &Parameters) -> u64 {
        let number = share::variant(self, parameters);
        LOOPS.get(number).map_or(1, |(ops, _)| *ops)
    }

    fn caveats(&self, parameters: &Parameters) -> Vec<String> {
        vec![format!(
            "measured in blocks of {}, each with an executor of its own; no store takes part",
            self.block_ops(parameters)
        )]
    }

    fn new_client(&self, _: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let number = part.variant;
        let measure = LOOPS.get(number).map_or(clock as Measure, |(_, measure)| *measure);
        Ok(Box::new(Client { measure }))
    }
}

#[derive(Debug)]
struct Client {
    measure: Measure,
}

impl Workload for Client {
    fn load(&mut self, _: &mut Connection<'_>, _: &mut dyn FnMut(u64)) -> Result<()> {
        Ok(())
    }

    fn step(&mut self, _: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        (self.measure)(count as u64)?;
        tally.count_many(0, count as u64);
        Ok(())
    }
}

fn executor() -> Result<Executor> {
    Executor::new(&ExecutorConfig { spin: SpinPolicy::Never, ..ExecutorConfig::default() })
}

/// How often each of `tasks` tasks runs, so that all together run `ops` times.
fn each_of(ops: u64, tasks: usize) -> u64 {
    ops.div_ceil(tasks as u64)
}

#[expect(clippy::unnecessary_wraps, reason = "every measurement has this signature")]
fn clock(ops: u64) -> Result<()> {
    let clock = Clock::new();
    let last = (0..ops).fold(0, |_, _| std::hint::black_box(clock.now()));
    std::hint::black_box(last);
    Ok(())
}

fn yields(ops: u64, tasks: usize) -> Result<()> {
    let executor = executor()?;
    let times = each_of(ops, tasks);
    let joins: Vec<_> = (0..tasks)
        .map(|_| {
            executor.spawn(TaskClass::Request, "yielder", async move {
                for _ in 0..times {
                    yield_now().await;
                }
            })
        })
        .collect();
    executor.run(async move {
        for join in joins {
            join.await;
        }
    });
    Ok(())
}

/// A ring of tasks: each waits until the one before it sets its event, then sets the next event.
fn suspend(ops: u64) -> Result<()> {
    let executor = executor()?;
    let events: Rc<Vec<TaskEvent>> = Rc::new((0..TASKS).map(|_| TaskEvent::default()).collect());
    let times = each_of(ops, TASKS);
    let joins: Vec<_> = (0..TASKS)
        .map(|own| {
            let events = Rc::clone(&events);
            executor.spawn(TaskClass::Request, "ring", async move {
                let (Some(mine), Some(next)) = (events.get(own), events.get((own + 1) % TASKS))
                else {
                    return;
                };
                for _ in 0..times {
                    mine.wait_and_reset().await;
                    next.set();
                }
            })
        })
        .collect();
    executor.run(async move {
        if let Some(first) = events.first() {
            first.set();
        }
        for join in joins {
            join.await;
        }
    });
    Ok(())
}

fn deadlines(ops: u64) -> Result<()> {
    executor()?.run(async move {
        for _ in 0..ops {
            // Ready at once, but only after the deadline is registered.
            timeout(Duration::from_secs(1), yield_now()).await;
        }
    });
    Ok(())
}

fn spawns(ops: u64) -> Result<()> {
    executor()?.run(async move {
        for _ in 0..ops {
            nearstate_node::executor::spawn(TaskClass::Request, "short", async {}).await;
        }
    });
    Ok(())
}

fn tokio_yields(ops: u64, tasks: usize) -> Result<()> {
    let options = tokio::runtime::LocalOptions::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build_local(options)
        .map_err(|e| system("creating an event loop", &e))?;
    let times = each_of(ops, tasks);
    runtime.block_on(async move {
        let yields = move || async move {
            for _ in 0..times {
                tokio::task::yield_now().await;
            }
        };
        let tasks: Vec<_> = (0..tasks).map(|_| tokio::task::spawn_local(yields())).collect();
        for task in tasks {
            // It cannot be cancelled, and does not panic.
            let _ = task.await;
        }
    });
    Ok(())
}

/// Messages to another thread and their answers.
fn round_trips(spin: SpinPolicy, ops: u64) -> Result<()> {
    let (there, here) = (inbox(16), inbox(16));
    let other = std::thread::Builder::new()
        .name("bench-other".to_owned())
        .spawn(move || {
            // On one processor each would wait for the other's time slice.
            unpin();
            exchange(spin, here.0, there.1, ops)
        })
        .map_err(|e| system("starting a thread", &e))?;
    let (there, here) = (there.0, here.1);
    let first = there.send(());
    debug_assert!(first.is_ok(), "the queue is empty");
    exchange(spin, there, here, ops)?;
    let failed = |_| backend_error!("the other thread has panicked");
    other.join().map_err(failed)?
}

/// Answers `ops` messages.
fn exchange(
    spin: SpinPolicy,
    batch: InboxSender<()>,
    mut inbox: Inbox<()>,
    ops: u64,
) -> Result<()> {
    let executor = Executor::new(&ExecutorConfig { spin, ..ExecutorConfig::default() })?;
    executor.run(async move {
        for _ in 0..ops {
            if inbox.receive().await.is_none() || batch.send(()).is_err() {
                break;
            }
        }
    });
    Ok(())
}

/// Lets this thread run on any processor but the one that it was started on, if there is another.
fn unpin() {
    let Some(own) = cpus::allowed() else { return };
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = all.trim().rsplit(['-', ',']).next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let others: Vec<usize> = (0..=last).filter(|cpu| !own.contains(cpu)).collect();
    // A refusal leaves the thread where it is, which costs accuracy only.
    let _ = cpus::bind(&others);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_runs_the_operations_of_a_block() {
        for ((name, _), (_, measure)) in VARIANTS.iter().zip(LOOPS) {
            assert!(measure(2_000).is_ok(), "{name}");
        }
    }
}
