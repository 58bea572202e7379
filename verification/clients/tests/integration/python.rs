//! `ricsdl` with the packages that O-RAN pins, and current redis-py, against the node.

use nearstate_clients::programs::TestServer;
use nearstate_clients::python::{count, run};

/// Runs a script with a node. The number of its tests that pass is `tests`.
fn run_script(script: &str, list: &str, tests: usize) {
    let node = TestServer::node(&[]).unwrap_or_else(|error| panic!("{error}"));
    let output = run(script, list, &node).unwrap_or_else(|error| panic!("{error}"));
    println!("{output}");
    assert_eq!(count(&output), Some(tests), "{output}");
}

#[test]
fn ricsdl_works_directly_and_through_sentinel() {
    run_script("ricsdl_calls.py", "ricsdl", 31);
}

#[test]
fn redis_py_works_in_both_versions_of_the_protocol() {
    run_script("redis_py_calls.py", "redis", 31);
}

#[test]
fn tests_that_did_not_run_are_not_counted() {
    assert_eq!(count("\nRan 3 tests in 0.1s\n\nOK\n"), Some(3));
    assert_eq!(count("\nRan 3 tests in 0.1s\n\nFAILED (errors=1)\n"), None);
    assert_eq!(count(""), None);
}
