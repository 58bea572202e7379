//! The driver: the thread that keeps the leases.

mod clocks;
mod drains;
mod effects;
mod inactive;
mod lags;
mod lease_thread;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_cluster::{
    ClusterConfig, ClusterLevel, ClusterState, Command, Effects, FollowerAcknowledgement,
    GroupState, Host, HostId, HostInput, Monotonic, OwnerMessage, PartitionId, ViewNumber,
};
use nearstate_model::Result;
use nearstate_store::{ReplicationPolicy, lease_clock};

use crate::consensus::{ConsensusEngine, EngineEvent, EngineStatus, StateMachine};
use crate::partition::{Partition, PartitionOptions};
use crate::peer::{FollowerStats, PartitionInput, PeerListener};

use self::clocks::HostClock;
use self::effects::UnstoredRecord;
use super::config::{CopyConfig, DriverConfig};
use super::copy_thread::{CopyShared, CopyThread, FIRST_NAMESPACE, now};
use super::inbox::{CopyInput, DriverInbox, DriverInput, SharedDriver};
use super::lag::TailNotes;
use super::machine::{ClusterMachine, invalid, restored};
use super::notice::ClusterNotice;
use super::published::{KnownOwner, MemberPositions, Published};
use super::status::ClusterStatus;

/// Drives the copies of this host until it is dropped.
pub struct ClusterDriver {
    inbox: Arc<DriverInbox>,
    is_over: Arc<AtomicBool>,
    pub(super) host: HostId,
    copies: Mutex<BTreeMap<PartitionId, Arc<CopyShared>>>,
    config: Arc<DriverConfig>,
    shared: Arc<SharedDriver<Driver>>,
    published: Arc<Mutex<Published>>,
    thread: Option<JoinHandle<()>>,
    is_realtime: bool,
}

impl fmt::Debug for ClusterDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterDriver").field("host", &self.host).finish_non_exhaustive()
    }
}

impl ClusterDriver {
    /// Makes the state machines of the engine, of a program that can do levels up to `highest`.
    ///
    /// # Errors
    /// `BadArgument`: the configuration is not valid.
    pub fn machines(
        config: &ClusterConfig,
        highest: ClusterLevel,
    ) -> Result<Arc<dyn Fn() -> Box<dyn StateMachine> + Send + Sync>> {
        let new = ClusterState::new(config).map_err(invalid)?;
        Ok(Arc::new(move || Box::new(ClusterMachine::new(new.clone(), highest))))
    }

