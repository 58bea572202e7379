//! A machine as the plan sees it: cores with their free processors, and the groups they form.

use nearstate_model::Error;
use nearstate_model::{Result, invariant};

use super::request::PlanOptions;
use crate::cpu_set::CpuSet;
use crate::topology::{Proximity, Topology};

/// A core with at least one usable processor.
#[derive(Clone, Debug)]
pub(super) struct CoreState {
    /// Free processors, ascending.
    pub(super) free: Vec<u32>,
    /// All processors that are online, also unusable ones.
    pub(super) threads: usize,
    /// Those that a plan may use.
    pub(super) usable: usize,
    /// Whether another program keeps one of its processors busy.
    pub(super) is_busy: bool,
    /// Index of its node.
    pub(super) node: usize,
    pub(super) package: u32,
    pub(super) l2: u32,
    pub(super) l3: u32,
    /// Isolated processors come first, cores for housekeeping last.
    pub(super) rank: u8,
}

impl CoreState {
    /// Whether no other program uses a part of it.
    pub(super) fn is_whole(&self) -> bool {
        self.free.len() == self.threads
    }

    /// Whether nothing that is known runs on it.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.usable && !self.is_busy
    }
}

/// Cores that share a cache or a node.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) cores: Vec<usize>,
    pub(super) node: usize,
}

impl Group {
    /// Cores of which no other program uses a part.
    pub(super) fn free_cores(&self, machine: &MachineState) -> usize {
        self.cores.iter().filter(|core| machine.core(**core).is_whole()).count()
    }
}

/// A node of a machine.
#[derive(Clone, Debug)]
pub(super) struct NodeState {
    pub(super) number: u32,
    pub(super) cores: Vec<usize>,
    pub(super) free_cpus: usize,
    pub(super) free_cores: usize,
    /// Pairs of free processors of one core.
    pub(super) free_pairs: usize,
    /// Distance to the nearest node with memory; 0 if it has memory itself.
    pub(super) memory_distance: u32,
    /// Distance to the network interface; 0 if it does not count.
    pub(super) nic_distance: u32,
}

/// A machine while it is filled.
#[derive(Clone, Debug)]
pub(super) struct MachineState {
    pub(super) origin: String,
    pub(super) cores: Vec<CoreState>,
    pub(super) nodes: Vec<NodeState>,
    /// Cores that share the second-level cache, the third-level cache, the node. Single cores form
    /// no group.
    pub(super) groups: [Vec<Group>; 3],
    distances: Vec<Vec<u32>>,
    /// The core of each processor, by number.
    core_of: Vec<Option<usize>>,
    pub(super) free: usize,
    pub(super) has_hyper_threads: bool,
}

impl MachineState {
    pub(super) fn new(index: usize, topology: &Topology, options: &PlanOptions) -> Self {
        let busy = options.busy.get(&index);
        let nic = options.nic_nodes.get(&index).copied();
        let mut machine = Self {
            origin: topology.origin().to_owned(),
            cores: Vec::new(),
            nodes: Vec::new(),
            groups: [Vec::new(), Vec::new(), Vec::new()],
            distances: Vec::new(),
            core_of: Vec::new(),
            free: 0,
            has_hyper_threads: topology.threads_per_core() > 1,
        };
        let distance = |a, b| topology.distance(a, b).unwrap_or(u32::MAX);
        for node in topology.nodes() {
            let to_all = topology.nodes().iter().map(|other| distance(node.number, other.number));
            machine.distances.push(to_all.collect());
            machine.nodes.push(NodeState {
                number: node.number,
                cores: Vec::new(),
                free_cpus: 0,
                free_cores: 0,
                free_pairs: 0,
                memory_distance: match topology.memory_near(node.number) {
                    Some(near) if near != node.number => distance(node.number, near),
                    Some(_) | None => 0,
                },
                nic_distance: nic.map_or(0, |nic| distance(node.number, nic)),
            });
        }
        let is_busy = |cpu: u32| busy.is_some_and(|set| set.contains(cpu));
        let is_usable = |cpu: u32| {
            topology.cpu(cpu).is_some_and(|known| known.is_allowed)
                && !options.reserved.contains(cpu)
                && !is_busy(cpu)
        };
        let has_isolated = topology.cpus().iter().any(|cpu| cpu.is_isolated);
        for cpus in topology.cores().values() {
            let free: Vec<u32> = cpus.iter().filter(|cpu| is_usable(*cpu)).collect();
            let known = free.first().and_then(|first| topology.cpu(*first));
            let Some(first) = known else { continue };
            let node = topology.nodes().iter().position(|node| node.number == first.node);
            let Some(node) = node else { invariant!("node {} is in the topology", first.node) };
            let is_housekeeping = cpus.iter().any(|cpu| options.housekeeping.contains(cpu));
            machine.add(CoreState {
                rank: u8::from(has_isolated && !first.is_isolated) + 2 * u8::from(is_housekeeping),
                threads: cpus.len(),
                usable: free.len(),
                is_busy: cpus.iter().any(is_busy),
                node,
                package: first.package,
                l2: first.l2,
                l3: first.l3,
                free,
            });
        }
        machine.form_groups();
        machine
    }

    fn add(&mut self, core: CoreState) {
        let index = self.cores.len();
        let Some(node) = self.nodes.get_mut(core.node) else { invariant!("the node exists") };
        node.cores.push(index);
        node.free_cpus += core.free.len();
        node.free_cores += usize::from(core.is_whole());
        node.free_pairs += core.free.len() / 2;
        self.free += core.free.len();
        for cpu in &core.free {
            let number = *cpu as usize;
            if self.core_of.len() <= number {
                self.core_of.resize(number + 1, None);
            }
            if let Some(slot) = self.core_of.get_mut(number) {
                *slot = Some(index);
            }
        }
        self.cores.push(core);
    }

