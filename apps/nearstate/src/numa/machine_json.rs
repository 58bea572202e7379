//! A topology as JSON.

use nearstate_numa::{CacheKind, CpuMarks, Topology};
use serde_json::{Value, json};

/// The machine.
pub(super) fn machine(topology: &Topology, marks: &CpuMarks) -> Value {
    let cpus: Vec<Value> = topology
        .cpus()
        .iter()
        .map(|cpu| {
            json!({
                "number": cpu.number, "core": cpu.core, "core_id": cpu.core_id,
                "package": cpu.package, "node": cpu.node, "l2": cpu.l2, "l3": cpu.l3,
                "is_allowed": cpu.is_allowed, "is_isolated": cpu.is_isolated,
                "is_reserved": marks.reserved.contains(cpu.number),
                "is_housekeeping": marks.housekeeping.contains(cpu.number),
                "is_nohz_full": topology.nohz_full().contains(cpu.number),
                "busy": marks.busy.get(&cpu.number),
            })
        })
        .collect();
    let nodes: Vec<Value> = topology
        .nodes()
        .iter()
        .map(|node| {
            json!({
                "number": node.number, "cpus": node.cpus.to_string(),
                "memory_bytes": node.memory_bytes, "is_allowed": node.is_allowed,
                "distances": node.distances,
            })
        })
        .collect();
    let caches: Vec<Value> = topology
        .caches()
        .iter()
        .map(|cache| {
            let kind = match cache.kind {
                CacheKind::Data => "data",
                CacheKind::Instruction => "instruction",
                CacheKind::Unified => "unified",
            };
            json!({
                "level": cache.level, "kind": kind, "bytes": cache.bytes,
                "cpus": cache.cpus.to_string(),
            })
        })
        .collect();
    let nics: Vec<Value> =
        topology.nics().iter().map(|nic| json!({"name": nic.name, "node": nic.node})).collect();
    json!({
        "origin": topology.origin(), "architecture": topology.architecture(),
        "threads_per_core": topology.threads_per_core(), "cpus": cpus, "nodes": nodes,
        "caches": caches, "nics": nics, "offline": topology.offline().to_string(),
        "limited_by": topology.limited_by(), "partition": topology.partition(),
        "quota": topology.quota().map(|quota| {
            json!({"milli_cpus": quota.milli_cpus, "origin": quota.origin})
        }),
        "warnings": topology.warnings(),
    })
}
