//! Drawings of a topology in the manner of paper 5, Figure 9: for each node its caches, cores and
//! hyper-threads.

mod svg;
mod text;

pub use svg::{svg, svg_marked};
pub use text::text;

use std::collections::BTreeMap;

use crate::cpu_set::CpuSet;
use crate::topology::{Cache, CacheKind, Topology};

/// From this share of time on, a processor is shown as busy.
const BUSY_SHOWN: f64 = 0.01;

/// What a drawing shows of processors, besides the topology.
#[derive(Clone, Debug, Default)]
pub struct CpuMarks {
    /// The share of time that processors were busy, if it was measured.
    pub busy: BTreeMap<u32, f64>,
    /// Processors that no slice gets.
    pub reserved: CpuSet,
    /// Processors whose cores are used last.
    pub housekeeping: CpuSet,
}

impl CpuMarks {
    /// A processor's number with its marks: `4*h`. The notes explain them.
    fn label(&self, topology: &Topology, number: u32) -> String {
        let mut label = number.to_string();
        let Some(cpu) = topology.cpu(number) else { return label };
        let marks = [
            (!cpu.is_allowed, '-'),
            (cpu.is_isolated, '*'),
            (self.reserved.contains(number), 'r'),
            (self.housekeeping.contains(number), 'h'),
        ];
        label.extend(marks.into_iter().filter(|(is_marked, _)| *is_marked).map(|(_, mark)| mark));
        label
    }

    /// The share of time that a processor was busy, if it is worth showing.
    fn busy(&self, number: u32) -> Option<f64> {
        self.busy.get(&number).copied().filter(|share| *share >= BUSY_SHOWN)
    }
}

/// What the marks mean, and what else there is to know.
fn notes(topology: &Topology, marks: &CpuMarks) -> Vec<String> {
    let online: CpuSet = topology.cpus().iter().map(|cpu| cpu.number).collect();
    let mut notes = Vec::new();
    if let Some(by) = topology.limited_by() {
        notes.push(format!("- not allowed, by {by}"));
    }
    if topology.cpus().iter().any(|cpu| cpu.is_isolated) {
        notes.push("* isolated from the scheduler".to_owned());
    }
    if !marks.reserved.intersection(&online).is_empty() {
        notes.push("r reserved: no slice gets it".to_owned());
    }
    if !marks.housekeeping.intersection(&online).is_empty() {
        notes.push("h housekeeping: its core is used last".to_owned());
    }
    if !topology.nohz_full().is_empty() {
        notes.push(format!("without a periodic tick (nohz_full): {}", topology.nohz_full()));
    }
    if let Some(quota) = topology.quota() {
        let (whole, rest) = (quota.milli_cpus / 1000, quota.milli_cpus % 1000);
        notes.push(format!("processor time: {whole}.{rest:03} processors, by {}", quota.origin));
    }
    if let Some(kind) = topology.partition() {
        notes.push(format!("the control group of this process is a partition ({kind})"));
    }
    if !topology.offline().is_empty() {
        notes.push(format!("offline: {}", topology.offline()));
    }
    notes.extend(topology.warnings().iter().map(|warning| format!("warning: {warning}")));
    notes
}

/// Cores in one row of a drawing.
const CORES_PER_ROW: usize = 16;

/// A core, as a column.
#[derive(Clone, Debug)]
struct Column {
    core_id: u32,
    cpus: Vec<u32>,
}

/// A cache, or several equal ones, above columns.
#[derive(Clone, Debug)]
struct CacheRow {
    /// `L2 (1 MiB)`.
    label: String,
    /// For each column a number that is the same where the cache is shared.
    groups: Vec<Option<u32>>,
}

/// The cores of a node that fit side by side.
#[derive(Clone, Debug)]
struct CoreBlock {
    columns: Vec<Column>,
    caches: Vec<CacheRow>,
}

