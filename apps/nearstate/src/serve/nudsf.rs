//! The data repository (Nudsf) of the node: its protocols, its endpoints, its TLS.

use std::sync::Arc;

use nearstate_model::{Error, Result};
use nearstate_node::{ClientTls, Endpoint, ListenAddress, Protocol, Tls};
use nearstate_nudsf::{NotifySettings, NudsfMetrics, NudsfProtocol, NudsfSettings, TokenKeys};

use crate::serve::access_control;
use crate::settings::Settings;

/// The TLS configurations of the node: RESP clients negotiate no protocol.
pub(super) struct ServerTls {
    pub(super) resp: Tls,
    pub(super) nudsf: Tls,
}

impl ServerTls {
    pub(super) fn new(tls: Tls) -> Self {
        Self { nudsf: tls.with_alpn(NudsfProtocol::ALPN), resp: tls }
    }

    /// Replaces the certificates.
    pub(super) fn renew(&self, read: &Tls) {
        self.resp.renew(read);
        self.nudsf.renew(read);
    }
}

/// The protocols without and with TLS.
///
/// # Errors
/// `BadArgument`: addresses without storages, or storages that contradict each other.
pub(super) fn protocols(
    settings: &Settings,
    metrics: &Arc<NudsfMetrics>,
) -> Result<[Arc<dyn Protocol>; 2]> {
    let has_address = !settings.nudsf.is_empty() || !settings.nudsf_tls.is_empty();
    let storages = settings.nudsf_storages.0.clone();
    if has_address && storages.is_empty() {
        let detail = "nudsf.listen and nudsf.tls_listen require storages: set nudsf.storages, for \
                      example to Realm01/Storage01=ue";
        return Err(Error::BadArgument { detail: detail.to_owned() });
    }
    let tokens = match &settings.nudsf_token_keys {
        None => None,
        Some(path) => {
            let audiences = settings.nudsf_token_audiences.clone();
            let keys = TokenKeys::read(path, audiences)?;
            access_control::check_mode(path, true)?;
            Some(Arc::new(keys))
        }
    };
    let api_root = settings.nudsf_api_root.clone();
    let tls = settings.nudsf_notify_ca.as_deref();
    let tls = tls.map(|authorities| ClientTls::read(authorities, None)).transpose()?;
    let mut lock = settings.region.path.clone().into_os_string();
    lock.push(".nudsf");
    let notify = NotifySettings { lock: Some(lock.into()), tls };
    let nudsf = NudsfSettings { storages, api_root, tokens, notify };
    let protocol = NudsfProtocol::new(Arc::new(nudsf), Arc::clone(metrics))?;
    let over_tls = protocol.over_tls();
    Ok([Arc::new(protocol), Arc::new(over_tls)])
}

/// The endpoints.
pub(super) fn endpoints(settings: &Settings, tls: Option<&ServerTls>) -> Vec<Endpoint> {
    let plain = settings.nudsf.iter().map(|address| (address, NudsfProtocol::NAME, None));
    let tls = tls.map(|tls| tls.nudsf.clone());
    // Without TLS files the node has not started: these addresses never serve plain text.
    let over_tls = settings.nudsf_tls.iter().filter(|_| tls.is_some());
    let over_tls = over_tls.map(|address| (address, NudsfProtocol::TLS_NAME, tls.clone()));
    let endpoint = |(address, protocol, tls): (&_, &str, _)| Endpoint {
        protocol: protocol.to_owned(),
        address: ListenAddress::Tcp(*address),
        tls,
    };
    plain.chain(over_tls).map(endpoint).collect()
}
