//! The engine: a thread with a runtime of its own, on which openraft, its connections and the
//! proposals of this host run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_node::{
    ConsensusEngine, ENGINE_COMMAND_BYTES_MAX, EngineEvent, EngineState, EngineStatus, EventWaker,
    VoteChange,
};
use openraft::BasicNode;
use openraft::error::{ClientWriteError, InitializeError, RaftError};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

use crate::engine_thread::{EngineThread, ReadySender, lock, system, unavailable};
use crate::limits::{ANSWER_MAX, LEADER_CALLS_MAX, PROPOSALS_MAX, RETRY_INTERVAL};

use super::config::MembershipConfig;
use super::disk::DirectoryIdentity;
use super::heard::HeardHosts;
use super::machine::RaftMachine;
use super::message::{MemberReply, MemberRequest};
use super::network::{MemberClient, NetworkFactory, unexpected};
use super::reporter::Reporter;
use super::server::{LocalRaft, MemberService, listen, serve};
use super::storage::LogStore;
use super::stored::StoredBefore;
use super::types::{CommandBytes, Raft};
use super::voters::change_vote;

/// What the threads of an engine share.
struct EngineShared {
    config: Arc<MembershipConfig>,
    reporter: Arc<Reporter>,
    state: Arc<EngineState>,
    /// Absent while the engine has failed.
    raft: Mutex<Option<Raft>>,
    failure: Mutex<Option<String>>,
    stored: Arc<StoredBefore>,
    permits: Arc<Semaphore>,
    /// Connections to the leader for commands of this host that are not in use.
    leader: Mutex<Vec<MemberClient>>,
    /// For each command that is at the leader.
    calls: Semaphore,
    heard: Arc<HeardHosts>,
    /// Held while this host, the leader, changes a vote.
    vote_changes: Arc<tokio::sync::Mutex<()>>,
    stop: Arc<Notify>,
}

/// The embedded engine.
pub struct RaftEngine {
    shared: Arc<EngineShared>,
    thread: EngineThread,
}

impl fmt::Debug for RaftEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftEngine").field("host", &self.shared.config.host).finish_non_exhaustive()
    }
}

impl RaftEngine {
    /// Opens the files and starts. The thread that calls `waker` must not be waited for in it.
    ///
    /// # Errors
    /// `System`: the directory or the address cannot be used, or no thread. `Damaged`: a file of
    /// the directory. `BadArgument`: the directory of another member, or a setting that is not
    /// possible.
    pub fn start(config: MembershipConfig, waker: EventWaker) -> Result<Self> {
        let state = Arc::new(EngineState::new((config.machine)(), waker));
        let reporter = Reporter::start(Arc::clone(&config.report))
            .map_err(|error| system("cannot start a thread", &error))?;
        let shared = Arc::new(EngineShared {
            config: Arc::new(config),
            reporter: Arc::new(reporter),
            state,
            raft: Mutex::new(None),
            failure: Mutex::new(None),
            stored: Arc::default(),
            permits: Arc::new(Semaphore::new(PROPOSALS_MAX)),
            leader: Mutex::default(),
            calls: Semaphore::new(LEADER_CALLS_MAX),
            heard: Arc::default(),
            vote_changes: Arc::default(),
            stop: Arc::default(),
        });
        let running = Arc::clone(&shared);
        let run = |ready: ReadySender| {
            (running.config.begin_thread)();
            async move { run_until_stopped(&running, &ready).await }
        };
        let thread = EngineThread::start(Arc::clone(&shared.stop), run)?;
        Ok(Self { shared, thread })
    }

    fn raft(&self) -> Result<Raft> {
        let raft = lock(&self.shared.raft).clone();
        raft.ok_or_else(|| {
            let failure = lock(&self.shared.failure).clone();
            unavailable(failure.unwrap_or_else(|| "it is not running".to_owned()))
        })
    }

    fn wait<T>(&self, max: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        let done = self.thread.wait(max, work);
        done.unwrap_or_else(|_| Err(unavailable("no majority in time")))
    }
}

