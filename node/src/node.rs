//! The node: cores that serve endpoints, from start to shutdown.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use nearstate_model::{Error, Result};
use nearstate_store::Region;

use crate::clock::Clock;
use crate::core::{CoreMetrics, CoreStats};
use crate::executor::{
    self, ExecutorMetrics, ExecutorStats, InboxSender, LongPoll, SpinPolicy, inbox,
};
use crate::limits::ConnectionLimits;
use crate::listener::{
    BoundSocket, ConnectionStats, ListenAddress, SocketFile, bind_tcp, bind_unix,
};
use crate::placement;
use crate::protocol::{ForcedClose, Protocol};
use crate::sampler::{Sampler, StuckTask};
use crate::tls::Tls;
use crate::worker::{Worker, core_panicked};

/// Connections in flight from the core that accepted them to another core. Further ones are closed
/// and counted as accept errors.
const MIGRATED_MAX: usize = 1024;

/// The most cores. More than any machine has processors, so a larger number is a typing error.
const CORES_MAX: usize = 1024;

/// How to start a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The number of cores that serve; 0: one for each processor.
    pub cores: usize,
    /// Whether each core is pinned to a processor. Ignored if there are more cores than processors.
    pub is_pinned: bool,
    /// The processors of the cores, in this order. Empty: all that the process may use, ascending.
    pub processors: Vec<usize>,
    /// The addresses that clients connect to.
    pub endpoints: Vec<Endpoint>,
    /// Limits of connections.
    pub limits: ConnectionLimits,
    /// What a core does before it sleeps. `None`: adaptive, with the measured cost of a sleep.
    pub spin: Option<SpinPolicy>,
    /// Called on the core after a poll that took too long.
    pub on_long_poll: fn(&LongPoll),
    /// Called on the sampler's thread when a task has not returned for too long.
    pub on_stuck_task: fn(&StuckTask),
    /// Called on the core when the node closes a connection because of its client.
    pub on_forced_close: fn(&ForcedClose),
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            cores: 0,
            is_pinned: true,
            processors: Vec::new(),
            endpoints: Vec::new(),
            limits: ConnectionLimits::default(),
            spin: None,
            on_long_poll: |_| (),
            on_stuck_task: |_| (),
            on_forced_close: |_| (),
        }
    }
}

/// An address that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The name of its protocol.
    pub protocol: String,
    /// Where the node listens.
    pub address: ListenAddress,
    /// TLS, for TCP addresses only: traffic of a Unix socket does not leave the host.
    pub tls: Option<Tls>,
}

/// A running node. Dropping it shuts it down and waits for its threads.
pub struct Node {
    addresses: Vec<ListenAddress>,
    stops: Vec<InboxSender<()>>,
    threads: Vec<JoinHandle<()>>,
    sampler: Option<JoinHandle<()>>,
    is_stopped: Arc<AtomicBool>,
    metrics: NodeMetrics,
    connections_max: usize,
    socket_files: Vec<SocketFile>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = self.metrics.cores.len();
        f.debug_struct("Node")
            .field("addresses", &self.addresses)
            .field("cores", &cores)
            .finish_non_exhaustive()
    }
}

/// The metrics of a node. Any thread may read them, also after the node has ended.
#[derive(Clone, Debug, Default)]
pub struct NodeMetrics {
    cores: Vec<(Arc<CoreMetrics>, Arc<ExecutorMetrics>)>,
}

impl NodeMetrics {
    /// Reads all metrics.
    pub fn snapshot(&self) -> NodeStats {
        NodeStats {
            cores: self.cores.iter().map(|(core, _)| core.snapshot()).collect(),
            executors: self.cores.iter().map(|(_, executor)| executor.snapshot()).collect(),
        }
    }
}

/// A snapshot of [`NodeMetrics`], with one element per core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Connections, bytes, requests.
    pub cores: Vec<CoreStats>,
    /// Polls, rounds, sleeps.
    pub executors: Vec<ExecutorStats>,
}

impl NodeStats {
    /// The sum over all cores.
    pub fn total(&self) -> (CoreStats, ExecutorStats) {
        let mut total = (CoreStats::default(), ExecutorStats::default());
        self.cores.iter().for_each(|core| total.0.merge(core));
        self.executors.iter().for_each(|executor| total.1.merge(executor));
        total
    }
}

