//! Clusters of engines whose state machine is the list of their commands.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nearstate_membership::{
    EtcdEngine, EtcdSettings, MembershipConfig, MembershipHost, RaftEngine,
};
use nearstate_model::{Error, Result};
use nearstate_node::{
    ConsensusEngine, EngineEvent, EventWaker, SharedSettings, StateMachine, VoteChange,
};

/// No step of a test takes longer, unless it fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Attempts to listen at the port of a host that starts again.
const BIND_TRIES_MAX: u32 = 500;

/// Looks again and again, for about as long as [`LONG`].
pub(crate) fn until(what: &str, is_met: impl Fn() -> bool) {
    assert!(is_within(LONG, is_met), "not in time: {what}");
}

/// True as soon as the condition is met; false after about this time.
pub(crate) fn is_within(time: Duration, is_met: impl Fn() -> bool) -> bool {
    const PAUSE: Duration = Duration::from_millis(10);
    (0..time.as_millis() / PAUSE.as_millis()).any(|_| {
        let is_now = is_met();
        if !is_now {
            std::thread::park_timeout(PAUSE);
        }
        is_now
    })
}

/// The commands that were applied, in their order, one a line. A command whose reply is late is
/// proposed again and can be applied twice: the second time has no effect, as in a node.
#[derive(Clone, Default)]
pub(crate) struct Lines {
    text: String,
    applied: BTreeSet<Vec<u8>>,
}

impl StateMachine for Lines {
    fn apply(&mut self, _: u64, command: &[u8]) -> Result<()> {
        if self.applied.insert(command.to_vec()) {
            self.text.push_str(std::str::from_utf8(command).unwrap());
            self.text.push('\n');
        }
        Ok(())
    }
    fn snapshot(&self) -> Vec<u8> {
        self.text.clone().into_bytes()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<()> {
        *self = Self::default();
        for command in snapshot.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.apply(0, command)?;
        }
        Ok(())
    }
}

/// The command that [`EarlierLines`] cannot apply.
pub(crate) const LATER_COMMAND: &str = "of a later version";

/// The same, of an earlier program.
#[derive(Default)]
struct EarlierLines(Lines);

impl StateMachine for EarlierLines {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<()> {
        if command == LATER_COMMAND.as_bytes() {
            return Err(Error::BadArgument { detail: "an earlier program".to_owned() });
        }
        self.0.apply(index, command)
    }
    fn snapshot(&self) -> Vec<u8> {
        self.0.snapshot()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<()> {
        self.0.restore(snapshot)
    }
}

/// The configuration of a host with an earlier program.
pub(crate) fn earlier(config: MembershipConfig) -> MembershipConfig {
    MembershipConfig { machine: Arc::new(|| Box::<EarlierLines>::default()), ..config }
}

/// A host with an earlier program stops at what it cannot apply, and says so. The others go on.
pub(crate) fn check_stops_at_later_command(cluster: &Cluster, is_earlier: u64) {
    let host = &cluster.hosts[&is_earlier];
    cluster.propose(1, "known");
    host.until_line("known");
    cluster.propose(1, LATER_COMMAND);
    cluster.propose(1, "behind it");
    host.until(|_, others| {
        let failed = |event: &EngineEvent| {
            matches!(event, EngineEvent::Failed { reason } if
            reason.contains("an earlier program"))
        };
        others.iter().any(failed)
    });
    cluster.hosts[&2].until_line("behind it");
    let text = host.told().0;
    assert!(!text.contains(LATER_COMMAND) && !text.contains("behind"), "{text}");
    assert!(host.engine.status().failure.is_some());
}

/// Wakes the threads that wait for events.
#[derive(Default)]
struct WakeCount {
    rung: Mutex<u64>,
    changed: Condvar,
}

/// One host: its engine, and what it was told.
pub(crate) struct Host {
    pub(crate) engine: Box<dyn ConsensusEngine>,
    bell: Arc<WakeCount>,
    text: Mutex<(Lines, Vec<EngineEvent>)>,
}

impl Host {
    pub(crate) fn start(config: MembershipConfig) -> Result<Self> {
        Self::with(|waker| Ok(Box::new(RaftEngine::start(config, waker)?)))
    }

    /// A host whose commands etcd orders.
    pub(crate) fn start_etcd(config: MembershipConfig, settings: EtcdSettings) -> Result<Self> {
        Self::with(|waker| Ok(Box::new(EtcdEngine::start(config, settings, waker)?)))
    }

    fn with(start: impl FnOnce(EventWaker) -> Result<Box<dyn ConsensusEngine>>) -> Result<Self> {
        let bell = Arc::new(WakeCount::default());
        let ringing = Arc::clone(&bell);
        let waker = move || {
            *ringing.rung.lock().unwrap() += 1;
            ringing.changed.notify_all();
        };
        let engine = start(Box::new(waker))?;
        Ok(Self { engine, bell, text: Mutex::default() })
    }

    /// The commands that the events of this host say, and its other events.
    pub(crate) fn told(&self) -> (String, Vec<EngineEvent>) {
        let mut told = self.text.lock().unwrap();
        let mut events = Vec::new();
        self.engine.take_events(&mut events);
        for event in events {
            match event {
                EngineEvent::Applied { index, command } => {
                    told.0.apply(index, &command).unwrap();
                }
                EngineEvent::Restored { snapshot, .. } => told.0.restore(&snapshot).unwrap(),
                other @ (EngineEvent::Failed { .. } | EngineEvent::Recovered) => {
                    told.1.push(other);
                }
            }
        }
        (told.0.text.clone(), told.1.clone())
    }

