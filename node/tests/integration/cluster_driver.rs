//! The drivers of three hosts in this process, over loopback. Their engine is one list of commands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_cluster::{ClusterConfig, Command, HostConfig, HostId, PartitionConfig, PartitionId};
use nearstate_model::{Error, Result};
use nearstate_node::{
    ClusterDriver, ConsensusEngine, CopyConfig, CopyStatus, DriverConfig, EngineEvent, EngineState,
    EngineStatus, EventWaker, HostAddress, PeerEvent, PeerListener, StateMachine,
};
use nearstate_store::{
    CreateOptions, NamespaceRules, Region, ReplicationPolicy, Schema, lease_clock,
};

use nearstate_wire::{Hello, PartitionPlace};

use crate::hostile_peers::{Intruder, hello_of};
use crate::partition::{CLUSTER, WAIT_MAX, refusal, refused};

const PARTITION: PartitionId = PartitionId(7);
/// Longer than any pause of a test on a busy machine.
const LEASE: Duration = Duration::from_secs(1);
const HOSTS: [(u16, &str); 3] = [(1, "driver-a"), (2, "driver-b"), (3, "driver-c")];

/// What all hosts have in common.
#[derive(Default)]
struct CommandLog {
    commands: Mutex<Vec<Vec<u8>>>,
    states: Mutex<Vec<Arc<EngineState>>>,
    /// Proposals of evictions, and what was wrong with one.
    evictions: Mutex<Vec<HostId>>,
    violations: Mutex<Vec<String>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommandLog {
    fn append(&self, command: Vec<u8>) -> u64 {
        let mut commands = locked(&self.commands);
        commands.push(command.clone());
        let index = commands.len() as u64;
        for state in locked(&self.states).iter() {
            state.apply(index, &command);
        }
        index
    }
}

/// The engine of a host. A proposal is checked against the region at the moment at which it is
/// made, and is applied at once.
struct TestEngine {
    log: Arc<CommandLog>,
    state: Arc<EngineState>,
    region: Region,
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
        let (seen, evicting) = (session.view_seen().unwrap(), session.evicting().unwrap());
        match *command {
            Command::Evict { revision, host, .. } => {
                locked(&self.log.evictions).push(host);
                if evicting != Some((revision.0, host.0)) {
                    return Err(format!("{command:?} with {evicting:?} in the region"));
                }
            }
            Command::Full { revision, .. } => {
                if evicting.is_none_or(|(stored, _)| stored != revision.0) {
                    return Err(format!("{command:?} with {evicting:?} in the region"));
                }
            }
            Command::Report { view, .. } | Command::Suspect { view, .. } if seen < view.0 => {
                return Err(format!("{command:?} with view {seen} in the region"));
            }
            _ => {}
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

    fn propose(&self, command: Vec<u8>) {
        let decoded = Command::decode(&command).unwrap();
        if let Err(violation) = self.check(&decoded) {
            locked(&self.log.violations).push(violation);
        }
        self.log.append(command);
    }

    fn propose_and_wait(&self, command: Vec<u8>, _: Duration) -> Result<u64> {
        Ok(self.log.append(command))
    }

    fn change_voters(&self, _: &BTreeSet<u64>, _: Duration) -> Result<()> {
        Err(Error::BadArgument { detail: "the voters of this engine never change".to_owned() })
    }

    fn report_of(&self, _: u64, _: Duration) -> Result<String> {
        Err(Error::BadArgument { detail: "this engine asks no other host".to_owned() })
    }

    fn take_events(&self, out: &mut Vec<EngineEvent>) {
        self.state.take_events(out);
    }

    fn status(&self) -> EngineStatus {
        let voters = HOSTS.map(|(id, _)| u64::from(id)).into();
        let applied = self.state.applied();
        EngineStatus { leader: Some(1), voters, applied, term: 1, failure: None }
    }
}

struct DrivenHost {
    driver: ClusterDriver,
    region: Region,
    address: String,
    _listener: PeerListener,
    _folder: tempfile::TempDir,
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
    }
}

fn on_peer_event(event: &PeerEvent<'_>) {
    if let PeerEvent::Refused { address, reason } = event {
        refused(&address.to_string(), reason);
    }
}

/// Three hosts, and what they have in common.
fn start() -> (Vec<DrivenHost>, Arc<CommandLog>) {
    let log = Arc::new(CommandLog::default());
    let listeners = HOSTS.map(|_| {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        PeerListener::start(&[any], None, on_peer_event).unwrap()
    });
    let addresses: BTreeMap<HostId, HostAddress> = HOSTS
        .iter()
        .zip(&listeners)
        .map(|((id, name), listener)| {
            let (name, peer) = ((*name).to_owned(), listener.addresses()[0].to_string());
            (HostId(*id), HostAddress { name, peer, clients: "127.0.0.1".to_owned() })
        })
        .collect();
    let hosts = HOSTS.iter().zip(listeners).map(|((id, _), listener)| {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &options).unwrap();
        let config = DriverConfig {
            host: HostId(*id),
            cluster: configuration(),
            cluster_id: CLUSTER,
            hosts: addresses.clone(),
            copies: vec![CopyConfig { partition: PARTITION, region: region.clone(), port: 6379 }],
            tls: None,
            namespaces: NamespaceRules::new([(ReplicationPolicy::Async, "*".to_owned())]).unwrap(),
            on_peer_event,
            on_notice: Arc::new(|_| ()),
        };
        let (of, log) = (region.clone(), Arc::clone(&log));
        let machines = ClusterDriver::machines(&config.cluster).unwrap();
        let engine = |waker: EventWaker| {
            let machine: Box<dyn StateMachine> = machines();
            let state = Arc::new(EngineState::new(machine, waker));
            locked(&log.states).push(Arc::clone(&state));
            let engine: Arc<dyn ConsensusEngine> =
                Arc::new(TestEngine { log: Arc::clone(&log), state, region: of });
            Ok(engine)
        };
        let driver = ClusterDriver::start(config, &listener, engine).unwrap();
        let address = listener.addresses()[0].to_string();
        DrivenHost { driver, region, address, _listener: listener, _folder: folder }
    });
    (hosts.collect(), log)
}

