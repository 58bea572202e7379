//! Bits that are flipped in a region that processes use. `nearstate torture --flips 10000` runs
//! more.

use nearstate_torture::flips::run::{FlipOptions, run};

use crate::fixture::{folder, starter};

#[test]
fn flips_under_attached_processes_crash_hang_and_mislead_none_of_them() {
    let flips = std::env::var("NEARSTATE_FLIPS").ok().and_then(|flips| flips.parse().ok());
    let options = FlipOptions { flips: flips.unwrap_or(60), folder: folder("flips"), seed: 1 };
    let totals = run(&options, &starter(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", totals.table());
    assert!(totals.is_passed() && totals.flips == options.flips, "{}", totals.table());
    assert!(totals.found() * 4 > totals.flips, "the flips meet nothing: {}", totals.table());
}
