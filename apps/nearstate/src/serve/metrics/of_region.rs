//! The region's part of the page: sizes, namespaces, who is attached. Bounded: of a large region or
//! a large fleet the first ones are named, and how many there are is told as well.

use std::collections::BTreeMap;
use std::fmt;

use nearstate_store::Inspection;
use prometheus_client::encoding::DescriptorEncoder;

use super::Observed;
use super::form::{gauge, gauges};
use crate::census::Counted;

/// Processes that are named: those with the lowest numbers. More are a fleet.
const PROCESSES_MAX: usize = 256;

/// Namespaces that are named: those with the most records. A region may have 4,096, and some
/// hundred bytes for each of them in four families would be a page of megabytes.
const NAMESPACES_MAX: usize = 256;

/// How many epochs the oldest of some pins is behind.
fn behind(seen: &Inspection, pins: impl Iterator<Item = u64>) -> u64 {
    pins.min().map_or(0, |epoch| seen.epoch.saturating_sub(epoch))
}

pub(super) fn region(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Ok(seen) = observed.0.region.inspect() else {
        // A region that cannot be read any more: the rest of the page is worth more than an error.
        return gauge(to, "region_readable", "0: the region is damaged.", 0_u64);
    };
    gauge(to, "region_readable", "0: the region is damaged.", 1_u64)?;
    let oldest = behind(&seen, seen.members.iter().filter_map(|member| member.pinned_epoch));
    let alive = seen.members.iter().filter(|member| member.is_alive).count() as u64;
    let dead = seen.members.len() as u64 - alive;
    let records = observed.census().records();
    for (name, help, value) in [
        ("bytes_max", "The most bytes that records and index may fill.", seen.bytes_max),
        ("bytes_taken", "Bytes of the heap that were ever taken.", seen.bytes_taken),
        ("bytes_on_disk", "Bytes that the file has of its file system.", seen.bytes_on_disk),
        ("epoch", "The epoch of reclamation.", seen.epoch),
        ("oldest_pin_epochs", "How many epochs the oldest pin is behind; 0: none is.", oldest),
        ("sessions", "Sessions of living processes, this one included.", alive),
        ("sessions_dead", "Sessions of dead processes that nobody has met yet.", dead),
        ("namespaces", "Namespaces.", seen.namespaces.len() as u64),
        ("records", "Records of all namespaces, as they were counted last.", records),
    ] {
        gauge(to, &format!("region_{name}"), help, value)?;
    }
    Ok(())
}

pub(super) fn processes(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    // What keeps it from being read is told by the part before.
    let Ok(seen) = observed.0.region.inspect() else { return Ok(()) };
    let mut processes: BTreeMap<(u32, &str), Vec<Option<u64>>> = BTreeMap::new();
    for member in seen.members.iter().filter(|member| member.is_alive) {
        let process = (member.process.pid, member.process.name.as_str());
        processes.entry(process).or_default().push(member.pinned_epoch);
    }
    let help = "Living processes that have sessions; the first 256 are named below.";
    gauge(to, "region_processes", help, processes.len() as u64)?;
    let labels =
        |(pid, name): &(u32, &str)| [("pid", pid.to_string()), ("name", (*name).to_owned())];
    let named = || processes.iter().take(PROCESSES_MAX);
    let values = named().map(|(process, pins)| (labels(process), pins.len() as u64));
    gauges(to, "region_process_sessions", "Sessions of each living process.", values)?;
    let values = named()
        .map(|(process, pins)| (labels(process), behind(&seen, pins.iter().copied().flatten())));
    let help = "How many epochs the oldest pin of a process is behind; 0: none is.";
    gauges(to, "region_process_oldest_pin_epochs", help, values)
}

type CountOf = fn(&Counted) -> u64;

pub(super) fn namespaces(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let (named, others) = observed.census().largest(NAMESPACES_MAX);
    let help = "Namespaces beyond the 256 with the most records, which are named below.";
    gauge(to, "region_namespaces_unnamed", help, others as u64)?;
    let kinds: [(&str, &str, CountOf); 4] = [
        ("records", "Records of a namespace, as they were counted last.", |seen| seen.records),
        ("bytes", "Bytes that they take, from a sample of them.", |seen| seen.bytes),
        ("tags", "Tags that a namespace declares.", |seen| seen.tags),
        ("buckets", "Buckets of seven entries of a namespace's index.", |seen| seen.buckets),
    ];
    for (name, help, value) in kinds {
        let values = named.iter().map(|seen| ([("namespace", seen.name.clone())], value(seen)));
        gauges(to, &format!("namespace_{name}"), help, values)?;
    }
    Ok(())
}
