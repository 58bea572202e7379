//! Pairs and single processors that could be chosen, their order, and the reasons for the choice.

use std::fmt::Write as _;

use super::machine::{CoreState, Group, MachineState};
use super::request::{Scheme, TrafficLevel};
use crate::topology::Proximity;

/// What a unit of a slice needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitNeed<'a> {
    pub(super) traffic: TrafficLevel,
    pub(super) scheme: Scheme,
    pub(super) is_power_saving: bool,
    /// Processors of the slice that are not placed yet, these included.
    pub(super) remaining: usize,
    /// The cores that the slice has already.
    pub(super) own: &'a [usize],
}

impl UnitNeed<'_> {
    /// Whether hyper-threads of a core come first.
    pub(super) fn prefers_threads(&self) -> bool {
        self.is_power_saving || self.traffic == TrafficLevel::Low
    }

    /// The order of the pairs in Figure 6 of paper 5, with caches in between. `None` if the scheme
    /// excludes it.
    pub(super) fn class(&self, proximity: Proximity) -> Option<u8> {
        let threads_first = self.prefers_threads();
        let class = match (proximity, threads_first) {
            (Proximity::Core, true) | (Proximity::L2, false) => 0,
            (Proximity::L2, true) | (Proximity::L3, false) => 1,
            (Proximity::L3, true) | (Proximity::Node, false) => 2,
            (Proximity::Node, true) | (Proximity::Core, false) => 3,
            (Proximity::Remote(_), _) => 4,
        };
        let is_included = match self.scheme {
            Scheme::Adaptive => true,
            Scheme::HyperThread => proximity == Proximity::Core,
            Scheme::Collocated => {
                matches!(proximity, Proximity::L2 | Proximity::L3 | Proximity::Node)
            }
            Scheme::NonCollocated => matches!(proximity, Proximity::Remote(_)),
        };
        is_included.then_some(class)
    }
}

/// The order of candidates: the least is chosen. Fields count in the order of their declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The preference of the level of traffic.
    class: u8,
    /// The distance of a pair on two nodes.
    pair_distance: u32,
    /// In power-saving mode, physical cores and packages that would wake up.
    woken: (u8, u8),
    /// How far the slice's other cores are: node, third-level cache, second-level cache.
    own_distance: (u32, bool, bool),
    /// Whether the node has room for the rest of the slice: on whole cores, at all, not.
    room: u8,
    /// The distance to the network interface.
    nic_distance: u32,
    /// Isolated, usual, for housekeeping.
    rank: u8,
    /// Cores that another program uses a part of.
    shared_cores: u8,
    /// Free processors of the nodes: the fullest node that has room.
    free_cpus: usize,
    /// Free cores of the group: the fullest group that has room.
    free_cores: usize,
    cores: (usize, usize),
}

/// What could be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) key: Key,
    /// Two processors; the same one twice for a single one.
    pub(super) cpus: (u32, u32),
    pub(super) proximity: Option<Proximity>,
}

/// The best candidate and the next best one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Best {
    pub(super) first: Option<Candidate>,
    pub(super) second: Option<Candidate>,
}

impl Best {
    fn offer(&mut self, candidate: Candidate) {
        let is_same =
            |known: Option<Candidate>| known.is_some_and(|known| known.cpus == candidate.cpus);
        if is_same(self.first) || is_same(self.second) {
            return;
        }
        if self.first.is_none_or(|known| candidate.key < known.key) {
            self.second = self.first;
            self.first = Some(candidate);
        } else if self.second.is_none_or(|known| candidate.key < known.key) {
            self.second = Some(candidate);
        }
    }
}

/// The best pair.
pub(super) fn best_pair(machine: &MachineState, need: &UnitNeed<'_>, is_explained: bool) -> Best {
    let mut best = Best::default();
    let levels: [Proximity; 4] = if need.prefers_threads() {
        [Proximity::Core, Proximity::L2, Proximity::L3, Proximity::Node]
    } else {
        [Proximity::L2, Proximity::L3, Proximity::Node, Proximity::Core]
    };
    for level in levels.into_iter().chain([Proximity::Remote(0)]) {
        if best.first.is_some() && (!is_explained || best.second.is_some()) {
            break;
        }
        if need.class(level).is_none() {
            continue;
        }
        match level {
            Proximity::Core => same_core(machine, need, &mut best),
            Proximity::L2 => in_groups(machine, need, 0, &mut best),
            Proximity::L3 => in_groups(machine, need, 1, &mut best),
            Proximity::Node => in_groups(machine, need, 2, &mut best),
            Proximity::Remote(_) => on_two_nodes(machine, need, &mut best),
        }
    }
    best
}

fn same_core(machine: &MachineState, need: &UnitNeed<'_>, best: &mut Best) {
    for (index, core) in machine.cores.iter().enumerate() {
        if let [first, second, ..] = core.free.as_slice() {
            let group = Group { cores: Vec::new(), node: core.node };
            let cpus = (*first, *second);
            best.offer(candidate(machine, need, (index, index), cpus, &group));
        }
    }
}

