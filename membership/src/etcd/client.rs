//! Reading and appending commands. One request at a time.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nearstate_node::{EngineState, SharedSettings};
use tokio::time::Instant;

use crate::limits::{ETCD_COMPARED_MAX, SNAPSHOT_INTERVAL};
use crate::own_machine::OwnMachine;
use crate::raft::MachineFactory;

use super::applied::{AppliedCommand, AppliedFile};
use super::gateway::{EtcdSettings, Gateway};
use super::keys::{EtcdKeys, StoredCommands, cluster_id, has_succeeded};

/// What is known of etcd.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The hosts that take part; empty before the cluster was created.
    pub(super) hosts: BTreeSet<u64>,
    pub(super) term: u64,
}

/// The etcd that is followed, since a read has found the cluster in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FollowedEtcd {
    /// The number of etcd.
    cluster_id: String,
    /// The call that created the cluster. An earlier version has stored none.
    creation: Option<u64>,
    /// Where it was read.
    endpoint: String,
}

/// The commands in etcd, and the state to which they are applied.
pub(super) struct EtcdClient {
    gateway: Gateway,
    keys: EtcdKeys,
    state: Arc<EngineState>,
    machine: MachineFactory,
    /// Absent before the first command, and after a failure.
    own: Option<OwnMachine>,
    call_max: Duration,
    compacts: bool,
    /// The last command that was applied here, by this process or an earlier one, to see that etcd
    /// has still the same.
    last: AppliedFile,
    snapshot: (u64, u64),
    known: Known,
    /// The settings on which decisions rest.
    decided: SharedSettings,
    followed: Option<FollowedEtcd>,
    /// What is a failure at once, until that is told: an endpoint was refused, or the state machine
    /// has failed.
    failed: Option<String>,
}

/// Why an endpoint is refused: its etcd is not the one that is known.
fn other_etcd((endpoint, id): (&str, &str), (known, known_id): (&str, &str)) -> String {
    let hexadecimal =
        |id: &str| id.parse().map_or(id.to_owned(), |number: u64| format!("{number:x}"));
    format!(
        "etcd.endpoints: {endpoint} belongs to the etcd with cluster ID {}, and {known} to that \
         with {}: list the members of one etcd only (etcdctl endpoint status shows the IDs). \
         If etcd was restored from a snapshot, it has a new ID: see \"etcd\" in \
         docs/operate/cluster.md",
        hexadecimal(id),
        hexadecimal(known_id)
    )
}

/// Why nothing is decided, if etcd has not what this host has applied.
fn lost(what: &str) -> String {
    format!(
        "etcd has lost decisions that this host has applied ({what}): it was restored from an \
         older copy, or its keys were changed. No host decides anything until an operator acts: \
         see \"etcd\" in docs/operate/cluster.md"
    )
}

impl EtcdClient {
    pub(super) fn new(
        settings: EtcdSettings,
        (keys, last): (EtcdKeys, AppliedFile),
        (state, machine): (Arc<EngineState>, MachineFactory),
        (call_max, decided): (Duration, SharedSettings),
    ) -> Self {
        let compacts = settings.compacts;
        let gateway = Gateway::new(settings, 0, call_max);
        Self {
            gateway,
            keys,
            state,
            machine,
            own: None,
            call_max,
            compacts,
            last,
            snapshot: (0, 0),
            known: Known::default(),
            decided,
            followed: None,
            failed: None,
        }
    }

    /// What is known since the last read.
    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    async fn transact(&mut self, body: &serde_json::Value) -> io::Result<serde_json::Value> {
        self.transact_until(body, None).await
    }

    /// A transaction that is not sent after this time.
    async fn transact_until(
        &mut self,
        body: &serde_json::Value,
        until: Option<Instant>,
    ) -> io::Result<serde_json::Value> {
        let reply = self.gateway.call("/v3/kv/txn", body, self.call_max, until).await?;
        let id = cluster_id(&reply).unwrap_or_default();
        let Some(followed) = self.followed.as_ref().filter(|one| one.cluster_id != id) else {
            return Ok(reply);
        };
        Err(self.refuse(other_etcd(
            (&self.gateway.endpoint(), id),
            (&followed.endpoint, &followed.cluster_id),
        )))
    }

    /// Refuses the endpoint that has answered. The next one is asked.
    fn refuse(&mut self, reason: String) -> io::Error {
        self.gateway.close();
        self.failed = Some(reason.clone());
        io::Error::other(reason)
    }

    /// What has been a failure since the last call, also if the next attempt had success.
    pub(super) fn take_failed(&mut self) -> Option<String> {
        self.failed.take()
    }

