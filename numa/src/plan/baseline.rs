//! What other methods would choose, to compare a plan with: no pinning, Kubernetes' static CPU
//! manager, random processors.

use std::collections::BTreeSet;

use super::machine::MachineState;
use super::place::assignment;
use super::request::{PlanOptions, SliceRequest};
use super::{RefusedSlice, SlicePlan, SliceUnit};
use crate::cpu_set::CpuSet;
use crate::topology::{Cpu, Topology};

/// Options of Kubernetes' static policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubernetesPolicy {
    /// Whole sockets, whole cores, then single processors.
    #[default]
    Packed,
    /// `full-pcpus-only`: as packed, but only multiples of a core are admitted.
    FullCores,
    /// `distribute-cpus-across-cores`: one processor of each core in turn.
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

/// The order of `takeByTopology` in Kubernetes' CPU manager.
fn kubernetes(
    topology: &Topology,
    free: &CpuSet,
    wanted: usize,
    policy: KubernetesPolicy,
) -> ChosenCpus {
    let threads = topology.threads_per_core();
    if wanted > free.len() {
        return Err(too_few(wanted, free.len()));
    }
    if policy == KubernetesPolicy::FullCores && !wanted.is_multiple_of(threads) {
        return Err(format!(
            "full-pcpus-only admits multiples of {threads} processors only (SMTAlignmentError)"
        ));
    }
    let mut taking = Taking { topology, free: free.clone(), chosen: Vec::new(), wanted };
    if policy == KubernetesPolicy::AcrossCores {
        taking.across_cores();
        return Ok(taking.chosen);
    }
    taking.whole(|cpu| cpu.package);
    taking.whole(|cpu| cpu.core);
    taking.single();
    Ok(taking.chosen)
}

struct Taking<'a> {
    topology: &'a Topology,
    free: CpuSet,
    chosen: Vec<u32>,
    wanted: usize,
}

impl Taking<'_> {
    fn needed(&self) -> usize {
        self.wanted - self.chosen.len()
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.chosen.extend(cpus.iter());
        self.free = self.free.difference(cpus);
    }

    /// The free processors of the same group as a processor, and the number of all of them.
    fn of_group(&self, key: fn(&Cpu) -> u32, group: u32) -> (CpuSet, usize) {
        let all = self.topology.cpus().iter().filter(|cpu| key(cpu) == group);
        let all: CpuSet = all.map(|cpu| cpu.number).collect();
        (all.intersection(&self.free), all.len())
    }

    /// Takes groups that are wholly free while as many processors are needed. Cores come from the
    /// socket with the fewest free ones.
    fn whole(&mut self, key: fn(&Cpu) -> u32) {
        let mut groups: Vec<(usize, u32)> = Vec::new();
        let mut seen = BTreeSet::new();
        for cpu in self.topology.cpus() {
            if seen.insert(key(cpu)) {
                let (in_package, _) = self.of_group(|cpu| cpu.package, cpu.package);
                groups.push((in_package.len(), key(cpu)));
            }
        }
        groups.sort_unstable();
        for (_, group) in groups {
            let (free, all) = self.of_group(key, group);
            if free.len() == all && all <= self.needed() {
                self.take(&free);
            }
        }
    }

    /// Single processors: of sockets that are used already, with few free processors, of cores
    /// that are used already.
    fn single(&mut self) {
        let chosen: CpuSet = self.chosen.iter().copied().collect();
        let mut order: Vec<_> = self
            .free
            .iter()
            .filter_map(|number| self.topology.cpu(number))
            .map(|cpu| {
                let in_package = |set: &CpuSet| {
                    set.iter()
                        .filter_map(|number| self.topology.cpu(number))
                        .filter(|other| other.package == cpu.package)
                        .count()
                };
                let (core, _) = self.of_group(|cpu| cpu.core, cpu.core);
                let used = std::cmp::Reverse(in_package(&chosen));
                (used, in_package(&self.free), core.len(), cpu.package, cpu.core, cpu.number)
            })
            .collect();
        order.sort_unstable();
        let few = order.into_iter().map(|entry| entry.5).take(self.needed()).collect();
        self.take(&few);
    }

    /// The first free processor of each core, then the second ones.
    fn across_cores(&mut self) {
        while self.needed() > 0 {
            let mut round: Vec<(u32, u32, u32)> = Vec::new();
            for (core, cpus) in self.topology.cores() {
                let first = cpus.intersection(&self.free).first();
                if let Some(cpu) = first.and_then(|first| self.topology.cpu(first)) {
                    round.push((cpu.package, core, cpu.number));
                }
            }
            round.sort_unstable();
            let few = round.into_iter().map(|entry| entry.2).take(self.needed());
            for cpu in few.collect::<Vec<_>>() {
                self.take(&std::iter::once(cpu).collect());
            }
        }
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
