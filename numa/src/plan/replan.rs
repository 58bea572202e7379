//! Keeps what an earlier plan placed, as far as it is still right.
//!
//! A slice moves only if a processor of it is gone, if it grows beyond its machine, or if the level
//! of its traffic has changed and another place on its machine has better pairs for the new level.

use std::collections::BTreeMap;

use super::machine::MachineState;
use super::place::{Demand, extend, pair_up, place, release, score, take};
use super::request::{PlanOptions, SliceRequest, TrafficLevel};
use super::{Assignment, SliceUnit};

/// A slice that has processors.
#[derive(Clone, Debug)]
pub(super) struct PlacedSlice {
    pub(super) machine: usize,
    pub(super) units: Vec<SliceUnit>,
    /// Why its processors changed, if they did.
    pub(super) reason: Option<String>,
}

/// What is left of an earlier plan.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// Placed slices by the index of their request.
    pub(super) kept: BTreeMap<usize, PlacedSlice>,
    /// Slices that need a new place, with the reason, by the index of their request.
    pub(super) homeless: BTreeMap<usize, String>,
}

/// The level of traffic of each request, with the hysteresis of the earlier plan.
pub(super) fn levels(
    requests: &[SliceRequest],
    current: &[Assignment],
    options: &PlanOptions,
) -> Vec<TrafficLevel> {
    let before: BTreeMap<&str, TrafficLevel> =
        current.iter().map(|old| (old.slice.as_str(), old.traffic)).collect();
    let level = |request: &SliceRequest| {
        options.thresholds.level(request.load, before.get(request.name.as_str()).copied())
    };
    requests.iter().map(level).collect()
}

/// Takes the processors of the earlier plan for all requests that are not placed yet, then adapts
/// them to the requests.
pub(super) fn keep(
    machines: &mut [MachineState],
    requests: &[SliceRequest],
    levels: &[TrafficLevel],
    current: &[Assignment],
    options: &PlanOptions,
) -> Remains {
    let mut remains = Remains::default();
    let by_name: BTreeMap<&str, &Assignment> =
        current.iter().map(|old| (old.slice.as_str(), old)).collect();
    let wanted = requests.iter().zip(levels).enumerate();
    let known = wanted.filter_map(|(index, (request, level))| {
        Some((index, request, *level, *by_name.get(request.name.as_str())?))
    });
    let known: Vec<_> = known.collect();
    // First all, so that no slice grows into the place of another.
    for (index, _, _, old) in &known {
        let mut units = old.units.clone();
        let machine = machines.get_mut(old.machine);
        let is_taken = machine.is_some_and(|machine| {
            take(machine, &units) && {
                let is_known = units.iter_mut().all(|unit| refresh(machine, unit));
                if !is_known {
                    release(machine, &old.units);
                }
                is_known
            }
        });
        if is_taken {
            let kept = PlacedSlice { machine: old.machine, units, reason: None };
            remains.kept.insert(*index, kept);
        } else {
            let reason = "a processor of it is no longer usable, or its machine is gone";
            remains.homeless.insert(*index, reason.to_owned());
        }
    }
    for (index, request, traffic, old) in known {
        let demand = Demand { cores: request.cores as usize, traffic, options };
        let Some(mut kept) = remains.kept.remove(&index) else { continue };
        let Some(machine) = machines.get_mut(kept.machine) else { continue };
        shrink(machine, demand.cores, &mut kept);
        if !grow(machine, &demand, &mut kept) {
            release(machine, &kept.units);
            remains.homeless.insert(index, "it grows, and its machine is full".to_owned());
            continue;
        }
        if traffic != old.traffic {
            adapt(machine, &demand, &mut kept, old.traffic);
        }
        remains.kept.insert(index, kept);
    }
    remains
}

/// Sets what follows from the processors of a unit, which may be from a file. False if it is no
/// unit.
fn refresh(machine: &MachineState, unit: &mut SliceUnit) -> bool {
    unit.reason = String::from("kept from the earlier plan");
    unit.proximity = match unit.cpus.as_slice() {
        [_] => None,
        [a, b] => {
            machine.core_of(*a).zip(machine.core_of(*b)).map(|(a, b)| machine.proximity(a, b))
        }
        _ => return false,
    };
    true
}

/// Returns processors from the end: the pin first.
fn shrink(machine: &mut MachineState, cores: usize, kept: &mut PlacedSlice) {
    let count = |units: &[SliceUnit]| units.iter().map(|unit| unit.cpus.len()).sum::<usize>();
    while count(&kept.units) > cores {
        kept.reason = Some("it needs fewer processors".to_owned());
        let Some(last) = kept.units.last_mut() else { return };
        if let Some(cpu) = last.cpus.pop() {
            machine.release(cpu);
        }
        last.proximity = None;
        if last.cpus.is_empty() {
            kept.units.pop();
        }
    }
}

/// Adds processors near the slice. False, and nothing is added, if its machine is full.
fn grow(machine: &mut MachineState, demand: &Demand<'_>, kept: &mut PlacedSlice) -> bool {
    let count: usize = kept.units.iter().map(|unit| unit.cpus.len()).sum();
    if count >= demand.cores {
        return true;
    }
    if machine.free < demand.cores - count {
        return false;
    }
    kept.reason = Some("it needs more processors".to_owned());
    let has_pin = kept.units.last().is_some_and(|unit| unit.cpus.len() == 1);
    let is_paired = !has_pin || pair_up(machine, demand, &mut kept.units);
    is_paired && extend(machine, demand, &mut kept.units)
}

/// Moves a slice whose level has changed, if its pairs become better for the new level.
fn adapt(
    machine: &mut MachineState,
    demand: &Demand<'_>,
    kept: &mut PlacedSlice,
    before: TrafficLevel,
) {
    let old = score(machine, &kept.units, demand);
    release(machine, &kept.units);
    let Some(units) = place(machine, demand) else {
        let is_taken = take(machine, &kept.units);
        nearstate_model::invariant!(is_taken, "the slice's processors were just released");
        return;
    };
    if score(machine, &units, demand) < old {
        kept.units = units;
        kept.reason = Some(format!("its traffic changed from {before} to {}", demand.traffic));
        return;
    }
    release(machine, &units);
    let is_taken = take(machine, &kept.units);
    nearstate_model::invariant!(is_taken, "the slice's processors were just released");
}
