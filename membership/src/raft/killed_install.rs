//! A kill behind each write of a host that gets a snapshot: it starts again with what it has.

use std::io::Cursor;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nearstate_model::Result;
use nearstate_node::{EngineState, StateMachine};
use openraft::storage::{RaftLogStorage as _, RaftStateMachine as _};
use openraft::{CommittedLeaderId, EntryPayload};

use super::disk::{DirectoryIdentity, LockedDirectory};
use super::kill_point::KILL_AT_WRITE;
use super::machine::RaftMachine;
use super::storage::{LogRecord, LogStore, SNAPSHOT_FILE};
use super::types::{LogId, RaftEntry, SnapshotMeta};

/// Names the directory to the process that is killed.
const DIRECTORY: &str = "NEARSTATE_KILLED_INSTALL";
const LAST: u64 = 499;

struct NoCommands;

impl StateMachine for NoCommands {
    fn apply(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

fn id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(1, 1), index)
}

fn open(directory: &Path) -> (LogStore, RaftMachine) {
    let identity = DirectoryIdentity { cluster: "east".to_owned(), host: 1, settings: Vec::new() };
    let store = LogStore::open(directory, &identity, &<_>::default()).unwrap();
    let state = Arc::new(EngineState::new(Box::new(NoCommands), Box::new(|| ())));
    let machine = RaftMachine::open(Box::new(NoCommands), state, store.clone()).unwrap();
    (store, machine)
}

/// Whether entries are dropped, and whether a snapshot is there: as the files say it, without what
/// the start does with a directory of an earlier version.
fn dropped_and_stored(directory: &Path) -> (bool, bool) {
    let locked = LockedDirectory::lock(directory).unwrap();
    let records: Vec<LogRecord> = locked.read_log().unwrap();
    let is_dropped = records.iter().any(|record| matches!(record, LogRecord::Purged(_)));
    (is_dropped, locked.read::<serde_json::Value>(SNAPSHOT_FILE).unwrap().is_some())
}

/// As openraft does: it drops the entries while the state machine writes the snapshot.
#[test]
fn an_installation_in_another_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut store, mut machine) = open(Path::new(&directory));
        let entry = |index| RaftEntry { log_id: id(index), payload: EntryPayload::Blank };
        let entries: Vec<_> = (0..6).map(entry).map(LogRecord::Entry).collect();
        store.write(entries).await.unwrap();
        let snapshot_id = "s".to_owned();
        let last_membership = <_>::default();
        let meta = SnapshotMeta { last_log_id: Some(id(LAST)), last_membership, snapshot_id };
        let (purged, installed) = tokio::join!(
            store.purge(id(LAST)),
            machine.install_snapshot(&meta, Box::new(Cursor::new(Vec::new())))
        );
        purged.unwrap();
        installed.unwrap();
    });
}

#[test]
fn a_kill_behind_each_write_leaves_no_log_that_begins_behind_the_snapshot() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let name = "raft::killed_install::an_installation_in_another_process";
    let mut kills = 0;
    loop {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name]).env(DIRECTORY, place.path());
        let ended = child.env(KILL_AT_WRITE, (kills + 1).to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        let (is_dropped, is_stored) = dropped_and_stored(place.path());
        assert!(!is_dropped || is_stored, "after {kills} writes: dropped without a snapshot");
        let (log, applied) = runtime.block_on(async {
            let (mut store, mut machine) = open(place.path());
            (store.get_log_state().await.unwrap(), machine.applied_state().await.unwrap().0)
        });
        assert!(log.last_purged_log_id <= applied, "after {kills} writes: {log:?}, {applied:?}");
        if ended.status.success() {
            assert!(text.contains("1 passed"), "{text}");
            assert_eq!((log.last_purged_log_id, applied), (Some(id(LAST)), Some(id(LAST))));
            break;
        }
        assert!(!text.contains("panicked"), "{text}");
        kills += 1;
    }
    // Identity, log, entries, snapshot, and what is dropped.
    assert_eq!(kills, 5);
}
