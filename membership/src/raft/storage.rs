//! The log of openraft: entries in memory, and a file with what was done to them.
//!
//! The files are written on the runtime's one blocking thread, and entries are read without the
//! lock that it holds meanwhile: a snapshot on a slow disk delays no entry. Openraft itself waits
//! until its own entries and its vote are on disk.
//!
//! Three things keep a directory from speaking for what it does not have:
//!
//! - A host that led does not go on leading after a start. It must win an election in a higher
//!   term, which one whose log is shorter than that of a majority cannot.
//! - Entries are dropped only when the snapshot that has them is on disk.
//! - A directory that is opened again must have what this process has stored ([`StoredBefore`]).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearstate_model::Result;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, LogState, OptionalSend, RaftLogId as _, RaftLogReader, StorageIOError};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::disk::{DirectoryIdentity, LockedDirectory, MemberFiles};
use super::stored::StoredBefore;
use super::types::{LogId, RaftEntry, SnapshotMeta, StorageError, TypeConfig, Vote};

/// The file of the vote.
const VOTE_FILE: &str = "vote";
/// The file of the snapshot.
pub(crate) const SNAPSHOT_FILE: &str = "snapshot";
/// The file of a command that is known to be decided. It is a hint: a host that starts applies what
/// it has up to there, and need not wait for a leader to know what it knew before.
const COMMITTED_FILE: &str = "committed";

/// What a snapshot says of itself.
#[derive(Debug, Deserialize)]
struct StoredMeta {
    meta: SnapshotMeta,
}

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
    host: u64,
    /// This host led when the process before ended.
    has_led: bool,
    files: Arc<Mutex<MemberFiles>>,
    entries: Arc<Mutex<LogEntries>>,
    snapshot: Arc<watch::Sender<SnapshotOnDisk>>,
    stored: Arc<StoredBefore>,
}

/// The snapshot file.
#[derive(Debug, Default)]
struct SnapshotOnDisk {
    /// The last command in it.
    index: Option<u64>,
    /// No further one will be written.
    is_closed: bool,
}

/// What the log file says. Locked for moments.
#[derive(Debug, Default)]
struct LogEntries {
    entries: BTreeMap<u64, RaftEntry>,
    purged: Option<LogId>,
    committed: Option<LogId>,
    /// The blocking thread will write `committed`.
    is_hint_due: bool,
}

impl LogEntries {
    /// What these records say beside a snapshot with this last command.
    ///
    /// Until 0.1.0 entries were dropped before the snapshot that has them was written. If that one
    /// is missing and nothing was stored since, they are kept: this host has acknowledged neither
    /// the snapshot nor anything behind it, so it may get the snapshot again.
    fn of(records: &[LogRecord], snapshot: Option<u64>) -> std::result::Result<Self, String> {
        let is_covered = |record: &LogRecord| match record {
            LogRecord::Purged(upto) => Some(upto.index) <= snapshot,
            LogRecord::Entry(_) | LogRecord::Truncated(_) => true,
        };
        let are_covered = records.iter().all(is_covered);
        let all = Self::replayed(records.iter());
        let log = if are_covered || all.purged.map(|upto| upto.index) <= snapshot {
            all
        } else if all.entries.is_empty() {
            Self::replayed(records.iter().filter(|record| is_covered(record)))
        } else {
            return Err("the snapshot before its first command is missing".to_owned());
        };
        let first = log.purged.map_or(0, |upto| upto.index + 1);
        if !log.entries.keys().copied().eq((first..).take(log.entries.len())) {
            return Err(format!("commands behind {first} are missing"));
        }
        Ok(log)
    }

    fn replayed<'r>(records: impl Iterator<Item = &'r LogRecord>) -> Self {
        let mut log = Self::default();
        records.for_each(|record| log.replay(record.clone()));
        log
    }

    /// The last entry, also if it was dropped.
    fn last(&self) -> Option<LogId> {
        let last = self.entries.values().next_back().map(|entry| *entry.get_log_id());
        last.or(self.purged)
    }

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

