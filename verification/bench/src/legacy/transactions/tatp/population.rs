//! The database before the first transaction.

use super::rows::{
    ACCESS_BYTES, Dice, FACILITY_BYTES, FORWARDING_BYTES, STARTS, SUBSCRIBER_BYTES, TYPES,
    access_row, facility_row, forwarding_key, forwarding_row, number, subscriber_key,
    subscriber_row, typed_key,
};
use crate::legacy::content::mix;
use nearstate_model::Result;

/// A table, or the lookup of a subscriber by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableName {
    /// Rows of subscribers.
    Subscriber,
    /// `s_id` by `sub_nbr`.
    SubscriberByNumber,
    /// Rows of access.
    AccessInfo,
    /// Rows of facilities.
    SpecialFacility,
    /// Rows of forwardings.
    CallForwarding,
}

/// All of them.
pub const TABLES: [TableName; 5] = [
    TableName::Subscriber,
    TableName::SubscriberByNumber,
    TableName::AccessInfo,
    TableName::SpecialFacility,
    TableName::CallForwarding,
];

impl TableName {
    /// The name of its namespace.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Subscriber => "subscriber",
            Self::SubscriberByNumber => "subscriber-by-number",
            Self::AccessInfo => "access_info",
            Self::SpecialFacility => "special_facility",
            Self::CallForwarding => "call_forwarding",
        }
    }
}

/// What belongs to a subscriber of the fresh database, and its rows: each follows from the seed and
/// its key alone, so that one row can be had without all that come before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    seed: u64,
    /// The subscriber.
    pub s_id: u32,
    access: u8,
    facilities: u8,
    forwardings: [u8; 4],
}

/// The bit of a type of access row or facility: 1 to 4.
#[inline]
const fn bit_of(row_type: u8) -> u8 {
    1_u8.wrapping_shl(row_type.wrapping_sub(1) as u32)
}

/// The bit of an hour of [`STARTS`].
#[inline]
const fn bit_of_start(start: u8) -> u8 {
    1_u8.wrapping_shl((start / 8) as u32)
}

#[inline]
fn dice(seed: u64, s_id: u32, what: u64) -> Dice {
    Dice::new(mix(seed) ^ (u64::from(s_id) << 8 | what))
}

/// The access row of a type, if there is one.
#[inline]
pub fn fresh_access(seed: u64, s_id: u32, ai_type: u8) -> [u8; ACCESS_BYTES] {
    access_row(&mut dice(seed, s_id, 16 + u64::from(ai_type)))
}

/// The row of a forwarding, if there is one.
#[inline]
pub fn fresh_forwarding(seed: u64, s_id: u32, sf_type: u8, start: u8) -> [u8; FORWARDING_BYTES] {
    let mut dice = dice(seed, s_id, 64 + 32 * u64::from(sf_type) + u64::from(start));
    forwarding_row(start + dice.byte(1, 8), &dice.number())
}

impl Fresh {
    /// What belongs to this subscriber.
    pub fn of(seed: u64, s_id: u32) -> Self {
        let mut fresh = Self { seed, s_id, access: 0, facilities: 0, forwardings: [0; 4] };
        let mut dice = fresh.dice(0);
        let count = dice.byte(1, 4);
        for ai_type in dice.choose([1, 2, 3, 4], count) {
            fresh.access |= bit_of(ai_type);
        }
        let count = dice.byte(1, 4);
        for sf_type in dice.choose([1, 2, 3, 4], count) {
            fresh.facilities |= bit_of(sf_type);
        }
        for (sf_type, forwardings) in (1..).zip(&mut fresh.forwardings) {
            let count = dice.byte(0, 3);
            for start in dice.choose(STARTS, count) {
                if fresh.facilities & bit_of(sf_type) != 0 {
                    *forwardings |= bit_of_start(start);
                }
            }
        }
        fresh
    }

    fn dice(&self, what: u64) -> Dice {
        dice(self.seed, self.s_id, what)
    }

    /// Whether it has an access row of this type.
    #[inline]
    pub const fn has_access(&self, ai_type: u8) -> bool {
        self.access & bit_of(ai_type) != 0
    }

    /// Whether it has this facility.
    #[inline]
    pub const fn has_facility(&self, sf_type: u8) -> bool {
        self.facilities & bit_of(sf_type) != 0
    }

