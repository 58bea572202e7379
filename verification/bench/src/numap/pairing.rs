//! The pairings of a machine: one pair of processors for each way in which two can be near.

use super::result::PlanRow;
use nearstate_model::Result;
use nearstate_numa::{CpuSet, PlanOptions, Proximity, SliceRequest, Topology, plan};
use std::collections::BTreeMap;

/// The name of the run without pinning.
pub(super) const NONE: &str = "none";

/// A pair of processors for the threads of the slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pairing {
    pub(super) name: String,
    /// How near its processors are.
    pub(super) what: String,
    /// Both processors; empty: any.
    pub(super) cpus: Vec<u32>,
}

/// Paper 5's schemes, and what a machine lacks that has none of their pairs.
const SCHEMES: [(&str, &str); 3] = [
    ("hyper-thread", "no core has two processors that may be used"),
    ("collocated", "no node has two cores that may be used"),
    ("non-collocated", "only one node has processors that may be used"),
];

/// The name of the pairing of such processors: paper 5's scheme, and what they share.
fn name_of(near: Proximity) -> String {
    match near {
        Proximity::Core => "hyper-thread".to_owned(),
        Proximity::L2 => "collocated-l2".to_owned(),
        Proximity::L3 => "collocated-l3".to_owned(),
        Proximity::Node => "collocated-node".to_owned(),
        Proximity::Remote(distance) => format!("non-collocated-{distance}"),
    }
}

fn is_of(name: &str, scheme: &str) -> bool {
    name == scheme || name.strip_prefix(scheme).is_some_and(|rest| rest.starts_with('-'))
}

/// The pairings of a machine, from the nearest, after the run without pinning; and the schemes of
/// the paper that it does not have, with the reason. Pairs avoid the core of processor 0, which
/// does the kernel's work, if another pair is as near.
pub(super) fn pairings_of(topology: &Topology) -> (Vec<Pairing>, Vec<String>) {
    let cpus: Vec<_> = topology.cpus().iter().filter(|cpu| cpu.is_allowed).collect();
    let housekeeping = topology.cpu(0).map(|cpu| cpu.core);
    let mut pairs = BTreeMap::new();
    for (index, a) in cpus.iter().enumerate() {
        for b in cpus.iter().skip(index + 1) {
            let Some(near) = topology.proximity(a.number, b.number) else { continue };
            let is_housekeeping = [a.core, b.core].into_iter().any(|c| Some(c) == housekeeping);
            let rank = (is_housekeeping, a.number, b.number);
            let best = pairs.entry(near).or_insert(rank);
            *best = rank.min(*best);
        }
    }
    let none = Pairing {
        name: NONE.to_owned(),
        what: "the scheduler places both threads".to_owned(),
        cpus: Vec::new(),
    };
    let pair = |(near, (_, a, b)): (Proximity, (bool, u32, u32))| Pairing {
        name: name_of(near),
        what: near.to_string(),
        cpus: vec![a, b],
    };
    let all: Vec<Pairing> = std::iter::once(none).chain(pairs.into_iter().map(pair)).collect();
    let is_missing = |(scheme, _): &&(&str, &str)| !all.iter().any(|one| is_of(&one.name, scheme));
    let missing = SCHEMES.iter().filter(is_missing);
    let missing = missing.map(|(scheme, why)| format!("{scheme}: {why}")).collect();
    (all, missing)
}

/// The pairings that were asked for, by their names or those of the paper's schemes; all if none.
pub(super) fn chosen<'a>(
    all: &'a [Pairing],
    names: &[String],
    missing: &[String],
) -> Result<Vec<&'a Pairing>> {
    let has = |name: &str| all.iter().any(|one| is_of(&one.name, name));
    if let Some(unknown) = names.iter().find(|name| !has(name)) {
        let known: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        let why = missing.iter().find(|why| why.starts_with(&format!("{unknown}:")));
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        return Err(bad_argument!(
            "this machine has no pairing {unknown:?}{why}: it has {}",
            known.join(", ")
        ));
    }
    let is_chosen =
        |one: &&Pairing| names.is_empty() || names.iter().any(|name| is_of(&one.name, name));
    Ok(all.iter().filter(is_chosen).collect())
}

/// The processors of the probe and of the traffic: the same for all pairings, and none of their
/// cores unless nothing else is left.
pub(super) fn host_cpus(topology: &Topology, all: &[Pairing]) -> Vec<usize> {
    let cores: CpuSet = all
        .iter()
        .flat_map(|one| &one.cpus)
        .filter_map(|cpu| topology.cpu(*cpu).map(|cpu| cpu.core))
        .collect();
    let of_hosts = |is_apart: bool| -> Vec<usize> {
        let cpus = topology.cpus().iter().filter(|cpu| cpu.is_allowed);
        let cpus = cpus.filter(|cpu| !is_apart || !cores.contains(cpu.core));
        cpus.map(|cpu| cpu.number as usize).collect()
    };
    let apart = of_hosts(true);
    if apart.is_empty() { of_hosts(false) } else { apart }
}

