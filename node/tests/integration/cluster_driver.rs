//! The drivers of three hosts in this process, over loopback. Their engine is one list of commands.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_cluster::{
    ClusterConfig, ClusterLevel, Command, CopyMissingPolicy, HostConfig, HostId, OperatorGoal,
    PartitionConfig, PartitionId, ViewNumber,
};
use nearstate_model::{Error, Result};
use nearstate_node::{
    ClusterDriver, ClusterNotice, ConsensusEngine, CopyConfig, CopyStatus, DriverConfig,
    EngineEvent, EngineState, EngineStatus, EventWaker, HostAddress, OperatorOutcome, PeerEvent,
    PeerListener, RealtimeMode, StateMachine, StoppedHolder, VoteChange,
};
use nearstate_store::{
    CreateOptions, Namespace, NamespaceRules, Region, ReplicationPolicy, Schema, Session,
    lease_clock,
};

use crate::hostile_peers::SETTINGS;
use crate::partition::{CLUSTER, WAIT_MAX, contents, refused};

pub(crate) const PARTITION: PartitionId = PartitionId(7);
/// Longer than any pause of a test on a busy machine.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
const HOSTS: [(u16, &str); 3] = [(1, "driver-a"), (2, "driver-b"), (3, "driver-c")];

/// A loopback address that no other test of this program, and no connection, has.
fn own_address() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, CALLS.fetch_add(1, Ordering::Relaxed))
}

/// What all hosts have in common.
#[derive(Default)]
pub(crate) struct CommandLog {
    commands: Mutex<Vec<Vec<u8>>>,
    states: Mutex<Vec<Arc<EngineState>>>,
    /// Proposals of evictions, and what was wrong with one.
    pub(crate) evictions: Mutex<Vec<HostId>>,
    pub(crate) violations: Mutex<Vec<String>>,
    /// What was done about stopped processes.
    pub(crate) stopped: Mutex<Vec<StoppedHolder>>,
    /// The next proposal panics.
    pub(crate) breaks: Mutex<bool>,
    /// The threads that have ended by a panic.
    pub(crate) panicked: Mutex<Vec<&'static str>>,
    /// Hosts whose region was in a copy of its file.
    pub(crate) copied: Mutex<Vec<HostId>>,
    /// Hosts that cannot do the level of the cluster.
    pub(crate) outdated: Mutex<Vec<HostId>>,
    /// The hosts that have lost their vote.
    pub(crate) removed: Mutex<BTreeSet<u64>>,
    /// While exclusions are delayed: those that were proposed.
    pub(crate) exclusions: Mutex<Option<Vec<Vec<u8>>>>,
    /// Nothing that is waited for is ordered, and the engines say this of themselves.
    pub(crate) down: Mutex<Option<EngineStatus>>,
    /// Evictions that were told, and whether proposals of them are lost.
    pub(crate) evicted: Mutex<Vec<HostId>>,
    pub(crate) loses_evictions: Mutex<bool>,
    /// Drains that have ended before they were decided.
    pub(crate) undecided: Mutex<Vec<HostId>>,
    /// Regions that could not be used, and why.
    pub(crate) failures: Mutex<Vec<(HostId, String)>>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommandLog {
    /// How many such commands were ordered.
    pub(crate) fn count(&self, is_it: impl Fn(&Command) -> bool) -> usize {
        let commands = locked(&self.commands);
        commands.iter().filter(|command| is_it(&Command::decode(command).unwrap())).count()
    }

    pub(crate) fn append(&self, command: &[u8]) -> u64 {
        let mut commands = locked(&self.commands);
        commands.push(command.to_vec());
        let index = commands.len() as u64;
        for state in locked(&self.states).iter() {
            // Behind a level that it cannot do, a host learns nothing.
            let _ = state.apply(index, command);
        }
        index
    }
}

/// The engine of a host. A proposal is checked against the region at the moment at which it is
/// made, and is applied at once.
struct TestEngine {
    log: Arc<CommandLog>,
    state: Arc<EngineState>,
    pub(crate) region: Region,
}

impl std::fmt::Debug for TestEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestEngine").finish_non_exhaustive()
    }
}

