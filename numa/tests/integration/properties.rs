//! Properties of every plan on random machines.

use std::collections::BTreeSet;

use nearstate_numa::{Assignment, PlanOptions, Proximity, SlicePlan, SliceRequest, Topology, plan};
use proptest::prelude::*;

use crate::machines::{Model, ModelCpu, topology};

/// A machine of a few nodes, cores and hyper-threads.
fn machine() -> impl Strategy<Value = Topology> {
    (1..4_u32, 1..6_u32, 1..4_u32, 1..3_u32, 1..3_u32).prop_map(
        |(nodes, cores, threads, per_l3, per_l2)| {
            let cpus = (0..nodes * cores * threads).map(|number| {
                let core = number % (nodes * cores);
                let node = core % nodes;
                let l2 = node * 100 + core / nodes / per_l2;
                let l3 = node * 100 + core / nodes / (per_l2 * per_l3);
                ModelCpu { number, package: node, node, core_id: core, core, l2, l3 }
            });
            let row =
                |own| (0..nodes).map(|to| if to == own { 10 } else { 20 + own + to }).collect();
            let nodes = (0..nodes).map(|own| (own, 1024, row(own))).collect();
            topology(&Model { cpus: cpus.collect(), nodes, ..Model::default() })
        },
    )
}

fn requests() -> impl Strategy<Value = Vec<SliceRequest>> {
    proptest::collection::vec((1..7_u32, 0..600_u32), 1..8).prop_map(|slices| {
        let text = |(index, (cores, mbps))| format!("s{index}:{cores}:{mbps}");
        slices.into_iter().enumerate().map(|one| text(one).parse().unwrap()).collect()
    })
}

