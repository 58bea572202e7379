//! The log of openraft: entries in memory, and a file with what was done to them.
//!
//! The files are written on the runtime's one blocking thread, and entries are read without the
//! lock that it holds meanwhile: a snapshot on a slow disk delays no entry. Openraft itself waits
//! until its own entries and its vote are on disk.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearstate_model::Result;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, LogState, OptionalSend, RaftLogId as _, RaftLogReader, StorageIOError};
use serde::{Deserialize, Serialize};

use super::disk::{DirectoryIdentity, MemberFiles};
use super::types::{LogId, RaftEntry, StorageError, TypeConfig, Vote};

/// The file of the vote.
const VOTE_FILE: &str = "vote";
/// The file of the snapshot.
pub(crate) const SNAPSHOT_FILE: &str = "snapshot";

/// A record of the log file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum LogRecord {
    /// An entry behind the last one.
    Entry(RaftEntry),
    /// All entries from this index on are dropped.
    Truncated(u64),
    /// All entries up to this one are dropped.
    Purged(LogId),
}

/// The entries of a member and its files. Clones share them. The files are locked first.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    files: Arc<Mutex<StoredFiles>>,
    entries: Arc<Mutex<LogEntries>>,
}

/// Locked while the disk works.
#[derive(Debug)]
struct StoredFiles {
    files: MemberFiles,
    /// The index of the last snapshot that this process has written.
    snapshot: u64,
}

/// What the log file says. Locked for moments.
#[derive(Debug, Default)]
struct LogEntries {
    entries: BTreeMap<u64, RaftEntry>,
    purged: Option<LogId>,
}

impl LogEntries {
    fn replay(&mut self, record: LogRecord) {
        match record {
            LogRecord::Entry(entry) => {
                self.entries.insert(entry.get_log_id().index, entry);
            }
            LogRecord::Truncated(from) => drop(self.entries.split_off(&from)),
            LogRecord::Purged(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(upto);
            }
        }
    }

    /// The shortest file that says the same.
    fn records(&self) -> Vec<LogRecord> {
        let purged = self.purged.iter().map(|upto| LogRecord::Purged(*upto));
        purged.chain(self.entries.values().cloned().map(LogRecord::Entry)).collect()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogStore {
    /// The store with what was read.
    pub(crate) fn new(files: MemberFiles, records: Vec<LogRecord>) -> Self {
        let mut entries = LogEntries::default();
        for record in records {
            entries.replay(record);
        }
        let files = StoredFiles { files, snapshot: 0 };
        Self { files: Arc::new(Mutex::new(files)), entries: Arc::new(Mutex::new(entries)) }
    }

    fn files(&self) -> MutexGuard<'_, StoredFiles> {
        locked(&self.files)
    }

    fn entries(&self) -> MutexGuard<'_, LogEntries> {
        locked(&self.entries)
    }

    /// Writes the records, then changes the entries.
    async fn write(&self, records: Vec<LogRecord>) -> std::result::Result<(), AnyError> {
        let store = self.clone();
        self.blocking(move |stored| {
            stored.files.append(&records)?;
            let mut entries = store.entries();
            for record in records {
                entries.replay(record);
            }
            Ok(())
        })
        .await
    }

    /// Replaces the file of the log if it is large.
    async fn shorten(&self) -> std::result::Result<(), AnyError> {
        let store = self.clone();
        self.blocking(move |stored| {
            if !stored.files.is_log_large() {
                return Ok(());
            }
            let records = store.entries().records();
            stored.files.replace_log(&records)
        })
        .await
    }

    /// Changes the files on the blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StoredFiles) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, AnyError> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut store.files())).await;
        done.map_err(AnyError::error)?.map_err(AnyError::error)
    }

    /// Replaces the snapshot, unless a newer one was written.
    pub(crate) async fn replace_snapshot<T: Serialize + Send + 'static>(
        &self,
        index: u64,
        value: T,
    ) -> std::result::Result<(), AnyError> {
        self.blocking(move |stored| {
            if index < stored.snapshot {
                return Ok(());
            }
            stored.snapshot = index;
            stored.files.replace(SNAPSHOT_FILE, &value)
        })
        .await
    }

    /// Stores the settings in an identity that has none.
    pub(crate) fn complete_identity(&self, identity: &DirectoryIdentity) -> Result<()> {
        self.files().files.complete_identity(identity)
    }

    /// Reads a file of one record.
    pub(crate) fn read_file<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>> {
        self.files().files.read(name)
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> std::result::Result<Vec<RaftEntry>, StorageError> {
        Ok(self.entries().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> std::result::Result<LogState<TypeConfig>, StorageError> {
        let log = self.entries();
        let last = log.entries.values().next_back().map(|entry| *entry.get_log_id());
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: last.or(log.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> std::result::Result<(), StorageError> {
        let vote = *vote;
        let written = self.blocking(move |stored| stored.files.replace(VOTE_FILE, &vote)).await;
        Ok(written.map_err(StorageIOError::write_vote)?)
    }

    async fn read_vote(&mut self) -> std::result::Result<Option<Vote>, StorageError> {
        let read = self.read_file(VOTE_FILE);
        Ok(read.map_err(|error| StorageIOError::read_vote(AnyError::error(error)))?)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> std::result::Result<(), StorageError>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records: Vec<_> = entries.into_iter().map(LogRecord::Entry).collect();
        let written = self.write(records).await;
        written.map_err(StorageIOError::write_logs)?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> std::result::Result<(), StorageError> {
        let records = vec![LogRecord::Truncated(log_id.index)];
        let written = self.write(records).await;
        Ok(written.map_err(StorageIOError::write_logs)?)
    }

    async fn purge(&mut self, log_id: LogId) -> std::result::Result<(), StorageError> {
        let written = self.write(vec![LogRecord::Purged(log_id)]).await;
        written.map_err(StorageIOError::write_logs)?;
        Ok(self.shorten().await.map_err(StorageIOError::write_logs)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::{CommittedLeaderId, EntryPayload};

    const LONG: std::time::Duration = std::time::Duration::from_secs(60);

    /// A disk that takes its time must not keep a leader from sending what it has.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread that hangs is a failed test")]
    fn entries_are_read_while_the_disk_works() {
        let place = tempfile::tempdir().unwrap();
        let identity =
            DirectoryIdentity { cluster: "east".to_owned(), host: 1, settings: Vec::new() };
        let (files, records) = MemberFiles::open(place.path(), &identity).unwrap();
        let mut store = LogStore::new(files, records);
        let log_id = LogId::new(CommittedLeaderId::new(1, 1), 7);
        let entry = RaftEntry { log_id, payload: EntryPayload::Blank };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(store.write(vec![LogRecord::Entry(entry)])).unwrap();
        let working = store.clone();
        let _disk = working.files();
        let (sender, read) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let entries = runtime.block_on(store.try_get_log_entries(0..100)).unwrap();
            let state = runtime.block_on(store.get_log_state()).unwrap();
            sender.send((entries.len(), state.last_log_id)).unwrap();
        });
        assert_eq!(read.recv_timeout(LONG), Ok((1, Some(log_id))));
    }
}
