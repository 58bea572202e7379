//! `nearstate serve --cluster FILE --host NAME`: a host of a cluster. It has a region for each
//! partition of whose group it is, and serves the clients of the partitions that it owns.

mod metrics;
mod levels;
mod new_membership;
mod members;
mod operator;
mod drain;
mod regions;
mod certificates;
mod copies;
mod lost_membership;
mod votes;
mod stopping;
mod host_events;
mod clients;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nearstate_cluster::PartitionId;
use nearstate_membership::{EtcdEngine, MemberTls, MembershipConfig, RaftEngine};
use nearstate_model::{Error, Result};
use nearstate_node::{
    ClientTls, ClusterDriver, ConsensusEngine, DriverConfig, FileSystemSpace, Node, NodeConfig,
    PeerListener, Protocol, check_tcp_address,
};
use nearstate_nudsf::{KeySource, NrfClient};
use nearstate_observe::ObserveProtocol;
use nearstate_resp::RespProtocol;
use nearstate_resp::server::RespServer;
use nearstate_store::{CreateOptions, NamespaceRules, Region};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cluster::admin;
use crate::cluster::certificate;
use crate::cluster::check;
use crate::cluster::file::{ClusterFile, FileHost, FilePartition};
use crate::cluster::level;
use crate::cluster::machine::KernelFiles;
use crate::cluster::member::membership_config;
use crate::cluster::row::RowOutcome;
use crate::log;
use crate::settings::{RegionPath, SettingLayers, SettingOrigin, Settings, UnixPaths};

use super::access_control::AddressSource;
use super::metrics::ServerMetrics;
use super::place::NodePlace;
use super::region_file::ServedFile;
use super::{access_control, memory_budget, nudsf, nudsf::ServerTls, peers};
use clients::{ListedMembers, PartitionOwners};
use host_events::{HostEvents, MainThreadMessage};
use metrics::ClusterMetrics;
use operator::{HostReport, OperatorContext};
use regions::OpenCopy;
use stopping::StoppingNodes;

/// Messages to the main thread that wait. It takes them at once, but while it starts a node.
const MESSAGES_MAX: usize = 4096;

/// How often the node of an owned partition that could not start is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The bytes of the region of a host without a copy. Only the node of its pages uses it.
const WITNESS_BYTES: u64 = 64 << 20;

/// Settings that a host of a cluster does not take, and what says it instead.
const REPLACED: [(&str, &str); 16] = [
    ("listen", "partition.port of the cluster file"),
    ("unix", "nothing: a host of a cluster has no Unix socket for clients"),
    ("unix_mode", "nothing: a host of a cluster has no Unix socket for clients"),
    ("region.path", "cluster.regions of the cluster file"),
    ("region.max", "partition.region_max of the cluster file"),
    ("region.several_nodes", "nothing: a host of a cluster has one node"),
    ("region.namespace_limits", "nothing: a cluster has no limits of namespaces"),
    ("tls.listen", "partition.tls_port of the cluster file"),
    ("peer.listen", "host.peer of the cluster file"),
    ("peer.namespaces", "cluster.namespaces of the cluster file"),
    ("peer.keep", "nothing: a cluster keeps what its members need"),
    ("peer.followers_max", "the groups of the cluster file"),
    ("peer.insecure", "cluster.insecure of the cluster file"),
    ("nudsf.listen", "partition.nudsf_port of the cluster file"),
    ("nudsf.tls_listen", "partition.nudsf_tls_port of the cluster file"),
    ("resp.sentinel_masters", "the partitions of the cluster file"),
];

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

/// The node of an owned partition, and what ends with it.
struct PartitionService {
    node: Node,
    /// Fetches the keys of access tokens.
    _keys: Option<KeySource>,
    /// The registration with the NRF.
    registration: Option<NrfClient>,
}

/// What a host of a cluster is started with.
pub(super) struct ClusterHost<'s> {
    pub(super) settings: &'s Settings,
    pub(super) layers: &'s SettingLayers,
    pub(super) place: NodePlace,
}

/// What runs while the host does.
struct RunningHost {
    report: Arc<HostReport>,
    driver: Arc<ClusterDriver>,
    engine: Arc<dyn ConsensusEngine>,
    tls: Option<ServerTls>,
    /// For the other hosts.
    member_tls: Option<MemberTls>,
    etcd_tls: Option<ClientTls>,
    copies: Vec<OpenCopy>,
    files: BTreeMap<PartitionId, Arc<ServedFile>>,
    listener: PeerListener,
}

