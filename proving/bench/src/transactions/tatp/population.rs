//! The database before the first transaction.

use super::rows::{
    Dice, STARTS, access_row, facility_row, forwarding_key, forwarding_row, number, subscriber_key,
    subscriber_row, typed_key,
};
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

/// Hands every row of the fresh database to `put`: the table, the key, the row.
///
/// # Errors
/// What `put` said.
pub fn populate(
    seed: u64,
    subscribers: u32,
    mut put: impl FnMut(TableName, &[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let mut dice = Dice::new(seed);
    for s_id in 1..=subscribers {
        let row = subscriber_row(s_id, &mut dice);
        put(TableName::Subscriber, &subscriber_key(s_id), &row)?;
        put(TableName::SubscriberByNumber, &number(u64::from(s_id)), &s_id.to_be_bytes())?;
        let count = dice.byte(1, 4);
        for ai_type in dice.choose([1, 2, 3, 4], count) {
            put(TableName::AccessInfo, &typed_key(s_id, ai_type), &access_row(&mut dice))?;
        }
        let count = dice.byte(1, 4);
        for sf_type in dice.choose([1, 2, 3, 4], count) {
            put(TableName::SpecialFacility, &typed_key(s_id, sf_type), &facility_row(&mut dice))?;
            let count = dice.byte(0, 3);
            for start in dice.choose(STARTS, count) {
                let row = forwarding_row(start + dice.byte(1, 8), &dice.number());
                put(TableName::CallForwarding, &forwarding_key(s_id, sf_type, start), &row)?;
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
