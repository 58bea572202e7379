//! Followers of the region that this node serves: addresses, TLS and events.

use std::net::SocketAddr;

use nearstate_model::{Error, Result};
use nearstate_node::{PeerConfig, PeerEvent, PeerServer, Tls};
use nearstate_store::Region;

use crate::log;
use crate::region::host_name;
use crate::settings::Settings;

/// Serves followers, if there is an address for them.
///
/// # Errors
/// `BadArgument`: an address that other hosts can reach without TLS with client certificates;
/// those of [`PeerServer::start`].
pub(super) fn start(
    settings: &Settings,
    tls: Option<&Tls>,
    region: &Region,
) -> Result<Option<PeerServer>> {
    if settings.peer_listen.is_empty() {
        return Ok(None);
    }
    let tls = tls.filter(|_| settings.tls_client_ca.is_some());
    let is_wide = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
    if let Some(address) = settings.peer_listen.iter().find(is_wide)
        && tls.is_none()
        && !settings.is_peer_insecure
    {
        let detail = format!(
            "other hosts can reach {address}, and would get all records without a certificate: set \
             tls.certificate, tls.key and tls.client_ca, or set `--peer-insecure` if the network \
             restricts access"
        );
        return Err(Error::BadArgument { detail });
    }
    let config = PeerConfig {
        listen: settings.peer_listen.clone(),
        tls: tls.cloned(),
        namespaces: settings.peer_namespaces.clone(),
        keeps: settings.peer_keeps,
        followers_max: settings.peer_followers_max.0 as usize,
        name: host_name(),
        on_event,
    };
    let server = PeerServer::start(config, region)?;
    for address in server.addresses() {
        let is_tls = tls.is_some();
        let fields: &log::LogFields<'_> =
            &[("address", address), ("protocol", &"peer"), ("tls", &is_tls)];
        log::emit(log::LISTENING, fields);
    }
    Ok(Some(server))
}

fn on_event(event: &PeerEvent<'_>) {
    match event {
        PeerEvent::Connected { name, address, joins } => {
            let fields: &log::LogFields<'_> =
                &[("name", name), ("address", address), ("joins", joins)];
            log::emit(log::FOLLOWER_CONNECTED, fields);
        }
        PeerEvent::Joined { name, position } => {
            log::emit(log::FOLLOWER_JOINED, &[("name", name), ("position", position)]);
        }
        PeerEvent::Left { name, reason } => {
            log::emit(log::FOLLOWER_LEFT, &[("name", name), ("reason", reason)]);
        }
        PeerEvent::Refused { address, reason } => {
            log::emit(log::FOLLOWER_REFUSED, &[("address", address), ("reason", reason)]);
        }
        PeerEvent::NotLogged { namespace, reason } => {
            log::emit(log::NAMESPACE_NOT_LOGGED, &[("namespace", namespace), ("reason", reason)]);
        }
    }
}