impl ClusterHost<'_> {
    /// Serves until SIGTERM or SIGINT.
    pub(super) fn serve(&self, path: &Path, name: &str, begin: Instant) -> Result<()> {
        let file = Arc::new(ClusterFile::read(path)?);
        let host = file.host(name)?.clone();
        let rows =
            check::of_start((&file, &host), &KernelFiles::default(), self.settings.is_any_owner);
        check::refuse_failed(&rows)?;
        self.refuse_replaced()?;
        let tls = self.check_settings(&file, &host)?;
        self.check_addresses(&host)?;
        for row in rows.iter().filter(|row| row.outcome == RowOutcome::Warning) {
            let fields: &log::LogFields<'_> = &[("check", &row.check), ("detail", &row.detail)];
            log::emit(log::CLUSTER_CHECK, fields);
        }
        let copies = self.open(&file, &host)?;
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| Error::System {
            detail: "cannot wait for signals".to_owned(),
            errno: error.raw_os_error().unwrap_or_default(),
        })?;
        let (messages, received) = sync_channel(MESSAGES_MAX);
        let namespaces = nudsf::replicated(self.settings, &file.namespaces)?;
        let mut running = start((file, host), (copies, tls), (&messages, namespaces))?;
        let (report, driver) = (Arc::clone(&running.report), Arc::clone(&running.driver));
        running.watch_files()?;
        let pages = self.start_pages(&running)?;
        let directory = report.file.directory(&report.host);
        let admin = admin::listen(&admin::socket_path(&directory))?;
        let engine = Arc::clone(&running.engine);
        operator::start(admin, OperatorContext { report: Arc::clone(&report), driver, engine })?;
        let handle = signals.handle();
        let stopping = StoppingNodes::new(messages.clone());
        forward_signals(signals, messages);
        let ms = begin.elapsed().as_millis();
        log::emit(log::CLUSTER_HOST_READY, &[("host", &report.host.name), ("ms", &ms)]);
        let mut aborted = self.serve_partitions(&mut running, &received, stopping);
        aborted += pages.map_or(0, stop);
        handle.close();
        drop(running);
        log::emit(log::STOPPED, &[("aborted", &aborted)]);
        Ok(())
    }

    /// Refuses settings that would have no effect.
    fn refuse_replaced(&self) -> Result<()> {
        for (name, instead) in REPLACED {
            let origin = self.layers.origin(name);
            if !matches!(origin, SettingOrigin::Default) {
                let detail = format!(
                    "{origin}: {name} has no effect on a host of a cluster. Remove it; instead \
                     there is {instead}"
                );
                return Err(Error::BadArgument { detail });
            }
        }
        Ok(())
    }

    /// Checks that the addresses of this host are free, before it takes part in its cluster: one
    /// that then ends is a lost host. Those of partitions are needed when it owns them (NS-5010).
    fn check_addresses(&self, host: &FileHost) -> Result<()> {
        let pages = self.page_settings();
        let all = pages.metrics.iter().chain(&pages.sentinel_listen);
        let all = [host.peer, host.membership].into_iter().chain(all.copied());
        // Port 0 is one that is free.
        all.filter(|address| address.port() != 0).try_for_each(check_tcp_address)
    }

    /// Checks all settings, before anything is created. Returns the certificates for clients.
    fn check_settings(&self, file: &ClusterFile, host: &FileHost) -> Result<Option<ServerTls>> {
        let (mut all, mut is_owner) = (self.page_settings(), false);
        // A host that is no witness may be added to each group.
        for partition in file.partitions.iter().filter(|_| !host.witness) {
            is_owner = true;
            let settings = self.partition_settings((file, host), partition);
            let users = access_control::users(&settings, self.layers)?;
            access_control::addresses(&settings, &users, AddressSource::Partition)?;
            nudsf::check(&settings)?;
            all.tls_listen.extend(&settings.tls_listen);
            all.nudsf_tls.extend(&settings.nudsf_tls);
        }
        let mut pages = self.page_settings();
        if !pages.sentinel_listen.is_empty() || !pages.metrics.is_empty() {
            // Clients of a partition are checked above: here are those of Sentinel and metrics.
            pages.unix = UnixPaths::At(vec![file.directory(host)]);
            let users = access_control::users(&pages, self.layers)?;
            access_control::addresses(&pages, &users, AddressSource::Pages)?;
        }
        let source = AddressSource::Partition;
        if is_owner { Ok(access_control::tls(&all, source)?.map(ServerTls::new)) } else { Ok(None) }
    }

    /// Starts and stops the nodes of partitions until a signal. SIGHUP reloads certificates.
    /// Returns the connections that did not finish in time at the end.
    fn serve_partitions(
        &self,
        running: &mut RunningHost,
        received: &Receiver<MainThreadMessage>,
        mut stopping: StoppingNodes,
    ) -> u64 {
        let mut services: BTreeMap<PartitionId, PartitionService> = BTreeMap::new();
        // Those whose node could not start: an address was in use, or descriptors were, or its last
        // node is not stopped yet.
        let mut unserved: BTreeSet<PartitionId> = BTreeSet::new();
        // Those whose copy could not be opened.
        let mut unopened: BTreeSet<PartitionId> = BTreeSet::new();
        loop {
            let message = match received.recv_timeout(RETRY_AFTER) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    stopping.remove_stopped();
                    unopened.retain(|partition| !self.try_open(running, *partition));
                    for partition in std::mem::take(&mut unserved) {
                        match self.try_service(running, partition, &stopping) {
                            Some(service) => drop(services.insert(partition, service)),
                            None => _ = unserved.insert(partition),
                        }
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match message {
                MainThreadMessage::Signal(SIGHUP) => self.reload(running),
                MainThreadMessage::Signal(signal) => {
                    log::emit(log::SHUTTING_DOWN, &[("signal", &signal)]);
                    break;
                }
                MainThreadMessage::Owned(partition) if !services.contains_key(&partition) => {
                    match self.try_service(running, partition, &stopping) {
                        Some(service) => drop(services.insert(partition, service)),
                        None => _ = unserved.insert(partition),
                    }
                }
                MainThreadMessage::Owned(_) => {}
                MainThreadMessage::CopyWanted(partition) => {
                    if !self.try_open(running, partition) {
                        unopened.insert(partition);
                    }
                }
                MainThreadMessage::Released(partition) => {
                    unserved.remove(&partition);
                    running.report.host_events.set_unserved(partition, None);
                    if let Some(service) = services.remove(&partition) {
                        stopping.add(partition, move || service.stop());
                    }
                }
                MainThreadMessage::Stopped(partition) => {
                    stopping.remove(partition);
                    if unserved.remove(&partition) {
                        match self.try_service(running, partition, &stopping) {
                            Some(service) => drop(services.insert(partition, service)),
                            None => _ = unserved.insert(partition),
                        }
                    }
                }
            }
        }
        for (partition, service) in services {
            stopping.add(partition, move || service.stop());
        }
        stopping.finish()
    }

    /// Starts the node of an owned partition; `None` if that fails, or its last one still stops.
    fn try_service(
        &self,
        running: &RunningHost,
        partition: PartitionId,
        stopping: &StoppingNodes,
    ) -> Option<PartitionService> {
        if stopping.contains(partition) {
            return None;
        }
        let copy = running.copies.iter().find(|copy| copy.partition.id == partition)?;
        let started = self.start_service(running, copy);
        let reason = started.as_ref().err().map(ToString::to_string);
        running.report.host_events.set_unserved(partition, reason);
        if let Err(error) = &started {
            let name = &copy.partition.name;
            log::emit(log::CLUSTER_CLIENTS_FAILED, &[("partition", name), ("reason", error)]);
        }
        started.ok()
    }

    /// The settings of the node of this host's pages: metrics, and Sentinel.
    fn page_settings(&self) -> Settings {
        let mut settings = self.settings.clone();
        settings.unix = UnixPaths::At(Vec::new());
        (settings.listen, settings.tls_listen) = (Vec::new(), Vec::new());
        (settings.nudsf, settings.nudsf_tls) = (Vec::new(), Vec::new());
        settings
    }

    /// The settings of the node of a partition.
    pub(super) fn partition_settings(
        &self,
        (file, host): (&ClusterFile, &FileHost),
        partition: &FilePartition,
    ) -> Settings {
        let mut settings = self.page_settings();
        let at = |port: u16| SocketAddr::new(host.clients, port);
        let ports = partition.ports;
        settings.region = RegionPath::of(file.region_file(host, partition));
        settings.listen = vec![at(partition.port)];
        settings.tls_listen = ports.tls.map(at).into_iter().collect();
        settings.nudsf = ports.nudsf.map(at).into_iter().collect();
        settings.nudsf_tls = ports.nudsf_tls.map(at).into_iter().collect();
        settings.metrics = ports.metrics.map(at).into_iter().collect();
        settings.sentinel_listen = Vec::new();
        settings.sentinel_masters = vec![partition.name.clone()];
        let instance = settings.nudsf_nf_instance.take();
        let own = instance.as_deref().and_then(|id| nudsf::partition_instance(id, file, partition));
        // Tokens may be for the instance that the NRF tells of.
        let audiences = &mut settings.nudsf_token_audiences;
        if instance.as_ref().is_some_and(|id| audiences.contains(id)) {
            audiences.extend(own.clone());
        }
        settings.nudsf_nf_instance = own.or(instance);
        settings
    }

    /// Serves the clients of a partition that this host owns.
    fn start_service(&self, running: &RunningHost, copy: &OpenCopy) -> Result<PartitionService> {
        let RunningHost { report, driver, tls, .. } = running;
        let settings = self.partition_settings((&report.file, &report.host), &copy.partition);
        let bytes = copy.region.bytes_max();
        let budget = memory_budget(&settings, &self.place, bytes)?;
        let users = access_control::users(&settings, self.layers)?;
        let resp = super::resp_settings(&settings, users, budget);
        let server = Arc::new(RespServer::new(resp));
        let metrics = ServerMetrics::new(copy.region.clone(), Arc::clone(&server));
        if let Some(file) = running.files.get(&copy.partition.id) {
            metrics.set_file(Arc::clone(file));
        }
        let parts = nudsf::parts(&settings, metrics.nudsf())?;
        let protocols = super::protocols(&server, &metrics, parts.protocols);
        let config = super::config(&settings, &self.place, tls.as_ref(), budget.core_bytes_max);
        server.set_port(copy.partition.port);
        server.replicas.set(Arc::new(ListedMembers {
            driver: Arc::clone(driver),
            partition: copy.partition.id,
        }));
        server.masters.set(Arc::new(PartitionOwners {
            driver: Arc::clone(driver),
            file: Arc::clone(&report.file),
        }));
        let node = Node::start(&config, &copy.region, &protocols)?;
        metrics.begin(node.metrics());
        for (address, endpoint) in node.addresses().iter().zip(&config.endpoints) {
            let fields: &log::LogFields<'_> = &[
                ("address", address),
                ("protocol", &endpoint.protocol),
                ("partition", &copy.partition.name),
            ];
            log::emit(log::LISTENING, fields);
        }
        let serves_nudsf = !settings.nudsf.is_empty() || !settings.nudsf_tls.is_empty();
        let registration = if serves_nudsf { nudsf::register(&settings)? } else { None };
        Ok(PartitionService { node, _keys: parts.keys, registration })
    }

    /// Serves the metrics of this host, and Sentinel clients, if there is an address for them.
    fn start_pages(&self, running: &RunningHost) -> Result<Option<Node>> {
        let settings = self.page_settings();
        if settings.metrics.is_empty() && settings.sentinel_listen.is_empty() {
            return Ok(None);
        }
        let RunningHost { report, driver, .. } = running;
        let region = if let Some(copy) = running.copies.first() {
            copy.region.clone()
        } else {
            let path = report.file.directory(&report.host).join("witness.region");
            let options = CreateOptions {
                bytes_max: WITNESS_BYTES,
                mode: self.settings.region_mode.0,
                any_owner: self.settings.is_any_owner,
                ..CreateOptions::default()
            };
            Region::attach_or_create(&path, &options)?
        };
        let budget = memory_budget(&settings, &self.place, region.bytes_max())?;
        let users = access_control::users(&settings, self.layers)?;
        let server = Arc::new(RespServer::new(super::resp_settings(&settings, users, budget)));
        server.masters.set(Arc::new(PartitionOwners {
            driver: Arc::clone(driver),
            file: Arc::clone(&report.file),
        }));
        let metrics = ClusterMetrics { report: Arc::clone(report), driver: Arc::clone(driver) };
        let protocols: [Arc<dyn Protocol>; 2] = [
            Arc::new(RespProtocol::sentinel(Arc::clone(&server))),
            Arc::new(ObserveProtocol::new(Arc::new(metrics))),
        ];
        let config = super::config(&settings, &self.place, None, budget.core_bytes_max);
        // One core for pages that are read each second, not in the way of a partition's cores.
        let config = NodeConfig { cores: 1, is_pinned: false, ..config };
        let node = Node::start(&config, &region, &protocols)?;
        for (address, endpoint) in node.addresses().iter().zip(&config.endpoints) {
            log::emit(log::LISTENING, &[("address", address), ("protocol", &endpoint.protocol)]);
        }
        Ok(Some(node))
    }
}

