//! Every target of `nearstate bench run` that is installed keeps the promises that workloads rely
//! on. One that is not installed is named and passed over: what has to be there is what
//! `cargo xtask` installs.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use nearstate_bench::keeper::play_roles_with;
use nearstate_workloads::conformance::{Outcome, check};
use nearstate_workloads::targets;
use std::io::Write as _;
use std::path::Path;

/// Seen by whoever looks at a test's output.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn holds(name: &str, layout: Option<&str>) {
    play_roles_with(Path::new(env!("CARGO_BIN_EXE_nearstate")));
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let all = check(name, layout, folder.path(), &mut |what, outcome| match outcome {
        Outcome::Holds => say(&format!("{name}: {what}")),
        Outcome::Declined(why) => say(&format!("{name}: declined: {what}: {why}")),
        Outcome::Broken(how) => say(&format!("{name}: BROKEN: {what}: {how}")),
    })
    .unwrap();
    let broken: Vec<_> =
        all.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Broken(_))).collect();
    assert!(broken.is_empty(), "{name} {layout:?}: {broken:#?}");
    let held = all.iter().filter(|(_, outcome)| *outcome == Outcome::Holds).count();
    assert!(held >= 10, "{name}: only {held} promises were tried");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{name} leaves {left:?}");
}

fn if_installed(name: &str, layout: Option<&str>) {
    match targets::named(name).unwrap().version() {
        Ok(_) => holds(name, layout),
        Err(why) => say(&format!("skipped: {name}: {why}")),
    }
}

#[test]
fn the_region_keeps_the_promises() {
    holds("region", None);
}

#[test]
fn a_node_keeps_the_promises_over_tcp() {
    holds("node", None);
}

#[test]
fn a_node_keeps_the_promises_over_a_unix_socket() {
    holds("node-unix", None);
}

#[test]
fn a_node_keeps_the_promises_through_a_ring() {
    holds("node-ring", None);
}

#[test]
fn redis_keeps_the_promises_over_tcp() {
    holds("redis", None);
}

#[test]
fn redis_keeps_the_promises_over_a_unix_socket() {
    holds("redis-unix", None);
}

#[test]
fn valkey_keeps_the_promises() {
    if_installed("valkey", None);
    if_installed("valkey-unix", None);
}

#[test]
fn lmdb_keeps_the_promises() {
    holds("lmdb", None);
}

#[test]
fn memcached_keeps_the_promises() {
    holds("memcached", None);
}

#[test]
fn geode_keeps_the_promises() {
    for layout in ["partitioned", "partitioned:2:1", "replicated", "zones"] {
        if_installed("geode", Some(layout));
    }
}
