//! Redis Sentinel is measured as our own fail-overs are.

use nearstate_torture::failovers::sentinel::{SentinelOptions, run};

use crate::fixture::folder;

#[test]
fn a_killed_primary_of_redis_is_replaced_and_the_time_is_measured() {
    let options =
        SentinelOptions { failovers: 1, down_after_ms: 300, folder: folder("sentinel-failovers") };
    let totals = run(&options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", totals.line());
    assert!(totals.failover_us.count() == 1 && totals.acknowledged > 0, "{totals:?}");
    // The Sentinels notice nothing before the primary was silent for this long.
    assert!(totals.failover_us.percentile_ms(50) > 200.0, "{totals:?}");
}
