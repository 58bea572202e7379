//! What Kubernetes chooses, by the expected results of its own tests (version 1.34,
//! `pkg/kubelet/cm/cpumanager/cpu_assignment_test.go`): machine, free processors, wanted ones,
//! chosen ones.

use nearstate_numa::{Baseline, CpuSet, KubernetesPolicy, PlanOptions, Topology, baseline};

use crate::machines::{Model, ModelCpu, topology};
use crate::plans::slices;

use KubernetesPolicy::{
    AcrossCores, AcrossNodes, AcrossNodesFullCores, AlignedCaches, AlignedCachesFullCores, Packed,
};

/// A machine whose processors have this node, socket, core and cache.
fn machine(cpus: u32, of: impl Fn(u32) -> [u32; 4]) -> Topology {
    let cpu = |number| {
        let [node, package, core, l3] = of(number);
        ModelCpu { number, package, node, core_id: core, core, l2: core, l3 }
    };
    let cpus: Vec<ModelCpu> = (0..cpus).map(cpu).collect();
    let nodes: std::collections::BTreeSet<u32> = cpus.iter().map(|cpu| cpu.node).collect();
    let distances = |from: u32| nodes.iter().map(|to| if *to == from { 10 } else { 21 }).collect();
    let nodes = nodes.iter().map(|node| (*node, 1024, distances(*node))).collect();
    topology(&Model { cpus, nodes, ..Model::default() })
}

/// The processors that a container gets, or `refused`.
fn chosen(on: &Topology, free: &CpuSet, wanted: usize, policy: KubernetesPolicy) -> String {
    let reserved = on.allowed().difference(free);
    let options = PlanOptions { reserved, ..PlanOptions::default() };
    let slice = slices(&[&format!("a:{wanted}:low")]);
    let made = baseline(on, &slice, &options, Baseline::Kubernetes(policy));
    made.assignments.first().map_or("refused".to_owned(), |one| one.cpus().to_string())
}

/// A case: free processors, wanted ones, chosen ones.
type Case = (&'static str, usize, &'static str);

fn check(on: &Topology, policy: KubernetesPolicy, cases: &[Case]) {
    for (free, wanted, expected) in cases {
        let expected: CpuSet = expected.parse().unwrap();
        let found = chosen(on, &free.parse().unwrap(), *wanted, policy);
        assert_eq!(found, expected.to_string(), "{policy:?}, {wanted} of {free}");
    }
}

/// One socket with four cores, whose second hyper-threads are 4 to 7.
fn single_socket() -> Topology {
    machine(8, |cpu| [0, 0, cpu % 4, 0])
}

/// Two sockets in turn, three cores each, whose second hyper-threads are 6 to 11.
fn dual_socket() -> Topology {
    machine(12, |cpu| [cpu % 2, cpu % 2, cpu % 6, cpu % 2])
}

/// Two sockets with two nodes of ten cores each, whose second hyper-threads are 40 to 79.
fn two_nodes_per_socket() -> Topology {
    machine(80, |cpu| {
        let core = cpu % 40;
        [core / 10, core / 20, core, core / 20]
    })
}

/// Two sockets with four nodes of sixteen cores each, whose second hyper-threads are 128 to 255.
fn four_nodes_per_socket() -> Topology {
    machine(256, |cpu| {
        let core = cpu % 128;
        [core / 16, core / 64, core, core / 64]
    })
}