fn is_of(vote: &Vote, host: u64) -> bool {
    vote.leader_id.node_id == host
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogStore {
    /// Opens a directory, which has what this process has stored in it before.
    ///
    /// # Errors
    /// Those of [`LockedDirectory`]; `Damaged`: it lacks something.
    pub(crate) fn open(
        directory: &Path,
        identity: &DirectoryIdentity,
        stored: &Arc<StoredBefore>,
    ) -> Result<Self> {
        stored.check_exists(directory)?;
        let locked = LockedDirectory::lock(directory)?;
        let vote: Option<Vote> = locked.read(VOTE_FILE)?;
        let snapshot: Option<StoredMeta> = locked.read(SNAPSHOT_FILE)?;
        let index = snapshot.and_then(|stored| stored.meta.last_log_id).map(|last| last.index);
        let log = LogEntries::of(&locked.read_log::<LogRecord>()?, index);
        let log = log.map_err(|what| locked.damaged(&what))?;
        stored.check(vote, log.last()).map_err(|what| locked.damaged(&what))?;
        if let Some(vote) = vote {
            stored.note_vote(vote);
        }
        let files = locked.open(identity, &log.records())?;
        let has_led = vote.is_some_and(|vote| vote.committed && is_of(&vote, identity.host));
        let snapshot = watch::Sender::new(SnapshotOnDisk { index, is_closed: false });
        Ok(Self {
            host: identity.host,
            has_led,
            files: Arc::new(Mutex::new(files)),
            entries: Arc::new(Mutex::new(log)),
            snapshot: Arc::new(snapshot),
            stored: Arc::clone(stored),
        })
    }

    /// True if this host led when the directory was used last.
    pub(crate) fn has_led(&self) -> bool {
        self.has_led
    }

    /// True if nothing was stored: neither a vote nor an entry nor a snapshot.
    pub(crate) fn is_empty(&self) -> bool {
        let has_snapshot = self.snapshot.borrow().index.is_some();
        !has_snapshot && self.entries().last().is_none() && !self.stored.has_vote()
    }

    /// See [`StoredBefore::lost_before`].
    pub(crate) fn lost_before(&self, previous: LogId) -> Option<String> {
        self.stored.lost_before(previous)
    }

    /// Why entries of a leader with this vote contradict those of this host: two commands have one
    /// place in the order. An entry has one content, so the check may be late.
    pub(crate) fn contradiction(&self, vote: &Vote, entries: &[RaftEntry]) -> Option<String> {
        if !self.stored.is_accepted(vote) {
            return None;
        }
        let log = self.entries();
        let differs = |entry: &&RaftEntry| {
            let own = log.entries.get(&entry.get_log_id().index);
            own.is_some_and(|own| own.log_id == entry.log_id && own.payload != entry.payload)
        };
        let id = *entries.iter().find(differs)?.get_log_id();
        let leader = vote.leader_id.node_id;
        Some(self.stored.contradicted(format!(
            "command {} (term {}) of host {leader}, which leads, is another one than that of this \
             host: the directory of one of the two was restored from a copy, or is damaged; remove \
             that host from the cluster, empty its directory, add it again, and restart this node",
            id.index, id.leader_id.term
        )))
    }

    fn files(&self) -> MutexGuard<'_, MemberFiles> {
        locked(&self.files)
    }

    fn entries(&self) -> MutexGuard<'_, LogEntries> {
        locked(&self.entries)
    }

    /// Writes the records, then changes the entries.
    pub(super) async fn write(&self, records: Vec<LogRecord>) -> std::result::Result<(), AnyError> {
        let store = self.clone();
        self.blocking(move |files| {
            for record in &records {
                if let LogRecord::Truncated(from) = record {
                    // If it fails, the file may have them or not.
                    store.stored.forget_from(*from);
                }
            }
            files.append(&records)?;
            let mut entries = store.entries();
            for record in records {
                entries.replay(record);
            }
            store.stored.note_last(entries.last());
            Ok(())
        })
        .await
    }

    /// Writes what is known to be decided, without waiting.
    fn hint_committed(&self) {
        let store = self.clone();
        drop(tokio::task::spawn_blocking(move || {
            let files = store.files();
            let committed = {
                let mut log = store.entries();
                log.is_hint_due = false;
                log.committed
            };
            // It may be missing. A disk that has failed is found by the next write that counts.
            let _ = files.hint(COMMITTED_FILE, &committed);
        }));
    }

    /// Replaces the file of the log if it is large.
    async fn shorten(&self) -> std::result::Result<(), AnyError> {
        let store = self.clone();
        self.blocking(move |files| {
            if !files.is_log_large() {
                return Ok(());
            }
            let records = store.entries().records();
            files.replace_log(&records)
        })
        .await
    }

    /// Changes the files on the blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut MemberFiles) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, AnyError> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut store.files())).await;
        done.map_err(AnyError::error)?.map_err(AnyError::error)
    }

    /// Replaces the snapshot, unless a newer one was written.
    pub(crate) async fn replace_snapshot<T: Serialize + Send + 'static>(
        &self,
        index: Option<u64>,
        value: T,
    ) -> std::result::Result<(), AnyError> {
        let on_disk = Arc::clone(&self.snapshot);
        self.blocking(move |files| {
            if index < on_disk.borrow().index {
                return Ok(());
            }
            files.replace(SNAPSHOT_FILE, &value)?;
            on_disk.send_modify(|on_disk| on_disk.index = index);
            Ok(())
        })
        .await
    }

    /// The state machine has ended, and writes no further snapshot.
    pub(crate) fn close_snapshots(&self) {
        self.snapshot.send_modify(|on_disk| on_disk.is_closed = true);
    }

    /// Waits until the snapshot on disk has the command with this index. Openraft drops the entries
    /// of a snapshot that it gets while the state machine still writes it.
    async fn wait_for_snapshot(&self, index: u64) -> std::result::Result<(), AnyError> {
        let mut on_disk = self.snapshot.subscribe();
        let is_there = |on_disk: &SnapshotOnDisk| on_disk.index >= Some(index);
        let waited = on_disk.wait_for(|on_disk| is_there(on_disk) || on_disk.is_closed).await;
        if waited.is_ok_and(|on_disk| is_there(&on_disk)) {
            return Ok(());
        }
        Err(AnyError::error(format!("the snapshot up to command {index} was not written")))
    }

    /// Stores the settings in an identity that has none.
    pub(crate) fn complete_identity(&self, identity: &DirectoryIdentity) -> Result<()> {
        self.files().complete_identity(identity)
    }

    /// Reads a file of one record.
    pub(crate) fn read_file<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>> {
        self.files().read(name)
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
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: log.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> std::result::Result<(), StorageError> {
        let (vote, stored) = (*vote, Arc::clone(&self.stored));
        let written = self.blocking(move |files| {
            files.replace(VOTE_FILE, &vote)?;
            stored.note_vote(vote);
            Ok(())
        });
        Ok(written.await.map_err(StorageIOError::write_vote)?)
    }

    /// The vote. One that made this host the leader is none that openraft would go on with: the
    /// directory may be a copy, or lack what was dropped of it.
    async fn read_vote(&mut self) -> std::result::Result<Option<Vote>, StorageError> {
        let read: Result<Option<Vote>> = self.read_file(VOTE_FILE);
        let read = read.map_err(|error| StorageIOError::read_vote(AnyError::error(error)))?;
        let committed = |vote: &Vote| vote.committed && !is_of(vote, self.host);
        Ok(read.map(|vote| Vote { committed: committed(&vote), ..vote }))
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId>,
    ) -> std::result::Result<(), StorageError> {
        let was_due = {
            let mut log = self.entries();
            log.committed = committed;
            std::mem::replace(&mut log.is_hint_due, true)
        };
        if !was_due {
            self.hint_committed();
        }
        Ok(())
    }

    /// What was decided, as far as the log has it.
    async fn read_committed(&mut self) -> std::result::Result<Option<LogId>, StorageError> {
        let hint: Option<LogId> = self.read_file(COMMITTED_FILE).ok().flatten().flatten();
        let log = self.entries();
        let is_stored =
            |id: &LogId| log.entries.get(&id.index).is_some_and(|entry| entry.get_log_id() == id);
        Ok(hint.filter(is_stored))
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
        self.wait_for_snapshot(log_id.index).await.map_err(StorageIOError::write_logs)?;
        let written = self.write(vec![LogRecord::Purged(log_id)]).await;
        written.map_err(StorageIOError::write_logs)?;
        Ok(self.shorten().await.map_err(StorageIOError::write_logs)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::{CommittedLeaderId, EntryPayload};

    fn entry(index: u64) -> LogRecord {
        let log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
        LogRecord::Entry(RaftEntry { log_id, payload: EntryPayload::Blank })
    }

    fn purged(index: u64) -> LogRecord {
        LogRecord::Purged(LogId::new(CommittedLeaderId::new(1, 1), index))
    }

    /// The first and the last entry, and the last one that was dropped.
    fn read(records: &[LogRecord], snapshot: Option<u64>) -> std::result::Result<String, String> {
        let log = LogEntries::of(records, snapshot)?;
        let first = log.entries.keys().next();
        Ok(format!("{first:?} {:?} {:?}", log.last().map(|last| last.index), log.purged.is_some()))
    }

    /// A kill of an earlier version before its snapshot was written.
    #[test]
    fn entries_that_no_snapshot_has_are_not_dropped() {
        let mut records: Vec<_> = (0..6).map(entry).collect();
        records.push(purged(499));
        assert_eq!(read(&records, Some(499)).unwrap(), "None Some(499) true");
        assert_eq!(read(&records, None).unwrap(), "Some(0) Some(5) false");
        assert_eq!(read(&records, Some(2)).unwrap(), "Some(0) Some(5) false");
        // Something behind it was acknowledged.
        records.push(entry(500));
        assert_eq!(read(&records, Some(499)).unwrap(), "Some(500) Some(500) true");
        read(&records, None).unwrap_err();
        // Entries that are dropped step by step.
        let mut records: Vec<_> = (0..6).map(entry).collect();
        records.extend([purged(1), purged(3)]);
        assert_eq!(read(&records, Some(4)).unwrap(), "Some(4) Some(5) true");
        assert_eq!(
            read(&records, None).unwrap_err(),
            "the snapshot before its first command is missing"
        );
        read(&[entry(0), entry(2)], None).unwrap_err();
    }

    const LONG: std::time::Duration = std::time::Duration::from_secs(60);

    /// A disk that takes its time must not keep a leader from sending what it has.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread that hangs is a failed test")]
    fn entries_are_read_while_the_disk_works() {
        let place = tempfile::tempdir().unwrap();
        let identity =
            DirectoryIdentity { cluster: "east".to_owned(), host: 1, settings: Vec::new() };
        let mut store = LogStore::open(place.path(), &identity, &<_>::default()).unwrap();
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
