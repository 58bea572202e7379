//! Entry point of the crate: the node's [`Protocol`] for RESP.

use crate::allocator_upkeep;
use crate::command::command_table::RecentCommands;
use crate::command::stats::RespCoreStats;
use crate::connection::RespConnection;
use crate::core_context::CoreContext;
use crate::expiry_upkeep;
use crate::keyspace_notifier;
use crate::memory_upkeep;
use crate::pages_ahead;
use crate::reply::{ReplyWriter, RespVersion};
use crate::server::RespServer;
use crate::table::TABLE;
use nearstate_model::Result;
use nearstate_node::executor::{TaskClass, spawn};
use nearstate_node::{ConnectionHandler, Core, CoreService, PeerIdentity, Protocol};
use std::rc::Rc;
use std::sync::Arc;

/// RESP2 and RESP3.
#[derive(Debug)]
pub struct RespProtocol {
    server: Arc<RespServer>,
    is_sentinel: bool,
}

impl RespProtocol {
    /// Name of the protocol in an endpoint.
    pub const NAME: &'static str = "resp";
    /// Name of [`RespProtocol::sentinel`] in an endpoint.
    pub const SENTINEL: &'static str = "sentinel";

    /// The protocol on the state of `server`.
    pub const fn new(server: Arc<RespServer>) -> Self {
        Self { server, is_sentinel: false }
    }

    /// The same for addresses that clients use as a Sentinel. `ROLE`, `HELLO` and `INFO` reply as a
    /// Sentinel does: some clients ask for the role of a Sentinel before they use it, and for that
    /// of the master on the other address. Commands for records are refused. Tasks of the server
    /// run only in a node that serves [`RespProtocol::new`] as well.
    pub const fn sentinel(server: Arc<RespServer>) -> Self {
        Self { server, is_sentinel: true }
    }
}

impl Protocol for RespProtocol {
    fn name(&self) -> &'static str {
        if self.is_sentinel { Self::SENTINEL } else { Self::NAME }
    }

    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>> {
        if !self.is_sentinel && self.server.keyspace.events().is_any() {
            // Watches start before the first client connects, so that every change by a client is
            // published.
            for (name, namespace) in core.session().namespaces()? {
                self.server.keyspace.watch_namespace(core.session(), &name, namespace);
            }
        }
        self.server.set_connection_limits(core.limits());
        let commands = TABLE.commands().iter().map(|command| (command.name, command.flags));
        let counts = Arc::new(RespCoreStats::new(commands));
        self.server.stats.add_core(Arc::clone(&counts));
        let recent = RecentCommands::new(&TABLE);
        let context = CoreContext::new(&self.server, core, counts, recent);
        if self.is_sentinel {
            return Ok(Rc::new(RespCoreService(Rc::new(context.for_sentinels()))));
        }
        self.server.stats.add_connection_metrics(Arc::clone(core.metrics()));
        Ok(Rc::new(RespCoreService(Rc::new(context))))
    }

    fn limit_error(&self, why: &nearstate_node::LimitExceeded) -> Vec<u8> {
        let mut output = Vec::new();
        // The first words are those that Redis' clients recognise and retry after.
        let code = match why {
            nearstate_node::LimitExceeded::TooManyConnections { .. } => {
                "ERR max number of clients reached: "
            }
            nearstate_node::LimitExceeded::RequestTooLarge { .. } => "ERR Protocol error: ",
            nearstate_node::LimitExceeded::OutOfMemory { .. } => "OOM ",
            nearstate_node::LimitExceeded::AuthTimeout { .. } => "NOAUTH ",
        };
        ReplyWriter::new(&mut output, RespVersion::Resp2).error(&format!("{code}{why}"));
        output
    }
}

struct RespCoreService(Rc<CoreContext>);

impl CoreService for RespCoreService {
    fn begin(&self) {
        // One task for the process, because events are ordered.
        if self.0.core.index() == 0 && !self.0.is_sentinel {
            let run_notifier = keyspace_notifier::run_notifier(
                Arc::clone(&self.0.server),
                Rc::clone(self.0.core.session()),
            );
            spawn(TaskClass::Background, "keyspace events", run_notifier);
            let keep_memory_usable = memory_upkeep::run(
                Arc::clone(&self.0.server),
                Rc::clone(self.0.core.session()),
                self.0.core.clock().clone(),
            );
            spawn(TaskClass::Background, "memory", keep_memory_usable);
            let get_pages = pages_ahead::run(
                Arc::clone(&self.0.server),
                Rc::clone(self.0.core.session()),
                self.0.core.clock().clone(),
            );
            spawn(TaskClass::Background, "pages", get_pages);
            let collect_expired = expiry_upkeep::run(Rc::clone(self.0.core.session()));
            spawn(TaskClass::Background, "expiry", collect_expired);
            let release = allocator_upkeep::run(Arc::clone(&self.0.server));
            spawn(TaskClass::Background, "allocator", release);
        }
    }

    fn accept(&self, peer: &PeerIdentity) -> Box<dyn ConnectionHandler> {
        Box::new(RespConnection::new(Rc::clone(&self.0), self.0.new_connection(peer)))
    }
}
