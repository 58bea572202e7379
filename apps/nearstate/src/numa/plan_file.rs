//! A plan as JSON, and back. A file may be from anywhere: everything in it is checked.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use nearstate_model::{Error, Result};
use nearstate_numa::{
    Assignment, CpuSet, NumaNode, SlicePlan, SliceUnit, Topology, architecture_name,
};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

/// The version of the file's format.
const FORMAT: u64 = 1;

/// The largest file: 100,000 slices with explanations have 60 MB. A value of JSON takes up to
/// 16 times the memory of its text.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Processors by node, which a machine must have so that a plan for it can be applied.
pub(super) fn nodes_of(topology: &Topology) -> Value {
    let nodes = topology.nodes().iter();
    let node = |node: &NumaNode| json!({"node": node.number, "cpus": node.cpus.to_string()});
    nodes.map(node).collect()
}

/// A machine of a plan.
#[derive(Debug)]
pub(super) struct PlannedMachine {
    /// Where its topology was read.
    pub(super) origin: String,
    /// Its architecture, if known.
    pub(super) architecture: Option<String>,
    /// [`nodes_of`] it.
    pub(super) nodes: Value,
}

/// The JSON of a plan.
pub(super) fn to_json(plan: &SlicePlan, machines: &[Topology]) -> Value {
    let machine = |topology: &Topology| {
        json!({
            "origin": topology.origin(), "architecture": topology.architecture(),
            "nodes": nodes_of(topology),
        })
    };
    let unit = |unit: &SliceUnit| {
        json!({
            "cpus": unit.cpus, "proximity": unit.proximity.map(|near| near.to_string()),
            "reason": unit.reason,
        })
    };
    let slice = |one: &Assignment| {
        json!({
            "slice": one.slice, "machine": one.machine, "traffic": one.traffic.to_string(),
            "cpus": one.cpus().to_string(), "nodes": one.nodes.to_string(),
            "memory_node": one.memory_node, "reason": one.reason,
            "units": one.units.iter().map(unit).collect::<Value>(),
        })
    };
    let refused: Value =
        plan.refused.iter().map(|no| json!({"slice": no.slice, "reason": no.reason})).collect();
    let side =
        |(machine, cpus): &(usize, CpuSet)| json!({"machine": machine, "cpus": cpus.to_string()});
    let moves: Value = plan
        .moves
        .iter()
        .map(|one| {
            json!({
                "slice": one.slice, "from": side(&one.from), "to": side(&one.to),
                "reason": one.reason,
            })
        })
        .collect();
    json!({
        "format": FORMAT, "machines": machines.iter().map(machine).collect::<Value>(),
        "slices": plan.assignments.iter().map(slice).collect::<Value>(), "refused": refused,
        "moves": moves,
    })
}

/// A plan that was read from a file.
#[derive(Debug)]
pub(super) struct PlanFile {
    /// The placed slices.
    pub(super) assignments: Vec<Assignment>,
    /// Its machines, by their numbers.
    pub(super) machines: Vec<PlannedMachine>,
}

/// The text of a regular file, or the reason why it is none of at most `bytes_max` bytes.
///
/// # Errors
/// `System`: the file cannot be read.
pub(super) fn regular_text(
    path: &Path,
    bytes_max: u64,
) -> Result<std::result::Result<String, &'static str>> {
    let failed = |e: std::io::Error| Error::System {
        detail: format!("cannot read {}", path.display()),
        errno: e.raw_os_error().unwrap_or(0),
    };
    // A pipe without a writer does not wait. A file of the kernel has no length, but contents.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let file = File::from(file);
    if !file.metadata().map_err(failed)?.is_file() {
        return Ok(Err("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Ok(Err("it is too large"));
    }
    Ok(String::from_utf8(bytes).map_err(|_| "it is not a text"))
}

/// Reads a plan.
///
/// # Errors
/// `System`: the file cannot be read. `BadArgument`: it is no plan, or one of another format.
pub(super) fn read(path: &Path) -> Result<PlanFile> {
    let bad = |why: &str| Error::BadArgument {
        detail: format!(
            "{} is no plan: {why}; write one with `nearstate numa plan --save FILE`",
            path.display()
        ),
    };
    let text = regular_text(path, FILE_BYTES_MAX)?.map_err(bad)?;
    let json: Value = serde_json::from_str(&text).map_err(|e| bad(&e.to_string()))?;
    match json.get("format").and_then(Value::as_u64) {
        Some(FORMAT) => {}
        Some(other) => return Err(bad(&format!("it has format {other}, not {FORMAT}"))),
        None => return Err(bad("it has no format")),
    }
    let list = |name: &str| {
        json.get(name).and_then(Value::as_array).ok_or_else(|| bad(&format!("it has no {name}")))
    };
    let machine = |one: &Value| {
        let origin = one.get("origin")?.as_str()?.to_owned();
        // Missing in older files.
        let architecture = one.get("architecture").and_then(Value::as_str);
        let architecture = architecture.map(|name| architecture_name(name).to_owned());
        Some(PlannedMachine { origin, architecture, nodes: one.get("nodes")?.clone() })
    };
    let machines: Option<Vec<_>> = list("machines")?.iter().map(machine).collect();
    let machines = machines.ok_or_else(|| bad("a machine has no origin or nodes"))?;
    let slices = list("slices")?.iter().enumerate().map(|(index, one)| {
        assignment(one).ok_or_else(|| bad(&format!("slice {index} is incomplete")))
    });
    Ok(PlanFile { assignments: slices.collect::<Result<_>>()?, machines })
}

fn assignment(one: &Value) -> Option<Assignment> {
    let text = |name: &str| one.get(name)?.as_str();
    let unit = |unit: &Value| {
        let cpus = unit.get("cpus")?.as_array()?;
        let cpus = cpus.iter().map(|cpu| u32::try_from(cpu.as_u64()?).ok());
        let near = unit.get("proximity").and_then(Value::as_str);
        let proximity = near.map(|near| near.parse().ok());
        let cpus = cpus.collect::<Option<_>>()?;
        Some(SliceUnit { cpus, proximity: proximity.flatten(), ..SliceUnit::default() })
    };
    let number = one.get("memory_node")?;
    let memory_node =
        if number.is_null() { None } else { Some(u32::try_from(number.as_u64()?).ok()?) };
    let units: Vec<SliceUnit> =
        one.get("units")?.as_array()?.iter().map(unit).collect::<Option<_>>()?;
    let nodes: CpuSet = text("nodes")?.parse().ok()?;
    // Each node has a processor of the slice. A short text cannot claim many nodes.
    if nodes.len() > units.iter().map(|unit| unit.cpus.len()).sum() {
        return None;
    }
    Some(Assignment {
        slice: text("slice")?.to_owned(),
        machine: usize::try_from(one.get("machine")?.as_u64()?).ok()?,
        traffic: text("traffic")?.parse().ok()?,
        units,
        nodes,
        memory_node,
        reason: String::new(),
    })
}
