//! Places many slices on a set of machines.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use nearstate_model::{Error, Result, invariant};

use super::machine::MachineState;
use super::place::{Demand, Score, assignment, place, release, score};
use super::replan::{PlacedSlice, Remains, keep, levels};
use super::request::{PlanOptions, SlicePin, SliceRequest, TrafficLevel, check_name};
use super::{Assignment, Move, RefusedSlice, SlicePlan, SliceUnit};
use crate::topology::Topology;

/// The most slices of a plan. It bounds the work for hostile input.
const SLICES_MAX: usize = 100_000;

/// The most moves of one slice that are tried to make room for another one, small slices first. It
/// bounds the time when all machines are full.
const SWAPS_MAX: usize = 256;

/// Plans slices on machines.
///
/// `pins` are placed first, as they are. Slices of `current`, an earlier plan, stay where they are
/// as far as possible. The others are placed in descending order of their size: each on the fullest
/// machine that has ideal pairs for it, otherwise on the machine with the best pairs.
///
/// # Errors
/// `BadArgument`: no machine, a name twice, pins in conflict, contradicting parameters.
/// A slice that does not fit is no error: [`SlicePlan::refused`].
pub fn plan(
    topologies: &[Topology],
    requests: &[SliceRequest],
    pins: &[SlicePin],
    current: &[Assignment],
    options: &PlanOptions,
) -> Result<SlicePlan> {
    check(topologies, requests, pins, options)?;
    let machines = topologies.iter().enumerate();
    let mut packer = Packer {
        machines: machines.map(|(index, one)| MachineState::new(index, one, options)).collect(),
        topologies,
        requests,
        levels: levels(requests, current, options),
        options,
        remains: Remains::default(),
        refused: BTreeMap::new(),
        why_machine: BTreeMap::new(),
        pinned: BTreeSet::new(),
    };
    packer.take_pins(pins)?;
    let kept = keep(&mut packer.machines, requests, &packer.levels, current, options);
    for (index, kept) in kept.kept {
        packer.remains.kept.entry(index).or_insert(kept);
    }
    let is_placed = |index: &usize| packer.remains.kept.contains_key(index);
    let homeless = kept.homeless.into_iter().filter(|(index, _)| !is_placed(index));
    packer.remains.homeless = homeless.collect();
    packer.place_rest();
    Ok(packer.finish(current))
}

fn check(
    topologies: &[Topology],
    requests: &[SliceRequest],
    pins: &[SlicePin],
    options: &PlanOptions,
) -> Result<()> {
    let bad = |detail: String| Err(Error::BadArgument { detail });
    if topologies.is_empty() {
        return bad("a plan needs at least one machine".to_owned());
    }
    if requests.len() + pins.len() > SLICES_MAX {
        return bad(format!("a plan has at most {SLICES_MAX} slices; divide it"));
    }
    options.thresholds.check()?;
    for names in [
        requests.iter().map(|request| request.name.as_str()).collect::<Vec<_>>(),
        pins.iter().map(|pin| pin.name.as_str()).collect(),
    ] {
        let mut seen = BTreeSet::new();
        for name in names {
            check_name(name).map_err(|detail| Error::BadArgument { detail })?;
            if !seen.insert(name) {
                return bad(format!("slice {name} is given twice; names are unique in a plan"));
            }
        }
    }
    Ok(())
}

/// A plan in the making.
struct Packer<'a> {
    machines: Vec<MachineState>,
    topologies: &'a [Topology],
    requests: &'a [SliceRequest],
    levels: Vec<TrafficLevel>,
    options: &'a PlanOptions,
    remains: Remains,
    refused: BTreeMap<usize, String>,
    /// Why a slice is on its machine, by the index of its request.
    why_machine: BTreeMap<usize, String>,
    /// Requests whose processors the caller has chosen.
    pinned: BTreeSet<usize>,
}

