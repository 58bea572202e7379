//! Reading and appending commands. One request at a time.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nearstate_node::{EngineState, SharedSettings};

use crate::limits::SNAPSHOT_INTERVAL;

use super::gateway::{EtcdSettings, Gateway};
use super::keys::{EtcdKeys, StoredCommands, has_succeeded};

/// What is known of etcd.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The hosts that take part; empty before the cluster was created.
    pub(super) hosts: BTreeSet<u64>,
    pub(super) term: u64,
}

/// The commands in etcd, and the state to which they are applied.
pub(super) struct EtcdClient {
    gateway: Gateway,
    keys: EtcdKeys,
    state: Arc<EngineState>,
    call_max: Duration,
    compacts: bool,
    /// The last command that was applied here, to see that etcd has still the same.
    last: Option<(u64, Vec<u8>)>,
    snapshot: (u64, u64),
    known: Known,
    /// The settings on which decisions rest.
    decided: SharedSettings,
}

fn lost(what: &str) -> io::Error {
    io::Error::other(format!(
        "{what}: etcd was restored from an older copy, or its keys were deleted. Restart the node"
    ))
}

impl EtcdClient {
    pub(super) fn new(
        settings: EtcdSettings,
        (keys, state): (EtcdKeys, Arc<EngineState>),
        (call_max, decided): (Duration, SharedSettings),
    ) -> Self {
        let compacts = settings.compacts;
        let gateway = Gateway::new(settings, 0);
        let (last, snapshot, known) = (None, (0, 0), Known::default());
        Self { gateway, keys, state, call_max, compacts, last, snapshot, known, decided }
    }

    /// What is known since the last read.
    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    async fn transact(&mut self, body: &serde_json::Value) -> io::Result<serde_json::Value> {
        self.gateway.call("/v3/kv/txn", body, self.call_max).await
    }

    /// Applies all commands that etcd has.
    pub(super) async fn catch_up(&mut self) -> io::Result<()> {
        loop {
            let applied = self.state.applied();
            // The last command is read again.
            let reply = self.transact(&self.keys.read(applied.max(1))).await?;
            let stored = EtcdKeys::stored(&reply).map_err(io::Error::other)?;
            if self.apply(applied, stored)? {
                return Ok(());
            }
        }
    }

    /// Applies what was read. True if that is all.
    fn apply(&mut self, applied: u64, stored: StoredCommands) -> io::Result<bool> {
        let StoredCommands { created, head, snapshot, snapshot_revision, .. } = stored;
        let StoredCommands { commands, term, settings, .. } = stored;
        let settings = settings.map(SharedSettings::new);
        let what = settings.and_then(|stored| self.decided.difference(stored.summary()));
        if let Some(what) = what {
            return Err(io::Error::other(format!(
                "the cluster was created with other settings: {what}. They never change: restore \
                 the cluster file, and restart the node"
            )));
        }
        let hosts = created.unwrap_or_default();
        if head < applied || (hosts.is_empty() && !self.known.hosts.is_empty()) {
            return Err(lost(&format!("the last command is {head}, and {applied} was applied")));
        }
        self.known = Known { hosts, term };
        self.snapshot = (snapshot.as_ref().map_or(0, |(index, _)| *index), snapshot_revision);
        let mut next = applied + 1;
        let first = commands.iter().find(|(index, _)| *index > applied).map(|(index, _)| *index);
        if first.is_some_and(|first| first != next) || (first.is_none() && head > applied) {
            let Some((index, state)) = snapshot.filter(|(index, _)| *index >= next) else {
                return Err(lost(&format!("command {next} is missing")));
            };
            self.state.restore(index, &state).map_err(io::Error::other)?;
            self.last = None;
            return Ok(false);
        }
        for (index, command) in commands {
            if index <= applied {
                let is_same = self
                    .last
                    .as_ref()
                    .is_none_or(|(last, bytes)| *last != index || *bytes == command);
                if !is_same {
                    return Err(lost(&format!("command {index} is another one")));
                }
                continue;
            }
            if index != next {
                return Err(lost(&format!("command {next} is missing")));
            }
            self.state.apply(index, &command);
            self.last = Some((index, command));
            next += 1;
        }
        Ok(next > head)
    }

    /// Creates the cluster. False: it exists, and another call created it.
    pub(super) async fn create(&mut self, hosts: &BTreeSet<u64>, call: u64) -> io::Result<bool> {
        let reply = self.transact(&self.keys.create(hosts, self.decided.lines(), call)).await?;
        let created = EtcdKeys::has_created(&reply, call);
        self.catch_up().await?;
        Ok(created)
    }

    /// Appends a command and applies it. One attempt; `None`: another host was faster.
    pub(super) async fn append(&mut self, command: &[u8]) -> io::Result<Option<u64>> {
        if self.known.hosts.is_empty() {
            self.catch_up().await?;
        }
        if self.known.hosts.is_empty() {
            return Err(io::Error::other("the cluster is not created"));
        }
        let index = self.state.applied() + 1;
        let has_won = has_succeeded(&self.transact(&self.keys.append(index, command)).await?);
        self.catch_up().await?;
        if !has_won {
            return Ok(None);
        }
        self.compact().await;
        Ok(Some(index))
    }

    /// Writes a snapshot if the last one is old, and lets etcd forget what was before the last one:
    /// its database would grow with each command for ever. A failure leaves more in etcd, until the
    /// next time.
    async fn compact(&mut self) {
        let (snapshot, revision) = self.snapshot;
        if self.state.applied().saturating_sub(snapshot) < SNAPSHOT_INTERVAL {
            return;
        }
        let (index, state) = self.state.snapshot();
        let written = self.transact(&self.keys.compact(index, &state, revision)).await;
        let has_replaced = written.is_ok_and(|reply| has_succeeded(&reply)) && revision != 0;
        if has_replaced && self.compacts {
            let body = EtcdKeys::compaction(revision);
            let _ = self.gateway.call("/v3/kv/compaction", &body, self.call_max).await;
        }
    }
}
