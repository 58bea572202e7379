//! The files of a member: its vote, its log and its snapshot. What a call has written is on the
//! disk when the call returns.
//!
//! | file | contents | is changed by |
//! |---|---|---|
//! | `identity` | the cluster, the host, what was decided | nothing, once the cluster is created |
//! | `vote` | the vote | a new file and a rename |
//! | `snapshot` | the state machine | a new file and a rename |
//! | `log` | entries, truncations, purges | appending; a new file and a rename when it is large |
//! | `committed` | a command that was decided | a new file and a rename, and no wait for the disk |
//!
//! A record has a header of 24 bytes (mark, size, sequence number, check value) and JSON. It is
//! acknowledged when the `fsync` behind it has ended. A write whose `fsync` had not ended can be
//! torn, and is the last one. What a process that was killed leaves of it is its beginning. What a
//! loss of power leaves is some of its sectors, and zeros in place of the others. So an invalid
//! record is dropped if nothing valid is behind it, and
//!
//! - the file ends in it (a payload that is whole all the same shows that its size is damaged), or
//! - a sector of the file has only zeros, from the record on.
//!
//! Every other invalid record may have been acknowledged, the last one too: it is damage, and the
//! directory is refused. So is a torn write of several records of which a later one is whole.
//! Nothing tells an acknowledged record whose end the file system has lost from a torn one. A host
//! that has dropped it has a shorter log, with which it is not elected by those that have it.
//!
//! After a failed write nothing more is written: what the disk has is unknown. Opening the
//! directory again reads it, and writes the log to a new file, so that what was read is stored.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Result};
use nearstate_node::SharedSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::limits::LOG_BYTES_MIN;

/// The first four bytes of a record.
const MARK: [u8; 4] = *b"NSMR";
const HEADER_BYTES: usize = 24;
/// The file of the [`DirectoryIdentity`].
const IDENTITY_FILE: &str = "identity";
/// The largest record: a snapshot as text.
const RECORD_BYTES_MAX: usize = 8 << 20;
/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// What a disk writes as a whole, in bytes. With larger sectors each of these parts is zero too.
const SECTOR_BYTES: usize = 512;

/// To which member a directory belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectoryIdentity {
    /// The name of the cluster.
    pub(crate) cluster: String,
    /// The number of the host.
    pub(crate) host: u64,
    /// The settings that were decided when the cluster was created, in their order. A directory of
    /// an earlier version has none.
    #[serde(default)]
    pub(crate) settings: Vec<(String, String)>,
}

/// A directory that no other process uses. Nothing in it was changed yet.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    directory: PathBuf,
    lock: File,
}

/// The files of one directory.
#[derive(Debug)]
pub(crate) struct MemberFiles {
    directory: PathBuf,
    log: File,
    log_bytes: u64,
    /// The sequence number of the next record of the log.
    sequence: u64,
    has_failed: bool,
    /// Holds the lock of the directory.
    _lock: File,
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Error {
    let help = if error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error()) {
        ": the file system is full, free some space"
    } else {
        ""
    };
    let detail = format!("cannot {what} {} ({error}){help}", path.display());
    Error::System { detail, errno: error.raw_os_error().unwrap_or_default() }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::Damaged {
        detail: format!(
            "{}: {what}; remove this host from the cluster, empty its directory, and add it again",
            path.display()
        ),
    }
}

fn encode(sequence: u64, value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut bytes, value)?;
    let Some((header, payload)) = bytes.split_first_chunk_mut::<HEADER_BYTES>() else {
        return Err(io::Error::other("a record has no header"));
    };
    let Some(size) =
        u32::try_from(payload.len()).ok().filter(|_| payload.len() <= RECORD_BYTES_MAX)
    else {
        return Err(io::Error::other(format!("a record of {} bytes", payload.len())));
    };
    let check = xxh3_64_with_seed(payload, sequence ^ u64::from(size).rotate_left(32));
    let parts: [&[u8]; 4] =
        [&MARK, &size.to_le_bytes(), &sequence.to_le_bytes(), &check.to_le_bytes()];
    header.copy_from_slice(&parts.concat());
    Ok(bytes)
}

