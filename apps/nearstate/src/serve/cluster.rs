//! `nearstate serve --cluster FILE --host NAME`: a host of a cluster. It has a region for each
//! partition of whose group it is, and serves the clients of the partitions that it owns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearstate_cluster::{ClusterEventKind, Command, HostId, LogPosition, PartitionId, ViewNumber};
use nearstate_membership::{RaftConfig, RaftEngine};
use nearstate_model::{Error, Result};
use nearstate_node::{
    ClusterDriver, ClusterNotice, ConsensusEngine, CopyConfig, DriverConfig, Node, PeerListener,
};
use nearstate_resp::replication::{Replica, ReplicaSource};
use nearstate_resp::server::RespServer;
use nearstate_store::{CreateOptions, Region};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cluster::admin::{self, AdminRequest};
use crate::cluster::file::{ClusterFile, FileHost, FilePartition};
use crate::cluster::machine::KernelFiles;
use crate::cluster::row::Outcome;
use crate::cluster::{check, show};
use crate::log;
use crate::settings::{SettingLayers, Settings, UnixPaths};

use super::metrics::ServerMetrics;
use super::place::NodePlace;
use super::{access_control, memory_budget, nudsf::ServerTls, peers, region_lock};

/// Events that are kept for `nearstate cluster events`.
const EVENTS_KEPT: usize = 256;

/// Messages to the main thread that wait. It takes them at once, but while it starts a node.
const MESSAGES_MAX: usize = 4096;

/// The longest wait for the membership in a request of an operator.
const DECISION_MAX: Duration = Duration::from_secs(5);

/// The options of a host of a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Serve the partitions of a cluster, which this file describes
    #[arg(long, value_name = "FILE", requires = "host")]
    cluster: Option<PathBuf>,
    /// The name of this host in the cluster file
    #[arg(long, value_name = "NAME", requires = "cluster")]
    host: Option<String>,
}

impl ClusterArgs {
    /// The file and the host, if this is a host of a cluster.
    pub(super) fn chosen(&self) -> Option<(&PathBuf, &str)> {
        self.cluster.as_ref().zip(self.host.as_deref())
    }
}

/// What the main thread is told.
enum Message {
    Signal(i32),
    /// The host owns the partition, and may serve its clients.
    Owned(PartitionId),
    /// The host owns the partition no longer.
    Released(PartitionId),
}

/// The last events, as lines.
#[derive(Debug, Default)]
struct EventList(Mutex<VecDeque<String>>);

impl EventList {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= EVENTS_KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// A region of this host.
struct OpenCopy {
    partition: FilePartition,
    region: Region,
    _lock: region_lock::RegionLock,
}

/// The members of an owned partition, for clients.
#[derive(Debug)]
struct ListedMembers {
    driver: Arc<ClusterDriver>,
    partition: PartitionId,
}

impl ReplicaSource for ListedMembers {
    fn replicas(&self) -> Vec<Replica> {
        peers::replicas(self.driver.members(self.partition))
    }
}

/// What a host of a cluster is started with.
pub(super) struct ClusterHost<'s> {
    pub(super) settings: &'s Settings,
    pub(super) layers: &'s SettingLayers,
    pub(super) tls: Option<&'s ServerTls>,
    pub(super) place: NodePlace,
}

