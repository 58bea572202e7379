//! What other methods would choose, to compare a plan with: no pinning, Kubernetes' static CPU
//! manager, random processors.
//!
//! Kubernetes' order is that of version 1.31, which is the first one with
//! `distribute-cpus-across-cores`, until 1.34 (`pkg/kubelet/cm/cpumanager/cpu_assignment.go`,
//! `takeByTopologyNUMAPacked`): of equal groups the one with fewer free processors comes first,
//! then the one with the lower number. Nodes are the outer level where the machine has at least as
//! many sockets as nodes, otherwise sockets are.

use std::collections::BTreeMap;

use super::machine::MachineState;
use super::place::assignment;
use super::request::{PlanOptions, SliceRequest};
use super::{RefusedSlice, SlicePlan, SliceUnit};
use crate::cpu_set::CpuSet;
use crate::topology::{Cpu, Topology};

/// Options of Kubernetes' static policy.
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
}

/// A method to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The scheduler moves threads over all allowed processors.
    NoPinning,
    /// Kubernetes' static CPU manager.
    Kubernetes(KubernetesPolicy),
    /// Random processors, from a seed.
    Random(u64),
}

/// Places slices on one machine by another method, in the order of the requests. With
/// [`Baseline::NoPinning`] every slice gets all processors.
pub fn baseline(
    topology: &Topology,
    requests: &[SliceRequest],
    options: &PlanOptions,
    method: Baseline,
) -> SlicePlan {
    let usable = topology.allowed().difference(&options.reserved);
    let mut free = usable.clone();
    let machine = MachineState::new(0, topology, options);
    let mut random = match method {
        Baseline::Random(seed) => seed,
        Baseline::NoPinning | Baseline::Kubernetes(_) => 0,
    };
    let mut plan = SlicePlan::default();
    for request in requests {
        let wanted = request.cores as usize;
        let chosen = match method {
            Baseline::NoPinning => Ok(usable.iter().collect()),
            Baseline::Kubernetes(policy) => kubernetes(topology, &free, wanted, policy),
            Baseline::Random(_) => shuffled(&free, &mut random, wanted),
        };
        let slice = request.name.clone();
        match chosen {
            Ok(cpus) => {
                if method != Baseline::NoPinning {
                    free = free.difference(&cpus.iter().copied().collect());
                }
                let traffic = options.thresholds.level(request.load, None);
                let units = units(topology, &cpus);
                let place = (0, &machine, topology);
                plan.assignments.push(assignment(&slice, place, traffic, units, None));
            }
            Err(reason) => plan.refused.push(RefusedSlice { slice, reason }),
        }
    }
    plan
}

fn units(topology: &Topology, cpus: &[u32]) -> Vec<SliceUnit> {
    let unit = |cpus: &[u32]| SliceUnit {
        cpus: cpus.to_vec(),
        proximity: match cpus {
            [a, b] => topology.proximity(*a, *b),
            _ => None,
        },
        reason: String::new(),
    };
    cpus.chunks(2).map(unit).collect()
}

type ChosenCpus = Result<Vec<u32>, String>;

fn too_few(wanted: usize, free: usize) -> String {
    format!("it needs {wanted} processors; {free} are free")
}

/// The choice of Kubernetes' static policy. A group counts as free if all of its own processors
/// are; Kubernetes compares with the mean size, which differs where groups have different sizes.
fn kubernetes(
    topology: &Topology,
    free: &CpuSet,
    wanted: usize,
    policy: KubernetesPolicy,
) -> ChosenCpus {
    if wanted > free.len() {
        return Err(too_few(wanted, free.len()));
    }
    if policy == KubernetesPolicy::FullCores {
        check_full_cores(topology, free, wanted)?;
    }
    let packages: CpuSet = topology.cpus().iter().map(|cpu| cpu.package).collect();
    let nodes: CpuSet = topology.cpus().iter().map(|cpu| cpu.node).collect();
    let is_by_node = packages.len() >= nodes.len();
    let mut taking =
        Taking { topology, is_by_node, free: free.clone(), chosen: Vec::new(), wanted };
    let levels: [fn(&Cpu) -> u32; 2] =
        if is_by_node { [node_of, package_of] } else { [package_of, node_of] };
    for level in levels {
        taking.whole(level);
    }
    if policy == KubernetesPolicy::AcrossCores {
        taking.single(false);
    } else {
        taking.whole(|cpu| cpu.core);
        taking.single(true);
    }
    Ok(taking.chosen)
}

