//! The protocol as the node meets it.

use crate::command::stats::CommandCounts;
use crate::connection::Talk;
use crate::core_context::OnCore;
use crate::keyspace_notifier;
use crate::reply::{Reply, RespVersion};
use crate::server::Server;
use crate::table::TABLE;
use nearstate_model::Result;
use nearstate_node::executor::{TaskClass, spawn};
use nearstate_node::{ConnectionHandler, Core, CoreService, Peer, Protocol};
use std::rc::Rc;
use std::sync::Arc;

/// RESP2 and RESP3.
#[derive(Debug)]
pub struct RespProtocol {
    server: Arc<Server>,
}

impl RespProtocol {
    /// The face of a server.
    pub const fn new(server: Arc<Server>) -> Self {
        Self { server }
    }
}

impl Protocol for RespProtocol {
    fn name(&self) -> &'static str {
        "resp"
    }

    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>> {
        if self.server.keyspace.events().is_any() {
            // Before any client comes, so that each change by one is told.
            for (name, namespace) in core.session().namespaces()? {
                self.server.keyspace.follow(core.session(), &name, namespace);
            }
        }
        let commands = TABLE.commands().iter().map(|command| (command.name, command.flags));
        let counts = Arc::new(CommandCounts::new(commands));
        self.server.tallies.enlist(Arc::clone(&counts));
        Ok(Rc::new(Parts(Rc::new(OnCore::new(&self.server, core, counts)))))
    }

    fn limit_error(&self, why: &nearstate_node::LimitExceeded) -> Vec<u8> {
        let mut output = Vec::new();
        // The first words are those that Redis' clients know, and try again after.
        let code = match why {
            nearstate_node::LimitExceeded::TooManyConnections { .. } => {
                "ERR max number of clients reached: "
            }
            nearstate_node::LimitExceeded::RequestTooLarge { .. } => "ERR RespVersion error: ",
            nearstate_node::LimitExceeded::OutOfMemory { .. } => "OOM ",
        };
        Reply::new(&mut output, RespVersion::Resp2).error(&format!("{code}{why}"));
        output
    }
}

struct Parts(Rc<OnCore>);

impl CoreService for Parts {
    fn begin(&self) {
        // One task for the process: events have an order.
        if self.0.core.index() == 0 {
            let tell = keyspace_notifier::tell(
                Arc::clone(&self.0.server),
                Rc::clone(self.0.core.session()),
            );
            spawn(TaskClass::Background, "keyspace events", tell);
        }
    }

    fn accept(&self, peer: &Peer) -> Box<dyn ConnectionHandler> {
        Box::new(Talk::new(Rc::clone(&self.0), self.0.link(peer)))
    }
}
