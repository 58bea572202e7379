//! How often each transaction was run and succeeded, and a digest of all that was read.

use super::requests::Kind;

/// Counts of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Transactions of each kind.
    pub runs: [u64; 7],
    /// Those that succeeded.
    pub successes: [u64; 7],
    /// Depends on what each transaction has read, and on their order.
    pub digest: u64,
}

impl Tally {
    /// Counts a transaction: what it has read if it succeeded.
    #[inline]
    pub fn count(&mut self, kind: Kind, done: Option<u64>) {
        let at = kind.index();
        if let (Some(runs), Some(successes)) = (self.runs.get_mut(at), self.successes.get_mut(at)) {
            *runs += 1;
            *successes += u64::from(done.is_some());
        }
        self.digest = self.digest.rotate_left(7) ^ done.map_or(u64::MAX, |seen| seen ^ at as u64);
    }

    /// Of a hundred transactions of this kind so many succeeded.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub fn percent(&self, kind: Kind) -> f64 {
        let of = |counts: &[u64; 7]| counts.get(kind.index()).copied().unwrap_or(0) as f64;
        100.0 * of(&self.successes) / of(&self.runs).max(1.0)
    }

    /// Transactions of all kinds.
    pub fn total(&self) -> u64 {
        self.runs.iter().sum()
    }
}
