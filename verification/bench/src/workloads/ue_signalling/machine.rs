//! A state machine for each UE: the next procedure depends on the state, and the time in a state
//! has a heavy tail. The machine emits legal procedures only, in the order of its own clock.
//!
//! Procedures are drawn so that Table II's shares are the stationary ones. No public trace gives
//! the times; they are our choice: log-normal while connected, Pareto while idle or detached. The
//! machine starts in its stationary distribution. If all UEs were idle initially, the shares would
//! be wrong for hours of its clock. It does not model bursts; the arrivals of an open loop do.

use super::Procedure;
use crate::random::{self, Distributions as _, Rng};
use nearstate_model::Result;
use nearstate_ue::UeState;

/// Slots of the timer wheel, one per tick.
const SLOTS: usize = TICKS_MAX as usize + 1;

/// Length of a tick, in seconds.
const TICK_S: f64 = 0.05;

/// Seconds in a state. Connected: median, and standard deviation of the logarithm. Idle, detached:
/// minimum and shape.
const CONNECTED: (f64, f64) = (4.0, 1.2);
const IDLE: (f64, f64) = (8.0, 1.4);
const DETACHED: (f64, f64) = (120.0, 1.2);

/// Longest time in a state, in ticks: almost an hour, one turn of the wheel.
const TICKS_MAX: u32 = (1 << 16) - 1;

/// Stays that are drawn for the initial states. Stays of detached UEs are the fewest, about 2,900,
/// and the longest, so that their share of the time is accurate to a few percent.
const STAYS_SAMPLED: u32 = 1 << 18;

const NO_UE: u32 = u32::MAX;

/// One UE of the machine.
#[derive(Clone, Copy, Debug)]
struct UeEntry {
    /// The next UE of the same slot.
    next: u32,
    state: UeState,
}

/// The machine. It is a timer wheel: each slot has a list of the UEs that leave their state at its
/// tick.
#[derive(Debug)]
pub(super) struct UeStateMachine {
    entries: Vec<UeEntry>,
    /// The first UE of each slot.
    slots: Vec<u32>,
    now: usize,
    rng: Rng,
    due: Vec<u32>,
}

impl UeStateMachine {
    /// UEs in the stationary distribution of states.
    pub(super) fn new(ues: u64, seed: u64) -> Result<Self> {
        let count = u32::try_from(ues).ok().filter(|count| *count < NO_UE);
        let count = count.ok_or_else(|| {
            bad_argument!("{ues} UEs of one client are too many: give fewer, or more clients")
        })?;
        let entry = UeEntry { next: NO_UE, state: UeState::Idle };
        let entries = vec![entry; usize::try_from(count).unwrap_or(0)];
        let slots = vec![NO_UE; SLOTS];
        let mut all = Self { entries, slots, now: 0, rng: random::rng(seed), due: Vec::new() };
        let sample = StaySample::new(&mut all.rng);
        for ue in 0..count {
            let (state, left) = sample.draw(&mut all.rng);
            if let Some(entry) = all.entries.get_mut(ue as usize) {
                entry.state = state;
            }
            all.schedule(ue, left);
        }
        Ok(all)
    }

    /// The state of a UE, before its next procedure.
    pub(super) fn state(&self, ue: u64) -> UeState {
        let entry = usize::try_from(ue).ok().and_then(|ue| self.entries.get(ue));
        entry.map_or(UeState::Idle, |entry| entry.state)
    }

    /// The next `count` procedures, of different UEs, in the order of the machine's clock; at most
    /// one per UE.
    #[inline]
    pub(super) fn next(&mut self, count: usize, mut each: impl FnMut(u64, Procedure)) {
        self.due.clear();
        let count = count.min(self.entries.len());
        while self.due.len() < count {
            let ue = self.pop();
            self.due.push(ue);
        }
        // They are scheduled again after all were taken, so that none is taken twice.
        for at in 0..self.due.len() {
            let Some(ue) = self.due.get(at).copied() else { return };
            let procedure = self.advance(ue);
            each(ue.into(), procedure);
        }
    }

    /// Removes the UE that leaves its state first.
    #[inline]
    fn pop(&mut self) -> u32 {
        loop {
            let Some(slot) = self.slots.get_mut(self.now) else { return 0 };
            let ue = *slot;
            if let Some(entry) = self.entries.get(ue as usize) {
                *slot = entry.next;
                return ue;
            }
            self.now = (self.now + 1) % SLOTS;
        }
    }