    /// Why the cluster is not created: endpoints that answer belong to different etcds.
    pub(super) async fn disagreement(&mut self) -> Option<String> {
        let read = self.keys.read(1, self.noted());
        let replies = self.gateway.ask_all(("/v3/kv/txn", &read), ETCD_COMPARED_MAX).await;
        let of = |(endpoint, reply): &(String, serde_json::Value)| {
            (endpoint.clone(), cluster_id(reply).unwrap_or_default().to_owned())
        };
        let mut all = replies.iter().map(of);
        let (endpoint, id) = all.next()?;
        let (other, other_id) = all.find(|(_, other)| *other != id)?;
        Some(other_etcd((&other, &other_id), (&endpoint, &id)))
    }

    /// The index of the last command that was applied here, or 0: no command has that.
    fn noted(&self) -> u64 {
        self.last.known().map_or(0, |last| last.index)
    }

    /// Applies all commands that etcd has.
    pub(super) async fn catch_up(&mut self) -> io::Result<()> {
        loop {
            let applied = self.state.applied();
            // The command that is noted is read again.
            let reply = self.transact(&self.keys.read(applied + 1, self.noted())).await?;
            let stored = EtcdKeys::stored(&reply).map_err(io::Error::other)?;
            self.follow(cluster_id(&reply).unwrap_or_default(), &stored)?;
            if stored.created.is_some() && stored.settings.is_none() {
                // Before anything is applied: hosts with other groups would decide differently.
                self.store_settings(stored.creation).await?;
                continue;
            }
            let creation = stored.creation;
            if let Some(what) = self.loss(applied, &stored) {
                let reason = lost(&what);
                // The others must not decide on what is left. One that does not learn it here
                // finds the same.
                if creation.is_some() {
                    let halt = self.keys.halt(&reason, creation);
                    let _ = self.transact(&halt).await;
                }
                return Err(io::Error::other(reason));
            }
            if self.apply(applied, stored).await? {
                return Ok(());
            }
        }
    }

    /// Changes the state. After an error its state machine is made anew, from what was applied.
    fn change_state(
        &mut self,
        work: impl FnOnce(&mut OwnMachine) -> nearstate_model::Result<()>,
    ) -> io::Result<()> {
        let done = self.own().and_then(|mut own| {
            work(&mut own)?;
            self.own = Some(own);
            Ok(())
        });
        done.map_err(|error| {
            self.failed = Some(error.to_string());
            io::Error::other(error)
        })
    }

    fn own(&mut self) -> nearstate_model::Result<OwnMachine> {
        if let Some(own) = self.own.take() {
            return Ok(own);
        }
        let mut own = OwnMachine::new((self.machine)(), Arc::clone(&self.state));
        let (applied, state) = self.state.snapshot();
        if applied > 0 {
            own.restore(applied, &state)?;
        }
        Ok(own)
    }

    /// An earlier version has created the cluster without settings: the first host of this one
    /// stores its own, and the others are compared with them.
    async fn store_settings(&mut self, creation: Option<u64>) -> io::Result<()> {
        let stored = self.keys.store_settings(self.decided.lines(), creation);
        self.transact(&stored).await.map(drop)
    }

    /// Compares the cluster that was read with the one that is followed.
    fn follow(&mut self, cluster_id: &str, stored: &StoredCommands) -> io::Result<()> {
        let endpoint = self.gateway.endpoint();
        match &self.followed {
            Some(followed) if followed.creation != stored.creation && stored.created.is_some() => {
                let shown = |creation: Option<u64>| {
                    creation.map_or("unknown".to_owned(), |number| format!("{number:016x}"))
                };
                let reason = format!(
                    "the cluster in etcd at {endpoint} is another one: its creation is {}, and \
                     that of the one that this node follows, read at {}, is {}. Its keys were \
                     deleted, and it was created anew: if that is intended, stop all nodes, move \
                     the files of their regions away, and start them. A region waits for the views \
                     of the earlier cluster",
                    shown(stored.creation),
                    followed.endpoint,
                    shown(followed.creation)
                );
                return Err(self.refuse(reason));
            }
            None if stored.created.is_some() => {
                let (cluster_id, creation) = (cluster_id.to_owned(), stored.creation);
                self.followed = Some(FollowedEtcd { cluster_id, creation, endpoint });
            }
            // Another endpoint may know the cluster, if this one is wrong.
            None if self.gateway.has_others() => self.gateway.close(),
            Some(_) | None => {}
        }
        Ok(())
    }

