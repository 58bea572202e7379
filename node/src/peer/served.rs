//! What the threads of a source share: its followers, and for which region and group they are.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_store::{
    AcknowledgedPlace, FollowPosition, LogIdentity, Region, Session, lease_clock, now_ms_coarse,
};
use nearstate_wire::{PartitionPlace, RefusalReason, SettingsSummary};

use super::declared::DeclaredNamespaces;
use super::events::{FollowerStats, PeerEvent, SourceConfig};
use super::group::{PartitionGroup, PartitionInput};
use super::limits::{LEFT_MAX, UNGREETED_MAX, UNGREETED_OF_ADDRESS_MAX};
use super::stopwatch::Stopwatch;
use super::ungreeted::{UngreetedLimits, UngreetedList};
use crate::tls::Tls;

/// A region whose followers are served.
#[derive(Debug)]
pub(crate) struct PeerShared {
    pub(crate) config: SourceConfig,
    pub(crate) region: Region,
    /// In a cluster.
    pub(crate) group: Option<Arc<PartitionGroup>>,
    pub(crate) is_over: AtomicBool,
    followers: Mutex<Vec<Arc<Served>>>,
    /// Followers that have left, for a log that keeps entries: name, last position, and when.
    left: Mutex<Vec<(String, u64, Stopwatch)>>,
    /// What each member has acknowledged of which log when its last connection ended.
    places: Mutex<BTreeMap<String, (LogIdentity, AcknowledgedPlace)>>,
    /// Held by the thread that releases the log, with up to where it was released last.
    released: Mutex<Option<(u64, u64)>>,
    /// The namespaces that are logged, and the session that adds others.
    pub(crate) declared: Mutex<(Session, DeclaredNamespaces)>,
}

/// Lists a follower as long as it is served.
pub(super) struct Listed<'s>(pub(super) &'s PeerShared, pub(super) Arc<Served>);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let Self(shared, served) = self;
        shared.followers().retain(|one| !Arc::ptr_eq(one, served));
        if shared.config.keeps && !served.is_joining.load(Ordering::Relaxed) {
            let position = served.acknowledged.load(Ordering::Relaxed);
            shared.left().push((served.name.clone(), position, Stopwatch::start()));
        }
    }
}

/// A follower that is served.
#[derive(Debug)]
pub(crate) struct Served {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    /// In a group, the number of the connection, from when it is listed.
    pub(super) connection: AtomicU64,
    pub(super) is_joining: AtomicBool,
    pub(super) acknowledged: AtomicU64,
    pub(super) tail: AtomicU64,
    pub(super) acknowledged_ms: AtomicU64,
    /// Its last entry, and how far it is the last one. Stored before the position.
    pub(super) place: Mutex<Option<AcknowledgedPlace>>,
    /// The same moment by the clock of leases.
    pub(super) acknowledged_ns: AtomicU64,
    /// The number of its acknowledgements.
    pub(super) answers: AtomicU64,
    /// Its host has connected again: this connection ends.
    pub(super) is_replaced: AtomicBool,
    /// The log up to here was sent.
    pub(super) sent: AtomicU64,
}

impl Served {
    pub(super) fn new(name: String, address: SocketAddr) -> Self {
        Self {
            name,
            address,
            connection: AtomicU64::new(0),
            is_joining: AtomicBool::new(true),
            acknowledged: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            acknowledged_ms: AtomicU64::new(now_ms_coarse()),
            place: Mutex::default(),
            acknowledged_ns: AtomicU64::new(lease_ns()),
            answers: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
            sent: AtomicU64::new(0),
        }
    }

    /// Stored before the position that it is about.
    pub(super) fn set_place(&self, place: Option<AcknowledgedPlace>) {
        *locked(&self.place) = place;
    }

    /// The log behind this position is held for the follower.
    fn held(&self) -> u64 {
        let is_joining = self.is_joining.load(Ordering::Relaxed);
        let position = if is_joining { &self.sent } else { &self.acknowledged };
        position.load(Ordering::Relaxed)
    }
}

