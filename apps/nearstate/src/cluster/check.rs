//! What a host must have before it takes part in a cluster. The checks change nothing. The file
//! itself was checked when it was read.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nearstate_membership::ask_for_report;
use nearstate_model::{Error, Result};
use nearstate_store::{AttachOptions, Region, now_ms_coarse};
use rustix::fs::{Access, OFlags, access};
use serde_json::json;

use super::certificate;
use super::clock_skew;
use super::file::{ClusterFile, FileHost, FilePartition};
use super::machine::KernelFiles;
use super::member::membership_config;
use super::removed;
use super::resources;
use super::row::{CheckRow, RowOutcome, table};

/// The longest wait for another host.
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// The longest wait for the report of one that answers.
const REPORT_MAX: Duration = Duration::from_secs(2);

/// Writes with `fsync` that are measured.
const SYNCS: usize = 16;

/// The bytes of a measured write: those of some commands of the membership.
const SYNC_BYTES: usize = 4096;

/// What is needed to start a host.
pub(crate) fn of_start(
    (file, host): (&ClusterFile, &FileHost),
    kernel: &KernelFiles,
    any_owner: bool,
) -> Vec<CheckRow> {
    let mut rows = kernel.rows();
    rows.extend(certificate_row(file, host));
    rows.extend(file.private_key(host).and_then(|key| private_key(&host.name, &key)));
    rows.push(directory(file, host));
    let own = file.partitions.iter().filter(|of| of.group.contains(&host.id));
    rows.extend(own.map(|partition| region((file, host), partition, any_owner)));
    rows
}

/// The error of rows of which some have failed: all that is wrong, in one line.
///
/// # Errors
/// `BadArgument`.
pub(crate) fn refuse_failed(rows: &[CheckRow]) -> Result<()> {
    let failed = rows.iter().filter(|row| row.outcome == RowOutcome::Failed);
    let failed: Vec<_> =
        failed.map(|row| format!("{} of {}: {}", row.check, row.subject, row.detail)).collect();
    if failed.is_empty() { Ok(()) } else { Err(Error::BadArgument { detail: failed.join("; ") }) }
}

/// All checks that are possible here: those of a start if the host is given, and whether others
/// can be reached.
pub(crate) fn all(file: &ClusterFile, host: Option<&FileHost>, any_owner: bool) -> Vec<CheckRow> {
    let kernel = KernelFiles::default();
    let mut rows = match host {
        Some(host) => of_start((file, host), &kernel, any_owner),
        None => kernel.rows(),
    };
    if let Some(host) = host {
        rows.extend(resources::addresses(file, host));
        rows.extend(resources::space(file, host));
        rows.extend(resources::directory_space(file, host));
        rows.extend(disk(file, host));
    }
    for other in file.hosts.iter().filter(|other| host.is_none_or(|host| other.id != host.id)) {
        rows.push(reachable("peer address", other, other.peer));
        let membership = reachable("membership address", other, other.membership);
        let is_passed = membership.outcome == RowOutcome::Passed;
        rows.push(membership);
        rows.extend(host.filter(|_| is_passed).iter().flat_map(|host| accepts(file, host, other)));
    }
    rows
}

/// Whether another host takes this one for a member: by its certificate, its file and its settings.
/// If it does, how far its clock is from the one of this host.
fn accepts(file: &ClusterFile, host: &FileHost, other: &FileHost) -> Vec<CheckRow> {
    let asked_ms = now_ms_coarse();
    let ask = || {
        let config = membership_config(file, host, file.tls(host)?)?;
        ask_for_report(config, other.id.0.into(), REPORT_MAX)
    };
    let row = |outcome, detail| CheckRow::new("membership", &other.name, outcome, detail);
    match ask() {
        Ok(report) => {
            let skew = clock_skew::check(&other.name, (asked_ms, now_ms_coarse()), &report);
            let accepted = format!("it takes {} for a member", host.name);
            let removed = removed::check(file, &other.name, &report);
            let accepted = std::iter::once(row(RowOutcome::Passed, accepted));
            accepted.chain(skew).chain(removed).collect()
        }
        Err(Error::Backend { detail }) => {
            vec![row(RowOutcome::Warning, format!("{detail}. Do both have the same cluster file?"))]
        }
        // The row of the certificate says more.
        Err(error) => vec![row(RowOutcome::Warning, error.to_string())],
    }
}

/// The rows for people, or as JSON.
pub(crate) fn show(file: &ClusterFile, rows: &[CheckRow], is_json: bool) -> String {
    if is_json {
        return format!("{}\n", json!({ "cluster": file.name, "checks": rows }));
    }
    let mut text = format!(
        "{}: hosts: {}, partitions: {}, copies: {}, acknowledgements: {}, lease: {:?}\n",
        file.name,
        file.hosts.len(),
        file.partitions.len(),
        file.config.copies,
        file.config.acknowledgements,
        file.lease
    );
    let head = CheckRow::HEAD.map(str::to_owned).to_vec();
    let cells: Vec<_> = std::iter::once(head).chain(rows.iter().map(CheckRow::cells)).collect();
    let _ = write!(text, "{}", table(&cells));
    text
}