/// The processors of a machine that a plan leaves free, by node.
fn free_by_node(machine: &Topology, plan: &SlicePlan, index: usize) -> Vec<usize> {
    let taken: BTreeSet<u32> = plan
        .assignments
        .iter()
        .filter(|one| one.machine == index)
        .flat_map(Assignment::cpus_in_order)
        .collect();
    let free = |node: &nearstate_numa::NumaNode| {
        node.cpus.iter().filter(|cpu| !taken.contains(cpu)).count()
    };
    machine.nodes().iter().map(free).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_processor_is_given_twice_and_every_request_is_answered(
        machines in proptest::collection::vec(machine(), 1..3),
        requests in requests(),
        is_power_saving: bool,
        reserved in proptest::collection::btree_set(0..12_u32, 0..4),
    ) {
        let reserved = reserved.into_iter().collect();
        let options = PlanOptions { is_power_saving, reserved, ..PlanOptions::default() };
        let made = plan(&machines, &requests, &[], &[], &options).unwrap();
        let mut taken = BTreeSet::new();
        for one in &made.assignments {
            let request = requests.iter().find(|request| request.name == one.slice).unwrap();
            prop_assert_eq!(one.cpus_in_order().len(), request.cores as usize);
            for cpu in one.cpus_in_order() {
                prop_assert!(taken.insert((one.machine, cpu)));
                prop_assert!(machines[one.machine].cpu(cpu).is_some());
                prop_assert!(!options.reserved.contains(cpu));
            }
            let pins = one.units.iter().filter(|unit| unit.cpus.len() == 1).count();
            prop_assert_eq!(pins, request.cores as usize % 2);
        }
        prop_assert_eq!(made.assignments.len() + made.refused.len(), requests.len());
        // A refused slice has more processors than any machine has left.
        for no in &made.refused {
            let request = requests.iter().find(|request| request.name == no.slice).unwrap();
            let says_how_many = no.reason.contains(&request.cores.to_string());
            prop_assert!(says_how_many, "{} is refused because {:?}", no.slice, no.reason);
            for (index, machine) in machines.iter().enumerate() {
                let own = made.assignments.iter().filter(|one| one.machine == index);
                let used: usize = own.map(|one| one.cpus_in_order().len()).sum();
                let usable = machine.allowed().difference(&options.reserved).len();
                prop_assert!(usable - used < request.cores as usize, "{}", no.reason);
            }
        }
    }

    #[test]
    fn a_pair_is_on_two_nodes_only_if_no_node_has_two_free_processors(
        machine in machine(), requests in requests()
    ) {
        let machines = std::slice::from_ref(&machine);
        // One slice after the other, so that what was free is known.
        let mut old = SlicePlan::default();
        for count in 1..=requests.len() {
            let free = free_by_node(&machine, &old, 0);
            let made =
                plan(machines, &requests[..count], &[], &old.assignments, &PlanOptions::default());
            let made = made.unwrap();
            let new = made.assignments.iter().find(|one| one.slice == requests[count - 1].name);
            let pairs: usize = free.iter().map(|free| free / 2).sum();
            let remote = new.map_or(0, |new| {
                let is_remote = |near| matches!(near, Some(Proximity::Remote(_)));
                new.units.iter().filter(|unit| is_remote(unit.proximity)).count()
            });
            let wanted = requests[count - 1].cores as usize / 2;
            prop_assert_eq!(remote, if new.is_some() { wanted.saturating_sub(pairs) } else { 0 });
            old = made;
        }
    }

    /// One slice after the other, so that what was free is known.
    #[test]
    fn a_slice_has_pairs_of_the_preferred_kind_on_one_node_if_a_node_has_them(
        machine in machine(), requests in requests()
    ) {
        let machines = std::slice::from_ref(&machine);
        let mut old = SlicePlan::default();
        for count in 1..=requests.len() {
            let taken: BTreeSet<u32> =
                old.assignments.iter().flat_map(Assignment::cpus_in_order).collect();
            let made =
                plan(machines, &requests[..count], &[], &old.assignments, &PlanOptions::default());
            let made = made.unwrap();
            let new = made.assignments.iter().find(|one| one.slice == requests[count - 1].name);
            let wanted = requests[count - 1].cores as usize;
            // What each node has free: processors, hyper-thread pairs, cores.
            let has_all = |node: u32, is_low: bool| {
                let cores = machine.cores();
                let of_node = cores.values().map(|cpus| {
                    let free = cpus.iter().filter(|cpu| !taken.contains(cpu));
                    free.filter(|cpu| machine.cpu(*cpu).unwrap().node == node).count()
                });
                let free: Vec<usize> = of_node.collect();
                let total: usize = free.iter().sum();
                let threads: usize = free.iter().map(|free| free / 2).sum();
                // Pairs of different cores: no core has more than half of all.
                let is_paired = free.iter().filter(|free| **free > 0).count() >= wanted;
                let is_enough = if is_low { threads >= wanted / 2 } else { is_paired };
                total >= wanted && is_enough
            };
            if let Some(new) = new {
                let is_low = new.traffic == nearstate_numa::TrafficLevel::Low;
                if machine.nodes().iter().any(|node| has_all(node.number, is_low)) {
                    prop_assert_eq!(new.nodes.len(), 1, "{:?} of {:?}", new.units, taken);
                    for pair in new.units.iter().filter_map(|unit| unit.proximity) {
                        prop_assert_eq!(pair == Proximity::Core, is_low);
                    }
                }
            }
            old = made;
        }
    }

    #[test]
    fn planning_again_moves_nothing_that_need_not_move(
        machines in proptest::collection::vec(machine(), 1..3),
        requests in requests(),
        gone in 0..8_usize,
        lost in 0..12_u32,
    ) {
        let options = PlanOptions::default();
        let old = plan(&machines, &requests, &[], &[], &options).unwrap();
        prop_assert!(old.moves.is_empty());
        let placed: Vec<SliceRequest> = requests
            .iter()
            .filter(|request| old.assignments.iter().any(|one| one.slice == request.name))
            .cloned()
            .collect();
        let again = plan(&machines, &placed, &[], &old.assignments, &options).unwrap();
        prop_assert!(again.moves.is_empty());
        prop_assert!(again.refused.is_empty());
        // A new slice, and one that ends.
        let mut others = placed.clone();
        others.push("new:1:high".parse().unwrap());
        if gone < placed.len() {
            others.remove(gone);
        }
        let grown = plan(&machines, &others, &[], &old.assignments, &options).unwrap();
        prop_assert!(grown.moves.is_empty());
        // A processor that is lost moves its own slices only, as long as they fit.
        let options = PlanOptions { reserved: [lost].into_iter().collect(), ..options };
        let less = plan(&machines, &placed, &[], &old.assignments, &options).unwrap();
        let had = |name: &str| {
            old.assignments.iter().any(|one| one.slice == name && one.cpus().contains(lost))
        };
        let made_room = |reason: &str| reason.starts_with("it makes room");
        for one in &less.moves {
            prop_assert!(had(&one.slice) || made_room(&one.reason), "{:?}", one);
        }
    }
}
