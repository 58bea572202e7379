//! Pairs and single processors that could be chosen, their order, and the reasons for the choice.

use std::fmt::Write as _;

use nearstate_model::invariant;

use super::machine::{CoreState, Group, MachineState, NodeState};
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
    /// The only node that is looked at, by index.
    pub(super) node: Option<usize>,
}

impl UnitNeed<'_> {
    /// Whether hyper-threads of a core come first.
    pub(super) fn prefers_threads(&self) -> bool {
        self.is_power_saving || self.traffic == TrafficLevel::Low
    }

    /// The order of the pairs in Figure 6 of paper 5. `None` if the scheme excludes it.
    pub(super) fn class(&self, proximity: Proximity) -> Option<u8> {
        let class = match (proximity, self.prefers_threads()) {
            (Proximity::Core, true) | (Proximity::L2 | Proximity::L3 | Proximity::Node, false) => 0,
            (Proximity::Core, false) | (Proximity::L2 | Proximity::L3 | Proximity::Node, true) => 1,
            (Proximity::Remote(_), _) => 2,
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

    fn looks_at(&self, node: usize) -> bool {
        self.node.is_none_or(|only| only == node)
    }
}

/// The order of two cores of a node: by the nearest cache that they share.
pub(super) const fn cache_class(proximity: Proximity) -> u8 {
    match proximity {
        Proximity::Core | Proximity::L2 | Proximity::Remote(_) => 0,
        Proximity::L3 => 1,
        Proximity::Node => 2,
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
    /// How far the nodes of the slice's other cores are.
    own_distance: u32,
    /// How far the nearest memory is.
    memory_distance: u32,
    /// The nearest cache that a pair shares.
    cache_class: u8,
    /// Whether the slice's other cores have other caches: third-level, second-level.
    own_caches: (bool, bool),
    /// In power-saving mode, what a single processor leaves of its core: an idle core is better if
    /// others can use it, too, and one in use if nothing is left.
    spare: u8,
    /// Whether the node has room for the rest of the slice: on whole cores, at all, not.
    room: u8,
    /// The distance to the network interface.
    nic_distance: u32,
    /// Isolated, usual, for housekeeping.
    rank: u8,
    /// Cores of which another program uses a part, or the slice itself the other part.
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
    /// Whether worse classes need not be looked at.
    fn is_found(&self, is_explained: bool) -> bool {
        self.first.is_some() && (!is_explained || self.second.is_some())
    }

    /// Whether no pair of the class is nearer to the slice's other cores and to memory.
    fn is_nearest(&self, is_explained: bool, least_own_distance: u32) -> bool {
        let worst = if is_explained { self.second } else { self.first };
        worst.is_some_and(|pair| {
            pair.key.own_distance == least_own_distance && pair.key.memory_distance == 0
        })
    }

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

/// Cores that differ in nothing but their numbers, of which this many are looked at: enough for the
/// two best pairs.
const ALIKE_MAX: usize = 3;

/// The best pair, and the next best one if an explanation is wanted.
///
/// Complexity: linear in the number of cores, with a factor for the kinds of cores of a group.
pub(super) fn best_pair(machine: &MachineState, need: &UnitNeed<'_>, is_explained: bool) -> Best {
    let mut best = Best::default();
    let threads_first = need.prefers_threads();
    if threads_first && need.class(Proximity::Core).is_some() {
        same_core(machine, need, &mut best);
    }
    if !best.is_found(is_explained) && need.class(Proximity::Node).is_some() {
        let least = least_own_distance(machine, need);
        for level in &machine.groups {
            in_groups(machine, need, level, &mut best);
            // Farther caches only.
            if !need.is_power_saving && best.is_nearest(is_explained, least) {
                return best;
            }
        }
    }
    if !best.is_found(is_explained) && !threads_first && need.class(Proximity::Core).is_some() {
        same_core(machine, need, &mut best);
    }
    let is_any_node = need.node.is_none();
    if !best.is_found(is_explained) && is_any_node && need.class(Proximity::Remote(0)).is_some() {
        on_two_nodes(machine, need, &mut best);
    }
    best
}

fn same_core(machine: &MachineState, need: &UnitNeed<'_>, best: &mut Best) {
    for (index, core) in machine.cores.iter().enumerate() {
        if let [first, second, ..] = core.free.as_slice()
            && need.looks_at(core.node)
        {
            best.offer(candidate(machine, need, (index, index), (*first, *second), 0));
        }
    }
}

/// The pairs of each group, but of cores that are alike only the first ones.
fn in_groups(machine: &MachineState, need: &UnitNeed<'_>, groups: &[Group], best: &mut Best) {
    for group in groups.iter().filter(|group| need.looks_at(group.node)) {
        let chosen = first_alike(machine, need, &group.cores);
        let free_cores = group.free_cores(machine);
        for (at, a) in chosen.iter().enumerate() {
            for b in chosen.iter().skip(at + 1) {
                offer_two_cores(machine, need, (*a, *b), free_cores, best);
            }
        }
    }
}

fn on_two_nodes(machine: &MachineState, need: &UnitNeed<'_>, best: &mut Best) {
    let cores = |node: &NodeState| first_alike(machine, need, &node.cores);
    let per_node: Vec<Vec<usize>> = machine.nodes.iter().map(cores).collect();
    for (at, near) in per_node.iter().enumerate() {
        for far in per_node.iter().skip(at + 1) {
            for (a, b) in near.iter().flat_map(|a| far.iter().map(move |b| (*a, *b))) {
                offer_two_cores(machine, need, (a, b), 0, best);
            }
        }
    }
}

/// Of the cores with a free processor, the first ones of each kind.
fn first_alike(machine: &MachineState, need: &UnitNeed<'_>, cores: &[usize]) -> Vec<usize> {
    let mut kinds = Vec::new();
    let mut chosen = Vec::new();
    for index in cores.iter().copied() {
        let core = machine.core(index);
        if core.free.is_empty() {
            continue;
        }
        let own = (own_distance(machine, need, index), own_caches(machine, need, index));
        let kind = (own, core.rank, sharing(machine, need, index), core.is_idle());
        let at = kinds.iter().position(|(known, _)| *known == kind).unwrap_or_else(|| {
            kinds.push((kind, 0));
            kinds.len() - 1
        });
        if let Some((_, count)) = kinds.get_mut(at)
            && *count < ALIKE_MAX
        {
            *count += 1;
            chosen.push(index);
        }
    }
    chosen
}

fn offer_two_cores(
    machine: &MachineState,
    need: &UnitNeed<'_>,
    (a, b): (usize, usize),
    free_cores: usize,
    best: &mut Best,
) {
    let (a, b) = (a.min(b), a.max(b));
    let first = |index| machine.core(index).free.first().copied();
    if let (Some(first), Some(second)) = (first(a), first(b)) {
        best.offer(candidate(machine, need, (a, b), (first, second), free_cores));
    }
}

fn candidate(
    machine: &MachineState,
    need: &UnitNeed<'_>,
    (a, b): (usize, usize),
    cpus: (u32, u32),
    free_cores: usize,
) -> Candidate {
    let proximity = machine.proximity(a, b);
    let (one, other) = (machine.core(a), machine.core(b));
    let (near, far) = (machine.node(one.node), machine.node(other.node));
    let pair_distance = match proximity {
        Proximity::Remote(distance) => distance,
        Proximity::Core | Proximity::L2 | Proximity::L3 | Proximity::Node => 0,
    };
    let shared = |index| sharing(machine, need, index);
    let shared_cores = if a == b { shared(a) } else { shared(a) + shared(b) };
    let own_distance = |index| own_distance(machine, need, index);
    let own_caches = |index| own_caches(machine, need, index);
    let key = Key {
        class: need.class(proximity).unwrap_or(u8::MAX),
        pair_distance,
        woken: woken(machine, need, &[a, b]),
        own_distance: own_distance(a).max(own_distance(b)),
        memory_distance: near.memory_distance.max(far.memory_distance),
        cache_class: cache_class(proximity),
        own_caches: own_caches(a).max(own_caches(b)),
        spare: 0,
        room: room(need, near).min(room(need, far)),
        nic_distance: near.nic_distance.max(far.nic_distance),
        rank: one.rank.max(other.rank),
        shared_cores,
        free_cpus: near.free_cpus.max(far.free_cpus),
        free_cores,
        cores: (a, b),
    };
    Candidate { key, cpus, proximity: Some(proximity) }
}

/// The best single processor: collocated with the slice's pairs first.
pub(super) fn best_pin(machine: &MachineState, need: &UnitNeed<'_>) -> Best {
    let mut best = Best::default();
    for (index, core) in machine.cores.iter().enumerate() {
        let Some(cpu) = core.free.first().copied() else { continue };
        if !need.looks_at(core.node) {
            continue;
        }
        let node = machine.node(core.node);
        let is_collocated = need.own.iter().any(|own| machine.core(*own).node == core.node);
        let key = Key {
            class: u8::from(!need.own.is_empty() && !is_collocated),
            pair_distance: 0,
            woken: woken(machine, need, &[index]),
            own_distance: own_distance(machine, need, index),
            memory_distance: node.memory_distance,
            cache_class: 0,
            own_caches: own_caches(machine, need, index),
            spare: spare(need, core),
            room: 0,
            nic_distance: node.nic_distance,
            rank: core.rank,
            shared_cores: sharing(machine, need, index),
            free_cpus: node.free_cpus,
            free_cores: 0,
            cores: (index, index),
        };
        best.offer(Candidate { key, cpus: (cpu, cpu), proximity: None });
    }
    best
}

/// 1: another program may use a part of the core. 2: the slice itself does, and wants two cores.
fn sharing(machine: &MachineState, need: &UnitNeed<'_>, index: usize) -> u8 {
    if !need.prefers_threads() && need.own.contains(&index) {
        2
    } else {
        u8::from(!machine.core(index).is_whole())
    }
}

/// Cores and packages that are idle now and would not be.
fn woken(machine: &MachineState, need: &UnitNeed<'_>, cores: &[usize]) -> (u8, u8) {
    if !need.is_power_saving {
        return (0, 0);
    }
    let idle = |index: &&usize| machine.core(**index).is_idle();
    let mut woken = cores.to_vec();
    woken.dedup();
    let count = woken.iter().filter(idle).count();
    let has_idle_package = woken.iter().any(|index| {
        let package = machine.core(*index).package;
        machine.cores.iter().filter(|core| core.package == package).all(CoreState::is_idle)
    });
    (u8::try_from(count).unwrap_or(u8::MAX), u8::from(has_idle_package))
}

fn spare(need: &UnitNeed<'_>, core: &CoreState) -> u8 {
    let left = u8::try_from(core.free.len()).unwrap_or(u8::MAX);
    match (need.is_power_saving, core.is_idle()) {
        (false, _) => 0,
        (true, true) => u8::MAX - left,
        (true, false) => left,
    }
}

/// The distance to the farthest node of the slice's own cores.
fn own_distance(machine: &MachineState, need: &UnitNeed<'_>, index: usize) -> u32 {
    distance_to_own(machine, need, machine.core(index).node)
}

fn distance_to_own(machine: &MachineState, need: &UnitNeed<'_>, node: usize) -> u32 {
    let to = |own: &usize| machine.distance(node, machine.core(*own).node);
    need.own.iter().map(to).max().unwrap_or(0)
}

/// That of the nearest node, whether it has free processors or not.
fn least_own_distance(machine: &MachineState, need: &UnitNeed<'_>) -> u32 {
    let of = |node| distance_to_own(machine, need, node);
    (0..machine.nodes.len()).map(of).min().unwrap_or(0)
}

/// Whether no core of the slice shares the third-level cache, and the second-level cache.
fn own_caches(machine: &MachineState, need: &UnitNeed<'_>, index: usize) -> (bool, bool) {
    if need.own.is_empty() {
        return (false, false);
    }
    let core = machine.core(index);
    // Two physical cores are wanted, so the slice's own core is not near.
    let counts = |own: &usize| need.prefers_threads() || *own != index;
    let is_near = |key: fn(&CoreState) -> u32| {
        let mut own = need.own.iter().filter(|own| counts(own));
        own.any(|own| key(machine.core(*own)) == key(core))
    };
    (!is_near(|core| core.l3), !is_near(|core| core.l2))
}

/// 0: the node has room for the rest of the slice in pairs of the preferred kind. 1: it has room.
/// 2: it has none.
fn room(need: &UnitNeed<'_>, node: &NodeState) -> u8 {
    let wanted = need.remaining;
    let has_pairs = if need.prefers_threads() {
        node.free_pairs >= wanted / 2
    } else {
        node.free_cores >= wanted
    };
    match (node.free_cpus >= wanted, has_pairs) {
        (true, true) => 0,
        (true, false) => 1,
        (false, _) => 2,
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
    let farther = |from: &str| format!("on node {}, farther from {from}", node(next));
    match () {
        () if b < a => {
            format!(
                "better alone, but with it the rest of the slice is worse (node {})",
                node(next)
            )
        }
        () if a.class != b.class => match next.proximity {
            Some(proximity) => proximity.to_string(),
            None => format!("on node {}, away from the pairs", node(next)),
        },
        () if a.pair_distance != b.pair_distance => {
            format!("distance {} instead of {}", b.pair_distance, a.pair_distance)
        }
        () if a.woken != b.woken => "which wakes more cores or sockets".to_owned(),
        () if a.own_distance != b.own_distance => farther("the slice's other cores"),
        () if a.memory_distance != b.memory_distance => farther("memory"),
        () if a.cache_class != b.cache_class => match next.proximity {
            Some(proximity) => proximity.to_string(),
            None => invariant!("a single processor has no class of caches"),
        },
        () if a.own_caches != b.own_caches => {
            "which shares no cache with the slice's other cores".to_owned()
        }
        () if a.spare != b.spare => "which leaves less for other slices' processors".to_owned(),
        () if a.room != b.room => {
            format!("on node {}, which has no room for the whole slice", node(next))
        }
        () if a.nic_distance != b.nic_distance => farther("the network interface"),
        () if a.rank != b.rank => "which the kernel uses more".to_owned(),
        () if a.shared_cores != b.shared_cores => {
            "which shares a core with another slice, or with this one".to_owned()
        }
        () if a.free_cpus != b.free_cpus || a.free_cores != b.free_cores => {
            "equally near, on a node or cache with more free cores for larger slices".to_owned()
        }
        () => "equally good, with higher numbers".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cores of three nodes: free and used processors, node, caches, rank.
    fn machine() -> impl Strategy<Value = MachineState> {
        let core = (0..4_usize, 0..2_usize, 0..3_usize, 0..2_u32, 0..2_u32, 0..2_u8);
        proptest::collection::vec(core, 1..12).prop_map(|cores| {
            let mut next = 0;
            let core = |(free, used, node, l3, l2, rank): (usize, usize, usize, u32, u32, u8)| {
                let id = u32::try_from(node).unwrap();
                let free: Vec<u32> = (next..).take(free).collect();
                next += 8;
                CoreState {
                    threads: free.len() + used,
                    usable: free.len() + used,
                    is_busy: false,
                    node,
                    package: id / 2,
                    l3: 2 * id + l3,
                    l2: 4 * id + 2 * l3 + l2,
                    rank,
                    free,
                }
            };
            let cores = cores.into_iter().map(core).collect();
            let distances = vec![vec![10, 12, 21], vec![12, 10, 21], vec![21, 21, 10]];
            MachineState::of_cores(cores, distances)
        })
    }

    /// Every pair that the scheme includes.
    fn all_pairs(machine: &MachineState, need: &UnitNeed<'_>) -> Vec<Candidate> {
        let mut all = Vec::new();
        for a in 0..machine.cores.len() {
            for b in a..machine.cores.len() {
                let near = machine.proximity(a, b);
                let level = usize::from(cache_class(near));
                let free_cores = match near {
                    Proximity::Core | Proximity::Remote(_) => 0,
                    Proximity::L2 | Proximity::L3 | Proximity::Node => machine.groups[level]
                        .iter()
                        .find(|group| group.cores.contains(&a) && group.cores.contains(&b))
                        .unwrap()
                        .free_cores(machine),
                };
                let (one, other) = (&machine.core(a).free, &machine.core(b).free);
                let other = other.get(usize::from(a == b));
                if let (Some(one), Some(other)) = (one.first(), other)
                    && need.class(near).is_some()
                {
                    all.push(candidate(machine, need, (a, b), (*one, *other), free_cores));
                }
            }
        }
        all.sort_by_key(|one| one.key);
        all
    }

    proptest! {
        #[test]
        fn the_best_and_the_next_best_pair_are_those_of_all_pairs(
            machine in machine(),
            traffic in prop::sample::select(vec![TrafficLevel::Low, TrafficLevel::High]),
            scheme in prop::sample::select(vec![
                Scheme::Adaptive, Scheme::HyperThread, Scheme::Collocated, Scheme::NonCollocated,
            ]),
            is_power_saving: bool,
            own in proptest::collection::vec(0..12_usize, 0..3),
        ) {
            let own: Vec<usize> =
                own.into_iter().filter(|core| *core < machine.cores.len()).collect();
            let need = UnitNeed {
                traffic, scheme, is_power_saving, remaining: 4, own: &own, node: None,
            };
            let all = all_pairs(&machine, &need);
            let best = best_pair(&machine, &need, true);
            let found = [best.first, best.second].map(|one| one.map(|one| one.cpus));
            let expected = [all.first(), all.get(1)].map(|one| one.map(|one| one.cpus));
            prop_assert_eq!(found, expected);
        }
    }
}