    /// Returns the next procedure of a UE, and schedules the one after it.
    #[inline]
    fn advance(&mut self, ue: u32) -> Procedure {
        let state = self.entries.get(ue as usize).map_or(UeState::Idle, |entry| entry.state);
        let procedure = next_of(state, &mut self.rng);
        let after = procedure.next_state(state).unwrap_or(state);
        if let Some(entry) = self.entries.get_mut(ue as usize) {
            entry.state = after;
        }
        let ticks = stay(after, &mut self.rng);
        self.schedule(ue, ticks);
        procedure
    }

    #[inline]
    fn schedule(&mut self, ue: u32, ticks: u32) {
        let at = (self.now + ticks as usize) % SLOTS;
        let (Some(slot), Some(entry)) = (self.slots.get_mut(at), self.entries.get_mut(ue as usize))
        else {
            return;
        };
        entry.next = *slot;
        *slot = ue;
    }
}

/// A sample of stays in sequence, so that a random moment selects a stay with a probability
/// proportional to its duration.
#[derive(Debug)]
struct StaySample {
    /// State and end of each stay, in ticks.
    stays: Vec<(UeState, u64)>,
    end: u64,
}

impl StaySample {
    fn new(rng: &mut Rng) -> Self {
        let mut stays = Vec::with_capacity(STAYS_SAMPLED as usize);
        let mut end = 0;
        for _ in 0..STAYS_SAMPLED {
            let state = left_by(rng);
            end += u64::from(stay(state, rng));
            stays.push((state, end));
        }
        Self { stays, end }
    }

    /// The state of a UE at a random moment, and the ticks that it stays there, at least one.
    fn draw(&self, rng: &mut Rng) -> (UeState, u32) {
        let at = rng.below(self.end);
        let stay = self.stays.partition_point(|(_, end)| *end <= at);
        let (state, end) = self.stays.get(stay).copied().unwrap_or((UeState::Idle, self.end));
        (state, u32::try_from(end - at).unwrap_or(TICKS_MAX))
    }
}

/// The time that a UE stays in a state, in ticks, at least one.
#[inline]
fn stay(state: UeState, rng: &mut Rng) -> u32 {
    let seconds = match state {
        UeState::Connected => rng.lognormal(CONNECTED.0, CONNECTED.1),
        UeState::Idle => rng.pareto(IDLE.0, IDLE.1),
        UeState::Deregistered => rng.pareto(DETACHED.0, DETACHED.1),
    };
    let ticks = random::whole(seconds / TICK_S);
    u32::try_from(ticks).unwrap_or(TICKS_MAX).clamp(1, TICKS_MAX)
}

/// The legal procedures of a state. Of 1,000 procedures, 324 enter the connected state and 324
/// leave it, so each state is left as often as it is entered, and the shares are Table II's.
const fn choices(state: UeState) -> &'static [Procedure] {
    match state {
        UeState::Deregistered => &[Procedure::InitialAttach],
        UeState::Idle => {
            &[Procedure::ServiceRequest, Procedure::TrackingAreaUpdate, Procedure::CellReselection]
        }
        UeState::Connected => &[
            Procedure::S1Release,
            Procedure::Handover,
            Procedure::SessionManagement,
            Procedure::Detach,
        ],
    }
}

/// The number of 1,000 procedures that start in a state: as many stays end there.
fn share_of(state: UeState) -> u32 {
    choices(state).iter().map(|procedure| procedure.per_mille()).sum()
}

/// A random item with these shares.
#[inline]
fn drawn<T: Copy>(all: &[T], share: impl Fn(T) -> u32, rng: &mut Rng) -> Option<T> {
    let sum: u32 = all.iter().map(|one| share(*one)).sum();
    let mut drawn = u32::try_from(rng.below(sum.into())).unwrap_or(0);
    all.iter().copied().find(|one| {
        let is_drawn = drawn < share(*one);
        drawn = drawn.saturating_sub(share(*one));
        is_drawn
    })
}

/// A random legal procedure of a state.
#[inline]
fn next_of(state: UeState, rng: &mut Rng) -> Procedure {
    drawn(choices(state), Procedure::per_mille, rng).unwrap_or(Procedure::CellReselection)
}

/// The state in which a random procedure starts.
fn left_by(rng: &mut Rng) -> UeState {
    drawn(&UeState::ALL, share_of, rng).unwrap_or(UeState::Idle)
}
