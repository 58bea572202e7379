//! A machine: processors, cores, caches, NUMA nodes, distances.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use nearstate_model::{Error, Result};

use crate::cpu_set::{CPUS_MAX, CpuSet};

/// NUMA nodes are numbered below this: the limit of Linux.
pub(crate) const NODES_MAX: u32 = 1024;

/// The processors that all caches, or all nodes, list together: a processor is in a few caches and
/// on one node. It bounds the memory that a hostile file can request.
pub(crate) const MEMBERS_MAX: usize = 32 * CPUS_MAX as usize;

/// The distance of a node to itself, by definition of the ACPI table.
const DISTANCE_LOCAL: u32 = 10;

/// The distance that Linux assumes between two nodes if the firmware gives none.
const DISTANCE_REMOTE: u32 = 20;

/// A logical processor that is online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// Its core: the lowest number of a processor of the same core.
    pub core: u32,
    /// The kernel's number of its core, unique in a package only.
    pub core_id: u32,
    /// Its socket.
    pub package: u32,
    /// Its NUMA node.
    pub node: u32,
    /// The lowest number of a processor that shares its second-level cache.
    pub l2: u32,
    /// The lowest number of a processor that shares its third-level cache.
    pub l3: u32,
    /// False if the process may not use it: its affinity or control group excludes it.
    pub is_allowed: bool,
    /// True if the scheduler leaves it to pinned threads (`isolcpus`).
    pub is_isolated: bool,
}

/// A NUMA node: memory, and the processors next to it. Either may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its online processors.
    pub cpus: CpuSet,
    /// Bytes of its memory, or `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// False if the process may not use its memory.
    pub is_allowed: bool,
    /// Distances to the nodes, in the order of [`Topology::nodes`].
    pub distances: Vec<u32>,
}

impl NumaNode {
    /// Whether it has memory. A node of unknown size has.
    pub fn has_memory(&self) -> bool {
        self.memory_bytes != Some(0)
    }
}

/// What a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKind {
    /// Data.
    Data,
    /// Instructions.
    Instruction,
    /// Both.
    Unified,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cache {
    /// Its level, from 1.
    pub level: u32,
    /// What it keeps.
    pub kind: CacheKind,
    /// The online processors that share it.
    pub cpus: CpuSet,
    /// Its size, or `None` if unknown.
    pub bytes: Option<u64>,
}

/// A network interface of hardware.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// The node that it is attached to, or `None` if the machine does not tell.
    pub node: Option<u32>,
}

/// How near two processors are, from the nearest. The classes of paper 5 are [`Proximity::Core`]
/// (hyper-thread pair), the next three (intra-node pair), and the last (inter-node pair).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proximity {
    /// Hyper-threads of one core.
    Core,
    /// Two cores that share a second-level cache.
    L2,
    /// Two cores that share a third-level cache.
    L3,
    /// Two cores of one NUMA node.
    Node,
    /// Two NUMA nodes at this distance: the larger one of both directions.
    Remote(u32),
}

impl fmt::Display for Proximity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Core => f.write_str("same core"),
            Self::L2 => f.write_str("same L2 cache"),
            Self::L3 => f.write_str("same L3 cache"),
            Self::Node => f.write_str("same node"),
            Self::Remote(distance) => write!(f, "two nodes at distance {distance}"),
        }
    }
}

/// The share of processor time that control groups grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Thousandths of a processor: 2500 are two and a half.
    pub milli_cpus: u64,
    /// The control group with the least.
    pub origin: String,
}

impl FromStr for Proximity {
    type Err = Error;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self> {
        let known = [Self::Core, Self::L2, Self::L3, Self::Node];
        if let Some(near) = known.into_iter().find(|near| near.to_string() == text) {
            return Ok(near);
        }
        let distance = text.strip_prefix("two nodes at distance ").and_then(|n| n.parse().ok());
        distance.map(Self::Remote).ok_or_else(|| Error::BadArgument {
            detail: format!(
                "{text:?} is no proximity; expected \"same core\", \"same L2 cache\", \"same L3 \
                 cache\", \"same node\" or \"two nodes at distance 21\""
            ),
        })
    }
}

