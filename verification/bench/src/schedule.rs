//! The intended starts of the operations of an open loop, independent of the store.

use crate::parameters::Arrivals;
use crate::random::whole;
use crate::random::{self, Distributions as _, Rng};
use crate::stat::as_f64;

/// Share of the arrivals that belong to bursts.
const BURST_SHARE: f64 = 0.3;

/// Arrivals of a burst: a Pareto distribution with this minimum and shape, at most [`BURST_MAX`].
const BURST_LEAST: f64 = 8.0;
const BURST_SHAPE: f64 = 1.5;
const BURST_MAX: f64 = 2_000.0;

/// Arrival rate within a burst, as a multiple of the average rate.
const BURST_SPEED: f64 = 20.0;

/// The largest delay after the common start of a client that was not preempted.
const LATE_NS: f64 = 1e5;

/// The phase of a client: without it, all clients would start operations at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Which client, from 0.
    pub client: usize,
    pub clients: usize,
}

impl Phase {
    /// The share of an interval before the first start of this client.
    fn share(self) -> f64 {
        as_f64(self.client as u64) / as_f64(self.clients.max(1) as u64)
    }
}

/// Intended starts, one after the other.
#[derive(Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    interval_ns: f64,
    rng: Rng,
    start_ns: u64,
    /// Nanoseconds from the start to the next one, with fractions: rounding errors would add up.
    at: f64,
    /// Arrivals left in the current burst.
    burst: f64,
    /// Time by which a burst was early: later gaps are longer.
    early: f64,
}

impl Schedule {
    /// Starts at this mean rate (operations per second), from `start_ns` on.
    pub fn new(arrivals: Arrivals, rate: f64, seed: u64, start_ns: u64) -> Self {
        let interval_ns = 1e9 / rate.max(f64::MIN_POSITIVE);
        let rng = random::rng(seed);
        Self { arrivals, interval_ns, rng, start_ns, at: 0.0, burst: 0.0, early: 0.0 }
    }

    /// The same with the phase of a client: intervals are counted from `start_ns`, the same for all
    /// clients. A client that is later than [`LATE_NS`] skips the starts that have passed.
    #[must_use]
    pub fn in_phase(mut self, phase: Phase, now_ns: u64) -> Self {
        let late = as_f64(now_ns.saturating_sub(self.start_ns)) - LATE_NS;
        let passed = (late / self.interval_ns - phase.share()).ceil().max(0.0);
        self.at = (passed + phase.share()) * self.interval_ns;
        self
    }

    /// The intended start of the next operation, in nanoseconds of the monotonic clock.
    pub fn next_ns(&self) -> u64 {
        self.start_ns.saturating_add(whole(self.at))
    }

    /// Writes the starts until `now_ns` to `due`, at least one and at most `room`.
    pub fn take_due(&mut self, now_ns: u64, room: usize, due: &mut Vec<u64>) {
        due.clear();
        while due.len() < room.max(1) && (due.is_empty() || self.next_ns() <= now_ns) {
            due.push(self.next_ns());
            self.at += self.gap();
        }
    }

