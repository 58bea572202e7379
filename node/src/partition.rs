//! The copy of one partition on this host: what the driver of its group asks for, done with the
//! region and the connections (`docs/decisions/026-cluster.md`).
//!
//! | the host | calls |
//! |---|---|
//! | follows the owner | [`Partition::follow`], [`Partition::freeze`] |
//! | becomes the owner | [`Partition::promote`], [`Partition::serve`] |
//! | is the owner | [`Partition::set_replicated`], [`Partition::set_lease`] |
//! | gives it away | [`Partition::hold_writers`], [`Partition::release_writers`] |
//! | is the owner no longer | [`Partition::demote`], then [`Partition::follow`] |
//!
//! What happens on the connections comes as [`PartitionInput`](crate::PartitionInput), on their
//! threads: there, nothing that waits for a connection may be called ([`Partition::promote`],
//! [`Partition::demote`], [`Partition::stop_following`]). Each call can be repeated after a kill of
//! the process, and then completes what was begun.

mod fence;
mod member;
mod state;
mod stopped;
mod watch;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::{
    Demotion, FollowPosition, FollowState, Following, LogIdentity, NamespaceRules, Region, Session,
    Takeover, WhenFull,
};
use nearstate_wire::SharedSettings;

use self::fence::FenceOrders;
use self::member::{MemberThread, OwnerTarget};
pub use self::state::PartitionState;
pub use self::stopped::StoppedHolder;
use self::stopped::StoppedHolders;
use self::watch::LogWatch;
use crate::peer::ClientTls;
use crate::peer::events::{FollowerStats, PeerEvent, SourceConfig};
use crate::peer::group::{CatchUp, PartitionGroup, PartitionInputs};
use crate::peer::served::PeerShared;
use crate::peer::source::PeerListener;

/// The copy of a partition.
pub struct PartitionOptions {
    /// The id of the cluster.
    pub cluster_id: [u8; 16],
    /// The number of the partition.
    pub partition: u32,
    /// The name of this host in the cluster.
    pub host: String,
    /// How long a promise of a member holds.
    pub lease: Duration,
    /// The settings that all hosts share. Members with other ones are refused.
    pub settings: SharedSettings,
    /// Which namespaces are replicated, and how.
    pub namespaces: NamespaceRules,
    /// The names of the hosts that may follow. Others are refused.
    pub members: BTreeSet<String>,
    /// A process that is stopped while it holds a lock for which a change of the role, or the copy,
    /// waits may be killed.
    pub kills_stopped: bool,
    /// TLS of connections to the owner.
    pub tls: Option<ClientTls>,
    /// Called on the threads of the connections, for the log of the host.
    pub on_event: fn(&PeerEvent<'_>),
    /// Called on the threads of the connections, for the driver.
    pub inputs: PartitionInputs,
}

impl std::fmt::Debug for PartitionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionOptions")
            .field("partition", &self.partition)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// What a host answers that is to freeze its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// From now on nothing of a lower view is applied, and in an owner's region nothing is written.
    /// It has everything of a log up to a position.
    Frozen {
        /// The log.
        log: LogIdentity,
        /// The position up to which the region has everything, and the check value of the last
        /// entry up to there.
        place: FollowPosition,
        /// True if it is the region's own log.
        is_own: bool,
    },
    /// The copy has not all records of a moment, or is none: it is not reported. It is frozen all
    /// the same.
    NotFull,
}

/// Which owner is followed.
#[derive(Clone, Copy, Debug)]
pub struct FollowTarget<'t> {
    /// The view of the connection.
    pub view: u64,
    /// The name of the owner, which its certificate has.
    pub name: &'t str,
    /// `host:port` of the owner's listener.
    pub address: &'t str,
    /// Where clients reach the owner.
    pub clients: Option<&'t str>,
    /// The copy is discarded first, unless it is complete by then.
    pub discards: bool,
}

