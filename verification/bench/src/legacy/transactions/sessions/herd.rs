//! Subscribers of a mobility management entity, who come and go: which ones, and their values.

use crate::legacy::content::mix;
use crate::legacy::micro::work::{Key, key_of};

/// The smallest and the largest session (paper 3, section 4: 1 to 4 KB).
const BYTES_LEAST: u64 = 1 << 10;
const BYTES_MOST: u64 = 4 << 10;

/// Tracking areas that the subscribers are spread over.
pub const AREAS: u64 = 256;

/// Keys have fifteen digits. A multiplier that shares no factor with this gives each serial number
/// a key of its own, and no order of arrival that could be read from it.
const KEYS: u128 = 1_000_000_000_000_000;
const SPREAD: u128 = 618_033_988_749_897;

/// Values differ in their first words; the rest stays in the second-level cache.
const BODIES: u64 = 64;

/// A subscriber with the tags of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// No two have the same.
    pub serial: u64,
    /// Primary key.
    pub key: Key,
    /// Globally unique temporary identity: 80 bits (TS 23.003, clause 2.10.1).
    pub guti: [u8; 10],
    /// Tunnel endpoint and its address.
    pub teid: [u8; 8],
    /// Tracking area: PLMN and code.
    pub area: [u8; 5],
    /// Bytes of the session.
    pub bytes: usize,
}

impl Subscriber {
    /// The subscriber with this serial number.
    pub fn of(serial: u64) -> Self {
        let place = u128::from(serial) * SPREAD % KEYS;
        let chance = mix(serial);
        let mut guti = *b"\x62\xf2\x10\0\0\0\0\0\0\0";
        // Both are one to one, so that no value is given twice.
        if let Some(to) = guti.last_chunk_mut::<8>() {
            *to = chance.to_be_bytes();
        }
        let [code, ..] = (mix(chance ^ 1) % AREAS).to_le_bytes();
        let size = BYTES_LEAST + mix(chance ^ 2) % (BYTES_MOST - BYTES_LEAST + 1);
        Self {
            serial,
            key: key_of(u64::try_from(place).unwrap_or(0)),
            guti,
            teid: mix(chance).to_be_bytes(),
            area: [0x62, 0xf2, 0x10, 0, code],
            bytes: usize::try_from(size).unwrap_or(0),
        }
    }

    /// Names and values of its tags.
    #[inline]
    pub fn tags(&self) -> [(&'static str, &[u8]); 3] {
        [("area", &self.area), ("guti", &self.guti), ("teid", &self.teid)]
    }
}

/// Those who are attached.
#[derive(Debug)]
pub struct Herd {
    live: Vec<u64>,
    next: u64,
    chance: u64,
}

impl Herd {
    /// Nobody yet.
    pub fn new(seed: u64) -> Self {
        Self { live: Vec::new(), next: 0, chance: mix(seed) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// True if there is nobody.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// So many new ones.
    pub fn arrivals(&mut self, count: usize) -> Vec<Subscriber> {
        let first = self.next;
        self.next += count as u64;
        self.live.extend(first..self.next);
        (first..self.next).map(Subscriber::of).collect()
    }

    /// So many of those who are there, by chance, who then are no more.
    pub fn departures(&mut self, count: usize) -> Vec<Subscriber> {
        let count = count.min(self.live.len());
        (0..count)
            .map(|_| {
                let at = self.place();
                Subscriber::of(self.live.swap_remove(at))
            })
            .collect()
    }

    /// So many of those who are there, by chance; somebody may be met twice.
    pub fn some(&mut self, count: usize) -> Vec<Subscriber> {
        if self.is_empty() {
            return Vec::new();
        }
        (0..count)
            .filter_map(|_| {
                let at = self.place();
                self.live.get(at).copied().map(Subscriber::of)
            })
            .collect()
    }

    fn place(&mut self) -> usize {
        self.chance = self.chance.wrapping_add(1);
        let most = self.live.len().max(1) as u64;
        usize::try_from(mix(self.chance) % most).unwrap_or(0)
    }
}

/// The bytes of sessions.
#[derive(Debug)]
pub struct Bodies {
    bodies: Vec<Vec<u8>>,
    written: u64,
}

impl Bodies {
    /// Bytes by chance.
    pub fn new(seed: u64) -> Self {
        let mut chance = mix(seed);
        let mut body = || {
            let words = (0..BYTES_MOST / 8).flat_map(|_| {
                chance = chance.wrapping_add(1);
                mix(chance).to_le_bytes()
            });
            words.collect()
        };
        Self { bodies: (0..BODIES).map(|_| body()).collect(), written: 0 }
    }

    /// A session of this subscriber that was never written before: its first word is the serial
    /// number.
    #[inline]
    pub fn next(&mut self, subscriber: &Subscriber) -> &[u8] {
        self.written += 1;
        let at = usize::try_from(subscriber.serial % BODIES).unwrap_or(0);
        let Some(body) = self.bodies.get_mut(at) else { return &[] };
        for (to, word) in
            body.as_chunks_mut::<8>().0.iter_mut().zip([subscriber.serial, self.written])
        {
            *to = word.to_le_bytes();
        }
        body.get(..subscriber.bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legacy::content::first_word;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_subscribers_share_a_key_or_a_unique_tag() {
        let all: Vec<Subscriber> = (0..50_000).map(Subscriber::of).collect();
        let keys: BTreeSet<_> = all.iter().map(|s| s.key).collect();
        let unique: BTreeSet<_> =
            all.iter().flat_map(|s| [s.guti.to_vec(), s.teid.to_vec()]).collect();
        assert_eq!(keys.len(), all.len());
        assert_eq!(unique.len(), 2 * all.len());
        let (a, b) = (SPREAD % 2, SPREAD % 5);
        assert!(a != 0 && b != 0, "the multiplier must share no factor with the number of keys");
    }

    #[test]
    fn sizes_are_uniform_from_one_to_four_kib_and_areas_are_all_used() {
        let mut quarters = [0_u64; 4];
        let mut areas = BTreeSet::new();
        for subscriber in (0..40_000).map(Subscriber::of) {
            assert!((1024..=4096).contains(&subscriber.bytes));
            quarters[((subscriber.bytes - 1024) / 769).min(3)] += 1;
            areas.insert(subscriber.area);
        }
        assert!(quarters.iter().all(|n| (9_500..10_500).contains(n)), "{quarters:?}");
        assert_eq!(areas.len() as u64, AREAS);
    }

    #[test]
    fn who_departs_was_there_and_is_no_more() {
        let mut herd = Herd::new(7);
        let came: BTreeSet<u64> = herd.arrivals(1000).iter().map(|s| s.serial).collect();
        let went: BTreeSet<u64> = herd.departures(400).iter().map(|s| s.serial).collect();
        assert_eq!((went.len(), herd.len()), (400, 600));
        assert!(went.is_subset(&came));
        assert!(herd.some(5000).iter().all(|s| !went.contains(&s.serial)));
        let again = herd.arrivals(10);
        assert!(again.iter().all(|s| !came.contains(&s.serial)), "a serial number is used once");
        assert_eq!(herd.departures(10_000).len(), 610);
        assert!(herd.is_empty() && herd.some(3).is_empty());
    }

    #[test]
    fn a_session_tells_whose_it_is_and_is_never_the_same() {
        let mut bodies = Bodies::new(3);
        let subscriber = Subscriber::of(77);
        let first = bodies.next(&subscriber).to_vec();
        assert_eq!((first.len(), first_word(&first)), (subscriber.bytes, 77));
        assert_ne!(bodies.next(&subscriber), first);
    }
}
