//! Followers of the region that this node serves: addresses, TLS and events.

use std::net::SocketAddr;
use std::sync::Arc;

use nearstate_model::{Error, Result};
use nearstate_node::{FollowerList, FollowerStats, PeerConfig, PeerEvent, PeerServer, Tls};
use nearstate_resp::replication::{Replica, ReplicaSource};
use nearstate_resp::server::RespServer;
use nearstate_store::{Region, now_ms_coarse};

use crate::log;
use crate::region::host_name;
use crate::serve::nudsf;
use crate::settings::Settings;

/// The followers, for clients.
#[derive(Debug)]
struct ListedFollowers(FollowerList);

impl ReplicaSource for ListedFollowers {
    fn replicas(&self) -> Vec<Replica> {
        replicas(self.0.followers())
    }
}

/// Followers as clients see them.
pub(super) fn replicas(followers: Vec<FollowerStats>) -> Vec<Replica> {
    let now = now_ms_coarse();
    let of = |one: FollowerStats| Replica {
        address: one.address,
        position: one.acknowledged,
        is_joining: one.is_joining,
        lag_seconds: now.saturating_sub(one.acknowledged_ms) / 1000,
    };
    followers.into_iter().map(of).collect()
}

/// Serves followers, if there is an address for them.
///
/// # Errors
/// `BadArgument`: an address that other hosts can reach without TLS with client certificates;
/// those of [`PeerServer::start`].
pub(super) fn start(
    settings: &Settings,
    tls: Option<&Tls>,
    (region, resp): (&Region, &RespServer),
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
        namespaces: nudsf::followed(&settings.peer_namespaces, &settings.nudsf_storages.0)?,
        keeps: settings.peer_keeps,
        followers_max: settings.peer_followers_max.0 as usize,
        name: host_name(),
        on_event,
    };
    let server = PeerServer::start(config, region)?;
    resp.replicas.set(Arc::new(ListedFollowers(server.follower_list())));
    for address in server.addresses() {
        let is_tls = tls.is_some();
        let fields: &log::LogFields<'_> =
            &[("address", address), ("protocol", &"peer"), ("tls", &is_tls)];
        log::emit(log::LISTENING, fields);
    }
    Ok(Some(server))
}

/// What happens to members of a group. A connection that ends, or comes too early, while the owner
/// changes or a host is restarted is nothing that an operator has to look at: alarms tell which
/// copies are missing.
pub(super) fn on_member_event(event: &PeerEvent<'_>) {
    match event {
        PeerEvent::Left { name, reason } => {
            log::emit(log::MEMBER_LEFT, &[("name", name), ("reason", reason)]);
        }
        PeerEvent::Refused { address, reason, is_passing: true } => {
            log::emit(log::MEMBER_TOO_EARLY, &[("address", address), ("reason", reason)]);
        }
        PeerEvent::Connected { .. }
        | PeerEvent::Joined { .. }
        | PeerEvent::Refused { .. }
        | PeerEvent::NotLogged { .. } => on_event(event),
    }
}

pub(super) fn on_event(event: &PeerEvent<'_>) {
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
        PeerEvent::Refused { address, reason, .. } => {
            log::emit(log::FOLLOWER_REFUSED, &[("address", address), ("reason", reason)]);
        }
        PeerEvent::NotLogged { namespace, reason } => {
            log::emit(log::NAMESPACE_NOT_LOGGED, &[("namespace", namespace), ("reason", reason)]);
        }
    }
}
