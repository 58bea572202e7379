//! What a host needs for itself: addresses on which its node can listen, and space for its regions
//! and for the membership. Only warnings, except for an address of another host: the node may be
//! running, and space may come free.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nearstate_model::Error;
use nearstate_node::{FileSystemSpace, check_tcp_address};
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

/// Whether each file system has room for the regions that do not exist yet, and for the pages that
/// existing ones have not got yet.
pub(super) fn space(file: &ClusterFile, host: &FileHost) -> Vec<CheckRow> {
    let mut needed: BTreeMap<PathBuf, u64> = BTreeMap::new();
    for of in file.partitions.iter().filter(|of| of.group.contains(&host.id)) {
        let path = file.region_file(host, of);
        let Some(folder) = existing(&path).map(Path::to_owned) else { continue };
        let folder = match folder.parent() {
            Some(parent) if folder == path => parent.to_owned(),
            Some(_) | None => folder,
        };
        let sum = needed.entry(folder).or_default();
        *sum = sum.saturating_add(of.region_bytes_max.saturating_sub(bytes_on_disk(&path)));
    }
    needed.into_iter().map(|(folder, bytes)| room(host, &folder, bytes)).collect()
}

/// The path, or the first directory above it that exists.
fn existing(path: &Path) -> Option<&Path> {
    path.ancestors().find(|ancestor| ancestor.exists())
}

/// The bytes that a file occupies; 0 if it does not exist.
fn bytes_on_disk(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |seen| seen.blocks().saturating_mul(BLOCK_BYTES))
}

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

fn room(host: &FileHost, folder: &Path, needed: u64) -> CheckRow {
    let row = |outcome, detail| CheckRow::new("space", &host.name, outcome, detail);
    let shown = folder.display();
    let needed_mib = needed >> 20;
    let free = match FileSystemSpace::of(folder) {
        Ok(FileSystemSpace { bytes_free: Some(free), .. }) => free,
        Ok(FileSystemSpace { bytes_free: None, .. }) => {
            let detail = format!("{shown} has no limit, and the regions may take {needed_mib} MiB");
            return row(RowOutcome::Passed, detail);
        }
        Err(error) => return row(RowOutcome::Warning, error.to_string()),
    };
    let free_mib = free >> 20;
    if free < needed {
        let detail = format!(
            "{shown} has {free_mib} MiB free, and the regions may take {needed_mib} MiB more: \
             writes fail when it is full; make room, or set a smaller partition.region_max"
        );
        return row(RowOutcome::Warning, detail);
    }
    row(
        RowOutcome::Passed,
        format!("{shown} has {free_mib} MiB free for {needed_mib} MiB that the regions may take"),
    )
}

/// Room that the file system of `cluster.directory` must have. The membership needs some of it: a
/// log of 500 commands, which is written anew at a start, and two snapshots, together below 8 MiB.
/// The rest is time to make room, also if another program fills it with 1 MiB/s.
const DIRECTORY_BYTES_FREE: u64 = 64 << 20;

/// The part of a file system, in percent, that is room enough if it is smaller: a small one is one
/// of its own, which no other program fills.
const DIRECTORY_PERCENT_FREE: u64 = 10;

/// A small file system needs at least this, or half of it if that is less: the part of it would be
/// less than what the membership needs.
const DIRECTORY_BYTES_LEAST: u64 = 8 << 20;

/// An alarm about room that is raised is cleared at this part of its limit, in percent: what is
/// written and removed around the limit would raise and clear it each time.
pub(crate) const CLEARED_PERCENT: u64 = 125;

/// Files that the file system must be able to create: log, vote and snapshot are each written as a
/// new file first, and with etcd one more.
const DIRECTORY_FILES_FREE: u64 = 16;