    /// What etcd has lost of the commands that this host has applied.
    fn loss(&self, applied: u64, stored: &StoredCommands) -> Option<String> {
        let is_created = stored.created.as_ref().is_some_and(|hosts| !hosts.is_empty());
        // A cluster that was created anew has nothing of the earlier one.
        let known = self.last.known().filter(|last| is_created && last.is_of(stored.creation));
        let highest = known.map_or(applied, |last| last.index.max(applied));
        if stored.head < highest || !is_created && !self.known.hosts.is_empty() {
            return Some(format!("the last one is {}, and {highest} was applied", stored.head));
        }
        // Before anything is applied: a host that has started reads from the first command on, and
        // would act on others than those that it has applied before.
        let in_snapshot = stored.snapshot.as_ref().map_or(0, |(index, _)| *index);
        match (known, &stored.noted) {
            (Some(last), Some(noted)) if last.differs(noted) => {
                return Some(format!("command {} is another one", last.index));
            }
            // One that the snapshot contains may be deleted.
            (Some(last), None) if last.index > in_snapshot => {
                return Some(format!("command {} is missing", last.index));
            }
            (Some(_) | None, _) => {}
        }
        let next = applied + 1;
        let mut expected = stored.commands.iter().filter(|command| command.index > applied);
        let is_next = match expected.next() {
            Some(first) => first.index == next,
            None => stored.head == applied,
        };
        (!is_next && in_snapshot < next).then(|| format!("command {next} is missing"))
    }

    /// Applies what was read. True if that is all.
    async fn apply(&mut self, applied: u64, stored: StoredCommands) -> io::Result<bool> {
        let StoredCommands { created, head, snapshot, snapshot_revision, creation, .. } = stored;
        let StoredCommands { commands, term, settings, halted, .. } = stored;
        if let Some(reason) = halted {
            return Err(io::Error::other(format!("{} says: {reason}", self.keys.halted())));
        }
        let settings = settings.map(SharedSettings::new);
        let what = settings.and_then(|stored| self.decided.difference(stored.summary()));
        if let Some(what) = what {
            return Err(io::Error::other(format!(
                "the cluster was created with other settings: {what}. They never change: restore \
                 the cluster file, and restart the node"
            )));
        }
        self.known = Known { hosts: created.unwrap_or_default(), term };
        self.snapshot = (snapshot.as_ref().map_or(0, |(index, _)| *index), snapshot_revision);
        let new: Vec<_> = commands.iter().filter(|command| command.index > applied).collect();
        let is_behind = new.first().map_or(head > applied, |first| first.index != applied + 1);
        if is_behind && let Some((index, state)) = snapshot {
            self.note(AppliedCommand::restored(index, creation)).await?;
            self.change_state(|own| own.restore(index, &state))?;
            return Ok(false);
        }
        let missing = (applied + 1..).zip(&new).find(|(index, command)| command.index != *index);
        if let Some((index, _)) = missing {
            return Err(io::Error::other(lost(&format!("command {index} is missing"))));
        }
        if let Some(last) = new.last() {
            self.note(AppliedCommand::of(last, creation)).await?;
        }
        for command in &new {
            self.change_state(|own| own.apply(command.index, &command.bytes))?;
        }
        Ok(applied + new.len() as u64 >= head)
    }

    /// Notes the last command that is about to be applied, unless a later one is noted: a host that
    /// has started applies again what it has applied before.
    async fn note(&mut self, applied: AppliedCommand) -> io::Result<()> {
        if self.last.known().is_some_and(|known| known.is_behind(&applied)) {
            return Ok(());
        }
        self.last.store(applied).await
    }

    /// Creates the cluster. False: it exists, and another call created it.
    pub(super) async fn create(&mut self, hosts: &BTreeSet<u64>, call: u64) -> io::Result<bool> {
        // A reply of another etcd than the known one is refused before anything is written there.
        self.transact(&self.keys.read(1, self.noted())).await?;
        let reply = self.transact(&self.keys.create(hosts, self.decided.lines(), call)).await?;
        let created = EtcdKeys::has_created(&reply, call);
        self.catch_up().await?;
        Ok(created)
    }

    /// Appends a command and applies it. One attempt, which is not sent after `until`; `None`:
    /// another host was faster.
    pub(super) async fn append(
        &mut self,
        command: &[u8],
        until: Instant,
    ) -> io::Result<Option<u64>> {
        if self.known.hosts.is_empty() {
            self.catch_up().await?;
        }
        if self.known.hosts.is_empty() {
            return Err(io::Error::other("the cluster is not created"));
        }
        let index = self.state.applied() + 1;
        let creation = self.followed.as_ref().and_then(|followed| followed.creation);
        let append = self.keys.append(index, command, creation);
        let has_won = has_succeeded(&self.transact_until(&append, Some(until)).await?);
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
        let creation = self.followed.as_ref().and_then(|followed| followed.creation);
        let written = self.keys.compact((index, &state), revision, creation);
        let written = self.transact(&written).await;
        let has_replaced = written.is_ok_and(|reply| has_succeeded(&reply)) && revision != 0;
        if has_replaced && self.compacts {
            let body = EtcdKeys::compaction(revision);
            let _ = self.gateway.call("/v3/kv/compaction", &body, self.call_max, None).await;
        }
    }
}
