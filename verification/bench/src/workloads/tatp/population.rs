//! The database before the first transaction.

use super::rows::{
    ACCESS_BYTES, FACILITY_BYTES, FORWARDING_BYTES, FieldDraws as _, STARTS, SUBSCRIBER_BYTES,
    access_row, facility_row, forwarding_row, subscriber_row,
};
use crate::random::{self, Rng, draw};

/// A subscriber of the fresh database and its rows. Each row depends only on the seed and its key,
/// so that one row can be generated without the earlier ones.
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
const fn bit_of(row_type: u8) -> u8 {
    1_u8.wrapping_shl(row_type.wrapping_sub(1) as u32)
}

/// The bit of an hour of [`STARTS`].
const fn bit_of_start(start: u8) -> u8 {
    1_u8.wrapping_shl((start / 8) as u32)
}

fn rng(seed: u64, s_id: u32, what: u64) -> Rng {
    random::rng(draw(seed, u64::from(s_id), what))
}

/// The access row of a type, if it exists.
pub(super) fn fresh_access(seed: u64, s_id: u32, ai_type: u8) -> [u8; ACCESS_BYTES] {
    access_row(&mut rng(seed, s_id, 16 + u64::from(ai_type)))
}

/// The row of a forwarding, if it exists.
pub(super) fn fresh_forwarding(
    seed: u64,
    s_id: u32,
    sf_type: u8,
    start: u8,
) -> [u8; FORWARDING_BYTES] {
    let mut rng = rng(seed, s_id, 64 + 32 * u64::from(sf_type) + u64::from(start));
    forwarding_row(start + rng.u8(1..=8), &rng.number())
}

impl Fresh {
    /// The rows of this subscriber.
    pub fn of(seed: u64, s_id: u32) -> Self {
        let mut fresh = Self { seed, s_id, access: 0, facilities: 0, forwardings: [0; 4] };
        let mut rng = fresh.rng(0);
        let count = rng.u8(1..=4);
        for ai_type in rng.choose([1, 2, 3, 4], count) {
            fresh.access |= bit_of(ai_type);
        }
        let count = rng.u8(1..=4);
        for sf_type in rng.choose([1, 2, 3, 4], count) {
            fresh.facilities |= bit_of(sf_type);
        }
        for (sf_type, forwardings) in (1..).zip(&mut fresh.forwardings) {
            let count = rng.u8(0..=3);
            for start in rng.choose(STARTS, count) {
                if fresh.facilities & bit_of(sf_type) != 0 {
                    *forwardings |= bit_of_start(start);
                }
            }
        }
        fresh
    }

    fn rng(&self, what: u64) -> Rng {
        rng(self.seed, self.s_id, what)
    }

    /// True if it has an access row of this type.
    pub const fn has_access(&self, ai_type: u8) -> bool {
        self.access & bit_of(ai_type) != 0
    }

    pub const fn has_facility(&self, sf_type: u8) -> bool {
        self.facilities & bit_of(sf_type) != 0
    }

    /// True if a facility of it has a forwarding with this start hour.
    pub fn has_forwarding(&self, sf_type: u8, start: u8) -> bool {
        let forwardings = self.forwardings.get(usize::from(sf_type.wrapping_sub(1)));
        forwardings.is_some_and(|forwardings| forwardings & bit_of_start(start) != 0)
    }

    pub fn row(&self) -> [u8; SUBSCRIBER_BYTES] {
        subscriber_row(self.s_id, &mut self.rng(1))
    }

    /// The access row of a type, if it exists.
    pub fn access(&self, ai_type: u8) -> Option<[u8; ACCESS_BYTES]> {
        self.has_access(ai_type).then(|| fresh_access(self.seed, self.s_id, ai_type))
    }

    /// A facility's row, if it exists.
    pub fn facility(&self, sf_type: u8) -> Option<[u8; FACILITY_BYTES]> {
        let row = || facility_row(&mut self.rng(32 + u64::from(sf_type)));
        self.has_facility(sf_type).then(row)
    }

    /// A forwarding's row, if it exists.
    pub fn forwarding(&self, sf_type: u8, start: u8) -> Option<[u8; FORWARDING_BYTES]> {
        let row = || fresh_forwarding(self.seed, self.s_id, sf_type, start);
        self.has_forwarding(sf_type, start).then(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tatp::rows::TYPES;

    #[test]
    fn tables_have_the_published_sizes() {
        const SUBSCRIBERS: u32 = 40_000;
        let (mut facilities, mut active, mut forwardings) = (0_u32, 0_u32, 0_u32);
        let mut with_rows = [0_u32; 5];
        for s_id in 1..=SUBSCRIBERS {
            let fresh = Fresh::of(7, s_id);
            assert_eq!(fresh, Fresh::of(7, s_id));
            with_rows[TYPES.filter(|ai_type| fresh.has_access(*ai_type)).count()] += 1;
            for sf_type in TYPES {
                let Some(row) = fresh.facility(sf_type) else { continue };
                (facilities, active) = (facilities + 1, active + u32::from(row[0]));
                let starts = STARTS.iter().filter(|start| fresh.has_forwarding(sf_type, **start));
                forwardings += u32::try_from(starts.count()).unwrap();
            }
        }
        let of = |count: u32, all: u32| f64::from(count) / f64::from(all);
        assert!((of(facilities, SUBSCRIBERS) - 2.5).abs() < 0.03, "{facilities}");
        assert!((of(forwardings, facilities) - 1.5).abs() < 0.03, "{forwardings}");
        assert!((of(active, facilities) - 0.85).abs() < 0.01, "{active}");
        // A quarter of the subscribers each has one, two, three and four access rows.
        assert_eq!(with_rows[0], 0);
        for rows in with_rows.into_iter().skip(1) {
            assert!((of(rows, SUBSCRIBERS) - 0.25).abs() < 0.02, "{with_rows:?}");
        }
    }
}
