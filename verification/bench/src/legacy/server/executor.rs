//! What the executor of a core costs: giving way, being held up and let go, deadlines, and wakes
//! from another thread. Beside it what the same costs with the runtime's own tasks.

use crate::legacy::place::pin;
use crate::stat::median;
use crate::table::{Align, Table};
use nearstate_model::{Error, Result};
use nearstate_node::clock::Clock;
use nearstate_node::executor::{
    Executor, ExecutorConfig, Inbox, Outbox, SpinPolicy, TaskClass, TaskEvent, inbox, timeout,
    yield_now,
};
use std::rc::Rc;
use std::time::Duration;

/// Tasks that hold each other up.
const TASKS: usize = 1000;

/// What is measured, taken some times.
#[derive(Clone, Debug)]
pub struct Cost {
    /// What.
    pub what: &'static str,
    /// Nanoseconds for one, of each round.
    pub nanos: Vec<f64>,
    /// The goal, in nanoseconds; 0: none.
    pub goal: f64,
}

type Now = fn() -> u64;
type Measure = fn(Now, u64) -> Result<f64>;

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// How often everything is measured, in turns.
    pub rounds: u64,
    /// How many operations a round has.
    pub count: u64,
    /// Tells nanoseconds, of the calling thread or by the wall.
    pub now: fn() -> u64,
    /// The processor of the other thread, where there are two.
    pub other: usize,
}

