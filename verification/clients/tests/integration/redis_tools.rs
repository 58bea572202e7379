//! Redis' own tools against the node: `redis-cli` and `redis-benchmark`.

use std::collections::BTreeSet;
use std::process::Command;

use nearstate_clients::programs::{TestServer, output_of, output_with_input};
use nearstate_resp_client::encode_request;

/// Typed input with commands of every group. No reply is random, depends on the clock or has an
/// order that Redis does not define.
const TYPED: &str = r#"
SET greeting "hello world" EX 100000
GET greeting
GET absent
SETRANGE greeting 6 Redis
APPEND greeting "\x00\xff"
GET greeting
STRLEN greeting
INCRBY count 41
INCRBYFLOAT count 0.1
MSET {ns},a 1 {ns},b "two words"
MGET {ns},a {ns},b {ns},c
HSET hash field value
HGETALL hash
HMGET hash field absent
HINCRBY hash field 1
SADD set member
SMEMBERS set
SISMEMBER set other
TYPE set
LPUSHX
EXPIRE greeting
PERSIST greeting
TTL greeting
OBJECT ENCODING hash
RENAME greeting farewell
COPY farewell greeting
EXISTS greeting farewell absent
KEYS {ns},a
MULTI
INCR {ns},a
GET greeting
SADD greeting x
EXEC
WATCH {ns},a
UNWATCH
DISCARD
PING "are you there"
ECHO "quoted \"text\""
SELECT 0
PUBLISH channel message
DBSIZE
DEL greeting farewell
FLUSHALL
DBSIZE
"#;

/// `redis-cli` with these arguments, connected to a server.
fn cli(server: &TestServer, args: &[&str]) -> Command {
    tool("redis-cli", server, args)
}

fn tool(program: &str, server: &TestServer, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    let address = server.address;
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    command.args(args);
    command
}

fn node() -> TestServer {
    TestServer::node(&[]).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn redis_cli_prints_the_same_as_with_redis() {
    let (redis, node) = (TestServer::redis(&[]).unwrap_or_else(|error| panic!("{error}")), node());
    for args in [["--no-raw", "-2"], ["--no-raw", "-3"], ["--raw", "-2"], ["--json", "-3"]] {
        let expected = output_with_input(&mut cli(&redis, &args), TYPED.as_bytes());
        let actual = output_with_input(&mut cli(&node, &args), TYPED.as_bytes());
        let without_lists = |output: Result<String, String>| {
            let output = output.unwrap_or_else(|error| panic!("{args:?}: {error}"));
            // Lists are not supported, and the error has a text of its own.
            let lines =
                output.lines().filter(|line| !line.contains("LPUSHX") && !line.contains("lpushx"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let (expected, actual) = (without_lists(expected), without_lists(actual));
        assert!(expected.len() > 40, "{args:?}: {expected:?}");
        assert_eq!(expected, actual, "{args:?}");
    }
}

#[test]
fn the_unix_socket_serves_the_same_records_as_the_port() {
    let node = node();
    let mut command = Command::new("redis-cli");
    command.arg("-s").arg(node.folder().join("region.sock")).args(["SET", "a", "by a socket"]);
    assert_eq!(output_of(&mut command).as_deref(), Ok("OK\n"));
    assert_eq!(output_of(&mut cli(&node, &["GET", "a"])).as_deref(), Ok("by a socket\n"));
}

#[test]
fn a_mass_insertion_stores_every_key() {
    const KEYS: usize = 100_000;
    let node = node();
    let key = |number: usize| format!("{{mass}},{number}").into_bytes();
    let mut requests = Vec::new();
    for number in 0..KEYS {
        encode_request(&[b"SET", &key(number), &vec![b'x'; number % 50]], &mut requests);
    }
    let output = output_with_input(&mut cli(&node, &["--pipe"]), &requests);
    let output = output.unwrap_or_else(|error| panic!("{error}"));
    assert!(output.contains(&format!("errors: 0, replies: {KEYS}")), "{output}");
    output_of(&mut cli(&node, &["SET", "other", "1"])).unwrap_or_else(|error| panic!("{error}"));
    let scan = ["--scan", "--pattern", "{mass},*"];
    let scanned = output_of(&mut cli(&node, &scan)).unwrap_or_else(|error| panic!("{error}"));
    let keys: BTreeSet<&str> = scanned.lines().collect();
    assert_eq!(keys.len(), KEYS, "SCAN returns each key");
    assert!(keys.iter().all(|key| key.starts_with("{mass},")), "and no other key");
    let every = output_of(&mut cli(&node, &["--scan"])).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(every.lines().collect::<BTreeSet<_>>().len(), KEYS + 1);
}

#[test]
fn the_key_statistics_of_redis_cli_work() {
    let node = node();
    let fill = b"SET {ns},large 0123456789\nHSET {ns},hash a 1 b 2\nSADD {ns},set m\n";
    output_with_input(&mut cli(&node, &[]), fill).unwrap_or_else(|error| panic!("{error}"));
    for (option, shown) in [("--bigkeys", "{ns},large"), ("--memkeys", "Sampled 3 keys")] {
        let output = output_of(&mut cli(&node, &[option]))
            .unwrap_or_else(|error| panic!("{option}: {error}"));
        assert!(output.contains(shown) && output.contains("Sampled 3 keys"), "{option}: {output}");
    }
}

#[test]
fn redis_benchmark_runs() {
    const REQUESTS: &str = "20000";
    let node = node();
    let tests = "ping_inline,ping_mbulk,set,get,incr,sadd,hset,spop,mset";
    for more in [["-P", "1", "-d", "100"], ["-P", "16", "-d", "1000"]] {
        let mut args = vec!["-q", "-n", REQUESTS, "-c", "20", "-t", tests];
        args.extend(more);
        let output = output_of(&mut tool("redis-benchmark", &node, &args));
        let output = output.unwrap_or_else(|error| panic!("{error}"));
        println!("{output}");
        let rates = output.matches(" requests per second").count();
        assert_eq!((rates, output.contains("rror")), (tests.split(',').count(), false), "{output}");
    }
    // The node executed every request.
    let count = output_of(&mut cli(&node, &["GET", "counter:__rand_int__"]));
    assert_eq!(count.as_deref(), Ok("40000\n"));
}