/// What a reader of a topology found, before it is checked.
#[derive(Clone, Debug, Default)]
pub struct TopologyParts {
    /// Where it was read from.
    pub origin: String,
    /// The machine's architecture, if known.
    pub architecture: Option<String>,
    /// Online processors.
    pub cpus: Vec<Cpu>,
    /// Nodes. Their processors are derived from [`Cpu::node`].
    pub nodes: Vec<NumaNode>,
    /// Caches. The first processors of [`Cpu::l2`] and [`Cpu::l3`] are derived from them.
    pub caches: Vec<Cache>,
    /// Processors that are present but offline.
    pub offline: CpuSet,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// What limits the allowed processors, if anything does.
    pub limited_by: Option<String>,
    /// Processors without the periodic tick of the scheduler while one thread runs (`nohz_full`).
    pub nohz_full: CpuSet,
    /// The processor time of this process, if a control group limits it.
    pub quota: Option<CpuQuota>,
    /// The kind of the own control group's partition, `root` or `isolated`, if it is one.
    pub partition: Option<String>,
    /// What was assumed or ignored, for the user.
    pub warnings: Vec<String>,
}

/// A machine. Processors, nodes and caches are in ascending order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    origin: String,
    architecture: Option<String>,
    cpus: Vec<Cpu>,
    nodes: Vec<NumaNode>,
    caches: Vec<Cache>,
    offline: CpuSet,
    nics: Vec<Nic>,
    limited_by: Option<String>,
    nohz_full: CpuSet,
    quota: Option<CpuQuota>,
    partition: Option<String>,
    warnings: Vec<String>,
}

impl Topology {
    /// Checks what was read, and completes it: groups of caches, processors of nodes, distances.
    ///
    /// # Errors
    /// `BadArgument`: no processor, a number twice, a processor of an unknown node, a core or cache
    /// whose processors disagree.
    pub fn new(parts: TopologyParts) -> Result<Self> {
        let TopologyParts { origin, architecture, mut cpus, nodes, mut caches, .. } = parts;
        let mut warnings = parts.warnings;
        cpus.sort_by_key(|cpu| cpu.number);
        check_cpus(&origin, &cpus)?;
        let online: CpuSet = cpus.iter().map(|cpu| cpu.number).collect();
        for cache in &mut caches {
            cache.cpus = cache.cpus.intersection(&online);
        }
        caches.retain(|cache| !cache.cpus.is_empty());
        caches.sort();
        caches.dedup();
        group_by_cache(&origin, &mut cpus, &caches)?;
        let nodes = complete_nodes(&origin, &mut cpus, nodes, &mut warnings)?;
        let mut nics = parts.nics;
        nics.sort();
        nics.dedup();
        let architecture = architecture.map(|name| architecture_name(&name).to_owned());
        let topology = Self {
            origin,
            architecture,
            cpus,
            nodes,
            caches,
            offline: parts.offline.difference(&online),
            nics,
            limited_by: parts.limited_by,
            nohz_full: parts.nohz_full.intersection(&online),
            quota: parts.quota,
            partition: parts.partition,
            warnings,
        };
        topology.check_nesting()?;
        Ok(topology)
    }

    /// A core is inside a node.
    fn check_nesting(&self) -> Result<()> {
        let mut nodes = BTreeMap::new();
        for cpu in &self.cpus {
            let node = *nodes.entry(cpu.core).or_insert(cpu.node);
            if node != cpu.node {
                let what = format!(
                    "processors {} and {} are one core, but on nodes {node} and {}",
                    cpu.core, cpu.number, cpu.node
                );
                return Err(unusable(&self.origin, &what));
            }
        }
        Ok(())
    }

    /// Where it was read from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The machine's architecture, as [`architecture_name`] names it. A copy of `/sys` has none.
    pub fn architecture(&self) -> Option<&str> {
        self.architecture.as_deref()
    }

    /// The online processors.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// A processor that is online.
    pub fn cpu(&self, number: u32) -> Option<&Cpu> {
        let index = self.cpus.binary_search_by_key(&number, |cpu| cpu.number).ok()?;
        self.cpus.get(index)
    }

    /// The NUMA nodes. A machine without NUMA has one.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// A node.
    pub fn node(&self, number: u32) -> Option<&NumaNode> {
        self.nodes.iter().find(|node| node.number == number)
    }

    /// The caches.
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// Processors that are present but offline.
    pub const fn offline(&self) -> &CpuSet {
        &self.offline
    }

    /// Network interfaces of hardware.
    pub fn nics(&self) -> &[Nic] {
        &self.nics
    }