/// The copy of a partition on this host.
#[derive(Debug)]
pub struct Partition {
    shared: Arc<PeerShared>,
    group: Arc<PartitionGroup>,
    session: Mutex<Session>,
    /// For what takes no time: a promotion holds the other one for seconds.
    words: Mutex<Session>,
    fence: Mutex<FenceOrders>,
    /// The end of the lease that an earlier process has left.
    earlier_lease: Duration,
    member: Arc<MemberThread>,
    thread: Option<JoinHandle<()>>,
    watch: LogWatch,
    stopped: Arc<StoppedHolders>,
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.watch_log(None);
        self.stop_serving();
        self.shared.is_over.store(true, Ordering::Release);
        self.member.end();
        // A failure is one of the region, whose writers it stops as well.
        let _ = fence::refuse_writers(&self.session());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Partition {
    /// Opens the copy. It follows no host and serves none yet.
    ///
    /// # Errors
    /// `System`: no thread; those of a session.
    pub fn open(config: PartitionOptions, region: &Region) -> Result<Self> {
        let PartitionOptions { cluster_id, partition, host, lease, namespaces, .. } = config;
        let stopped = StoppedHolders::new(config.kills_stopped);
        let lease = (lease, config.settings);
        let group = Arc::new(PartitionGroup::new((cluster_id, partition), lease, config.inputs));
        let source = SourceConfig {
            namespaces,
            keeps: true,
            followers_max: config.members.len(),
            members: config.members,
            name: host.clone(),
            on_event: config.on_event,
        };
        let shared = PeerShared::new(source, region, region.session()?, Some(Arc::clone(&group)));
        let member = Arc::new(MemberThread::new(host, config.tls, &stopped));
        let thread = member::start(&member, region, &group)?;
        let shared = Arc::new(shared);
        let watch = LogWatch::start(&shared)?;
        // Only this session, which changes the role, and the one that applies kill.
        let session = region.session()?;
        session.set_stall_hook(Some(stopped.hook()));
        session.bind_file(cluster_id)?;
        // Before the host owns the partition as well: a new namespace of a copy is the owner's.
        session.set_namespace_rules(&shared.config.namespaces)?;
        let earlier_lease = fence::end_lease(&session)?;
        Ok(Self {
            shared,
            group,
            session: Mutex::new(session),
            words: Mutex::new(region.session()?),
            fence: Mutex::default(),
            earlier_lease,
            member,
            thread: Some(thread),
            watch,
            stopped,
        })
    }

    /// Members connect to this listener.
    ///
    /// # Errors
    /// `System`: no thread.
    pub fn listen_with(&self, listener: &PeerListener) -> Result<()> {
        listener.add(&self.shared)
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self) -> MutexGuard<'_, Session> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was done about processes that hold locks for which changes of the role, or the copy,
    /// have waited, since the last call.
    pub fn take_stopped_holders(&self) -> Vec<StoppedHolder> {
        self.stopped.take()
    }

    /// Checks that the region may become a copy of the partition ([`Session::check_disposable`]).
    ///
    /// # Errors
    /// `BadArgument`: it has records of its own, and what to do; `Damaged`.
    pub fn check_disposable(&self) -> Result<()> {
        self.words().check_disposable(self.group.cluster_id)
    }

    /// The members that are connected to this host.
    pub fn members(&self) -> Vec<FollowerStats> {
        self.shared.follower_stats()
    }

    /// Follows the owner at `address` (`host:port` of its listener) in a view, until it is told
    /// otherwise; `discards`: the copy is discarded first. Refused writers learn `clients`, where
    /// clients reach the owner. A copy that cannot continue joins.
    ///
    /// # Errors
    /// `BadArgument`: a higher view was seen, or the region is an owner's, or has records of no
    /// cluster; those of [`Partition::demote`].
    pub fn follow(&self, target: &FollowTarget<'_>) -> Result<()> {
        let FollowTarget { view, name, address, clients, discards } = *target;
        self.stop_serving();
        self.group.end_promotion();
        let session = self.session();
        see(&session, view)?;
        match session.following()?.map(|following| following.state) {
            None if session.log_identity()?.origin != 0 => {
                return refused("the region is an owner's: demote it before it follows");
            }
            // A promotion or a demotion was killed, and another host is the owner.
            Some(FollowState::Promoting | FollowState::Demoting) => {
                let is_bound = session.is_bound(self.group.cluster_id)?;
                self.group.unsettle();
                if !is_bound || !session.abandon_promotion()? {
                    session.demote(None)?;
                }
            }
            Some(FollowState::Joining | FollowState::Extending | FollowState::Full) | None => {}
        }
        session.check_disposable(self.group.cluster_id)?;
        session.set_owner_address(clients)?;
        self.group.clear_floor();
        let (name, address) = (name.to_owned(), address.to_owned());
        self.member.set(Some(OwnerTarget { view, name, address, discards }));
        Ok(())
    }

    /// The stamp of a position message may be answered, in this view, from now on.
    pub fn answer(&self, view: u64, stamp: u64) {
        self.group.answer(view, stamp);
    }

    /// Follows no host from now on. Waits until what is applied at present is applied.
    pub fn stop_following(&self) {
        self.member.set(None);
        self.member.wait_until_idle();
    }

    /// Freezes the copy for a report: the view is stored in the region, then nothing of a lower one
    /// is applied, then the position is read. In an owner's region writers are fenced, and those in
    /// their commit end it.
    ///
    /// # Errors
    /// `BadArgument`: a higher view was seen; `Stalled`: a stopped process is in a commit;
    /// `Damaged`, `Forked`.
    pub fn freeze(&self, view: u64) -> Result<Freeze> {
        let (session, following) = {
            let _turn = self.group.turn_to_freeze();
            let session = self.session();
            see(&session, view)?;
            let following = session.following()?;
            (session, following)
        };
        // A connection of a higher view may be what is followed already.
        self.member.end_below(view);
        let Some(Following { state, source, applied, reached }) = following else {
            self.stop_serving();
            session.set_fenced(true)?;
            session.drain_logged()?;
            // Nothing is undecided, so the end of the log is the position of its last entry.
            let (log, check) = (session.log_identity()?, session.last_entry()?.check);
            let place = FollowPosition { position: session.log_tail_position()?, check };
            return Ok(Freeze::Frozen { log, place, is_own: true });
        };
        // A promotion that was killed has fenced writers: the copy is as it was.
        let is_whole = matches!(state, FollowState::Full | FollowState::Promoting)
            && source != LogIdentity::default()
            && session.is_bound(self.group.cluster_id)?;
        Ok(if is_whole {
            let place = FollowPosition { position: reached, check: applied.check };
            Freeze::Frozen { log: source, place, is_own: false }
        } else {
            Freeze::NotFull
        })
    }

    /// Makes the frozen copy the owner's region: its namespaces are logged, then they may be
    /// written. Members of the old log get what they lack. Writers are fenced until
    /// [`Partition::set_fenced`], so that the driver says when they begin. `seal`: what the copy
    /// must hold, exactly; `None`: the region is an ordinary one, or an incomplete copy of which no
    /// better one is left, and its log becomes that of the partition. Repeated after a kill.
    ///
    /// # Errors
    /// `BadArgument`: a higher view was seen, the region is no copy, or it does not hold the seal;
    /// those of [`Session::promote_logged`].
    pub fn promote(
        &self,
        view: u64,
        seal: Option<(LogIdentity, FollowPosition)>,
    ) -> Result<Option<Takeover>> {
        self.stop_following();
        let session = self.session();
        see(&session, view)?;
        // Members that wait for the end learn how far it is.
        self.group.begin_promotion(view, session.promotion_steps());
        let promoted = self.promote_in(&session, view, seal);
        if promoted.is_err() {
            self.group.fail_promotion(view);
        }
        promoted
    }

    fn promote_in(
        &self,
        session: &Session,
        view: u64,
        seal: Option<(LogIdentity, FollowPosition)>,
    ) -> Result<Option<Takeover>> {
        // Before a namespace can be read as the owner's: this host has no lease in this view.
        session.set_owner_lease(Duration::ZERO)?;
        session.set_owner_address(None)?;
        self.group.clear_floor();
        session.set_fenced(true)?;
        let Some((log, place)) = seal else {
            match session.following()?.map(|following| following.state) {
                // The region of an owner that was repaired, or of another boot: by force.
                None if session.log_identity()?.origin != 0
                    && self.is_of_cluster()?
                    && !session.is_bound(self.group.cluster_id)? =>
                {
                    session.continue_partition(view)?;
                }
                None => session.begin_partition(view)?,
                // By force: no other copy is left. What it has becomes the partition. The view
                // first, so that a promotion that is killed is repeated.
                Some(state) => {
                    match state {
                        FollowState::Joining | FollowState::Extending => session.leave_source()?,
                        FollowState::Demoting => {
                            session.demote(None)?;
                            // A demotion ends with writers that are admitted.
                            session.set_fenced(true)?;
                        }
                        FollowState::Promoting => {}
                        FollowState::Full => {
                            return refused("the region follows another one, and no seal is given");
                        }
                    }
                    session.continue_partition(view)?;
                    session.promote_incomplete(WhenFull::Refuse)?;
                }
            }
            session.bind(self.group.cluster_id)?;
            return Ok(None);
        };
        let known = session.takeover()?.filter(|takeover| {
            takeover.old == log
                && takeover.seal.check == place.check
                && takeover.seal.position <= place.position
        });
        match session.following()? {
            None if known.is_some_and(|takeover| takeover.own.origin == view) => return Ok(known),
            // The owner of the log itself, by an accepted loss: everything that was sealed is here.
            None if has_sealed(session, view, (log, place.position))? => {
                session.continue_partition(view)?;
                session.bind(self.group.cluster_id)?;
                return Ok(None);
            }
            Some(known)
                if known.source == log
                    && (known.reached, known.applied.check) == (place.position, place.check) => {}
            Some(_) | None => return refused("the copy does not hold exactly what was sealed"),
        }
        let takeover = session.promote_logged(view, WhenFull::Refuse, false)?;
        let kept = std::mem::take(&mut *self.group.kept());
        let numbers = session.taken_over_numbers()?;
        self.group.set_catch_up(Some(CatchUp { takeover, numbers, kept }));
        Ok(Some(takeover))
    }

    /// Serves members in a view from now on, and adds the namespaces of the configuration to the
    /// log. Connections of other views end.
    ///
    /// # Errors
    /// `BadArgument`: a higher view was seen, or the region follows another one; `Full`: no room
    /// for the log; `Damaged`, `Forked`.
    pub fn serve(&self, view: u64) -> Result<()> {
        {
            let session = self.session();
            see(&session, view)?;
            if session.following()?.is_some() {
                return refused("the region follows another one: promote it before it serves");
            }
            session.begin_owner_namespaces(&self.shared.config.namespaces)?;
        }
        self.shared.declare()?;
        self.group.set_served_view(view);
        self.group.end_promotion();
        Ok(())
    }

    /// The driver works at this time of the clock of leases: members learn until when it has heard
    /// their answers.
    pub fn set_worked_at(&self, at: Duration) {
        self.group.set_worked_at(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The rules count this stamp as the last one that a member has sent back: members learn that
    /// they are heard up to there.
    pub fn set_counted(&self, host: &str, stamp: u64) {
        self.group.set_counted(host, stamp);
    }

    /// Serves no member from now on. Connections end.
    pub fn stop_serving(&self) {
        self.group.set_served_view(0);
        self.watch.wait_until_idle();
    }

    /// Everything up to a position of the own log is replicated. It never falls.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_replicated(&self, position: u64) -> Result<()> {
        self.words().acknowledge_to(position)
    }

    /// Says from now on, as [`PartitionInput::LogWritten`](crate::PartitionInput::LogWritten) with
    /// this view, which entries of the own log are decided, or says it no more. Returns at once. A
    /// log that cannot be read is told once, as
    /// [`PartitionInput::FollowFailed`](crate::PartitionInput::FollowFailed), and tried again.
    pub fn watch_log(&self, view: Option<u64>) {
        if let Some(view) = view {
            self.group.watch_in(view);
        }
        self.watch.order(view);
    }

    /// Every full member has applied the own log up to a position: the log may forget that.
    pub fn raise_floor(&self, position: u64) {
        self.group.raise_floor(position);
    }

    /// Stores the view that was seen, and that the owner does not count a member any more
    /// (`revision`, number of the host).
    ///
    /// # Errors
    /// `BadArgument`: a view or revision that is too high; `Damaged`, `Forked`.
    pub fn store_record(&self, view: u64, evicting: Option<(u64, u16)>) -> Result<()> {
        let session = self.words();
        session.see_view(view)?;
        session.set_evicting(evicting)
    }

    /// The region is an older one of this host: it counts as lost, also for later processes.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn give_up_region(&self) -> Result<()> {
        self.words().unbind()
    }

    /// This host owns the partition until this time of the clock of leases.
    ///
    /// # Errors
    /// `System`: the kernel does not tell which boot this is; `Damaged`, `Forked`.
    pub fn set_lease(&self, until: Duration) -> Result<()> {
        self.words().set_owner_lease(until)
    }

    /// No step of the wall clock of this host moves the clock of expiry from now on, which comes
    /// nearer to it by at most so many milliseconds. Called again and again: a step is corrected
    /// when it is called next.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn keep_clock(&self, most_ms: u64) -> Result<()> {
        self.words().keep_clock(most_ms).map(drop)
    }

