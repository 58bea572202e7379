//! Every named crash point, killed for real.
#![cfg(feature = "crash-points")]
#![expect(clippy::print_stdout, reason = "a test says what it measured")]

use nearstate_torture::points::{Depth, recoveries, writes};
use nearstate_torture::spawn::Starter;
use nearstate_torture::tagged;
use std::path::PathBuf;

const DEPTH: Depth = Depth { occurrences: 3, stride: 9 };

fn starter() -> Starter {
    Starter(vec![env!("CARGO_BIN_EXE_nearstate-torture-child").into()])
}

fn folder(name: &str) -> PathBuf {
    format!("/dev/shm/nearstate-{name}-test-{}", std::process::id()).into()
}

#[test]
fn a_kill_at_any_named_point_loses_tears_and_leaks_nothing() {
    let folder = folder("points");
    let mut reached = writes(&folder, &starter(), DEPTH).unwrap_or_else(|e| panic!("{e}"));
    let more = recoveries(&folder, &starter(), DEPTH).unwrap_or_else(|e| panic!("{e}"));
    let tagged = tagged::points::writes(&folder, &starter(), Depth { occurrences: 1, ..DEPTH });
    let tagged = tagged.unwrap_or_else(|e| panic!("{e}"));
    for (point, kills) in more.kills.into_iter().chain(tagged.kills) {
        *reached.kills.entry(point).or_default() += kills;
    }
    println!("{:#?}", reached.kills);
    assert_eq!(reached.missing(), Vec::<&str>::new(), "points that no scenario reaches");
    std::fs::remove_dir_all(folder).unwrap();
}
