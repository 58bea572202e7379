//! The thread of one copy: it carries out, in their order, the effects that wait for the region, a
//! disk or a connection, and tells the driver what the region is afterwards.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_cluster::{
    CopyState, HostId, LogEnds, LogPosition, MemberRecord, Monotonic, PartitionId, RegionState,
    Revision, ViewNumber,
};
use nearstate_model::{Error, Result};
use nearstate_store::{
    FollowPosition, FollowState, Following, HeapSpace, Kind, LogIdentity, Region, Schema,
    lease_clock,
};

use crate::partition::{FollowTarget, Freeze, Partition, PartitionState};

use super::inbox::{CopyInput, DriverInbox};
use super::notice::{ClusterNotice, Notices, PanicNotice};

/// The interval of looks at the region, and between two attempts of a task.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The namespace of a new partition. It has no records.
pub(super) const FIRST_NAMESPACE: &str = "nearstate.cluster";

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyTask {
    Fence(bool),
    Serve(ViewNumber),
    StopServing,
    Freeze(ViewNumber),
    Promote {
        origin: ViewNumber,
        seal: Option<LogPosition>,
    },
    Demote {
        view: ViewNumber,
        seal: Option<LogPosition>,
    },
    Follow(FollowTask),
    StopFollowing,
    GiveUpReceipts,
    /// It is decided that the owner was excluded: a drain that could not wait for that ends.
    EndDrain,
}

/// What is to be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FollowTask {
    pub(super) view: ViewNumber,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) clients: String,
    pub(super) discards: bool,
    /// For the region of an earlier owner that is not of this boot.
    pub(super) ends: LogEnds,
}

impl CopyTask {
    /// True if the rules ask for it again until they see that it is done.
    const fn is_repeated(&self) -> bool {
        matches!(self, Self::Freeze(_) | Self::Promote { .. } | Self::Demote { .. })
    }
}

