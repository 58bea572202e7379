//! Places one slice on one machine: k pairs, and one pin for an odd number (paper 5, Figure 6).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nearstate_model::invariant;

use super::candidate::{Best, UnitNeed, best_pair, best_pin, reason};
use super::machine::MachineState;
use super::request::{PlanOptions, TrafficLevel};
use super::{Assignment, SliceUnit};
use crate::cpu_set::CpuSet;
use crate::topology::{Proximity, Topology};

/// How good a placement is; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    /// The worst pair: the order of Figure 6 without the caches in between.
    worst: u8,
    /// Units of that kind or on further nodes.
    nodes: usize,
    /// Cores that other slices use a part of, if the traffic is not low.
    shared: usize,
    /// The sum of all classes.
    classes: u32,
}

impl Score {
    /// Whether no machine could be better for Figure 6.
    pub(super) const fn is_ideal(&self) -> bool {
        self.worst == 0 && self.nodes == 1 && self.shared == 0
    }
}

/// What a slice needs of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand<'a> {
    pub(super) cores: usize,
    pub(super) traffic: TrafficLevel,
    pub(super) options: &'a PlanOptions,
}

impl Demand<'_> {
    fn need<'a>(&self, own: &'a [usize], placed: usize) -> UnitNeed<'a> {
        UnitNeed {
            traffic: self.traffic,
            scheme: self.options.scheme,
            is_power_saving: self.options.is_power_saving,
            remaining: self.cores.saturating_sub(placed),
            own,
        }
    }
}

/// Places a slice on a machine and takes its processors. `None`, and nothing is taken, if it does
/// not fit.
pub(super) fn place(machine: &mut MachineState, demand: &Demand<'_>) -> Option<Vec<SliceUnit>> {
    let mut units = Vec::new();
    if extend(machine, demand, &mut units) { Some(units) } else { None }
}

/// Adds pairs and a pin until the slice has its number of processors. On false, nothing is taken.
pub(super) fn extend(
    machine: &mut MachineState,
    demand: &Demand<'_>,
    units: &mut Vec<SliceUnit>,
) -> bool {
    let before = units.len();
    let mut placed: usize = units.iter().map(|unit| unit.cpus.len()).sum();
    let mut own = cores_of(machine, units);
    while placed < demand.cores {
        let need = demand.need(&own, placed);
        let is_pair = demand.cores - placed > 1;
        let is_explained = demand.options.is_explained;
        let best = if is_pair {
            best_pair(machine, &need, is_explained)
        } else {
            best_pin(machine, &need)
        };
        let Some(unit) = unit(machine, &need, &best, is_explained) else {
            let taken: Vec<SliceUnit> = units.drain(before..).collect();
            release(machine, &taken);
            return false;
        };
        for cpu in &unit.cpus {
            machine.take(*cpu);
            own.extend(machine.core_of(*cpu));
        }
        placed += unit.cpus.len();
        units.push(unit);
    }
    true
}

fn unit(
    machine: &MachineState,
    need: &UnitNeed<'_>,
    best: &Best,
    is_explained: bool,
) -> Option<SliceUnit> {
    let chosen = best.first?;
    let (a, b) = chosen.cpus;
    Some(SliceUnit {
        cpus: if a == b { vec![a] } else { vec![a, b] },
        proximity: chosen.proximity,
        reason: if is_explained { reason(machine, need, best) } else { String::new() },
    })
}

/// Adds one processor to a slice with a single one: the two become a pair. False if none is free.
pub(super) fn pair_up(
    machine: &mut MachineState,
    demand: &Demand<'_>,
    units: &mut [SliceUnit],
) -> bool {
    let own = cores_of(machine, units);
    let Some(unit) = units.last_mut() else { return false };
    let [first] = unit.cpus.as_slice() else { return false };
    let first = *first;
    let need = demand.need(&own, demand.cores.saturating_sub(1));
    let Some(chosen) = best_pin(machine, &need).first else { return false };
    let second = chosen.cpus.0;
    let (Some(a), Some(b)) = (machine.core_of(first), machine.core_of(second)) else {
        invariant!("processors {first} and {second} are usable")
    };
    machine.take(second);
    unit.cpus = vec![first, second];
    unit.proximity = Some(machine.proximity(a, b));
    unit.reason = String::from("the single processor of the earlier plan got a second one");
    true
}

fn cores_of(machine: &MachineState, units: &[SliceUnit]) -> Vec<usize> {
    units.iter().flat_map(|unit| &unit.cpus).filter_map(|cpu| machine.core_of(*cpu)).collect()
}

/// Returns the processors of units.
pub(super) fn release(machine: &mut MachineState, units: &[SliceUnit]) {
    for cpu in units.iter().flat_map(|unit| &unit.cpus) {
        machine.release(*cpu);
    }
}

/// Takes the processors of units. False, and nothing is taken, if one is not free.
pub(super) fn take(machine: &mut MachineState, units: &[SliceUnit]) -> bool {
    let cpus = || units.iter().flat_map(|unit| &unit.cpus).copied();
    let distinct: CpuSet = cpus().collect();
    if distinct.len() != cpus().count() || !cpus().all(|cpu| machine.is_free(cpu)) {
        return false;
    }
    cpus().for_each(|cpu| machine.take(cpu));
    true
}

/// How good units are for a level of traffic. Their processors are taken.
pub(super) fn score(machine: &MachineState, units: &[SliceUnit], demand: &Demand<'_>) -> Score {
    let need = demand.need(&[], 0);
    let kind = |unit: &SliceUnit| match unit.proximity? {
        Proximity::Remote(_) => Some(2_u8),
        Proximity::Core => Some(u8::from(!need.prefers_threads())),
        Proximity::L2 | Proximity::L3 | Proximity::Node => {
            Some(u8::from(need.prefers_threads() && machine.has_hyper_threads))
        }
    };
    let own = cores_of(machine, units);
    let mut used: BTreeMap<usize, usize> = BTreeMap::new();
    for core in &own {
        *used.entry(*core).or_default() += 1;
    }
    let is_shared = |core: usize, used: usize| {
        let core = machine.core(core);
        core.threads > core.free.len() + used
    };
    let class = |unit: &SliceUnit| unit.proximity.and_then(|near| need.class(near)).unwrap_or(0);
    Score {
        worst: units.iter().filter_map(kind).max().unwrap_or(0),
        nodes: nodes_of(machine, &own).len(),
        shared: if need.prefers_threads() {
            0
        } else {
            used.iter().filter(|(core, used)| is_shared(**core, **used)).count()
        },
        classes: units.iter().map(|unit| u32::from(class(unit))).sum(),
    }
}

fn nodes_of(machine: &MachineState, cores: &[usize]) -> BTreeMap<u32, usize> {
    let mut nodes = BTreeMap::new();
    for core in cores {
        *nodes.entry(machine.node(machine.core(*core).node).number).or_default() += 1;
    }
    nodes
}

/// The assignment that units form.
pub(super) fn assignment(
    slice: &str,
    machine: (usize, &MachineState, &Topology),
    traffic: TrafficLevel,
    units: Vec<SliceUnit>,
) -> Assignment {
    let (index, state, topology) = machine;
    let nodes = nodes_of(state, &cores_of(state, &units));
    let home = nodes.iter().min_by_key(|(number, count)| (Reverse(**count), **number));
    Assignment {
        slice: slice.to_owned(),
        machine: index,
        traffic,
        units,
        memory_node: home.and_then(|(node, _)| topology.memory_near(*node)),
        nodes: nodes.into_keys().collect(),
    }
}
