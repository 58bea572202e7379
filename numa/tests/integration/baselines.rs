//! What Kubernetes 1.31 to 1.34 would choose. The expected processors follow from the order of
//! `takeByTopologyNUMAPacked`: whole nodes and sockets, whole cores, single processors; of equal
//! groups first the one with fewer free processors, then the one with the lower number.

use nearstate_numa::{Baseline, KubernetesPolicy, PlanOptions, SlicePlan, Topology, baseline};

use crate::machines::{adjacent, eight_sockets, epyc, gold_5118, sub_numa, topology};
use crate::plans::{all_units, slices};

use KubernetesPolicy::{AcrossCores, FullCores, Packed};

fn by(machine: &Topology, texts: &[&str], policy: KubernetesPolicy) -> SlicePlan {
    let options = PlanOptions::default();
    baseline(machine, &slices(texts), &options, Baseline::Kubernetes(policy))
}

fn chosen(machine: &Topology, texts: &[&str], policy: KubernetesPolicy) -> Vec<String> {
    all_units(&by(machine, texts, policy))
}

#[test]
fn a_first_request_takes_whole_cores_of_one_socket() {
    let gold = topology(&gold_5118());
    for policy in [Packed, FullCores] {
        assert_eq!(chosen(&gold, &["a:4:high"], policy), ["a 0,24 2,26"]);
    }
    assert_eq!(chosen(&gold, &["a:4:high"], AcrossCores), ["a 0,2 4,6"]);
    assert_eq!(by(&gold, &["a:4:high"], Packed).assignments[0].nodes.to_string(), "0");
    // Two nodes for each socket, both with every second core.
    let clustered = topology(&sub_numa());
    assert_eq!(chosen(&clustered, &["a:4:high"], Packed), ["a 0,40 4,44"]);
    assert_eq!(chosen(&clustered, &["a:4:high"], AcrossCores), ["a 0,2 4,6"]);
    let adjacent = topology(&adjacent(1));
    assert_eq!(chosen(&adjacent, &["a:4:high"], Packed), ["a 0,1 2,3"]);
    // By number within the socket: the option spreads nothing where hyper-threads are adjacent.
    assert_eq!(chosen(&adjacent, &["a:4:high"], AcrossCores), ["a 0,1 2,3"]);
    assert_eq!(chosen(&topology(&eight_sockets()), &["a:3:low"], Packed), ["a 0,1 2"]);
}

#[test]
fn whole_nodes_and_sockets_come_before_cores() {
    let clustered = topology(&adjacent(2));
    let two = ["x:2:low", "a:8:high"];
    // Node 0 has six processors left, node 1 is wholly free and in the socket with fewer free.
    for policy in [Packed, FullCores, AcrossCores] {
        assert_eq!(chosen(&clustered, &two, policy)[1], "a 8,9 10,11 12,13 14,15");
    }
    // A whole socket, although its nodes would do; then a node of the other socket.
    let of = |texts: &[&str]| by(&clustered, texts, Packed).assignments;
    assert_eq!(of(&["a:24:high"])[0].cpus().to_string(), "0-23");
    assert_eq!(of(&["x:2:low", "a:16:high"])[1].cpus().to_string(), "16-31");
    // One socket with two nodes: the nodes are below the socket.
    let made = by(&topology(&epyc()), &["x:1:low", "a:16:high"], Packed);
    assert_eq!(made.assignments[1].cpus().to_string(), "8-15,24-31");
}

#[test]
fn later_requests_fill_cores_and_sockets_that_are_in_use() {
    let gold = topology(&gold_5118());
    let texts = ["a:3:high", "b:5:high", "c:2:low"];
    assert_eq!(chosen(&gold, &texts, Packed), ["a 0,24 2", "b 4,28 6,30 26", "c 8,32"]);
    assert_eq!(chosen(&gold, &texts, AcrossCores), ["a 0,2 4", "b 6,8 10,12 14", "c 16,18"]);
    // A socket with fewer free processors comes first, although its number is higher.
    let reserved = "1,25".parse().unwrap();
    let options = PlanOptions { reserved, ..PlanOptions::default() };
    let made = baseline(&gold, &slices(&["a:2:low"]), &options, Baseline::Kubernetes(Packed));
    assert_eq!(all_units(&made), ["a 3,27"]);
}

#[test]
fn full_cores_are_refused_by_their_rules() {
    let full = by(&topology(&gold_5118()), &["a:3:high", "c:2:low"], FullCores);
    assert_eq!(all_units(&full), ["c 0,24"]);
    assert!(full.refused[0].reason.contains("multiples of 2"), "{:?}", full.refused);
    // Every core has lost a hyper-thread to another program.
    let machine = topology(&adjacent(1));
    let reserved = machine.allowed().iter().filter(|cpu| cpu % 2 == 1).collect();
    let options = PlanOptions { reserved, ..PlanOptions::default() };
    let made = baseline(&machine, &slices(&["a:2:low"]), &options, Baseline::Kubernetes(FullCores));
    assert!(made.refused[0].reason.contains("2 processors of whole cores; 0 are free"));
    let made = baseline(&machine, &slices(&["a:2:low"]), &options, Baseline::Kubernetes(Packed));
    assert_eq!(all_units(&made), ["a 0,2"]);
}