    /// Opens the copies and starts. `engine` gets the function that wakes the driver.
    ///
    /// # Errors
    /// `BadArgument`: the configuration is not valid; those of the engine, of the regions and of
    /// [`Partition::open`].
    pub fn start(
        config: DriverConfig,
        listener: &PeerListener,
        engine: impl FnOnce(Box<dyn Fn() + Send + Sync>) -> Result<Arc<dyn ConsensusEngine>>,
    ) -> Result<Self> {
        let config = Arc::new(config);
        let state = ClusterState::new(&config.cluster).map_err(invalid)?;
        let shared_driver = Arc::new(SharedDriver::<Driver>::default());
        let inbox = Arc::clone(&shared_driver.inbox);
        let mut copies = BTreeMap::new();
        for copy in &config.copies {
            let opened = open(&config, copy, &shared_driver)?;
            let thread = start_copy(&config, (copy, opened), &inbox)?;
            thread.shared.copy.listen_with(listener)?;
            copies.insert(copy.partition, (thread, copy.port));
        }
        listener.complete();
        let waking = Arc::clone(&inbox);
        let engine = engine(Box::new(move || waking.wake()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let published = Arc::new(Mutex::new(Published::default()));
        let shared_copy = |(of, (thread, _)): (&PartitionId, &(CopyThread, u16))| {
            (*of, Arc::clone(&thread.shared))
        };
        let opened = copies.iter().map(shared_copy).collect();
        let host = config.host;
        let driver = Driver {
            host: new_host(&config),
            config: Arc::clone(&config),
            engine,
            state,
            applied: 0,
            copies,
            inbox: Arc::clone(&inbox),
            inputs: Vec::new(),
            effects: Effects::new(),
            members: BTreeMap::new(),
            heard_at: BTreeMap::new(),
            tails: BTreeMap::new(),
            is_initialized: false,
            learners: None,
            is_removed: false,
            is_outdated: false,
            wanted: BTreeSet::new(),
            left: BTreeSet::new(),
            excluding: BTreeMap::new(),
            unstored: BTreeMap::new(),
            clock: HostClock::new(lease_clock()),
            published: Arc::clone(&published),
        };
        shared_driver.begin(driver);
        let told = (&shared_driver, Arc::clone(&config.on_notice));
        let lease = Duration::from_millis(config.cluster.lease_ms.into());
        let (thread, is_realtime) = lease_thread::start(told, &is_over, (lease, config.realtime))?;
        let (copies, thread) = (Mutex::new(opened), Some(thread));
        let shared = shared_driver;
        Ok(Self { inbox, is_over, host, copies, config, shared, published, thread, is_realtime })
    }

    /// Opens a copy of a partition to whose group this host was added.
    ///
    /// # Errors
    /// Those of the region and of [`Partition::open`].
    pub fn open_copy(&self, config: &CopyConfig, listener: &PeerListener) -> Result<()> {
        let (partition, port) = (config.partition, config.port);
        let mut copies = self.lock_copies();
        if copies.contains_key(&partition) {
            return Ok(());
        }
        let opened = open(&self.config, config, &self.shared)?;
        opened.listen_with(listener)?;
        // The driver has the copy before its thread tells anything: what the rules answer would be
        // lost.
        let mut started = Ok(());
        self.shared.step(|driver| {
            started = start_copy(&self.config, (config, opened), &self.inbox).map(|thread| {
                copies.insert(partition, Arc::clone(&thread.shared));
                driver.copies.insert(partition, (thread, port));
            });
        });
        drop(copies);
        self.inbox.wake();
        started
    }

    fn lock_copies(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Arc<CopyShared>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn copy(&self, partition: PartitionId) -> Option<Arc<CopyShared>> {
        self.lock_copies().get(&partition).cloned()
    }

    /// The members that are connected to this host, the owner of the partition.
    pub fn members(&self, partition: PartitionId) -> Vec<FollowerStats> {
        let copy = self.copy(partition);
        copy.map_or_else(Vec::new, |copy| copy.copy.members())
    }

    /// The position up to which the log of an owned partition is replicated; 0 if it is not known.
    pub fn replicated(&self, partition: PartitionId) -> u64 {
        let state = self.copy(partition).map(|copy| copy.copy.state());
        state.and_then(Result::ok).map_or(0, |state| state.replicated)
    }

    /// The owner of each partition that has one, as far as this host knows.
    pub fn owners(&self) -> Vec<KnownOwner> {
        // The driver never waits for a region, so the lock is not held while one is read.
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_leased = |partition: &PartitionId| {
            let state = self.copy(*partition).map(|copy| copy.copy.state());
            state.and_then(Result::ok).is_some_and(|state| state.lease_until > lease_clock())
        };
        let has_copy = |partition: &PartitionId| self.copy(*partition).is_some();
        published.owners(self.host, &has_copy, &is_leased)
    }

    /// The state of a partition to whose group this host belongs, and whether it hears the owner.
    pub(super) fn known(&self, partition: PartitionId) -> Option<(GroupState, bool)> {
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |group: &&GroupState| group.partition() == partition;
        let group = published.groups.iter().find(is_it)?.clone();
        if !group.group().contains(&self.host) {
            // A host that was removed keeps its copy, and hears no owner.
            return None;
        }
        let is_owner_heard = published.heard.contains(&partition);
        self.copy(partition).map(|_| (group, is_owner_heard))
    }

    /// The decided level, as far as this host knows it.
    pub fn level(&self) -> ClusterLevel {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).level
    }

    /// The last position of each member of an owned partition, and when it came.
    pub(super) fn member_positions(
        &self,
        partition: PartitionId,
    ) -> BTreeMap<HostId, (Option<u64>, Monotonic)> {
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let of_partition = published.members.iter().filter(|((of, _), _)| *of == partition);
        of_partition.map(|((_, host), known)| (*host, *known)).collect()
    }

    /// The state of a partition, as far as this host knows it.
    pub fn group(&self, partition: PartitionId) -> Option<GroupState> {
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.groups.iter().find(|group| group.partition() == partition).cloned()
    }

    /// The index of the last decision in [`group`](Self::group) and [`status`](Self::status).
    pub fn applied(&self) -> u64 {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).applied
    }

    /// What this host knows at present.
    pub fn status(&self) -> ClusterStatus {
        // The driver never waits for a region, so the lock is not held while one is read.
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let copies = published.groups.iter().filter_map(|group| {
            let copy = self.copy(group.partition())?;
            published.copy_status((self.host, &copy), group)
        });
        let (engine, level) = (published.engine.clone(), published.level);
        let (silent_ms, applied) = (published.silent_ms(now()), published.applied);
        let (copies, is_realtime) = (copies.collect(), self.is_realtime);
        ClusterStatus { engine, level, applied, copies, silent_ms, is_realtime }
    }
}

impl Drop for ClusterDriver {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.inbox.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(
    config: &DriverConfig,
    copy: &CopyConfig,
    driver: &Arc<SharedDriver<Driver>>,
) -> Result<Partition> {
    let partition = copy.partition;
    let own = config.hosts.get(&config.host).map(|host| host.name.clone()).unwrap_or_default();
    let inputs = Arc::clone(driver);
    let opened = PartitionOptions {
        cluster_id: config.cluster_id,
        partition: partition.0,
        host: own,
        lease: Duration::from_millis(config.cluster.lease_ms.into()),
        settings: config.settings.clone(),
        namespaces: config.namespaces.preceded_by(ReplicationPolicy::Async, FIRST_NAMESPACE)?,
        members: config.hosts.values().map(|host| host.name.clone()).collect(),
        kills_stopped: config.kills_stopped,
        tls: config.tls.clone(),
        on_event: config.on_peer_event,
        inputs: Arc::new(move |input| {
            inputs.connection(partition, input, Driver::take_inputs);
        }),
    };
    Partition::open(opened, &copy.region)
}

fn start_copy(
    config: &DriverConfig,
    (copy, opened): (&CopyConfig, Partition),
    inbox: &Arc<DriverInbox>,
) -> Result<CopyThread> {
    let (notices, inbox) = (Arc::clone(&config.on_notice), Arc::clone(inbox));
    CopyThread::start((copy.partition, opened), copy.region.clone(), inbox, notices)
}

/// A host that knows nothing yet, as at the start of a process.
fn new_host(config: &DriverConfig) -> Host {
    let process = RandomState::new().build_hasher().finish();
    Host::new(config.host, process, now()).with_policy(config.cluster.copy_missing)
}

/// Before anything was decided, the state is that of the file. After a start it may be long past: a
/// host that knows a leader learns what was decided.
fn is_present(engine: &EngineStatus) -> bool {
    !engine.voters.is_empty() && engine.leader.is_some()
}

/// What decides and carries out.
struct Driver {
    host: Host,
    config: Arc<DriverConfig>,
    engine: Arc<dyn ConsensusEngine>,
    state: ClusterState,
    /// The index of the last command in `state`.
    applied: u64,
    copies: BTreeMap<PartitionId, (CopyThread, u16)>,
    inbox: Arc<DriverInbox>,
    /// Memory for the inputs of one turn.
    inputs: Vec<DriverInput>,
    effects: Effects,
    /// The last acknowledgement of each member, for the status.
    members: MemberPositions,
    /// When each host has last sent a message about replication, for the status.
    heard_at: BTreeMap<HostId, Monotonic>,
    /// The ends of the owned logs, for the lag as a time.
    tails: BTreeMap<PartitionId, TailNotes>,
    is_initialized: bool,
    /// The hosts that learn decisions, if not all do.
    learners: Option<BTreeSet<u64>>,
    /// The membership has removed this host: it acts for no partition.
    is_removed: bool,
    /// The decided level is above those that this program can do: it acts for no partition.
    is_outdated: bool,
    /// The copies that the program was asked to open.
    wanted: BTreeSet<PartitionId>,
    /// Copies of partitions whose groups this host has left: their receipts were given up.
    left: BTreeSet<PartitionId>,
    /// When the exclusion of this host was proposed last, for drains that are not decided.
    excluding: BTreeMap<PartitionId, Monotonic>,
    /// What could not be stored in a region, which is tried again.
    unstored: BTreeMap<PartitionId, UnstoredRecord>,
    clock: HostClock,
    published: Arc<Mutex<Published>>,
}

impl Driver {
    fn take_events(&mut self) {
        let mut events = Vec::new();
        self.engine.take_events(&mut events);
        for event in events {
            self.engine_event(event);
        }
    }

