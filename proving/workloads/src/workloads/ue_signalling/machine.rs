//! A state machine for each UE: which procedure comes next depends on its state, and how long it
//! stays there has a heavy tail. Only legal procedures come out, in the order of a clock of its
//! own.
//!
//! Which comes next is drawn so that Table II's shares are the stationary ones. The times are ours
//! (no public trace gives them): seconds connected are log-normal, idle and detached times are
//! Pareto. Bursts are the affair of the arrivals of an open loop.

use super::Procedure;
use crate::chance::Dice;
use nearstate_model::{Error, Result};
use nearstate_ue::UeState;

/// Slots of the wheel of time, each one tick.
const SLOTS: usize = TICKS_MAX as usize + 1;

/// Length of a tick, in seconds.
const TICK_S: f64 = 0.05;

/// Seconds in a state: median and deviation of the logarithm while connected; the least and the
/// shape otherwise.
const CONNECTED: (f64, f64) = (4.0, 1.2);
const IDLE: (f64, f64) = (8.0, 1.4);
const DETACHED: (f64, f64) = (120.0, 1.2);

/// Longest time in a state, in ticks: almost an hour, what the wheel turns in one round.
const TICKS_MAX: u32 = (1 << 16) - 1;

/// No UE.
const NOBODY: u32 = u32::MAX;

/// One UE of the machine.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The next UE of the same slot.
    next: u32,
    state: UeState,
}

/// The machine: a wheel of ticks, in each a list of the UEs whose time comes then.
#[derive(Debug)]
pub(super) struct Machine {
    places: Vec<Place>,
    slots: Vec<u32>,
    now: usize,
    dice: Dice,
    due: Vec<u32>,
}

impl Machine {
    /// UEs that are all idle at first, at different points of their time.
    pub(super) fn new(ues: u64, seed: u64) -> Result<Self> {
        let count = u32::try_from(ues).ok().filter(|count| *count < NOBODY);
        let count = count.ok_or_else(|| Error::BadArgument {
            detail: format!("{ues} UEs of one client: give fewer, or more clients"),
        })?;
        let place = Place { next: NOBODY, state: UeState::Idle };
        let places = vec![place; usize::try_from(count).unwrap_or(0)];
        let slots = vec![NOBODY; SLOTS];
        let mut all = Self { places, slots, now: 0, dice: Dice::new(seed), due: Vec::new() };
        for ue in 0..count {
            let ticks = all.stay(UeState::Idle);
            let elapsed = all.dice.below(u64::from(ticks) + 1);
            all.schedule(ue, ticks - u32::try_from(elapsed).unwrap_or(0));
        }
        Ok(all)
    }

    /// The next `count` procedures, of different UEs, in the order of the machine's clock; fewer if
    /// there are not so many UEs.
    #[inline]
    pub(super) fn next(&mut self, count: usize, mut each: impl FnMut(u64, Procedure)) {
        self.due.clear();
        let count = count.min(self.places.len());
        while self.due.len() < count {
            let ue = self.pop();
            self.due.push(ue);
        }
        // Their next times come after all of them are taken, so that none is met twice.
        for at in 0..self.due.len() {
            let Some(ue) = self.due.get(at).copied() else { return };
            let procedure = self.advance(ue);
            each(ue.into(), procedure);
        }
    }

    /// The UE whose time comes first.
    #[inline]
    fn pop(&mut self) -> u32 {
        loop {
            let Some(slot) = self.slots.get_mut(self.now) else { return 0 };
            let ue = *slot;
            if let Some(place) = self.places.get(ue as usize) {
                *slot = place.next;
                return ue;
            }
            self.now = (self.now + 1) % SLOTS;
        }
    }

    /// A UE takes its next procedure, and waits for the one after.
    #[inline]
    fn advance(&mut self, ue: u32) -> Procedure {
        let state = self.places.get(ue as usize).map_or(UeState::Idle, |place| place.state);
        let procedure = next_of(state, &mut self.dice);
        let after = procedure.next_state(state).unwrap_or(state);
        if let Some(place) = self.places.get_mut(ue as usize) {
            place.state = after;
        }
        let ticks = self.stay(after);
        self.schedule(ue, ticks);
        procedure
    }

    /// How long a UE stays as it is, in ticks, at least one.
    #[inline]
    fn stay(&mut self, state: UeState) -> u32 {
        let seconds = match state {
            UeState::Connected => self.dice.lognormal(CONNECTED.0, CONNECTED.1),
            UeState::Idle => self.dice.pareto(IDLE.0, IDLE.1),
            UeState::Deregistered => self.dice.pareto(DETACHED.0, DETACHED.1),
        };
        let ticks = crate::chance::whole(seconds / TICK_S);
        u32::try_from(ticks).unwrap_or(TICKS_MAX).clamp(1, TICKS_MAX)
    }

    #[inline]
    fn schedule(&mut self, ue: u32, ticks: u32) {
        let at = (self.now + ticks as usize) % SLOTS;
        let (Some(slot), Some(place)) = (self.slots.get_mut(at), self.places.get_mut(ue as usize))
        else {
            return;
        };
        place.next = *slot;
        *slot = ue;
    }
}

/// What comes next in a state. Of a thousand procedures 324 bring a UE into the connected state and
/// 324 out of it, so each state is left as often as it is entered, and the shares are Table II's.
#[inline]
fn next_of(state: UeState, dice: &mut Dice) -> Procedure {
    let table: &[(Procedure, u32)] = match state {
        UeState::Deregistered => &[(Procedure::InitialAttach, 1)],
        UeState::Idle => &[
            (Procedure::ServiceRequest, Procedure::ServiceRequest.per_mille()),
            (Procedure::TrackingAreaUpdate, Procedure::TrackingAreaUpdate.per_mille()),
            (Procedure::CellReselection, Procedure::CellReselection.per_mille()),
        ],
        UeState::Connected => &[
            (Procedure::S1Release, Procedure::S1Release.per_mille()),
            (Procedure::Handover, Procedure::Handover.per_mille()),
            (Procedure::SessionManagement, Procedure::SessionManagement.per_mille()),
            (Procedure::Detach, Procedure::Detach.per_mille()),
        ],
    };
    let all: u32 = table.iter().map(|(_, share)| *share).sum();
    let mut drawn = u32::try_from(dice.below(all.into())).unwrap_or(0);
    for (procedure, share) in table {
        if drawn < *share {
            return *procedure;
        }
        drawn -= share;
    }
    Procedure::CellReselection
}