/// The last entry of the log up to a position, if one of these places tells it: of those that have
/// everything up to there, each one whose entry is not behind it has the same.
fn last_entry(places: &[AcknowledgedPlace], upto: u64) -> Option<FollowPosition> {
    let entries = places.iter().filter(|place| place.position >= upto).map(|place| place.entry);
    entries.min_by_key(|entry| entry.position).filter(|entry| entry.position <= upto)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock of leases, in nanoseconds.
pub(super) fn lease_ns() -> u64 {
    nanos(lease_clock())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerShared {
    pub(crate) fn new(
        config: SourceConfig,
        region: &Region,
        session: Session,
        group: Option<Arc<PartitionGroup>>,
    ) -> Self {
        Self {
            config,
            region: region.clone(),
            group,
            is_over: AtomicBool::new(false),
            followers: Mutex::new(Vec::new()),
            left: Mutex::new(Vec::new()),
            places: Mutex::new(BTreeMap::new()),
            released: Mutex::default(),
            declared: Mutex::new((session, DeclaredNamespaces::default())),
        }
    }

    pub(crate) fn followers(&self) -> MutexGuard<'_, Vec<Arc<Served>>> {
        locked(&self.followers)
    }

    fn left(&self) -> MutexGuard<'_, Vec<(String, u64, Stopwatch)>> {
        locked(&self.left)
    }

    pub(crate) fn declared(&self) -> MutexGuard<'_, (Session, DeclaredNamespaces)> {
        locked(&self.declared)
    }

    /// The followers that are served.
    pub(crate) fn follower_stats(&self) -> Vec<FollowerStats> {
        let of = |one: &Arc<Served>| FollowerStats {
            name: one.name.clone(),
            address: one.address,
            is_joining: one.is_joining.load(Ordering::Relaxed),
            acknowledged: one.acknowledged.load(Ordering::Relaxed),
            tail: one.tail.load(Ordering::Relaxed),
            acknowledged_ms: one.acknowledged_ms.load(Ordering::Relaxed),
        };
        self.followers().iter().map(of).collect()
    }

    /// Adds the namespaces of the configuration to the log.
    pub(crate) fn declare(&self) -> nearstate_model::Result<()> {
        let (session, declared) = &mut *self.declared();
        declared.update(session, &self.config)
    }

    /// The same, unless the host has no lease, or gives the partition away: what its log gets then
    /// is not in the partition.
    pub(crate) fn declare_later(&self) -> nearstate_model::Result<()> {
        let (session, declared) = &mut *self.declared();
        if session.is_fenced()? { Ok(()) } else { declared.update(session, &self.config) }
    }

    /// The connection of a host, if it has one that is not being replaced.
    pub(super) fn connection_of(&self, name: &str) -> Option<Arc<Served>> {
        let followers = self.followers();
        let is_it =
            |one: &&Arc<Served>| one.name == name && !one.is_replaced.load(Ordering::Relaxed);
        followers.iter().find(is_it).map(Arc::clone)
    }

    /// Lists a follower. False if that would be one too many, or the second one of a member. The
    /// connection gets its number here: one that replaces another one has a higher number, however
    /// late either of them says that it is connected.
    pub(super) fn list(&self, served: &Arc<Served>) -> bool {
        let mut followers = self.followers();
        let present = || followers.iter().filter(|one| !one.is_replaced.load(Ordering::Relaxed));
        let is_second = self.group.is_some() && present().any(|one| one.name == served.name);
        if is_second || present().count() >= self.config.followers_max {
            return false;
        }
        if let Some(group) = &self.group {
            served.connection.store(group.next_connection(), Ordering::Relaxed);
        }
        followers.push(Arc::clone(served));
        true
    }

    /// A member's connection has ended: the next one continues where it has acknowledged the log.
    pub(super) fn remember(&self, name: &str, log: LogIdentity, place: AcknowledgedPlace) {
        if self.group.is_some() {
            locked(&self.places).insert(name.to_owned(), (log, place));
        }
    }

    /// What a member has acknowledged of a log.
    pub(super) fn remembered(&self, name: &str, log: LogIdentity) -> Option<AcknowledgedPlace> {
        let places = locked(&self.places);
        places.get(name).filter(|(of, _)| *of == log).map(|(_, place)| *place)
    }

    /// A follower has come back.
    pub(super) fn has_returned(&self, name: &str) {
        self.left().retain(|(left, _, _)| left != name);
    }

    /// The position up to which no follower needs the log: of those that are served, and of full
    /// ones that have left lately. A follower that joins needs what it was not sent. Then that of
    /// the full ones alone, to which a full log may be forgotten. `own`: up to there the caller's
    /// follower needs it no longer.
    pub(super) fn releasable(&self, own: u64) -> (u64, u64) {
        let mut left = self.left();
        left.retain(|(_, _, since)| since.elapsed() < LEFT_MAX);
        let followers = self.followers();
        let full = followers.iter().filter(|one| !one.is_joining.load(Ordering::Relaxed));
        let positions = left.iter().map(|(_, position, _)| *position);
        let counted = full.map(|one| one.held()).chain(positions).min();
        let joining = followers.iter().map(|one| one.held()).min();
        let least = joining.into_iter().chain(counted).fold(own, u64::min);
        (least, counted.unwrap_or(least))
    }

    /// In a cluster: the position up to which the log may be forgotten. What the members that count
    /// have is not enough: one that joins or catches up gets what is written meanwhile from the
    /// log, and would begin again without it. A follower that has acknowledged and is silent for
    /// two leases is not waited for. One that joins may be silent for longer, while it discards
    /// what it had, or indexes what it has got. When the log is full, writers go on without it.
    fn member_floor(&self) -> u64 {
        self.floor_of(|one| one.acknowledged.load(Ordering::Relaxed) == 0)
    }

    /// The least of the driver's floor and what followers hold that are heard, or exempt.
    fn floor_of(&self, is_exempt: impl Fn(&Served) -> bool) -> u64 {
        let Some(group) = &self.group else { return 0 };
        // A clock that no operator sets.
        let since = lease_ns().saturating_sub(nanos(group.lease).saturating_mul(2));
        let held = |one: &Arc<Served>| {
            let is_heard = one.acknowledged_ns.load(Ordering::Relaxed) >= since;
            (is_heard || is_exempt(one)).then(|| one.held())
        };
        let least = self.followers().iter().filter_map(held).min();
        least.map_or(group.floor(), |least| least.min(group.floor()))
    }

    /// In a cluster: as [`PeerShared::releasable`]. While the own copy suffices, one that is heard
    /// counts here: otherwise it would lose the race with writers, and one copy would suffice on.
    pub(crate) fn releasable_to_members(&self) -> (u64, u64) {
        (self.member_floor(), self.counted_floor())
    }

    /// In a cluster: releases the log up to [`PeerShared::releasable_to_members`], or to the last
    /// entry before. The region names that entry. So a member whose last one it is continues after
    /// a restart of this process, which remembers no places. `watched`: what this host itself has
    /// read, if no member has to.
    pub(crate) fn release_to_members(
        &self,
        session: &Session,
        watched: Option<AcknowledgedPlace>,
    ) -> nearstate_model::Result<()> {
        let mut released = locked(&self.released);
        let (position, counted) = self.releasable_to_members();
        if *released == Some((position, counted)) {
            return Ok(());
        }
        let log = session.log_identity()?;
        let mut places: Vec<AcknowledgedPlace> = watched.into_iter().collect();
        let served = self.followers();
        places.extend(served.iter().filter_map(|one| *locked(&one.place)));
        drop(served);
        let left = locked(&self.places);
        places.extend(left.values().filter(|(of, _)| *of == log).map(|(_, place)| *place));
        drop(left);
        let last = last_entry(&places, position);
        let end = |last: Option<FollowPosition>, upto: u64| last.map_or(upto, |last| last.position);
        let released_to = (end(last, position), end(last_entry(&places, counted), counted));
        session.release_behind(last, released_to)?;
        *released = Some((position, counted));
        Ok(())
    }

    /// What members are told: up to there all that count have the log. The driver of an owner whose
    /// copy suffices counts no follower.
    pub(super) fn counted_floor(&self) -> u64 {
        match &self.group {
            Some(group) if !group.is_watched() => group.floor(),
            Some(_) | None => self.floor_of(|_| false),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// True while followers are served: in a cluster, while this host owns the partition.
    pub(super) fn is_serving(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.served_view() != 0)
    }

    pub(crate) fn emit(&self, event: &PeerEvent<'_>) {
        (self.config.on_event)(event);
    }
}