type CasesOf = (fn() -> Topology, &'static [Case]);

/// What all policies choose that do not spread over cores.
const BY_ALL: [CasesOf; 3] = [
    (
        single_socket,
        &[
            ("0-7", 1, "0"),
            ("1,3,5-7", 1, "6"),
            ("0-7", 2, "0,4"),
            ("0-7", 8, "0-7"),
            ("0-3,6", 2, "2,6"),
        ],
    ),
    (dual_socket, &[("0-11", 6, "0,2,4,6,8,10")]),
    (
        two_nodes_per_socket,
        &[
            ("0-79", 40, "0-19,40-59"),
            ("0-79", 20, "0-9,40-49"),
            ("10-39,50-79", 20, "10-19,50-59"),
            ("0-79", 60, "0-29,40-69"),
            ("1-39,41-79", 60, "10-39,50-79"),
        ],
    ),
];

#[test]
fn packed_as_kubernetes_tests_it() {
    for (on, cases) in BY_ALL {
        check(&on(), Packed, cases);
    }
    assert_eq!(chosen(&single_socket(), &"0,2,4,6".parse().unwrap(), 5, Packed), "refused");
    check(&dual_socket(), Packed, &[("1-5,7-11", 1, "2"), ("0-11", 8, "0,6,2,8,4,10,1,7")]);
    check(&two_nodes_per_socket(), Packed, &[("0-79", 64, "0-29,40-69,30,31,70,71")]);
    // Three sockets, of which the third one has the fewest free processors: in their order.
    let triple = machine(18, |cpu| {
        let socket = [1, 0, 2][cpu as usize / 6];
        [socket, socket, cpu / 2, socket]
    });
    check(&triple, Packed, &[("0-3,6-13", 2, "12-13"), ("0-3,6-13", 6, "6-11")]);
}

#[test]
fn across_cores_as_kubernetes_tests_it() {
    check(&single_socket(), AcrossCores, &[("0-7", 3, "0-2")]);
    check(
        &dual_socket(),
        AcrossCores,
        &[
            ("0-11", 2, "0,2"),
            ("0-11", 3, "0,2,4"),
            ("0-11", 6, "0,2,4,6,8,10"),
            ("0-11", 8, "0,2,4,6,8,10,1,3"),
        ],
    );
    check(&machine(8, |cpu| [cpu / 4, cpu / 4, cpu, cpu / 4]), AcrossCores, &[("0-7", 2, "0-1")]);
    check(&two_nodes_per_socket(), AcrossCores, &[("0-79", 8, "0-7")]);
}

#[test]
fn across_nodes_as_kubernetes_tests_it() {
    for (on, cases) in BY_ALL {
        check(&on(), AcrossNodes, cases);
    }
    check(&dual_socket(), AcrossNodes, &[("0-11", 8, "0,6,2,8,1,7,3,9"), ("1-5,7-11", 1, "1")]);
    check(
        &two_nodes_per_socket(),
        AcrossNodes,
        &[
            ("0-79", 64, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
            ("0-79", 48, "0-7,10-17,20-27,40-47,50-57,60-67"),
            ("1-29,32-39,41-69,72-79", 48, "1-8,10-17,20-27,41-48,50-57,60-67"),
            ("2-29,31-39,42-69,71-79", 48, "10-17,20-27,31-38,50-57,60-67,71-78"),
            (
                "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71",
                16,
                "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71",
            ),
            ("0-79", 26, "0-6,10-16,40-45,50-55"),
            ("0-79", 62, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
            (
                "0-8,10-18,20-39,40-48,50-58,60-79",
                62,
                "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77",
            ),
            (
                "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
                34,
                "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74",
            ),
        ],
    );
    check(
        &two_nodes_per_socket(),
        AcrossNodesFullCores,
        &[
            ("0-79", 26, "0-6,10-15,40-46,50-55"),
            ("0-79", 62, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
            (
                "0-8,10-18,20-39,40-48,50-58,60-79",
                62,
                "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77",
            ),
        ],
    );
    // Kubernetes finds nodes 0 to 3 and takes 0 to 2 and 5: see `kept`.
    let six_nodes = machine(72, |cpu| {
        let core = cpu % 36;
        [core / 6, core / 12, core, core / 2]
    });
    let expected = "0-17,30-40,42-46,48-52,66-70";
    check(&six_nodes, AcrossNodes, &[("0-71", 44, expected)]);
    let free = "0,128,30,31,158,159,43-47,171-175,62,63,190,191,75-79,203-207,94,96,222,223,\
                101-111,229-239,126,127,254,255";
    let expected = "43-47,75-79,96,101-105,171-174,203-206,229-232";
    check(&four_nodes_per_socket(), AcrossNodes, &[(free, 28, expected)]);
}

#[test]
fn aligned_caches_as_kubernetes_tests_it() {
    let no_threads = machine(16, |cpu| [0, 0, cpu, cpu / 4]);
    check(&no_threads, AlignedCaches, &[("1-15", 10, "1,2,4-11")]);
    let dual = machine(16, |cpu| [0, cpu / 8, cpu, cpu / 4]);
    check(&dual, AlignedCaches, &[("0-15", 4, "0-3"), ("2-15", 6, "2-7"), ("8-15", 4, "8-11")]);
    let two_nodes = machine(16, |cpu| [cpu / 8, 0, cpu, cpu / 4]);
    check(&two_nodes, AlignedCaches, &[("3,4-8,12", 2, "4-5")]);
    let threads = machine(16, |cpu| [0, 0, cpu % 8, cpu % 8 / 4]);
    check(
        &threads,
        AlignedCaches,
        &[("2-3,10-11,4-7,12-15", 6, "4-6,12-14"), ("1-7,9-15", 10, "4-7,12-15,1,9")],
    );
    check(&threads, AlignedCachesFullCores, &[("1-7,9-15", 4, "1-2,9-10")]);
    // An odd number: the last core gives one processor.
    check(&threads, AlignedCaches, &[("0-15", 3, "0,1,8")]);
    // A cache of a whole node is no boundary: the choice is the packed one.
    let whole = machine(16, |cpu| [cpu % 8 / 4, 0, cpu % 8, cpu % 8 / 4]);
    check(&whole, AlignedCaches, &[("1-7,9-15", 10, "4-7,12-15,1,9")]);
}

#[test]
fn groups_that_do_not_add_up_end_the_search() {
    // Enough processors for the remainder on two nodes, but not in whole cores of them.
    let on = machine(16, |cpu| [cpu / 4, cpu / 4, cpu / 2, cpu / 4]);
    let free = "0-2,4-6,8-10,12-14".parse().unwrap();
    assert_eq!(chosen(&on, &free, 8, AcrossNodesFullCores), "0-1,4-5,8-9,12-13");
    assert_eq!(chosen(&on, &free, 10, AcrossNodesFullCores), "refused");
}

#[test]
fn more_nodes_than_kubernetes_supports_are_refused_with_the_reason() {
    let on = machine(18, |cpu| [cpu / 2, cpu / 2, cpu, cpu / 2]);
    let options = PlanOptions::default();
    let made = baseline(&on, &slices(&["a:4:low"]), &options, Baseline::Kubernetes(AcrossNodes));
    assert!(made.refused[0].reason.contains("at most 8 nodes"), "{:?}", made.refused);
}
