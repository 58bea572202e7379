//! The instructions of a plan: a thousand slices on a hundred machines of 128 cores with two
//! hyper-threads. A plan in a second has a few 10^9 of them.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use nearstate_instructions::{MeasuredResult, measured, run};
use nearstate_numa::{
    Cache, CacheKind, Cpu, NumaNode, PlanOptions, SliceRequest, Topology, TopologyParts, plan,
};

const CORES: u32 = 128;
const MACHINES: usize = 100;
const SLICES: u32 = 1000;

fn main() -> ExitCode {
    run(&[("numa-plan", 1, plan_slices)])
}

/// Two sockets, each with a node; eight cores share a third-level cache.
fn machine() -> MeasuredResult<Topology> {
    let cpu = |number: u32| {
        let core = number % CORES;
        let package = core / (CORES / 2);
        Cpu {
            number,
            core,
            core_id: core,
            package,
            node: package,
            l2: core,
            l3: core,
            is_allowed: true,
            is_isolated: false,
        }
    };
    let shared = |per_cache: u32, level| {
        (0..CORES / per_cache).map(move |index| Cache {
            level,
            kind: CacheKind::Unified,
            cpus: (0..2 * CORES).filter(|cpu| cpu % CORES / per_cache == index).collect(),
            bytes: None,
        })
    };
    let node = |number: u32| NumaNode {
        number,
        cpus: nearstate_numa::CpuSet::new(),
        memory_bytes: Some(1 << 37),
        is_allowed: true,
        distances: if number == 0 { vec![10, 21] } else { vec![21, 10] },
    };
    Ok(Topology::new(TopologyParts {
        origin: "a machine of 128 cores".to_owned(),
        cpus: (0..2 * CORES).map(cpu).collect(),
        nodes: [0, 1].map(node).to_vec(),
        caches: shared(1, 2).chain(shared(8, 3)).collect(),
        ..TopologyParts::default()
    })?)
}

fn plan_slices(times: u64) -> MeasuredResult {
    let machines = vec![machine()?; MACHINES];
    let levels = ["low", "medium", "high"].iter().cycle();
    let request = |(number, level): (u32, &&str)| {
        format!("s{number}:{}:{level}", 1 + number * 7 % 16).parse()
    };
    let requests: Vec<SliceRequest> =
        (0..SLICES).zip(levels).map(request).collect::<Result<_, _>>()?;
    let options = PlanOptions::default();
    measured(times, |_| {
        let made = plan(&machines, &requests, &[], &[], &options)?;
        if made.refused.is_empty() { Ok(()) } else { Err("a slice was refused".into()) }
    })
}
