//! Which connections have a place. Of those that have not said hello a new one takes the place of
//! an older one, so those that say nothing keep no member out ([`UngreetedLimits`]). Of those of
//! one host a new one takes the place of the one that was used longest ago, so no host keeps out
//! others.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearstate_node::UngreetedLimits;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::limits::CONNECTIONS_OF_HOST_MAX;

/// The connections that have not said hello, the oldest first.
#[derive(Debug)]
pub(super) struct ConnectionPlaces {
    limits: UngreetedLimits,
    places: Mutex<(u64, Vec<NumberedPlace>)>,
}

#[derive(Debug)]
struct NumberedPlace {
    number: u64,
    address: SocketAddr,
    task: AbortHandle,
}

impl ConnectionPlaces {
    pub(super) fn new(limits: UngreetedLimits) -> Arc<Self> {
        Arc::new(Self { limits, places: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Vec<NumberedPlace>)> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection a place. `spawn` gets its number, and starts its task. Returns the
    /// address of the connection whose place it has taken, which has ended.
    pub(super) fn add(
        &self,
        address: SocketAddr,
        spawn: impl FnOnce(u64) -> AbortHandle,
    ) -> Option<SocketAddr> {
        let (last, places) = &mut *self.lock();
        let present: Vec<IpAddr> = places.iter().map(|place| place.address.ip()).collect();
        let displaced = self.limits.displaced(address.ip(), &present).map(|oldest| {
            let place = places.remove(oldest);
            place.task.abort();
            place.address
        });
        *last += 1;
        // The task waits for this lock before it leaves.
        places.push(NumberedPlace { number: *last, address, task: spawn(*last) });
        displaced
    }

    /// The connection has said hello, or has ended. False if another one has taken its place.
    pub(super) fn leave(&self, number: u64) -> bool {
        let (_, places) = &mut *self.lock();
        let before = places.len();
        places.retain(|place| place.number != number);
        places.len() != before
    }
}

/// The connections of each host that have said hello, those that were used longest ago first.
#[derive(Debug, Default)]
pub(super) struct HostPlaces(Mutex<BTreeMap<u64, Vec<Arc<Notify>>>>);

/// The place of one of them.
#[derive(Debug)]
pub(super) struct HostPlace {
    places: Arc<HostPlaces>,
    host: u64,
    /// Notified when another connection has taken the place.
    displaced: Arc<Notify>,
}

impl HostPlaces {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Arc<Notify>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection of this host a place.
    pub(super) fn enter(self: &Arc<Self>, host: u64) -> HostPlace {
        let displaced = Arc::<Notify>::default();
        let mut places = self.lock();
        let of_host = places.entry(host).or_default();
        if of_host.len() >= CONNECTIONS_OF_HOST_MAX {
            of_host.remove(0).notify_one();
        }
        of_host.push(Arc::clone(&displaced));
        HostPlace { places: Arc::clone(self), host, displaced }
    }
}

impl HostPlace {
    /// Takes the place out of the list. False if another connection has it.
    fn take(&self, places: &mut Vec<Arc<Notify>>) -> bool {
        let before = places.len();
        places.retain(|place| !Arc::ptr_eq(place, &self.displaced));
        places.len() != before
    }

    /// The connection has a request.
    pub(super) fn note_use(&self) {
        let mut places = self.places.lock();
        let of_host = places.entry(self.host).or_default();
        if self.take(of_host) {
            of_host.push(Arc::clone(&self.displaced));
        }
    }

    /// Waits until another connection has taken the place.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for HostPlace {
    fn drop(&mut self) {
        let mut places = self.places.lock();
        let of_host = places.entry(self.host).or_default();
        self.take(of_host);
        if of_host.is_empty() {
            places.remove(&self.host);
        }
    }
}
