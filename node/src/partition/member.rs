//! The thread of a member that follows the owner, as long as the driver names one.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::{Region, lease_clock};

use crate::partition::stopped::StoppedHolders;
use crate::peer::applier::Membership;
use crate::peer::follower::follow_as;
use crate::peer::group::{PanicInput, PartitionGroup, PartitionInput};
use crate::peer::{ClientTls, FollowConfig, FollowEvent};

/// The name of the thread.
const THREAD: &str = "ns-member";

/// The longest sleep of the thread between two looks.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// A target that has failed is followed again after this time, unless the driver names another one.
/// A full heap or a damaged message may be gone by then.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerTarget {
    pub(super) view: u64,
    /// The name of the owner, which its certificate has.
    pub(super) name: String,
    pub(super) address: String,
    /// The copy is discarded first, unless it is complete by then.
    pub(super) discards: bool,
}

#[derive(Debug, Default)]
struct WantedOwner {
    target: Option<OwnerTarget>,
    /// Rises with each change of the target.
    change: u64,
    /// True while the thread may apply something.
    is_busy: bool,
    is_over: bool,
}

/// What the thread and the driver share.
pub(super) struct MemberThread {
    host: String,
    tls: Option<ClientTls>,
    stopped: Arc<StoppedHolders>,
    wanted: Mutex<WantedOwner>,
    changed: Condvar,
}

impl fmt::Debug for MemberThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberThread").field("host", &self.host).finish_non_exhaustive()
    }
}

impl MemberThread {
    pub(super) fn new(host: String, tls: Option<ClientTls>, stopped: &Arc<StoppedHolders>) -> Self {
        let (stopped, wanted) = (Arc::clone(stopped), Mutex::new(WantedOwner::default()));
        Self { host, tls, stopped, wanted, changed: Condvar::new() }
    }

    fn wanted(&self) -> MutexGuard<'_, WantedOwner> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'w>(&self, wanted: MutexGuard<'w, WantedOwner>) -> MutexGuard<'w, WantedOwner> {
        let woken = self.changed.wait_timeout(wanted, LOOK_MAX);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Changes what is followed.
    pub(super) fn set(&self, target: Option<OwnerTarget>) {
        let mut wanted = self.wanted();
        // A target that has failed is tried again.
        if wanted.target != target || !wanted.is_busy {
            wanted.target = target;
            wanted.change += 1;
        }
        self.changed.notify_all();
    }

    /// Nothing of a lower view is followed.
    pub(super) fn end_below(&self, view: u64) {
        let mut wanted = self.wanted();
        if wanted.target.as_ref().is_some_and(|target| target.view < view) {
            wanted.target = None;
            wanted.change += 1;
        }
        self.changed.notify_all();
    }

    /// Waits until the thread has given up what it followed before.
    pub(super) fn wait_until_idle(&self) {
        let mut wanted = self.wanted();
        while wanted.is_busy && !wanted.is_over {
            wanted = self.wait(wanted);
        }
    }

    pub(super) fn end(&self) {
        self.wanted().is_over = true;
        self.changed.notify_all();
    }

    /// The next target, with the number of the change. `None`: it is over.
    fn next(&self, done: Option<u64>) -> Option<(OwnerTarget, u64)> {
        let mut wanted = self.wanted();
        wanted.is_busy = false;
        self.changed.notify_all();
        loop {
            if wanted.is_over {
                return None;
            }
            if Some(wanted.change) != done
                && let Some(target) = wanted.target.clone()
            {
                wanted.is_busy = true;
                return Some((target, wanted.change));
            }
            wanted = self.wait(wanted);
        }
    }

    /// After a target has failed: waits for another one, or until it may be tried again.
    fn pause(&self, change: u64) {
        let mut wanted = self.wanted();
        wanted.is_busy = false;
        self.changed.notify_all();
        let end = lease_clock() + RETRY_AFTER;
        while wanted.change == change && !wanted.is_over && lease_clock() < end {
            wanted = self.wait(wanted);
        }
    }

    fn is_current(&self, change: u64) -> bool {
        let wanted = self.wanted();
        wanted.change == change && !wanted.is_over
    }
}

/// Starts the thread.
pub(super) fn start(
    member: &Arc<MemberThread>,
    region: &Region,
    group: &Arc<PartitionGroup>,
) -> Result<JoinHandle<()>> {
    let (member, region, group) = (Arc::clone(member), region.clone(), Arc::clone(group));
    let run = move || {
        let _told = PanicInput { thread: THREAD, inputs: Arc::clone(&group.inputs) };
        let mut done = None;
        while let Some((target, change)) = member.next(done) {
            done = Some(change);
            if !follow_target(&member, (&region, &group), (&target, change)) {
                member.pause(change);
                done = None;
            }
        }
    };
    std::thread::Builder::new().name(THREAD.to_owned()).spawn(run).map_err(|error| {
        let detail = format!("cannot start a thread: {error}");
        Error::System { detail, errno: error.raw_os_error().unwrap_or(0) }
    })
}

/// False if it has failed.
fn follow_target(
    member: &MemberThread,
    (region, group): (&Region, &PartitionGroup),
    (target, change): (&OwnerTarget, u64),
) -> bool {
    let view = target.view;
    let mut on_event = |event: &FollowEvent<'_>| match event {
        FollowEvent::Disconnected { reason, .. } => {
            group.tell(PartitionInput::OwnerLost { view, reason: (*reason).to_owned() });
        }
        FollowEvent::Connected { .. } | FollowEvent::Joined { .. } | FollowEvent::Progress(_) => {}
    };
    let mut config = FollowConfig {
        source: &target.address,
        tls: member.tls.as_ref(),
        certificate_name: Some(&target.name),
        name: &member.host,
        discards: target.discards,
        on_event: &mut on_event,
        is_over: &|| !member.is_current(change),
    };
    let membership = Some(Membership { group, view });
    let followed =
        follow_as(region, &mut config, membership, Some(member.stopped.hook_of_applier()));
    match followed {
        Ok(()) => true,
        Err(error) => {
            group.tell(PartitionInput::FollowFailed { view, reason: error.to_string() });
            false
        }
    }
}