impl Packer<'_> {
    fn demand(&self, index: usize) -> Demand<'_> {
        let Some(request) = self.requests.get(index) else { invariant!("request {index} exists") };
        let Some(level) = self.levels.get(index) else { invariant!("level {index} exists") };
        Demand { cores: request.cores as usize, traffic: *level, options: self.options }
    }

    /// Takes the processors of pins. One with the name of a request places that slice.
    fn take_pins(&mut self, pins: &[SlicePin]) -> Result<()> {
        for pin in pins {
            let found = self.machines.get_mut(pin.machine).zip(self.topologies.get(pin.machine));
            let (machine, topology) = found.ok_or_else(|| Error::BadArgument {
                detail: format!("slice {} is pinned to a machine that is not given", pin.name),
            })?;
            machine.pin(&pin.name, &pin.cpus, topology)?;
            let request = self.requests.iter().position(|request| request.name == pin.name);
            let Some(index) = request else { continue };
            let wanted = self.requests.get(index).map_or(0, |request| request.cores as usize);
            if wanted != pin.cpus.len() {
                return Err(Error::BadArgument {
                    detail: format!(
                        "slice {} needs {wanted} processors and is pinned to {}: {}",
                        pin.name,
                        pin.cpus.len(),
                        pin.cpus
                    ),
                });
            }
            let cpus: Vec<u32> = pin.cpus.iter().collect();
            let unit = |cpus: &[u32]| SliceUnit {
                cpus: cpus.to_vec(),
                proximity: match cpus {
                    [a, b] => topology.proximity(*a, *b),
                    _ => None,
                },
                reason: "pinned by the caller".to_owned(),
            };
            let units = cpus.chunks(2).map(unit).collect();
            let kept = PlacedSlice {
                machine: pin.machine,
                units,
                reason: Some("pinned by the caller".to_owned()),
            };
            self.remains.kept.insert(index, kept);
            self.pinned.insert(index);
        }
        Ok(())
    }

    /// Places all other slices, large ones and heavy traffic first.
    fn place_rest(&mut self) {
        let mut waiting: Vec<usize> = (0..self.requests.len())
            .filter(|index| !self.remains.kept.contains_key(index))
            .collect();
        waiting.sort_by_key(|index| {
            let demand = self.demand(*index);
            (Reverse(demand.cores), Reverse(demand.traffic), *index)
        });
        for index in waiting {
            let reason = self.remains.homeless.remove(&index);
            let placed = self.place_best(index).or_else(|| self.make_room(index));
            match placed {
                Some((machine, units)) => {
                    let why = || format!("machine {machine}: another slice made room on it");
                    if self.options.is_explained {
                        self.why_machine.entry(index).or_insert_with(why);
                    }
                    self.remains.kept.insert(index, PlacedSlice { machine, units, reason });
                }
                None => {
                    self.refused.insert(index, self.why_refused(index));
                }
            }
        }
    }

    /// Places a slice on the best machine.
    fn place_best(&mut self, index: usize) -> Option<(usize, Vec<SliceUnit>)> {
        let demand = self.demand(index);
        let (cores, traffic, options) = (demand.cores, demand.traffic, self.options);
        let demand = Demand { cores, traffic, options };
        let mut order: Vec<(usize, usize)> = self
            .machines
            .iter()
            .enumerate()
            .filter(|(_, machine)| machine.free >= cores)
            .map(|(number, machine)| (machine.free, number))
            .collect();
        order.sort_unstable();
        let mut best: Option<(Score, usize, Vec<SliceUnit>)> = None;
        let mut next = None;
        for (_, number) in order {
            let Some(machine) = self.machines.get_mut(number) else { continue };
            let Some(units) = place(machine, &demand) else { continue };
            let score = score(machine, &units, &demand);
            release(machine, &units);
            if best.as_ref().is_none_or(|(known, _, _)| score < *known) {
                next = best.take().map(|(score, number, _)| (score, number));
                best = Some((score, number, units));
            } else if next.is_none_or(|(known, _)| score < known) {
                next = Some((score, number));
            }
            let is_found = |score: &Score| score.is_ideal();
            let is_explained = !self.options.is_explained || next.is_some();
            if is_explained && best.as_ref().is_some_and(|(score, _, _)| is_found(score)) {
                break;
            }
        }
        let (score, number, units) = best?;
        if self.options.is_explained {
            let why = self.why_machine((score, number), next);
            self.why_machine.insert(index, why);
        }
        let is_taken =
            self.machines.get_mut(number).is_some_and(|one| super::place::take(one, &units));
        invariant!(is_taken, "the processors were just released");
        Some((number, units))
    }

    /// Why a slice is on a machine, and how the next best machine is worse.
    fn why_machine(&self, chosen: (Score, usize), next: Option<(Score, usize)>) -> String {
        let (score, number) = chosen;
        let free = |number: usize| self.machines.get(number).map_or(0, |machine| machine.free);
        let quality = if score.is_ideal() { "all pairs as wanted" } else { "the best pairs" };
        let next = match next {
            None => "no other machine has room".to_owned(),
            Some((other, next)) if other == score => format!(
                "next best: machine {next}, as good, with {} free processors instead of {}",
                free(next),
                free(number)
            ),
            Some((other, next)) => {
                format!("next best: machine {next}, {}", other.worse_than(&score))
            }
        };
        format!("machine {number}: {quality}, {next}")
    }

    /// Moves one slice to another machine if that makes room: the smallest one that does.
    fn make_room(&mut self, index: usize) -> Option<(usize, Vec<SliceUnit>)> {
        let wanted = self.demand(index).cores;
        let mut movable: Vec<(usize, usize)> = self
            .remains
            .kept
            .iter()
            .filter(|(other, _)| !self.pinned.contains(other))
            .map(|(other, _)| (self.demand(*other).cores, *other))
            .filter(|(size, _)| *size < wanted)
            .collect();
        movable.sort_unstable();
        let mut tried = 0;
        for (size, other) in movable {
            let (home, units) = {
                let kept = self.remains.kept.get(&other)?;
                (kept.machine, kept.units.clone())
            };
            let has_room = self.machines.get(home).is_some_and(|one| one.free + size >= wanted);
            let has_other_home =
                |(number, one): (usize, &MachineState)| number != home && one.free >= size;
            if !has_room || !self.machines.iter().enumerate().any(has_other_home) {
                continue;
            }
            tried += 1;
            if tried > SWAPS_MAX {
                return None;
            }
            if let Some(placed) = self.swap(index, (other, home), &units) {
                return Some(placed);
            }
        }
        None
    }

    /// Places `index` where `other` was, and `other` on another machine; or changes nothing.
    fn swap(
        &mut self,
        index: usize,
        (other, home): (usize, usize),
        units: &[SliceUnit],
    ) -> Option<(usize, Vec<SliceUnit>)> {
        let (wanted, moved) = (self.demand(index), self.demand(other));
        let options = self.options;
        let wanted = Demand { cores: wanted.cores, traffic: wanted.traffic, options };
        let moved = Demand { cores: moved.cores, traffic: moved.traffic, options };
        release(self.machines.get_mut(home)?, units);
        if let Some(placed) = place(self.machines.get_mut(home)?, &wanted) {
            let others = self.machines.iter_mut().enumerate().filter(|(number, _)| *number != home);
            for (number, machine) in others {
                if let Some(new) = place(machine, &moved) {
                    let name = self.requests.get(index).map_or("", |request| &request.name);
                    let reason = Some(format!("it makes room for slice {name}"));
                    let kept = PlacedSlice { machine: number, units: new, reason };
                    self.remains.kept.insert(other, kept);
                    self.why_machine.insert(other, format!("machine {number}: it has room"));
                    return Some((home, placed));
                }
            }
            release(self.machines.get_mut(home)?, &placed);
        }
        let is_taken =
            self.machines.get_mut(home).is_some_and(|one| super::place::take(one, units));
        invariant!(is_taken, "the processors were just released");
        None
    }

    fn why_refused(&self, index: usize) -> String {
        let demand = self.demand(index);
        let most = self.machines.iter().max_by_key(|machine| (machine.free, &machine.origin));
        let (free, origin) = most.map_or((0, ""), |one| (one.free, one.origin.as_str()));
        if free < demand.cores {
            return format!(
                "it needs {} processors; {origin} has the most free ones, {free}; reduce it, free \
                 processors, or add a machine",
                demand.cores
            );
        }
        format!(
            "no machine has {} free processors in pairs of the scheme; choose another scheme",
            demand.cores
        )
    }

    fn finish(self, current: &[Assignment]) -> SlicePlan {
        let mut plan = SlicePlan::default();
        let before: BTreeMap<&str, &Assignment> =
            current.iter().map(|old| (old.slice.as_str(), old)).collect();
        for (index, request) in self.requests.iter().enumerate() {
            let slice = request.name.clone();
            let Some(kept) = self.remains.kept.get(&index) else {
                let reason = self.refused.get(&index).cloned();
                let Some(reason) = reason else { invariant!("{slice} is placed or refused") };
                plan.refused.push(RefusedSlice { slice, reason });
                continue;
            };
            let machines = self.machines.get(kept.machine).zip(self.topologies.get(kept.machine));
            let Some((machine, topology)) = machines else { invariant!("the machine exists") };
            let place = (kept.machine, machine, topology);
            let traffic = self.demand(index).traffic;
            let kept_why = format!("machine {}: as in the earlier plan, or pinned", kept.machine);
            let why = self.why_machine.get(&index).map_or(kept_why.as_str(), String::as_str);
            let why = self.options.is_explained.then_some(why);
            let new = assignment(&slice, place, traffic, kept.units.clone(), why);
            invariant!(
                new.cpus().len() == request.cores as usize,
                "slice {} has {} processors",
                slice,
                new.cpus().len()
            );
            if let Some(old) = before.get(slice.as_str()) {
                let (from, to) = ((old.machine, old.cpus()), (new.machine, new.cpus()));
                if from != to {
                    let reason = kept.reason.clone().unwrap_or_default();
                    plan.moves.push(Move { slice, from, to, reason });
                }
            }
            plan.assignments.push(new);
        }
        check_disjoint(&plan);
        plan
    }
}

/// No processor is given twice.
fn check_disjoint(plan: &SlicePlan) {
    let mut taken = BTreeSet::new();
    for one in &plan.assignments {
        for cpu in one.cpus().iter() {
            invariant!(
                taken.insert((one.machine, cpu)),
                "processor {cpu} of machine {} is given twice",
                one.machine
            );
        }
        for unit in &one.units {
            let is_single = unit.cpus.len() == 1;
            invariant!(
                is_single != unit.proximity.is_some(),
                "a pair, and only a pair, has a proximity"
            );
        }
    }
}