impl ClusterHost<'_> {
    /// Serves until SIGTERM or SIGINT.
    pub(super) fn serve(&self, path: &std::path::Path, name: &str, begin: Instant) -> Result<()> {
        let file = Arc::new(ClusterFile::read(path)?);
        let host = file.host(name)?.clone();
        let rows = check::of_start(&file, &host, &KernelFiles::default());
        check::refuse_failed(&rows)?;
        for row in rows.iter().filter(|row| row.outcome == Outcome::Warning) {
            let fields: &log::LogFields<'_> = &[("check", &row.check), ("detail", &row.detail)];
            log::emit(log::CLUSTER_CHECK, fields);
        }
        let copies = self.open(&file, &host)?;
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| Error::System {
            detail: "cannot wait for signals".to_owned(),
            errno: error.raw_os_error().unwrap_or_default(),
        })?;
        let (messages, received) = sync_channel(MESSAGES_MAX);
        let events = Arc::new(EventList::default());
        let started = start((&file, &host), &copies, &messages, &events)?;
        let (driver, engine, _listener) = &started;
        let admin = admin::listen(&admin::socket_path(&file.directory(&host)))?;
        answer_operators(
            admin,
            OperatorContext {
                file: Arc::clone(&file),
                host: host.clone(),
                driver: Arc::clone(driver),
                engine: Arc::clone(engine),
                events,
            },
        )?;
        let handle = signals.handle();
        forward_signals(signals, messages);
        let ms = begin.elapsed().as_millis();
        log::emit(log::CLUSTER_HOST_READY, &[("host", &host.name), ("ms", &ms)]);
        self.serve_partitions((&host, driver), &copies, &received);
        handle.close();
        Ok(())
    }

    /// Opens or creates the regions.
    fn open(&self, file: &ClusterFile, host: &FileHost) -> Result<Vec<OpenCopy>> {
        let mut copies = Vec::new();
        let own = || file.partitions.iter().filter(|of| of.group.contains(&host.id));
        for partition in own() {
            // Before anything is created.
            let settings = self.partition_settings(host, partition);
            let users = access_control::users(&settings, self.layers)?;
            access_control::addresses(&settings, &users)?;
        }
        for partition in own() {
            let path = file.region_file(host, partition);
            let options = CreateOptions {
                bytes_max: partition.region_bytes_max,
                mode: self.settings.region_mode.0,
                any_owner: self.settings.is_any_owner,
                numa: self.place.numa_policy(),
                ..CreateOptions::default()
            };
            let region = Region::attach_or_create(&path, &options)?;
            let lock = region_lock::acquire(&path, false)?;
            log::emit(
                log::REGION_ATTACHED,
                &[("path", &path.display()), ("partition", &partition.name)],
            );
            copies.push(OpenCopy { partition: partition.clone(), region, _lock: lock });
        }
        Ok(copies)
    }

    /// Starts and stops the nodes of partitions until a signal.
    fn serve_partitions(
        &self,
        (host, driver): (&FileHost, &Arc<ClusterDriver>),
        copies: &[OpenCopy],
        received: &Receiver<Message>,
    ) {
        let mut nodes: BTreeMap<PartitionId, Node> = BTreeMap::new();
        while let Ok(message) = received.recv() {
            match message {
                Message::Signal(signal) => {
                    log::emit(log::SHUTTING_DOWN, &[("signal", &signal)]);
                    break;
                }
                Message::Owned(partition) => {
                    let copy = copies.iter().find(|copy| copy.partition.id == partition);
                    if let Some(copy) = copy.filter(|_| !nodes.contains_key(&partition)) {
                        match self.start_node((host, driver), copy) {
                            Ok(node) => drop(nodes.insert(partition, node)),
                            Err(error) => {
                                let name = &copy.partition.name;
                                let fields: &log::LogFields<'_> =
                                    &[("partition", name), ("reason", &error)];
                                log::emit(log::CLUSTER_CLIENTS_FAILED, fields);
                            }
                        }
                    }
                }
                Message::Released(partition) => {
                    if let Some(node) = nodes.remove(&partition) {
                        stop(node);
                    }
                }
            }
        }
        for node in nodes.into_values() {
            stop(node);
        }
    }

    /// The settings of the node of a partition.
    fn partition_settings(&self, host: &FileHost, partition: &FilePartition) -> Settings {
        let mut settings = self.settings.clone();
        settings.listen = vec![SocketAddr::new(host.clients, partition.port)];
        settings.unix = UnixPaths::At(Vec::new());
        let empty = Vec::new;
        (settings.tls_listen, settings.metrics, settings.nudsf) = (empty(), empty(), empty());
        (settings.nudsf_tls, settings.sentinel_listen) = (empty(), empty());
        settings.sentinel_masters = vec![partition.name.clone()];
        settings
    }

    /// Serves the clients of a partition that this host owns.
    fn start_node(
        &self,
        (host, driver): (&FileHost, &Arc<ClusterDriver>),
        copy: &OpenCopy,
    ) -> Result<Node> {
        let address = SocketAddr::new(host.clients, copy.partition.port);
        let settings = self.partition_settings(host, &copy.partition);
        let bytes = copy.region.inspect()?.bytes_max;
        let budget = memory_budget(&settings, &self.place, bytes)?;
        let users = access_control::users(&settings, self.layers)?;
        let resp = super::resp_settings(&settings, users, budget);
        let server = Arc::new(RespServer::new(resp));
        let metrics = ServerMetrics::new(copy.region.clone(), Arc::clone(&server));
        let nudsf = super::nudsf::parts(&settings, metrics.nudsf())?;
        let protocols = super::protocols(&server, &metrics, nudsf.protocols);
        let config = super::config(&settings, &self.place, self.tls, budget.core_bytes_max);
        let node = Node::start(&config, &copy.region, &protocols)?;
        server.set_port(address.port());
        let (driver, partition) = (Arc::clone(driver), copy.partition.id);
        server.replicas.set(Arc::new(ListedMembers { driver, partition }));
        let fields: &log::LogFields<'_> =
            &[("address", &address), ("protocol", &"resp"), ("partition", &copy.partition.name)];
        log::emit(log::LISTENING, fields);
        Ok(node)
    }
}

