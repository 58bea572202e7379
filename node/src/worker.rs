//! The thread of one core: pin it, prepare the protocols, serve connections, drain.

use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::Poll;

use nearstate_model::{Error, Result};
use nearstate_store::Region;
use tokio::net::{TcpListener, UnixListener};

use crate::core::{Core, CoreMetrics, CoreParts};
use crate::endpoint_context::{ConnectionTable, EndpointContext};
use crate::executor::{
    self, Executor, ExecutorMetrics, Inbox, InboxSender, TaskClass, TaskHandle, spawn, timeout,
};
use crate::limits::ConnectionLimits;
use crate::listener::{
    BoundSocket, ConnectionStats, CoreListener, MigratedConnection, accept_tcp, accept_unix,
};
use crate::placement;
use crate::protocol::{CoreService, ForcedClose, Protocol};
use crate::receipt_thread::ReceiptQueue;
use crate::tls::Tls;

/// Everything that a core's thread is started with.
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) count: usize,
    /// The processor that the thread is pinned to, if any.
    pub(crate) processor: Option<usize>,
    pub(crate) executor: executor::ExecutorConfig,
    pub(crate) region: Region,
    pub(crate) limits: Arc<ConnectionLimits>,
    pub(crate) metrics: Arc<CoreMetrics>,
    pub(crate) stats: Arc<ConnectionStats>,
    pub(crate) receipts: Arc<ReceiptQueue>,
    /// The protocol of each endpoint.
    pub(crate) protocols: Vec<Arc<dyn Protocol>>,
    /// The TLS configuration of each endpoint, in the order of `protocols`.
    pub(crate) tls: Vec<Option<Tls>>,
    /// The listening sockets of this core, with the indices of their endpoints.
    pub(crate) bound: Vec<(usize, BoundSocket)>,
    /// Connections that other cores accepted for this one.
    pub(crate) migrated: Inbox<MigratedConnection>,
    /// The queues of migrated connections of every core, including this one.
    pub(crate) migrate: Vec<InboxSender<MigratedConnection>>,
    pub(crate) on_forced_close: fn(&ForcedClose),
    pub(crate) stop: Inbox<()>,
    pub(crate) stop_all: Vec<InboxSender<()>>,
}

/// A core that is ready to serve.
struct PreparedWorker {
    connections: Rc<ConnectionTable>,
    listeners: Vec<Rc<CoreListener>>,
    accept_tasks: Vec<TaskHandle<()>>,
    migrated: Inbox<MigratedConnection>,
    stop: Inbox<()>,
}

pub(crate) fn core_panicked() -> Error {
    Error::System {
        detail: "a core of the node panicked, see its message on the standard error; restart the \
                 node, which recovers the region when it attaches"
            .to_owned(),
        errno: 0,
    }
}

/// Stops all cores when one core ends, for any reason.
struct StopAllOnDrop(Vec<InboxSender<()>>);

impl Drop for StopAllOnDrop {
    fn drop(&mut self) {
        for stop in &self.0 {
            // A full queue means that the stop request was sent already.
            let _ = stop.send(());
        }
    }
}