impl TestEngine {
    /// What a proposal rests on is in the region, and so survives a kill.
    fn check(&self, command: &Command) -> std::result::Result<(), String> {
        let session = self.region.session().unwrap();
        let (Ok(seen), Ok(evicting)) = (session.view_seen(), session.evicting()) else {
            return Err(format!("{command:?}, and the record cannot be read"));
        };
        let is_stored = match *command {
            Command::Evict { revision, host, .. } => {
                locked(&self.log.evictions).push(host);
                evicting == Some((revision.0, host.0))
            }
            Command::Full { revision, .. } => {
                evicting.is_some_and(|(stored, _)| stored == revision.0)
            }
            Command::Report { view, .. } | Command::Suspect { view, .. } => seen >= view.0,
            Command::Register { .. }
            | Command::Trust { .. }
            | Command::Exclude { .. }
            | Command::HandOver { .. }
            | Command::Return { .. }
            | Command::Degrade { .. }
            | Command::Renew { .. }
            | Command::AcceptLoss { .. }
            | Command::ForceNew { .. }
            | Command::RaiseView { .. }
            | Command::AddMember { .. }
            | Command::RemoveMember { .. }
            | Command::Finalize { .. } => true,
        };
        if !is_stored {
            return Err(format!("{command:?} with view {seen} and {evicting:?} in the region"));
        }
        Ok(())
    }
}

impl ConsensusEngine for TestEngine {
    fn name(&self) -> &'static str {
        "test"
    }

    fn initialize(&self, _: &BTreeSet<u64>) -> Result<()> {
        Ok(())
    }

    fn propose(&self, command: Vec<u8>, _: Duration) {
        assert!(!std::mem::take(&mut *locked(&self.log.breaks)), "a fault of the test");
        let decoded = Command::decode(&command).unwrap();
        if let Err(violation) = self.check(&decoded) {
            locked(&self.log.violations).push(violation);
        }
        if !self.log.is_delayed(&command) {
            self.log.append(&command);
        }
    }

    fn propose_and_wait(&self, command: Vec<u8>, _: Duration) -> Result<u64> {
        if locked(&self.log.down).is_some() || self.log.is_delayed(&command) {
            return Err(Error::Backend { detail: "no majority in time".to_owned() });
        }
        Ok(self.log.append(&command))
    }

    fn change_vote(&self, _: &VoteChange, _: Duration) -> Result<()> {
        Err(Error::BadArgument { detail: "the voters of this engine never change".to_owned() })
    }

    fn report_of(&self, _: u64, _: Duration) -> Result<String> {
        Err(Error::BadArgument { detail: "this engine asks no other host".to_owned() })
    }

    fn take_events(&self, out: &mut Vec<EngineEvent>) {
        self.state.take_events(out);
    }

    fn status(&self) -> EngineStatus {
        let removed = locked(&self.log.removed);
        let voters = HOSTS.map(|(id, _)| u64::from(id)).into_iter();
        let voters = voters.filter(|id| !removed.contains(id)).collect();
        let applied = self.state.applied();
        let up = EngineStatus { leader: Some(1), voters, applied, ..EngineStatus::default() };
        locked(&self.log.down).clone().unwrap_or(up)
    }

    fn only_voters_learn(&self) -> bool {
        true
    }
}

/// A host whose node runs.
pub(crate) struct DrivenHost {
    pub(crate) driver: ClusterDriver,
    pub(crate) region: Region,
    _listener: PeerListener,
}

/// Three hosts, of which each can be lost and start again.
pub(crate) struct DrivenCluster {
    pub(crate) log: Arc<CommandLog>,
    addresses: BTreeMap<HostId, HostAddress>,
    kills_stopped: bool,
    folder: tempfile::TempDir,
    running: BTreeMap<u16, DrivenHost>,
}