/// The blocks of a node. Cores that share a cache are side by side.
fn blocks(topology: &Topology, node: u32) -> Vec<CoreBlock> {
    let mut cores: BTreeMap<(u32, u32, u32), Column> = BTreeMap::new();
    for cpu in topology.cpus().iter().filter(|cpu| cpu.node == node) {
        let column = cores
            .entry((cpu.l3, cpu.l2, cpu.core))
            .or_insert_with(|| Column { core_id: cpu.core_id, cpus: Vec::new() });
        column.cpus.push(cpu.number);
    }
    let columns: Vec<Column> = cores.into_values().collect();
    let block = |columns: &[Column]| CoreBlock {
        caches: cache_rows(topology, columns),
        columns: columns.to_vec(),
    };
    columns.chunks(CORES_PER_ROW).map(block).collect()
}

fn cache_rows(topology: &Topology, columns: &[Column]) -> Vec<CacheRow> {
    let shown: CpuSet = columns.iter().flat_map(|column| column.cpus.iter().copied()).collect();
    let mut kinds: BTreeMap<_, Vec<&Cache>> = BTreeMap::new();
    for cache in topology.caches() {
        if !cache.cpus.intersection(&shown).is_empty() {
            // The last level first, instructions before data.
            let kind = match cache.kind {
                CacheKind::Unified | CacheKind::Instruction => 0,
                CacheKind::Data => 1,
            };
            kinds.entry((std::cmp::Reverse(cache.level), kind)).or_default().push(cache);
        }
    }
    let row = |caches: Vec<&Cache>| {
        let group = |column: &Column| {
            let first = column.cpus.first()?;
            caches.iter().find(|cache| cache.cpus.contains(*first))?.cpus.first()
        };
        let first = caches.first()?;
        let letter = match first.kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => "",
        };
        let size = first.bytes.map_or(String::new(), |bytes| format!(" ({})", size(bytes)));
        let label = format!("L{}{letter}{size}", first.level);
        Some(CacheRow { label, groups: columns.iter().map(group).collect() })
    };
    kinds.into_values().filter_map(row).collect()
}

/// `32 KiB`, `16.5 MiB`.
fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    let tenths = (bytes >> (unit - 10)) * 10 / 1024;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, tenth) => format!("{whole}.{tenth} {name}"),
    }
}

/// The line above a node: its sockets, memory, distances, interfaces.
fn node_line(topology: &Topology, number: u32) -> String {
    let Some(node) = topology.node(number) else { return String::new() };
    let own = topology.cpus().iter().filter(|cpu| cpu.node == number);
    let sockets: CpuSet = own.map(|cpu| cpu.package).collect();
    let mut parts = vec![format!("NUMA node P#{number}:")];
    parts.push(if sockets.is_empty() {
        "no processors".to_owned()
    } else {
        format!("socket {sockets}")
    });
    parts.push(match node.memory_bytes {
        Some(0) => "no memory".to_owned(),
        Some(bytes) => size(bytes),
        None => "memory of unknown size".to_owned(),
    });
    if topology.nodes().len() > 1 {
        let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
        parts.push(format!("distances {}", distances.join(" ")));
    }
    if !node.is_allowed {
        parts.push("memory not allowed".to_owned());
    }
    let nics = topology.nics().iter().filter(|nic| nic.node == Some(number));
    let nics: Vec<&str> = nics.map(|nic| nic.name.as_str()).collect();
    if !nics.is_empty() {
        parts.push(format!("network {}", nics.join(" ")));
    }
    let first = parts.remove(0);
    format!("{first} {}", parts.join(", "))
}

/// The first line of a drawing.
fn title(topology: &Topology) -> String {
    let sockets: CpuSet = topology.cpus().iter().map(|cpu| cpu.package).collect();
    let (cpus, cores) = (topology.cpus().len(), topology.cores().len());
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let architecture = topology.architecture().map_or(String::new(), |name| format!(" ({name})"));
    format!(
        "{}{architecture}: {cpus} processor{}, {cores} core{}, {} socket{}, {} node{}",
        topology.origin(),
        plural(cpus),
        plural(cores),
        sockets.len(),
        plural(sockets.len()),
        topology.nodes().len(),
        plural(topology.nodes().len())
    )
}
