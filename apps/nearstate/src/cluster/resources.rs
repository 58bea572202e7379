//! What a host needs for itself: addresses on which its node can listen, and space for the regions
//! that it will create. Only warnings, except for an address of another host: the node may be
//! running, and space may come free.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use nearstate_model::Error;
use nearstate_node::check_tcp_address;
use rustix::io::Errno;

use super::file::{ClusterFile, FileHost};
use super::row::{CheckRow, RowOutcome};

/// Whether the node could listen on each of its addresses.
pub(super) fn addresses(file: &ClusterFile, host: &FileHost) -> Vec<CheckRow> {
    let of_partitions = file.partitions.iter().filter(|of| of.group.contains(&host.id));
    let ports = of_partitions.flat_map(|of| std::iter::once(of.port).chain(of.ports.all()));
    let clients = ports.map(|port| SocketAddr::new(host.clients, port));
    let own = [host.peer, host.membership].into_iter().chain(clients);
    own.map(|address| own_address(host, address)).collect()
}

fn own_address(host: &FileHost, address: SocketAddr) -> CheckRow {
    let row = |outcome, detail| CheckRow::new("own address", &host.name, outcome, detail);
    match check_tcp_address(address) {
        Ok(()) => row(RowOutcome::Passed, format!("{address} is free")),
        Err(Error::System { errno, .. }) if errno == Errno::ADDRINUSE.raw_os_error() => row(
            RowOutcome::Warning,
            format!("{address} is in use: by the node of this host, if it is running already"),
        ),
        Err(error) => row(RowOutcome::Failed, error.to_string()),
    }
}

/// Whether each file system has room for the regions that do not exist yet.
pub(super) fn space(file: &ClusterFile, host: &FileHost) -> Vec<CheckRow> {
    let mut needed: BTreeMap<&Path, u64> = BTreeMap::new();
    let paths: Vec<_> = file
        .partitions
        .iter()
        .filter(|of| of.group.contains(&host.id))
        .map(|of| (file.region_file(host, of), of.region_bytes_max))
        .filter(|(path, _)| !path.exists())
        .collect();
    for (path, bytes) in &paths {
        if let Some(existing) = path.ancestors().find(|ancestor| ancestor.exists()) {
            let sum = needed.entry(existing).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    }
    needed.into_iter().map(|(folder, bytes)| room(host, folder, bytes)).collect()
}

fn room(host: &FileHost, folder: &Path, needed: u64) -> CheckRow {
    let row = |outcome, detail| CheckRow::new("space", &host.name, outcome, detail);
    let shown = folder.display();
    let free = match rustix::fs::statvfs(folder) {
        Ok(seen) => seen.f_bavail.saturating_mul(seen.f_frsize),
        Err(error) => {
            return row(RowOutcome::Warning, format!("{shown}: cannot be measured ({error})"));
        }
    };
    let (free_mib, needed_mib) = (free >> 20, needed >> 20);
    if free < needed {
        let detail = format!(
            "{shown} has {free_mib} MiB free, and the regions may take {needed_mib} MiB: writes \
             fail when it is full; make room, or set a smaller partition.region_max"
        );
        return row(RowOutcome::Warning, detail);
    }
    row(
        RowOutcome::Passed,
        format!("{shown} has {free_mib} MiB free for regions of {needed_mib} MiB"),
    )
}