/// Runs the engine again after each failure. The first opening of its files reports its outcome.
async fn run_until_stopped(shared: &Arc<EngineShared>, ready: &ReadySender) {
    let mut first = Some(ready);
    loop {
        let failure = match open(shared).await {
            Ok(opened) => match launch(shared, opened).await {
                Ok(running) => {
                    if let Some(ready) = first.take() {
                        let _ = ready.send(Ok(()));
                    } else {
                        shared.state.emit(EngineEvent::Recovered);
                    }
                    *lock(&shared.failure) = None;
                    run(shared, running).await
                }
                Err(reason) => {
                    if let Some(ready) = first.take() {
                        let _ = ready.send(Ok(()));
                    }
                    Some(reason)
                }
            },
            Err(error) => match first.take() {
                Some(ready) => {
                    let _ = ready.send(Err(error));
                    return;
                }
                None => Some(error.to_string()),
            },
        };
        let Some(reason) = failure else { return };
        if lock(&shared.failure).replace(reason.clone()).is_none() {
            shared.state.emit(EngineEvent::Failed { reason });
        }
        let stopped = timeout(RETRY_INTERVAL, shared.stop.notified()).await;
        if stopped.is_ok() {
            return;
        }
    }
}

/// What openraft starts with.
struct OpenedRaft {
    settings: Arc<openraft::Config>,
    listener: TcpListener,
    store: LogStore,
    machine: RaftMachine,
}

/// An openraft that runs.
struct RunningRaft {
    raft: Raft,
    server: tokio::task::JoinHandle<()>,
}

async fn open(shared: &Arc<EngineShared>) -> Result<OpenedRaft> {
    let config = &shared.config;
    let settings = Arc::new(config.openraft()?);
    let Some(own) = config.members.get(&config.host) else {
        let detail = format!("host {} is not in the cluster file", config.host);
        return Err(Error::BadArgument { detail });
    };
    let listener = listen(own.address).await;
    let listener =
        listener.map_err(|error| system(&format!("cannot listen on {}", own.address), &error))?;
    let identity = DirectoryIdentity {
        cluster: config.cluster.clone(),
        host: config.host,
        settings: config.decided.lines().to_vec(),
    };
    let store = LogStore::open(&config.directory, &identity, &shared.stored)?;
    let machine = RaftMachine::open((config.machine)(), Arc::clone(&shared.state), store.clone())?;
    // Not before: a snapshot that was decided with other settings is refused.
    store.complete_identity(&identity)?;
    Ok(OpenedRaft { settings, listener, store, machine })
}

/// Starts openraft, which first applies what this host knew to be decided. It may fail at that, as
/// later, and it may panic.
async fn launch(
    shared: &Arc<EngineShared>,
    opened: OpenedRaft,
) -> std::result::Result<RunningRaft, String> {
    let OpenedRaft { settings, listener, store, machine } = opened;
    let config = &shared.config;
    let heard = Arc::clone(&shared.heard);
    let network = NetworkFactory { config: Arc::clone(config), heard };
    let started = Raft::new(config.host, settings, network, store.clone(), machine);
    let raft = tokio::spawn(started).await.map_err(|error| error.to_string())?;
    let raft = raft.map_err(|error| error.to_string())?;
    // The others wait for it: they do not stand before the time of their leader has passed.
    if store.has_led() {
        raft.trigger().elect().await.map_err(|error| error.to_string())?;
    }
    *lock(&shared.raft) = Some(raft.clone());
    let service = MemberService {
        config: Arc::clone(config),
        reporter: Arc::clone(&shared.reporter),
        heard: Arc::clone(&shared.heard),
        raft: Some(LocalRaft {
            raft: raft.clone(),
            store,
            vote_changes: Arc::clone(&shared.vote_changes),
        }),
    };
    let server = tokio::spawn(serve(listener, service));
    Ok(RunningRaft { raft, server })
}

