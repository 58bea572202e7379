//! What Kubernetes' static CPU manager chooses, in versions 1.31 to 1.34
//! (`pkg/kubelet/cm/cpumanager/cpu_assignment.go`), with the topology manager's policy `none`.
//!
//! Of equal groups the one with fewer free processors comes first, then the one with the lower
//! number. Nodes are the outer level where the machine has at least as many sockets as nodes,
//! otherwise sockets are. `strict-cpu-reservation` keeps other containers off reserved processors
//! and `align-by-socket` only guides hints of the topology manager; neither changes what is chosen
//! here.

mod across_nodes;

use std::collections::BTreeMap;

use crate::cpu_set::CpuSet;
use crate::topology::{Cpu, Topology};

/// Options of Kubernetes' static policy. It refuses the combinations that are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubernetesPolicy {
    /// Whole nodes and sockets, whole cores, then single processors.
    #[default]
    Packed,
    /// `full-pcpus-only`: as packed, but only multiples of a core are admitted, and only while
    /// enough cores are wholly free.
    FullCores,
    /// `distribute-cpus-across-cores`: whole nodes and sockets, then single processors of a socket
    /// by their numbers.
    AcrossCores,
    /// `distribute-cpus-across-numa`: the same number of processors of as few nodes as possible,
    /// packed in each.
    AcrossNodes,
    /// `distribute-cpus-across-numa` with `full-pcpus-only`: whole cores of each node.
    AcrossNodesFullCores,
    /// `prefer-align-cpus-by-uncorecache` (from 1.32): as packed, but after whole nodes and sockets
    /// come whole third-level caches, then one cache that has room for the rest.
    AlignedCaches,
    /// `prefer-align-cpus-by-uncorecache` with `full-pcpus-only`.
    AlignedCachesFullCores,
}

impl KubernetesPolicy {
    const fn is_full_cores(self) -> bool {
        match self {
            Self::FullCores | Self::AcrossNodesFullCores | Self::AlignedCachesFullCores => true,
            Self::Packed | Self::AcrossCores | Self::AcrossNodes | Self::AlignedCaches => false,
        }
    }
}

pub(super) fn too_few(wanted: usize, free: usize) -> String {
    format!("it needs {wanted} processors; {free} are free")
}

/// The processors that the static policy gives a container, or why it gives none. Kubernetes
/// compares the free processors of a socket or core with the mean size; here a group is free if all
/// of its own processors are, which differs where groups have different sizes.
pub(super) fn choose(
    topology: &Topology,
    free: &CpuSet,
    wanted: usize,
    policy: KubernetesPolicy,
) -> Result<Vec<u32>, String> {
    if wanted > free.len() {
        return Err(too_few(wanted, free.len()));
    }
    if policy.is_full_cores() {
        check_full_cores(topology, free, wanted)?;
    }
    let machine = StaticPolicyMachine::new(topology);
    match policy {
        KubernetesPolicy::AcrossNodes => across_nodes::choose(&machine, free, wanted, 1),
        KubernetesPolicy::AcrossNodesFullCores => {
            across_nodes::choose(&machine, free, wanted, threads_of_core(topology))
        }
        KubernetesPolicy::Packed
        | KubernetesPolicy::FullCores
        | KubernetesPolicy::AcrossCores
        | KubernetesPolicy::AlignedCaches
        | KubernetesPolicy::AlignedCachesFullCores => {
            Ok(Taking::new(&machine, free.clone(), wanted).packed(policy))
        }
    }
}

/// The hyper-threads of a core, in the mean.
fn threads_of_core(topology: &Topology) -> usize {
    topology.cpus().len() / topology.cores().len()
}

/// What `full-pcpus-only` admits.
fn check_full_cores(topology: &Topology, free: &CpuSet, wanted: usize) -> Result<(), String> {
    let threads = threads_of_core(topology);
    if !wanted.is_multiple_of(threads) {
        return Err(format!(
            "full-pcpus-only admits multiples of {threads} processors only (SMTAlignmentError)"
        ));
    }
    let cores = topology.cores();
    let whole: usize = cores.values().filter(|cpus| cpus.is_subset(free)).map(CpuSet::len).sum();
    if wanted > whole {
        return Err(format!(
            "full-pcpus-only needs {wanted} processors of whole cores; {whole} are free \
             (SMTAlignmentError)"
        ));
    }
    Ok(())
}