/// Measures everything.
///
/// # Errors
/// `System` if the kernel refuses an event loop or a thread.
pub fn measure(method: &Method) -> Result<Vec<Cost>> {
    let Method { rounds, count, now, other } = *method;
    let measures: [(&'static str, f64, Measure); 8] = [
        ("the clock, read once (in each figure below)", 0.0, clock),
        ("yield, one task", 20.0, |now, count| yields(now, count, 1)),
        ("yield, 1,000 tasks", 0.0, |now, count| yields(now, count, TASKS)),
        ("suspend and resume, 1,000 tasks", 30.0, suspend),
        ("a deadline set and given up", 0.0, deadlines),
        ("begin a task and end it", 0.0, spawns),
        ("yield, one task of tokio", 0.0, |now, count| tokio_yields(now, count, 1)),
        ("yield, 1,000 tasks of tokio", 0.0, |now, count| tokio_yields(now, count, TASKS)),
    ];
    let mut costs: Vec<_> = measures
        .iter()
        .map(|(what, goal, _)| Cost { what, nanos: Vec::new(), goal: *goal })
        .collect();
    for _ in 0..rounds {
        for ((_, _, measure), cost) in measures.iter().zip(&mut costs) {
            cost.nanos.push(measure(now, count)?);
        }
    }
    for (what, spin, count) in [
        ("to another core and back, both looking", SpinPolicy::Always { time: LOOK }, count / 100),
        ("to another core and back, both asleep", SpinPolicy::Never, count / 1000),
    ] {
        let nanos =
            (0..rounds).map(|_| to_and_fro(spin, count.max(1), other)).collect::<Result<_>>()?;
        costs.push(Cost { what, nanos, goal: 0.0 });
    }
    Ok(costs)
}

/// Longer than a message takes, so that nobody sleeps.
const LOOK: Duration = Duration::from_millis(5);

/// The costs as a table.
pub fn table(costs: &[Cost]) -> Table {
    let mut table = Table::new(&[
        ("executor of a core", Align::Left),
        ("ns", Align::Right),
        ("from", Align::Right),
        ("to", Align::Right),
        ("goal", Align::Right),
    ]);
    for cost in costs {
        let number = |nanos: f64| format!("{nanos:.1}");
        table.row(vec![
            cost.what.to_owned(),
            number(median(&cost.nanos)),
            number(cost.nanos.iter().copied().fold(f64::INFINITY, f64::min)),
            number(cost.nanos.iter().copied().fold(0.0, f64::max)),
            if cost.goal > 0.0 { format!("<= {:.0}", cost.goal) } else { String::new() },
        ]);
    }
    table
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a run are below 2^53")]
fn each(nanos: u64, count: u64) -> f64 {
    nanos as f64 / count.max(1) as f64
}

fn executor() -> Result<Executor> {
    Executor::new(&ExecutorConfig { spin: SpinPolicy::Never, ..ExecutorConfig::default() })
}

#[expect(clippy::unnecessary_wraps, reason = "one of several that may fail")]
fn clock(now: Now, count: u64) -> Result<f64> {
    let clock = Clock::new();
    let begin = now();
    let last = (0..count).fold(0, |_, _| std::hint::black_box(clock.now()));
    std::hint::black_box(last);
    Ok(each(now() - begin, count))
}

fn yields(now: Now, count: u64, tasks: usize) -> Result<f64> {
    let executor = executor()?;
    let turns = count / tasks as u64;
    let joins: Vec<_> = (0..tasks)
        .map(|_| {
            executor.spawn(TaskClass::Request, "yielder", async move {
                for _ in 0..turns {
                    yield_now().await;
                }
            })
        })
        .collect();
    let begin = now();
    executor.run(async move {
        for join in joins {
            join.await;
        }
    });
    Ok(each(now() - begin, turns * tasks as u64))
}

/// A ring of tasks: each waits until the one before lets it pass, and lets the next one pass.
fn suspend(now: Now, count: u64) -> Result<f64> {
    let executor = executor()?;
    let gates: Rc<Vec<TaskEvent>> = Rc::new((0..TASKS).map(|_| TaskEvent::default()).collect());
    let turns = count / TASKS as u64;
    let joins: Vec<_> = (0..TASKS)
        .map(|own| {
            let gates = Rc::clone(&gates);
            executor.spawn(TaskClass::Request, "ring", async move {
                let (Some(mine), Some(next)) = (gates.get(own), gates.get((own + 1) % TASKS))
                else {
                    return;
                };
                for _ in 0..turns {
                    mine.wait_and_reset().await;
                    next.set();
                }
            })
        })
        .collect();
    let begin = now();
    executor.run(async move {
        if let Some(first) = gates.first() {
            first.set();
        }
        for join in joins {
            join.await;
        }
    });
    Ok(each(now() - begin, turns * TASKS as u64))
}

fn deadlines(now: Now, count: u64) -> Result<f64> {
    let executor = executor()?;
    let begin = now();
    executor.run(async move {
        for _ in 0..count {
            // Ready at once, but only after the deadline was looked at.
            timeout(Duration::from_secs(1), yield_now()).await;
        }
    });
    Ok(each(now() - begin, count))
}

fn spawns(now: Now, count: u64) -> Result<f64> {
    let executor = executor()?;
    let count = count / 10;
    let begin = now();
    executor.run(async move {
        for _ in 0..count {
            nearstate_node::executor::spawn(TaskClass::Request, "short", async {}).await;
        }
    });
    Ok(each(now() - begin, count))
}

fn tokio_yields(now: Now, count: u64, tasks: usize) -> Result<f64> {
    let options = tokio::runtime::LocalOptions::default();
    let runtime =
        tokio::runtime::Builder::new_current_thread().build_local(options).map_err(|e| {
            Error::System {
                detail: format!("event loop ({e})"),
                errno: e.raw_os_error().unwrap_or(0),
            }
        })?;
    let turns = count / tasks as u64;
    let begin = now();
    runtime.block_on(async move {
        let yields = move || async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        };
        let tasks: Vec<_> = (0..tasks).map(|_| tokio::task::spawn_local(yields())).collect();
        for task in tasks {
            // It cannot be cancelled, and does not panic.
            let _ = task.await;
        }
    });
    Ok(each(now() - begin, turns * tasks as u64))
}

/// A message to another core and its answer, by the clock of the machine.
fn to_and_fro(spin: SpinPolicy, count: u64, processor: usize) -> Result<f64> {
    let (there, here) = (inbox(16), inbox(16));
    let other = std::thread::Builder::new()
        .name("bench-other".to_owned())
        .spawn(move || {
            // On one processor the two would wait for each other's time slices.
            pin(processor);
            play(spin, here.0, there.1, count)
        })
        .map_err(|e| Error::System {
            detail: format!("beginning a thread ({e})"),
            errno: e.raw_os_error().unwrap_or(0),
        })?;
    let (there, here) = (there.0, here.1);
    let first = there.send(());
    debug_assert!(first.is_ok(), "the queue is empty");
    let clock = Clock::new();
    let begin = clock.now();
    let played = play(spin, there, here, count).map(|()| clock.nanos(clock.now() - begin));
    // A thread that has failed has said so to whoever waited for it, by dropping its end.
    let _ = other.join();
    Ok(each(played?, count))
}

/// Answers so many messages.
fn play(spin: SpinPolicy, outbox: Outbox<()>, mut inbox: Inbox<()>, count: u64) -> Result<()> {
    let executor = Executor::new(&ExecutorConfig { spin, ..ExecutorConfig::default() })?;
    executor.run(async move {
        for _ in 0..count {
            if inbox.receive().await.is_none() || outbox.send(()).is_err() {
                break;
            }
        }
    });
    Ok(())
}
