//! A closed loop whose steps overlap: while the answers to one are taken, the store works on the
//! others.
//!
//! With one step in flight, store and client take turns, and each sleeps while the other works: a
//! rate is then what both take together, and what it costs to wake them twice for each step.

use super::{AnswerWatch, Client, ProgressReporter};
use crate::access::Connection;
use crate::meter::Meter;
use crate::protocol::Turn;
use crate::wait::Waits;
use crate::workloads::{Tally, Workload};
use nearstate_model::Result;
use std::collections::VecDeque;
use std::io::Write;

/// The smallest number of steps in flight, each of a share of the operations. Of one, three, four,
/// five, six and eight, four served our node and Redis best at depths of 16 and 64: with fewer the
/// store waits for the client, with more each message is small and costs as much as a large one.
const STEPS: usize = 4;

/// Operations of a step at the most: at a depth of 256, eight steps served both a tenth better than
/// four.
const OF_STEP_MAX: usize = 32;

/// A step on its way.
struct Away {
    count: usize,
    began_ns: u64,
}

/// Steps on their way, the oldest first.
#[derive(Default)]
struct Window {
    steps: VecDeque<Away>,
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
    /// How many operations may begin now, of so many that are left.
    fn room(&self, depth: usize, left: u64) -> usize {
        let left = usize::try_from(left).unwrap_or(depth);
        let share = share_of(depth);
        share.min(depth - self.count.min(depth)).min(left)
    }

    fn push(&mut self, count: usize, began_ns: u64) {
        self.steps.push_back(Away { count, began_ns });
        self.count += count;
    }

    /// The oldest is over; when it began.
    fn pop(&mut self) -> Option<Away> {
        let step = self.steps.pop_front()?;
        self.count -= step.count;
        Some(step)
    }
}

impl Client {
    /// Whether the operations of a turn are to overlap, and can.
    pub(super) fn overlaps(&mut self, turn: &Turn) -> bool {
        turn.depth >= STEPS
            && turn.rate.is_none()
            && turn.think_us == 0
            && self.connection.sends_ahead()
            && self.workload.overlapped().is_some()
    }

    /// A turn: a step begins when the oldest has ended, and lasts from its own begin to its own
    /// end.
    pub(super) fn overlapped(
        &mut self,
        turn: &Turn,
        meter: &mut Meter,
        output: &mut impl Write,
    ) -> Result<Waits> {
        let mut reporter = ProgressReporter::new(self.progress_ns);
        let watch = AnswerWatch::new(&self.clock);
        let mut window = Window::default();
        let (mut begun, mut done) = (0, 0);
        let mut now_ns = watch.now_ns();
        while done < turn.ops {
            let mut tally = Tally::default();
            let count_before = window.count;
            let place = (&mut window, now_ns);
            let outcome = if self.pace.is_slow() {
                self.progress_report(output, |workload, store| {
                    turn_window((workload, store), turn, place, begun, &mut tally)
                })
            } else {
                let Self { workload, connection, .. } = self;
                turn_window(
                    (workload.as_mut(), connection.as_mut()),
                    turn,
                    place,
                    begun,
                    &mut tally,
                )
            };
            begun += (window.count - count_before) as u64;
            if let Err(e) = outcome {
                // All that was in flight is settled, and counts as cut.
                let began_ns = window.steps.front().map_or(now_ns, |step| step.began_ns);
                self.recover(e, (window.count, &mut tally), output)?;
                let count = std::mem::take(&mut window).count;
                window.push(count, began_ns);
            }
            now_ns = watch.now_ns();
            let Some(step) = window.pop() else { break };
            let took_ns = now_ns.saturating_sub(step.began_ns);
            self.pace.took(took_ns);
            meter.step(&tally, took_ns, now_ns);
            done += step.count as u64;
            reporter.add(step.count as u64);
            if reporter.is_due(now_ns) {
                reporter.tell(output, || meter.last_p99())?;
            }
        }
        Ok(Waits::default())
    }
}

/// Begins what may begin, and ends the oldest step.
fn turn_window(
    (workload, store): (&mut dyn Workload, &mut Connection<'_>),
    turn: &Turn,
    (window, now_ns): (&mut Window, u64),
    mut begun: u64,
    tally: &mut Tally,
) -> Result<()> {
    let Some(workload) = workload.overlapped() else { return Ok(()) };
    loop {
        let room = window.room(turn.depth, turn.ops - begun);
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
    fn as_many_are_on_the_way_as_are_to_be_and_in_steps_of_a_share() {
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
    fn a_step_that_is_over_makes_room_for_one_of_its_size() {
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