/// What processors have in common.
#[derive(Clone, Copy)]
enum Level {
    Node,
    Socket,
    /// A third-level cache that only a part of a node shares, otherwise the socket.
    Cache,
    Core,
}

struct StaticPolicyMachine<'a> {
    topology: &'a Topology,
    /// Whether nodes are the outer level, and sockets the inner one.
    is_by_node: bool,
    /// The number of nodes with processors, and of third-level caches.
    nodes: usize,
    caches: usize,
    /// By processor.
    cache_of: BTreeMap<u32, u32>,
}

impl<'a> StaticPolicyMachine<'a> {
    fn new(topology: &'a Topology) -> Self {
        let cpus = topology.cpus();
        let sockets: CpuSet = cpus.iter().map(|cpu| cpu.package).collect();
        let nodes: CpuSet = cpus.iter().map(|cpu| cpu.node).collect();
        let cache_of = cache_of(topology);
        let caches: CpuSet = cache_of.values().copied().collect();
        let is_by_node = sockets.len() >= nodes.len();
        Self { topology, is_by_node, nodes: nodes.len(), caches: caches.len(), cache_of }
    }

    fn group(&self, level: Level, cpu: &Cpu) -> u32 {
        match level {
            Level::Node => cpu.node,
            Level::Socket => cpu.package,
            Level::Cache => self.cache_of.get(&cpu.number).copied().unwrap_or(cpu.number),
            Level::Core => cpu.core,
        }
    }

    /// The levels above cores, the outer one first.
    const fn levels(&self) -> [Level; 2] {
        if self.is_by_node { [Level::Node, Level::Socket] } else { [Level::Socket, Level::Node] }
    }

    /// The levels by which groups of a level are ordered, itself the last one.
    const fn order(&self, level: Level) -> &'static [Level] {
        use Level::{Cache, Core, Node, Socket};
        match (level, self.is_by_node) {
            (Node, true) => &[Node],
            (Node, false) => &[Socket, Node],
            (Socket, true) => &[Node, Socket],
            (Socket, false) => &[Socket],
            (Cache, true) => &[Node, Cache],
            (Cache, false) => &[Socket, Node, Cache],
            (Core, true) => &[Node, Socket, Core],
            (Core, false) => &[Socket, Node, Core],
        }
    }
}

/// The cache of each processor: the lowest number of a processor that shares it. A cache of a whole
/// node, or none, counts as that of the socket.
fn cache_of(topology: &Topology) -> BTreeMap<u32, u32> {
    let mut of = BTreeMap::new();
    for cache in topology.caches().iter().filter(|cache| cache.level == 3) {
        for cpu in cache.cpus.iter().filter_map(|number| topology.cpu(number)) {
            let is_node = topology.node(cpu.node).is_some_and(|node| node.cpus == cache.cpus);
            if !is_node {
                of.insert(cpu.number, cpu.l3);
            }
        }
    }
    let mut of_socket = BTreeMap::new();
    for cpu in topology.cpus() {
        let socket = *of_socket.entry(cpu.package).or_insert(cpu.number);
        of.entry(cpu.number).or_insert(socket);
    }
    of
}

/// Processors that are chosen one group after the other.
struct Taking<'a> {
    machine: &'a StaticPolicyMachine<'a>,
    free: CpuSet,
    chosen: Vec<u32>,
    wanted: usize,
}

impl<'a> Taking<'a> {
    const fn new(machine: &'a StaticPolicyMachine<'a>, free: CpuSet, wanted: usize) -> Self {
        Self { machine, free, chosen: Vec::new(), wanted }
    }

    fn needed(&self) -> usize {
        self.wanted - self.chosen.len()
    }

    fn take(&mut self, cpus: impl IntoIterator<Item = u32>) {
        for cpu in cpus {
            self.chosen.push(cpu);
            self.free.remove(cpu);
        }
    }

