//! go-redis against the node: v9 in both versions of the protocol, and v8 with the options and the
//! requests of O-RAN's sdlgo.

use nearstate_clients::client_programs::go;
use nearstate_clients::programs::{TestServer, output_of, root};

/// Tests of the Go programs, without subtests.
const TESTS: usize = 14;

#[test]
fn go_clients_work() {
    let node = TestServer::node(&[]).unwrap_or_else(|error| panic!("{error}"));
    let mut test = go();
    // One after the other: each test starts with an empty node.
    test.args(["test", "-count=1", "-parallel=1", "-v", "./..."]);
    test.env("NEARSTATE_HOST", node.address.ip().to_string());
    test.env("NEARSTATE_PORT", node.address.port().to_string());
    let output = output_of(test.current_dir(root().join("verification/clients/go")))
        .unwrap_or_else(|error| panic!("Go's module proxy must be reachable once: {error}"));
    println!("{output}");
    let passed = output.lines().filter(|line| line.starts_with("--- PASS: ")).count();
    assert_eq!(passed, TESTS, "{output}");
}