fn configuration() -> ClusterConfig {
    let host = |(id, name): (u16, &str)| HostConfig { id: HostId(id), name: name.to_owned() };
    let group = HOSTS.map(|(id, _)| HostId(id)).to_vec();
    ClusterConfig {
        hosts: HOSTS.map(host).to_vec(),
        partitions: vec![PartitionConfig { id: PARTITION, name: "ue".to_owned(), group }],
        copies: 3,
        acknowledgements: 2,
        lease_ms: u32::try_from(LEASE.as_millis()).unwrap(),
        copy_missing: CopyMissingPolicy::Stop,
    }
}

fn on_peer_event(event: &PeerEvent<'_>) {
    if let PeerEvent::Refused { address, reason, .. } = event {
        refused(&address.to_string(), reason);
    }
}

impl DrivenCluster {
    /// A cluster whose copies are all full. The first host is the owner.
    pub(crate) fn start() -> Self {
        Self::start_with(true, [64 << 20; 3])
    }

    /// The regions of the three hosts may have so many bytes.
    pub(crate) fn start_with(kills_stopped: bool, bytes_max: [u64; 3]) -> Self {
        // The ports stay those of this cluster when a host is away: no other test has its address.
        let bound = HOSTS.map(|_| TcpListener::bind((own_address(), 0)).unwrap());
        let address = |(bound, (id, name)): (&TcpListener, &(u16, &str))| {
            let (name, peer) = ((*name).to_owned(), bound.local_addr().unwrap().to_string());
            (HostId(*id), HostAddress { name, peer, clients: "127.0.0.1".to_owned() })
        };
        let addresses = bound.iter().zip(&HOSTS).map(address).collect();
        drop(bound);
        let (log, running) = (Arc::new(CommandLog::default()), BTreeMap::new());
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut cluster = Self { log, addresses, kills_stopped, folder, running };
        for ((id, _), bytes_max) in HOSTS.into_iter().zip(bytes_max) {
            let options = CreateOptions { bytes_max, ..CreateOptions::default() };
            drop(Region::create(&cluster.region(id), &options).unwrap());
            cluster.run(id);
        }
        until("all are full", || is_owner_with(cluster.host(1), &[1, 2, 3]));
        cluster
    }

    pub(crate) fn region(&self, id: u16) -> PathBuf {
        self.folder.path().join(id.to_string())
    }

    pub(crate) fn host(&self, id: u16) -> &DrivenHost {
        &self.running[&id]
    }

    pub(crate) fn address(&self, id: u16) -> &str {
        &self.addresses[&HostId(id)].peer
    }

    /// The node of the host ends.
    pub(crate) fn stop(&mut self, id: u16) {
        self.running.remove(&id);
    }

