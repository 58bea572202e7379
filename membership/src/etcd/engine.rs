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
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::engine_thread::{EngineThread, ReadySender, lock, system, unavailable};
use crate::limits::{
    ANSWER_MAX, ETCD_BLOCKING_MAX, ETCD_CALL_MIN, ETCD_POLL_INTERVAL, ETCD_WATCH_MAX,
    PROPOSALS_MAX, RETRY_INTERVAL,
};
use crate::own_machine::panic_text;
use crate::raft::{
    HeardHosts, MemberService, MembershipConfig, Reporter, listen, lock_directory, report_of, serve,
};

use super::applied::AppliedFile;
use super::client::{EtcdClient, Known};
use super::gateway::{EtcdSettings, Gateway, is_cancelled};
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
    /// A read that runs is given up: the cluster is to be created, and an endpoint that is asked
    /// may be silent.
    wanted: Notify,
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
        let keys = (EtcdKeys::new(&config.cluster), last);
        let machine = (Arc::clone(&state), Arc::clone(&config.machine));
        let call = (config.request_max().max(ETCD_CALL_MIN), config.decided.clone());
        let reporter = Reporter::start(Arc::clone(&config.report))
            .map_err(|error| system("cannot start a thread", &error))?;
        let shared = Arc::new(EtcdShared {
            reporter: Arc::new(reporter),
            heard: Arc::default(),
            client: tokio::sync::Mutex::new(EtcdClient::new(settings.clone(), keys, machine, call)),
            config: Arc::new(config),
            settings,
            state,
            status: Mutex::default(),
            permits: Arc::new(Semaphore::new(PROPOSALS_MAX)),
            changed: Notify::new(),
            wanted: Notify::new(),
            stop: Arc::default(),
        });
        let running = Arc::clone(&shared);
        let run = |ready: ReadySender| async move { run_until_stopped(&running, &ready).await };
        let thread = EngineThread::start(Arc::clone(&shared.stop), ETCD_BLOCKING_MAX, run)?;
        Ok(Self { shared, thread, _lock: lock })
    }

    fn wait<T>(&self, max: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.thread.wait(max, work).unwrap_or_else(|_| {
            let failing = lock(&self.shared.status).failing.clone();
            Err(unavailable(failing.map_or("etcd does not answer in time".to_owned(), |one| one.1)))
        })
    }
}

/// Listens for other hosts.
async fn listen_for_hosts(config: &MembershipConfig) -> Result<TcpListener> {
    let listener = match config.members.get(&config.host) {
        Some(own) => listen(own.address).await,
        None => Err(io::Error::other("the host is not in the cluster file")),
    };
    listener.map_err(|error| system("cannot listen for other hosts", &error))
}

/// Runs the engine again after each panic.
async fn run_until_stopped(shared: &Arc<EtcdShared>, ready: &ReadySender) {
    let mut listener = match listen_for_hosts(&shared.config).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    loop {
        let failure = match listener.take() {
            Some(listener) => {
                let running = tokio::spawn(run(Arc::clone(shared), listener)).await;
                let Err(error) = running else { return };
                let panic = error.try_into_panic().ok();
                let text = panic.as_ref().map_or("", |panic| panic_text(&**panic));
                format!("the engine has panicked: {text}")
            }
            None => match listen_for_hosts(&shared.config).await {
                Ok(free) => {
                    listener = Some(free);
                    continue;
                }
                Err(error) => error.to_string(),
            },
        };
        stop_with(shared, failure);
        if timeout(RETRY_INTERVAL, shared.stop.notified()).await.is_ok() {
            return;
        }
    }
}

/// The engine has stopped for this reason.
fn stop_with(shared: &EtcdShared, reason: String) {
    {
        let mut status = lock(&shared.status);
        status.failing = Some((Instant::now(), reason.clone()));
        status.is_failed = true;
    }
    shared.state.emit(EngineEvent::Failed { reason });
}