/// The sequence number and payload of the record at the beginning of the bytes, if it is valid.
fn record(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let (mark, numbers) = header.split_first_chunk::<4>()?;
    let (size, numbers) = numbers.split_first_chunk::<4>()?;
    let (sequence, check) = numbers.split_first_chunk::<8>()?;
    let (size, sequence) = (u32::from_le_bytes(*size), u64::from_le_bytes(*sequence));
    let payload = rest.get(..size as usize)?;
    let expected = xxh3_64_with_seed(payload, sequence ^ u64::from(size).rotate_left(32));
    let is_valid = *mark == MARK && expected.to_le_bytes() == check;
    is_valid.then_some((sequence, payload))
}

/// The records of a file. A write that was never acknowledged is left out, if it is the last one.
fn records<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<Vec<T>> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while let Some((sequence, payload)) = record(rest) {
        if sequence != records.len() as u64 {
            return Err(damaged(path, &format!("record {sequence} is at a wrong place")));
        }
        let parsed = serde_json::from_slice(payload)
            .map_err(|error| damaged(path, &format!("record {sequence} is not valid ({error})")))?;
        records.push(parsed);
        rest = rest.get(HEADER_BYTES + payload.len()..).unwrap_or_default();
    }
    let is_followed = (1..rest.len()).any(|at| {
        rest.get(at..).is_some_and(|bytes| bytes.starts_with(&MARK) && record(bytes).is_some())
    });
    if is_followed || !is_torn(bytes.len() - rest.len(), rest) {
        return Err(damaged(path, &format!("record {} is damaged", records.len())));
    }
    Ok(records)
}

/// Can an invalid record, at this place of its file, be a write whose `fsync` had not ended?
fn is_torn(at: usize, rest: &[u8]) -> bool {
    let Some((header, payload)) = rest.split_first_chunk::<HEADER_BYTES>() else { return true };
    let [_, _, _, _, size @ ..] = header;
    let size = size.first_chunk::<4>().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let is_whole = || serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok();
    if payload.len() < size && !is_whole() {
        return true;
    }
    let (first, others) = rest.split_at(rest.len().min(SECTOR_BYTES - at % SECTOR_BYTES));
    let mut sectors = std::iter::once(first).chain(others.chunks(SECTOR_BYTES));
    sectors.any(|sector| sector.iter().all(|byte| *byte == 0))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, "open", &error)),
    };
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed(path, "read", &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(damaged(path, "the file is too large"));
    }
    Ok(Some(bytes))
}

impl LockedDirectory {
    /// Locks a directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// `System`: it cannot be created, or another process uses it.
    pub(crate) fn lock(directory: &Path) -> Result<Self> {
        let lock = lock_directory(directory)?;
        Ok(Self { directory: directory.to_owned(), lock })
    }

    /// The records of the log.
    ///
    /// # Errors
    /// `System`: it cannot be read. `Damaged`: a record that may have been acknowledged is not
    /// valid.
    pub(crate) fn read_log<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        let path = self.directory.join("log");
        Ok(read(&path)?.map(|bytes| records(&path, &bytes)).transpose()?.unwrap_or_default())
    }

    /// The contents of a file of one record, if it exists.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        read_one(&self.directory.join(name))
    }

    /// An error that says that the directory cannot be used.
    pub(crate) fn damaged(&self, what: &str) -> Error {
        damaged(&self.directory, what)
    }

    /// Opens the files, and writes the log anew with these records.
    ///
    /// # Errors
    /// `System`: the directory cannot be written. `Damaged`: a file of it. `BadArgument`: the
    /// directory of another member.
    pub(crate) fn open<T: Serialize>(
        self,
        identity: &DirectoryIdentity,
        log: &[T],
    ) -> Result<MemberFiles> {
        let Self { directory, lock } = self;
        // Before the cluster is created, nothing rests on the settings.
        let is_new = log.is_empty()
            && read(&directory.join("vote"))?.is_none()
            && read(&directory.join("snapshot"))?.is_none();
        check_identity(&directory, identity, is_new)?;
        let mut sequence = 0;
        let (log, log_bytes) = write_log(&directory, &mut sequence, log)?;
        Ok(MemberFiles { directory, log, log_bytes, sequence, has_failed: false, _lock: lock })
    }
}