    pub(crate) fn run(&mut self, id: u16) {
        let region = Region::attach(&self.region(id)).unwrap();
        let listen = self.address(id).parse().unwrap();
        let listener = Cell::new(None);
        until("the port is free", || {
            listener.set(PeerListener::start(&[listen], None, on_peer_event).ok());
            let started = listener.take();
            let is_started = started.is_some();
            listener.set(started);
            is_started
        });
        let listener = listener.take().unwrap();
        let failing = Arc::clone(&self.log);
        let config = DriverConfig {
            host: HostId(id),
            cluster: configuration(),
            settings: SETTINGS.clone(),
            cluster_id: CLUSTER,
            hosts: self.addresses.clone(),
            copies: vec![CopyConfig { partition: PARTITION, region: region.clone(), port: 6379 }],
            kills_stopped: self.kills_stopped,
            is_host_clock: false,
            realtime: RealtimeMode::Off,
            highest: ClusterLevel::HIGHEST,
            tls: None,
            namespaces: NamespaceRules::new([(ReplicationPolicy::Async, "*".to_owned())]).unwrap(),
            on_peer_event,
            on_notice: Arc::new(move |notice| {
                if let ClusterNotice::Failed { reason, .. } = notice {
                    locked(&failing.failures).push((HostId(id), reason.clone()));
                }
                failing.noticed(HostId(id), notice);
                if let ClusterNotice::CopiedFile { .. } = notice {
                    locked(&failing.copied).push(HostId(id));
                }
                if let ClusterNotice::LevelTooHigh { .. } = notice {
                    locked(&failing.outdated).push(HostId(id));
                }
                if let ClusterNotice::Panicked { thread } = notice {
                    locked(&failing.panicked).push(thread);
                }
                if let ClusterNotice::StoppedHolder { stopped, .. } = notice {
                    locked(&failing.stopped).push(stopped.clone());
                }
            }),
        };
        let (of, log) = (region.clone(), Arc::clone(&self.log));
        let machines = ClusterDriver::machines(&config.cluster, config.highest).unwrap();
        let engine = |waker: EventWaker| {
            let machine: Box<dyn StateMachine> = machines();
            let state = Arc::new(EngineState::new(machine, waker));
            let commands = locked(&log.commands);
            for (index, command) in (1..).zip(commands.iter()) {
                state.apply(index, command).unwrap();
            }
            locked(&log.states).push(Arc::clone(&state));
            let engine: Arc<dyn ConsensusEngine> =
                Arc::new(TestEngine { log: Arc::clone(&log), state, region: of });
            Ok(engine)
        };
        let driver = ClusterDriver::start(config, &listener, engine).unwrap();
        self.running.insert(id, DrivenHost { driver, region, _listener: listener });
    }

    /// An operator drains a host.
    pub(crate) fn drain(&self, id: u16) -> Result<OperatorOutcome> {
        self.drain_with(id, OperatorGoal::Drain)
    }

    pub(crate) fn drain_with(&self, id: u16, goal: OperatorGoal) -> Result<OperatorOutcome> {
        let lease = configuration().lease().unwrap();
        let state = Arc::clone(locked(&self.log.states).first().unwrap());
        let (log, region) = (Arc::clone(&self.log), self.host(id).region.clone());
        let engine = TestEngine { log, state, region };
        self.host(id).driver.carry_out(&engine, PARTITION, (goal, false), lease)
    }

    /// The host that owns the partition, with these copies.
    pub(crate) fn owner_with(&self, full: &[u16]) -> u16 {
        let found = Cell::new(None);
        until(&format!("{full:?} are full"), || {
            let owner = self.running.iter().find(|(_, host)| is_owner_with(host, full));
            found.set(owner.map(|(id, _)| *id));
            found.get().is_some()
        });
        found.get().unwrap()
    }

    /// Commits that are replicated, whatever happens to members meanwhile.
    pub(crate) fn write(&self, owner: u16, keys: Range<u64>, bytes: usize) {
        let session = self.host(owner).region.session().unwrap();
        for key in keys {
            let ue = session.namespace("ue", &Schema::default()).unwrap();
            let value = vec![7; bytes];
            // On a busy machine the lease may end for a moment.
            until("the owner admits writers", || {
                match session.put(ue, &key.to_le_bytes(), &value) {
                    Ok(_) => true,
                    Err(Error::Fenced { .. } | Error::Behind { .. }) => false,
                    Err(error) => panic!("{error}"),
                }
            });
        }
        let receipt = session.receipt_of_all().unwrap();
        until("commits are replicated", || session.is_replicated(receipt).unwrap());
    }

    /// All copies have the same records, which are so many.
    pub(crate) fn assert_equal(&self, records: u64) {
        let contents = |host: &DrivenHost| contents(&host.region.session().unwrap());
        until("all copies are equal", || {
            let owner = contents(&self.running[&self.owner_with(&[1, 2, 3])]);
            owner.len() as u64 == records
                && self.running.values().all(|host| contents(host) == owner)
        });
    }
}