impl Node {
    /// Listens on every endpoint and serves. Returns when clients are accepted.
    ///
    /// # Errors
    /// `BadArgument` (an unknown protocol, an address that another process serves), `System` (an
    /// address in use, missing permission), and the errors of the protocols.
    pub fn start(
        config: &NodeConfig,
        region: &Region,
        protocols: &[Arc<dyn Protocol>],
    ) -> Result<Self> {
        let open_files_max = placement::raise_open_files();
        let processors = placement::chosen_processors(&config.processors)?;
        let count = core_count(config.cores, processors.len())?;
        let clock = Clock::new();
        let spin = match config.spin {
            Some(spin) => spin,
            None => SpinPolicy::Adaptive { cost: placement::wake_cost(&clock)? },
        };
        let executor = executor::ExecutorConfig {
            clock: clock.clone(),
            spin,
            on_long_poll: config.on_long_poll,
            ..executor::ExecutorConfig::default()
        };
        let mut sockets = Sockets::bind(config, protocols, count)?;
        let (migrate, migrated) =
            (0..count).map(|_| inbox(MIGRATED_MAX)).unzip::<_, _, Vec<_>, Vec<_>>();
        let (stop_all, stops) = (0..count).map(|_| inbox(1)).unzip::<_, _, Vec<_>, Vec<_>>();
        let (stats, receipts) = (Arc::<ConnectionStats>::default(), Arc::default());
        let limits = Arc::new(config.limits.clone().within_files(open_files_max, count));
        let mut workers = Vec::new();
        for (index, (migrated, stop)) in migrated.into_iter().zip(stops).enumerate() {
            let is_pinned = config.is_pinned && count <= processors.len();
            workers.push(Worker {
                index,
                count,
                processor: processors.get(index).copied().filter(|_| is_pinned),
                executor: executor.clone(),
                region: region.clone(),
                limits: Arc::clone(&limits),
                metrics: Arc::default(),
                stats: Arc::clone(&stats),
                receipts: Arc::clone(&receipts),
                protocols: sockets.protocols.clone(),
                tls: config.endpoints.iter().map(|endpoint| endpoint.tls.clone()).collect(),
                bound: sockets.take(index),
                migrated,
                migrate: migrate.clone(),
                on_forced_close: config.on_forced_close,
                stop,
                stop_all: stop_all.clone(),
            });
        }
        let mut node = Self {
            addresses: sockets.addresses,
            socket_files: sockets.files,
            stops: stop_all,
            threads: Vec::new(),
            sampler: None,
            is_stopped: Arc::default(),
            metrics: NodeMetrics::default(),
            connections_max: limits.connections_max,
        };
        node.start_workers(workers)?;
        node.start_sampler(clock, config.on_stuck_task)?;
        Ok(node)
    }

    /// The number of cores of a node with this [`NodeConfig::cores`].
    ///
    /// # Errors
    /// `BadArgument`: too many. `System`: the processors are unknown.
    pub fn core_count(configured: usize) -> Result<usize> {
        core_count(configured, placement::processors()?.len())
    }

    /// Starts the threads of the cores and waits until each of them serves. On an error the caller
    /// drops the node, which stops the threads that were started.
    fn start_workers(&mut self, workers: Vec<Worker>) -> Result<()> {
        let mut started = Vec::new();
        for worker in workers {
            let (sender, receiver) = mpsc::channel();
            let metrics = Arc::clone(&worker.metrics);
            let name = format!("ns-core-{}", worker.index);
            self.threads.push(placement::spawn(&name, move || worker.serve(&sender))?);
            started.push((metrics, receiver));
        }
        for (metrics, receiver) in started {
            // A core that sends nothing has panicked; the panic message is on stderr.
            let executor = receiver.recv().unwrap_or_else(|_| Err(core_panicked()))?;
            self.metrics.cores.push((metrics, executor));
        }
        Ok(())
    }

    fn start_sampler(&mut self, clock: Clock, on_stuck_task: fn(&StuckTask)) -> Result<()> {
        let executors = self.metrics.cores.iter().map(|(_, executor)| Arc::clone(executor));
        let sampler = Sampler::new(clock, executors.collect());
        let is_stopped = Arc::clone(&self.is_stopped);
        let run = move || sampler.run(|| is_stopped.load(Ordering::Acquire), on_stuck_task);
        self.sampler = Some(placement::spawn("ns-sampler", run)?);
        Ok(())
    }

    /// The endpoints' addresses in the order of the configuration. A port 0 is replaced by the
    /// port that the kernel chose.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// The number of connections that the node accepts:
    /// [`ConnectionLimits::connections_max`], or fewer if the process may open too few files.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Reads all metrics.
    pub fn stats(&self) -> NodeStats {
        self.metrics.snapshot()
    }