fn certificate_row(file: &ClusterFile, host: &FileHost) -> Option<CheckRow> {
    // The key is that of the certificate.
    let checked = file.tls(host).and_then(|_| certificate::checked(file, host));
    let row = |outcome, detail| CheckRow::new("certificate", &host.name, outcome, detail);
    match checked {
        Err(error) => Some(row(RowOutcome::Failed, error.to_string())),
        Ok(own) => own.map(|own| match certificate::ending(&own) {
            None => row(RowOutcome::Passed, own.path().display().to_string()),
            Some(ending) => row(RowOutcome::Warning, ending),
        }),
    }
}

/// The permissions of the group and of all other users.
const OTHERS: u32 = 0o077;

/// Whether other users can read the key, and claim to be this host. The row of the certificate says
/// whether it is one.
fn private_key(host: &str, path: &Path) -> Option<CheckRow> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    let row = |outcome, detail| Some(CheckRow::new("private key", host, outcome, detail));
    if mode & OTHERS == 0 {
        return row(RowOutcome::Passed, path.display().to_string());
    }
    let detail = format!(
        "{path} has mode {mode:o}: other users can read it, and claim to be this host. Run `chmod \
         600 {path}`",
        path = path.display()
    );
    row(RowOutcome::Warning, detail)
}

fn refused(path: &Path, what: &str) -> Error {
    Error::BadArgument { detail: format!("{} {what}", path.display()) }
}

/// The directory of the membership, or the one in which it is to be created.
fn directory(file: &ClusterFile, host: &FileHost) -> CheckRow {
    CheckRow::of("directory", &host.name, writable(&file.directory(host)))
}

/// Checks that files can be created at a path, which may not exist yet.
fn writable(path: &Path) -> Result<String> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(path);
    if !existing.is_dir() {
        return Err(refused(existing, "is not a directory"));
    }
    access(existing, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| refused(existing, &format!("cannot be written ({error})")))?;
    let exists = if existing == path { "" } else { " will be created" };
    Ok(format!("{}{exists}", path.display()))
}

fn region(
    (file, host): (&ClusterFile, &FileHost),
    partition: &FilePartition,
    any_owner: bool,
) -> CheckRow {
    let path = file.region_file(host, partition);
    let check = || {
        if !path.exists() {
            return writable(path.parent().unwrap_or(Path::new("/")))
                .map(|_| format!("{} will be created", path.display()));
        }
        let region = Region::attach_with(&path, &AttachOptions { any_owner })?;
        let bound = region.session()?.bound_cluster()?;
        match bound {
            Some(id) if id != file.cluster_id() => Err(refused(
                &path,
                &format!(
                    "is a region of cluster {:?}, not of {:?}: set cluster.regions to another \
                     path, or remove the region",
                    String::from_utf8_lossy(&id).trim_end_matches('\0'),
                    file.name
                ),
            )),
            Some(_) => Ok(format!("{} is a region of this cluster", path.display())),
            None => Ok(format!("{} is a region of no cluster", path.display())),
        }
    };
    CheckRow::of("region", &format!("{} on {}", partition.name, host.name), check())
}

/// The time of a write to the directory of the membership that is to survive a loss of power.
fn disk(file: &ClusterFile, host: &FileHost) -> Option<CheckRow> {
    let path = file.directory(host);
    let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
    // A file without a name: it is gone when it is closed.
    let flags = i32::try_from(OFlags::TMPFILE.bits()).ok()?;
    let file_of = std::fs::File::options().write(true).custom_flags(flags).open(existing);
    let measure = |mut target: std::fs::File| -> std::io::Result<Duration> {
        let mut longest = Duration::ZERO;
        for _ in 0..SYNCS {
            let begin = Instant::now();
            target.write_all(&[0; SYNC_BYTES])?;
            target.sync_data()?;
            longest = longest.max(begin.elapsed());
        }
        Ok(longest)
    };
    let row = |outcome, detail| CheckRow::new("disk", &host.name, outcome, detail);
    Some(match file_of.and_then(measure) {
        Err(error) => row(RowOutcome::Warning, format!("cannot be measured ({error})")),
        Ok(longest) if longest > file.election / 2 => row(
            RowOutcome::Warning,
            format!("an fsync took {longest:?}, and an election {:?}", file.election),
        ),
        Ok(longest) => row(RowOutcome::Passed, format!("longest of {SYNCS} fsyncs: {longest:?}")),
    })
}

fn reachable(check: &'static str, host: &FileHost, address: SocketAddr) -> CheckRow {
    let begin = Instant::now();
    let row = |outcome, detail| CheckRow::new(check, &host.name, outcome, detail);
    match TcpStream::connect_timeout(&address, CONNECT_MAX) {
        Ok(_) => row(RowOutcome::Passed, format!("{address} answers after {:?}", begin.elapsed())),
        Err(error) => row(
            RowOutcome::Warning,
            format!("{address} does not answer ({error}): is its node started?"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_that_other_users_can_read_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.key");
        assert_eq!(private_key("a", &path), None);
        std::fs::write(&path, "").unwrap();
        for (mode, outcome) in [(0o600, RowOutcome::Passed), (0o644, RowOutcome::Warning)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let row = private_key("a", &path).unwrap();
            assert_eq!(row.outcome, outcome, "{}", row.detail);
        }
    }
}