    fn take_inputs(&mut self) {
        let mut inputs = std::mem::take(&mut self.inputs);
        self.inbox.take(&mut inputs);
        for input in inputs.drain(..) {
            self.input(input);
        }
        self.inputs = inputs;
    }

    fn tick(&mut self) {
        let engine = self.engine.status();
        self.note_removal(&engine);
        self.note_voters(&engine);
        self.give_up_left(&engine);
        if !self.is_initialized && is_present(&engine) {
            self.is_initialized = true;
            self.step_state();
        }
        self.store_again();
        self.keep_clocks();
        self.step(HostInput::Tick);
        self.complete_drains();
        let copies = self.copies.values();
        copies.for_each(|(copy, _)| copy.shared.copy.set_worked_at(lease_clock()));
        self.note_tails();
        let roles = self.copies.keys().filter_map(|of| Some((*of, self.host.role(*of)?)));
        let now = now();
        let hears = |of: &&PartitionId| self.host.hears_owner(**of, now);
        let misses = |of: &&PartitionId| self.host.misses_degraded_owner(**of, now);
        let published = Published {
            engine,
            applied: self.applied,
            level: self.state.level(),
            groups: self.state.groups().cloned().collect(),
            roles: roles.collect(),
            members: self.members.clone(),
            lags_ms: self.lags_ms(),
            heard: self.copies.keys().filter(hears).copied().collect(),
            missed: self.copies.keys().filter(misses).copied().collect(),
            heard_at: self.heard_at.clone(),
        };
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = published;
    }