    /// The metrics, to be read without the node.
    pub fn metrics(&self) -> NodeMetrics {
        self.metrics.clone()
    }

    /// Starts to shut down and returns at once. No further connection is accepted. Idle
    /// connections are closed, others after their replies, and all of them after
    /// [`ConnectionLimits::shutdown_timeout`].
    pub fn shutdown(&self) {
        for stop in &self.stops {
            // A full queue means that the stop request was sent already.
            let _ = stop.send(());
        }
    }

    /// Waits until every core has ended, after [`Node::shutdown`] or because one of them panicked.
    ///
    /// # Errors
    /// `System` if a core panicked. The other cores were shut down; the process should be
    /// restarted.
    pub fn join(mut self) -> Result<()> {
        self.join_threads()
    }

    fn join_threads(&mut self) -> Result<()> {
        let mut has_panicked = false;
        for thread in self.threads.drain(..) {
            has_panicked |= thread.join().is_err();
        }
        self.is_stopped.store(true, Ordering::Release);
        if let Some(sampler) = self.sampler.take() {
            sampler.thread().unpark();
            has_panicked |= sampler.join().is_err();
        }
        self.socket_files.clear();
        if has_panicked { Err(core_panicked()) } else { Ok(()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown();
        let _ = self.join_threads();
    }
}

/// The number of cores for a configured number, which may be 0.
fn core_count(configured: usize, processors: usize) -> Result<usize> {
    match configured {
        0 => Ok(processors),
        some if some <= CORES_MAX => Ok(some),
        more => {
            let detail = format!(
                "{more} cores exceed the maximum of {CORES_MAX}; give 0 for all processors"
            );
            Err(Error::BadArgument { detail })
        }
    }
}

/// All bound sockets, before they are given to the cores.
struct Sockets {
    /// Each with the index of its endpoint.
    bound: Vec<(usize, BoundSocket)>,
    protocols: Vec<Arc<dyn Protocol>>,
    addresses: Vec<ListenAddress>,
    files: Vec<SocketFile>,
}

impl Sockets {
    fn bind(config: &NodeConfig, protocols: &[Arc<dyn Protocol>], cores: usize) -> Result<Self> {
        let mut sockets = Self {
            bound: Vec::new(),
            protocols: Vec::new(),
            addresses: Vec::new(),
            files: Vec::new(),
        };
        for (number, endpoint) in config.endpoints.iter().enumerate() {
            let protocol = protocols.iter().find(|known| known.name() == endpoint.protocol);
            sockets.protocols.push(Arc::clone(protocol.ok_or_else(|| Error::BadArgument {
                detail: format!(
                    "an endpoint has the unknown protocol {:?}; give one of {:?}",
                    endpoint.protocol,
                    protocols.iter().map(|known| known.name()).collect::<Vec<_>>()
                ),
            })?));
            let backlog = config.limits.tcp_backlog;
            match &endpoint.address {
                ListenAddress::Tcp(address) => {
                    let (bound, local) = bind_tcp(*address, cores, backlog)?;
                    sockets.bound.push((number, bound));
                    sockets.addresses.push(ListenAddress::Tcp(local));
                }
                ListenAddress::Unix { path, mode, any_owner } => {
                    let (bound, file) = bind_unix(path, *mode, backlog, *any_owner)?;
                    sockets.bound.push((number, bound));
                    sockets.files.push(file);
                    sockets.addresses.push(endpoint.address.clone());
                }
            }
        }
        Ok(sockets)
    }

    /// The sockets of a core: one for each TCP endpoint, and on core 0 all Unix sockets.
    fn take(&mut self, core: usize) -> Vec<(usize, BoundSocket)> {
        let mut share = Vec::new();
        let mut remaining = Vec::new();
        for (endpoint, bound) in self.bound.drain(..) {
            match bound {
                BoundSocket::Tcp(mut listeners) => {
                    share.push((endpoint, BoundSocket::Tcp(listeners.pop().into_iter().collect())));
                    remaining.push((endpoint, BoundSocket::Tcp(listeners)));
                }
                BoundSocket::Unix(listener) if core == 0 => {
                    share.push((endpoint, BoundSocket::Unix(listener)));
                }
                BoundSocket::Unix(listener) => {
                    remaining.push((endpoint, BoundSocket::Unix(listener)));
                }
            }
        }
        self.bound = remaining;
        share
    }
}
