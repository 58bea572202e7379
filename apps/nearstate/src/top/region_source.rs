//! Polls a region through its file. Attaches again if another file replaces it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nearstate_store::{AttachOptions, Inspection, NamespaceUsage, Region, Result, Session};

use super::snapshot::{NamespaceSnapshot, ProcessSnapshot, RegionSnapshot};
use crate::record_counts::RecordCounter;

/// Maximum time per poll for counting records. The next poll continues the count.
const COUNT_TIME_MAX: Duration = Duration::from_millis(200);

/// Maximum number of namespaces: those with the most records. No screen has more lines.
const NAMESPACES_MAX: usize = 256;

/// A region at a path.
#[derive(Debug)]
pub(super) struct RegionSource {
    path: PathBuf,
    options: AttachOptions,
    open: Option<AttachedRegion>,
}

/// An attached region.
#[derive(Debug)]
struct AttachedRegion {
    session: Session,
    region: Region,
    counter: RecordCounter,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl RegionSource {
    pub(super) const fn new(path: PathBuf, options: AttachOptions) -> Self {
        Self { path, options, open: None }
    }

    /// Reads the region.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn poll(&mut self) -> std::result::Result<RegionSnapshot, String> {
        let file = file_at(&self.path)?;
        let open = match self.open.take().filter(|open| open.file == file) {
            Some(open) => open,
            None => AttachedRegion::at(&self.path, &self.options, file)
                .map_err(|error| error.to_string())?,
        };
        let open = self.open.insert(open);
        let seen = open.poll(&self.path);
        if seen.is_err() {
            // Attach again next time: the region may have been repaired.
            self.open = None;
        }
        seen.map_err(|error| error.to_string())
    }
}

fn file_at(path: &Path) -> std::result::Result<(u64, u64), String> {
    let found = std::fs::metadata(path).map_err(|error| {
        let path = path.display();
        format!(
            "cannot read the region {path} ({error}): \
             create it with `nearstate region create {path}`"
        )
    })?;
    Ok((found.dev(), found.ino()))
}

impl AttachedRegion {
    fn at(path: &Path, options: &AttachOptions, file: (u64, u64)) -> Result<Self> {
        let region = Region::attach_with(path, options)?;
        let session = region.session()?;
        Ok(Self { session, region, counter: RecordCounter::default(), file })
    }

    fn poll(&mut self, path: &Path) -> Result<RegionSnapshot> {
        let start = Instant::now();
        while self.counter.step(&self.session)? && start.elapsed() < COUNT_TIME_MAX {}
        let seen = self.region.inspect()?;
        let (namespaces, omitted) = self.counter.largest(NAMESPACES_MAX);
        let limited = seen.namespaces.iter();
        let limited = limited.filter_map(|one| Some((one.name.as_slice(), one.usage?)));
        let limited: BTreeMap<&[u8], NamespaceUsage> = limited.collect();
        let namespaces = namespaces.into_iter().map(|counted| {
            let usage = limited.get(counted.name.as_bytes());
            NamespaceSnapshot {
                used_bytes: usage.map_or(0, |usage| usage.used_bytes),
                soft_bytes: usage.map_or(0, |usage| usage.limits.soft_bytes),
                hard_bytes: usage.map_or(0, |usage| usage.limits.hard_bytes),
                name: counted.name,
                records: counted.records,
                bytes: counted.bytes,
                tags: counted.tags,
            }
        });
        let alive = seen.members.iter().filter(|member| member.is_alive).count();
        let pins = seen.members.iter().filter_map(|member| member.pinned_epoch);
        Ok(RegionSnapshot {
            path: path.display().to_string(),
            bytes_max: seen.bytes_max,
            bytes_taken: seen.bytes_taken,
            epoch: seen.epoch,
            oldest_pin: pins.min().map_or(0, |epoch| seen.epoch.saturating_sub(epoch)),
            records: self.counter.records(),
            sessions: alive as u64,
            sessions_dead: (seen.members.len() - alive) as u64,
            namespaces: namespaces.collect(),
            namespaces_omitted: omitted as u64,
            processes: processes(&seen),
            processes_omitted: 0,
        })
    }
}

