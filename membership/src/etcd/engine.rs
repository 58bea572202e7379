//! The engine: a thread with a runtime of its own that follows the commands in etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt as _;
use nearstate_model::{Error, Result};
use nearstate_node::{
    ConsensusEngine, ENGINE_COMMAND_BYTES_MAX, EngineEvent, EngineState, EngineStatus, EventWaker,
    VoteChange,
};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::engine_thread::{EngineThread, ReadySender, lock, system, unavailable};
use crate::limits::{ANSWER_MAX, ETCD_CALL_MIN, ETCD_POLL_INTERVAL, ETCD_WATCH_MAX, PROPOSALS_MAX};
use crate::raft::{
    HeardHosts, MemberService, MembershipConfig, Reporter, listen, lock_directory, report_of, serve,
};

use super::applied::AppliedFile;
use super::client::{EtcdClient, Known};
use super::gateway::{EtcdSettings, Gateway};
use super::keys::EtcdKeys;

/// What the tasks of an engine share.
struct EtcdShared {
    config: Arc<MembershipConfig>,
    reporter: Arc<Reporter>,
    heard: Arc<HeardHosts>,
    settings: EtcdSettings,
    state: Arc<EngineState>,
    client: tokio::sync::Mutex<EtcdClient>,
    status: Mutex<EtcdStatus>,
    permits: Arc<Semaphore>,
    /// Something may have changed.
    changed: Notify,
    stop: Arc<Notify>,
}

#[derive(Clone, Debug, Default)]
struct EtcdStatus {
    known: Known,
    /// Since when etcd does not answer, and why.
    failing: Option<(Instant, String)>,
    is_failed: bool,
}

/// The engine that lets etcd order the commands. The hosts talk to each other only for reports.
pub struct EtcdEngine {
    shared: Arc<EtcdShared>,
    thread: EngineThread,
    _lock: File,
}

impl fmt::Debug for EtcdEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdEngine").field("host", &self.shared.config.host).finish_non_exhaustive()
    }
}

impl EtcdEngine {
    /// Starts. The directory is locked, and has a note of the last command that the host has
    /// applied: etcd keeps everything else. Etcd need not answer yet.
    ///
    /// # Errors
    /// `System`: the directory or the address for other hosts cannot be used, or no thread.
    /// `BadArgument`: no endpoint.
    pub fn start(
        config: MembershipConfig,
        settings: EtcdSettings,
        waker: EventWaker,
    ) -> Result<Self> {
        if settings.endpoints.is_empty() {
            let detail = "etcd has no endpoints: set etcd.endpoints".to_owned();
            return Err(Error::BadArgument { detail });
        }
        let lock = lock_directory(&config.directory)?;
        let state = Arc::new(EngineState::new((config.machine)(), waker));
        let last = AppliedFile::open(&config.directory)
            .map_err(|error| system("cannot read what was applied from etcd", &error))?;
        let keys = (EtcdKeys::new(&config.cluster), Arc::clone(&state), last);
        let call = (config.request_max().max(ETCD_CALL_MIN), config.decided.clone());
        let reporter = Reporter::start(Arc::clone(&config.report))
            .map_err(|error| system("cannot start a thread", &error))?;
        let shared = Arc::new(EtcdShared {
            reporter: Arc::new(reporter),
            heard: Arc::default(),
            client: tokio::sync::Mutex::new(EtcdClient::new(settings.clone(), keys, call)),
            config: Arc::new(config),
            settings,
            state,
            status: Mutex::default(),
            permits: Arc::new(Semaphore::new(PROPOSALS_MAX)),
            changed: Notify::new(),
            stop: Arc::default(),
        });
        let running = Arc::clone(&shared);
        let run = |ready: ReadySender| {
            (running.config.begin_thread)();
            async move { run(&running, &ready).await }
        };
        let thread = EngineThread::start(Arc::clone(&shared.stop), run)?;
        Ok(Self { shared, thread, _lock: lock })
    }

    fn wait<T>(&self, max: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.thread.wait(max, work).unwrap_or_else(|_| {
            let failing = lock(&self.shared.status).failing.clone();
            Err(unavailable(failing.map_or("etcd does not answer in time".to_owned(), |one| one.1)))
        })
    }
}

