//! The node: cores that serve endpoints, from start to shutdown.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use nearstate_model::{Error, Result};
use nearstate_store::Region;

use crate::clock::Clock;
use crate::core::{CoreMetric, CoreSeen};
use crate::executor::{self, LongPoll, Meter, MeterSeen, Outbox, Spin, inbox};
use crate::limits::Limits;
use crate::listener::{Address, Bound, Census, SocketFile, bind_tcp, bind_unix};
use crate::placement;
use crate::protocol::{Dismissal, Protocol};
use crate::sampler::{Sampler, Stuck};
use crate::tls::Tls;
use crate::worker::{Seat, core_ended};

/// Connections on their way from the core that has accepted them. A core that is so far behind is
/// given no more.
const HANDED_MAX: usize = 1024;

/// The most cores: what one asks for beyond the processors of any machine is a slip of the pen.
const CORES_MAX: usize = 1024;

/// How a node is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many cores serve; 0: as many as there are processors.
    pub cores: usize,
    /// Whether each stays on a processor of its own. Never done if there are more cores than
    /// processors.
    pub is_pinned: bool,
    /// Where clients come in.
    pub endpoints: Vec<Endpoint>,
    /// Bounds of connections.
    pub limits: Limits,
    /// What a core does before it sleeps. `None`: adaptive, with the cost of a sleep as measured.
    pub spin: Option<Spin>,
    /// Called, on its core, after a poll that was too long.
    pub on_long_poll: fn(&LongPoll),
    /// Called, on a thread of its own, about a task that has not returned for too long.
    pub on_stuck: fn(&Stuck),
    /// Called, on its core, when a client was sent away for what it did.
    pub on_dismissed: fn(&Dismissal),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cores: 0,
            is_pinned: true,
            endpoints: Vec::new(),
            limits: Limits::default(),
            spin: None,
            on_long_poll: |_| (),
            on_stuck: |_| (),
            on_dismissed: |_| (),
        }
    }
}

/// A place where clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The name of the protocol that is spoken there.
    pub face: String,
    /// Where.
    pub address: Address,
    /// Whether over TLS. Of a TCP address only: a Unix socket does not leave the host.
    pub tls: Option<Tls>,
}

/// A node that serves. Dropped, it shuts down and waits until that is done.
pub struct Node {
    addresses: Vec<Address>,
    stops: Vec<Outbox<()>>,
    threads: Vec<JoinHandle<()>>,
    sampler: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    gauges: Gauges,
    files: Vec<SocketFile>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = self.gauges.cores.len();
        f.debug_struct("Node")
            .field("addresses", &self.addresses)
            .field("cores", &cores)
            .finish_non_exhaustive()
    }
}

/// Where a node's counts are read, by any thread, also after the node has ended.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    cores: Vec<(Arc<CoreMetric>, Arc<Meter>)>,
}

impl Gauges {
    /// What was counted so far.
    pub fn seen(&self) -> NodeSeen {
        NodeSeen {
            cores: self.cores.iter().map(|(metric, _)| metric.seen()).collect(),
            meters: self.cores.iter().map(|(_, meter)| meter.seen()).collect(),
        }
    }
}

/// What a node has counted, core by core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// Connections, bytes, requests.
    pub cores: Vec<CoreSeen>,
    /// Polls, rounds, sleeps.
    pub meters: Vec<MeterSeen>,
}

impl NodeSeen {
    /// The sum over all cores.
    pub fn total(&self) -> (CoreSeen, MeterSeen) {
        let mut total = (CoreSeen::default(), MeterSeen::default());
        self.cores.iter().for_each(|core| total.0.merge(core));
        self.meters.iter().for_each(|meter| total.1.merge(meter));
        total
    }
}

impl Node {
    /// Listens at every endpoint and serves. Returns when clients are accepted.
    ///
    /// # Errors
    /// `BadArgument` (an endpoint without a protocol, an address that is served already), `System`
    /// (address in use, no permission), and what keeps a protocol from serving.
    pub fn start(config: &Config, region: &Region, faces: &[Arc<dyn Protocol>]) -> Result<Self> {
        let files = placement::raise_open_files();
        let processors = placement::processors()?;
        let count = match config.cores {
            0 => processors.len(),
            some if some <= CORES_MAX => some,
            more => {
                let detail = format!("{more} cores; at most {CORES_MAX}, 0 for all processors");
                return Err(Error::BadArgument { detail });
            }
        };
        let clock = Clock::new();
        let spin = match config.spin {
            Some(spin) => spin,
            None => Spin::Adaptive { cost: placement::wake_cost(&clock)? },
        };
        let executor = executor::Config {
            clock: clock.clone(),
            spin,
            on_long_poll: config.on_long_poll,
            ..executor::Config::default()
        };
        let mut sockets = Sockets::bind(config, faces, count)?;
        let (hand_over, handed) =
            (0..count).map(|_| inbox(HANDED_MAX)).unzip::<_, _, Vec<_>, Vec<_>>();
        let (stop_all, stops) = (0..count).map(|_| inbox(1)).unzip::<_, _, Vec<_>, Vec<_>>();
        let census = Arc::<Census>::default();
        let limits = Arc::new(config.limits.clone().within_files(files, count));
        let mut seats = Vec::new();
        for (index, (handed, stop)) in handed.into_iter().zip(stops).enumerate() {
            let is_pinned = config.is_pinned && count <= processors.len();
            seats.push(Seat {
                index,
                count,
                processor: processors.get(index).copied().filter(|_| is_pinned),
                executor: executor.clone(),
                region: region.clone(),
                limits: Arc::clone(&limits),
                metric: Arc::default(),
                census: Arc::clone(&census),
                faces: sockets.faces.clone(),
                tls: config.endpoints.iter().map(|endpoint| endpoint.tls.clone()).collect(),
                bound: sockets.take(index),
                handed,
                hand_over: hand_over.clone(),
                on_dismissed: config.on_dismissed,
                stop,
                stop_all: stop_all.clone(),
            });
        }
        let mut node = Self {
            addresses: sockets.addresses,
            files: sockets.files,
            stops: stop_all,
            threads: Vec::new(),
            sampler: None,
            is_over: Arc::default(),
            gauges: Gauges::default(),
        };
        node.seat(seats)?;
        node.begin_sampler(clock, config.on_stuck)?;
        Ok(node)
    }

