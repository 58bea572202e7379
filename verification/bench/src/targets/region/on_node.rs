//! A region whose memory is on one NUMA node, so that its distance from the clients shows (paper 1,
//! section 5.2).

use super::{RegionConnection, RegionTarget, create};
use crate::access::{StoreConnection, StoreSchema};
use crate::targets::{Capabilities, Database, DatabaseSpec, FileDatabase, Target};
use nearstate_model::Result;
use nearstate_store::{NumaPolicy, PagesByNode, Region};
use std::path::Path;

/// The name of such a target, before the number of the node.
pub const PREFIX: &str = "region@";

/// The word of the command line for one such target for each node with memory.
const ALL: &str = "region@nodes";

/// `region@NODE`.
#[derive(Clone, Debug)]
pub struct NodeRegionTarget {
    name: String,
    node: u32,
}

impl NodeRegionTarget {
    /// The target of this name, if it is one.
    pub fn named(name: &str) -> Option<Self> {
        let node = name.strip_prefix(PREFIX)?.parse().ok()?;
        Some(Self { name: name.to_owned(), node })
    }
}

/// The names of targets, with one for each node with memory instead of `region@nodes`.
///
/// # Errors
/// Those of reading the topology.
pub fn expanded(names: &[String]) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for name in names {
        if name != ALL {
            out.push(name.clone());
            continue;
        }
        let topology = nearstate_numa::discover(None)?;
        let nodes = topology.nodes().iter().filter(|node| node.has_memory() && node.is_allowed);
        out.extend(nodes.map(|node| format!("{PREFIX}{}", node.number)));
    }
    Ok(out)
}

/// The node of the clients, to which the memory is near or far: the first one with processors that
/// may be used. Returns its processors, and what to keep in mind.
///
/// # Errors
/// Those of reading the topology.
pub fn compute_node() -> Result<(Vec<usize>, String)> {
    let topology = nearstate_numa::discover(None)?;
    let allowed = topology.allowed();
    let own = |node: &&nearstate_numa::NumaNode| !node.cpus.intersection(&allowed).is_empty();
    let node = topology
        .nodes()
        .iter()
        .find(own)
        .ok_or_else(|| bad_argument!("no node has processors that this process may use"))?;
    let with_memory = topology.nodes().iter().filter(|node| node.has_memory());
    let distance = |to: &nearstate_numa::NumaNode| {
        let distance = topology.distance(node.number, to.number).unwrap_or(0);
        format!("{PREFIX}{} is at distance {distance}", to.number)
    };
    let distances: Vec<String> = with_memory.map(distance).collect();
    let far = if distances.len() > 1 { "" } else { "; this machine has no other node with memory" };
    let text = format!(
        "clients run on the processors of node {}: {}{far}",
        node.number,
        distances.join(", ")
    );
    let cpus = node.cpus.intersection(&allowed);
    Ok((cpus.iter().map(|cpu| cpu as usize).collect(), text))
}

impl Target for NodeRegionTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> Result<String> {
        Ok(format!("{}, its memory bound to node {}", RegionTarget.version()?, self.node))
    }

    fn capabilities(&self) -> Capabilities {
        RegionTarget.capabilities()
    }

    fn folder_bytes(&self, spec: &DatabaseSpec) -> u64 {
        RegionTarget.folder_bytes(spec)
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        let file = create(spec, NumaPolicy::Bind(vec![self.node]))?;
        Ok(Box::new(NodeDatabase { file, node: self.node }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        Ok(Box::new(RegionConnection::open(address, schema)?))
    }
}

/// A region of which it is verified after loading where its pages are.
#[derive(Debug)]
struct NodeDatabase {
    file: FileDatabase,
    node: u32,
}

impl Database for NodeDatabase {
    fn address(&self) -> String {
        self.file.address()
    }

    fn after_load(&mut self) -> Result<Option<String>> {
        let settled = self.file.after_load()?.unwrap_or_default();
        let pages = Region::attach(Path::new(&self.file.address()))?.pages_by_node()?;
        let count = on_node(&pages, self.node)?;
        Ok(Some(format!("{settled}; {count} pages, all on node {}", self.node)))
    }

    fn memory_bytes(&mut self) -> Option<u64> {
        self.file.memory_bytes()
    }
}

/// The number of pages, if all are on this node.
fn on_node(pages: &PagesByNode, node: u32) -> Result<u64> {
    let elsewhere: u64 = pages.nodes.iter().filter(|(at, _)| **at != node).map(|(_, n)| *n).sum();
    match pages.nodes.get(&node) {
        Some(count) if elsewhere == 0 => Ok(*count),
        Some(_) | None => {
            Err(backend_error!("pages of the region are not on node {node}: {:?}", pages.nodes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_on_another_node_ends_the_run() {
        let pages = |nodes: &[(u32, u64)]| PagesByNode {
            nodes: nodes.iter().copied().collect(),
            unknown: 0,
        };
        assert_eq!(on_node(&pages(&[(1, 7)]), 1), Ok(7));
        for wrong in [&[(0, 7)][..], &[(0, 1), (1, 7)], &[]] {
            assert!(on_node(&pages(wrong), 1).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_nodes_of_this_machine_are_targets() {
        let names = expanded(&["region@nodes".to_owned(), "redis".to_owned()]).unwrap();
        let (redis, nodes) = names.split_last().unwrap();
        assert_eq!(redis, "redis");
        assert!(!nodes.is_empty());
        assert!(nodes.iter().all(|name| NodeRegionTarget::named(name).is_some()), "{nodes:?}");
        assert!(NodeRegionTarget::named("region@x").is_none());
        let (cpus, note) = compute_node().unwrap();
        assert!(!cpus.is_empty() && note.contains("is at distance 10"), "{note}");
    }
}