    fn engine_event(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Applied { index, command } => {
                self.applied = index;
                if let Ok(command) = Command::decode(&command) {
                    let applied = self.state.apply(&command);
                    self.tell_ordered(&command, applied);
                }
                self.is_initialized = true;
                self.step_state();
            }
            EngineEvent::Restored { index, snapshot } => match restored(&self.state, &snapshot) {
                Ok(state) => {
                    self.applied = index;
                    self.state = state;
                    self.is_initialized = true;
                    self.step_state();
                }
                Err(error) => {
                    self.notice(&ClusterNotice::EngineFailed { reason: error.to_string() });
                }
            },
            EngineEvent::Failed { reason } => self.notice(&ClusterNotice::EngineFailed { reason }),
            EngineEvent::Recovered => self.notice(&ClusterNotice::EngineRecovered),
        }
    }

    fn notice(&self, notice: &ClusterNotice) {
        (self.config.on_notice)(notice);
    }

    fn step_state(&mut self) {
        self.note_level();
        self.drop_removed_members();
        if self.is_removed || self.is_outdated {
            return;
        }
        self.ask_for_copies();
        self.host.step(now(), HostInput::State(&self.state), &mut self.effects);
        self.carry_out();
    }

    /// The program opens the copies of partitions to whose groups this host was added.
    fn ask_for_copies(&mut self) {
        let me = self.config.host;
        let groups = self.state.groups().filter(|group| group.group().contains(&me));
        for partition in groups.map(GroupState::partition) {
            if !self.copies.contains_key(&partition) && self.wanted.insert(partition) {
                (self.config.on_notice)(&ClusterNotice::CopyWanted { partition });
            }
        }
    }

    fn step(&mut self, input: HostInput<'_>) {
        if self.is_removed || self.is_outdated {
            return;
        }
        self.host.step(now(), input, &mut self.effects);
        self.carry_out();
    }

