//! The records of one client, and functions that all workloads share.

use crate::result::Check;
use crate::stat::as_f64;
use crate::workloads::{Parameters, WorkloadKind};
use nearstate_model::{Error, Result};

/// The records of one client: `count` of them from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub first: u64,
    pub count: u64,
    /// The records of all clients.
    pub all: u64,
}

impl Share {
    /// The share of client number `client` of `clients`.
    pub fn of(parameters: &Parameters, client: usize, clients: usize) -> Result<Self> {
        let (all, client, clients) = (parameters.records, client as u64, clients as u64);
        if client >= clients || all < clients || all > RECORDS_MAX {
            return Err(bad_argument!(
                "client {client} of {clients} with {all} records: give at least one record for \
                     each client, and at most {RECORDS_MAX}"
            ));
        }
        let first = |client: u64| client * (all / clients) + client.min(all % clients);
        Ok(Self { first: first(client), count: first(client + 1) - first(client), all })
    }
}

/// The largest number of records of all clients. Keys and identities of 32 bits distinguish them,
/// with bits left for their generations.
pub const RECORDS_MAX: u64 = 1 << 28;

/// The index of the requested variant in [`WorkloadKind::variants`]; 0 if there is none.
pub fn variant(kind: &dyn WorkloadKind, parameters: &Parameters) -> usize {
    let variants = kind.variants();
    variants.iter().position(|(name, _)| *name == parameters.variant).unwrap_or(0)
}

/// The error of a client whose `count` records are all inserted.
pub fn all_inserted(count: u64) -> Error {
    bad_argument!(
        "all {count} records of this client are inserted: give more --records, or fewer --ops \
             and --rounds"
    )
}

/// The default size of a value.
const VALUE_BYTES: u64 = 1024;

/// The size of a value, for workloads in which it is a parameter.
pub fn value_bytes(parameters: &Parameters) -> u64 {
    parameters.value_bytes.unwrap_or(VALUE_BYTES)
}

/// As [`value_bytes`], checked: at least 8 bytes, which contain the number of the value.
pub fn checked_value_bytes(parameters: &Parameters, bytes_max: usize) -> Result<usize> {
    let bytes = value_bytes(parameters);
    let checked = usize::try_from(bytes).ok().filter(|bytes| (8..=bytes_max).contains(bytes));
    checked.ok_or_else(|| bad_argument!("--value-bytes {bytes}: give 8 to {bytes_max}"))
}

/// Checks a share in percent: within five standard deviations of the expected one, for `draws`
/// independent draws.
pub fn percent(name: impl Into<String>, expected: f64, hits: u64, draws: u64) -> Check {
    check_of(name, expected, hits, draws, f64::INFINITY)
}

/// As [`percent`], for draws that depend on which of `records` records they select.
pub fn check_of(
    name: impl Into<String>,
    expected: f64,
    hits: u64,
    draws: u64,
    records: f64,
) -> Check {
    let (share, weight) = (expected / 100.0, as_f64(draws));
    let variance = share * (1.0 - share) * (1.0 / weight.max(1.0) + 1.0 / records.max(1.0));
    Check {
        name: name.into(),
        expected,
        found: 100.0 * as_f64(hits) / weight.max(1.0),
        tolerance: 100.0 * DEVIATIONS * variance.sqrt() + ROUNDING,
        weight,
    }
}

/// The tolerance in standard deviations: exceeded by chance once in two million checks.
const DEVIATIONS: f64 = 5.0;

/// The tolerance of shares of 0 and 100 percent, in percent.
const ROUNDING: f64 = 1e-9;

/// A pseudorandom number of 32 bits that no other live record has, derived from the record and its
/// generation.
pub fn unique_32(record: u64, generation: u32, records: u64) -> u32 {
    /// Odd, so that the multiplication is a bijection.
    const ODD: u32 = 0x9E37_79B1;
    let bits = 64 - records.saturating_sub(1).leading_zeros();
    let record = u32::try_from(record & u64::from(u32::MAX)).unwrap_or(0);
    let high = generation.checked_shl(bits).unwrap_or(0);
    (high | record).wrapping_mul(ODD)
}

/// A number with `N` decimal digits.
pub fn digits<const N: usize>(mut number: u64) -> [u8; N] {
    let mut text = [b'0'; N];
    for digit in text.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::AccessDistribution;
    use std::collections::BTreeSet;

    fn parameters(records: u64) -> Parameters {
        let variant = String::new();
        Parameters {
            records,
            variant,
            spread: AccessDistribution::Uniform,
            seed: 1,
            ..Parameters::default()
        }
    }

    #[test]
    fn shares_cover_all_records_once() {
        for (records, clients) in [(10, 3), (7, 7), (1_000_003, 4)] {
            let shares: Vec<Share> = (0..clients)
                .map(|c| Share::of(&parameters(records), c, clients).unwrap())
                .collect();
            let mut next = 0;
            for share in shares {
                assert_eq!(share.first, next);
                assert!(share.count >= records / clients as u64);
                next += share.count;
            }
            assert_eq!(next, records);
        }
        for (records, client, clients) in [(3, 0, 4), (3, 1, 1), (RECORDS_MAX + 1, 0, 1), (1, 0, 0)]
        {
            assert!(Share::of(&parameters(records), client, clients).is_err());
        }
    }

    #[test]
    fn no_two_live_records_have_the_same_number() {
        let mut seen = BTreeSet::new();
        for record in 0..1000 {
            // Generations in any mixture, as they are in a run.
            assert!(seen.insert(unique_32(record, u32::try_from(record * 7 % 13).unwrap(), 1000)));
        }
        assert_ne!(unique_32(1, 1, 1000), unique_32(1, 2, 1000));
        assert_ne!(unique_32(1, 1, RECORDS_MAX), unique_32(1, 2, RECORDS_MAX));
    }

    #[test]
    fn a_share_that_is_off_by_more_than_chance_does_not_hold() {
        assert!(percent("", 50.0, 50_600, 100_000).holds());
        assert!(!percent("", 50.0, 51_000, 100_000).holds());
        assert!(percent("", 100.0, 10, 10).holds());
        assert!(!percent("", 100.0, 99_999, 100_000).holds());
        assert!(check_of("", 50.0, 51_000, 100_000, 10_000.0).holds());
    }

    #[test]
    fn numbers_are_padded_with_zeros() {
        assert_eq!(&digits::<6>(1234), b"001234");
    }
}