    /// Takes what is wanted, the largest groups first.
    fn packed(mut self, policy: KubernetesPolicy) -> Vec<u32> {
        for level in self.machine.levels() {
            self.whole(level);
        }
        match policy {
            KubernetesPolicy::AcrossCores => self.single(Level::Socket),
            KubernetesPolicy::AlignedCaches | KubernetesPolicy::AlignedCachesFullCores => {
                self.caches();
                self.whole(Level::Core);
                self.single(Level::Core);
            }
            KubernetesPolicy::Packed
            | KubernetesPolicy::FullCores
            | KubernetesPolicy::AcrossNodes
            | KubernetesPolicy::AcrossNodesFullCores => {
                self.whole(Level::Core);
                self.single(Level::Core);
            }
        }
        self.chosen
    }

    /// The free processors, by the groups of a level in their order, then by number.
    fn in_order(&self, level: Level) -> Vec<&'a Cpu> {
        let topology = self.machine.topology;
        let mut cpus: Vec<&Cpu> = self.free.iter().filter_map(|n| topology.cpu(n)).collect();
        let counts = |level: &Level| {
            let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
            for cpu in &cpus {
                *counts.entry(self.machine.group(*level, cpu)).or_default() += 1;
            }
            (*level, counts)
        };
        let levels: Vec<_> = self.machine.order(level).iter().map(counts).collect();
        cpus.sort_by_cached_key(|cpu| {
            let key = |(level, counts): &(Level, BTreeMap<u32, usize>)| {
                let group = self.machine.group(*level, cpu);
                (counts.get(&group).copied().unwrap_or(0), group)
            };
            (levels.iter().map(key).collect::<Vec<_>>(), cpu.number)
        });
        cpus
    }

    /// The groups of a level with free processors, in order.
    fn groups(&self, level: Level) -> Vec<u32> {
        let mut groups: Vec<u32> = Vec::new();
        for cpu in self.in_order(level) {
            let group = self.machine.group(level, cpu);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    fn members(&self, level: Level, group: u32) -> CpuSet {
        let cpus = self.machine.topology.cpus().iter();
        cpus.filter(|cpu| self.machine.group(level, cpu) == group).map(|cpu| cpu.number).collect()
    }

    /// Takes groups that are wholly free while as many processors are needed.
    fn whole(&mut self, level: Level) {
        for group in self.groups(level) {
            let all = self.members(level, group);
            if all.len() <= self.needed() && all.is_subset(&self.free) {
                self.take(all.iter());
            }
        }
    }

    /// Takes the first processors of the order.
    fn single(&mut self, level: Level) {
        let order = self.in_order(level);
        let few: Vec<u32> = order.into_iter().map(|cpu| cpu.number).take(self.needed()).collect();
        self.take(few);
    }

    /// Takes whole caches while at least the mean size of one is needed, and the rest in the first
    /// cache that has room for it.
    fn caches(&mut self) {
        let mean = self.machine.topology.cpus().len() / self.machine.caches.max(1);
        for cache in self.groups(Level::Cache) {
            if self.needed() >= mean {
                self.whole(Level::Cache);
            }
            if self.needed() == 0 {
                return;
            }
            self.rest_in_cache(cache);
        }
    }

    /// Takes all that is needed from the first cores of a cache that have a free processor, if
    /// these have exactly that many. Of an odd number, the last core gives one processor less.
    fn rest_in_cache(&mut self, cache: u32) {
        let topology = self.machine.topology;
        let threads = threads_of_core(topology);
        let free = self.members(Level::Cache, cache).intersection(&self.free);
        let core = |number| topology.cpu(number).map(|cpu| cpu.core);
        let cores: CpuSet = free.iter().filter_map(core).collect();
        let first: CpuSet = cores.iter().take(self.needed().div_ceil(threads)).collect();
        let in_first = |cpu: &u32| core(*cpu).is_some_and(|core| first.contains(core));
        let mut cpus: Vec<u32> = self.free.iter().filter(in_first).collect();
        if !self.needed().is_multiple_of(2) && threads > 1 && cpus.len() > self.needed() {
            cpus.pop();
        }
        if cpus.len() == self.needed() {
            self.take(cpus);
        }
    }
}
