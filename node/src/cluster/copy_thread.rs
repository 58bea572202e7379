//! The thread of one copy: it carries out, in their order, the effects that wait for the region, a
//! disk or a connection, and tells the driver what the region is afterwards.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_cluster::{
    CopyState, LogPosition, MemberRecord, Monotonic, PartitionId, RegionFacts, ViewNumber,
};
use nearstate_model::{Error, Result};
use nearstate_store::{FollowState, Following, LogIdentity, OwnerLease, Session, lease_clock};

use crate::partition::{Freeze, Partition, PartitionState};

use super::driver::{ClusterNotice, Notices};
use super::inbox::{CopyInput, DriverInbox};
use super::record::CopyRecord;

/// The interval of looks at the region, and between two attempts of a task.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyTask {
    Store(MemberRecord),
    Fence(bool),
    Serve(ViewNumber),
    StopServing,
    Freeze(ViewNumber),
    Promote { view: ViewNumber, origin: ViewNumber, seal: Option<LogPosition> },
    Demote { view: ViewNumber, seal: Option<LogPosition> },
    Follow { view: ViewNumber, origin: ViewNumber, address: String, clients: Option<String> },
    StopFollowing,
}

impl CopyTask {
    /// True if the rules ask for it again until they see that it is done.
    const fn is_repeated(&self) -> bool {
        matches!(self, Self::Freeze(_) | Self::Promote { .. } | Self::Demote { .. })
    }
}

/// How a task has ended.
enum Outcome {
    Done,
    /// To be tried again at this time of the clock of leases, unless something else is to be done.
    Later(Duration),
}

/// The copy, and what its thread and the driver share.
pub(super) struct CopyShared {
    pub(super) partition: PartitionId,
    pub(super) copy: Partition,
    session: Mutex<Session>,
    record: Mutex<CopyRecord>,
    tasks: Mutex<Tasks>,
    changed: Condvar,
    inbox: Arc<DriverInbox>,
    notices: Notices,
}

#[derive(Debug, Default)]
struct Tasks {
    queue: VecDeque<CopyTask>,
    present: Option<CopyTask>,
    is_over: bool,
}