    /// Waits until what the host was told satisfies the condition.
    pub(crate) fn until(&self, is_met: impl Fn(&str, &[EngineEvent]) -> bool) -> String {
        loop {
            let before = *self.bell.rung.lock().unwrap();
            let (text, others) = self.told();
            if is_met(&text, &others) {
                return text;
            }
            let rung = self.bell.rung.lock().unwrap();
            let waited = self.bell.changed.wait_timeout_while(rung, LONG, |rung| *rung == before);
            let lines = text.lines().count();
            assert!(!waited.unwrap().1.timed_out(), "told {lines} lines, {others:?}");
        }
    }

    /// Waits for a command, and returns all that were applied until then.
    pub(crate) fn until_line(&self, line: &str) -> String {
        self.until(|text, _| text.lines().any(|found| found == line))
    }

    pub(crate) fn until_lines(&self, count: usize) -> String {
        self.until(|text, _| text.lines().count() >= count)
    }
}

/// The hosts of a cluster.
pub(crate) struct Cluster {
    pub(crate) place: tempfile::TempDir,
    members: BTreeMap<u64, MembershipHost>,
    pub(crate) hosts: BTreeMap<u64, Host>,
}

/// A loopback address that is free now. Only this call has the IP address, so no connection of
/// another test takes the port meanwhile.
pub(crate) fn free_address() -> SocketAddr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, high, low, CALLS.fetch_add(1, Ordering::Relaxed));
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

impl Cluster {
    /// Hosts 1 to `count`, of which none runs.
    pub(crate) fn new(count: u64) -> Self {
        let member =
            |id: u64| (id, MembershipHost { name: format!("host-{id}"), address: free_address() });
        let members = (1..=count).map(member).collect();
        Self { place: tempfile::tempdir().unwrap(), members, hosts: BTreeMap::new() }
    }

    /// The same, running and initialized.
    pub(crate) fn start(count: u64) -> Self {
        let mut cluster = Self::new(count);
        for id in 1..=count {
            cluster.run(id);
        }
        let voters: BTreeSet<u64> = (1..=count).collect();
        cluster.hosts[&1].engine.initialize(&voters).unwrap();
        cluster
    }

    pub(crate) fn directory(&self, id: u64) -> PathBuf {
        self.place.path().join(format!("host-{id}"))
    }

    pub(crate) fn address(&self, id: u64) -> SocketAddr {
        self.members[&id].address
    }

    pub(crate) fn config(&self, id: u64) -> MembershipConfig {
        config_in(&self.directory(id), id, self.members.clone())
    }

    pub(crate) fn run(&mut self, id: u64) {
        // A connection of another test may have the port of a host that was stopped, for a moment.
        let mut tries = 0;
        let host = loop {
            match Host::start(self.config(id)) {
                Ok(host) => break host,
                Err(error) => assert!(tries < BIND_TRIES_MAX, "{error}"),
            }
            tries += 1;
            std::thread::park_timeout(Duration::from_millis(20));
        };
        self.hosts.insert(id, host);
    }

    pub(crate) fn propose(&self, id: u64, command: &str) -> u64 {
        self.hosts[&id].engine.propose_and_wait(command.as_bytes().to_vec(), LONG).unwrap()
    }

    /// A running host that leads, as soon as a running host knows it.
    pub(crate) fn leader(&self) -> u64 {
        let leader = Cell::new(None);
        until("a running host leads", || {
            self.propose(*self.hosts.keys().next().unwrap(), "a command of the leader");
            let mut known = self.hosts.values().filter_map(|host| host.engine.status().leader);
            leader.set(known.find(|id| self.hosts.contains_key(id)));
            leader.get().is_some()
        });
        leader.get().unwrap()
    }

    pub(crate) fn change_vote(
        &self,
        through: u64,
        host: u64,
        votes: bool,
        checked: Option<&[u64]>,
    ) -> Result<()> {
        let checked = checked.map(|hosts| hosts.iter().copied().collect());
        self.hosts[&through].engine.change_vote(&VoteChange { host, votes, checked }, LONG)
    }

    /// Changes a vote through a host. An election may interrupt it: it is asked again.
    pub(crate) fn vote(&self, through: u64, host: u64, votes: bool) {
        until("the vote is changed", || {
            self.change_vote(through, host, votes, None).is_ok()
                || !votes && self.hosts[&through].engine.status().is_removed
        });
    }

    /// Waits until all running hosts know these voters.
    pub(crate) fn until_voters(&self, through: u64, voters: &[u64]) {
        let voters: BTreeSet<u64> = voters.iter().copied().collect();
        until("it knows the voters", || self.hosts[&through].engine.status().voters == voters);
    }
}

pub(crate) fn settings(name: &str, value: &str) -> SharedSettings {
    SharedSettings::new(vec![(name.to_owned(), value.to_owned())])
}

pub(crate) fn config_in(
    directory: &Path,
    host: u64,
    members: BTreeMap<u64, MembershipHost>,
) -> MembershipConfig {
    MembershipConfig {
        cluster: "east".to_owned(),
        host,
        members,
        directory: directory.to_owned(),
        election: Duration::from_millis(150),
        settings: settings("cluster.lease", "300 ms"),
        decided: settings("cluster.acknowledgements", "2"),
        tls: None,
        machine: Arc::new(|| Box::<Lines>::default()),
        report: Arc::new(move || format!("report of {host}")),
        on_refused: |_, _| {},
        begin_thread: || {},
    }
}
