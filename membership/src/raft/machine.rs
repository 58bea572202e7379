//! The state machine of openraft: it applies commands to one of its own, of which it keeps a
//! snapshot in a file, and passes them to the node.
//!
//! The node's state machine never goes back. The one of openraft does when the engine starts again
//! after a failure: it begins with the snapshot.

use std::fmt;
use std::io::Cursor;
use std::sync::Arc;

use nearstate_model::Result;
use nearstate_node::{EngineState, SNAPSHOT_BYTES_MAX, StateMachine};
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EntryPayload, OptionalSend, RaftLogId as _, RaftSnapshotBuilder, StorageIOError,
};
use serde::{Deserialize, Serialize};

use crate::own_machine::OwnMachine;

use super::storage::{LogStore, SNAPSHOT_FILE};
use super::types::{
    LogId, RaftEntry, RaftSnapshot, SnapshotMeta, StorageError, StoredMembership, TypeConfig,
};

/// A snapshot as it lies in its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredSnapshot {
    meta: SnapshotMeta,
    state: Vec<u8>,
}

/// The state machine of an engine that is running.
pub(crate) struct RaftMachine {
    store: LogStore,
    /// It is not used again after an error: openraft is started anew.
    own: OwnMachine,
    last: Option<LogId>,
    membership: StoredMembership,
}

impl fmt::Debug for RaftMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftMachine").field("last", &self.last).finish_non_exhaustive()
    }
}

/// A snapshot that is to be written. Commands that are applied meanwhile are not in it.
#[derive(Debug)]
pub(crate) struct SnapshotDraft {
    store: LogStore,
    stored: StoredSnapshot,
}

impl RaftMachine {
    /// The state machine with the snapshot of the files, if they have one.
    pub(crate) fn open(
        machine: Box<dyn StateMachine>,
        node: Arc<EngineState>,
        store: LogStore,
    ) -> Result<Self> {
        let own = OwnMachine::new(machine, node);
        let mut opened = Self { store, own, last: None, membership: <_>::default() };
        if let Some(stored) = opened.store.read_file::<StoredSnapshot>(SNAPSHOT_FILE)? {
            opened.restore(&stored.meta, &stored.state)?;
        }
        Ok(opened)
    }

    fn restore(&mut self, meta: &SnapshotMeta, state: &[u8]) -> Result<()> {
        self.own.restore(meta.last_log_id.map_or(0, |last| last.index), state)?;
        (self.last, self.membership) = (meta.last_log_id, meta.last_membership.clone());
        Ok(())
    }
}

impl Drop for RaftMachine {
    /// Openraft has ended, or its state machine has failed.
    fn drop(&mut self) {
        self.store.close_snapshots();
    }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotDraft {
    async fn build_snapshot(&mut self) -> std::result::Result<RaftSnapshot, StorageError> {
        let stored = self.stored.clone();
        write(&self.store, stored.clone()).await?;
        Ok(RaftSnapshot { meta: stored.meta, snapshot: Box::new(Cursor::new(stored.state)) })
    }
}

async fn write(store: &LogStore, stored: StoredSnapshot) -> std::result::Result<(), StorageError> {
    let signature = stored.meta.signature();
    let index = stored.meta.last_log_id.map(|last| last.index);
    let written = store.replace_snapshot(index, stored).await;
    Ok(written.map_err(|error| StorageIOError::write_snapshot(Some(signature), error))?)
}

impl RaftStateMachine<TypeConfig> for RaftMachine {
    type SnapshotBuilder = SnapshotDraft;

    async fn applied_state(
        &mut self,
    ) -> std::result::Result<(Option<LogId>, StoredMembership), StorageError> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> std::result::Result<Vec<()>, StorageError>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut replies = Vec::new();
        for entry in entries {
            let id = *entry.get_log_id();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(command) => {
                    let applied = self.own.apply(id.index, &command.0);
                    applied.map_err(|error| StorageIOError::apply(id, AnyError::error(error)))?;
                }
                EntryPayload::Membership(voters) => {
                    self.membership = StoredMembership::new(Some(id), voters);
                }
            }
            self.last = Some(id);
            replies.push(());
        }
        Ok(replies)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotDraft {
        let (last_log_id, last_membership) = (self.last, self.membership.clone());
        let snapshot_id = last_log_id.map_or_else(String::new, |last| last.to_string());
        let meta = SnapshotMeta { last_log_id, last_membership, snapshot_id };
        let state = self.own.snapshot();
        SnapshotDraft { store: self.store.clone(), stored: StoredSnapshot { meta, state } }
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> std::result::Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::new(Cursor::new(Vec::new())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> std::result::Result<(), StorageError> {
        let signature = Some(meta.signature());
        let state = snapshot.into_inner();
        if state.len() > SNAPSHOT_BYTES_MAX {
            let error = AnyError::error(format!("a snapshot of {} bytes", state.len()));
            return Err(StorageIOError::read_snapshot(signature, error).into());
        }
        let restored = self.restore(meta, &state);
        restored
            .map_err(|error| StorageIOError::read_snapshot(signature, AnyError::error(error)))?;
        write(&self.store, StoredSnapshot { meta: meta.clone(), state }).await
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> std::result::Result<Option<RaftSnapshot>, StorageError> {
        let stored = self.store.read_file::<StoredSnapshot>(SNAPSHOT_FILE);
        let stored =
            stored.map_err(|error| StorageIOError::read_snapshot(None, AnyError::error(error)))?;
        let whole = |stored: StoredSnapshot| RaftSnapshot {
            meta: stored.meta,
            snapshot: Box::new(Cursor::new(stored.state)),
        };
        Ok(stored.map(whole))
    }
}