impl fmt::Debug for CopyShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyShared").field("partition", &self.partition).finish_non_exhaustive()
    }
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct CopyThread {
    pub(super) shared: Arc<CopyShared>,
    thread: Option<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CopyThread {
    pub(super) fn start(
        (partition, copy): (PartitionId, Partition),
        (session, record): (Session, CopyRecord),
        inbox: Arc<DriverInbox>,
        notices: Notices,
    ) -> Result<Self> {
        let shared = Arc::new(CopyShared {
            partition,
            copy,
            session: Mutex::new(session),
            record: Mutex::new(record),
            tasks: Mutex::default(),
            changed: Condvar::new(),
            inbox,
            notices,
        });
        let running = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("ns-copy-{partition}"))
            .spawn(move || running.run())
            .map_err(|error| {
                let detail = format!("cannot start a thread: {error}");
                Error::System { detail, errno: error.raw_os_error().unwrap_or(0) }
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Adds a task, unless the same one waits or runs and the rules repeat it.
    pub(super) fn add(&self, task: CopyTask) {
        let mut tasks = locked(&self.shared.tasks);
        let is_known = tasks.queue.contains(&task)
            || (tasks.queue.is_empty() && tasks.present.as_ref() == Some(&task));
        if task.is_repeated() && is_known {
            return;
        }
        tasks.queue.push_back(task);
        self.shared.changed.notify_all();
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        locked(&self.shared.tasks).is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl CopyShared {
    fn run(&self) {
        let mut told = None;
        while !self.is_over() {
            let task = self.next();
            let outcome = match &task {
                Some(task) => self.attempt(task),
                None => Outcome::Done,
            };
            self.tell_facts(&mut told, task.is_some());
            if let (Some(task), Outcome::Later(at)) = (task, outcome) {
                self.postpone(task, at);
            }
            locked(&self.tasks).present = None;
        }
    }

    fn is_over(&self) -> bool {
        locked(&self.tasks).is_over
    }

    /// The next task, or `None` after the interval of looks.
    fn next(&self) -> Option<CopyTask> {
        let mut tasks = locked(&self.tasks);
        if tasks.queue.is_empty() && !tasks.is_over {
            let waited = self.changed.wait_timeout(tasks, LOOK_INTERVAL);
            tasks = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let task = tasks.queue.pop_front();
        tasks.present.clone_from(&task);
        task
    }

    /// Waits until the time has come. A task that the rules repeat is dropped if another one has
    /// come meanwhile; any other one stays the next.
    fn postpone(&self, task: CopyTask, at: Duration) {
        let mut tasks = locked(&self.tasks);
        loop {
            let left = at.saturating_sub(lease_clock());
            let is_replaced = !tasks.queue.is_empty() && task.is_repeated();
            if tasks.is_over || is_replaced {
                return;
            }
            if left.is_zero() {
                let ended = |later: &CopyTask| {
                    matches!(
                        (&task, later),
                        (CopyTask::Serve(_), CopyTask::StopServing)
                            | (CopyTask::Follow { .. }, CopyTask::StopFollowing)
                    )
                };
                if !tasks.queue.iter().any(ended) {
                    tasks.queue.push_front(task);
                }
                return;
            }
            let waited = self.changed.wait_timeout(tasks, left);
            tasks = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Carries out a task. A failure is told; then it is tried again.
    fn attempt(&self, task: &CopyTask) -> Outcome {
        match self.carry_out(task) {
            Ok(outcome) => outcome,
            Err(error) => {
                let (partition, reason) = (self.partition, error.to_string());
                (self.notices)(&ClusterNotice::Failed { partition, reason });
                Outcome::Later(lease_clock() + LOOK_INTERVAL)
            }
        }
    }

    fn carry_out(&self, task: &CopyTask) -> Result<Outcome> {
        match task {
            CopyTask::Store(record) => locked(&self.record).set_member(*record)?,
            CopyTask::Fence(is_fenced) => self.copy.set_fenced(*is_fenced)?,
            CopyTask::Serve(view) => self.copy.serve(view.0)?,
            CopyTask::StopServing => self.copy.stop_serving(),
            CopyTask::StopFollowing => self.copy.stop_following(),
            CopyTask::Freeze(view) => return self.freeze(*view),
            CopyTask::Promote { view, origin, seal } => self.promote(*view, *origin, *seal)?,
            CopyTask::Demote { view, seal } => {
                let own = self.copy.state()?.own;
                let seal = seal.filter(|seal| is_log(seal, own)).map(|seal| seal.position);
                self.copy.demote(view.0, seal)?;
            }
            CopyTask::Follow { view, origin, address, clients } => {
                self.copy.stop_following();
                // What was followed before is known before another log is expected.
                self.facts()?;
                locked(&self.record).expect(*origin)?;
                self.copy.follow(view.0, address, clients.as_deref())?;
            }
        }
        Ok(Outcome::Done)
    }

    fn freeze(&self, view: ViewNumber) -> Result<Outcome> {
        let held = match self.copy.freeze(view.0)? {
            Freeze::Promised { until } => return Ok(Outcome::Later(until)),
            Freeze::Frozen(following) => self.follower_position(&following)?,
            Freeze::NotFull => self.owner_position()?,
        };
        if let Some(held) = held {
            self.inbox.copy(self.partition, CopyInput::Frozen(view, held));
        }
        Ok(Outcome::Done)
    }

    /// What an owner's region holds, with its writers refused.
    fn owner_position(&self) -> Result<Option<LogPosition>> {
        let state = self.copy.state()?;
        let record = locked(&self.record);
        if state.following.is_some() || !record.knows(state.own) {
            return Ok(None);
        }
        drop(record);
        self.copy.set_fenced(true)?;
        let tail = self.copy.state()?.tail;
        let origin = locked(&self.record).origin_of(state.own)?;
        Ok(origin.map(|origin| log_position(state.own, origin, (tail, 0))))
    }

    fn follower_position(&self, following: &Following) -> Result<Option<LogPosition>> {
        let origin = locked(&self.record).origin_of(following.source)?;
        let held = (following.applied.position, following.applied.check);
        Ok(origin.map(|origin| log_position(following.source, origin, held)))
    }

    fn promote(
        &self,
        view: ViewNumber,
        origin: ViewNumber,
        seal: Option<LogPosition>,
    ) -> Result<()> {
        self.copy.stop_following();
        let state = self.copy.state()?;
        let held = match &state.following {
            Some(following) => self.follower_position(following)?,
            None => None,
        };
        if let (Some(seal), Some(held)) = (seal, held)
            && (!held.compare(&seal).is_eq() || held.is_fork_of(&seal))
        {
            let detail =
                format!("the copy holds {held:?}, and the partition was sealed at {seal:?}");
            return Err(Error::Damaged { detail });
        }
        locked(&self.record).expect(origin)?;
        self.copy.promote(view.0, false)?;
        let own = self.copy.state()?.own;
        locked(&self.record).origin_of(own)?;
        Ok(())
    }

    /// Tells the driver what the region is, if that has changed or something was done.
    fn tell_facts(&self, told: &mut Option<RegionFacts>, is_due: bool) {
        match self.facts() {
            Ok(facts) => {
                if is_due || *told != Some(facts) {
                    *told = Some(facts);
                    self.inbox.copy(self.partition, CopyInput::Facts(facts));
                }
            }
            Err(error) => {
                let (partition, reason) = (self.partition, error.to_string());
                (self.notices)(&ClusterNotice::Failed { partition, reason });
            }
        }
    }

    /// What the region is at present.
    pub(super) fn facts(&self) -> Result<RegionFacts> {
        let state = self.copy.state()?;
        let lease_until = match locked(&self.session).owner_lease()? {
            OwnerLease::Held { until } => monotonic(until),
            OwnerLease::Unclustered | OwnerLease::Expired => Monotonic::BOOT,
        };
        let mut record = locked(&self.record).member();
        record.view = record.view.max(ViewNumber(state.view_seen));
        let copy = self.copy_state(&state)?;
        Ok(RegionFacts { copy, record, replicated: state.replicated, lease_until })
    }

    fn copy_state(&self, state: &PartitionState) -> Result<CopyState> {
        let Some(following) = &state.following else {
            let mut record = locked(&self.record);
            let is_own = record.knows(state.own) || state.takeover.is_some();
            let origin = if is_own { record.origin_of(state.own)? } else { None };
            return Ok(match origin {
                Some(origin) => CopyState::Owner { origin },
                None if state.tail == 0 => CopyState::Empty,
                None => CopyState::Owner { origin: ViewNumber::NONE },
            });
        };
        Ok(match following.state {
            FollowState::Joining | FollowState::Extending => CopyState::Joining,
            FollowState::Demoting => match locked(&self.record).origin_of(state.own)? {
                Some(origin) => CopyState::Owner { origin },
                None => CopyState::Owner { origin: ViewNumber::NONE },
            },
            FollowState::Full | FollowState::Promoting => {
                match self.follower_position(following)? {
                    Some(held) if held.position > 0 => CopyState::Follower(held),
                    Some(_) | None => CopyState::Joining,
                }
            }
        })
    }
}

pub(super) fn monotonic(time: Duration) -> Monotonic {
    Monotonic(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn log_bytes(log: LogIdentity) -> [u8; 16] {
    let [low, high] = log.region.map(u64::to_le_bytes);
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(low.into_iter().chain(high)) {
        *to = from;
    }
    bytes
}

fn log_position(
    log: LogIdentity,
    origin: ViewNumber,
    (position, check): (u64, u64),
) -> LogPosition {
    LogPosition { origin, log: log_bytes(log), incarnation: log.incarnation, position, check }
}

fn is_log(position: &LogPosition, log: LogIdentity) -> bool {
    (position.log, position.incarnation) == (log_bytes(log), log.incarnation)
}
