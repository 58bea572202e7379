//! Tags, ends, watchers, the stream, counters and objects, killed at every named point.
#![cfg(feature = "crash-points")]
#![expect(clippy::print_stdout, reason = "a test says what it measured")]
#![expect(clippy::panic, reason = "a test fails by panicking")]

use nearstate_torture::points::Depth;
use nearstate_torture::spawn::Starter;
use nearstate_torture::tagged::points::{kept, recoveries, writes};
use std::path::PathBuf;

const DEPTH: Depth = Depth { occurrences: 4, stride: 9 };

fn starter() -> Starter {
    Starter(vec![env!("CARGO_BIN_EXE_nearstate-torture-child").into()])
}

fn folder(name: &str) -> PathBuf {
    format!("/dev/shm/nearstate-tagged-{name}-test-{}", std::process::id()).into()
}

#[test]
fn a_kill_at_any_named_point_leaves_indexes_events_and_counts_right() {
    let folder = folder("points");
    let reached = writes(&folder, &starter(), DEPTH).unwrap_or_else(|e| panic!("{e}"));
    println!("{:#?}", reached.kills);
    let of_events = ["txn.announced", "txn.appended", "tell.numbered", "ring.named"];
    assert!(of_events.iter().all(|point| reached.kills.contains_key(point)));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_kill_of_whoever_recovers_a_commit_with_events_tells_each_once() {
    let folder = folder("recoveries");
    let reached = recoveries(&folder, &starter(), DEPTH).unwrap_or_else(|e| panic!("{e}"));
    println!("{:#?}", reached.kills);
    assert!(reached.kills.contains_key("tell.numbered"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_stream_that_keeps_everything_does_so_after_any_kill() {
    let folder = folder("kept");
    let kills = kept(&folder, &starter()).unwrap_or_else(|e| panic!("{e}"));
    assert!(kills > 10, "{kills} kills");
    std::fs::remove_dir_all(folder).unwrap();
}