impl MemberFiles {
    /// Notes a failure: nothing more is written.
    fn checked<T>(&mut self, outcome: Result<T>) -> Result<T> {
        self.has_failed |= outcome.is_err();
        outcome
    }

    fn check_usable(&self) -> Result<()> {
        if self.has_failed {
            let detail = format!("{}: an earlier write has failed", self.directory.display());
            return Err(Error::System { detail, errno: 0 });
        }
        Ok(())
    }

    /// Stores the settings in the identity of a directory of an earlier version, which has none.
    pub(crate) fn complete_identity(&mut self, identity: &DirectoryIdentity) -> Result<()> {
        let found: Option<DirectoryIdentity> = self.read(IDENTITY_FILE)?;
        let is_complete = found.is_some_and(|found| !found.settings.is_empty());
        if is_complete || identity.settings.is_empty() {
            return Ok(());
        }
        self.replace(IDENTITY_FILE, identity)
    }

    /// Appends records to the log.
    pub(crate) fn append<T: Serialize>(&mut self, records: &[T]) -> Result<()> {
        self.check_usable()?;
        let outcome = self.append_unchecked(records);
        let path = self.directory.join("log");
        self.checked(outcome.map_err(|error| failed(&path, "write", &error)))
    }

    fn append_unchecked<T: Serialize>(&mut self, records: &[T]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for record in records {
            bytes.extend(encode(self.sequence, record)?);
            self.sequence += 1;
        }
        self.log.write_all(&bytes)?;
        self.log.sync_data()?;
        if self.log.metadata()?.nlink() == 0 {
            return Err(io::Error::other("it was removed"));
        }
        #[cfg(test)]
        super::kill_point::pass_write();
        self.log_bytes += bytes.len() as u64;
        Ok(())
    }

    /// True if the log is so large that it is worth writing it anew.
    pub(crate) fn is_log_large(&self) -> bool {
        self.log_bytes > LOG_BYTES_MIN
    }

    /// Replaces the log by these records.
    pub(crate) fn replace_log<T: Serialize>(&mut self, records: &[T]) -> Result<()> {
        self.check_usable()?;
        self.sequence = 0;
        let outcome = write_log(&self.directory, &mut self.sequence, records);
        (self.log, self.log_bytes) = self.checked(outcome)?;
        Ok(())
    }

    /// Replaces the contents of a file of one record.
    pub(crate) fn replace(&mut self, name: &str, value: &impl Serialize) -> Result<()> {
        self.check_usable()?;
        let outcome = replace_file(&self.directory, name, value);
        self.checked(outcome)
    }

    /// Replaces the contents of a file of one record without waiting for the disk: after a loss of
    /// power it has any earlier contents, or none that are valid.
    pub(crate) fn hint(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let (path, new) = (self.directory.join(name), self.directory.join(format!("{name}.new")));
        fs::write(&new, encode(0, value)?)?;
        fs::rename(&new, &path)
    }

    /// The contents of a file of one record, if it exists.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        read_one(&self.directory.join(name))
    }
}

/// Creates the directory if it does not exist, and locks it: one process uses it.
///
/// # Errors
/// `System`: it cannot be created or locked.
pub(crate) fn lock_directory(directory: &Path) -> Result<File> {
    fs::create_dir_all(directory).map_err(|error| failed(directory, "create", &error))?;
    let path = directory.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| failed(&path, "open", &error))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(
        |error| {
            let help = if error == rustix::io::Errno::WOULDBLOCK {
                "another process uses it"
            } else {
                "it cannot be locked"
            };
            let detail = format!("{}: {help}", directory.display());
            Error::System { detail, errno: error.raw_os_error() }
        },
    )?;
    Ok(file)
}