/// The regions that the connections of a host are for.
#[derive(Debug)]
pub(crate) struct PeerRouter {
    pub(crate) tls: Option<Tls>,
    pub(crate) on_event: fn(&PeerEvent<'_>),
    pub(crate) is_over: AtomicBool,
    /// All regions are served. Until then a hello for another one comes too early.
    pub(crate) is_complete: AtomicBool,
    /// Connections whose hello was not admitted yet.
    pub(super) ungreeted: Arc<UngreetedList>,
    pub(crate) served: Mutex<Vec<Arc<PeerShared>>>,
}

impl PeerRouter {
    pub(crate) fn new(tls: Option<Tls>, on_event: fn(&PeerEvent<'_>)) -> Self {
        Self {
            tls,
            on_event,
            is_over: AtomicBool::new(false),
            is_complete: AtomicBool::new(false),
            ungreeted: Arc::default(),
            served: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn served(&self) -> MutexGuard<'_, Vec<Arc<PeerShared>>> {
        locked(&self.served)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The most connections whose hello was not admitted yet.
    pub(super) fn ungreeted_limits(&self) -> UngreetedLimits {
        let followers: usize = self.served().iter().map(|one| one.config.followers_max).sum();
        UngreetedLimits {
            of_address: UNGREETED_OF_ADDRESS_MAX + followers,
            all: UNGREETED_MAX + followers,
        }
    }

    /// The region that a hello is for.
    pub(super) fn find(
        &self,
        place: PartitionPlace,
        settings: SettingsSummary<'_>,
    ) -> Result<Arc<PeerShared>, (RefusalReason, String)> {
        let is_of = |shared: &&Arc<PeerShared>| match &shared.group {
            None => place == PartitionPlace::default(),
            Some(group) => group.place(place.view) == place,
        };
        let Some(shared) = self.served().iter().find(is_of).map(Arc::clone) else {
            if !self.is_complete.load(Ordering::Acquire) {
                return Err((RefusalReason::Busy, "this host starts".to_owned()));
            }
            // It is set before the list is emptied.
            if self.is_over() {
                return Err((RefusalReason::Busy, "this host stops".to_owned()));
            }
            let reason = RefusalReason::Cluster;
            let text = format!("this host has no partition {} of that cluster", place.partition);
            return Err((reason, text));
        };
        if let Some(group) = &shared.group {
            // Before what it says of its view has an effect.
            if let Some(text) = group.settings.difference(settings) {
                return Err((RefusalReason::Settings, text));
            }
            let view = group.served_view();
            if place.view > view {
                group.tell(PartitionInput::HigherView { view: place.view });
            }
            if let Some(steps) = group.promotion_steps(place.view) {
                return Err((RefusalReason::Promoting, steps.to_string()));
            }
            if place.view != view {
                let text = if view == 0 {
                    format!("this host does not own partition {}", place.partition)
                } else {
                    format!("this host serves view {view}, and not {}", place.view)
                };
                return Err((RefusalReason::View, text));
            }
        }
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nearstate_store::{CreateOptions, NamespaceRules};
    use nearstate_wire::SharedSettings;

    use super::*;

    /// Only a host that has all its regions, and keeps them, refuses a follower for good.
    #[test]
    fn a_host_that_starts_or_stops_refuses_no_follower_for_good() {
        let router = PeerRouter::new(None, |_| ());
        let refused = || {
            let place = PartitionPlace { cluster_id: [1; 16], partition: 1, view: 1 };
            router.find(place, SettingsSummary::default()).map(drop).unwrap_err()
        };
        let busy = |text: &str| (RefusalReason::Busy, text.to_owned());
        assert_eq!(refused(), busy("this host starts"));
        router.is_complete.store(true, Ordering::Release);
        assert_eq!(refused().0, RefusalReason::Cluster);
        router.is_over.store(true, Ordering::Release);
        assert_eq!(refused(), busy("this host stops"));
    }

    #[test]
    fn a_connection_that_replaces_another_one_has_the_higher_number() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let create = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &create).unwrap();
        let lease = (Duration::from_secs(1), SharedSettings::default());
        let group = PartitionGroup::new(([1; 16], 1), lease, Arc::new(|_| ()));
        let config = SourceConfig {
            namespaces: NamespaceRules::default(),
            keeps: true,
            followers_max: 2,
            members: BTreeSet::from(["b".to_owned()]),
            name: "a".to_owned(),
            on_event: |_| (),
        };
        let session = region.session().unwrap();
        let shared = PeerShared::new(config, &region, session, Some(Arc::new(group)));
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let [slow, next] = [0; 2].map(|_| Arc::new(Served::new("b".to_owned(), address)));
        assert!(shared.list(&slow) && !shared.list(&next), "a member has one connection");
        slow.is_replaced.store(true, Ordering::Relaxed);
        assert!(shared.list(&next));
        // The thread of the replaced one may say only now that its member is connected.
        let number = |served: &Served| served.connection.load(Ordering::Relaxed);
        assert!(0 < number(&slow) && number(&slow) < number(&next));
    }
}
