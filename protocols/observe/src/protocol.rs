//! Entry point of the crate: the node's [`Protocol`] for HTTP/1.1.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use nearstate_model::Result;
use nearstate_node::{ConnectionHandler, Core, CoreService, LimitExceeded, PeerIdentity, Protocol};

use crate::connection::ObserveConnection;
use crate::response::{HttpResponse, PLAIN};
use crate::source::ObserveSource;

/// HTTP/1.1 for metrics and probes.
pub struct ObserveProtocol {
    source: Arc<dyn ObserveSource>,
}

impl fmt::Debug for ObserveProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserveProtocol").finish_non_exhaustive()
    }
}

impl ObserveProtocol {
    /// Name of the protocol in an endpoint.
    pub const NAME: &'static str = "metrics";

    /// The protocol with the contents of `source`.
    pub fn new(source: Arc<dyn ObserveSource>) -> Self {
        Self { source }
    }
}

impl Protocol for ObserveProtocol {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>> {
        Ok(Rc::new(ObserveCoreService { source: Arc::clone(&self.source), core: core.clone() }))
    }

    fn limit_error(&self, why: &LimitExceeded) -> Vec<u8> {
        let status = match why {
            LimitExceeded::TooManyConnections { .. } | LimitExceeded::OutOfMemory { .. } => {
                "503 Service Unavailable"
            }
            LimitExceeded::RequestTooLarge { .. } => "413 Content Too Large",
            LimitExceeded::AuthTimeout { .. } => "408 Request Timeout",
        };
        let mut output = Vec::new();
        let body = &format!("{why}\n");
        HttpResponse { status, kind: PLAIN, body, is_head: false, is_last: true }
            .write(&mut output);
        output
    }
}

struct ObserveCoreService {
    source: Arc<dyn ObserveSource>,
    core: Core,
}

impl CoreService for ObserveCoreService {
    fn accept(&self, _: &PeerIdentity) -> Box<dyn ConnectionHandler> {
        Box::new(ObserveConnection::new(Arc::clone(&self.source), self.core.clone()))
    }
}