async fn run(shared: &Arc<EtcdShared>, ready: &ReadySender) {
    let config = &shared.config;
    let listener = match config.members.get(&config.host) {
        Some(own) => listen(own.address).await,
        None => Err(io::Error::other("the host is not in the cluster file")),
    };
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => {
            let _ = ready.send(Err(system("cannot listen for other hosts", &error)));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    let reporter = Arc::clone(&shared.reporter);
    let heard = Arc::clone(&shared.heard);
    let service = MemberService { config: Arc::clone(config), reporter, heard, raft: None };
    tokio::select! {
        () = serve(listener, service) => {}
        () = follow(shared) => {}
        () = watch(shared) => {}
        () = shared.stop.notified() => {}
    }
}

/// Applies what etcd has, whenever something may have changed.
async fn follow(shared: &EtcdShared) {
    loop {
        let (outcome, known, refused) = {
            let mut client = shared.client.lock().await;
            (client.catch_up().await, client.known().clone(), client.take_refused())
        };
        note(shared, (outcome, refused), known);
        let _ = timeout(ETCD_POLL_INTERVAL, shared.changed.notified()).await;
    }
}

/// Notes whether etcd answers. After a while without an answer, the engine has failed. An endpoint
/// that was refused is told at once: the next one may answer.
fn note(shared: &EtcdShared, (outcome, refused): (io::Result<()>, Option<String>), known: Known) {
    let mut status = lock(&shared.status);
    if let Some(reason) = refused.filter(|_| !status.is_failed) {
        status.is_failed = true;
        shared.state.emit(EngineEvent::Failed { reason });
    }
    match outcome {
        Ok(()) => {
            let was_failed = std::mem::take(&mut status.is_failed);
            (status.known, status.failing) = (known, None);
            drop(status);
            if was_failed {
                shared.state.emit(EngineEvent::Recovered);
            }
        }
        Err(error) => {
            let (since, _) = *status.failing.get_or_insert_with(|| (Instant::now(), String::new()));
            let reason = error.to_string();
            status.failing = Some((since, reason.clone()));
            if since.elapsed() >= ANSWER_MAX && !status.is_failed {
                status.is_failed = true;
                drop(status);
                shared.state.emit(EngineEvent::Failed { reason });
            }
        }
    }
}

/// Watches etcd. A watch that is silent is begun anew: its connection may be dead.
async fn watch(shared: &EtcdShared) {
    let keys = EtcdKeys::new(&shared.config.cluster);
    let mut gateway = Gateway::new(shared.settings.clone(), 1);
    loop {
        if let Ok(mut body) = gateway.watch(&keys.watch(), ETCD_WATCH_MAX).await {
            while let Ok(Some(Ok(_))) = timeout(ETCD_WATCH_MAX, body.frame()).await {
                shared.changed.notify_one();
            }
        }
        gateway.close();
        sleep(shared.config.heartbeat()).await;
    }
}

/// Appends a command, again while other hosts are faster or etcd does not answer.
async fn propose(shared: &EtcdShared, command: &[u8], max: Duration) -> Result<u64> {
    let mut last = unavailable("etcd does not answer in time");
    let attempts = async {
        loop {
            let attempt = shared.client.lock().await.append(command).await;
            match attempt {
                Ok(Some(index)) => return index,
                Ok(None) => {}
                Err(error) => {
                    last = unavailable(error);
                    sleep(shared.config.heartbeat() / 2).await;
                }
            }
        }
    };
    let done = timeout(max, attempts).await;
    done.map_err(|_| last)
}

fn check_command(command: &[u8]) -> Result<()> {
    if command.len() > ENGINE_COMMAND_BYTES_MAX {
        let detail =
            format!("a command of {} bytes, at most {ENGINE_COMMAND_BYTES_MAX}", command.len());
        return Err(Error::BadArgument { detail });
    }
    Ok(())
}

impl ConsensusEngine for EtcdEngine {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn initialize(&self, voters: &BTreeSet<u64>) -> Result<()> {
        // An attempt without an answer may have created it: the next one recognizes the number.
        let call = RandomState::new().hash_one(self.shared.config.host);
        let created = self.wait(ANSWER_MAX, async {
            loop {
                let mut client = self.shared.client.lock().await;
                if let Some(detail) = client.disagreement().await {
                    return Err(Error::BadArgument { detail });
                }
                if let Ok(created) = client.create(voters, call).await {
                    return Ok(created);
                }
                drop(client);
                sleep(self.shared.config.heartbeat()).await;
            }
        })?;
        self.shared.changed.notify_one();
        if created {
            return Ok(());
        }
        Err(Error::BadArgument { detail: "the cluster exists already in etcd".to_owned() })
    }

    fn propose(&self, command: Vec<u8>, life: Duration) {
        let Ok(permit) = Arc::clone(&self.shared.permits).try_acquire_owned() else { return };
        if check_command(&command).is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.thread.spawn(async move {
            let _permit = permit;
            // The caller sees the effect, or proposes again.
            // A slow etcd is waited for: a call that is given up has to be made again.
            let life = life.max(ANSWER_MAX);
            let _ = propose(&shared, &command, life).await;
        });
    }

    fn propose_and_wait(&self, command: Vec<u8>, max: Duration) -> Result<u64> {
        check_command(&command)?;
        // The inner time-out knows the reason, the outer one is the bound.
        self.wait(max + ETCD_CALL_MIN, propose(&self.shared, &command, max))
    }

    fn change_vote(&self, _: &VoteChange, _: Duration) -> Result<()> {
        let detail = "the members of etcd vote, not the hosts: use `etcdctl member`".to_owned();
        Err(Error::BadArgument { detail })
    }

    fn report_of(&self, host: u64, max: Duration) -> Result<String> {
        self.wait(max + ETCD_CALL_MIN, report_of(&self.shared.config, host, max))
    }

    fn take_events(&self, out: &mut Vec<EngineEvent>) {
        self.shared.state.take_events(out);
    }

    /// The leader is this host while etcd answers it: which member of etcd leads does not matter.
    fn status(&self) -> EngineStatus {
        let status = lock(&self.shared.status).clone();
        let failure = status.failing.filter(|_| status.is_failed).map(|(_, reason)| reason);
        EngineStatus {
            leader: failure.is_none().then_some(self.shared.config.host),
            voters: status.known.hosts,
            applied: self.shared.state.applied(),
            term: status.known.term,
            is_removed: false,
            silent_ms: self.shared.heard.silent_ms(),
            unanswered_ms: BTreeMap::new(),
            failure,
        }
    }
}
