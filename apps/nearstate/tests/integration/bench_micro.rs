//! The workloads `micro`, `kv` and `executor`, `bench code`, and commands that were replaced, as
//! processes.

use crate::fixture::NEARSTATE;
use std::process::{Command, Output};

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

fn bench(words: &[&str]) -> Output {
    Command::new(NEARSTATE).arg("bench").args(words).output().unwrap()
}

/// Runs a short benchmark with these arguments. Returns its JSON.
fn run(words: &[&str]) -> serde_json::Value {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let mut all = vec!["run", "--rounds", "2", "--dir", folder, "--json"];
    all.extend(words);
    let output = bench(&all);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that every target ran and that each of its rounds has operations.
fn all_measured(run: &serde_json::Value, targets: usize) {
    let all = run["targets"].as_array().unwrap();
    assert_eq!(all.len(), targets);
    for target in all {
        assert!(target["declined"].is_null(), "{target}");
        let rounds = target["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2);
        for round in rounds {
            assert!(round["ops"].as_u64().unwrap() > 0 && round["wall_ns"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn every_single_operation_is_measured_on_every_store_in_the_client() {
    let variants = [
        "view",
        "view-scope",
        "copy",
        "batch",
        "batch-copy",
        "chain",
        "put",
        "update",
        "walk",
        "insert",
        "put-beside-reader",
        "view-beside-writer",
        "view-beside-memory",
    ];
    for variant in variants {
        let words = ["--records", "4096", "--value-bytes", "64", "--ops", "1000"];
        let mut words = words.to_vec();
        words.extend(["micro", "--variant", variant, "--warm-up", "100"]);
        // Each client process has its own map and prototype, and they have no transactions.
        let is_shared = variant.contains("beside") || variant == "update";
        let targets = if is_shared { "region,lmdb" } else { "region,lmdb,dashmap,prototype" };
        words.extend(["--targets", targets]);
        let run = run(&words);
        all_measured(&run, targets.split(',').count());
        assert!(run["drive"]["block_ops"].as_u64().unwrap() >= 256, "{variant}");
        let background = u64::from(variant.contains("beside"));
        assert_eq!(run["drive"]["background"].as_u64(), Some(background), "{variant}");
    }
}

#[test]
fn one_client_process_is_many_connections() {
    let targets = if is_installed("redis-server") { "node,redis" } else { "node" };
    for variant in ["get", "set", "get-beside-scan", "idle"] {
        let words = ["kv", "--variant", variant, "--records", "1000", "--value-bytes", "100"];
        let more = ["--connections", "10", "--depth", "40", "--ops", "400", "--warm-up", "40"];
        let run = run(&[words.as_slice(), &more, &["--targets", targets]].concat());
        all_measured(&run, targets.split(',').count());
    }
}

#[test]
fn a_node_and_a_ring_that_busy_poll_answer() {
    let words = ["kv", "--records", "100", "--ops", "500", "--warm-up", "50", "--busy-poll"];
    all_measured(&run(&[words.as_slice(), &["--targets", "node,node-ring"]].concat()), 2);
}

#[test]
fn the_executor_is_measured_without_a_store() {
    for variant in ["yield", "suspend-1000", "deadline", "tokio-yield"] {
        let run = run(&["executor", "--variant", variant, "--ops", "100000", "--warm-up", "0"]);
        all_measured(&run, 1);
        assert_eq!(run["targets"][0]["name"], "null");
    }
}

#[test]
fn a_read_makes_no_system_call() {
    if !is_installed("strace") || !is_installed("objdump") {
        eprintln!("skipped: strace or objdump is not installed");
        return;
    }
    let output = bench(&["code", "--reads", "2000", "--dir", env!("CARGO_TARGET_TMPDIR")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = |what: &str| {
        let line = text.lines().find(|line| line.contains(what)).unwrap_or_default();
        line.split_whitespace().last().and_then(|word| word.parse::<u64>().ok())
    };
    let once = count("system calls of a process with 2000 reads");
    assert!(once.is_some(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    // A call for each read would be 2,000 more; one for a hundred reads, 20. Starting a process
    // takes one more or less.
    let twice = count("with 4000 reads");
    assert!(once.zip(twice).is_some_and(|(once, twice)| once.abs_diff(twice) < 10), "{text}");
    assert!(count("view: instructions") > Some(0), "{text}");
}

#[test]
fn a_command_that_was_replaced_names_the_new_one() {
    for (old, new) in [
        (&["micro"][..], "nearstate bench run micro --preset operations"),
        (&["micro", "--quick", "--keys", "1000"], "nearstate bench run micro --preset operations"),
        (&["micro", "--server", "--quick"], "nearstate bench run kv --preset server"),
    ] {
        let output = bench(old);
        assert_eq!(output.status.code(), Some(2), "{old:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(new) && output.stdout.is_empty(), "{old:?}: {text}");
    }
}