    /// The host has left the group: nothing will decide what of the region's own log was not
    /// replicated. Writers are fenced, and nothing is followed.
    ///
    /// # Errors
    /// Those of [`Session::give_up_receipts`].
    pub fn give_up_receipts(&self) -> Result<()> {
        let session = self.session();
        if session.abandon_promotion()? {
            session.set_fenced(true)?;
        }
        session.give_up_receipts().map(drop)
    }

    /// Makes the owner's region a copy, because another host owns the partition in `view`. `seal`:
    /// the end of the last sealed log, if it is known. An owner's region whose log ends there keeps
    /// its records; any other one, and a whole copy that may hold what the partition does not, is
    /// an empty copy afterwards. Repeated after a kill; a copy that is joining stays as it is.
    ///
    /// # Errors
    /// `BadArgument`: a higher view was seen; those of [`Session::demote`].
    pub fn demote(
        &self,
        view: u64,
        seal: Option<(LogIdentity, FollowPosition)>,
    ) -> Result<Demotion> {
        self.stop_serving();
        self.group.end_promotion();
        self.stop_following();
        // No namespace is added to the log meanwhile.
        let (_, declared) = &mut *self.shared.declared();
        declared.forget();
        let session = self.session();
        see(&session, view)?;
        session.set_owner_lease(Duration::ZERO)?;
        // What other hosts lack is not replicated before the copy counts again.
        self.group.unsettle();
        let following = session.following()?;
        if let (Some(copy), Some(seal)) = (following, seal)
            && is_sealed(&copy, seal)
        {
            // The order is repeated: it has become that copy, or a kill has left it half-way.
            session.demote_to_copy(seal.0, seal.1)?;
            return Ok(Demotion::default());
        }
        match following.map(|following| following.state) {
            Some(FollowState::Full) => {
                // It is a copy of no log that exists, until it joins one.
                session.follow()?.begin(LogIdentity::default())?;
                return Ok(Demotion::default());
            }
            Some(FollowState::Joining | FollowState::Extending) => return Ok(Demotion::default()),
            Some(FollowState::Demoting | FollowState::Promoting) | None => {}
        }
        session.set_fenced(true)?;
        self.group.set_catch_up(None);
        if let Some((log, place)) = seal
            && session.is_bound(self.group.cluster_id)?
            && session.demote_to_copy(log, place)?
        {
            return Ok(Demotion::default());
        }
        let own = session.log_identity()?;
        session.demote(seal.filter(|(log, _)| *log == own).map(|(_, place)| place.position))
    }
}

/// Does a copy have what was sealed, and nothing behind it?
fn is_sealed(copy: &Following, (log, place): (LogIdentity, FollowPosition)) -> bool {
    let known = (copy.source, copy.reached, copy.applied.check);
    copy.state == FollowState::Full && known == (log, place.position, place.check)
}

/// True if the region's own log has everything up to a seal of it, or has gone on from there in
/// this view. Between the two it has no origin for a moment.
fn has_sealed(session: &Session, view: u64, (log, seal): (LogIdentity, u64)) -> Result<bool> {
    let own = session.log_identity()?;
    let goes_on = own.origin == view || own.origin == 0 && own.incarnation >= log.incarnation;
    let is_it = own == log || own.region == log.region && goes_on;
    Ok(is_it && session.log_tail_position()? >= seal)
}

fn refused<T>(detail: &str) -> Result<T> {
    Err(Error::BadArgument { detail: detail.to_owned() })
}

/// Stores that a view was seen. A lower one than before is refused.
fn see(session: &Session, view: u64) -> Result<()> {
    let highest = session.see_view(view)?;
    if highest > view {
        let detail = format!("view {view} has ended: this host has seen view {highest}");
        return Err(Error::BadArgument { detail });
    }
    Ok(())
}
