//! The expected state of each of a client's subscribers, in 36 bytes each: the fields that change,
//! and which rows exist. Everything else follows from the seed.

use super::super::support::share::Share;
use super::population::{Fresh, fresh_access, fresh_forwarding};
use super::rows::{
    ACCESS_BYTES, BIT_1, DATA_A, FORWARDING_BYTES, FieldDraws as _, IS_ACTIVE, STARTS, TYPES,
    VLR_LOCATION, forwarding_row,
};
use crate::random::draw;
use crate::random::{self};

/// Bit of the first type in [`Subscriber::flags`]: of access rows, facilities, active ones.
const ACCESS: u32 = 0;
const FACILITY: u32 = 4;
const ACTIVE: u32 = 8;

/// The largest number of forwardings of a subscriber.
const FORWARDINGS: usize = 12;

/// The model of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    pub location: u32,
    /// Its facilities' `data_a`, by type.
    pub data_a: [u8; 4],
    flags: u16,
    /// For each forwarding twice the number of its inserts, plus one if it exists.
    forwardings: [u16; FORWARDINGS],
    /// Its `bit_1`.
    pub bit_1: u8,
}

/// The index of a forwarding among a subscriber's.
pub const fn forwarding_index(sf_type: u8, start: u8) -> usize {
    (sf_type.wrapping_sub(1) & 3) as usize * 3 + (start / 8 % 3) as usize
}

impl Subscriber {
    /// The state in the fresh database.
    pub fn fresh(fresh: &Fresh) -> Self {
        let row = fresh.row();
        let location = row.get(VLR_LOCATION).and_then(|bytes| bytes.first_chunk());
        let mut subscriber = Self {
            location: location.map_or(0, |bytes| u32::from_le_bytes(*bytes)),
            data_a: [0; 4],
            flags: 0,
            forwardings: [0; FORWARDINGS],
            bit_1: row.get(BIT_1).copied().unwrap_or(0),
        };
        for (row_type, data_a) in TYPES.zip(&mut subscriber.data_a) {
            let bit = 1_u16 << (row_type - 1);
            if fresh.has_access(row_type) {
                subscriber.flags |= bit << ACCESS;
            }
            if let Some(row) = fresh.facility(row_type) {
                subscriber.flags |= bit << FACILITY;
                subscriber.flags |= u16::from(row.get(IS_ACTIVE) == Some(&1)) * (bit << ACTIVE);
                *data_a = row.get(DATA_A).copied().unwrap_or(0);
            }
            for start in STARTS {
                if let Some(forwarding) =
                    subscriber.forwardings.get_mut(forwarding_index(row_type, start))
                {
                    *forwarding = u16::from(fresh.has_forwarding(row_type, start));
                }
            }
        }
        subscriber
    }

    const fn has(&self, row_type: u8, what: u32) -> bool {
        self.flags >> what >> (row_type.wrapping_sub(1) & 3) & 1 == 1
    }

    /// True if it has an access row of this type.
    pub const fn has_access(&self, ai_type: u8) -> bool {
        self.has(ai_type, ACCESS)
    }

    pub const fn has_facility(&self, sf_type: u8) -> bool {
        self.has(sf_type, FACILITY)
    }

    /// True if it has this facility, and the facility is active.
    pub const fn is_active(&self, sf_type: u8) -> bool {
        self.has(sf_type, ACTIVE)
    }

    /// The number of inserts of a forwarding, if it exists.
    pub fn forwarding(&self, sf_type: u8, start: u8) -> Option<u16> {
        let forwarding =
            self.forwardings.get(forwarding_index(sf_type, start)).copied().unwrap_or(0);
        (forwarding & 1 == 1).then_some(forwarding >> 1)
    }

    /// The number of inserts of a forwarding after the next one. Wraps at 2^15, but never to the
    /// row of the fresh database.
    pub fn next_insert(&self, sf_type: u8, start: u8) -> u16 {
        let times =
            self.forwardings.get(forwarding_index(sf_type, start)).copied().unwrap_or(0) >> 1;
        if times >= u16::MAX >> 1 { 1 } else { times + 1 }
    }

    /// Records that a forwarding was inserted for this time, or deleted.
    pub fn set_forwarding(&mut self, sf_type: u8, start: u8, inserted: Option<u16>) {
        if let Some(forwarding) = self.forwardings.get_mut(forwarding_index(sf_type, start)) {
            *forwarding = match inserted {
                Some(times) => times << 1 | 1,
                None => *forwarding & !1,
            };
        }
    }
}

