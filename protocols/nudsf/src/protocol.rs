//! Entry point of the crate: the node's [`Protocol`] for Nudsf.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use hyper::header::HeaderValue;
use nearstate_model::Result;
use nearstate_node::{ConnectionHandler, Core, CoreService, LimitExceeded, PeerIdentity, Protocol};
use serde_json::json;

use crate::connection::NudsfConnection;
use crate::load::CoreLoad;
use crate::notifier::{self, NotifierClaim};
use crate::reply_body::HttpConnectionState;
use crate::repository::Repository;
use crate::service::RequestContext;
use crate::settings::{NudsfMetrics, NudsfSettings};

/// Nudsf over HTTP/2 and HTTP/1.1.
pub struct NudsfProtocol {
    settings: Arc<NudsfSettings>,
    metrics: Arc<NudsfMetrics>,
    notifier: Arc<NotifierClaim>,
    is_tls: bool,
}

impl fmt::Debug for NudsfProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NudsfProtocol").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl NudsfProtocol {
    /// The name of the protocol in an endpoint.
    pub const NAME: &'static str = "nudsf";

    /// The name of the protocol in an endpoint with TLS.
    pub const TLS_NAME: &'static str = "nudsf-tls";

    /// The names that TLS offers (ALPN).
    pub const ALPN: &'static [&'static [u8]] = &[b"h2", b"http/1.1"];

    /// The protocol with these settings.
    ///
    /// # Errors
    /// `BadArgument`: as [`NudsfSettings::validate`].
    pub fn new(settings: Arc<NudsfSettings>, metrics: Arc<NudsfMetrics>) -> Result<Self> {
        settings.validate()?;
        Ok(Self { settings, metrics, notifier: Arc::default(), is_tls: false })
    }

    /// The same protocol for endpoints with TLS.
    #[must_use]
    pub fn over_tls(&self) -> Self {
        let (settings, metrics) = (Arc::clone(&self.settings), Arc::clone(&self.metrics));
        Self { settings, metrics, notifier: Arc::clone(&self.notifier), is_tls: true }
    }
}

impl Protocol for NudsfProtocol {
    fn name(&self) -> &'static str {
        if self.is_tls { Self::TLS_NAME } else { Self::NAME }
    }

    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>> {
        let session = Rc::clone(core.session());
        let (settings, metrics) = (Arc::clone(&self.settings), Arc::clone(&self.metrics));
        let repository = Rc::new(Repository::open(session, settings, metrics)?);
        let scheme = if self.is_tls { "https" } else { "http" };
        let (core, notifier) = (core.clone(), Arc::clone(&self.notifier));
        let load = Rc::default();
        Ok(Rc::new(NudsfCoreService { repository, core, notifier, scheme, load }))
    }

    fn limit_error(&self, limit: &LimitExceeded) -> Vec<u8> {
        let (status, title, cause) = match limit {
            LimitExceeded::TooManyConnections { .. } | LimitExceeded::OutOfMemory { .. } => {
                (503, "Service Unavailable", "NF_CONGESTION")
            }
            LimitExceeded::RequestTooLarge { .. } => {
                (413, "Payload Too Large", "PAYLOAD_TOO_LARGE")
            }
            LimitExceeded::AuthTimeout { .. } => (408, "Request Timeout", "REQUEST_TIMEOUT"),
        };
        let body = json!({
            "status": status, "title": title, "detail": limit.to_string(), "cause": cause,
        })
        .to_string();
        format!(
            "HTTP/1.1 {status} {title}\r\nContent-Type: application/problem+json\r\n\
             Content-Length: {}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

struct NudsfCoreService {
    repository: Rc<Repository>,
    core: Core,
    notifier: Arc<NotifierClaim>,
    scheme: &'static str,
    load: Rc<CoreLoad>,
}

impl CoreService for NudsfCoreService {
    fn begin(&self) {
        if self.core.index() == 0 {
            notifier::begin(&self.repository, &self.notifier);
        }
    }

    fn accept(&self, _: &PeerIdentity) -> Box<dyn ConnectionHandler> {
        Box::new(NudsfConnection::new(RequestContext {
            repository: Rc::clone(&self.repository),
            core: self.core.clone(),
            state: Rc::<HttpConnectionState>::default(),
            scheme: self.scheme,
            grant: RefCell::default(),
            load: Rc::clone(&self.load),
            date: RefCell::new((0, HeaderValue::from_static(""))),
        }))
    }
}
