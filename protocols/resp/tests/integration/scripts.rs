//! The lock scripts of sdlgo, redis-py and ricsdl, by their SHA-1 and by their text.

use crate::fixture::node;

const REFRESH: &str = "a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf";
const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
const REACQUIRE: &str = "1cac51482acf5858da00f6d685d68f886cd6b6b2";
const VALIDITY: &str = "a1cd263f9fd7738509581a71d19c4f4a05f1d918";
const EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";

const RELEASE_TEXT: &[u8] = b"
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        redis.call('del', KEYS[1])
        return 1
    ";

#[test]
fn a_lock_is_changed_only_with_its_token() {
    let node = node();
    let mut client = node.client();
    let session = node.region.session().unwrap();
    let left_ms = || {
        let namespace = session.known_namespace("ns").unwrap().unwrap();
        let end = session.get(namespace, b"lock").unwrap().unwrap().expires_ms();
        if end == 0 { -1 } else { i64::try_from(end - nearstate_store::now_ms()).unwrap() }
    };
    let mut run =
        |sha: &str, rest: &str| client.ask(&format!("EVALSHA {sha} 1 {{ns}},lock {rest}"));
    for (sha, rest, answer) in [
        (REFRESH, "me 5000", ":0|"),
        (RELEASE, "me", ":0|"),
        (REACQUIRE, "me 5000", ":0|"),
        (EXTEND, "me 5000 0", ":0|"),
        (VALIDITY, "me", ":-10|"),
    ] {
        assert_eq!(run(sha, rest), answer, "absent: {sha}");
    }
    let mut other = node.client();
    assert_eq!(other.ask("SET {ns},lock me NX"), "+OK|");
    for (sha, rest, answer) in [
        (REFRESH, "you 5000", ":0|"),
        (RELEASE, "you", ":0|"),
        (REACQUIRE, "you 5000", ":0|"),
        (EXTEND, "you 5000 0", ":0|"),
        (VALIDITY, "you", ":-11|"),
        (VALIDITY, "me", ":-1|"),
        // A key without expiry cannot be extended.
        (EXTEND, "me 5000 0", ":0|"),
    ] {
        assert_eq!(run(sha, rest), answer, "{sha} {rest}");
    }
    assert_eq!(left_ms(), -1);
    assert_eq!(run(REFRESH, "me 500000"), ":1|");
    assert!((400_000..=500_000).contains(&left_ms()), "{}", left_ms());
    assert_eq!(run(EXTEND, "me 500000 0"), ":1|");
    assert!((900_000..=1_000_000).contains(&left_ms()), "{}", left_ms());
    assert_eq!(run(EXTEND, "me 700000 1"), ":1|");
    assert!((600_000..=700_000).contains(&left_ms()), "{}", left_ms());
    assert_eq!(run(REACQUIRE, "me 200000"), ":1|");
    let valid = run(VALIDITY, "me");
    let valid: i64 = valid.trim_start_matches(':').trim_end_matches('|').parse().unwrap();
    assert!((100_000..=200_000).contains(&valid), "{valid}");
    assert_eq!(run(REFRESH, "me x"), "-ERR value is not an integer or out of range|");
    assert_eq!(
        run(REFRESH, "me 9223372036854775807"),
        "-ERR invalid expire time in 'pexpire' command|"
    );
    assert_eq!(
        run(EXTEND, "me 9223372036854775807 0"),
        "-ERR invalid expire time in 'pexpire' command|"
    );
    assert_eq!(run(&RELEASE.to_ascii_uppercase(), "me"), ":1|");
    assert_eq!(run(VALIDITY, "me"), ":-10|");
    // As PEXPIRE: a time in the past deletes the key.
    assert_eq!(other.ask("SET {ns},lock me"), "+OK|");
    assert_eq!(run(REACQUIRE, "me 0"), ":1|");
    assert_eq!(run(VALIDITY, "me"), ":-10|");
}

#[test]
fn known_scripts_are_executed_and_unknown_ones_rejected() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.ask("SET lock me"), "+OK|");
    assert_eq!(client.ask_bytes(&[b"EVAL", RELEASE_TEXT, b"1", b"lock", b"you"]), ":0|");
    assert_eq!(client.ask_bytes(&[b"EVAL", RELEASE_TEXT, b"1", b"lock", b"me"]), ":1|");
    let loaded = format!("$40|{RELEASE}|");
    assert_eq!(client.ask_bytes(&[b"SCRIPT", b"LOAD", RELEASE_TEXT]), loaded);
    let unsupported = "-ERR unsupported script: ";
    for request in ["EVAL x 0", "EVAL_RO x 0", "SCRIPT LOAD x"] {
        let refused = client.ask(request);
        assert!(refused.starts_with(unsupported), "{request}: {refused}");
    }
    let exists = format!("SCRIPT EXISTS {REFRESH} abc {EXTEND}");
    let write = "-ERR Write commands are not allowed from read-only scripts.|";
    for (request, answer) in [
        ("EVALSHA abc 0", "-NOSCRIPT No matching script. Please use EVAL.|"),
        ("EVALSHA_RO abc 0", "-NOSCRIPT No matching script. Please use EVAL.|"),
        ("EVAL x a", "-ERR value is not an integer or out of range|"),
        ("EVAL x -1", "-ERR Number of keys can't be negative|"),
        ("EVAL x 2 a", "-ERR Number of keys can't be greater than number of args|"),
        (
            "EVALSHA x 9223372036854775807",
            "-ERR Number of keys can't be greater than number of args|",
        ),
        ("SCRIPT FLUSH", "+OK|"),
        ("SCRIPT FLUSH async", "+OK|"),
        ("SCRIPT FLUSH x", "-ERR SCRIPT FLUSH only support SYNC|ASYNC option|"),
        (exists.as_str(), "*3|:1|:0|:1|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    for (sha, rest, answer) in [
        (RELEASE, "1 lock me", write),
        (VALIDITY, "1 lock me", ":-10|"),
        (
            VALIDITY,
            "0 lock me",
            "-ERR wrong number of arguments: the script requires a key and 1 arguments|",
        ),
        (
            VALIDITY,
            "1 lock",
            "-ERR wrong number of arguments: the script requires a key and 1 arguments|",
        ),
    ] {
        let request = format!("EVALSHA_RO {sha} {rest}");
        assert_eq!(client.ask(&request), answer, "{request}");
    }
}

#[test]
fn a_script_on_a_key_of_another_type_is_rejected() {
    let node = node();
    let session = node.region.session().unwrap();
    let schema = nearstate_store::Schema {
        kind: nearstate_store::Kind::Mixed,
        ..nearstate_store::Schema::default()
    };
    let namespace = session.namespace("ns", &schema).unwrap();
    let labels = nearstate_store::Metadata::default();
    session.transact(|txn| txn.put_members(namespace, b"group", &[b"m"], labels)).unwrap();
    let mut client = node.client();
    for (sha, rest) in
        [(REFRESH, "m 1"), (RELEASE, "m"), (REACQUIRE, "m 1"), (EXTEND, "m 1 0"), (VALIDITY, "m")]
    {
        let answer = client.ask(&format!("EVALSHA {sha} 1 {{ns}},group {rest}"));
        assert!(answer.starts_with("-WRONGTYPE "), "{sha}: {answer}");
    }
    assert!(session.get(namespace, b"group").unwrap().is_some());
}
