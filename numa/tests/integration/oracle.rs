//! hwloc reads the same files, and its XML gives the same machine.

use std::process::{Command, Output};

use nearstate_numa::{Topology, discover};

use crate::machines::{Tree, all};

/// Runs a program of hwloc, which `cargo xtask packages` installs.
fn hwloc(program: &str, arguments: &[&str]) -> Output {
    let run = Command::new(program).env("HWLOC_HIDE_ERRORS", "2").args(arguments).output();
    let output = run.unwrap_or_else(|e| panic!("{program}: {e}; install hwloc-nox"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    output
}

fn by_hwloc(tree: &Tree, version: &str) -> Topology {
    let file = tree.path().join(format!("{version}.xml"));
    let (folder, out) = (tree.path().to_str().unwrap(), file.to_str().unwrap());
    let flags = ["--export-xml-flags", version];
    let arguments =
        ["-i", folder, "--if", "fsroot", "--disallowed", "--no-io", "--force", "--of", "xml"];
    let all: Vec<&str> =
        arguments.into_iter().chain(flags.into_iter().filter(|_| version != "0")).collect();
    hwloc("lstopo-no-graphics", &[&all[..], &[out]].concat());
    discover(Some(&file)).unwrap()
}

/// What both sources have: proximity of all pairs, nodes, memory, distances, offline processors.
fn compare(name: &str, ours: &Topology, theirs: &Topology) {
    let numbers = |one: &Topology| one.cpus().iter().map(|cpu| cpu.number).collect::<Vec<_>>();
    assert_eq!(numbers(ours), numbers(theirs), "{name}");
    assert_eq!(ours.offline(), theirs.offline(), "{name}");
    for a in numbers(ours) {
        let (one, other) = (ours.cpu(a).unwrap(), theirs.cpu(a).unwrap());
        assert_eq!((one.package, one.node), (other.package, other.node), "{name}: {a}");
        assert_eq!(one.core_id, other.core_id, "{name}: {a}");
        for b in numbers(ours) {
            assert_eq!(ours.proximity(a, b), theirs.proximity(a, b), "{name}: {a} and {b}");
        }
    }
    let nodes = |one: &Topology| {
        let node = |node: &nearstate_numa::NumaNode| {
            (node.number, node.cpus.clone(), node.memory_bytes.unwrap_or(0), node.distances.clone())
        };
        one.nodes().iter().map(node).collect::<Vec<_>>()
    };
    assert_eq!(nodes(ours), nodes(theirs), "{name}");
}

#[test]
fn hwloc_reads_every_machine_alike() {
    for (name, model) in all() {
        let tree = model.write();
        let read = tree.read().unwrap();
        compare(name, &read, &by_hwloc(&tree, "0"));
        // Version 1 has no nodes without processors.
        if name != "odd" {
            compare(name, &read, &by_hwloc(&tree, "v1"));
        }
        compare_nodes(name, &tree, &read);
    }
}

/// hwloc's own file of this machine, with its devices: the interfaces are those that we read.
#[test]
fn network_interfaces_of_this_machine_are_those_of_hwloc() {
    let folder = tempfile::tempdir().unwrap();
    let ours = discover(None).unwrap();
    let names = |one: &Topology| one.nics().iter().map(|nic| nic.name.clone()).collect::<Vec<_>>();
    for version in ["0", "v1"] {
        let file = folder.path().join(format!("{version}.xml"));
        let flags = ["--export-xml-flags", version];
        let flags = flags.into_iter().filter(|_| version != "0");
        let out = file.to_str().unwrap();
        let arguments: Vec<&str> = ["--whole-io", "--force", "--of", "xml"]
            .into_iter()
            .chain(flags)
            .chain([out])
            .collect();
        hwloc("lstopo-no-graphics", &arguments);
        let theirs = names(&discover(Some(&file)).unwrap());
        // hwloc leaves out devices of buses that it does not know (virtio over MMIO).
        assert!(theirs.iter().all(|name| names(&ours).contains(name)), "{theirs:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(theirs.is_empty(), !text.contains("osdev_type=\"2\""), "{version}");
    }
}

/// `hwloc-calc` finds the node of the first processor of each node.
fn compare_nodes(name: &str, tree: &Tree, read: &Topology) {
    for node in read.nodes() {
        let Some(cpu) = node.cpus.first() else { continue };
        let (folder, pu) = (tree.path().to_str().unwrap(), format!("PU:{cpu}"));
        let arguments =
            ["-i", folder, "--if", "fsroot", "--disallowed", "-p", "-I", "NUMANode", &pu];
        let text = String::from_utf8(hwloc("hwloc-calc", &arguments).stdout).unwrap();
        // Nodes without processors follow: hwloc puts them at the nearest ones.
        let first = text.trim().split(',').next().map(str::to_owned);
        assert_eq!(first, Some(node.number.to_string()), "{name}: {cpu}");
    }
}