/// The running processes that have sessions, each once.
fn processes(seen: &Inspection) -> Vec<ProcessSnapshot> {
    let mut all: BTreeMap<(u32, &str), ProcessSnapshot> = BTreeMap::new();
    for member in seen.members.iter().filter(|member| member.is_alive) {
        let (pid, name) = (member.process.pid, member.process.name.as_str());
        let process = all.entry((pid, name)).or_insert_with(|| ProcessSnapshot {
            pid: pid.into(),
            name: name.to_owned(),
            ..ProcessSnapshot::default()
        });
        process.sessions += 1;
        let behind = member.pinned_epoch.map_or(0, |epoch| seen.epoch.saturating_sub(epoch));
        process.oldest_pin = process.oldest_pin.max(behind);
        let held = seen.heap.held_back.iter().filter(|held| held.session == member.index);
        for held in held {
            process.held_bytes += held.bytes;
            process.held_seconds = process.held_seconds.max(held.ms / 1000);
        }
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_store::{CreateOptions, Schema};

    #[test]
    fn a_region_and_its_replacement_are_polled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let mut source = RegionSource::new(path.clone(), AttachOptions::default());
        let why = source.poll().unwrap_err();
        assert!(why.contains("nearstate region create"), "{why}");
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let first = Region::create(&path, &options).unwrap();
        let session = first.session().unwrap();
        let ns = session.namespace("ue", &Schema::default()).unwrap();
        session.put(ns, b"k", b"v").unwrap();
        let seen = source.poll().unwrap();
        assert_eq!((seen.records, seen.sessions, seen.bytes_max), (1, 2, 64 << 20));
        assert_eq!((seen.namespaces.len(), seen.namespaces[0].name.as_str()), (1, "ue"));
        assert_eq!((seen.processes.len(), seen.processes[0].sessions), (1, 2));
        assert_eq!(seen.processes[0].pid, u64::from(std::process::id()));
        std::fs::remove_file(&path).unwrap();
        assert!(source.poll().is_err(), "the file was deleted");
        let second = Region::create(&path, &options).unwrap();
        let session = second.session().unwrap();
        session.namespace("other", &Schema::default()).unwrap();
        assert_eq!(source.poll().unwrap().namespaces[0].name, "other");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "not a region").unwrap();
        assert!(source.poll().unwrap_err().contains("not a region"));
    }

    #[test]
    fn a_reader_that_delays_reclamation_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let (reader, writer) = (region.session().unwrap(), region.session().unwrap());
        let ns = writer.namespace("ue", &Schema::default()).unwrap();
        writer.put(ns, b"k", b"v").unwrap();
        let view = reader.get(ns, b"k").unwrap();
        for number in 0..20_000_u32 {
            writer.put(ns, b"k", &number.to_le_bytes()).unwrap();
        }
        let mut source = RegionSource::new(path, AttachOptions::default());
        let seen = source.poll().unwrap();
        assert!(seen.oldest_pin > 0, "{seen:?}");
        assert_eq!(seen.processes[0].oldest_pin, seen.oldest_pin);
        // The first version of the record, and what was live with it.
        assert!((64..4096).contains(&seen.processes[0].held_bytes), "{seen:?}");
        // The writer has found the reader meanwhile. The time passes without it.
        let begun = Instant::now();
        while source.poll().unwrap().processes[0].held_seconds == 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(100),
                "the time of the view is not known"
            );
        }
        drop(view);
        let seen = source.poll().unwrap();
        assert_eq!((seen.oldest_pin, seen.processes[0].held_bytes), (0, 0));
        assert_eq!(seen.processes[0].held_seconds, 0);
    }
}