    /// Whether a facility of it has a forwarding that begins then.
    #[inline]
    pub fn has_forwarding(&self, sf_type: u8, start: u8) -> bool {
        let forwardings = self.forwardings.get(usize::from(sf_type.wrapping_sub(1)));
        forwardings.is_some_and(|forwardings| forwardings & bit_of_start(start) != 0)
    }

    /// Its row.
    pub fn row(&self) -> [u8; SUBSCRIBER_BYTES] {
        subscriber_row(self.s_id, &mut self.dice(1))
    }

    /// The access row of a type, if there is one.
    pub fn access(&self, ai_type: u8) -> Option<[u8; ACCESS_BYTES]> {
        self.has_access(ai_type).then(|| fresh_access(self.seed, self.s_id, ai_type))
    }

    /// A facility's row, if there is one.
    pub fn facility(&self, sf_type: u8) -> Option<[u8; FACILITY_BYTES]> {
        let row = || facility_row(&mut self.dice(32 + u64::from(sf_type)));
        self.has_facility(sf_type).then(row)
    }

    /// A forwarding's row, if there is one.
    pub fn forwarding(&self, sf_type: u8, start: u8) -> Option<[u8; FORWARDING_BYTES]> {
        let row = || fresh_forwarding(self.seed, self.s_id, sf_type, start);
        self.has_forwarding(sf_type, start).then(row)
    }
}

/// Hands every row of the fresh database to `put`: the table, the key, the row.
///
/// # Errors
/// What `put` said.
pub fn populate(
    seed: u64,
    subscribers: u32,
    mut put: impl FnMut(TableName, &[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    for s_id in 1..=subscribers {
        let fresh = Fresh::of(seed, s_id);
        put(TableName::Subscriber, &subscriber_key(s_id), &fresh.row())?;
        put(TableName::SubscriberByNumber, &number(u64::from(s_id)), &s_id.to_be_bytes())?;
        for row_type in TYPES {
            let key = typed_key(s_id, row_type);
            if let Some(row) = fresh.access(row_type) {
                put(TableName::AccessInfo, &key, &row)?;
            }
            if let Some(row) = fresh.facility(row_type) {
                put(TableName::SpecialFacility, &key, &row)?;
            }
            for start in STARTS {
                if let Some(row) = fresh.forwarding(row_type, start) {
                    let key = forwarding_key(s_id, row_type, start);
                    put(TableName::CallForwarding, &key, &row)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_published_sizes() {
        const SUBSCRIBERS: u32 = 40_000;
        let mut counts = [0_u32; 5];
        let (mut active, mut none_of_four) = (0, std::collections::BTreeMap::<u32, u8>::new());
        populate(7, SUBSCRIBERS, |table, key, row| {
            counts[TABLES.iter().position(|t| *t == table).unwrap()] += 1;
            if table == TableName::SpecialFacility {
                active += u32::from(row[0]);
            }
            if table == TableName::AccessInfo {
                let s_id = u32::from_be_bytes(key[..4].try_into().unwrap());
                *none_of_four.entry(s_id).or_default() += 1;
            }
            Ok(())
        })
        .unwrap();
        let mean = |at: usize, of: u32| f64::from(counts[at]) / f64::from(of);
        assert_eq!((counts[0], counts[1]), (SUBSCRIBERS, SUBSCRIBERS));
        assert!((mean(2, SUBSCRIBERS) - 2.5).abs() < 0.03, "{counts:?}");
        assert!((mean(3, SUBSCRIBERS) - 2.5).abs() < 0.03, "{counts:?}");
        assert!((mean(4, counts[3]) - 1.5).abs() < 0.03, "{counts:?}");
        assert!((f64::from(active) / f64::from(counts[3]) - 0.85).abs() < 0.01);
        // A quarter each with one, two, three and four rows.
        assert_eq!(none_of_four.len(), SUBSCRIBERS as usize);
        for rows in 1..=4 {
            let share = none_of_four.values().filter(|n| **n == rows).count() as f64;
            assert!((share / f64::from(SUBSCRIBERS) - 0.25).abs() < 0.02, "{rows}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_database() {
        let of = |seed| {
            let mut all = Vec::new();
            populate(seed, 50, |_, key, row| {
                all.push((key.to_vec(), row.to_vec()));
                Ok(())
            })
            .unwrap();
            all
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