impl Worker {
    /// Serves until a stop request arrives. Sends one result: the core serves, or why it does not.
    pub(crate) fn serve(self, started: &mpsc::Sender<Result<Arc<ExecutorMetrics>>>) {
        let _stop_all = StopAllOnDrop(self.stop_all.clone());
        let prepared = self.executor().and_then(|executor| {
            let (metrics, limits) = (Arc::clone(&self.metrics), Arc::clone(&self.limits));
            let prepared = executor.run(async move { self.prepare() })?;
            Ok((executor, prepared, metrics, limits))
        });
        match prepared {
            Ok((executor, prepared, metrics, limits)) => {
                let _ = started.send(Ok(executor.metrics()));
                executor.run(async move {
                    let connections = Rc::clone(&prepared.connections);
                    spawn(TaskClass::Control, "control", prepared.run_until_stopped()).await;
                    connections.drain();
                    let drained =
                        timeout(limits.shutdown_timeout, connections.is_drained.wait()).await;
                    if drained.is_none() {
                        metrics.drain_aborts.add(connections.cut() as u64);
                    }
                });
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    }

    fn executor(&self) -> Result<Executor> {
        if let Some(processor) = self.processor {
            placement::pin(processor)?;
        }
        Executor::new(&self.executor)
    }

    /// Creates the core, its protocols and its listeners. Runs inside the runtime, which sockets
    /// and protocols need.
    fn prepare(self) -> Result<PreparedWorker> {
        let core = Core::new(CoreParts {
            index: self.index,
            count: self.count,
            region: self.region,
            limits: self.limits,
            metrics: self.metrics,
            clock: self.executor.clock,
            receipts: self.receipts,
        })?;
        let connections = Rc::<ConnectionTable>::default();
        let mut listeners = Vec::new();
        let mut services = CoreServices::default();
        for (endpoint, (protocol, tls)) in self.protocols.into_iter().zip(self.tls).enumerate() {
            let (name, service) = (protocol.name(), services.of(&protocol, &core)?);
            let connections = Rc::clone(&connections);
            let on_forced_close = self.on_forced_close;
            let context =
                EndpointContext::new(core.clone(), protocol, service, connections, on_forced_close);
            listeners.push(Rc::new(CoreListener {
                endpoint,
                context: Rc::new(context),
                stats: Arc::clone(&self.stats),
                name,
                tls,
            }));
        }
        let mut accept_tasks = Vec::new();
        for (endpoint, bound) in self.bound {
            let listener = listeners.get(endpoint);
            let listener =
                listener.unwrap_or_else(|| unreachable!("a socket belongs to an endpoint"));
            accept(listener, bound, &self.migrate, &mut accept_tasks).map_err(|e| {
                Error::System {
                    detail: format!("cannot watch a listening socket ({e}); raise `ulimit -n`"),
                    errno: e.raw_os_error().unwrap_or(0),
                }
            })?;
        }
        let (migrated, stop) = (self.migrated, self.stop);
        Ok(PreparedWorker { connections, listeners, accept_tasks, migrated, stop })
    }
}

/// The services of a core, one for each protocol: several endpoints may have the same protocol.
#[derive(Default)]
struct CoreServices(Vec<(Arc<dyn Protocol>, Rc<dyn CoreService>)>);

impl CoreServices {
    /// The service of a protocol. Creates and starts it at the first call.
    fn of(&mut self, protocol: &Arc<dyn Protocol>, core: &Core) -> Result<Rc<dyn CoreService>> {
        if let Some((_, service)) = self.0.iter().find(|(known, _)| Arc::ptr_eq(known, protocol)) {
            return Ok(Rc::clone(service));
        }
        let service = protocol.on_core(core)?;
        service.begin();
        self.0.push((Arc::clone(protocol), Rc::clone(&service)));
        Ok(service)
    }
}

/// Starts the tasks that accept connections from a bound socket.
fn accept(
    listener: &Rc<CoreListener>,
    bound: BoundSocket,
    cores: &[InboxSender<MigratedConnection>],
    tasks: &mut Vec<TaskHandle<()>>,
) -> std::io::Result<()> {
    match bound {
        BoundSocket::Tcp(sockets) => {
            for socket in sockets {
                let accept = accept_tcp(Rc::clone(listener), TcpListener::from_std(socket)?);
                tasks.push(spawn(TaskClass::Request, "accept", accept));
            }
        }
        BoundSocket::Unix(socket) => {
            let socket = UnixListener::from_std(socket)?;
            let accept = accept_unix(Rc::clone(listener), socket, cores.to_vec());
            tasks.push(spawn(TaskClass::Request, "accept", accept));
        }
    }
    Ok(())
}

impl PreparedWorker {
    /// Serves the connections that other cores accepted, until a stop request arrives or every
    /// sender of stop requests is dropped. Then no further connection is accepted.
    async fn run_until_stopped(mut self) {
        std::future::poll_fn(|cx| {
            while let Poll::Ready(Some(migrated)) = self.migrated.poll(cx) {
                let listener = self.listeners.get(migrated.endpoint);
                let listener =
                    listener.unwrap_or_else(|| unreachable!("all cores have the same endpoints"));
                listener.serve_migrated(migrated.stream);
            }
            self.stop.poll(cx).map(drop)
        })
        .await;
        self.accept_tasks.iter().for_each(TaskHandle::cancel);
    }
}