/// All of a client's subscribers.
#[derive(Debug)]
pub struct TatpModel {
    seed: u64,
    /// The id of the first.
    first: u32,
    subscribers: Vec<Subscriber>,
}

impl TatpModel {
    /// The fresh database's.
    pub fn fresh(seed: u64, share: Share) -> Self {
        let first = u32::try_from(share.first + 1).unwrap_or(u32::MAX);
        let ids = (share.first + 1..=share.first + share.count)
            .map(|id| u32::try_from(id).unwrap_or(u32::MAX));
        let subscribers = ids.map(|id| Subscriber::fresh(&Fresh::of(seed, id))).collect();
        Self { seed, first, subscribers }
    }

    /// The id of a subscriber.
    pub const fn s_id(&self, slot: u32) -> u32 {
        self.first + slot
    }

    /// The model of a subscriber; the first one's if the index is out of range.
    pub fn of(&self, slot: u32) -> Option<&Subscriber> {
        self.subscribers.get(usize::try_from(slot).unwrap_or(usize::MAX))
    }

    /// The model of a subscriber, for a change.
    pub fn of_mut(&mut self, slot: u32) -> Option<&mut Subscriber> {
        self.subscribers.get_mut(usize::try_from(slot).unwrap_or(usize::MAX))
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.subscribers.len()).unwrap_or(u32::MAX)
    }

    /// A subscriber of the fresh database.
    pub fn drawn(&self, slot: u32) -> Fresh {
        Fresh::of(self.seed, self.s_id(slot))
    }

    /// The access row of a type, if it exists.
    pub fn access_row(&self, slot: u32, ai_type: u8) -> [u8; ACCESS_BYTES] {
        fresh_access(self.seed, self.s_id(slot), ai_type)
    }

    /// A forwarding's row after this number of inserts, which determines its end and number.
    pub fn forwarding_row(&self, slot: u32, key: (u8, u8), times: u16) -> [u8; FORWARDING_BYTES] {
        let ((sf_type, start), s_id) = (key, self.s_id(slot));
        if times == 0 {
            return fresh_forwarding(self.seed, s_id, sf_type, start);
        }
        let what = u64::from(times) << 16 | u64::from(sf_type) << 8 | u64::from(start);
        let mut rng = random::rng(draw(self.seed, u64::from(s_id), what));
        forwarding_row(start + rng.u8(1..=8), &rng.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_takes_little_room() {
        assert!(size_of::<Subscriber>() <= 36);
    }

    #[test]
    fn a_new_subscriber_equals_its_rows() {
        let model = TatpModel::fresh(5, Share { first: 10, count: 50, all: 100 });
        assert_eq!(model.count(), 50);
        for slot in 0..50 {
            let (subscriber, fresh) = (model.of(slot).unwrap(), model.drawn(slot));
            assert_eq!(fresh.s_id, 11 + slot);
            assert_eq!(subscriber.location.to_le_bytes(), fresh.row()[VLR_LOCATION]);
            for row_type in TYPES {
                assert_eq!(subscriber.has_access(row_type), fresh.access(row_type).is_some());
                let facility = fresh.facility(row_type);
                assert_eq!(subscriber.has_facility(row_type), facility.is_some());
                let is_active = facility.is_some_and(|row| row[IS_ACTIVE] == 1);
                assert_eq!(subscriber.is_active(row_type), is_active);
                for start in STARTS {
                    let row = fresh.forwarding(row_type, start);
                    assert_eq!(subscriber.forwarding(row_type, start), row.map(|_| 0));
                    let known = model.forwarding_row(slot, (row_type, start), 0);
                    assert!(row.is_none_or(|row| row == known));
                }
            }
        }
    }

    #[test]
    fn an_inserted_forwarding_is_another_row_each_time() {
        let mut model = TatpModel::fresh(5, Share { first: 0, count: 1, all: 1 });
        let mut seen = Vec::new();
        for _ in 0..40 {
            let subscriber = model.of_mut(0).unwrap();
            let times = subscriber.next_insert(3, 8);
            subscriber.set_forwarding(3, 8, Some(times));
            assert_eq!(subscriber.forwarding(3, 8), Some(times));
            seen.push(model.forwarding_row(0, (3, 8), times));
            model.of_mut(0).unwrap().set_forwarding(3, 8, None);
            assert_eq!(model.of(0).unwrap().forwarding(3, 8), None);
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 40);
        let mut last = *model.of(0).unwrap();
        last.set_forwarding(3, 8, Some(u16::MAX >> 1));
        assert_eq!(last.next_insert(3, 8), 1);
    }
}
