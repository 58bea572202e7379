//! The side that sends its log: adds namespaces to the log, and accepts followers.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nearstate_model::{Error, Result};
use nearstate_store::{NamespaceRules, Region, ReplicationPolicy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::admission::serve;
use super::events::{FollowerStats, PeerConfig, PeerEvent, SourceConfig};
use super::limits::{ACCEPTED_AT_ONCE, LOOK_INTERVAL, MEMBER_LOOK_INTERVAL, UNGREETED_MAX};
use super::served::{PeerRouter, PeerShared};
use crate::tls::Tls;

/// Serves followers until it is dropped.
#[derive(Debug)]
pub struct PeerServer {
    shared: Arc<PeerShared>,
    listener: PeerListener,
}

/// Accepts the connections of followers until it is dropped.
#[derive(Debug)]
pub struct PeerListener {
    router: Arc<PeerRouter>,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
    /// One for each region: a stopped process that holds a record of a new namespace keeps no
    /// other region waiting.
    declaring: Mutex<Vec<JoinHandle<()>>>,
}

fn system(what: &str, error: &io::Error) -> Error {
    // The text of an error of the system follows.
    match error.raw_os_error() {
        Some(errno) => Error::System { detail: what.to_owned(), errno },
        None => Error::System { detail: format!("{what}: {error}"), errno: 0 },
    }
}

impl PeerListener {
    /// Listens on some addresses. Without partitions ([`Partition::listen_with`]) all connections
    /// are refused.
    ///
    /// [`Partition::listen_with`]: crate::Partition::listen_with
    ///
    /// # Errors
    /// `System`: an address that cannot be bound.
    pub fn start(
        listen: &[SocketAddr],
        tls: Option<Tls>,
        on_event: fn(&PeerEvent<'_>),
    ) -> Result<Self> {
        Self::start_with(listen, PeerRouter::new(tls, on_event))
    }

    fn start_with(listen: &[SocketAddr], router: PeerRouter) -> Result<Self> {
        let mut listeners = Vec::new();
        for address in listen {
            let listener = TcpListener::bind(address)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(|error| system(&format!("cannot listen on {address}"), &error))?;
            listeners.push(listener);
        }
        let bound = |listener: &TcpListener| {
            listener.local_addr().map_err(|error| system("cannot read an address", &error))
        };
        let addresses = listeners.iter().map(bound).collect::<Result<_>>()?;
        let router = Arc::new(router);
        let accepting = Arc::clone(&router);
        let thread = std::thread::Builder::new()
            .name("ns-peers".to_owned())
            .spawn(move || accept_until_over(&accepting, &listeners))
            .map_err(|error| system("cannot start a thread", &error))?;
        let declaring = Mutex::default();
        Ok(Self { router, addresses, thread: Some(thread), declaring })
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Connections may be for this region from now on, and its new namespaces are logged while it
    /// is served.
    ///
    /// # Errors
    /// `System`: no thread.
    pub(crate) fn add(&self, shared: &Arc<PeerShared>) -> Result<()> {
        let declared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("ns-declare".to_owned())
            .spawn(move || declare_until_over(&declared))
            .map_err(|error| system("cannot start a thread", &error))?;
        self.declaring.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        self.router.served().push(Arc::clone(shared));
        Ok(())
    }

    /// All regions were added. A connection for another one is refused for good from now on.
    pub(crate) fn complete(&self) {
        self.router.is_complete.store(true, Ordering::Release);
    }
}

impl Drop for PeerListener {
    fn drop(&mut self) {
        self.router.is_over.store(true, Ordering::Release);
        for shared in self.router.served().drain(..) {
            shared.is_over.store(true, Ordering::Release);
        }
        let declaring = self.declaring.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in self.thread.take().into_iter().chain(declaring.drain(..)) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl PeerServer {
    /// Adds the namespaces to the log, and listens.
    ///
    /// # Errors
    /// `BadArgument`: a pattern of namespaces that none matches; `System`: an address that cannot
    /// be bound; `Full`: no room for the log; `Damaged`.
    pub fn start(config: PeerConfig, region: &Region) -> Result<Self> {
        let PeerConfig { listen, tls, namespaces, keeps, followers_max, name, on_event } = config;
        let all = namespaces.into_iter().map(|pattern| (ReplicationPolicy::Async, pattern));
        let namespaces = NamespaceRules::new(all)?;
        let members = BTreeSet::new();
        let source = SourceConfig { namespaces, keeps, followers_max, members, name, on_event };
        let shared = Arc::new(PeerShared::new(source, region, region.session()?, None));
        let router = PeerRouter::new(tls, on_event);
        shared.declare()?;
        let listener = PeerListener::start_with(&listen, router)?;
        listener.add(&shared)?;
        listener.complete();
        Ok(Self { shared, listener })
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.listener.addresses()
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
        self.0.follower_stats()
    }
}

fn accept_until_over(router: &Arc<PeerRouter>, listeners: &[TcpListener]) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !router.is_over() {
        let mut wait = AcceptWait::Connection;
        for listener in listeners {
            if accept_waiting(router, listener, &mut threads).is_err() {
                wait = AcceptWait::Pause;
            }
        }
        threads.retain(|thread| !thread.is_finished());
        wait.wait(listeners);
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Serves the connections that wait at a listener, so many at once.
///
/// # Errors
/// One cannot be accepted, and still waits: no descriptor is left, most likely.
fn accept_waiting(
    router: &Arc<PeerRouter>,
    listener: &TcpListener,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<()> {
    for _ in 0..ACCEPTED_AT_ONCE {
        let (socket, address) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        };
        // Threads that see at once that their connection has ended.
        while router.ungreeted.ending() >= UNGREETED_MAX && !router.is_over() {
            std::thread::park_timeout(MEMBER_LOOK_INTERVAL);
        }
        match serve(router, socket, address) {
            Ok(thread) => threads.push(thread),
            Err(reason) => {
                let (reason, is_passing) = (&reason.to_string(), false);
                (router.on_event)(&PeerEvent::Refused { address, reason, is_passing });
            }
        }
    }
    Ok(())
}

/// Adds the namespaces of a region that is served to its log, also those that are created later.
fn declare_until_over(shared: &PeerShared) {
    while !shared.is_over() {
        if shared.is_serving() {
            // A failure is one of the region, which the followers' threads report.
            let _ = shared.declare_later();
        }
        std::thread::park_timeout(LOOK_INTERVAL);
    }
}

/// What is waited for before connections are accepted again, for at most [`LOOK_INTERVAL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptWait {
    /// A connection.
    Connection,
    /// The time: a connection that cannot be accepted is there already, so the thread would not
    /// sleep.
    Pause,
}

impl AcceptWait {
    fn wait(self, listeners: &[TcpListener]) {
        let mut polled: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(LOOK_INTERVAL).ok();
        if self == Self::Pause || poll(&mut polled, timeout.as_ref()).is_err() {
            std::thread::park_timeout(LOOK_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpStream};
    use std::time::Duration;

    use nearstate_store::CreateOptions;
    use socket2::SockRef;

    /// `poll` says of such a listener that a connection waits, as when no descriptor is left.
    #[test]
    fn a_listener_that_cannot_accept_is_not_asked_again_at_once() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let router = Arc::new(PeerRouter::new(None, |_| ()));
        let mut threads = Vec::new();
        accept_waiting(&router, &listener, &mut threads).expect("no connection waits");
        SockRef::from(&listener).shutdown(Shutdown::Read).unwrap();
        let mut polled = [PollFd::new(&listener, PollFlags::IN)];
        assert_eq!(poll(&mut polled, None).unwrap(), 1, "it is ready for ever");
        let failed = accept_waiting(&router, &listener, &mut threads).unwrap_err();
        assert_ne!(failed.kind(), io::ErrorKind::WouldBlock);
        assert!(threads.is_empty());
    }

    #[test]
    fn a_namespace_that_cannot_be_logged_keeps_no_connection_waiting() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &options).unwrap();
        let source = SourceConfig {
            namespaces: NamespaceRules::default(),
            keeps: true,
            followers_max: 1,
            members: BTreeSet::new(),
            name: "a".to_owned(),
            on_event: |_| (),
        };
        let session = region.session().unwrap();
        let shared = Arc::new(PeerShared::new(source, &region, session, None));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = PeerListener::start(&[any], None, |_| ()).unwrap();
        // As while a stopped process holds a record.
        let held = shared.declared();
        listener.add(&shared).unwrap();
        listener.complete();
        for address in listener.addresses().repeat(3) {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket.write_all(&[0; 64]).unwrap();
            let mut reply = [0; 1];
            socket.read_exact(&mut reply).unwrap();
        }
        drop(held);
    }
}
