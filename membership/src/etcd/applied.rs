//! What a host remembers of the commands that it has applied from etcd, in a file of its directory.
//!
//! An etcd that was restored from a backup has lost decisions on which hosts have acted. A running
//! host sees that, and a restarted one by this file. A command is noted before it is applied, so a
//! host that is killed has acted on nothing that is not noted.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine_thread::lock;

use super::keys::StoredCommand;

/// The name of the file.
const FILE: &str = "etcd-applied";

/// The last command that a host has applied, or was about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AppliedCommand {
    /// The call that created the cluster.
    creation: Option<u64>,
    pub(super) index: u64,
    /// Etcd's revision at which it was appended, and the check value of its bytes. `None`: it was
    /// in a snapshot.
    written: Option<(u64, u64)>,
}

impl AppliedCommand {
    pub(super) fn of(command: &StoredCommand, creation: Option<u64>) -> Self {
        let written = (command.revision, xxh3_64(&command.bytes));
        Self { creation, index: command.index, written: Some(written) }
    }

    /// The last command in a snapshot.
    pub(super) const fn restored(index: u64, creation: Option<u64>) -> Self {
        Self { creation, index, written: None }
    }

    /// Is it of the cluster that was created by this call?
    pub(super) fn is_of(&self, creation: Option<u64>) -> bool {
        self.creation == creation
    }

    /// Is it a later command of the same cluster, or the same one?
    pub(super) fn is_behind(&self, other: &Self) -> bool {
        self.creation == other.creation
            && (self.index > other.index || self.index == other.index && other.written.is_none())
    }

    /// Has etcd another command at this index?
    pub(super) fn differs(&self, stored: &StoredCommand) -> bool {
        self.index == stored.index
            && self.written.is_some()
            && self.written != Self::of(stored, None).written
    }
}

/// What the file has.
#[derive(Debug)]
pub(super) struct AppliedFile {
    known: Option<AppliedCommand>,
    writer: Arc<Mutex<AppliedWriter>>,
}

/// Writes the file, on a thread that may block.
#[derive(Debug)]
struct AppliedWriter {
    path: PathBuf,
    stored: Option<AppliedCommand>,
}

impl AppliedWriter {
    /// Replaces the file. A kill and a loss of power leave the earlier or the later content. One
    /// whose caller has given up may come after a later one, and changes nothing then.
    fn store(&mut self, applied: AppliedCommand) -> io::Result<()> {
        if self.stored.as_ref().is_some_and(|stored| stored.is_behind(&applied)) {
            return Ok(());
        }
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(&applied)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        // Without that, a loss of power can bring the earlier file back.
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        self.stored = Some(applied);
        Ok(())
    }
}

impl AppliedFile {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let known: Option<AppliedCommand> = match fs::read(&path) {
            Ok(bytes) => Some(serde_json::from_slice(&bytes).map_err(|error| {
                io::Error::other(format!(
                    "{}: {error}. Remove it if etcd has lost nothing",
                    path.display()
                ))
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let writer = AppliedWriter { path, stored: known.clone() };
        Ok(Self { known, writer: Arc::new(Mutex::new(writer)) })
    }

    pub(super) const fn known(&self) -> Option<&AppliedCommand> {
        self.known.as_ref()
    }

    /// Replaces what is known. The thread of the engine does not wait for the disk: while that
    /// hangs, this host reports, and its callers are answered in time.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) async fn store(&mut self, applied: AppliedCommand) -> io::Result<()> {
        if self.known.as_ref() == Some(&applied) {
            return Ok(());
        }
        let (writer, stored) = (Arc::clone(&self.writer), applied.clone());
        let written = spawn_blocking(move || lock(&writer).store(stored)).await;
        written.map_err(io::Error::other)??;
        self.known = Some(applied);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_command_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut file = AppliedFile::open(folder.path()).unwrap();
        assert_eq!(file.known(), None);
        let command =
            |bytes: &[u8], revision| StoredCommand { index: 7, bytes: bytes.to_vec(), revision };
        let applied = AppliedCommand::of(&command(b"go", 12), Some(9));
        runtime.block_on(file.store(applied.clone())).unwrap();
        // The caller of this one has given up.
        let mut writer = lock(&file.writer);
        writer
            .store(AppliedCommand::of(&StoredCommand { index: 6, ..command(b"a", 11) }, Some(9)))
            .unwrap();
        drop(writer);
        let file = AppliedFile::open(folder.path()).unwrap();
        assert_eq!(file.known(), Some(&applied));
        assert!(applied.is_of(Some(9)) && !applied.is_of(Some(8)));
        assert!(!applied.differs(&command(b"go", 12)));
        assert!(applied.differs(&command(b"no", 12)) && applied.differs(&command(b"go", 13)));
        assert!(!AppliedCommand::restored(7, Some(9)).differs(&command(b"no", 13)));
        let restored = |index| AppliedCommand::restored(index, Some(9));
        assert!(applied.is_behind(&restored(7)) && applied.is_behind(&restored(6)));
        assert!(!applied.is_behind(&restored(8)) && !restored(7).is_behind(&applied));
        assert!(!applied.is_behind(&AppliedCommand::restored(1, Some(8))), "another cluster");
        fs::write(folder.path().join(FILE), b"{").unwrap();
        assert!(AppliedFile::open(folder.path()).is_err());
    }
}