/// What the file system of `cluster.directory` lacks. `None`: it has room. `is_raised`: the alarm
/// is raised, and stays until there is some more.
pub(crate) fn shortage(space: &FileSystemSpace, is_raised: bool) -> Option<String> {
    let part = (space.bytes_max / 100 * DIRECTORY_PERCENT_FREE)
        .max(DIRECTORY_BYTES_LEAST.min(space.bytes_max / 2));
    let limit =
        if space.bytes_max == 0 { DIRECTORY_BYTES_FREE } else { part.min(DIRECTORY_BYTES_FREE) };
    let percent = if is_raised { CLEARED_PERCENT } else { 100 };
    let [needed, files_needed] = [limit, DIRECTORY_FILES_FREE].map(|limit| limit * percent / 100);
    let few_bytes = space.bytes_free.filter(|free| *free < needed);
    if let Some(free) = few_bytes {
        return Some(format!("{free} bytes are left, and {needed} should be"));
    }
    let few_files = space.files_free.filter(|free| *free < files_needed);
    few_files.map(|free| format!("{free} more files are possible, and {files_needed} should be"))
}

/// Whether the file system of the membership's directory has room.
pub(super) fn directory_space(file: &ClusterFile, host: &FileHost) -> Option<CheckRow> {
    let path = file.directory(host);
    let row = |outcome, detail| CheckRow::new("directory space", &host.name, outcome, detail);
    let folder = existing(&path)?;
    let shown = folder.display();
    Some(match FileSystemSpace::of(folder) {
        Err(error) => row(RowOutcome::Warning, error.to_string()),
        Ok(space) => match (shortage(&space, false), space.bytes_free) {
            (Some(what), _) => {
                let detail = format!(
                    "{shown}: {what}. When it is full, this host neither votes nor learns \
                     decisions: make room there"
                );
                row(RowOutcome::Warning, detail)
            }
            (None, Some(free)) => {
                row(RowOutcome::Passed, format!("{shown} has {} MiB free", free >> 20))
            }
            (None, None) => row(RowOutcome::Passed, format!("{shown} has no limit")),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn is_short(bytes_free: Option<u64>, bytes_max: u64, files_free: Option<u64>) -> bool {
        shortage(&FileSystemSpace { bytes_free, bytes_max, files_free }, false).is_some()
    }

    #[test]
    fn a_large_file_system_needs_some_bytes_and_a_small_one_a_part() {
        let large = 1 << 40;
        assert!(!is_short(Some(64 * MIB), large, None));
        assert!(is_short(Some(64 * MIB - 1), large, None));
        let small = 100 * MIB;
        assert!(!is_short(Some(10 * MIB), small, None));
        assert!(is_short(Some(10 * MIB - 1), small, None));
        // A smaller one needs what the membership needs, or half of it.
        assert!(!is_short(Some(8 * MIB), 20 * MIB, None));
        assert!(is_short(Some(8 * MIB - 1), 20 * MIB, None));
        assert!(!is_short(Some(2 * MIB), 4 * MIB, None));
        assert!(is_short(Some(2 * MIB - 1), 4 * MIB, None));
        // The limit of a pool, and none of the mount.
        assert!(is_short(Some(64 * MIB - 1), 0, None));
        assert!(!is_short(None, 0, None));
    }

    #[test]
    fn a_shortage_that_is_raised_ends_with_a_quarter_more() {
        let of = |free: u64, files: u64, is_raised| {
            let (bytes_free, files_free) = (Some(free * MIB), Some(files));
            shortage(&FileSystemSpace { bytes_free, bytes_max: 0, files_free }, is_raised).is_some()
        };
        assert_eq!([of(64, 16, false), of(79, 20, true), of(80, 20, true)], [false, true, false]);
        assert_eq!([of(80, 19, true), of(80, 19, false)], [true, false]);
    }

    #[test]
    fn a_file_system_that_takes_no_more_files_is_short() {
        assert!(!is_short(Some(64 * MIB), 0, Some(16)));
        assert!(is_short(Some(64 * MIB), 0, Some(15)));
        let space = FileSystemSpace { bytes_free: None, bytes_max: 0, files_free: Some(3) };
        assert!(shortage(&space, false).unwrap().starts_with("3 more files are possible"));
    }
}