    /// What excludes the processors that are not allowed.
    pub fn limited_by(&self) -> Option<&str> {
        self.limited_by.as_deref()
    }

    /// Processors without the periodic tick of the scheduler while one thread runs.
    pub const fn nohz_full(&self) -> &CpuSet {
        &self.nohz_full
    }

    /// The processor time of this process, if a control group limits it.
    pub const fn quota(&self) -> Option<&CpuQuota> {
        self.quota.as_ref()
    }

    /// The kind of the own control group's partition (`root`, `isolated`), if it is one.
    pub fn partition(&self) -> Option<&str> {
        self.partition.as_deref()
    }

    /// What was assumed or ignored.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The numbers of the processors that are allowed.
    pub fn allowed(&self) -> CpuSet {
        self.cpus.iter().filter(|cpu| cpu.is_allowed).map(|cpu| cpu.number).collect()
    }

    /// The number of hyper-threads of the largest core.
    pub fn threads_per_core(&self) -> usize {
        self.cores().values().map(CpuSet::len).max().unwrap_or(1)
    }

    /// The cores: their processors by [`Cpu::core`].
    pub fn cores(&self) -> BTreeMap<u32, CpuSet> {
        let mut cores: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in &self.cpus {
            cores.entry(cpu.core).or_default().insert(cpu.number);
        }
        cores
    }

    /// The distance between two nodes: the larger one of both directions. `None` if a node does not
    /// exist.
    pub fn distance(&self, a: u32, b: u32) -> Option<u32> {
        let index = |number| self.nodes.iter().position(|node| node.number == number);
        let (a, b) = (index(a)?, index(b)?);
        let one_way = |from: usize, to: usize| self.nodes.get(from)?.distances.get(to).copied();
        Some(one_way(a, b)?.max(one_way(b, a)?))
    }

    /// How near two processors are. `None` if one does not exist.
    pub fn proximity(&self, a: u32, b: u32) -> Option<Proximity> {
        let (a, b) = (self.cpu(a)?, self.cpu(b)?);
        if a.node != b.node {
            return Some(Proximity::Remote(self.distance(a.node, b.node)?));
        }
        Some(match () {
            () if a.core == b.core => Proximity::Core,
            () if a.l2 == b.l2 => Proximity::L2,
            () if a.l3 == b.l3 => Proximity::L3,
            () => Proximity::Node,
        })
    }

    /// The node with memory that is nearest to a node: itself if it has memory.
    pub fn memory_near(&self, node: u32) -> Option<u32> {
        let usable = self.nodes.iter().filter(|node| node.has_memory() && node.is_allowed);
        let nearest = usable.min_by_key(|other| {
            (self.distance(node, other.number), Reverse(other.memory_bytes), other.number)
        });
        nearest.map(|node| node.number)
    }

    /// The node of a network interface, given by its name or as the number of the node.
    ///
    /// # Errors
    /// `BadArgument`: no such interface or node, or an interface whose node is unknown.
    pub fn nic_node(&self, text: &str) -> Result<u32> {
        let known = || {
            let names: Vec<&str> = self.nics.iter().map(|nic| nic.name.as_str()).collect();
            if names.is_empty() { "none is known".to_owned() } else { names.join(", ") }
        };
        if let Some(nic) = self.nics.iter().find(|nic| nic.name == text) {
            return nic.node.ok_or_else(|| Error::BadArgument {
                detail: format!("the node of interface {text} is unknown; give a node's number"),
            });
        }
        match text.parse::<u32>().ok().and_then(|number| self.node(number)) {
            Some(node) => Ok(node.number),
            None => Err(Error::BadArgument {
                detail: format!(
                    "{text:?} is no network interface and no node of {}; interfaces: {}, nodes: {}",
                    self.origin,
                    known(),
                    self.nodes.iter().map(|node| node.number).collect::<CpuSet>()
                ),
            }),
        }
    }
}

/// The name of an architecture that Rust uses (`std::env::consts::ARCH`), for a name of the kernel
/// (`uname -m`), which hwloc uses. An unknown name stays.
pub fn architecture_name(name: &str) -> &str {
    match name {
        "i386" | "i486" | "i586" | "i686" => "x86",
        "amd64" => "x86_64",
        "arm64" | "aarch64_be" => "aarch64",
        "ppc" | "ppcle" => "powerpc",
        "ppc64" | "ppc64le" => "powerpc64",
        _ if name.starts_with("armv") => "arm",
        other => other,
    }
}