/// Waits until openraft has failed, and says why. Notes meanwhile whether this host leads.
async fn failure_of(shared: &EngineShared, raft: &Raft) -> String {
    let mut metrics = raft.metrics();
    loop {
        {
            let metrics = metrics.borrow_and_update();
            shared.heard.note_leading(metrics.current_leader == Some(shared.config.host));
            if let Err(error) = &metrics.running_state {
                return error.to_string();
            }
        }
        if metrics.changed().await.is_err() {
            // Its task has ended without a word.
            return "openraft has panicked".to_owned();
        }
    }
}

/// Waits until openraft has failed, and says why; `None`: the engine is to stop.
async fn run(shared: &EngineShared, running: RunningRaft) -> Option<String> {
    let failure = tokio::select! {
        failure = failure_of(shared, &running.raft) => Some(failure),
        reason = shared.stored.until_contradicted() => Some(reason),
        () = shared.stop.notified() => None,
    };
    *lock(&shared.raft) = None;
    shared.heard.note_leading(false);
    running.server.abort();
    let _ = running.server.await;
    let _ = running.raft.shutdown().await;
    lock(&shared.leader).clear();
    failure
}

/// Proposes a command here or at the leader. One attempt.
async fn propose(shared: &EngineShared, raft: &Raft, command: &[u8]) -> Result<u64> {
    let forward = match raft.client_write(CommandBytes(command.to_vec())).await {
        Ok(reply) => return Ok(reply.log_id.index),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => forward.leader_id,
        Err(error) => return Err(unavailable(error)),
    };
    let Some(target) = forward else { return Err(unavailable("there is no leader")) };
    // No lock is held during the call. A call that is given up closes its connection.
    let _permit = shared.calls.acquire().await.map_err(unavailable)?;
    let idle = {
        let mut leader = lock(&shared.leader);
        leader.retain(|client| client.target() == target);
        leader.pop()
    };
    let mut client = idle.unwrap_or_else(|| MemberClient::new(Arc::clone(&shared.config), target));
    let max = shared.config.request_max();
    match client.call(&MemberRequest::Propose(command.to_vec()), max).await {
        Ok(MemberReply::Proposed(index)) => {
            lock(&shared.leader).push(client);
            Ok(index)
        }
        Ok(reply) => Err(unavailable(unexpected(&reply))),
        Err(error) => Err(unavailable(error)),
    }
}

/// Proposes a command until it is applied or `max` has passed.
async fn propose_until(
    shared: &EngineShared,
    raft: &Raft,
    command: &[u8],
    max: Duration,
) -> Result<u64> {
    let mut last = unavailable("no leader in time");
    let attempts = async {
        loop {
            match propose(shared, raft, command).await {
                Ok(index) => return index,
                Err(error) => last = error,
            }
            sleep(shared.config.heartbeat() / 2).await;
        }
    };
    let done = timeout(max, attempts).await;
    done.map_err(|_| last)
}

/// Asks another host for its report, without an engine: for a check of what a host would meet.
///
/// # Errors
/// `Backend`: why it does not report; `System`: no runtime.
pub fn ask_for_report(config: MembershipConfig, host: u64, max: Duration) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| system("cannot start a runtime", &error))?;
    runtime.block_on(report_of(&Arc::new(config), host, max))
}

/// Asks another host for its report, on a connection of its own, so that requests of the engine do
/// not wait for it.
pub(crate) async fn report_of(
    config: &Arc<MembershipConfig>,
    host: u64,
    max: Duration,
) -> Result<String> {
    if !config.members.contains_key(&host) {
        let detail = format!("host {host} is not in the cluster file");
        return Err(Error::BadArgument { detail });
    }
    let silent = |error: &dyn fmt::Display| Error::Backend {
        detail: format!("no status report from host {host}: {error}"),
    };
    let mut client = MemberClient::new(Arc::clone(config), host);
    match client.call(&MemberRequest::Report, max).await {
        Ok(MemberReply::Report(text)) => Ok(text),
        Ok(reply) => Err(silent(&unexpected(&reply))),
        Err(error) => Err(silent(&error)),
    }
}

fn check_command(command: &[u8]) -> Result<()> {
    if command.len() > ENGINE_COMMAND_BYTES_MAX {
        let detail =
            format!("a command of {} bytes, at most {ENGINE_COMMAND_BYTES_MAX}", command.len());
        return Err(Error::BadArgument { detail });
    }
    Ok(())
}

