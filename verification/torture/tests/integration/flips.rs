//! Bits that are flipped in a region that processes use. `nearstate torture --flips 10000` runs
//! more.

use nearstate_torture::flips::run::{FlipOptions, run};

use crate::fixture::{folder, starter};

#[test]
fn flips_under_attached_processes_crash_hang_and_mislead_none_of_them() {
    let flips = std::env::var("NEARSTATE_FLIPS").ok().and_then(|flips| flips.parse().ok());
    let flips = flips.unwrap_or(60);
    let options = FlipOptions { flips, folder: folder("flips"), seed: 1, only: None };
    let totals = run(&options, &starter(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", totals.table());
    assert_eq!((totals.flips, totals.crashes, totals.hangs), (options.flips, 0, 0));
    // The specification lists what a flip can do to another record: two of 10,000 did.
    assert!(totals.others() <= 1 && totals.unrepaired <= 1, "{}", totals.table());
    assert!(totals.found() * 4 > totals.flips, "the flips meet nothing: {}", totals.table());
}