const fn node_of(cpu: &Cpu) -> u32 {
    cpu.node
}

const fn package_of(cpu: &Cpu) -> u32 {
    cpu.package
}

/// What `full-pcpus-only` admits.
fn check_full_cores(topology: &Topology, free: &CpuSet, wanted: usize) -> Result<(), String> {
    let threads = topology.threads_per_core();
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

struct Taking<'a> {
    topology: &'a Topology,
    /// Whether nodes are the outer level, and sockets the inner one.
    is_by_node: bool,
    free: CpuSet,
    chosen: Vec<u32>,
    wanted: usize,
}

impl<'a> Taking<'a> {
    fn needed(&self) -> usize {
        self.wanted - self.chosen.len()
    }

    fn take(&mut self, cpus: impl IntoIterator<Item = u32>) {
        for cpu in cpus {
            self.chosen.push(cpu);
            self.free.remove(cpu);
        }
    }

    /// The free processors: by outer and inner level, then by core or, in each socket, by number
    /// alone.
    fn in_order(&self, is_by_core: bool) -> Vec<&'a Cpu> {
        let mut cpus: Vec<&'a Cpu> =
            self.free.iter().filter_map(|number| self.topology.cpu(number)).collect();
        let count = |key: fn(&Cpu) -> u32| {
            let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
            for cpu in &cpus {
                *counts.entry(key(cpu)).or_default() += 1;
            }
            move |cpu: &Cpu| (counts.get(&key(cpu)).copied().unwrap_or(0), key(cpu))
        };
        let (node, package, core) = (count(node_of), count(package_of), count(|cpu| cpu.core));
        cpus.sort_by_cached_key(|cpu| {
            let (node, package) = (node(cpu), package(cpu));
            let levels = match (self.is_by_node, is_by_core) {
                (true, _) => [node, package],
                (false, true) => [package, node],
                (false, false) => [package, (0, 0)],
            };
            (levels, is_by_core.then(|| core(cpu)), cpu.number)
        });
        cpus
    }

    /// Takes groups that are wholly free while as many processors are needed.
    fn whole(&mut self, key: fn(&Cpu) -> u32) {
        let mut groups: Vec<u32> = Vec::new();
        for group in self.in_order(true).into_iter().map(key) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        for group in groups {
            let all = self.topology.cpus().iter().filter(|cpu| key(cpu) == group);
            let all: CpuSet = all.map(|cpu| cpu.number).collect();
            if all.len() <= self.needed() && all.is_subset(&self.free) {
                self.take(all.iter());
            }
        }
    }

    /// Takes the first processors of the order.
    fn single(&mut self, is_by_core: bool) {
        let order = self.in_order(is_by_core);
        let few: Vec<u32> = order.into_iter().map(|cpu| cpu.number).take(self.needed()).collect();
        self.take(few);
    }
}

fn shuffled(free: &CpuSet, random: &mut u64, wanted: usize) -> ChosenCpus {
    if wanted > free.len() {
        return Err(too_few(wanted, free.len()));
    }
    let mut left: Vec<u32> = free.iter().collect();
    let mut chosen = Vec::new();
    while chosen.len() < wanted {
        // SplitMix64. The bias of the remainder is below 2^-40 for so few processors.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let at = (z ^ (z >> 31)) % (left.len() as u64);
        chosen.push(left.swap_remove(usize::try_from(at).unwrap_or(0)));
    }
    Ok(chosen)
}