    fn gap(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Constant => self.interval_ns,
            Arrivals::Poisson => self.rng.exponential(self.interval_ns),
            Arrivals::Bursts => self.bursty_gap(),
        }
    }

    fn bursty_gap(&mut self) -> f64 {
        if self.burst >= 1.0 {
            self.burst -= 1.0;
            self.early += self.interval_ns * (1.0 - 1.0 / BURST_SPEED);
            return self.interval_ns / BURST_SPEED;
        }
        // A burst has 3 * BURST_LEAST arrivals on average (Pareto with a shape of 1.5).
        let mean = BURST_LEAST * BURST_SHAPE / (BURST_SHAPE - 1.0);
        if self.rng.f64() < BURST_SHARE / (mean * (1.0 - BURST_SHARE)) {
            self.burst = self.rng.pareto(BURST_LEAST, BURST_SHAPE).min(BURST_MAX);
        }
        // Each gap repays a part of the time by which bursts were early.
        let back = self.early.min(self.interval_ns * 2.0);
        self.early -= back;
        self.rng.exponential(self.interval_ns) + back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first starts of four clients that begin a little after 5 ms, 10,000 a second together.
    fn of_four(arrivals: Arrivals, late_ns: u64) -> Vec<Vec<u64>> {
        let clients = 4;
        let one = |client| {
            let seed = random::seed_of(3, client as u64, 0);
            let schedule = Schedule::new(arrivals, 2_500.0, seed, 5_000_000);
            let now_ns = 5_000_000 + late_ns + 7_000 * client as u64;
            let mut schedule = schedule.in_phase(Phase { client, clients }, now_ns);
            let mut due = Vec::new();
            schedule.take_due(u64::MAX, 50, &mut due);
            due
        };
        (0..clients).map(one).collect()
    }

    #[test]
    fn clients_share_the_rate_evenly_in_any_order_of_their_starts() {
        for (late_ns, first_ns) in [(0, 5_000_000), (70_000, 5_000_000), (3_100_000, 8_100_000)] {
            let mut all: Vec<u64> = of_four(Arrivals::Constant, late_ns).concat();
            all.sort_unstable();
            assert_eq!(all[0], first_ns, "{late_ns}");
            assert!(all.windows(2).all(|pair| pair[1] - pair[0] == 100_000), "{late_ns}: {all:?}");
        }
    }

    #[test]
    fn no_two_clients_have_the_same_starts() {
        for arrivals in [Arrivals::Constant, Arrivals::Poisson, Arrivals::Bursts] {
            let all = of_four(arrivals, 0).concat();
            let different: std::collections::BTreeSet<&u64> = all.iter().collect();
            assert!(different.len() + 2 >= all.len(), "{arrivals:?}");
        }
    }

    fn starts(arrivals: Arrivals, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(arrivals, 1e6, 7, 1_000);
        let mut due = Vec::new();
        schedule.take_due(u64::MAX, count, &mut due);
        due
    }

    #[test]
    fn every_kind_keeps_its_mean_rate_and_never_goes_back() {
        for arrivals in [Arrivals::Constant, Arrivals::Poisson, Arrivals::Bursts] {
            let due = starts(arrivals, 400_000);
            assert!(due.windows(2).all(|pair| pair[0] <= pair[1]));
            let took = due[due.len() - 1] - due[0];
            let mean = took / (due.len() as u64 - 1);
            assert!((970..=1030).contains(&mean), "{arrivals:?}: {mean} ns");
        }
    }

    #[test]
    fn bursts_put_more_into_the_busiest_millisecond() {
        let busiest = |arrivals| {
            let due = starts(arrivals, 400_000);
            let mut counts = std::collections::BTreeMap::new();
            for at in due {
                *counts.entry(at / 100_000).or_insert(0_u32) += 1;
            }
            counts.into_values().max().unwrap()
        };
        assert!(busiest(Arrivals::Constant) <= 101);
        assert!(busiest(Arrivals::Poisson) < 160);
        assert!(busiest(Arrivals::Bursts) > 400, "{}", busiest(Arrivals::Bursts));
    }

    #[test]
    fn due_starts_are_taken_and_at_least_one() {
        let mut schedule = Schedule::new(Arrivals::Constant, 1e6, 0, 0);
        let mut due = Vec::new();
        schedule.take_due(0, 16, &mut due);
        assert_eq!(due, [0]);
        schedule.take_due(3_500, 16, &mut due);
        assert_eq!(due, [1_000, 2_000, 3_000]);
        schedule.take_due(100_000, 4, &mut due);
        assert_eq!(due, [4_000, 5_000, 6_000, 7_000]);
        schedule.take_due(0, 4, &mut due);
        assert_eq!(due, [8_000], "one that is not due yet: the caller has waited for it");
    }
}
