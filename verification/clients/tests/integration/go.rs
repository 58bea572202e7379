//! go-redis against the node: v9 in both versions of the protocol, and v8 with the options and the
//! requests of O-RAN's sdlgo.

use std::path::Path;
use std::process::Command;

use nearstate_clients::programs::{Server, root, told};

/// Tests of the Go programs, their parts not counted.
const TESTS: usize = 14;

#[test]
fn go_clients_work() {
    let node = Server::node(&[]).unwrap_or_else(|why| panic!("{why}"));
    // Where its own installer puts it, if it is on no path.
    let installed = Path::new("/usr/local/go/bin/go");
    let go = if installed.is_file() { installed } else { Path::new("go") };
    let mut test = Command::new(go);
    // One after the other: each begins with a node without records.
    test.args(["test", "-count=1", "-parallel=1", "-v", "./..."]);
    test.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly");
    test.env("NEARSTATE_HOST", node.address.ip().to_string());
    test.env("NEARSTATE_PORT", node.address.port().to_string());
    let said = told(test.current_dir(root().join("verification/clients/go")))
        .unwrap_or_else(|why| panic!("the modules come from Go's proxy, in reach once: {why}"));
    println!("{said}");
    let passed = said.lines().filter(|line| line.starts_with("--- PASS: ")).count();
    assert_eq!(passed, TESTS, "{said}");
}