/// The copy, and what its thread and the driver share.
pub(super) struct CopyShared {
    pub(super) partition: PartitionId,
    pub(super) copy: Partition,
    /// An operator drains it.
    pub(super) is_draining: AtomicBool,
    /// The view in which a drain holds the writers, and has ended before the membership has
    /// decided; and the host to which it is drained, if an operator has named one.
    undecided: Mutex<Option<(ViewNumber, Option<HostId>)>>,
    region: Region,
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
        region: Region,
        inbox: Arc<DriverInbox>,
        notices: Notices,
    ) -> Result<Self> {
        let shared = Arc::new(CopyShared {
            partition,
            copy,
            is_draining: AtomicBool::new(false),
            undecided: Mutex::default(),
            region,
            tasks: Mutex::default(),
            changed: Condvar::new(),
            inbox,
            notices,
        });
        let running = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("ns-copy-{partition}"))
            .spawn(move || {
                let notices = Arc::clone(&running.notices);
                let _told = PanicNotice { thread: "ns-copy", notices };
                running.run();
            })
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
    pub(super) fn undecided(&self) -> Option<(ViewNumber, Option<HostId>)> {
        *locked(&self.undecided)
    }

    pub(super) fn set_undecided(&self, drain: Option<(ViewNumber, Option<HostId>)>) {
        *locked(&self.undecided) = drain;
    }

    /// The writers are refused until the membership has decided, however long that takes.
    pub(super) fn tell_undecided(&self, error: &Error) {
        let reason =
            if let Error::Backend { detail } = error { detail.clone() } else { error.to_string() };
        (self.notices)(&ClusterNotice::DrainUndecided { partition: self.partition, reason });
    }

    fn run(&self) {
        let mut told = None;
        // What cannot be read is told with the facts.
        if self.copy.state().is_ok_and(|state| state.is_copied_file) {
            (self.notices)(&ClusterNotice::CopiedFile { partition: self.partition });
        }
        while !self.is_over() {
            let task = self.next();
            let outcome = task.as_ref().map_or(Ok(()), |task| self.carry_out(task));
            self.tell_stopped_holders();
            self.tell_facts(&mut told, task.is_some());
            if let (Some(task), Err(error)) = (task, outcome) {
                let (partition, reason) = (self.partition, error.to_string());
                (self.notices)(&ClusterNotice::Failed { partition, reason });
                self.postpone(task);
            }
            locked(&self.tasks).present = None;
        }
    }

    fn tell_stopped_holders(&self) {
        let partition = self.partition;
        for stopped in self.copy.take_stopped_holders() {
            (self.notices)(&ClusterNotice::StoppedHolder { partition, stopped });
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

    /// A task that has failed is tried again after a while, unless the rules repeat it or what
    /// follows has ended its purpose.
    fn postpone(&self, task: CopyTask) {
        let tasks = locked(&self.tasks);
        let waited = self.changed.wait_timeout(tasks, LOOK_INTERVAL);
        let mut tasks = waited.unwrap_or_else(PoisonError::into_inner).0;
        let has_ended = |later: &CopyTask| match task {
            CopyTask::Serve(_) => *later == CopyTask::StopServing,
            CopyTask::Follow(_) => *later == CopyTask::StopFollowing,
            CopyTask::Fence(_) => matches!(later, CopyTask::Fence(_)),
            // A host that votes again may be a member again.
            CopyTask::GiveUpReceipts => {
                matches!(later, CopyTask::Serve(_) | CopyTask::Follow(_))
            }
            CopyTask::StopServing
            | CopyTask::StopFollowing
            | CopyTask::EndDrain
            | CopyTask::Freeze(_)
            | CopyTask::Promote { .. }
            | CopyTask::Demote { .. } => false,
        };
        if !task.is_repeated() && !tasks.queue.iter().any(has_ended) {
            tasks.queue.push_front(task);
        }
    }

    fn carry_out(&self, task: &CopyTask) -> Result<()> {
        match task {
            CopyTask::Fence(is_fenced) => self.copy.set_fenced(*is_fenced),
            CopyTask::Serve(view) => self.copy.serve(view.0),
            CopyTask::StopServing => {
                self.copy.stop_serving();
                Ok(())
            }
            CopyTask::StopFollowing => {
                self.copy.stop_following();
                Ok(())
            }
            CopyTask::GiveUpReceipts => self.copy.give_up_receipts(),
            CopyTask::EndDrain => {
                self.copy.release_writers(false)?;
                self.is_draining.store(false, Ordering::Release);
                Ok(())
            }
            CopyTask::Freeze(view) => self.freeze(*view),
            CopyTask::Promote { origin, seal } => {
                let seal = seal.map(|seal| place_of(&seal));
                if seal.is_none() {
                    self.begin_log()?;
                }
                self.copy.promote(origin.0, seal).map(drop)
            }
            CopyTask::Demote { view, seal } => self.demote(*view, *seal),
            CopyTask::Follow(task) => self.follow(task),
        }
    }

    /// A member counts from the first position on, which the declaration of a namespace draws. So
    /// a new partition has one namespace from the beginning.
    fn begin_log(&self) -> Result<()> {
        let schema = Schema { kind: Kind::Value, ..Schema::default() };
        self.region.session()?.namespace(FIRST_NAMESPACE, &schema).map(drop)
    }

    fn freeze(&self, view: ViewNumber) -> Result<()> {
        if let Freeze::Frozen { log, place, .. } = self.copy.freeze(view.0)? {
            let held = log_position(log, place);
            self.inbox.copy(self.partition, CopyInput::Frozen(view, held));
        }
        Ok(())
    }

    fn follow(&self, task: &FollowTask) -> Result<()> {
        let FollowTask { view, name, address, clients, discards, ends } = task;
        let state = self.copy.state()?;
        if !state.is_bound && state.following.is_none() && state.own.origin != 0 {
            self.demote_old(*view, &state, ends)?;
        }
        let clients = Some(clients.as_str());
        let (view, discards) = (view.0, *discards);
        self.copy.follow(&FollowTarget { view, name, address, clients, discards })
    }

    /// An owner's region counts as lost if it is of another boot or in another file, or was
    /// repaired. It becomes an empty copy if the partition has everything that its log had
    /// replicated.
    fn demote_old(&self, view: ViewNumber, state: &PartitionState, ends: &LogEnds) -> Result<()> {
        self.copy.check_disposable()?;
        let place = FollowPosition { position: state.replicated, check: 0 };
        if self.copy.is_of_cluster()? && !ends.have(&log_position(state.own, place)) {
            let detail = format!(
                "the region is that of an earlier owner, and of another boot, in a copy of its \
                 file, or repaired; and an operator may have given up what it has: it had \
                 replicated everything up to position {}. As a copy of the partition it would lose \
                 that. Move its file away, and restart this host",
                state.replicated
            );
            return Err(Error::BadArgument { detail });
        }
        self.demote(view, ends.seal)
    }

    fn demote(&self, view: ViewNumber, seal: Option<LogPosition>) -> Result<()> {
        self.copy.demote(view.0, seal.map(|seal| place_of(&seal))).map(drop)
    }

    /// Tells the driver what the region is, if that has changed or something was done.
    fn tell_facts(&self, told: &mut Option<RegionState>, is_due: bool) {
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

    /// How full the region is.
    pub(super) fn heap_space(&self) -> Result<HeapSpace> {
        self.region.heap_space()
    }

    /// The region's file.
    pub(super) fn path(&self) -> &Path {
        self.region.path()
    }

    /// What the region is at present.
    pub(super) fn facts(&self) -> Result<RegionState> {
        Ok(copy_facts(&self.copy.state()?))
    }
}

/// What the rules are told of a region.
pub(super) fn copy_facts(state: &PartitionState) -> RegionState {
    let (revision, evicting) = state.evicting.unwrap_or_default();
    let record = MemberRecord {
        view: ViewNumber(state.view_seen),
        revision: Revision(revision),
        evicting: (evicting != 0).then_some(HostId(evicting)),
    };
    // What another boot or another file has left may be older than what this host has promised or
    // stored.
    let record = if state.is_bound { record } else { MemberRecord::NEW };
    let (copy, replicated) = (copy_state(state), state.replicated);
    RegionState { copy, record, replicated, lease_until: monotonic(state.lease_bound) }
}

/// What the copy is good for. A region that is not bound is a new one, or one of another boot or in
/// another file.
fn copy_state(state: &PartitionState) -> CopyState {
    if !state.is_bound {
        return CopyState::Empty;
    }
    let Some(Following { state: following, source, applied, reached }) = state.following else {
        return CopyState::Owner { origin: ViewNumber(state.own.origin) };
    };
    match following {
        FollowState::Joining => CopyState::Joining,
        FollowState::Extending => CopyState::Extending,
        // By force: it never was a copy of a moment.
        FollowState::Promoting if source == LogIdentity::default() => CopyState::Joining,
        FollowState::Demoting => CopyState::Demoting,
        FollowState::Full | FollowState::Promoting => {
            let place = FollowPosition { position: reached, check: applied.check };
            CopyState::Follower(log_position(source, place))
        }
    }
}

pub(super) fn now() -> Monotonic {
    monotonic(lease_clock())
}

fn monotonic(time: Duration) -> Monotonic {
    Monotonic(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

pub(super) fn log_position(log: LogIdentity, place: FollowPosition) -> LogPosition {
    let LogIdentity { region: [low, high], incarnation, origin } = log;
    let bytes = u128::from(low) | u128::from(high) << 64;
    LogPosition {
        origin: ViewNumber(origin),
        log: bytes.to_le_bytes(),
        incarnation,
        position: place.position,
        check: place.check,
    }
}

fn place_of(held: &LogPosition) -> (LogIdentity, FollowPosition) {
    (log_of(held), FollowPosition { position: held.position, check: held.check })
}

fn log_of(position: &LogPosition) -> LogIdentity {
    let bytes = u128::from_le_bytes(position.log);
    let [low, high] = [bytes, bytes >> 64].map(|half| {
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = half.to_le_bytes();
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
    });
    let (incarnation, origin) = (position.incarnation, position.origin.0);
    LogIdentity { region: [low, high], incarnation, origin }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_and_its_place_are_the_same_in_both_forms() {
        let log = LogIdentity { region: [3, u64::MAX - 4], incarnation: 5, origin: 6 };
        let held = log_position(log, FollowPosition { position: 7, check: 8 });
        assert_eq!(log_of(&held), log);
        assert_eq!((held.position, held.check, held.origin), (7, 8, ViewNumber(6)));
    }
}