fn status(host: &DrivenHost) -> Option<CopyStatus> {
    host.driver.status().copies.into_iter().next()
}

fn until(what: &str, is_true: impl Fn() -> bool) {
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
    let (mut hosts, log) = start();
    until("all are full", || is_owner_with(&hosts[0], &[1, 2, 3]));
    // A member is lost, and the owner evicts it.
    drop(hosts.pop());
    until("it is evicted", || is_owner_with(&hosts[0], &[1, 2]));
    assert!(locked(&log.evictions).contains(&HostId(3)));
    assert_eq!(*locked(&log.violations), Vec::<String>::new());
}

#[test]
fn hostile_connections_cost_an_owner_neither_its_lease_nor_its_members() {
    let (hosts, _log) = start();
    let [owner, member, _] = &hosts[..] else { panic!("three hosts") };
    until("all are full", || is_owner_with(owner, &[1, 2, 3]));
    let before = status(owner).unwrap();
    let addresses = || -> BTreeSet<SocketAddr> {
        owner.driver.members(PARTITION).into_iter().map(|member| member.address).collect()
    };
    let connections = addresses();
    let applied = member.region.session().unwrap().following().unwrap().unwrap().applied;
    let own = owner.region.session().unwrap().log_identity().unwrap();
    let right = hello_of(own, ("driver-b", before.view), applied);
    let place = right.place;
    let of = |place: PartitionPlace| Hello { place, ..right.clone() };
    let views = [0, before.view + 1, before.view + (1 << 40)];
    let mut refusals = vec![
        ("busy", right.clone()),
        ("busy", Hello { name: "driver-c", ..right.clone() }),
        ("cluster", Hello { name: "driver-d", ..right.clone() }),
        ("cluster", of(PartitionPlace { cluster_id: [7; 16], ..place })),
        ("cluster", of(PartitionPlace { partition: 8, ..place })),
        ("cluster", of(PartitionPlace::default())),
    ];
    refusals.extend(views.map(|view| ("view", of(PartitionPlace { view, ..place }))));
    for (reason, hello) in refusals {
        let mut intruder = Intruder::connect(&owner.address);
        intruder.say(&hello);
        let refused = intruder.refused();
        assert!(refused.starts_with(reason), "{hello:?}: {refused}");
    }
    let mut intruder = Intruder::connect(&member.address);
    intruder.send_bytes(&[0xff; 100]);
    assert!(refusal(&intruder.address()).starts_with("format"));
    let session = owner.region.session().unwrap();
    let namespace = session.namespace("after", &Schema::default()).unwrap();
    session.put(namespace, b"k", b"v").unwrap();
    let receipt = session.receipt_of_all().unwrap();
    until("a commit is replicated", || session.is_replicated(receipt).unwrap());
    let after = status(owner).unwrap();
    assert_eq!((after.view, &after.full, after.role), (before.view, &before.full, "owner"));
    assert_eq!(addresses(), connections, "the members have kept their connections");
}