impl PartitionService {
    /// Clients are sent elsewhere while connections end: another host serves the partition already,
    /// so the node does not wait for the NRF.
    fn stop(self) -> u64 {
        if let Some(registration) = &self.registration {
            registration.begin_stop();
        }
        let aborted = stop(self.node);
        drop(self.registration);
        aborted
    }
}

/// Returns the connections that did not finish in time.
fn stop(node: Node) -> u64 {
    let metrics = node.metrics();
    node.shutdown();
    if let Err(error) = node.join() {
        log::emit(log::CORE_FAILED, &[("reason", &error)]);
    }
    metrics.snapshot().total().0.drain_aborts
}

fn forward_signals(mut signals: Signals, messages: SyncSender<MainThreadMessage>) {
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if messages.send(MainThreadMessage::Signal(signal)).is_err() {
                return;
            }
        }
    });
}

/// Starts the listener for members, the engine and the driver.
fn start(
    (file, host): (Arc<ClusterFile>, FileHost),
    (copies, client_tls): (Vec<OpenCopy>, Option<ServerTls>),
    (messages, namespaces): (&SyncSender<MainThreadMessage>, NamespaceRules),
) -> Result<RunningHost> {
    let (tls, etcd) = (file.tls(&host)?, file.etcd(&host)?);
    for partition in file.partitions_outside(&host) {
        // Whether it exists is reported from the first report on.
        let _ = FileSystemSpace::measure_first(&file.region_file(&host, partition));
    }
    let etcd_tls = etcd.as_ref().and_then(|etcd| etcd.tls.clone());
    let server_tls = tls.as_ref().map(|tls| tls.server.clone());
    let listener = PeerListener::start(&[host.peer], server_tls, peers::on_member_event)?;
    log::emit(log::LISTENING, &[("address", &host.peer), ("protocol", &"peer")]);
    let host_events = Arc::new(HostEvents::default());
    host_events.set_certificate(certificate::checked(&file, &host)?);
    let report = Arc::new(HostReport {
        file: Arc::clone(&file),
        host: host.clone(),
        host_events: Arc::clone(&host_events),
        driver: OnceLock::new(),
    });
    let reporting = Arc::clone(&report);
    let raft = MembershipConfig {
        report: Arc::new(move || reporting.status().to_string()),
        on_refused: |address, reason| {
            log::emit(log::MEMBER_REFUSED, &[("address", &address), ("reason", &reason)]);
        },
        ..membership_config(&file, &host, tls.clone())?
    };
    let config = DriverConfig {
        host: host.id,
        cluster: file.config.clone(),
        settings: file.shared_settings(),
        cluster_id: file.cluster_id(),
        hosts: file.addresses(),
        copies: copies.iter().map(OpenCopy::config).collect(),
        tls: tls.clone().map(|tls| tls.client),
        kills_stopped: file.kills_stopped,
        is_host_clock: file.is_host_clock,
        highest: level::highest(),
        namespaces,
        on_peer_event: peers::on_member_event,
        on_notice: host_events::notices(file, messages.clone(), host_events),
    };
    let mut engine = None;
    let driver = ClusterDriver::start(config, &listener, |waker| {
        let started: Arc<dyn ConsensusEngine> = match etcd {
            None => Arc::new(RaftEngine::start(raft, waker)?),
            Some(etcd) => Arc::new(EtcdEngine::start(raft, etcd, waker)?),
        };
        engine = Some(Arc::clone(&started));
        Ok(started)
    })?;
    let driver = Arc::new(driver);
    let _ = report.driver.set(Arc::downgrade(&driver));
    let address = host.membership;
    log::emit(log::LISTENING, &[("address", &address), ("protocol", &"membership")]);
    let Some(engine) = engine else {
        return Err(Error::BadArgument { detail: "the driver has no engine".to_owned() });
    };
    Ok(RunningHost {
        report,
        driver,
        engine,
        tls: client_tls,
        member_tls: tls,
        etcd_tls,
        copies,
        files: BTreeMap::new(),
        listener,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SETTINGS;

    #[test]
    fn settings_of_peers_and_of_unix_sockets_are_refused() {
        let are_replaced = |name: &str| name.starts_with("peer.") || name.starts_with("unix");
        let names = SETTINGS.iter().map(|spec| spec.name);
        let missing: Vec<_> = names
            .filter(|name| are_replaced(name))
            .filter(|name| !REPLACED.iter().any(|(replaced, _)| replaced == name))
            .collect();
        assert_eq!(missing, Vec::<&str>::new());
        for (name, _) in REPLACED {
            assert!(SETTINGS.iter().any(|spec| spec.name == name), "{name} is no setting");
        }
    }
}
