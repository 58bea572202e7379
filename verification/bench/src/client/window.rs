//! A closed loop whose steps overlap: while the replies to one are read, the store executes the
//! others.
//!
//! With one step in flight, store and client alternate, with two wake-ups per step.

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
const STEPS: usize = 4;

/// The largest number of operations of a step: at a depth of 256, eight steps are faster than four.
const OF_STEP_MAX: usize = 32;

/// A step in flight.
struct StepInFlight {
    count: usize,
    began_ns: u64,
}

/// Steps in flight, the oldest first.
#[derive(Default)]
struct Window {
    steps: VecDeque<StepInFlight>,
    count: usize,
}

/// Operations of a step.
fn share_of(depth: usize) -> usize {
    depth.div_ceil(STEPS).clamp(1, OF_STEP_MAX)
}

/// Steps in flight at once, where they overlap.
pub(super) fn steps_of(depth: usize) -> usize {
    depth.div_ceil(share_of(depth))
}

impl Window {
    /// The number of operations that may start now, if `left` are left.
    fn room(&self, depth: usize, left: u64) -> usize {
        let left = usize::try_from(left).unwrap_or(depth);
        let share = share_of(depth);
        share.min(depth - self.count.min(depth)).min(left)
    }

    fn push(&mut self, count: usize, began_ns: u64) {
        self.steps.push_back(StepInFlight { count, began_ns });
        self.count += count;
    }

    /// Removes the oldest step.
    fn pop(&mut self) -> Option<StepInFlight> {
        let step = self.steps.pop_front()?;
        self.count -= step.count;
        Some(step)
    }
}

impl Client {
    /// True if the steps of a trial overlap.
    pub(super) fn overlaps(&mut self, trial: &Trial) -> bool {
        trial.depth >= STEPS
            && trial.rate.is_none()
            && trial.think_us == 0
            && self.connection.sends_ahead()
            && self.workload.overlapped().is_some()
    }

    /// A trial: a step starts when the oldest has ended. Its latency is from its own start to its
    /// own end.
    pub(super) fn run_overlapped(
        &mut self,
        trial: &Trial,
        meter: &mut Meter,
        output: &mut impl Write,
    ) -> Result<Waits> {
        let mut reporter = ProgressReporter::new(self.progress_ns);
        let clock = TrialClock::new(&self.clock);
        let mut window = Window::default();
        let (mut begun, mut done) = (0, 0);
        let mut now_ns = clock.now_ns();
        while done < trial.ops {
            let mut tally = Tally::default();
            let count_before = window.count;
            let place = (&mut window, now_ns);
            let outcome = if self.pace.is_slow() {
                self.progress_report(output, |workload, store| {
                    advance_window((workload, store), trial, place, begun, &mut tally)
                })
            } else {
                let Self { workload, connection, .. } = self;
                advance_window(
                    (workload.as_mut(), connection.as_mut()),
                    trial,
                    place,
                    begun,
                    &mut tally,
                )
            };
            begun += (window.count - count_before) as u64;
            if let Err(e) = outcome {
                // All steps in flight are recovered together, and count as interrupted.
                let began_ns = window.steps.front().map_or(now_ns, |step| step.began_ns);
                self.recover(e, (window.count, &mut tally), output)?;
                let count = std::mem::take(&mut window).count;
                window.push(count, began_ns);
            }
            now_ns = clock.now_ns();
            let Some(step) = window.pop() else { break };
            let took_ns = now_ns.saturating_sub(step.began_ns);
            self.pace.update(took_ns);
            meter.step(&tally, took_ns, now_ns);
            done += step.count as u64;
            reporter.add(step.count as u64);
            if reporter.is_due(now_ns) {
                reporter.report(output, || meter.last_p99())?;
            }
        }
        Ok(Waits::default())
    }
}

/// Starts the steps that may start, and ends the oldest.
fn advance_window(
    (workload, store): (&mut dyn Workload, &mut Connection<'_>),
    trial: &Trial,
    (window, now_ns): (&mut Window, u64),
    mut begun: u64,
    tally: &mut Tally,
) -> Result<()> {
    let Some(workload) = workload.overlapped() else { return Ok(()) };
    loop {
        let room = window.room(trial.depth, trial.ops - begun);
        if room == 0 {
            break;
        }
        window.push(room, now_ns);
        begun += room as u64;
        workload.begin_step(store, room)?;
    }
    workload.end_step(store, tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many operations each step has, until the window is full.
    fn steps(depth: usize, ops: u64) -> Vec<usize> {
        let mut window = Window::default();
        let mut left = ops;
        std::iter::from_fn(|| {
            let room = window.room(depth, left);
            window.push(room, 0);
            left -= room as u64;
            (room > 0).then_some(room)
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
        for depth in STEPS..=256 {
            assert_eq!(steps(depth, 1000).len(), steps_of(depth), "{depth}");
        }
        assert!(steps(64, 0).is_empty());
    }

    #[test]
    fn a_step_that_has_ended_makes_room_for_one_of_its_size() {
        let mut window = Window::default();
        for began_ns in 0..4 {
            window.push(window.room(10, 100), began_ns);
        }
        assert_eq!(window.room(10, 100), 0);
        for (began_ns, count) in [3, 3, 3, 1].into_iter().enumerate() {
            let step = window.pop().unwrap();
            assert_eq!((step.began_ns, step.count), (began_ns as u64, count));
            assert_eq!(window.room(10, 100), count);
            window.push(count, 0);
        }
    }
}
