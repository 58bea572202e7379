//! Places one slice on one machine: k pairs, and one pin for an odd number (paper 5, Figure 6).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nearstate_model::invariant;

use super::candidate::{Best, UnitNeed, best_pair, best_pin, cache_class, reason};
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
    /// Nodes with processors of the slice.
    nodes: usize,
    /// The distance of the nearest memory, for the worst of these nodes.
    memory: u32,
    /// In power-saving mode, cores that nothing else uses.
    woken: usize,
    /// Cores that other slices use a part of, if the traffic is not low.
    shared: usize,
    /// The sum of all classes, with the caches that pairs share.
    classes: u32,
}

impl Score {
    /// Whether no machine could be better for Figure 6.
    pub(super) const fn is_ideal(&self) -> bool {
        self.worst == 0 && self.nodes == 1 && self.memory == 0 && self.shared == 0
    }

    /// In which respect it is worse than a better one.
    pub(super) fn worse_than(&self, better: &Self) -> &'static str {
        match () {
            () if self.worst != better.worst => "with a pair of a worse kind",
            () if self.nodes != better.nodes => "on more nodes",
            () if self.memory != better.memory => "farther from memory",
            () if self.woken != better.woken => "which wakes more cores",
            () if self.shared != better.shared => "on cores that other slices use",
            () => "with pairs that share no cache",
        }
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
    fn need<'a>(&self, own: &'a [usize], placed: usize, node: Option<usize>) -> UnitNeed<'a> {
        UnitNeed {
            traffic: self.traffic,
            scheme: self.options.scheme,
            is_power_saving: self.options.is_power_saving,
            remaining: self.cores.saturating_sub(placed),
            own,
            node,
        }
    }
}

/// Places a slice on a machine and takes its processors. `None`, and nothing is taken, if it does
/// not fit.
///
/// A slice of several units is first placed unit by unit. The first pair is the best one of the
/// machine, but it may be on a node whose other pairs are worse than those of another one. If they
/// are, the slice is tried on each node alone, too.
///
/// Complexity: that of [`extend`], at most three times.
pub(super) fn place(machine: &mut MachineState, demand: &Demand<'_>) -> Option<Vec<SliceUnit>> {
    let mut units = Vec::new();
    let is_placed = extend(machine, demand, &mut units);
    if is_placed && (demand.cores <= 2 || has_equal_pairs(machine, demand, &units)) {
        return Some(units);
    }
    let mut best = is_placed.then(|| {
        let score = score(machine, &units, demand);
        release(machine, &units);
        // Nodes come first among equals.
        ((score, u32::MAX, 0, 0, 0, 0), units)
    });
    for node in 0..machine.nodes.len() {
        let mut units = Vec::new();
        let has_room = machine.node(node).free_cpus >= demand.cores;
        if !has_room || !extend_on(machine, demand, &mut units, Some(node)) {
            continue;
        }
        let order = order_of_node(machine, demand, &units, node);
        release(machine, &units);
        if best.as_ref().is_none_or(|(known, _)| order < *known) {
            best = Some((order, units));
        }
    }
    let (_, units) = best?;
    let is_taken = take(machine, &units);
    invariant!(is_taken, "the processors were just released");
    Some(units)
}

/// Whether all pairs are as wanted, on one node, and as near as the first one, which is the best.
fn has_equal_pairs(machine: &MachineState, demand: &Demand<'_>, units: &[SliceUnit]) -> bool {
    let mut caches = units.iter().filter_map(|unit| unit.proximity.map(cache_class));
    let first = caches.next();
    !demand.options.is_power_saving
        && caches.all(|class| Some(class) == first)
        && score(machine, units, demand).is_ideal()
}

/// The order of nodes that hold a slice: the quality of its pairs, the network interface, what the
/// kernel and other slices use, the fullest one.
fn order_of_node(
    machine: &MachineState,
    demand: &Demand<'_>,
    units: &[SliceUnit],
    index: usize,
) -> (Score, u32, u8, usize, usize, usize) {
    let node = machine.node(index);
    let used = uses(&cores_of(machine, units));
    let rank = used.keys().map(|core| machine.core(*core).rank).max().unwrap_or(0);
    let shared = shared(machine, &used);
    (score(machine, units, demand), node.nic_distance, rank, shared, node.free_cpus, index)
}

/// How many processors of each core a slice has.
fn uses(cores: &[usize]) -> BTreeMap<usize, usize> {
    let mut used = BTreeMap::new();
    for core in cores {
        *used.entry(*core).or_default() += 1;
    }
    used
}

/// Cores of a slice that others use a part of.
fn shared(machine: &MachineState, used: &BTreeMap<usize, usize>) -> usize {
    let is_shared = |(core, used): &(&usize, &usize)| {
        let core = machine.core(**core);
        core.threads > core.free.len() + **used
    };
    used.iter().filter(is_shared).count()
}

/// Adds pairs and a pin until the slice has its number of processors. On false, nothing is taken.
pub(super) fn extend(
    machine: &mut MachineState,
    demand: &Demand<'_>,
    units: &mut Vec<SliceUnit>,
) -> bool {
    extend_on(machine, demand, units, None)
}