/// Runs the engine until it is stopped.
async fn run(shared: Arc<EtcdShared>, listener: TcpListener) {
    let service = MemberService {
        config: Arc::clone(&shared.config),
        reporter: Arc::clone(&shared.reporter),
        heard: Arc::clone(&shared.heard),
        raft: None,
    };
    tokio::select! {
        () = serve(listener, service) => {}
        () = follow(&shared) => {}
        () = watch(&shared) => {}
        () = shared.stop.notified() => {}
    }
}

/// Applies what etcd has, whenever something may have changed.
async fn follow(shared: &EtcdShared) {
    loop {
        let read = async {
            let mut client = shared.client.lock().await;
            (client.catch_up().await, client.known().clone(), client.take_failed())
        };
        tokio::select! {
            (outcome, known, failed) = read => note(shared, (outcome, failed), known),
            () = shared.wanted.notified() => {}
        }
        let _ = timeout(ETCD_POLL_INTERVAL, shared.changed.notified()).await;
    }
}

/// Notes whether etcd answers. After a while without an answer, the engine has failed. An endpoint
/// that was refused, and a command that cannot be applied, are told at once: the next attempt may
/// have success.
fn note(shared: &EtcdShared, (outcome, failed): (io::Result<()>, Option<String>), known: Known) {
    let mut status = lock(&shared.status);
    if let Some(reason) = failed.filter(|_| !status.is_failed) {
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
    let mut gateway = Gateway::new(shared.settings.clone(), 1, shared.config.request_max());
    loop {
        // One that could not begin has left its endpoint already.
        if let Ok(mut body) = gateway.watch(&keys.watch(), ETCD_WATCH_MAX).await {
            while let Ok(Some(Ok(frame))) = timeout(ETCD_WATCH_MAX, body.frame()).await {
                if frame.data_ref().is_some_and(|part| is_cancelled(part)) {
                    gateway.forget_token();
                    // The host reads meanwhile. A user without the permission is refused again.
                    sleep(RETRY_INTERVAL).await;
                    break;
                }
                shared.changed.notify_one();
            }
            gateway.close();
        }
        sleep(shared.config.heartbeat()).await;
    }
}

/// Appends a command, again while other hosts are faster or etcd does not answer. It is not sent
/// after `until`: what its host has proposed may be wrong by then. A call that runs then goes on:
/// one that is given up has to be made again. Notes why the last attempt has failed.
async fn propose(
    shared: &EtcdShared,
    command: &[u8],
    until: Instant,
    last: &mut Error,
) -> Option<u64> {
    while Instant::now() < until {
        let mut client = timeout_at(until, shared.client.lock()).await.ok()?;
        match client.append(command, until).await {
            Ok(Some(index)) => return Some(index),
            Ok(None) => {}
            Err(error) => {
                drop(client);
                *last = unavailable(error);
                sleep(shared.config.heartbeat() / 2).await;
            }
        }
    }
    None
}

/// The error of a proposal of which no attempt has ended.
fn silent() -> Error {
    unavailable("etcd does not answer in time")
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
                self.shared.wanted.notify_one();
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
        let (shared, until) = (Arc::clone(&self.shared), Instant::now() + life);
        self.thread.spawn(async move {
            let _permit = permit;
            // The caller sees the effect, or proposes again.
            let mut last = silent();
            let _ = propose(&shared, &command, until, &mut last).await;
        });
    }

    fn propose_and_wait(&self, command: Vec<u8>, max: Duration) -> Result<u64> {
        check_command(&command)?;
        // The inner time-out knows the reason, the outer one is the bound.
        self.wait(max + ETCD_CALL_MIN, async {
            let (until, mut last) = (Instant::now() + max, silent());
            let done = timeout(max, propose(&self.shared, &command, until, &mut last)).await;
            done.ok().flatten().ok_or(last)
        })
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
