//! Connections whose hello was not admitted yet. Each has a thread, so their number is limited: for
//! each address, and for all.
//!
//! A new connection is never refused, because it may be that of a member that returns. It takes the
//! place of an older one: of the oldest of its own address if that has as many as it may have, else
//! of the oldest of the address that has most. So connections from other addresses keep no member
//! out, unless there are as many addresses as places.

use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a connection has ended whose place was taken.
pub(super) const DISPLACED: &str = "too many connections have not said hello";

/// How many connections that have not said hello there may be at a port for other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UngreetedLimits {
    /// Of one address.
    pub of_address: usize,
    /// Of all addresses.
    pub all: usize,
}

impl UngreetedLimits {
    /// The connection whose place a new one of `address` takes: an index of `present`, the
    /// addresses of the present ones, the oldest first. `None`: there is a free one. Addresses of
    /// one IPv6 network of 64 bits count as one.
    pub fn displaced(self, address: IpAddr, present: &[IpAddr]) -> Option<usize> {
        let (source, sources) = (source_of(address), present.iter().map(|one| source_of(*one)));
        let sources: Vec<IpAddr> = sources.collect();
        let count = |of: IpAddr| sources.iter().filter(|one| **one == of).count();
        if count(source) >= self.of_address {
            return sources.iter().position(|one| *one == source);
        }
        if sources.len() < self.all {
            return None;
        }
        let most = sources.iter().map(|one| count(*one)).max()?;
        sources.iter().position(|one| count(*one) == most)
    }
}

/// The connections, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct UngreetedList {
    places: Mutex<Vec<ListedPlace>>,
    /// Threads of displaced connections that have not ended yet.
    ending: AtomicUsize,
}

#[derive(Debug)]
struct ListedPlace {
    address: IpAddr,
    /// The same socket as the connection's.
    socket: TcpStream,
    is_displaced: Arc<AtomicBool>,
}

/// The place of a connection until its hello is admitted, or it has ended.
#[derive(Debug)]
pub(super) struct UngreetedPlace {
    list: Arc<UngreetedList>,
    is_displaced: Arc<AtomicBool>,
}

impl UngreetedPlace {
    /// Another connection has taken the place: this one ends.
    pub(super) fn is_displaced(&self) -> bool {
        self.is_displaced.load(Ordering::Acquire)
    }

    /// The hello is admitted. False if another connection has taken the place before.
    pub(super) fn leave(self) -> bool {
        let mut places = self.list.places();
        places.retain(|place| !Arc::ptr_eq(&place.is_displaced, &self.is_displaced));
        // Displaced under this lock.
        !self.is_displaced()
    }
}

impl Drop for UngreetedPlace {
    fn drop(&mut self) {
        let mut places = self.list.places();
        places.retain(|place| !Arc::ptr_eq(&place.is_displaced, &self.is_displaced));
        if self.is_displaced() {
            self.list.ending.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl UngreetedList {
    fn places(&self) -> MutexGuard<'_, Vec<ListedPlace>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads of displaced connections that have not ended yet.
    pub(super) fn ending(&self) -> usize {
        self.ending.load(Ordering::Acquire)
    }

    /// Gives a connection a place, if need be that of an older one, which ends at once. `socket`:
    /// the connection's.
    pub(super) fn add(
        self: &Arc<Self>,
        (address, socket): (SocketAddr, TcpStream),
        limits: UngreetedLimits,
    ) -> UngreetedPlace {
        let is_displaced = Arc::new(AtomicBool::new(false));
        let mut places = self.places();
        let present: Vec<IpAddr> = places.iter().map(|place| place.address).collect();
        if let Some(oldest) = limits.displaced(address.ip(), &present) {
            let place = places.remove(oldest);
            place.is_displaced.store(true, Ordering::Release);
            self.ending.fetch_add(1, Ordering::AcqRel);
            // It may have ended by itself.
            let _ = place.socket.shutdown(Shutdown::Both);
        }
        places.push(ListedPlace {
            address: address.ip(),
            socket,
            is_displaced: Arc::clone(&is_displaced),
        });
        drop(places);
        UngreetedPlace { list: Arc::clone(self), is_displaced }
    }
}

/// What counts as one address: a host has a whole network of 64 bits in IPv6.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::TcpListener;

    const LIMITS: UngreetedLimits = UngreetedLimits { of_address: 3, all: 5 };

    #[test]
    fn the_place_that_a_new_connection_takes() {
        let cases: [(&str, u8, Option<usize>); 8] = [
            ("", 1, None),
            ("1 1 2 3", 1, None),
            // Its address has as many as it may have.
            ("2 1 1 1", 1, Some(1)),
            ("1 2 1 3 1", 1, Some(0)),
            // All places are taken: the oldest of the address that has most.
            ("3 1 2 2 1", 4, Some(1)),
            ("3 2 1 1 1", 4, Some(2)),
            ("3 2 1 1 1", 3, Some(2)),
            // Of as many addresses, the oldest.
            ("1 2 3 4 5", 6, Some(0)),
        ];
        for (present, source, displaced) in cases {
            let address = |last: u8| IpAddr::from([10, 0, 0, last]);
            let sources: Vec<IpAddr> =
                present.split_whitespace().map(|one| address(one.parse().unwrap())).collect();
            let found = LIMITS.displaced(address(source), &sources);
            assert_eq!(found, displaced, "{source} behind {present:?}");
        }
    }

    #[test]
    fn an_ipv6_network_is_one_address_and_so_is_a_mapped_ipv4_one() {
        let source = |text: &str| source_of(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:0:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.2"), source("10.0.0.1"));
    }

    #[test]
    fn a_displaced_connection_ends_and_is_not_admitted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let list = Arc::new(UngreetedList::default());
        let mut sockets = Vec::new();
        for _ in 0..4 {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, address) = listener.accept().unwrap();
            sockets.push((client, list.add((address, socket), LIMITS)));
        }
        let mut sockets = sockets.into_iter();
        let (mut oldest, place) = sockets.next().unwrap();
        assert_eq!(oldest.read(&mut [0; 1]).unwrap(), 0, "it is not closed");
        assert!(place.is_displaced());
        assert_eq!(list.ending(), 1);
        assert!(!place.leave());
        assert_eq!(list.ending(), 0);
        for (_, place) in sockets {
            assert!(place.leave());
        }
        assert!(list.places().is_empty());
    }
}