    fn form_groups(&mut self) {
        type GroupKey = fn(&CoreState) -> (usize, u32);
        let keys: [GroupKey; 3] =
            [|core| (core.node, core.l2), |core| (core.node, core.l3), |core| (core.node, 0)];
        for (groups, key) in self.groups.iter_mut().zip(keys) {
            let mut by_key = std::collections::BTreeMap::<_, Vec<usize>>::new();
            for (index, core) in self.cores.iter().enumerate() {
                by_key.entry(key(core)).or_default().push(index);
            }
            let formed = by_key.into_iter().filter(|(_, cores)| cores.len() > 1);
            *groups = formed.map(|((node, _), cores)| Group { cores, node }).collect();
        }
    }

    pub(super) fn core(&self, index: usize) -> &CoreState {
        let Some(core) = self.cores.get(index) else { invariant!("core {index} exists") };
        core
    }

    pub(super) fn node(&self, index: usize) -> &NodeState {
        let Some(node) = self.nodes.get(index) else { invariant!("node {index} exists") };
        node
    }

    /// The core of a processor that a plan may use.
    pub(super) fn core_of(&self, cpu: u32) -> Option<usize> {
        self.core_of.get(cpu as usize).copied().flatten()
    }

    pub(super) fn is_free(&self, cpu: u32) -> bool {
        self.core_of(cpu).is_some_and(|core| self.core(core).free.contains(&cpu))
    }

    /// The distance between two nodes, by index.
    pub(super) fn distance(&self, a: usize, b: usize) -> u32 {
        self.distances.get(a).and_then(|row| row.get(b)).copied().unwrap_or(u32::MAX)
    }

    /// How near two cores are.
    pub(super) fn proximity(&self, a: usize, b: usize) -> Proximity {
        let (first, second) = (self.core(a), self.core(b));
        match () {
            () if first.node != second.node => {
                Proximity::Remote(self.distance(first.node, second.node))
            }
            () if a == b => Proximity::Core,
            () if first.l2 == second.l2 => Proximity::L2,
            () if first.l3 == second.l3 => Proximity::L3,
            () => Proximity::Node,
        }
    }

    /// Takes a free processor.
    pub(super) fn take(&mut self, cpu: u32) {
        self.change(cpu, |free| {
            let found = free.iter().position(|number| *number == cpu);
            let Some(at) = found else { invariant!("processor {cpu} is free") };
            free.remove(at);
        });
    }

    /// Returns a processor.
    pub(super) fn release(&mut self, cpu: u32) {
        self.change(cpu, |free| {
            let Err(at) = free.binary_search(&cpu) else { invariant!("processor {cpu} was taken") };
            free.insert(at, cpu);
        });
    }

    fn change(&mut self, cpu: u32, change: impl FnOnce(&mut Vec<u32>)) {
        let Some(index) = self.core_of(cpu) else { invariant!("processor {cpu} is usable") };
        let Some(core) = self.cores.get_mut(index) else { invariant!("core {index} exists") };
        let Some(node) = self.nodes.get_mut(core.node) else { invariant!("the node exists") };
        let (was_whole, before) = (core.is_whole(), core.free.len());
        change(&mut core.free);
        node.free_cores = node.free_cores + usize::from(core.is_whole()) - usize::from(was_whole);
        node.free_cpus = node.free_cpus + core.free.len() - before;
        node.free_pairs = node.free_pairs + core.free.len() / 2 - before / 2;
        self.free = self.free + core.free.len() - before;
    }

    /// Takes the processors that a slice is pinned to.
    ///
    /// # Errors
    /// `BadArgument`: a processor does not exist, is not usable, or is taken.
    pub(super) fn pin(&mut self, name: &str, cpus: &CpuSet, topology: &Topology) -> Result<()> {
        for cpu in cpus.iter() {
            let why = match (topology.cpu(cpu), self.core_of(cpu)) {
                (None, _) if topology.offline().contains(cpu) => "is offline",
                (None, _) => "does not exist",
                (Some(known), None) if !known.is_allowed => "is not allowed for this process",
                (Some(_), None) => "is reserved or busy",
                (Some(_), Some(_)) if !self.is_free(cpu) => "is taken by another slice",
                (Some(_), Some(_)) => {
                    self.take(cpu);
                    continue;
                }
            };
            let detail =
                format!("slice {name}: processor {cpu} of {} {why}; pin another one", self.origin);
            return Err(Error::BadArgument { detail });
        }
        Ok(())
    }
}

#[cfg(test)]
impl MachineState {
    /// A machine of these cores. Each node has the distance 10 to itself.
    pub(super) fn of_cores(cores: Vec<CoreState>, distances: Vec<Vec<u32>>) -> Self {
        let node = |(index, _)| NodeState {
            number: u32::try_from(index).unwrap(),
            cores: Vec::new(),
            free_cpus: 0,
            free_cores: 0,
            free_pairs: 0,
            memory_distance: 11 * u32::from(index == 1),
            nic_distance: 0,
        };
        let mut machine = Self {
            origin: "test".to_owned(),
            cores: Vec::new(),
            nodes: distances.iter().enumerate().map(node).collect(),
            groups: [Vec::new(), Vec::new(), Vec::new()],
            distances,
            core_of: Vec::new(),
            free: 0,
            has_hyper_threads: true,
        };
        for core in cores {
            machine.add(core);
        }
        machine.form_groups();
        machine
    }
}
