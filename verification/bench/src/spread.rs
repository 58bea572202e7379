//! How far repeated measurements lie apart, and whether two groups of them differ. Rounds are few
//! and their distribution is unknown, so this says no more than they allow.

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Measurements of both groups together at the most for which every order of them is counted: some
/// 100,000 additions. Beyond, the normal distribution replaces the count; it is close by then.
const EXACT_MAX: usize = 40;

/// The smallest number of measurements of each group with which the rank test can reach 5 %: three
/// against three are in perfect order by chance in one of ten cases.
pub const RANKS_MIN: usize = 4;

/// The measurements of one figure in several rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundMeasurements {
    sorted: Vec<f64>,
}

impl RoundMeasurements {
    /// Measurements that are not finite are left out.
    pub fn new(measured: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = measured.into_iter().filter(|x| x.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest; 0 if there is none.
    pub fn min(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(0.0)
    }

    /// The largest; 0 if there is none.
    pub fn max(&self) -> f64 {
        self.sorted.last().copied().unwrap_or(0.0)
    }

    /// The median; 0 if there is none.
    pub fn median(&self) -> f64 {
        crate::stat::median(&self.sorted)
    }

    /// The mean; 0 if there is none.
    pub fn mean(&self) -> f64 {
        crate::stat::mean(&self.sorted)
    }

    /// The 95 % confidence interval of the mean, for normally distributed rounds (Student's t).
    /// `None` for fewer than two rounds.
    pub fn interval_95(&self) -> Option<(f64, f64)> {
        let count = self.sorted.len();
        let freedom = count.checked_sub(1).filter(|f| *f > 0)?;
        let mean = self.mean();
        let squares: f64 = self.sorted.iter().map(|x| (x - mean).powi(2)).sum();
        let error = (squares / as_f64(freedom) / as_f64(count)).sqrt();
        let half = student_95(freedom) * error;
        Some((mean - half, mean + half))
    }
}

/// The 97.5 % quantile of Student's t: from a table, then by Cornish and Fisher's expansion, whose
/// error is below a thousandth there.
fn student_95(freedom: usize) -> f64 {
    let tabled = STUDENT_95.get(freedom.saturating_sub(1)).copied();
    tabled.unwrap_or_else(|| 1.960 + 2.372 / as_f64(freedom) + 2.823 / as_f64(freedom).powi(2))
}

/// The two-sided p-value of the Mann-Whitney U test: the probability that two groups from one
/// distribution are at least as far apart in rank. Ties share their ranks.
pub fn mann_whitney(a: &RoundMeasurements, b: &RoundMeasurements) -> f64 {
    let (ranks, in_a) = doubled_ranks(a, b);
    let total: usize = ranks.iter().sum();
    let chosen: usize = ranks.iter().zip(&in_a).filter(|(_, is)| **is).map(|(r, _)| r).sum();
    let (of_a, all) = (a.count(), ranks.len());
    if of_a == 0 || of_a == all {
        return 1.0;
    }
    // Twice the expected sum of ranks, because all ranks are doubled.
    let expected = as_f64(total) * as_f64(of_a) / as_f64(all);
    let distance = (as_f64(chosen) - expected).abs();
    if all <= EXACT_MAX {
        exact(&ranks, of_a, expected, distance)
    } else {
        normal(&ranks, of_a, distance)
    }
}

/// The rank of every measurement of both groups, doubled so that shared ranks are integers; and
/// whether it belongs to the first group.
fn doubled_ranks(a: &RoundMeasurements, b: &RoundMeasurements) -> (Vec<usize>, Vec<bool>) {
    let of = |spread: &RoundMeasurements, is_a: bool| -> Vec<(f64, bool)> {
        spread.sorted.iter().map(|x| (*x, is_a)).collect()
    };
    let mut all = of(a, true);
    all.extend(of(b, false));
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let mut ranks = Vec::with_capacity(all.len());
    for same in all.chunk_by(|x, y| x.0.total_cmp(&y.0).is_eq()) {
        let before = ranks.len();
        // Twice the mean of the ranks before + 1 to before + len.
        ranks.extend(std::iter::repeat_n(2 * before + same.len() + 1, same.len()));
    }
    (ranks, all.into_iter().map(|(_, is_a)| is_a).collect())
}

/// The p-value by counting: the ways to choose the first group's ranks, by number and sum.
fn exact(ranks: &[usize], of_a: usize, expected: f64, distance: f64) -> f64 {
    let sums = ranks.iter().sum::<usize>() + 1;
    let mut ways = vec![vec![0.0_f64; sums]; of_a + 1];
    if let Some(first) = ways.first_mut().and_then(|row| row.first_mut()) {
        *first = 1.0;
    }
    for rank in ranks {
        for chosen in (1..=of_a).rev() {
            let (below, from) = ways.split_at_mut(chosen);
            let (Some(fewer), Some(row)) = (below.last(), from.first_mut()) else { continue };
            for (way, one_less) in row.iter_mut().skip(*rank).zip(fewer) {
                *way += one_less;
            }
        }
    }
    let Some(row) = ways.last() else { return 1.0 };
    // The tolerance is for rounding errors: sums are integers, but the expected one may not be.
    let is_far = |sum: usize| (as_f64(sum) - expected).abs() >= distance - 1e-9;
    let far: f64 = row.iter().enumerate().filter(|(sum, _)| is_far(*sum)).map(|(_, w)| w).sum();
    far / row.iter().sum::<f64>().max(1.0)
}

/// The p-value by the normal approximation.
fn normal(ranks: &[usize], of_a: usize, distance: f64) -> f64 {
    let all = as_f64(ranks.len());
    let mean = as_f64(ranks.iter().sum()) / all;
    let squares: f64 = ranks.iter().map(|rank| (as_f64(*rank) - mean).powi(2)).sum();
    let variance = squares / (all - 1.0) * as_f64(of_a) * (all - as_f64(of_a)) / all;
    if variance <= 0.0 {
        return 1.0;
    }
    // The continuity correction: half a rank, which is 1 in doubled ranks.
    both_tails((distance - 1.0).max(0.0) / variance.sqrt())
}

/// The normal distribution beyond `z` on either side (Abramowitz and Stegun 7.1.26, to 1.5e-7).
fn both_tails(z: f64) -> f64 {
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let sum = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592]
        .into_iter()
        .fold(0.0, |sum, factor| (sum + factor) * t);
    (sum * (-x * x).exp()).clamp(0.0, 1.0)
}

#[expect(clippy::cast_precision_loss, reason = "counts of rounds and sums of their ranks")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-4 * b.abs().max(1e-3)
    }

    #[test]
    fn the_interval_is_that_of_students_t() {
        // Mean 20, deviation sqrt(12.5), 5 rounds: 20 ± 2.776 x sqrt(12.5 / 5).
        let (low, high) =
            RoundMeasurements::new([15.0, 25.0, 20.0, 18.0, 22.0]).interval_95().unwrap();
        let half = 2.776 * (58.0_f64 / 4.0 / 5.0).sqrt();
        assert!(near(low, 20.0 - half) && near(high, 20.0 + half), "{low} {high}");
        assert_eq!(RoundMeasurements::new([1.0]).interval_95(), None);
        assert_eq!(RoundMeasurements::new([]).interval_95(), None);
        assert!(near(student_95(31), 2.0395) && near(student_95(60), 2.0003), "tables say so");
    }

    #[test]
    fn measurements_that_are_not_finite_are_left_out() {
        let spread = RoundMeasurements::new([f64::NAN, 3.0, f64::INFINITY, 1.0]);
        assert_eq!((spread.count(), spread.min(), spread.max()), (2, 1.0, 3.0));
        assert!(near(spread.median(), 2.0));
    }

    #[test]
    fn the_rank_test_counts_every_order() {
        let of = |from: f64, n: u32| RoundMeasurements::new((0..n).map(|i| from + f64::from(i)));
        // Perfect order of n against n: two of C(2n, n) choices.
        assert!(near(mann_whitney(&of(0.0, 3), &of(10.0, 3)), 2.0 / 20.0));
        assert!(near(mann_whitney(&of(0.0, 4), &of(10.0, 4)), 2.0 / 70.0));
        assert!(near(mann_whitney(&of(10.0, 5), &of(0.0, 5)), 2.0 / 252.0));
        // A textbook example: U = 1 of 4 x 4 has two-sided p = 4/70.
        let a = RoundMeasurements::new([1.0, 2.0, 3.0, 5.0]);
        let b = RoundMeasurements::new([4.0, 6.0, 7.0, 8.0]);
        assert!(near(mann_whitney(&a, &b), 4.0 / 70.0));
        assert!(near(mann_whitney(&a, &a), 1.0), "all ranks are shared");
        assert!(near(mann_whitney(&a, &RoundMeasurements::default()), 1.0));
    }

    #[test]
    fn the_normal_approximation_agrees_with_the_exact_count() {
        assert!(near(both_tails(1.959_964), 0.05) && near(both_tails(0.0), 1.0));
        let a = RoundMeasurements::new((0..20).map(f64::from));
        let b = RoundMeasurements::new((0..20).map(|i| f64::from(i) + 5.5));
        let (ranks, in_a) = doubled_ranks(&a, &b);
        let chosen: usize = ranks.iter().zip(&in_a).filter(|(_, is)| **is).map(|(r, _)| r).sum();
        let distance = (as_f64(chosen) - 820.0).abs();
        let (counted, normal) = (exact(&ranks, 20, 820.0, distance), normal(&ranks, 20, distance));
        assert!((counted - normal).abs() < 0.002, "{counted} {normal}");
    }
}
