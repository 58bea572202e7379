//! The protocol as the node meets it.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use nearstate_model::Result;
use nearstate_node::{ConnectionHandler, Core, CoreService, LimitExceeded, Peer, Protocol};

use crate::connection::Asker;
use crate::response::{Answer, PLAIN};
use crate::source::Source;

/// HTTP/1.1, for those who look at a node.
pub struct ObserveProtocol {
    source: Arc<dyn Source>,
}

impl fmt::Debug for ObserveProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserveProtocol").finish_non_exhaustive()
    }
}

impl ObserveProtocol {
    /// The name by which an endpoint asks for it.
    pub const NAME: &'static str = "metrics";

    /// The face of what a source tells.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source }
    }
}

impl Protocol for ObserveProtocol {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>> {
        Ok(Rc::new(OnCore { source: Arc::clone(&self.source), core: core.clone() }))
    }

    fn limit_error(&self, why: &LimitExceeded) -> Vec<u8> {
        let status = match why {
            LimitExceeded::TooManyConnections { .. } | LimitExceeded::OutOfMemory { .. } => {
                "503 Service Unavailable"
            }
            LimitExceeded::RequestTooLarge { .. } => "413 Content Too Large",
        };
        let mut output = Vec::new();
        let body = &format!("{why}\n");
        Answer { status, kind: PLAIN, body, is_head: false, is_last: true }.write(&mut output);
        output
    }
}

struct OnCore {
    source: Arc<dyn Source>,
    core: Core,
}

impl CoreService for OnCore {
    fn accept(&self, _: &Peer) -> Box<dyn ConnectionHandler> {
        Box::new(Asker::new(Arc::clone(&self.source), self.core.clone()))
    }
}
