//! Many slices on many machines.

use nearstate_numa::{PlanOptions, Proximity, SliceRequest, Topology, plan};

use crate::machines::{Model, ModelCpu, gold_5118, guest, topology};
use crate::plans::slices;

/// A machine of two sockets with 32 cores and two hyper-threads each.
fn large() -> Topology {
    let cpus = (0..128).map(|number| {
        let core = number % 64;
        ModelCpu {
            number,
            package: core / 32,
            node: core / 32,
            core_id: core % 32,
            core,
            l2: core,
            l3: core / 8,
        }
    });
    let nodes = vec![(0, 131_072, vec![10, 21]), (1, 131_072, vec![21, 10])];
    topology(&Model { cpus: cpus.collect(), nodes, ..Model::default() })
}

fn requests(count: u32) -> Vec<SliceRequest> {
    let levels = ["low", "medium", "high"];
    let text = |n: u32| format!("s{n}:{}:{}", 1 + n * 7 % 16, levels[n as usize % 3]);
    (0..count).map(|n| text(n).parse().unwrap()).collect()
}

#[test]
fn a_slice_goes_to_the_fullest_machine_with_ideal_pairs() {
    let machines = [topology(&guest()), topology(&gold_5118())];
    let plan =
        plan(&machines, &slices(&["a:2:high", "b:2:low"]), &[], &[], &PlanOptions::default());
    let plan = plan.unwrap();
    let homes: Vec<usize> = plan.assignments.iter().map(|one| one.machine).collect();
    assert_eq!(homes, [0, 1]);
}

#[test]
fn a_thousand_slices_on_a_hundred_machines() {
    let machine = large();
    let machines = vec![machine; 100];
    let requests = requests(1000);
    let options = PlanOptions::default();
    let made = plan(&machines, &requests, &[], &[], &options).unwrap();
    assert!(made.refused.is_empty());
    let pairs = made.assignments.iter().flat_map(|one| &one.units);
    let is_remote = |near: Option<Proximity>| matches!(near, Some(Proximity::Remote(_)));
    assert_eq!(pairs.filter(|unit| is_remote(unit.proximity)).count(), 0);
}

#[test]
fn more_slices_than_fit_are_refused_and_the_machines_are_full() {
    let machines = vec![topology(&gold_5118()); 3];
    let requests = requests(60);
    let made = plan(&machines, &requests, &[], &[], &PlanOptions::default()).unwrap();
    assert_eq!(made.assignments.len() + made.refused.len(), 60);
    let used: usize = made.assignments.iter().map(|one| one.cpus().len()).sum();
    let smallest =
        made.refused.iter().map(|no| requests.iter().find(|r| r.name == no.slice).unwrap().cores);
    let smallest = smallest.min().unwrap() as usize;
    let free = |machine| {
        let own = made.assignments.iter().filter(|one| one.machine == machine);
        48 - own.map(|one| one.cpus().len()).sum::<usize>()
    };
    assert!((0..3).all(|machine| free(machine) < smallest), "{used} of 144 are used");
}

#[test]
fn a_slice_moves_if_another_one_fits_only_in_its_place() {
    // Two machines with 30 and 34 free processors. The new slice needs 36.
    let machines = vec![topology(&gold_5118()); 2];
    let options = PlanOptions::default();
    let first = slices(&["a:14:low", "b:18:low"]);
    let mut old = plan(&machines, &first, &[], &[], &options).unwrap();
    // By hand: a on machine 0, b on machine 1.
    let split = plan(&machines[1..], &first[..1], &[], &[], &options).unwrap();
    old.assignments[0] = split.assignments[0].clone();
    old.assignments[0].machine = 1 - old.assignments[1].machine;
    let all = slices(&["a:14:low", "b:18:low", "c:36:low"]);
    let new = plan(&machines, &all, &[], &old.assignments, &options).unwrap();
    assert!(new.refused.is_empty(), "{:?}", new.refused);
    assert_eq!(new.moves.len(), 1);
    assert_eq!((&*new.moves[0].slice, &*new.moves[0].reason), ("a", "it makes room for slice c"));
}
