//! `ricsdl` as O-RAN pins it, and today's redis-py, against the node.

use nearstate_clients::programs::Server;
use nearstate_clients::python::{count, run};

/// Lets a script use a node, in which so many tests must have run well.
fn every_call_is_answered(script: &str, list: &str, tests: usize) {
    let node = Server::node(&[]).unwrap_or_else(|why| panic!("{why}"));
    let said = run(script, list, &node).unwrap_or_else(|why| panic!("{why}"));
    println!("{said}");
    assert_eq!(count(&said), Some(tests), "{said}");
}

#[test]
fn ricsdl_works_directly_and_by_sentinel() {
    every_call_is_answered("ricsdl_calls.py", "ricsdl", 31);
}

#[test]
fn redis_py_works_in_both_versions_of_the_protocol() {
    every_call_is_answered("redis_py_calls.py", "redis", 31);
}

#[test]
fn tests_that_did_not_run_are_not_counted() {
    assert_eq!(count("\nRan 3 tests in 0.1s\n\nOK\n"), Some(3));
    assert_eq!(count("\nRan 3 tests in 0.1s\n\nFAILED (errors=1)\n"), None);
    assert_eq!(count(""), None);
}