#[cold]
pub(crate) fn unusable(origin: &str, why: &str) -> Error {
    Error::BadArgument { detail: format!("{origin} describes no usable machine: {why}") }
}

fn check_cpus(origin: &str, cpus: &[Cpu]) -> Result<()> {
    let Some(last) = cpus.last() else {
        return Err(unusable(origin, "it has no online processor"));
    };
    if last.number >= CPUS_MAX {
        let what = format!("processor {} is above the maximum of {}", last.number, CPUS_MAX - 1);
        return Err(unusable(origin, &what));
    }
    for (cpu, next) in cpus.iter().zip(cpus.iter().skip(1)) {
        if cpu.number == next.number {
            let what = format!("processor {} is listed twice", cpu.number);
            return Err(unusable(origin, &what));
        }
    }
    let packages: BTreeMap<u32, u32> = cpus.iter().map(|cpu| (cpu.number, cpu.package)).collect();
    for cpu in cpus {
        match packages.get(&cpu.core) {
            Some(package) if *package == cpu.package => {}
            _ => {
                let what = format!(
                    "the core of processor {} contains processor {}, which is not online in the \
                     same socket",
                    cpu.number, cpu.core
                );
                return Err(unusable(origin, &what));
            }
        }
    }
    Ok(())
}

/// Sets the groups of second- and third-level caches. Without such a cache, what shares the level
/// below is the group.
fn group_by_cache(origin: &str, cpus: &mut [Cpu], caches: &[Cache]) -> Result<()> {
    for level in [2, 3] {
        let mut groups = BTreeMap::new();
        let shared = |cache: &&Cache| cache.level == level && cache.kind != CacheKind::Instruction;
        for cache in caches.iter().filter(shared) {
            let first = cache.cpus.first().unwrap_or_default();
            for cpu in cache.cpus.iter() {
                if groups.insert(cpu, first).is_some_and(|other| other != first) {
                    let what = format!("processor {cpu} is in two caches of level {level}");
                    return Err(unusable(origin, &what));
                }
            }
        }
        // Without a cache of this level, what shares the level below shares this one.
        for cpu in &mut *cpus {
            let below = if level == 2 { cpu.core } else { cpu.l2 };
            let group = groups.get(&cpu.number).copied().unwrap_or(below);
            *(if level == 2 { &mut cpu.l2 } else { &mut cpu.l3 }) = group;
        }
    }
    Ok(())
}

fn complete_nodes(
    origin: &str,
    cpus: &mut [Cpu],
    mut nodes: Vec<NumaNode>,
    warnings: &mut Vec<String>,
) -> Result<Vec<NumaNode>> {
    nodes.sort_by_key(|node| node.number);
    for (node, next) in nodes.iter().zip(nodes.iter().skip(1)) {
        if node.number == next.number {
            return Err(unusable(origin, &format!("node {} is listed twice", node.number)));
        }
    }
    if let Some(node) = nodes.last().filter(|node| node.number >= NODES_MAX) {
        let what = format!("node {} is above the maximum of {}", node.number, NODES_MAX - 1);
        return Err(unusable(origin, &what));
    }
    for node in &mut nodes {
        let own = cpus.iter().filter(|cpu| cpu.node == node.number);
        node.cpus = own.map(|cpu| cpu.number).collect();
    }
    let is_node = |number: u32| nodes.binary_search_by_key(&number, |node| node.number).is_ok();
    if let Some(cpu) = cpus.iter().find(|cpu| !is_node(cpu.node)) {
        let what = format!("processor {} is on node {}, which is unknown", cpu.number, cpu.node);
        return Err(unusable(origin, &what));
    }
    let count = nodes.len();
    for (index, node) in nodes.iter_mut().enumerate() {
        let is_complete = node.distances.len() == count && !node.distances.contains(&0);
        if !is_complete {
            if count > 1 {
                warnings.push(format!(
                    "node {} has {} distances for {count} nodes; {DISTANCE_LOCAL} and \
                     {DISTANCE_REMOTE} are assumed",
                    node.number,
                    node.distances.len()
                ));
            }
            let assumed = |to| if to == index { DISTANCE_LOCAL } else { DISTANCE_REMOTE };
            node.distances = (0..count).map(assumed).collect();
        }
    }
    Ok(nodes)
}