/// For each group its two best cores.
fn in_groups(machine: &MachineState, need: &UnitNeed<'_>, level: usize, best: &mut Best) {
    let groups = machine.groups.get(level).map_or(&[][..], Vec::as_slice);
    for group in groups {
        let mut chosen = [None; 2];
        let [first, second] = &mut chosen;
        for index in group.cores.iter().copied() {
            if machine.core(index).free.is_empty() {
                continue;
            }
            let order = core_order(machine, need, index);
            if first.is_none_or(|(known, _)| order < known) {
                *second = *first;
                *first = Some((order, index));
            } else if second.is_none_or(|(known, _)| order < known) {
                *second = Some((order, index));
            }
        }
        if let [Some((_, a)), Some((_, b))] = chosen {
            offer_two_cores(machine, need, (a, b), group, best);
        }
    }
}

fn on_two_nodes(machine: &MachineState, need: &UnitNeed<'_>, best: &mut Best) {
    let best_core = |cores: &[usize]| {
        let free = cores.iter().copied().filter(|index| !machine.core(*index).free.is_empty());
        free.min_by_key(|index| core_order(machine, need, *index))
    };
    let per_node: Vec<Option<usize>> =
        machine.nodes.iter().map(|node| best_core(&node.cores)).collect();
    for (index, a) in per_node.iter().enumerate() {
        for b in per_node.iter().skip(index + 1) {
            if let (Some(a), Some(b)) = (*a, *b) {
                let group = Group { cores: Vec::new(), node: machine.core(a).node };
                offer_two_cores(machine, need, (a, b), &group, best);
            }
        }
    }
}

/// The order of cores of one group: near the slice's own, unused, not for housekeeping.
fn core_order(
    machine: &MachineState,
    need: &UnitNeed<'_>,
    index: usize,
) -> impl Ord + Copy + use<> {
    let core = machine.core(index);
    (own_distance(machine, need, index), core.rank, is_shared(machine, index), index)
}

fn offer_two_cores(
    machine: &MachineState,
    need: &UnitNeed<'_>,
    (a, b): (usize, usize),
    group: &Group,
    best: &mut Best,
) {
    let (a, b) = (a.min(b), a.max(b));
    let first = |index| machine.core(index).free.first().copied();
    if let (Some(first), Some(second)) = (first(a), first(b)) {
        best.offer(candidate(machine, need, (a, b), (first, second), group));
    }
}

fn candidate(
    machine: &MachineState,
    need: &UnitNeed<'_>,
    (a, b): (usize, usize),
    cpus: (u32, u32),
    group: &Group,
) -> Candidate {
    let proximity = machine.proximity(a, b);
    let (one, other) = (machine.core(a), machine.core(b));
    let (near, far) = (machine.node(one.node), machine.node(other.node));
    let pair_distance = match proximity {
        Proximity::Remote(distance) => distance,
        Proximity::Core | Proximity::L2 | Proximity::L3 | Proximity::Node => 0,
    };
    let shared = |index| u8::from(is_shared(machine, index));
    let shared_cores = if a == b { shared(a) } else { shared(a) + shared(b) };
    let node = machine.node(group.node);
    let key = Key {
        class: need.class(proximity).unwrap_or(u8::MAX),
        pair_distance,
        woken: woken(machine, need, &[a, b]),
        own_distance: own_distance(machine, need, a).max(own_distance(machine, need, b)),
        room: room(need, node.free_cores, near.free_cpus.max(far.free_cpus)),
        nic_distance: near.nic_distance.max(far.nic_distance),
        rank: one.rank.max(other.rank),
        shared_cores,
        free_cpus: near.free_cpus.max(far.free_cpus),
        free_cores: group.cores.iter().filter(|core| machine.core(**core).is_whole()).count(),
        cores: (a, b),
    };
    Candidate { key, cpus, proximity: Some(proximity) }
}

/// The best single processor: collocated with the slice's pairs first.
pub(super) fn best_pin(machine: &MachineState, need: &UnitNeed<'_>) -> Best {
    let mut best = Best::default();
    for (index, core) in machine.cores.iter().enumerate() {
        let Some(cpu) = core.free.first().copied() else { continue };
        let node = machine.node(core.node);
        let own = own_distance(machine, need, index);
        let is_collocated = need.own.iter().any(|own| machine.core(*own).node == core.node);
        let key = Key {
            class: u8::from(!need.own.is_empty() && !is_collocated),
            pair_distance: 0,
            woken: woken(machine, need, &[index]),
            own_distance: own,
            room: 0,
            nic_distance: node.nic_distance,
            rank: core.rank,
            shared_cores: u8::from(is_shared(machine, index)),
            free_cpus: node.free_cpus,
            free_cores: 0,
            cores: (index, index),
        };
        best.offer(Candidate { key, cpus: (cpu, cpu), proximity: None });
    }
    best
}

