//! The log of openraft: entries in memory, and a file with what was done to them.
//!
//! The files are written on the runtime's one blocking thread, so a slow disk delays no heartbeat
//! of a connection.

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

/// The entries of a member and its files. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    log: Arc<Mutex<MemberLog>>,
}

#[derive(Debug)]
struct MemberLog {
    files: MemberFiles,
    entries: BTreeMap<u64, RaftEntry>,
    purged: Option<LogId>,
    /// The index of the last snapshot that this process has written.
    snapshot: u64,
}

impl MemberLog {
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

    /// Writes the records, then changes the entries.
    fn write(&mut self, records: Vec<LogRecord>) -> Result<()> {
        self.files.append(&records)?;
        for record in records {
            self.replay(record);
        }
        Ok(())
    }

    fn purge(&mut self, upto: LogId) -> Result<()> {
        self.write(vec![LogRecord::Purged(upto)])?;
        if !self.files.is_log_large() {
            return Ok(());
        }
        let purged = self.purged.iter().map(|upto| LogRecord::Purged(*upto));
        let entries = self.entries.values().cloned().map(LogRecord::Entry);
        let records: Vec<_> = purged.chain(entries).collect();
        self.files.replace_log(&records)
    }
}

impl LogStore {
    /// The store with what was read.
    pub(crate) fn new(files: MemberFiles, records: Vec<LogRecord>) -> Self {
        let mut log = MemberLog { files, entries: BTreeMap::new(), purged: None, snapshot: 0 };
        for record in records {
            log.replay(record);
        }
        Self { log: Arc::new(Mutex::new(log)) }
    }

    fn lock(&self) -> MutexGuard<'_, MemberLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the log or its files on the blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut MemberLog) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, AnyError> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut store.lock())).await;
        done.map_err(AnyError::error)?.map_err(AnyError::error)
    }

    /// Replaces the snapshot, unless a newer one was written.
    pub(crate) async fn replace_snapshot<T: Serialize + Send + 'static>(
        &self,
        index: u64,
        value: T,
    ) -> std::result::Result<(), AnyError> {
        self.blocking(move |log| {
            if index < log.snapshot {
                return Ok(());
            }
            log.snapshot = index;
            log.files.replace(SNAPSHOT_FILE, &value)
        })
        .await
    }

    /// Stores the settings in an identity that has none.
    pub(crate) fn complete_identity(&self, identity: &DirectoryIdentity) -> Result<()> {
        self.lock().files.complete_identity(identity)
    }

    /// Reads a file of one record.
    pub(crate) fn read_file<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>> {
        self.lock().files.read(name)
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> std::result::Result<Vec<RaftEntry>, StorageError> {
        Ok(self.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> std::result::Result<LogState<TypeConfig>, StorageError> {
        let log = self.lock();
        let last = log.entries.values().next_back().map(|entry| *entry.get_log_id());
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: last.or(log.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> std::result::Result<(), StorageError> {
        let vote = *vote;
        let written = self.blocking(move |log| log.files.replace(VOTE_FILE, &vote)).await;
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
        let written = self.blocking(move |log| log.write(records)).await;
        written.map_err(StorageIOError::write_logs)?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> std::result::Result<(), StorageError> {
        let records = vec![LogRecord::Truncated(log_id.index)];
        let written = self.blocking(move |log| log.write(records)).await;
        Ok(written.map_err(StorageIOError::write_logs)?)
    }

    async fn purge(&mut self, log_id: LogId) -> std::result::Result<(), StorageError> {
        let written = self.blocking(move |log| log.purge(log_id)).await;
        Ok(written.map_err(StorageIOError::write_logs)?)
    }
}