fn stop(node: Node) {
    node.shutdown();
    if let Err(error) = node.join() {
        log::emit(log::CORE_FAILED, &[("reason", &error)]);
    }
}

fn forward_signals(mut signals: Signals, messages: SyncSender<Message>) {
    std::thread::spawn(move || {
        for signal in signals.forever().filter(|signal| *signal != SIGHUP) {
            if messages.send(Message::Signal(signal)).is_err() {
                return;
            }
        }
    });
}

type Started = (Arc<ClusterDriver>, Arc<dyn ConsensusEngine>, PeerListener);

/// Starts the listener for members, the engine and the driver.
fn start(
    (file, host): (&Arc<ClusterFile>, &FileHost),
    copies: &[OpenCopy],
    messages: &SyncSender<Message>,
    events: &Arc<EventList>,
) -> Result<Started> {
    let tls = file.tls(host)?;
    let server_tls = tls.as_ref().map(|tls| tls.server.clone());
    let listener = PeerListener::start(&[host.peer], server_tls, peers::on_event)?;
    log::emit(log::LISTENING, &[("address", &host.peer), ("protocol", &"peer")]);
    let raft = RaftConfig {
        cluster: file.name.clone(),
        host: host.id.0.into(),
        members: file.members(),
        directory: file.directory(host),
        election: file.election,
        tls: tls.clone(),
        machine: ClusterDriver::machines(&file.config)?,
        on_refused: |address, reason| {
            log::emit(log::MEMBER_REFUSED, &[("address", &address), ("reason", &reason)]);
        },
    };
    let copy = |copy: &OpenCopy| CopyConfig {
        partition: copy.partition.id,
        region: copy.region.clone(),
        port: copy.partition.port,
    };
    let config = DriverConfig {
        host: host.id,
        cluster: file.config.clone(),
        cluster_id: file.cluster_id(),
        hosts: file.addresses(),
        copies: copies.iter().map(copy).collect(),
        tls: tls.map(|tls| tls.client),
        namespaces: file.namespaces.clone(),
        on_peer_event: peers::on_event,
        on_notice: notices(Arc::clone(file), messages.clone(), Arc::clone(events)),
    };
    let mut engine = None;
    let driver = ClusterDriver::start(config, &listener, |waker| {
        let started: Arc<dyn ConsensusEngine> = Arc::new(RaftEngine::start(raft, waker)?);
        engine = Some(Arc::clone(&started));
        Ok(started)
    })?;
    let address = host.membership;
    log::emit(log::LISTENING, &[("address", &address), ("protocol", &"membership")]);
    let Some(engine) = engine else {
        return Err(Error::BadArgument { detail: "the driver has no engine".to_owned() });
    };
    Ok((Arc::new(driver), engine, listener))
}

/// Logs what happens, and tells the main thread what concerns clients.
fn notices(
    file: Arc<ClusterFile>,
    messages: SyncSender<Message>,
    events: Arc<EventList>,
) -> Arc<dyn Fn(&ClusterNotice) + Send + Sync> {
    Arc::new(move |notice| match notice {
        ClusterNotice::Event(event) => {
            let (partition, view) = (file.partition_name(event.partition), event.view.0);
            let (record, detail) = described(&file, event.kind);
            let fields: &log::LogFields<'_> =
                &[("partition", &partition), ("view", &view), ("detail", &detail)];
            log::emit(record, fields);
            let ms = nearstate_store::now_ms_coarse();
            let id = event.kind.id();
            events.push(format!(
                "{ms} {} {id} partition={partition} view={view} {detail}",
                record.id
            ));
            // A message that does not fit is one of a host whose main thread has ended.
            let of = event.partition;
            match event.kind {
                ClusterEventKind::LeaseGranted => drop(messages.try_send(Message::Owned(of))),
                ClusterEventKind::OwnerStopped => drop(messages.try_send(Message::Released(of))),
                ClusterEventKind::OwnerStarted
                | ClusterEventKind::LeaseEnded
                | ClusterEventKind::OwnerSilent(_)
                | ClusterEventKind::OwnerHeard(_)
                | ClusterEventKind::OwnerRegionLost
                | ClusterEventKind::CopyFrozen(_)
                | ClusterEventKind::CopyDiscarded
                | ClusterEventKind::Evicting(..)
                | ClusterEventKind::Fork(_) => {}
            }
        }
        ClusterNotice::Failed { partition, reason } => {
            let partition = file.partition_name(*partition);
            let fields: &log::LogFields<'_> = &[("partition", &partition), ("reason", reason)];
            log::emit(log::CLUSTER_COPY_FAILED, fields);
        }
        ClusterNotice::EngineFailed { reason } => {
            log::emit(log::MEMBERSHIP_FAILED, &[("reason", reason)]);
            events.push(format!("{} {reason}", log::MEMBERSHIP_FAILED.id));
        }
        ClusterNotice::EngineRecovered => log::emit(log::MEMBERSHIP_RECOVERED, &[]),
    })
}