fn check_identity(directory: &Path, identity: &DirectoryIdentity, is_new: bool) -> Result<()> {
    match read_one::<DirectoryIdentity>(&directory.join(IDENTITY_FILE))? {
        None => replace_file(directory, IDENTITY_FILE, identity),
        Some(found) if found == *identity => Ok(()),
        Some(found) if (&found.cluster, found.host) == (&identity.cluster, identity.host) => {
            if !is_new && !found.settings.is_empty() {
                let decided = SharedSettings::new(found.settings);
                let own = SharedSettings::new(identity.settings.clone());
                let what = own.difference(decided.summary()).unwrap_or_default();
                let detail = format!(
                    "{}: the cluster was created with other settings: {what}. They never change: \
                     restore the cluster file",
                    directory.display()
                );
                return Err(Error::BadArgument { detail });
            }
            // Without settings it is completed when the snapshot has been compared with them.
            if is_new { replace_file(directory, IDENTITY_FILE, identity) } else { Ok(()) }
        }
        Some(found) => Err(Error::BadArgument {
            detail: format!(
                "{}: belongs to host {} of cluster \"{}\", not to host {} of cluster \"{}\"",
                directory.display(),
                found.host,
                found.cluster,
                identity.host,
                identity.cluster
            ),
        }),
    }
}

fn read_one<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    let mut records = records(path, &bytes)?;
    match (records.pop(), records.is_empty()) {
        (Some(record), true) => Ok(Some(record)),
        (Some(_) | None, _) => Err(damaged(path, "it does not have one valid record")),
    }
}

/// Writes a file beside its final place, and renames it.
fn replace_with(directory: &Path, name: &str, bytes: &[u8]) -> Result<File> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let write = || -> io::Result<File> {
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(directory)?.sync_all()?;
        #[cfg(test)]
        super::kill_point::pass_write();
        Ok(file)
    };
    write().map_err(|error| failed(&path, "write", &error))
}

fn replace_file(directory: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let path = directory.join(name);
    let bytes = encode(0, value).map_err(|error| failed(&path, "encode", &error))?;
    replace_with(directory, name, &bytes).map(drop)
}