    fn input(&mut self, input: DriverInput) {
        match input {
            DriverInput::Copy(partition, CopyInput::Facts(facts)) => {
                self.step(HostInput::Region { partition, facts });
            }
            DriverInput::Copy(partition, CopyInput::Frozen(view, held)) => {
                self.step(HostInput::Frozen { partition, view, held });
            }
            DriverInput::Connection(partition, input) => self.connection(partition, &input),
        }
    }

    fn host_of(&self, name: &str) -> Option<HostId> {
        self.config.hosts.iter().find(|(_, host)| host.name == name).map(|(id, _)| *id)
    }

    /// Members learn which of their answers count.
    fn say_counted(&self, partition: PartitionId, host: HostId) {
        let name = self.config.hosts.get(&host).map(|host| &host.name);
        if let (Some(name), Some((copy, _))) = (name, self.copies.get(&partition)) {
            let stamp = self.host.answered(partition, host);
            copy.shared.copy.set_counted(name, stamp.0);
        }
    }

    fn connection(&mut self, partition: PartitionId, input: &PartitionInput) {
        match input {
            PartitionInput::MemberConnected { host, view, connection } => {
                let Some(host) = self.host_of(host) else { return };
                let (view, connection) = (ViewNumber(*view), *connection);
                self.step(HostInput::Connected { partition, host, view, connection });
                self.say_counted(partition, host);
            }
            PartitionInput::MemberLeft { host, connection, .. } => {
                let Some(host) = self.host_of(host) else { return };
                let connection = *connection;
                self.step(HostInput::Disconnected { partition, host, connection });
            }
            PartitionInput::MemberAhead { host, view } => {
                let (Some(host), view) = (self.host_of(host), ViewNumber(*view)) else { return };
                self.step(HostInput::OlderRegion { partition, host, view });
            }
            PartitionInput::MemberBehind { host, connection, .. } => {
                let Some(host) = self.host_of(host) else { return };
                let connection = *connection;
                self.step(HostInput::Behind { partition, host, connection });
            }
            PartitionInput::MemberAcknowledged { host, view, connection, position, stamp } => {
                let Some(host) = self.host_of(host).filter(|host| self.learns(*host)) else {
                    return;
                };
                self.note_position((partition, host), *position);
                self.heard_at.insert(host, now());
                let acknowledgement = FollowerAcknowledgement {
                    host,
                    view: ViewNumber(*view),
                    connection: *connection,
                    position: *position,
                    stamp: Monotonic(*stamp),
                };
                self.step(HostInput::Acknowledged { partition, acknowledgement });
                self.say_counted(partition, host);
            }
            PartitionInput::LogWritten { view, position } => {
                let (view, position) = (ViewNumber(*view), *position);
                self.step(HostInput::Written { partition, view, position });
            }
            PartitionInput::PositionReceived { view, stamp, answered, is_leased, .. } => {
                let message = OwnerMessage {
                    view: ViewNumber(*view),
                    stamp: Monotonic(*stamp),
                    answered: Monotonic(*answered),
                    is_leased: *is_leased,
                };
                let group = self.state.group(partition);
                let owner = group.filter(|group| group.view() == message.view);
                if let Some(owner) = owner.and_then(GroupState::owner) {
                    self.heard_at.insert(owner, now());
                }
                self.step(HostInput::PositionReceived { partition, message });
            }
            PartitionInput::OwnerPromotes { view, steps } => {
                let (view, steps) = (ViewNumber(*view), *steps);
                self.step(HostInput::OwnerPromotes { partition, view, steps });
            }
            PartitionInput::FollowFailed { reason, .. } => {
                self.notice(&ClusterNotice::Failed { partition, reason: reason.clone() });
            }
            PartitionInput::Panicked { thread } => {
                self.notice(&ClusterNotice::Panicked { thread });
            }
            // The copy's thread looks at the region, and the connection begins anew by itself.
            PartitionInput::Joined { .. }
            | PartitionInput::OwnerLost { .. }
            | PartitionInput::HigherView { .. } => {}
        }
    }
}
