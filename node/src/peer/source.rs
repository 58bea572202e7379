//! The side that sends its log: adds namespaces to the log, and accepts followers.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nearstate_model::{Error, Result};
use nearstate_store::{Kind, Region, Session, WhenFull, glob};

use super::events::{FollowerStats, PeerConfig, PeerEvent};
use super::limits::{LOOK_INTERVAL, UNGREETED_MAX};
use super::shipper::{PeerShared, Served, serve};

/// Serves followers until it is dropped.
#[derive(Debug)]
pub struct PeerServer {
    shared: Arc<PeerShared>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

fn system(what: &str, error: &io::Error) -> Error {
    let detail = format!("{what}: {error}");
    Error::System { detail, errno: error.raw_os_error().unwrap_or(0) }
}

impl PeerServer {
    /// Adds the namespaces to the log, and listens.
    ///
    /// # Errors
    /// `System`: an address that cannot be bound; `Full`: no room for the log; `Damaged`.
    pub fn start(config: PeerConfig, region: &Region) -> Result<Self> {
        let mut listeners = Vec::new();
        for address in &config.listen {
            let listener = TcpListener::bind(address)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(|error| system(&format!("cannot listen on {address}"), &error))?;
            listeners.push(listener);
        }
        let bound = |listener: &TcpListener| {
            listener.local_addr().map_err(|error| system("cannot read an address", &error))
        };
        let addresses = listeners.iter().map(bound).collect::<Result<_>>()?;
        let shared = Arc::new(PeerShared {
            config,
            region: region.clone(),
            is_over: AtomicBool::new(false),
            ungreeted: AtomicUsize::new(0),
            left: Mutex::new(Vec::new()),
            followers: Mutex::new(Vec::new()),
        });
        let session = region.session()?;
        let mut declared = DeclaredNamespaces::default();
        declared.update(&session, &shared)?;
        let accepting = Arc::clone(&shared);
        let accept = std::thread::Builder::new()
            .name("ns-peers".to_owned())
            .spawn(move || accept_until_over(&accepting, &listeners, &session, &mut declared))
            .map_err(|error| system("cannot start a thread", &error))?;
        Ok(Self { shared, addresses, threads: vec![accept] })
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A list of the followers that stays valid when this is dropped.
    pub fn follower_list(&self) -> FollowerList {
        FollowerList(Arc::clone(&self.shared))
    }
}

/// The followers of a node.
#[derive(Clone, Debug)]
pub struct FollowerList(Arc<PeerShared>);

impl FollowerList {
    /// The followers that are served.
    pub fn followers(&self) -> Vec<FollowerStats> {
        let of = |one: &Arc<Served>| FollowerStats {
            name: one.name.clone(),
            address: one.address,
            is_joining: one.is_joining.load(Ordering::Relaxed),
            acknowledged: one.acknowledged.load(Ordering::Relaxed),
            tail: one.tail.load(Ordering::Relaxed),
            acknowledged_ms: one.acknowledged_ms.load(Ordering::Relaxed),
        };
        self.0.followers().iter().map(of).collect()
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The namespaces that were added to the log.
#[derive(Debug, Default)]
struct DeclaredNamespaces {
    changes: Option<u64>,
}

impl DeclaredNamespaces {
    /// Adds the namespaces that are new and match a pattern.
    fn update(&mut self, session: &Session, shared: &PeerShared) -> Result<()> {
        let changes = session.namespace_changes()?;
        if changes.is_some() && changes == self.changes {
            return Ok(());
        }
        let policy = if shared.config.keeps { WhenFull::Refuse } else { WhenFull::LoseOldest };
        let mut is_whole = true;
        for (name, namespace) in session.namespaces()? {
            let matches = |pattern: &String| glob::matches(pattern.as_bytes(), name.as_bytes());
            // A policy that a local consumer has declared is not relaxed.
            let is_done =
                session.is_logged(namespace)? && (self.changes.is_some() || !shared.config.keeps);
            if namespace.kind() == Kind::Counters
                || is_done
                || session.is_followed(namespace)?
                || !shared.config.namespaces.iter().any(matches)
            {
                continue;
            }
            if let Err(error) = session.stream(namespace, policy)
                && session.has_namespace(namespace)
            {
                is_whole = false;
                let reason = &error.to_string();
                shared.emit(&PeerEvent::NotLogged { namespace: &name, reason });
            }
        }
        self.changes = changes.filter(|_| is_whole);
        Ok(())
    }
}

fn accept_until_over(
    shared: &Arc<PeerShared>,
    listeners: &[TcpListener],
    session: &Session,
    declared: &mut DeclaredNamespaces,
) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !shared.is_over() {
        for listener in listeners {
            while let Ok((socket, address)) = listener.accept() {
                if shared.ungreeted.load(Ordering::Acquire) >= UNGREETED_MAX {
                    let reason = "too many connections have not said hello";
                    shared.emit(&PeerEvent::Refused { address, reason });
                    continue;
                }
                match serve(shared, socket, address) {
                    Ok(thread) => threads.push(thread),
                    Err(reason) => {
                        let reason = &reason.to_string();
                        shared.emit(&PeerEvent::Refused { address, reason });
                    }
                }
            }
        }
        // A failure is one of the region, which the followers' threads report.
        let _ = declared.update(session, shared);
        threads.retain(|thread| !thread.is_finished());
        std::thread::park_timeout(LOOK_INTERVAL);
    }
    for thread in threads {
        let _ = thread.join();
    }
}