    /// Begins the cores' threads, and waits until each of them serves. On an error the node is
    /// dropped, and with it what has begun.
    fn seat(&mut self, seats: Vec<Seat>) -> Result<()> {
        let mut ready = Vec::new();
        for seat in seats {
            let (tell, told) = mpsc::channel();
            let metric = Arc::clone(&seat.metric);
            let name = format!("near-core-{}", seat.index);
            self.threads.push(placement::spawn(&name, move || seat.serve(&tell))?);
            ready.push((metric, told));
        }
        for (metric, told) in ready {
            // A core that goes without a word has panicked; the panic's own words are on stderr.
            let meter = told.recv().unwrap_or_else(|_| Err(core_ended()))?;
            self.gauges.cores.push((metric, meter));
        }
        Ok(())
    }

    fn begin_sampler(&mut self, clock: Clock, on_stuck: fn(&Stuck)) -> Result<()> {
        let meters = self.gauges.cores.iter().map(|(_, meter)| Arc::clone(meter)).collect();
        let sampler = Sampler::new(clock, meters);
        let is_over = Arc::clone(&self.is_over);
        let run = move || sampler.run(|| is_over.load(Ordering::Acquire), on_stuck);
        self.sampler = Some(placement::spawn("near-sampler", run)?);
        Ok(())
    }

    /// The endpoints' addresses in the order of the configuration, with the ports that were given
    /// for port 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What was counted so far.
    pub fn seen(&self) -> NodeSeen {
        self.gauges.seen()
    }

    /// Where the counts are read without the node.
    pub fn gauges(&self) -> Gauges {
        self.gauges.clone()
    }

    /// Begins to shut down: nobody is accepted any more, who waits for nothing is closed, others
    /// when they have their answer, and all of them after [`Limits::drain_max`]. Does not wait.
    pub fn shutdown(&self) {
        for stop in &self.stops {
            // Full: it has been told.
            let _ = stop.send(());
        }
    }

    /// Waits until every core has ended: after [`Node::shutdown`], or because one of them has
    /// failed.
    ///
    /// # Errors `System` if a core has panicked: the others were shut down, and the process should
    /// end and be started again.
    pub fn join(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let mut is_whole = true;
        for thread in self.threads.drain(..) {
            is_whole &= thread.join().is_ok();
        }
        self.is_over.store(true, Ordering::Release);
        if let Some(sampler) = self.sampler.take() {
            sampler.thread().unpark();
            is_whole &= sampler.join().is_ok();
        }
        self.files.clear();
        if is_whole { Ok(()) } else { Err(core_ended()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown();
        let _ = self.end();
    }
}

/// Everything that is bound, before the cores have it.
struct Sockets {
    /// With the number of the endpoint.
    bound: Vec<(usize, Bound)>,
    faces: Vec<Arc<dyn Protocol>>,
    addresses: Vec<Address>,
    files: Vec<SocketFile>,
}

impl Sockets {
    fn bind(config: &Config, faces: &[Arc<dyn Protocol>], cores: usize) -> Result<Self> {
        let mut sockets =
            Self { bound: Vec::new(), faces: Vec::new(), addresses: Vec::new(), files: Vec::new() };
        for (number, endpoint) in config.endpoints.iter().enumerate() {
            let face = faces.iter().find(|face| face.name() == endpoint.face);
            sockets.faces.push(Arc::clone(face.ok_or_else(|| Error::BadArgument {
                detail: format!(
                    "an endpoint speaks {:?}; there are {:?}",
                    endpoint.face,
                    faces.iter().map(|face| face.name()).collect::<Vec<_>>()
                ),
            })?));
            let backlog = config.limits.backlog;
            match &endpoint.address {
                Address::Tcp(address) => {
                    let (bound, local) = bind_tcp(*address, cores, backlog)?;
                    sockets.bound.push((number, bound));
                    sockets.addresses.push(Address::Tcp(local));
                }
                Address::Unix { path, mode } => {
                    let (bound, file) = bind_unix(path, *mode, backlog)?;
                    sockets.bound.push((number, bound));
                    sockets.files.push(file);
                    sockets.addresses.push(endpoint.address.clone());
                }
            }
        }
        Ok(sockets)
    }

    /// What a core listens to: its share of TCP; the first one the Unix sockets.
    fn take(&mut self, core: usize) -> Vec<(usize, Bound)> {
        let mut share = Vec::new();
        let mut rest = Vec::new();
        for (endpoint, bound) in self.bound.drain(..) {
            match bound {
                Bound::Tcp(mut listeners) => {
                    share.push((endpoint, Bound::Tcp(listeners.pop().into_iter().collect())));
                    rest.push((endpoint, Bound::Tcp(listeners)));
                }
                Bound::Unix(listener) if core == 0 => share.push((endpoint, Bound::Unix(listener))),
                Bound::Unix(listener) => rest.push((endpoint, Bound::Unix(listener))),
            }
        }
        self.bound = rest;
        share
    }
}
