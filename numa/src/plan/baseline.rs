//! What other methods would choose, to compare a plan with: no pinning, Kubernetes' static CPU
//! manager, random processors.

use super::kubernetes::{self, KubernetesPolicy, too_few};
use super::machine::MachineState;
use super::place::assignment;
use super::request::{PlanOptions, SliceRequest};
use super::{RefusedSlice, SlicePlan, SliceUnit};
use crate::cpu_set::CpuSet;
use crate::topology::Topology;

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
            Baseline::Kubernetes(policy) => kubernetes::choose(topology, &free, wanted, policy),
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
