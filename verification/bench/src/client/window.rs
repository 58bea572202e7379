//! A closed loop whose steps overlap: while the client reads the replies to one step, the store
//! executes the others. With one step in flight, client and store would wait for each other, with
//! two wake-ups per step.

use super::{Client, ProgressReporter, TrialClock};
use crate::access::Connection;
use crate::meter::Meter;
use crate::protocol::Trial;
use crate::wait::Waits;
use crate::workloads::{Tally, Workload};
use nearstate_model::Result;
use std::collections::VecDeque;
use std::io::Write;

/// The smallest number of steps in flight: the fastest with our node and Redis at depths 16 and 64.
const STEPS_MIN: usize = 4;

/// The largest number of operations of a step: at a depth of 256, eight steps are faster than four.
const STEP_OPS_MAX: usize = 32;

/// A step in flight.
struct StepInFlight {
    ops: usize,
    start_ns: u64,
}

/// Steps in flight, the oldest first.
#[derive(Default)]
struct Window {
    steps: VecDeque<StepInFlight>,
    /// Operations of all steps.
    ops: usize,
}

/// Operations of a step.
fn step_ops(depth: usize) -> usize {
    depth.div_ceil(STEPS_MIN).clamp(1, STEP_OPS_MAX)
}

/// The number of steps in flight, if steps overlap.
pub(super) fn steps_of(depth: usize) -> usize {
    depth.div_ceil(step_ops(depth))
}

impl Window {
    /// The number of operations of the next step, 0 if none may start; `left` operations remain.
    fn next_ops(&self, depth: usize, left: u64) -> usize {
        let left = usize::try_from(left).unwrap_or(depth);
        step_ops(depth).min(depth.saturating_sub(self.ops)).min(left)
    }

    fn push(&mut self, ops: usize, start_ns: u64) {
        self.steps.push_back(StepInFlight { ops, start_ns });
        self.ops += ops;
    }

    /// Removes the oldest step.
    fn pop(&mut self) -> Option<StepInFlight> {
        let step = self.steps.pop_front()?;
        self.ops -= step.ops;
        Some(step)
    }
}

impl Client {
    /// True if the steps of a trial overlap.
    pub(super) fn overlaps(&mut self, trial: &Trial) -> bool {
        trial.depth >= STEPS_MIN
            && trial.rate.is_none()
            && trial.think_us == 0
            && self.connection.sends_ahead()
            && self.workload.overlapped().is_some()
    }

    /// Runs a trial. A step starts when the oldest one has ended. The latency of a step is the time
    /// between its own start and end.
    pub(super) fn run_overlapped(
        &mut self,
        trial: &Trial,
        meter: &mut Meter,
        output: &mut impl Write,
    ) -> Result<Waits> {
        let mut reporter = ProgressReporter::new(self.progress_ns);
        let clock = TrialClock::new(&self.clock);
        let mut window = Window::default();
        let (mut started, mut done) = (0, 0);
        let mut now_ns = clock.now_ns();
        while done < trial.ops {
            let mut tally = Tally::default();
            let ops_before = window.ops;
            let at = (&mut window, now_ns);
            let outcome = if self.pace.is_slow() {
                self.progress_report(output, |workload, store| {
                    advance_window((workload, store), trial, at, started, &mut tally)
                })
            } else {
                let Self { workload, connection, .. } = self;
                advance_window(
                    (workload.as_mut(), connection.as_mut()),
                    trial,
                    at,
                    started,
                    &mut tally,
                )
            };
            started += (window.ops - ops_before) as u64;
            if let Err(e) = outcome {
                // All steps in flight are recovered together, and count as interrupted.
                let start_ns = window.steps.front().map_or(now_ns, |step| step.start_ns);
                self.recover(e, (window.ops, &mut tally), output)?;
                let ops = std::mem::take(&mut window).ops;
                window.push(ops, start_ns);
            }
            now_ns = clock.now_ns();
            let Some(step) = window.pop() else { break };
            let took_ns = now_ns.saturating_sub(step.start_ns);
            self.pace.update(took_ns);
            meter.step(&tally, took_ns, now_ns);
            done += step.ops as u64;
            reporter.add(step.ops as u64);
            if reporter.is_due(now_ns) {
                reporter.report(output, || meter.last_p99())?;
                // The next step starts after the report.
                now_ns = clock.now_ns();
            }
        }
        Ok(Waits::default())
    }
}

/// Starts as many steps as the window allows, and ends the oldest.
fn advance_window(
    (workload, store): (&mut dyn Workload, &mut Connection<'_>),
    trial: &Trial,
    (window, now_ns): (&mut Window, u64),
    mut started: u64,
    tally: &mut Tally,
) -> Result<()> {
    let Some(workload) = workload.overlapped() else { return Ok(()) };
    loop {
        let ops = window.next_ops(trial.depth, trial.ops - started);
        if ops == 0 {
            break;
        }
        window.push(ops, now_ns);
        started += ops as u64;
        workload.begin_step(store, ops)?;
    }
    workload.end_step(store, tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The operations of each step, until the window is full.
    fn steps(depth: usize, mut left: u64) -> Vec<usize> {
        let mut window = Window::default();
        std::iter::from_fn(|| {
            let ops = window.next_ops(depth, left);
            window.push(ops, 0);
            left -= ops as u64;
            (ops > 0).then_some(ops)
        })
        .collect()
    }

    #[test]
    fn the_window_is_filled_with_steps_of_equal_size() {
        assert_eq!(steps(64, 1000), [16; 4]);
        assert_eq!(steps(256, 1000), [32; 8]);
        assert_eq!(steps(10, 1000), [3, 3, 3, 1]);
        assert_eq!(steps(4, 1000), [1; 4]);
        assert_eq!(steps(64, 20), [16, 4]);
        for depth in STEPS_MIN..=256 {
            assert_eq!(steps(depth, 1000).len(), steps_of(depth), "{depth}");
        }
        assert!(steps(64, 0).is_empty());
    }

    #[test]
    fn after_a_step_has_ended_one_of_its_size_may_start() {
        let mut window = Window::default();
        for start_ns in 0..4 {
            window.push(window.next_ops(10, 100), start_ns);
        }
        assert_eq!(window.next_ops(10, 100), 0);
        for (start_ns, ops) in [3, 3, 3, 1].into_iter().enumerate() {
            let step = window.pop().unwrap();
            assert_eq!((step.start_ns, step.ops), (start_ns as u64, ops));
            assert_eq!(window.next_ops(10, 100), ops);
            window.push(ops, 0);
        }
    }
}