fn write_log<T: Serialize>(
    directory: &Path,
    sequence: &mut u64,
    records: &[T],
) -> Result<(File, u64)> {
    let mut bytes = Vec::new();
    for record in records {
        let encoded = encode(*sequence, record);
        bytes.extend(encoded.map_err(|error| failed(&directory.join("log"), "encode", &error))?);
        *sequence += 1;
    }
    // The file stays open behind its last byte, which is where appending continues.
    Ok((replace_with(directory, "log", &bytes)?, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> DirectoryIdentity {
        let settings = vec![("cluster.copies".to_owned(), "3".to_owned())];
        DirectoryIdentity { cluster: "east".to_owned(), host: 1, settings }
    }

    fn open_as(
        directory: &Path,
        identity: &DirectoryIdentity,
    ) -> Result<(MemberFiles, Vec<String>)> {
        let locked = lock_again(directory)?;
        let found = locked.read_log()?;
        Ok((locked.open(identity, &found)?, found))
    }

    /// Another test may start a process: until its program runs, it has the lock too.
    fn lock_again(directory: &Path) -> Result<LockedDirectory> {
        for _ in 0..10_000 {
            if let Ok(locked) = LockedDirectory::lock(directory) {
                return Ok(locked);
            }
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        LockedDirectory::lock(directory)
    }

    fn open(directory: &Path) -> Result<(MemberFiles, Vec<String>)> {
        open_as(directory, &identity())
    }

    fn texts(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("record {number}")).collect()
    }

    #[test]
    fn a_log_cut_at_any_byte_keeps_every_whole_record() {
        let place = tempfile::tempdir().unwrap();
        let (mut files, _) = open(place.path()).unwrap();
        files.append(&texts(4)).unwrap();
        drop(files);
        let path = place.path().join("log");
        let whole = fs::read(&path).unwrap();
        let size = encode(0, &"record 0").unwrap().len();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut files, found) = open(place.path()).unwrap();
            assert_eq!(found, texts(cut / size), "cut at {cut}");
            files.append(&["more"]).unwrap();
            drop(files);
            let (_, found) = open(place.path()).unwrap();
            assert_eq!(found.last().map(String::as_str), Some("more"), "cut at {cut}");
        }
    }

    #[test]
    fn a_flipped_bit_of_an_acknowledged_record_is_damage() {
        let place = tempfile::tempdir().unwrap();
        let (mut files, _) = open(place.path()).unwrap();
        files.append(&texts(3)).unwrap();
        drop(files);
        let path = place.path().join("log");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            let error = open(place.path()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "byte {at}: {error}");
        }
    }

    /// A write of several sectors of which a loss of power has left some.
    #[test]
    fn a_torn_write_is_dropped_whichever_sectors_are_missing() {
        let place = tempfile::tempdir().unwrap();
        let (mut files, _) = open(place.path()).unwrap();
        files.append(&texts(4)).unwrap();
        let before = fs::read(place.path().join("log")).unwrap().len();
        files.append(&["x".repeat(3 * SECTOR_BYTES)]).unwrap();
        drop(files);
        let path = place.path().join("log");
        let whole = fs::read(&path).unwrap();
        let sectors = whole.len().div_ceil(SECTOR_BYTES);
        for missing in 1_u32..1 << sectors {
            let mut torn = whole.clone();
            for sector in (0..sectors).filter(|sector| missing & 1 << sector != 0) {
                let from = (sector * SECTOR_BYTES).max(before);
                let upto = ((sector + 1) * SECTOR_BYTES).min(whole.len());
                torn[from..upto].fill(0);
            }
            fs::write(&path, &torn).unwrap();
            let (_, found) = open(place.path()).unwrap();
            assert_eq!(found, texts(4), "without the sectors {missing:b}");
        }
    }

    #[test]
    fn the_directory_of_another_member_is_refused() {
        let place = tempfile::tempdir().unwrap();
        drop(open(place.path()).unwrap());
        let other = DirectoryIdentity { host: 2, ..identity() };
        let error = open_as(place.path(), &other).unwrap_err();
        assert!(error.to_string().contains("belongs to host 1 of cluster \"east\""), "{error}");
    }

    #[test]
    fn decided_settings_change_only_before_the_cluster_is_created() {
        let place = tempfile::tempdir().unwrap();
        let with = |copies: &str| {
            let settings = vec![("cluster.copies".to_owned(), copies.to_owned())];
            let identity = DirectoryIdentity { settings, ..identity() };
            open_as(place.path(), &identity)
        };
        drop(with("2").unwrap());
        let (mut files, _) = with("3").unwrap();
        files.append(&texts(1)).unwrap();
        drop(files);
        let error = with("2").unwrap_err().to_string();
        let expected = "cluster.copies is \"2\" here and \"3\" there";
        assert!(error.contains(expected), "{error}");
        drop(with("3").unwrap());
    }

    #[test]
    fn a_directory_without_settings_gets_those_that_were_compared_with_its_snapshot() {
        let place = tempfile::tempdir().unwrap();
        let with = |copies: Option<&str>| {
            let pair = |copies: &str| ("cluster.copies".to_owned(), copies.to_owned());
            let settings = copies.map(pair).into_iter().collect();
            let identity = DirectoryIdentity { settings, ..identity() };
            let opened = open_as(place.path(), &identity);
            opened.map(|(files, _)| (files, identity))
        };
        let (mut files, identity) = with(None).unwrap();
        files.append(&texts(1)).unwrap();
        files.complete_identity(&identity).unwrap();
        drop(files);
        // The comparison fails: nothing is stored, so the mistake can be corrected.
        drop(with(Some("2")).unwrap());
        let (mut files, identity) = with(Some("3")).unwrap();
        files.complete_identity(&identity).unwrap();
        drop(files);
        let error = with(Some("2")).unwrap_err().to_string();
        assert!(error.contains("cluster.copies is \"2\" here and \"3\" there"), "{error}");
        drop(with(Some("3")).unwrap());
    }

    #[test]
    fn a_directory_has_one_user() {
        let place = tempfile::tempdir().unwrap();
        let _first = open(place.path()).unwrap();
        let error = LockedDirectory::lock(place.path()).unwrap_err();
        assert!(error.to_string().contains("another process uses it"), "{error}");
    }

    #[test]
    fn a_replaced_log_and_vote_are_read_again() {
        let place = tempfile::tempdir().unwrap();
        let (mut files, _) = open(place.path()).unwrap();
        files.append(&texts(9)).unwrap();
        files.replace_log(&texts(2)).unwrap();
        files.append(&["third"]).unwrap();
        files.replace("vote", &7_u64).unwrap();
        drop(files);
        let (files, found) = open(place.path()).unwrap();
        assert_eq!(found, ["record 0", "record 1", "third"]);
        assert_eq!(files.read::<u64>("vote").unwrap(), Some(7));
        assert_eq!(files.read::<u64>("snapshot").unwrap(), None);
    }
}
