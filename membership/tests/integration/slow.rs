//! A leader that does not reply on one connection delays no command on another one.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::{Cluster, Host, LONG, config_in, free_address};

/// Longer than the test: a call that gets no reply is not given up meanwhile.
const ELECTION: Duration = Duration::from_secs(60);

/// A connection through a proxy.
#[derive(Default)]
pub(crate) struct Way {
    /// What the client sends is read, and goes nowhere.
    is_stalled: AtomicBool,
    /// Bytes that went nowhere.
    swallowed: AtomicUsize,
    is_closed: AtomicBool,
}

/// Forwards connections to a member, or to etcd.
#[derive(Clone, Default)]
pub(crate) struct Proxy {
    ways: Arc<Mutex<Vec<Arc<Way>>>>,
    /// New connections are stalled too.
    is_cut: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn start(target: SocketAddr) -> (Self, SocketAddr) {
        let (this, address) = (Self::default(), free_address());
        let listener = TcpListener::bind(address).unwrap();
        let proxy = this.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target) else { continue };
                let is_cut = proxy.is_cut.load(Ordering::Acquire);
                let way = Arc::new(Way { is_stalled: AtomicBool::new(is_cut), ..Way::default() });
                proxy.ways.lock().unwrap().push(Arc::clone(&way));
                let (back, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || forward(client, to, &way));
                std::thread::spawn(move || forward(server, back, &Way::default()));
            }
        });
        (this, address)
    }

    /// Stalls the connections that there are, and returns them.
    pub(crate) fn stall(&self) -> Vec<Arc<Way>> {
        let ways = self.ways.lock().unwrap().clone();
        for way in &ways {
            way.is_stalled.store(true, Ordering::Release);
        }
        ways
    }

    /// Stalls all connections, also new ones, until [`Proxy::mend`].
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.stall();
    }

    /// Forwards new connections.
    pub(crate) fn mend(&self) {
        self.is_cut.store(false, Ordering::Release);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, way: &Way) {
    let mut bytes = [0; 4096];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            break;
        }
        if way.is_stalled.load(Ordering::Acquire) {
            way.swallowed.fetch_add(count, Ordering::AcqRel);
        } else if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    way.is_closed.store(true, Ordering::Release);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_command_without_a_reply_does_not_delay_the_next_one() {
    let mut cluster = Cluster::new(3);
    let members = cluster.config(1).members;
    // Host 1 creates the cluster, so it leads. The way of host 2 to it leads through a proxy.
    let (proxy, address) = Proxy::start(cluster.address(1));
    for id in 1..=3 {
        let mut known: BTreeMap<_, _> = members.clone();
        if id == 2 {
            known.get_mut(&1).unwrap().address = address;
        }
        let mut config = config_in(&cluster.directory(id), id, known);
        config.election = ELECTION;
        cluster.hosts.insert(id, Host::start(config).unwrap());
    }
    cluster.hosts[&1].engine.initialize(&[1, 2, 3].into()).unwrap();
    cluster.propose(2, "first");
    assert_eq!(cluster.hosts[&2].engine.status().leader, Some(1));
    let stalled = proxy.stall();
    cluster.hosts[&2].engine.propose(b"no reply".to_vec(), 2 * LONG);
    let swallowed = |way: &&Arc<Way>| way.swallowed.load(Ordering::Acquire) > 0;
    let way = loop {
        if let Some(way) = stalled.iter().find(swallowed) {
            break way;
        }
        std::thread::yield_now();
    };
    cluster.propose(2, "second");
    assert!(!way.is_closed.load(Ordering::Acquire), "the first call was given up before");
    let text = cluster.hosts[&3].until(|text, _| text.contains("second"));
    assert!(!text.contains("no reply"), "{text}");
}