/// What `numa plan` chooses for a slice of two processors at each level of traffic.
pub(super) fn plan_rows(topology: &Topology, levels: &[u32]) -> Result<Vec<PlanRow>> {
    let housekeeping = std::iter::once(0).collect();
    let options = PlanOptions { is_explained: true, housekeeping, ..PlanOptions::default() };
    let row = |mbps: &u32| {
        let request: SliceRequest = format!("slice:2:{mbps}").parse()?;
        let made = plan(std::slice::from_ref(topology), &[request], &[], &[], &options)?;
        let refused = made.refused.first().map(|no| no.reason.clone()).unwrap_or_default();
        let mut row = PlanRow {
            mbps: *mbps,
            level: String::new(),
            cpus: Vec::new(),
            pairing: String::new(),
            reason: refused,
        };
        if let Some(one) = made.assignments.first()
            && let Some(unit) = one.units.first()
        {
            row.level = one.traffic.to_string();
            row.cpus.clone_from(&unit.cpus);
            row.pairing = unit.proximity.map_or_else(String::new, name_of);
            row.reason.clone_from(&unit.reason);
        }
        Ok(row)
    };
    levels.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Two sockets of two cores with two hyper-threads, each core with a second-level cache.
    fn server() -> Topology {
        let object = |kind: &str, number: u32, set: u32, inside: &str| {
            let head = format!("<object type=\"{kind}\" os_index=\"{number}\"");
            format!("{head} cpuset=\"{set:#x}\">{inside}</object>")
        };
        let unit = |number: u32| object("PU", number, 1 << number, "");
        let core = |n: u32| object("Core", n, 0b11 << (2 * n), &(unit(2 * n) + &unit(2 * n + 1)));
        let socket = |n: u32| {
            let set = 0b1111 << (4 * n);
            let inside = object("NUMANode", n, set, "") + &core(2 * n) + &core(2 * n + 1);
            object("Package", n, set, &inside)
        };
        let machine = object("Machine", 0, 0xff, &(socket(0) + &socket(1)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.xml");
        let text = format!("<?xml version=\"1.0\"?><topology version=\"2.0\">{machine}</topology>");
        fs::write(&path, text).unwrap();
        nearstate_numa::discover(Some(&path)).unwrap()
    }

    #[test]
    fn a_server_has_a_pairing_for_each_kind_of_pair_and_its_hosts_have_other_cores() {
        let topology = server();
        let (all, missing) = pairings_of(&topology);
        let shown: Vec<_> = all.iter().map(|one| (one.name.as_str(), one.cpus.clone())).collect();
        let expected = [
            ("none", vec![]),
            ("hyper-thread", vec![2, 3]),
            ("collocated-node", vec![4, 6]),
            ("non-collocated-20", vec![2, 4]),
        ];
        assert_eq!(shown, expected);
        assert_eq!(missing, Vec::<String>::new());
        assert_eq!(host_cpus(&topology, &all), [0, 1]);
        let one = chosen(&all, &["collocated".to_owned(), "none".to_owned()], &missing).unwrap();
        assert_eq!(
            one.iter().map(|one| &*one.name).collect::<Vec<_>>(),
            ["none", "collocated-node"]
        );
        let levels: Vec<_> = plan_rows(&topology, &[100, 300, 500]).unwrap();
        let levels: Vec<_> = levels.iter().map(|row| (&*row.level, &*row.pairing)).collect();
        let high = "collocated-node";
        assert_eq!(levels, [("low", "hyper-thread"), ("medium", high), ("high", high)]);
    }

    #[test]
    fn pairings_that_a_machine_does_not_have_are_named() {
        let topology = server();
        let cpus = topology.cpus().iter().filter(|cpu| [0, 2].contains(&cpu.number)).cloned();
        let (cpus, nodes) = (cpus.collect(), topology.nodes().to_vec());
        let parts = nearstate_numa::TopologyParts { cpus, nodes, ..Default::default() };
        let topology = Topology::new(parts).unwrap();
        let (all, missing) = pairings_of(&topology);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(missing[0].starts_with("hyper-thread: ") && missing.len() == 2, "{missing:?}");
        assert_eq!(host_cpus(&topology, &all), [0, 2], "nothing else is left");
        let refused = chosen(&all, &["hyper-thread".to_owned()], &missing).unwrap_err();
        assert!(refused.to_string().contains("no core has two processors"), "{refused}");
    }
}
