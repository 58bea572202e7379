//! Redis' own tools against the node: `redis-cli` and `redis-benchmark`.

use std::collections::BTreeSet;
use std::process::Command;

use nearstate_clients::programs::{Server, fed, told};
use nearstate_clients::wire::request;

/// What a user types, of every group of commands. Nothing of it is answered by chance, by the clock
/// or in an order that Redis does not promise.
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

/// `redis-cli` with these words, at a server.
fn cli(server: &Server, words: &[&str]) -> Command {
    tool("redis-cli", server, words)
}

fn tool(program: &str, server: &Server, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    let address = server.address;
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    command.args(words);
    command
}

fn node() -> Server {
    Server::node(&[]).unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn what_is_typed_is_answered_as_by_redis() {
    let (redis, node) = (Server::redis(&[]).unwrap_or_else(|why| panic!("{why}")), node());
    for words in [["--no-raw", "-2"], ["--no-raw", "-3"], ["--raw", "-2"], ["--json", "-3"]] {
        let wanted = fed(&mut cli(&redis, &words), TYPED.as_bytes());
        let got = fed(&mut cli(&node, &words), TYPED.as_bytes());
        let unoffered = |said: Result<String, String>| {
            let said = said.unwrap_or_else(|why| panic!("{words:?}: {why}"));
            // Lists are not offered, which the answer says in its own words.
            let lines =
                said.lines().filter(|line| !line.contains("LPUSHX") && !line.contains("lpushx"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let (wanted, got) = (unoffered(wanted), unoffered(got));
        assert!(wanted.len() > 40, "{words:?}: {wanted:?}");
        assert_eq!(wanted, got, "{words:?}");
    }
}

#[test]
fn a_socket_of_unix_answers_as_the_port() {
    let node = node();
    let mut command = Command::new("redis-cli");
    command.arg("-s").arg(node.folder().join("region.sock")).args(["SET", "a", "by a socket"]);
    assert_eq!(told(&mut command).as_deref(), Ok("OK\n"));
    assert_eq!(told(&mut cli(&node, &["GET", "a"])).as_deref(), Ok("by a socket\n"));
}

#[test]
fn a_mass_of_commands_goes_in_and_every_key_is_found_again() {
    const KEYS: usize = 100_000;
    let node = node();
    let key = |number: usize| format!("{{mass}},{number}").into_bytes();
    let requests: Vec<u8> = (0..KEYS)
        .flat_map(|number| request(&[b"SET".to_vec(), key(number), vec![b'x'; number % 50]]))
        .collect();
    let said = fed(&mut cli(&node, &["--pipe"]), &requests);
    let said = said.unwrap_or_else(|why| panic!("{why}"));
    assert!(said.contains(&format!("errors: 0, replies: {KEYS}")), "{said}");
    told(&mut cli(&node, &["SET", "other", "1"])).unwrap_or_else(|why| panic!("{why}"));
    let scan = ["--scan", "--pattern", "{mass},*"];
    let scanned = told(&mut cli(&node, &scan)).unwrap_or_else(|why| panic!("{why}"));
    let found: BTreeSet<&str> = scanned.lines().collect();
    assert_eq!(found.len(), KEYS, "each key is walked over");
    assert!(found.iter().all(|key| key.starts_with("{mass},")), "and no other");
    let every = told(&mut cli(&node, &["--scan"])).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(every.lines().collect::<BTreeSet<_>>().len(), KEYS + 1);
}

#[test]
fn the_looks_at_a_whole_server_work() {
    let node = node();
    let fill = b"SET {ns},large 0123456789\nHSET {ns},hash a 1 b 2\nSADD {ns},set m\n";
    fed(&mut cli(&node, &[]), fill).unwrap_or_else(|why| panic!("{why}"));
    for (look, shown) in [("--bigkeys", "{ns},large"), ("--memkeys", "Sampled 3 keys")] {
        let said = told(&mut cli(&node, &[look])).unwrap_or_else(|why| panic!("{look}: {why}"));
        assert!(said.contains(shown) && said.contains("Sampled 3 keys"), "{look}: {said}");
    }
}

#[test]
fn redis_benchmark_runs() {
    const REQUESTS: &str = "20000";
    let node = node();
    let tests = "ping_inline,ping_mbulk,set,get,incr,sadd,hset,spop,mset";
    for more in [["-P", "1", "-d", "100"], ["-P", "16", "-d", "1000"]] {
        let mut words = vec!["-q", "-n", REQUESTS, "-c", "20", "-t", tests];
        words.extend(more);
        let said = told(&mut tool("redis-benchmark", &node, &words));
        let said = said.unwrap_or_else(|why| panic!("{why}"));
        println!("{said}");
        let rates = said.matches(" requests per second").count();
        assert_eq!((rates, said.contains("rror")), (tests.split(',').count(), false), "{said}");
    }
    // Every one of them was carried out.
    let count = told(&mut cli(&node, &["GET", "counter:__rand_int__"]));
    assert_eq!(count.as_deref(), Ok("40000\n"));
}
