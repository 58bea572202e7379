//! What the tests share: the same cases in every run, pieces of streams, and a folder in memory.

use std::path::Path;

use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// This number of cases. `PROPTEST_CASES` may ask for more.
pub(crate) fn config(cases: u32) -> Config {
    let cases = Config::default().cases.max(cases);
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// The same cases in every run.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let rng = TestRng::deterministic_rng(RngAlgorithm::XorShift);
    TestRunner::new_with_rng(config(cases), rng)
}

/// Where a stream is split, in ascending order.
pub(crate) fn cuts(places: &[Index], length: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = places.iter().map(|place| place.index(length + 1)).collect();
    cuts.sort_unstable();
    cuts
}

/// A folder in memory, if there is one.
pub(crate) fn folder() -> tempfile::TempDir {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::tempdir_in(base).expect("a folder")
}
