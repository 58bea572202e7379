//! `nearstate bench micro --server` from the outside: real servers, each a process.

use std::io::Write as _;
use std::process::Command;

const NEARSTATE: &str = env!("CARGO_BIN_EXE_nearstate");

#[test]
fn the_node_and_redis_are_asked_the_same_and_both_have_figures() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        let _ = writeln!(std::io::stderr(), "skipped: redis-server is not installed");
        return;
    }
    let folder = env!("CARGO_TARGET_TMPDIR");
    let mut command = Command::new(NEARSTATE);
    command.args(["bench", "micro", "--server", "--quick", "--keys", "256", "--dir", folder]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("suspend and resume"), "{text}");
    for what in [
        "GET over TCP, 50 clients: server's time for a request",
        "GET over Unix socket, 50 clients: throughput",
        "SET over TCP, 50 clients, pipelines of 16: server's time for a request",
        "1000 idle connections",
        "one client, the node looking",
        "10 clients: median beside SCAN",
    ] {
        let line = text.lines().find(|line| line.contains(what)).unwrap_or_default();
        let (_, figures) = line.rsplit_once(what).unwrap_or_default();
        let numbers = figures.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        assert!(numbers.filter(|number| *number > 0.0).count() >= 2, "{what}: {text}");
    }
}
