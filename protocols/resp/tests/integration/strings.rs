//! String commands: replies equal those of Redis 7.0.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{SetOnDrop, node};

/// Sends the requests in order to an empty node.
fn each_is_answered(requests: &[(&str, &str)]) {
    let node = node();
    let mut client = node.client();
    for (request, answer) in requests {
        assert_eq!(client.ask(request), *answer, "{request}");
    }
}

#[test]
fn setie_and_setne_compare_the_value_before_they_set() {
    let node = node();
    let mut client = node.client();
    for (request, answer) in [
        ("SET k v XX", "$-1|"),
        ("EXISTS k", ":0|"),
        ("SET k v NX", "+OK|"),
        ("SET k w NX", "$-1|"),
        ("SET k x XX", "+OK|"),
        ("GET k", "$1|x|"),
        ("HSET replaced f v", ":1|"),
        ("SET replaced s NX", "$-1|"),
        ("SET replaced s XX", "+OK|"),
        ("GET replaced", "$1|s|"),
        ("SET ends v PX 100000", "+OK|"),
        ("SET ends w XX", "+OK|"),
        ("TTL ends", ":-1|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
}

#[test]
fn string_commands_reply_like_redis() {
    let node = node();
    let mut client = node.client();
    for (request, answer) in [
        ("GET k", "$-1|"),
        ("SET k v", "+OK|"),
        ("GET k", "$1|v|"),
        ("GET", "-ERR wrong number of arguments for 'get' command|"),
        ("SETNX k w", ":0|"),
        ("SETNX n w", ":1|"),
        ("SET k x NX", "$-1|"),
        ("SET k x XX GET", "$1|v|"),
        ("SET absent x XX GET", "$-1|"),
        ("SET k x NX XX", "-ERR syntax error|"),
        ("SET k x EX 0", "-ERR invalid expire time in 'set' command|"),
        ("SET k x EX x", "-ERR value is not an integer or out of range|"),
        ("SET k x EX 9223372036854775807", "-ERR invalid expire time in 'set' command|"),
        ("SET k x EX 10 PX 10", "-ERR syntax error|"),
        ("SET k x BOGUS", "-ERR syntax error|"),
        ("SET k y PX 100000 NX", "$-1|"),
        ("set lock token ex 2 nx", "+OK|"),
        ("GETSET k z", "$1|x|"),
        ("GETDEL k", "$1|z|"),
        ("GETDEL k", "$-1|"),
        ("MSET a 1 b 2", "+OK|"),
        ("MSET a", "-ERR wrong number of arguments for 'mset' command|"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command|"),
        ("MGET a b c", "*3|$1|1|$1|2|$-1|"),
        ("MSETNX b 9 c 9", ":0|"),
        ("MSETNX c 9 d 9", ":1|"),
        ("GET b", "$1|2|"),
        ("APPEND s Hello", ":5|"),
        ("APPEND s World", ":10|"),
        ("STRLEN s", ":10|"),
        ("GETRANGE s 0 4", "$5|Hello|"),
        ("GETRANGE s -5 -1", "$5|World|"),
        ("GETRANGE s 5 1000", "$5|World|"),
        ("GETRANGE s 7 3", "$0||"),
        ("GETRANGE s -1 -5", "$0||"),
        ("SETRANGE s 5 ABC", ":10|"),
        ("GET s", "$10|HelloABCld|"),
        ("SETRANGE s -1 x", "-ERR offset is out of range|"),
        ("SETRANGE s 134217728 x", "-ERR string exceeds maximum allowed size (134217728 bytes)|"),
        ("INCR i", ":1|"),
        ("INCRBY i 41", ":42|"),
        ("DECR i", ":41|"),
        ("DECRBY i 50", ":-9|"),
        ("INCRBY i 9223372036854775807", ":9223372036854775798|"),
        ("INCRBY i 100", "-ERR increment or decrement would overflow|"),
        ("DECRBY i -9223372036854775808", "-ERR decrement would overflow|"),
        ("INCR s", "-ERR value is not an integer or out of range|"),
        ("INCRBYFLOAT f 10.5", "$4|10.5|"),
        ("INCRBYFLOAT f 0.1", "$4|10.6|"),
        ("INCRBYFLOAT f 5.0e3", "$22|5010.60000000000000009|"),
        ("INCRBYFLOAT s 1", "-ERR value is not a valid float|"),
        ("SETEX e 0 v", "-ERR invalid expire time in 'setex' command|"),
        ("SETEX e 100 v", "+OK|"),
        ("PSETEX e 100000 w", "+OK|"),
        ("GETEX e PERSIST", "$1|w|"),
        ("GETEX e EX", "-ERR syntax error|"),
        ("GETEX e", "$1|w|"),
        ("SETRANGE gap 3 x", ":4|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
    assert_eq!(client.ask_bytes(&[b"GET", b"gap"]), "$4|\0\0\0x|");
}

#[test]
fn options_are_validated_in_the_order_of_redis() {
    each_is_answered(&[
        ("SETEX e 100 w", "+OK|"),
        // Options are validated before the time, and the time before the key.
        ("SET k x EX 0 BOGUS", "-ERR syntax error|"),
        ("SET k x EX 10 EX 0", "-ERR invalid expire time in 'set' command|"),
        ("SET k x KEEPTTL KEEPTTL", "+OK|"),
        ("SET k x KEEPTTL EX 10", "-ERR syntax error|"),
        // A missing key comes before an invalid time.
        ("GETEX absent PXAT -1", "$-1|"),
        ("GETEX absent EX x", "$-1|"),
        ("GETEX absent PERSIST PERSIST", "$-1|"),
        ("GETEX absent PERSIST EX 10", "-ERR syntax error|"),
        ("GETEX e EX x", "-ERR value is not an integer or out of range|"),
        ("GETEX e PXAT -1", "-ERR invalid expire time in 'getex' command|"),
        // A time in the past deletes the key.
        ("GETEX e PXAT 1", "$1|w|"),
        ("GET e", "$-1|"),
        ("SET p v EXAT 1", "+OK|"),
        ("EXISTS p", ":0|"),
    ]);
}

#[test]
fn arithmetic_matches_redis() {
    each_is_answered(&[
        // The 80-bit long double of x86.
        ("SET f 3.0e3", "+OK|"),
        ("INCRBYFLOAT f 200", "$4|3200|"),
        ("INCRBYFLOAT f 0x10", "$4|3216|"),
        ("SET f 0.1", "+OK|"),
        ("INCRBYFLOAT f 3.0e3", "$22|3000.10000000000000009|"),
        ("INCRBYFLOAT new 1e-30", "$1|0|"),
        ("INCRBYFLOAT new inf", "-ERR increment would produce NaN or Infinity|"),
        ("INCRBYFLOAT new nan", "-ERR value is not a valid float|"),
        (
            "SELECT 4294967296",
            "-ERR value is out of range, value must between -2147483648 and \
                               2147483647|",
        ),
        ("SELECT 1", "-ERR DB index is out of range|"),
    ]);
}

#[test]
fn expired_keys_are_absent_in_transactions_and_outside() {
    let node = node();
    let mut client = node.client();
    for (request, answer) in [
        ("MSET a 1 b 2", "+OK|"),
        ("MULTI", "+OK|"),
        ("GETEX a PXAT 1", "+QUEUED|"),
        ("COPY a c", "+QUEUED|"),
        ("SET b 3 EXAT 1", "+QUEUED|"),
        ("GET b", "+QUEUED|"),
        ("EXEC", "*4|$1|1|:0|+OK|$-1|"),
        ("DBSIZE", ":0|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
}

#[test]
fn watch_detects_a_getex_only_if_it_changes_the_expiry() {
    let node = node();
    let (mut watcher, mut other) = (node.client(), node.client());
    for (change, answer) in
        [("GETEX k PERSIST", "*0|"), ("GETEX k EX 1000", "*-1|"), ("GETEX k PERSIST", "*-1|")]
    {
        assert!(other.ask("SETNX k v").starts_with(':'));
        assert_eq!(watcher.ask("WATCH k"), "+OK|");
        assert_eq!(other.ask(change), "$1|v|");
        assert_eq!(watcher.ask("MULTI"), "+OK|");
        assert_eq!(watcher.ask("EXEC"), answer, "{change}");
    }
}

#[test]
fn requests_in_pieces_and_in_batches_are_answered_in_order() {
    let node = node();
    let mut client = node.client();
    let one = crate::fixture::request(&[b"INCR", b"{ns},count"]);
    let mut answers = Vec::new();
    for byte in one.repeat(3) {
        answers.extend_from_slice(&client.send(&[byte]));
    }
    answers.extend_from_slice(&client.send(&one.repeat(7)));
    let expected = (1..=10).fold(String::new(), |reply, number| reply + &format!(":{number}\r\n"));
    assert_eq!(String::from_utf8_lossy(&answers), expected);
    let session = node.region.session().expect("a session");
    let namespace = session.known_namespace("ns").expect("no damage").expect("made by INCR");
    let view = session.get(namespace, b"count").expect("no damage").expect("there");
    assert_eq!(view.bytes(), b"10", "an embedded process sees the same record");
}

#[test]
fn a_remaining_time_is_not_longer_than_the_requested_time() {
    let node = node();
    let mut client = node.client();
    let now = || u128::from(nearstate_store::now_ms());
    for round in 0..2000 {
        let begun = now();
        let answer = client.ask(&format!("SET k v PXAT {}", begun + 100_000));
        assert_eq!(answer, "+OK|");
        let left = client.ask("PTTL k");
        let left: u128 = left.trim_matches([':', '|']).parse().expect("a number");
        assert!(left <= 100_000, "round {round}: {left} ms");
        client.ask("SET k v PX 50000");
        let end = client.ask("PEXPIRETIME k");
        let end: u128 = end.trim_matches([':', '|']).parse().expect("a number");
        assert!((begun + 50_000..=now() + 50_000).contains(&end), "round {round}: {end}");
    }
}

#[test]
fn several_keys_are_read_at_one_instant() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.ask("MSET {n},a 0 {n},b 0"), "+OK|");
    let session = node.region.session().unwrap();
    let ns = session.known_namespace("n").unwrap().unwrap();
    let is_over = AtomicBool::new(false);
    let write = || {
        let session = node.region.session().unwrap();
        for number in 1_u64.. {
            if is_over.load(Ordering::Acquire) {
                return;
            }
            let text = number.to_string();
            let written = session.transact(|txn| {
                txn.put(ns, b"a", text.as_bytes())?;
                txn.put(ns, b"b", text.as_bytes())
            });
            written.unwrap();
        }
    };
    let different = std::thread::scope(|scope| {
        scope.spawn(write);
        let _end = SetOnDrop(&is_over);
        let mut different = 0;
        for _ in 0..20_000 {
            let reply = client.ask("MGET {n},a {n},b {n},a");
            let values: Vec<&str> = reply.split('|').collect();
            let [_, _, first, _, second, _, third, _] = values.as_slice() else {
                panic!("{reply}")
            };
            assert_eq!((first, first), (second, third), "{reply}");
            different += usize::from(*first != "0");
        }
        different
    });
    assert!(different > 0, "nothing was written meanwhile");
    assert_eq!(client.ask("EXISTS {n},a {n},b {n},c {n},a"), ":3|");
    assert_eq!(client.ask("MGET {n},c {gone},a"), "*2|$-1|$-1|");
}

#[test]
fn a_request_of_more_keys_than_a_transaction_has_is_refused_with_advice() {
    let node = node();
    let mut client = node.client();
    let keys: Vec<String> = (0..4097).map(|number| format!("k{number}")).collect();
    let pairs: Vec<String> = keys.iter().map(|key| format!("{key} v")).collect();
    let (keys, pairs) = (keys.join(" "), pairs.join(" "));
    let refused = "-ERR 4097 keys exceed the limit of one request, 4096: send several requests|";
    for request in [
        format!("MSET {pairs}"),
        format!("MSETNX {pairs}"),
        format!("MSETPUB {pairs} channel message"),
        format!("SUNION {keys}"),
        format!("SINTER {keys}"),
        format!("SDIFF {keys}"),
        format!("SINTERCARD 4097 {keys}"),
        format!("SUNIONSTORE {keys}"),
        format!("SINTERSTORE {keys}"),
        format!("SDIFFSTORE {keys}"),
    ] {
        assert_eq!(client.ask(&request), refused, "{}", request.get(..12).unwrap_or_default());
    }
    assert_eq!(client.ask("DBSIZE"), ":0|");
    // Keys that are given twice count once.
    let twice = format!("MSET {}", "k v ".repeat(5000));
    assert_eq!(client.ask(twice.trim_end()), "+OK|");
    assert_eq!(client.ask("DBSIZE"), ":1|");
}
