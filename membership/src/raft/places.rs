//! Connections that have not said hello: a new one takes the place of an older one, so those that
//! say nothing keep no member out ([`UngreetedLimits`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearstate_node::UngreetedLimits;
use tokio::task::AbortHandle;

/// The connections, the oldest first.
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