/// Whether a part of the core is in use, or unusable.
fn is_shared(machine: &MachineState, index: usize) -> bool {
    !machine.core(index).is_whole()
}

/// Cores and packages that are idle now and would not be.
fn woken(machine: &MachineState, need: &UnitNeed<'_>, cores: &[usize]) -> (u8, u8) {
    if !need.is_power_saving {
        return (0, 0);
    }
    let idle = |index: &&usize| machine.core(**index).is_whole();
    let mut woken = cores.to_vec();
    woken.dedup();
    let count = woken.iter().filter(idle).count();
    let has_idle_package = woken.iter().any(|index| {
        let package = machine.core(*index).package;
        machine.cores.iter().filter(|core| core.package == package).all(CoreState::is_whole)
    });
    (u8::try_from(count).unwrap_or(u8::MAX), u8::from(has_idle_package))
}

/// The distance to the farthest node, and to the nearest caches, of the slice's own cores.
fn own_distance(machine: &MachineState, need: &UnitNeed<'_>, index: usize) -> (u32, bool, bool) {
    if need.own.is_empty() {
        return (0, false, false);
    }
    let core = machine.core(index);
    let to = |own: &usize| machine.distance(core.node, machine.core(*own).node);
    let farthest = need.own.iter().map(to).max().unwrap_or(0);
    // Two physical cores are wanted, so the slice's own core is not near.
    let counts = |own: &usize| need.prefers_threads() || *own != index;
    let is_near = |key: fn(&CoreState) -> u32| {
        let mut own = need.own.iter().filter(|own| counts(own));
        own.any(|own| key(machine.core(*own)) == key(core))
    };
    (farthest, !is_near(|core| core.l3), !is_near(|core| core.l2))
}

fn room(need: &UnitNeed<'_>, free_cores: usize, free_cpus: usize) -> u8 {
    let wanted = need.remaining;
    if !need.prefers_threads() && free_cores >= wanted {
        0
    } else if free_cpus >= wanted {
        u8::from(!need.prefers_threads())
    } else {
        2
    }
}

/// Why a candidate was chosen: what it is, and how the next best one is worse.
pub(super) fn reason(machine: &MachineState, need: &UnitNeed<'_>, best: &Best) -> String {
    let Some(chosen) = best.first else { return String::new() };
    let mut text = match chosen.proximity {
        None if need.own.is_empty() => "one processor".to_owned(),
        None if chosen.key.class == 0 => "one processor on the node of the pairs".to_owned(),
        None => "one processor; the nodes of the pairs are full".to_owned(),
        Some(proximity) => {
            let rule = match () {
                () if need.scheme != Scheme::Adaptive => "scheme",
                () if need.is_power_saving => "fewest cores",
                () if need.prefers_threads() => "low traffic prefers hyper-threads",
                () => "two physical cores carry more",
            };
            format!("{proximity} ({rule})")
        }
    };
    // Writing to a string does not fail.
    let _ = match best.second {
        None => write!(text, "; there is no other choice"),
        Some(next) => {
            let cpus = if next.cpus.0 == next.cpus.1 {
                next.cpus.0.to_string()
            } else {
                format!("{},{}", next.cpus.0, next.cpus.1)
            };
            write!(text, "; next best: {cpus}, {}", worse(machine, &chosen, &next))
        }
    };
    text
}

/// In which respect a candidate is worse.
fn worse(machine: &MachineState, chosen: &Candidate, next: &Candidate) -> String {
    let (a, b) = (&chosen.key, &next.key);
    let node =
        |candidate: &Candidate| machine.node(machine.core(candidate.key.cores.0).node).number;
    match () {
        () if a.class != b.class => match next.proximity {
            Some(proximity) => proximity.to_string(),
            None => format!("on node {}, away from the pairs", node(next)),
        },
        () if a.pair_distance != b.pair_distance => {
            format!("distance {} instead of {}", b.pair_distance, a.pair_distance)
        }
        () if a.woken != b.woken => "which wakes more cores or sockets".to_owned(),
        () if a.own_distance != b.own_distance => {
            format!("on node {}, farther from the slice's other cores", node(next))
        }
        () if a.room != b.room => {
            format!("on node {}, which has no room for the whole slice", node(next))
        }
        () if a.nic_distance != b.nic_distance => {
            format!("on node {}, farther from the network interface", node(next))
        }
        () if a.rank != b.rank => "which the kernel uses more".to_owned(),
        () if a.shared_cores != b.shared_cores => {
            "which shares a core with another slice".to_owned()
        }
        () if a.free_cpus != b.free_cpus || a.free_cores != b.free_cores => {
            "equally near, on a node or cache with more free cores for larger slices".to_owned()
        }
        () => "equally good, with higher numbers".to_owned(),
    }
}