fn held(position: LogPosition) -> String {
    format!("position={} origin={}", position.position, position.origin)
}

/// The log's event, and what it says.
fn described(file: &ClusterFile, kind: ClusterEventKind) -> (&'static log::LogEvent, String) {
    let host = |host: HostId| format!("host={}", file.host_name(host));
    match kind {
        ClusterEventKind::OwnerStarted => (log::CLUSTER_OWNER, "started".to_owned()),
        ClusterEventKind::OwnerStopped => (log::CLUSTER_OWNER_ENDED, "stopped".to_owned()),
        ClusterEventKind::LeaseGranted => (log::CLUSTER_LEASE, "granted".to_owned()),
        ClusterEventKind::LeaseEnded => (log::CLUSTER_LEASE_ENDED, "ended".to_owned()),
        ClusterEventKind::OwnerSilent(owner) => (log::CLUSTER_OWNER_SILENT, host(owner)),
        ClusterEventKind::OwnerHeard(owner) => (log::CLUSTER_OWNER_HEARD, host(owner)),
        ClusterEventKind::OwnerRegionLost => (log::CLUSTER_REGION_LOST, "lost".to_owned()),
        ClusterEventKind::CopyFrozen(position) => (log::CLUSTER_FROZEN, held(position)),
        ClusterEventKind::CopyDiscarded => (log::CLUSTER_DISCARDED, "joins".to_owned()),
        ClusterEventKind::Evicting(member, _) => (log::CLUSTER_EVICTING, host(member)),
        ClusterEventKind::Fork(member) => (log::CLUSTER_FORK, host(member)),
    }
}

/// What requests of operators are carried out with.
struct OperatorContext {
    file: Arc<ClusterFile>,
    host: FileHost,
    driver: Arc<ClusterDriver>,
    engine: Arc<dyn ConsensusEngine>,
    events: Arc<EventList>,
}

fn answer_operators(listener: UnixListener, context: OperatorContext) -> Result<()> {
    let run = move || {
        for stream in listener.incoming().flatten() {
            admin::answer(&stream, |request| context.carry_out(request));
        }
    };
    let started = std::thread::Builder::new().name("ns-admin".to_owned()).spawn(run);
    started.map(drop).map_err(|error| Error::System {
        detail: format!("cannot start a thread: {error}"),
        errno: error.raw_os_error().unwrap_or_default(),
    })
}

impl OperatorContext {
    fn carry_out(&self, request: AdminRequest) -> Result<Value> {
        match request {
            AdminRequest::Status => {
                Ok(show::to_json(&self.file, &self.host, &self.driver.status()))
            }
            AdminRequest::Events => Ok(json!(self.events.lines())),
            AdminRequest::Init => {
                self.engine.initialize(&self.file.voters())?;
                Ok(Value::Null)
            }
            AdminRequest::Voters(voters) => {
                let voters: BTreeSet<u64> = voters.into_iter().collect();
                self.engine.change_voters(&voters, DECISION_MAX)?;
                Ok(Value::Null)
            }
            AdminRequest::Drain { partition } => {
                let (partition, view) = self.view(partition)?;
                self.decide(Command::Exclude { partition, view })
            }
            AdminRequest::AcceptLoss { partition, host } => {
                let (partition, view) = self.view(partition)?;
                self.decide(Command::AcceptLoss { partition, view, host: HostId(host) })
            }
        }
    }

    fn view(&self, partition: u32) -> Result<(PartitionId, ViewNumber)> {
        let status = self.driver.status();
        let copy = status.copies.iter().find(|copy| copy.partition == partition);
        let copy = copy.ok_or_else(|| Error::BadArgument {
            detail: format!("this host has no copy of partition {partition}"),
        })?;
        Ok((PartitionId(partition), ViewNumber(copy.view)))
    }

    fn decide(&self, command: Command) -> Result<Value> {
        let index = self.engine.propose_and_wait(command.encode(), DECISION_MAX)?;
        Ok(json!({ "index": index }))
    }
}