pub(crate) fn status(host: &DrivenHost) -> Option<CopyStatus> {
    host.driver.status().copies.into_iter().next()
}

pub(crate) fn until(what: &str, is_true: impl Fn() -> bool) {
    let end = lease_clock() + WAIT_MAX;
    while !is_true() {
        assert!(lease_clock() < end, "it does not become true: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// The first host owns the partition with a lease, and these copies count.
fn is_owner_with(host: &DrivenHost, full: &[u16]) -> bool {
    status(host).is_some_and(|status| {
        let counted: Vec<u16> = status.full.iter().map(|host| host.0).collect();
        status.role == "owner" && counted == full
    })
}

#[test]
fn what_a_proposal_rests_on_is_stored_before_it_is_made() {
    let mut cluster = DrivenCluster::start();
    // A member is lost, and the owner evicts it.
    cluster.running.remove(&3);
    cluster.owner_with(&[1, 2]);
    let log = &cluster.log;
    assert!(locked(&log.evictions).contains(&HostId(3)));
    assert_eq!(*locked(&log.violations), Vec::<String>::new());
}

/// Fills a heap with records of a local namespace, of these sizes one after the other. Returns it
/// and the number of its records.
pub(crate) fn fill(session: &Session, sizes: &[usize]) -> (Namespace, u64) {
    let local = ReplicationPolicy::Local;
    let mine = session.namespace_with_policy("filler", &Schema::default(), local).unwrap();
    let mut count = 0_u64;
    for size in sizes {
        loop {
            match session.put(mine, &count.to_le_bytes(), &vec![1; *size]) {
                Ok(_) => count += 1,
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    (mine, count)
}

#[test]
fn a_copy_in_a_full_heap_becomes_the_owner() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..100, 1 << 10);
    for id in [2, 3] {
        fill(&cluster.host(id).region.session().unwrap(), &[32 << 10, 1 << 10, 64]);
    }
    cluster.stop(1);
    let owner = cluster.owner_with(&[2, 3]);
    let session = cluster.host(owner).region.session().unwrap();
    assert_eq!(contents(&session).len(), 100);
    assert_eq!(*locked(&cluster.log.failures), []);
}

#[test]
fn a_copy_that_has_no_room_for_its_own_log_does_not_count() {
    let mut cluster = DrivenCluster::start();
    cluster.stop(3);
    cluster.owner_with(&[1, 2]);
    let path = cluster.region(3);
    std::fs::remove_file(&path).unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&path, &options).unwrap();
    let session = region.session().unwrap();
    // Local records of a region that belongs to the cluster already.
    session.bind(CLUSTER).unwrap();
    let (mine, count) = fill(&session, &[32 << 10]);
    cluster.run(3);
    let failed = |of: &(HostId, String)| of.0 == HostId(3) && of.1.contains("room for the log");
    until("the copy is refused", || locked(&cluster.log.failures).iter().any(failed));
    assert_eq!(cluster.owner_with(&[1, 2]), 1);
    for number in 0..count {
        session.delete(mine, &number.to_le_bytes()).unwrap();
    }
    cluster.owner_with(&[1, 2, 3]);
}

#[test]
fn a_member_with_a_full_heap_is_evicted_and_rejoins_when_there_is_room() {
    let cluster = DrivenCluster::start();
    let session = cluster.host(3).region.session().unwrap();
    let (mine, count) = fill(&session, &[32 << 10]);
    // The owner and the other member have room.
    cluster.write(1, 0..200, 32 << 10);
    assert_eq!(cluster.owner_with(&[1, 2]), 1);
    cluster.write(1, 200..250, 32 << 10);
    let failed = |of: &(HostId, String)| of.0 == HostId(3) && of.1.contains("full");
    let failures = locked(&cluster.log.failures).clone();
    assert!(failures.iter().any(failed), "{failures:?}");
    for number in 0..count {
        session.delete(mine, &number.to_le_bytes()).unwrap();
    }
    cluster.assert_equal(250);
}

/// A host is lost, and returns with the region that it had earlier.
fn restore_older(is_owner: bool) {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    let victim = if is_owner { 1 } else { 2 };
    let (path, older) = (cluster.region(victim), cluster.folder.path().join("older"));
    cluster.running.remove(&victim);
    std::fs::copy(&path, &older).unwrap();
    cluster.run(victim);
    let owner = cluster.owner_with(&[1, 2, 3]);
    cluster.write(owner, 50..150, 100);
    cluster.assert_equal(150);
    cluster.running.remove(&victim);
    std::fs::rename(&older, &path).unwrap();
    cluster.run(victim);
    cluster.assert_equal(150);
    let owner = cluster.owner_with(&[1, 2, 3]);
    cluster.write(owner, 150..170, 100);
    cluster.assert_equal(170);
}

#[test]
fn a_member_whose_region_was_restored_from_an_older_copy_gets_what_it_lacks() {
    restore_older(false);
}

#[test]
fn an_owner_whose_region_was_restored_from_an_older_copy_loses_nothing_replicated() {
    restore_older(true);
}

/// The word of a region that says in which boot it was bound to its cluster: in another one it is
/// not that of the present boot (`spec/region.md`, section 11).
const CLUSTER_BOOT: u64 = 0x1000 + 0x010;

/// The host is away for a restart of its machine, which its region, on a disk, survives.
fn reboot(cluster: &mut DrivenCluster, id: u16) {
    cluster.running.remove(&id);
    let file = std::fs::File::options().write(true).open(cluster.region(id)).unwrap();
    file.write_all_at(&0_u64.to_le_bytes(), CLUSTER_BOOT).unwrap();
}

#[test]
fn an_owner_whose_region_is_of_another_boot_joins_again() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    reboot(&mut cluster, 1);
    let owner = cluster.owner_with(&[2, 3]);
    cluster.write(owner, 50..60, 100);
    cluster.run(1);
    cluster.assert_equal(60);
    assert_eq!(cluster.owner_with(&[1, 2, 3]), owner);
    // Also if it owns the partition when it returns.
    reboot(&mut cluster, owner);
    cluster.run(owner);
    cluster.assert_equal(60);
    assert_ne!(cluster.owner_with(&[1, 2, 3]), owner);
}

#[test]
fn an_owner_of_another_boot_that_has_what_an_operator_gave_up_is_kept() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    cluster.running.remove(&3);
    cluster.owner_with(&[1, 2]);
    cluster.write(1, 50..80, 100);
    // Only the evicted member is left: what it lacks is given up.
    reboot(&mut cluster, 1);
    cluster.running.remove(&2);
    cluster.run(3);
    let (partition, host) = (PARTITION, HostId(3));
    until("it knows its view", || status(cluster.host(3)).is_some());
    let view = ViewNumber(status(cluster.host(3)).unwrap().view);
    cluster.log.append(&Command::Exclude { partition, view }.encode());
    let view = ViewNumber(view.0 + 1);
    until("the loss is accepted", || {
        cluster.log.append(&Command::AcceptLoss { partition, view, host }.encode());
        status(cluster.host(3)).is_some_and(|status| status.role == "fenced")
    });
    cluster.run(1);
    let refused = |of: &(HostId, String)| of.0 == HostId(1) && of.1.contains("Move its file away");
    until("its region is refused", || locked(&cluster.log.failures).iter().any(refused));
    assert_eq!(contents(&cluster.host(1).region.session().unwrap()).len(), 80);
    // As the message says.
    cluster.running.remove(&1);
    std::fs::rename(cluster.region(1), cluster.folder.path().join("away")).unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(&cluster.region(1), &options).unwrap());
    cluster.run(1);
    cluster.run(2);
    cluster.assert_equal(50);
}
