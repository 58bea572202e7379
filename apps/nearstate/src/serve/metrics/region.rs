//! The metrics of the region: sizes, namespaces, attached processes. The page is bounded: it lists
//! a limited number of namespaces and processes and reports how many are left out.

use std::collections::BTreeMap;
use std::fmt;

use nearstate_store::{Inspection, NamespaceUsage};
use prometheus_client::encoding::DescriptorEncoder;

use super::ServerMetrics;
use super::encode::{gauge, gauges};
use crate::record_counts::NamespaceCounts;

/// Maximum number of processes listed: those with the lowest pids.
const PROCESSES_MAX: usize = 256;

/// Maximum number of namespaces listed: those with the most records. A region can have 65,536; some
/// hundred bytes each in four families would make a page of megabytes.
const NAMESPACES_MAX: usize = 256;

/// The number of epochs by which the oldest pin lags behind.
fn behind(seen: &Inspection, pins: impl Iterator<Item = u64>) -> u64 {
    pins.min().map_or(0, |epoch| seen.epoch.saturating_sub(epoch))
}

pub(super) fn region(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let is_present = metrics.0.file.get().is_none_or(|file| file.is_present());
    let help = "1 if the path names the region's file, 0 if that was removed or replaced.";
    gauge(to, "region_file_present", help, u64::from(is_present))?;
    let Ok(seen) = metrics.0.region.inspect() else {
        // The region cannot be read. The other parts of the page are still useful.
        return gauge(
            to,
            "region_readable",
            "1 if the region can be read, 0 if it is damaged.",
            0_u64,
        );
    };
    gauge(to, "region_readable", "1 if the region can be read, 0 if it is damaged.", 1_u64)?;
    let oldest = behind(&seen, seen.members.iter().filter_map(|member| member.pinned_epoch));
    let alive = seen.members.iter().filter(|member| member.is_alive).count() as u64;
    let dead = seen.members.len() as u64 - alive;
    let records = metrics.records().records();
    for (name, help, value) in [
        ("bytes_max", "Maximum size of the heap, in bytes.", seen.bytes_max),
        (
            "bytes_taken",
            "Bytes of the heap that are allocated: records, index, what sessions keep for reuse.",
            seen.bytes_taken,
        ),
        ("bytes_on_disk", "Bytes that the file occupies on its file system.", seen.bytes_on_disk),
        ("epoch", "Epoch of memory reclamation.", seen.epoch),
        (
            "oldest_pin_epochs",
            "Epochs by which the oldest pin lags behind. 0: no pin lags.",
            oldest,
        ),
        ("sessions", "Sessions of running processes, including this one.", alive),
        ("sessions_dead", "Sessions of dead processes that are not recovered yet.", dead),
        ("namespaces", "Number of namespaces.", seen.namespaces.len() as u64),
        ("records", "Records in all namespaces, at the last count.", records),
    ] {
        gauge(to, &format!("region_{name}"), help, value)?;
    }
    limits(&seen, to)
}

type UsageOf = fn(&NamespaceUsage) -> u64;

/// The namespaces with limits.
fn limits(seen: &Inspection, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let limited = seen.namespaces.iter().filter_map(|one| Some((&one.name, one.usage?)));
    let limited: Vec<_> = limited.take(NAMESPACES_MAX).collect();
    let kinds: [(&str, &str, UsageOf); 3] = [
        ("used_bytes", "Bytes that the records of a namespace with limits occupy.", |usage| {
            usage.used_bytes
        }),
        ("soft_limit_bytes", "Soft limit of the namespace. 0: none.", |usage| {
            usage.limits.soft_bytes
        }),
        ("hard_limit_bytes", "Hard limit of the namespace. 0: none.", |usage| {
            usage.limits.hard_bytes
        }),
    ];
    for (name, help, value) in kinds {
        let values = limited.iter().map(|(namespace, usage)| {
            let namespace = String::from_utf8_lossy(namespace).into_owned();
            ([("namespace", namespace)], value(usage))
        });
        gauges(to, &format!("namespace_{name}"), help, values)?;
    }
    Ok(())
}

pub(super) fn processes(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    // The previous part reports why the region cannot be read.
    let Ok(seen) = metrics.0.region.inspect() else { return Ok(()) };
    let mut processes: BTreeMap<(u32, &str), Vec<Option<u64>>> = BTreeMap::new();
    for member in seen.members.iter().filter(|member| member.is_alive) {
        let process = (member.process.pid, member.process.name.as_str());
        processes.entry(process).or_default().push(member.pinned_epoch);
    }
    let help = "Running processes with sessions. The first 256 are listed in the metrics below.";
    gauge(to, "region_processes", help, processes.len() as u64)?;
    let labels =
        |(pid, name): &(u32, &str)| [("pid", pid.to_string()), ("name", (*name).to_owned())];
    let named = || processes.iter().take(PROCESSES_MAX);
    let values = named().map(|(process, pins)| (labels(process), pins.len() as u64));
    gauges(to, "region_process_sessions", "Sessions, by process.", values)?;
    let values = named()
        .map(|(process, pins)| (labels(process), behind(&seen, pins.iter().copied().flatten())));
    let help = "Epochs by which the oldest pin of the process lags behind. 0: no pin lags.";
    gauges(to, "region_process_oldest_pin_epochs", help, values)?;
    let held_by = |process: &(u32, &str)| {
        let process = (process.0, process.1.to_owned());
        let pinned = seen.heap.held_back.iter();
        pinned.filter(move |held| {
            held.process.pid == process.0 && held.process.name.as_str() == process.1
        })
    };
    let values = named().map(|(process, _)| {
        (labels(process), held_by(process).map(|held| held.bytes).sum::<u64>())
    });
    let help = "Bytes of deleted and replaced records that views of the process keep from reuse.";
    gauges(to, "region_process_held_bytes", help, values)?;
    let values = named().map(|(process, _)| {
        (labels(process), held_by(process).map(|held| held.ms / 1000).max().unwrap_or(0))
    });
    let help = "Seconds for which the first of these views is known to do so.";
    gauges(to, "region_process_held_seconds", help, values)
}

type CountOf = fn(&NamespaceCounts) -> u64;

pub(super) fn namespaces(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let (named, others) = metrics.records().largest(NAMESPACES_MAX);
    let help =
        "Namespaces left out of the metrics below, which list the 256 with the most records.";
    gauge(to, "region_namespaces_omitted", help, others as u64)?;
    let kinds: [(&str, &str, CountOf); 4] = [
        ("records", "Records, at the last count, by namespace.", |seen| seen.records),
        ("bytes", "Bytes of the records, estimated from a sample.", |seen| seen.bytes),
        ("tags", "Tags declared.", |seen| seen.tags),
        ("buckets", "Index buckets of seven entries.", |seen| seen.buckets),
    ];
    for (name, help, value) in kinds {
        let values = named.iter().map(|seen| ([("namespace", seen.name.clone())], value(seen)));
        gauges(to, &format!("namespace_{name}"), help, values)?;
    }
    Ok(())
}