/// [`extend`] with processors of one node, or of all.
fn extend_on(
    machine: &mut MachineState,
    demand: &Demand<'_>,
    units: &mut Vec<SliceUnit>,
    node: Option<usize>,
) -> bool {
    let before = units.len();
    let mut placed: usize = units.iter().map(|unit| unit.cpus.len()).sum();
    let mut own = cores_of(machine, units);
    while placed < demand.cores {
        let need = demand.need(&own, placed, node);
        let Some(unit) = next_unit(machine, &need, demand.options.is_explained) else {
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

/// The best pair, or the best single processor if no more is missing.
fn next_unit(machine: &MachineState, need: &UnitNeed<'_>, is_explained: bool) -> Option<SliceUnit> {
    let best_of = |need: &UnitNeed<'_>| {
        if need.remaining > 1 {
            best_pair(machine, need, is_explained)
        } else {
            best_pin(machine, need)
        }
    };
    let mut best = best_of(need);
    let chosen = best.first?;
    let (a, b) = chosen.cpus;
    let reason = if is_explained {
        // The next best choice may be on another node than the one that is looked at.
        let anywhere = best_of(&UnitNeed { node: None, ..*need });
        let mut others = [anywhere.first, anywhere.second].into_iter().flatten();
        best = Best { first: Some(chosen), second: others.find(|other| other.cpus != chosen.cpus) };
        reason(machine, need, &best)
    } else {
        String::new()
    };
    let cpus = if a == b { vec![a] } else { vec![a, b] };
    Some(SliceUnit { cpus, proximity: chosen.proximity, reason })
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
    let need = demand.need(&own, demand.cores.saturating_sub(1), None);
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
    let need = demand.need(&[], 0, None);
    let kind = |unit: &SliceUnit| match unit.proximity? {
        Proximity::Remote(_) => Some(2_u8),
        Proximity::Core => Some(u8::from(!need.prefers_threads())),
        Proximity::L2 | Proximity::L3 | Proximity::Node => {
            Some(u8::from(need.prefers_threads() && machine.has_hyper_threads))
        }
    };
    let own = cores_of(machine, units);
    let used = uses(&own);
    let class = |near: Proximity| 4 * need.class(near).unwrap_or(0) + cache_class(near);
    let is_woken = |(core, used): &(&usize, &usize)| {
        let core = machine.core(**core);
        core.usable == core.free.len() + **used && !core.is_busy
    };
    let memory = own.iter().map(|core| machine.node(machine.core(*core).node).memory_distance);
    Score {
        worst: units.iter().filter_map(kind).max().unwrap_or(0),
        nodes: nodes_of(machine, &own).len(),
        memory: memory.max().unwrap_or(0),
        woken: if need.is_power_saving { used.iter().filter(is_woken).count() } else { 0 },
        shared: if need.prefers_threads() { 0 } else { shared(machine, &used) },
        classes: units.iter().filter_map(|unit| Some(u32::from(class(unit.proximity?)))).sum(),
    }
}

fn nodes_of(machine: &MachineState, cores: &[usize]) -> BTreeMap<u32, usize> {
    let mut nodes = BTreeMap::new();
    for core in cores {
        *nodes.entry(machine.node(machine.core(*core).node).number).or_default() += 1;
    }
    nodes
}

/// The assignment that units form. `why`: why this machine, if reasons are given.
pub(super) fn assignment(
    slice: &str,
    machine: (usize, &MachineState, &Topology),
    traffic: TrafficLevel,
    units: Vec<SliceUnit>,
    why: Option<&str>,
) -> Assignment {
    let (index, state, topology) = machine;
    let nodes = nodes_of(state, &cores_of(state, &units));
    let home = nodes.iter().min_by_key(|(number, count)| (Reverse(**count), **number));
    let home = home.map(|(node, _)| *node);
    let memory_node = home.and_then(|node| topology.memory_near(node));
    let reason = why.map(|why| format!("{why}; {}", why_memory(topology, home, memory_node)));
    Assignment {
        slice: slice.to_owned(),
        machine: index,
        traffic,
        units,
        memory_node,
        nodes: nodes.into_keys().collect(),
        reason: reason.unwrap_or_default(),
    }
}

/// Why a memory node was chosen for a slice at node `home`, and which one is the next best.
fn why_memory(topology: &Topology, home: Option<u32>, memory: Option<u32>) -> String {
    let (Some(home), Some(memory)) = (home, memory) else {
        return "no node has memory that is allowed".to_owned();
    };
    let distance = |node: u32| topology.distance(home, node).unwrap_or(u32::MAX);
    let usable = topology.nodes().iter().filter(|node| node.has_memory() && node.is_allowed);
    let others = usable.filter(|node| node.number != memory);
    let next = others.min_by_key(|node| (distance(node.number), node.number));
    let next = next.map_or("no other node has memory".to_owned(), |node| {
        format!("next best: node {} at distance {}", node.number, distance(node.number))
    });
    let own = distance(memory);
    format!("memory node {memory}: distance {own} from most of its processors, {next}")
}