impl ConsensusEngine for RaftEngine {
    fn name(&self) -> &'static str {
        "raft"
    }

    fn initialize(&self, voters: &BTreeSet<u64>) -> Result<()> {
        let raft = self.raft()?;
        let mut nodes = BTreeMap::new();
        for id in voters {
            let member = self.shared.config.members.get(id).ok_or_else(|| Error::BadArgument {
                detail: format!("host {id} is not in the cluster file"),
            })?;
            nodes.insert(*id, BasicNode::new(member.address));
        }
        self.wait(ANSWER_MAX, async move {
            raft.initialize(nodes).await.map_err(|error| match error {
                RaftError::APIError(InitializeError::NotAllowed(_)) => Error::BadArgument {
                    detail: "the cluster exists already: `nearstate cluster status` shows it"
                        .to_owned(),
                },
                RaftError::APIError(error) => Error::BadArgument {
                    detail: format!("the cluster cannot be initialized: {error}"),
                },
                RaftError::Fatal(error) => unavailable(error),
            })
        })
    }

    fn propose(&self, command: Vec<u8>, life: Duration) {
        let Ok(permit) = Arc::clone(&self.shared.permits).try_acquire_owned() else { return };
        let (Ok(raft), Ok(())) = (self.raft(), check_command(&command)) else { return };
        let shared = Arc::clone(&self.shared);
        self.thread.spawn(async move {
            let _permit = permit;
            // The caller sees the effect, or proposes again.
            let _ = propose_until(&shared, &raft, &command, life).await;
        });
    }

    fn propose_and_wait(&self, command: Vec<u8>, max: Duration) -> Result<u64> {
        check_command(&command)?;
        let raft = self.raft()?;
        // The inner time-out knows the reason, the outer one is the bound.
        let inner = propose_until(&self.shared, &raft, &command, max);
        self.wait(max + RETRY_INTERVAL, inner)
    }

    fn change_vote(&self, change: &VoteChange, max: Duration) -> Result<()> {
        let raft = self.raft()?;
        let (shared, host) = (&self.shared, change.host);
        if !shared.config.members.contains_key(&host) {
            let detail = format!("host {host} is not in the cluster file");
            return Err(Error::BadArgument { detail });
        }
        let own = (&raft, shared.vote_changes.as_ref());
        self.wait(max, change_vote(&shared.config, own, change, max))
    }

    fn report_of(&self, host: u64, max: Duration) -> Result<String> {
        self.wait(max + RETRY_INTERVAL, report_of(&self.shared.config, host, max))
    }

    fn take_events(&self, out: &mut Vec<EngineEvent>) {
        self.shared.state.take_events(out);
    }

    fn only_voters_learn(&self) -> bool {
        true
    }

    fn status(&self) -> EngineStatus {
        let failure = lock(&self.shared.failure).clone();
        let applied = self.shared.state.applied();
        let Some(raft) = lock(&self.shared.raft).clone() else {
            let silent_ms = self.shared.heard.silent_ms();
            return EngineStatus { applied, failure, silent_ms, ..EngineStatus::default() };
        };
        let metrics = raft.metrics().borrow().clone();
        let voters: BTreeSet<u64> = metrics.membership_config.membership().voter_ids().collect();
        // A leader that has lost its majority does not step down.
        let heard = metrics.millis_since_quorum_ack.map(Duration::from_millis);
        let is_alone = metrics.current_leader == Some(self.shared.config.host)
            && heard.is_none_or(|heard| heard > self.shared.config.request_max() * 2);
        EngineStatus {
            leader: metrics.current_leader.filter(|_| !is_alone),
            is_removed: !voters.is_empty() && !voters.contains(&self.shared.config.host),
            unanswered_ms: if is_alone {
                BTreeMap::new()
            } else {
                self.shared.heard.unanswered_ms(self.shared.config.host, &voters)
            },
            silent_ms: self.shared.heard.silent_ms(),
            voters,
            applied,
            term: metrics.current_term,
            failure,
        }
    }
}
