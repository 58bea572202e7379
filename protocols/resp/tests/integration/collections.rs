//! Large sets and hashes: the same commands as for small ones, through both conversions, and
//! replies that are collected in slices.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, node};
use nearstate_node::NextAction;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt as _;
use std::task::Poll;

type Set = BTreeSet<String>;

fn member(number: u32) -> String {
    format!("m{number}")
}

/// A command with a key and these words.
fn with_words<'w>(
    client: &mut TestClient,
    command: &'w str,
    key: &'w str,
    words: impl IntoIterator<Item = &'w str>,
) -> String {
    let all: Vec<&[u8]> = [command, key].into_iter().chain(words).map(str::as_bytes).collect();
    client.ask_bytes(&all)
}

/// The bulk strings of a flat array or map.
fn bulks(reply: &str) -> Vec<String> {
    let lines = reply.trim_end_matches('|').split('|').filter(|line| !line.starts_with('*'));
    let lines: Vec<&str> = lines.collect();
    lines.chunks(2).filter_map(|pair| pair.get(1)).map(|text| (*text).to_owned()).collect()
}

fn set(client: &mut TestClient, request: &str) -> Set {
    let all = bulks(&client.ask(request));
    let set: Set = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "{request}: a member is returned twice");
    set
}

/// All pages of a scan.
fn scanned(client: &mut TestClient, request: &str, options: &str) -> Vec<String> {
    let (mut cursor, mut all) = ("0".to_owned(), Vec::new());
    loop {
        let page = bulks(&client.ask(&format!("{request} {cursor}{options}")));
        let (next, found) = page.split_first().unwrap();
        all.extend_from_slice(found);
        cursor.clone_from(next);
        if cursor == "0" {
            return all;
        }
    }
}

fn check_set(client: &mut TestClient, key: &str, model: &Set) {
    assert_eq!(set(client, &format!("SMEMBERS {key}")), *model);
    assert_eq!(client.ask(&format!("SCARD {key}")), format!(":{}|", model.len()));
    let pages = scanned(client, &format!("SSCAN {key}"), " COUNT 7");
    assert_eq!((pages.len(), pages.into_iter().collect::<Set>()), (model.len(), model.clone()));
    let matching = scanned(client, &format!("SSCAN {key}"), " MATCH m1*");
    assert_eq!(matching.len(), model.iter().filter(|name| name.starts_with("m1")).count());
    let random = set(client, &format!("SRANDMEMBER {key} 40"));
    assert!(random.len() == model.len().min(40) && random.is_subset(model));
    let repeated = bulks(&client.ask(&format!("SRANDMEMBER {key} -40")));
    assert!(repeated.len() == if model.is_empty() { 0 } else { 40 });
    assert!(repeated.iter().all(|name| model.contains(name)));
    for name in model.iter().step_by(1 + model.len() / 20) {
        assert_eq!(client.ask(&format!("SISMEMBER {key} {name}")), ":1|");
    }
}

#[test]
fn a_set_grows_and_shrinks_through_both_conversions() {
    let node = node();
    let (mut client, mut model) = (node.client(), Set::new());
    let mut random = 7_u32;
    for step in 0..160 {
        random = random.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        let (from, count) = (random >> 8 & 0x3ff, 1 + (random >> 20 & 0x7f));
        let some: Vec<String> = (from..from + count).map(member).collect();
        let words = some.iter().map(String::as_str);
        // Grows for a while, then shrinks, and so on.
        let is_multi = step % 5 == 0;
        if is_multi {
            assert_eq!(client.ask("MULTI"), "+OK|");
        }
        let before = model.len();
        let reply = if step / 40 % 2 == 0 {
            model.extend(some.iter().cloned());
            with_words(&mut client, "SADD", "{ns},s", words)
        } else if step % 3 == 0 {
            let expected = model.len().saturating_sub(count as usize);
            let popped = bulks(&client.ask(&format!("SPOP {{ns}},s {count}")));
            let popped = if is_multi { bulks(&client.ask("EXEC")) } else { popped };
            for name in &popped {
                assert!(model.remove(name));
            }
            assert_eq!(model.len(), expected);
            check_set(&mut client, "{ns},s", &model);
            continue;
        } else {
            for name in &some {
                model.remove(name);
            }
            with_words(&mut client, "SREM", "{ns},s", words)
        };
        let changed = format!(":{}|", model.len().abs_diff(before));
        if is_multi {
            assert_eq!(reply, "+QUEUED|");
            assert_eq!(client.ask("SCARD {ns},s"), "+QUEUED|");
            assert_eq!(client.ask("SISMEMBER {ns},s none"), "+QUEUED|");
            assert_eq!(client.ask("EXEC"), format!("*3|{changed}:{}|:0|", model.len()));
        } else {
            assert_eq!(reply, changed);
        }
        check_set(&mut client, "{ns},s", &model);
    }
}

#[test]
fn a_hash_grows_and_shrinks_through_both_conversions() {
    let node = node();
    let mut client = node.client();
    let mut model: BTreeMap<String, String> = BTreeMap::new();
    for step in 0..60_u32 {
        let is_growing = step / 15 % 2 == 0;
        for number in (0..40).map(|at| step * 31 % 600 + at) {
            let (name, value) = (member(number), format!("v{step}"));
            if is_growing {
                let is_new = model.insert(name.clone(), value.clone()).is_none();
                let reply = client.ask(&format!("HSET h {name} {value}"));
                assert_eq!(reply, format!(":{}|", u32::from(is_new)));
            } else {
                let existed = model.remove(&name).is_some();
                let reply = client.ask(&format!("HDEL h {name}"));
                assert_eq!(reply, format!(":{}|", u32::from(existed)));
            }
        }
        let of = |all: Vec<String>| -> BTreeMap<String, String> {
            all.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        };
        assert_eq!(of(bulks(&client.ask("HGETALL h"))), model);
        assert_eq!(of(scanned(&mut client, "HSCAN h", " COUNT 9")), model);
        let names: Set = model.keys().cloned().collect();
        assert_eq!(set(&mut client, "HKEYS h"), names);
        assert_eq!(bulks(&client.ask("HVALS h")).len(), model.len());
        assert_eq!(client.ask("HLEN h"), format!(":{}|", model.len()));
        assert!(set(&mut client, "HRANDFIELD h 50").is_subset(&names));
        if let Some((name, value)) = model.iter().next() {
            let bulk = format!("${}|{value}|", value.len());
            assert_eq!(client.ask(&format!("HGET h {name}")), bulk);
            assert_eq!(client.ask(&format!("HMGET h none {name}")), format!("*2|$-1|{bulk}"));
            assert_eq!(client.ask(&format!("HSTRLEN h {name}")), format!(":{}|", value.len()));
            assert_eq!(client.ask(&format!("HSETNX h {name} w")), ":0|");
            let error = client.ask(&format!("HINCRBY h {name} 1"));
            assert_eq!(error, "-ERR hash value is not an integer|");
        }
    }
}

/// Sets of these numbers.
fn add(client: &mut TestClient, key: &str, numbers: impl Iterator<Item = u32>) -> Set {
    let all: Set = numbers.map(member).collect();
    let words: Vec<&str> = all.iter().map(String::as_str).collect();
    for some in words.chunks(3000) {
        with_words(client, "SADD", key, some.iter().copied());
    }
    all
}

#[test]
fn large_sets_are_combined_copied_moved_and_expire() {
    let node = node();
    let mut client = node.client();
    let one = add(&mut client, "one", 0..9_000);
    let two = add(&mut client, "{ns},two", (0..9_000).map(|number| 2 * number));
    let few = add(&mut client, "few", 8_990..9_010);
    assert_eq!(set(&mut client, "SINTER one {ns},two"), &one & &two);
    assert_eq!(set(&mut client, "SUNION one {ns},two few one none"), &(&one | &two) | &few);
    assert_eq!(set(&mut client, "SDIFF one {ns},two none"), &one - &two);
    assert_eq!(set(&mut client, "SDIFF {ns},two one few"), &(&two - &one) - &few);
    assert_eq!(set(&mut client, "SINTER one none {ns},two"), Set::new());
    assert_eq!(client.ask("SINTERCARD 2 one {ns},two"), format!(":{}|", (&one & &two).len()));
    assert_eq!(client.ask("SINTERCARD 2 one {ns},two LIMIT 17"), ":17|");
    assert_eq!(client.ask("SET text v"), "+OK|");
    assert!(client.ask("SUNION one text").starts_with("-WRONGTYPE"));
    assert!(client.ask("HSET one f v").starts_with("-WRONGTYPE"));
    assert!(client.ask("SADD text v").starts_with("-WRONGTYPE"));

    assert_eq!(client.ask("COPY one {ns},copy"), ":1|");
    assert_eq!(client.ask("RENAME one {ns},one"), "+OK|");
    assert_eq!(client.ask("EXPIRE {ns},one 1000"), ":1|");
    assert_eq!(client.ask("SMOVE {ns},one few m0"), ":1|");
    assert_eq!(client.ask("TTL {ns},one"), ":1000|");
    assert_eq!(client.ask("PERSIST {ns},one"), ":1|");
    assert_eq!(client.ask("TTL {ns},one"), ":-1|");
    assert_eq!(client.ask("SCARD {ns},one"), ":8999|");
    check_set(&mut client, "{ns},copy", &one);
    assert_eq!(client.ask("TYPE {ns},copy"), "+set|");
    assert_eq!(client.ask("OBJECT ENCODING {ns},copy"), "$9|hashtable|");
    let dumped = client.send(&crate::fixture::request(&[b"DUMP", b"{ns},copy"]));
    let from = dumped.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
    let payload = &dumped[from..dumped.len() - 2];
    assert_eq!(client.ask_bytes(&[b"RESTORE", b"again", b"0", payload]), "+OK|");
    check_set(&mut client, "again", &one);

    let mut other = node.client();
    assert_eq!(other.ask("WATCH again"), "+OK|");
    assert_eq!(client.ask("SADD again new"), ":1|");
    assert_eq!((other.ask("MULTI"), other.ask("GET k")), ("+OK|".into(), "+QUEUED|".into()));
    assert_eq!(other.ask("EXEC"), "*-1|");
    assert_eq!(client.ask("DBSIZE"), ":6|");
    assert_eq!(client.ask("PEXPIRE again 1"), ":1|");
    assert_eq!(client.ask("DEL {ns},copy {ns},one {ns},two few text"), ":5|");
    while client.ask("EXISTS again") != ":0|" {
        std::thread::yield_now();
    }
}

/// Another client changes the set between all slices: the reply is that of one instant.
#[test]
fn a_long_reply_is_that_of_one_instant() {
    let node = node();
    let (mut client, mut other) = (node.client(), node.client());
    let model = add(&mut client, "s", 0..20_000);
    for writes in [0, 1, 1_000_000] {
        let (mut reply, mut next) = client.begin(&[b"SMEMBERS", b"s"]);
        let (mut slices, mut written) = (0, 0);
        while next == NextAction::Work {
            if written < writes {
                // Both or none.
                assert_eq!(other.ask("SADD s one-of-two two-of-two"), ":2|");
                assert_eq!(other.ask("SREM s one-of-two two-of-two"), ":2|");
                written += 1;
            }
            let (more, then) = client.step();
            reply.extend(more);
            slices += 1;
            next = match then {
                Poll::Ready(then) => then,
                Poll::Pending => NextAction::Read,
            };
        }
        assert!(slices >= 6, "{slices} slices");
        let reply = String::from_utf8(reply).unwrap().replace("\r\n", "|");
        assert_eq!(bulks(&reply).into_iter().collect::<Set>(), model);
    }
}

#[test]
fn fields_that_do_not_exist_are_removed_in_any_number() {
    let node = node();
    let mut client = node.client();
    client.ask("HSET h a 1 b 2");
    let absent: Vec<String> = (0..1100).map(|number| format!("x{number}")).collect();
    assert_eq!(client.ask(&format!("HDEL h a {}", absent.join(" "))), ":1|");
    assert_eq!(client.ask("HGETALL h"), "*2|$1|b|$1|2|");
    assert_eq!(client.ask(&format!("HDEL h {} b b", absent.join(" "))), ":1|");
    assert_eq!(client.ask("EXISTS h"), ":0|");
}

/// Runs a request in slices, and calls `between` before each. Returns the reply and the number of
/// slices.
pub(crate) fn sliced(
    client: &mut TestClient,
    words: &[&[u8]],
    mut between: impl FnMut(usize),
) -> (Vec<u8>, usize) {
    let (mut reply, mut next) = client.begin(words);
    let mut slices = 0;
    while next == NextAction::Work {
        between(slices);
        let (more, then) = client.step();
        reply.extend(more);
        slices += 1;
        next = match then {
            Poll::Ready(then) => then,
            Poll::Pending => NextAction::Read,
        };
    }
    (reply, slices)
}

#[test]
fn large_results_are_stored() {
    let node = node();
    let mut client = node.client();
    let one = add(&mut client, "one", 0..9_000);
    let two = add(&mut client, "{ns},two", (0..9_000).map(|number| 2 * number));
    for is_multi in [false, true] {
        let mut store = |request: &str, expected: &Set| {
            if is_multi {
                assert_eq!(
                    (client.ask("MULTI"), client.ask(request)),
                    ("+OK|".into(), "+QUEUED|".into())
                );
                assert_eq!(client.ask("EXEC"), format!("*1|:{}|", expected.len()), "{request}");
            } else {
                assert_eq!(client.ask(request), format!(":{}|", expected.len()), "{request}");
            }
            check_set(&mut client, "{ns},out", expected);
        };
        store("SINTERSTORE {ns},out one {ns},two", &(&one & &two));
        store("SUNIONSTORE {ns},out one {ns},two one none", &(&one | &two));
        store("SDIFFSTORE {ns},out one {ns},two", &(&one - &two));
        store("SDIFFSTORE {ns},out {ns},two one", &(&two - &one));
        store("SUNIONSTORE {ns},out {ns},out one", &(&(&two - &one) | &one));
        store("SINTERSTORE {ns},out one none", &Set::new());
        assert_eq!(client.ask("EXISTS {ns},out"), ":0|");
    }
    assert_eq!(client.ask("SET text v"), "+OK|");
    for command in ["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"] {
        assert!(client.ask(&format!("{command} out one text")).starts_with("-WRONGTYPE"));
    }
    assert_eq!(client.ask("EXPIRE text 1000"), ":1|");
    assert_eq!(client.ask("SUNIONSTORE text one"), ":9000|");
    assert_eq!(client.ask("TTL text"), ":-1|");
    check_set(&mut client, "text", &one);
    let (reply, slices) = sliced(&mut client, &[b"SUNIONSTORE", b"out", b"one"], |_| {});
    assert!(reply == b":9000\r\n" && slices >= 20, "{slices} slices");
}

/// Another client changes the source between all slices: the target is the source of one instant,
/// and nothing is written before the end.
#[test]
fn a_large_copy_is_that_of_one_instant() {
    let node = node();
    let (mut client, mut other) = (node.client(), node.client());
    let model = add(&mut client, "s", 0..20_000);
    for (writes, request) in [
        (0, &[&b"COPY"[..], b"s", b"out"]),
        (1, &[&b"COPY"[..], b"s", b"out"]),
        (1_000_000, &[&b"COPY"[..], b"s", b"out"]),
        (1_000_000, &[&b"SUNIONSTORE"[..], b"out", b"s"]),
        (0, &[&b"RENAMENX"[..], b"s", b"out"]),
        (1_000_000, &[&b"RENAMENX"[..], b"out", b"s"]),
    ] {
        let source =
            String::from_utf8_lossy(request[if request[0] == b"SUNIONSTORE" { 2 } else { 1 }]);
        let (reply, slices) = sliced(&mut client, request, |slice| {
            if slice >= writes {
                return;
            }
            assert_eq!(other.ask(&format!("SADD {source} one-of-two two-of-two")), ":2|");
            assert_eq!(other.ask(&format!("SREM {source} one-of-two two-of-two")), ":2|");
        });
        let expected = if request[0] == b"SUNIONSTORE" { ":20000\r\n" } else { ":1\r\n" };
        assert_eq!(String::from_utf8_lossy(&reply), expected);
        assert!(slices >= if writes < 2 { 70 } else { 4 }, "{slices} slices");
        if request[0] == b"RENAMENX" {
            assert_eq!(client.ask(&format!("EXISTS {source}")), ":0|");
            let target = String::from_utf8_lossy(request[2]);
            check_set(&mut client, &target, &model);
        } else {
            check_set(&mut client, "out", &model);
            assert_eq!(client.ask("DEL out"), ":1|");
        }
    }
    // The source becomes another record, or none, between two slices.
    let copy = &[&b"COPY"[..], b"s", b"out"];
    let (reply, _) = sliced(&mut client, copy, |slice| {
        if slice == 3 {
            assert_eq!(other.ask("SET s text"), "+OK|");
        }
    });
    assert_eq!((&reply[..], client.ask("GET out")), (&b":1\r\n"[..], "$4|text|".to_owned()));
    assert_eq!(client.ask("DEL s out"), ":2|");
    for (request, expected) in [("COPY", ":0\r\n"), ("RENAME", "-ERR no such key\r\n")] {
        add(&mut client, "s", 0..20_000);
        let (reply, _) = sliced(&mut client, &[request.as_bytes(), b"s", b"out"], |slice| {
            if slice == 3 {
                assert_eq!(other.ask("DEL s"), ":1|");
            }
        });
        assert_eq!(String::from_utf8_lossy(&reply), expected);
        assert_eq!(client.ask("EXISTS out"), ":0|");
    }
    // The target appears.
    for (request, expected) in [("COPY", ":0\r\n"), ("RENAMENX", ":0\r\n")] {
        add(&mut client, "s", 0..20_000);
        let (reply, _) = sliced(&mut client, &[request.as_bytes(), b"s", b"out"], |slice| {
            if slice == 3 {
                assert_eq!(other.ask("SET out text"), "+OK|");
            }
        });
        assert_eq!(String::from_utf8_lossy(&reply), expected);
        assert_eq!(client.ask("GET out"), "$4|text|");
    }
}

/// The payload of a bulk reply.
fn payload(reply: &[u8]) -> &[u8] {
    let from = reply.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
    reply.get(from..reply.len() - 2).unwrap()
}

#[test]
fn large_collections_are_dumped_and_restored_in_slices() {
    let node = node();
    let (mut client, mut other) = (node.client(), node.client());
    let model = add(&mut client, "s", 0..20_000);
    let words: Vec<String> =
        (0..12_000).map(|n| format!("f{} v{}", n / 2 * 2 % 6_000 + n % 2, n)).collect();
    for some in words.chunks(3_000) {
        client.ask(&format!("HSET h {}", some.join(" ")));
    }
    let fields = client.ask("HGETALL h");
    assert_eq!(client.ask("HLEN h"), ":6000|");
    for key in [&b"s"[..], b"h"] {
        let (dumped, slices) = sliced(&mut client, &[b"DUMP", key], |_| {});
        assert!(slices >= 20, "{slices} slices");
        // As in one piece.
        assert_eq!(
            (client.ask("MULTI"), client.ask_bytes(&[b"DUMP", key])),
            ("+OK|".into(), "+QUEUED|".into())
        );
        let whole = client.send(&crate::fixture::request(&[b"EXEC"]));
        assert!(whole.strip_prefix(b"*1\r\n") == Some(&dumped[..]));
        let (reply, slices) =
            sliced(&mut client, &[b"RESTORE", b"again", b"0", payload(&dumped)], |_| {});
        assert!(reply == b"+OK\r\n" && slices >= 20, "{slices} slices");
        if key == b"s" {
            check_set(&mut client, "again", &model);
        } else {
            assert_eq!(client.ask("HGETALL again"), fields);
        }
        let restore: &[&[u8]] = &[b"RESTORE", b"again", b"0", payload(&dumped)];
        assert!(client.ask_bytes(restore).starts_with("-BUSYKEY"));
        assert_eq!(client.ask("DEL again"), ":1|");
        // The key appears between two slices.
        let (reply, _) = sliced(&mut client, restore, |slice| {
            if slice == 3 {
                assert_eq!(other.ask("SET again text"), "+OK|");
            }
        });
        assert!(reply.starts_with(b"-BUSYKEY"));
        let replace: &[&[u8]] = &[b"RESTORE", b"again", b"5000000", payload(&dumped), b"REPLACE"];
        assert_eq!(client.ask_bytes(replace), "+OK|");
        assert!(client.ask("TTL again").starts_with(":4") || client.ask("TTL again") == ":5000|");
        assert_eq!(client.ask("DEL again"), ":1|");
    }
    let (reply, _) = sliced(&mut client, &[b"DUMP", b"s"], |slice| {
        if slice == 3 {
            assert_eq!(other.ask("SET s text"), "+OK|");
        }
    });
    assert!(reply.starts_with(b"-TRYAGAIN"), "{}", String::from_utf8_lossy(&reply));
    // Forged payloads: a repeated field, and fewer elements than counted.
    let pairs: Vec<(Vec<u8>, &[u8])> =
        (0..6_001).map(|n| (format!("{}", n % 6_000).into_bytes(), &b"v"[..])).collect();
    let record = |count: usize| {
        let mut payload =
            nearstate_resp::dump_payload::PayloadWriter::new(nearstate_store::Form::Blocks, &[]);
        payload.count(count);
        for (name, value) in &pairs {
            payload.element(name, value);
        }
        payload.end()
    };
    for count in [6_001, 6_002, 5_999] {
        let reply = client.ask_bytes(&[b"RESTORE", b"forged", b"0", &record(count)]);
        assert_eq!(reply, "-ERR Bad data format|", "{count}");
        assert_eq!(client.ask("EXISTS forged"), ":0|");
    }
}

/// A read of one field keeps no copy of the changed hash.
#[test]
fn many_increments_of_a_large_hash_in_one_transaction() {
    let node = node();
    let mut client = node.client();
    let words: Vec<String> = (0..20_000).map(|number| format!("f{number} {number}")).collect();
    for some in words.chunks(4_000) {
        client.ask(&format!("HSET h {}", some.join(" ")));
    }
    assert_eq!(client.ask("MULTI"), "+OK|");
    for number in 0..20_000 {
        assert_eq!(client.ask(&format!("HINCRBY h f{number} 1")), "+QUEUED|");
    }
    let reply = client.ask("EXEC");
    let replies: Vec<&str> = reply.trim_end_matches('|').split('|').skip(1).collect();
    assert_eq!(replies.len(), 20_000);
    for (number, reply) in replies.iter().enumerate() {
        assert_eq!(*reply, format!(":{}", number + 1));
    }
    assert_eq!(client.ask("HGET h f19999"), "$5|20000|");
}

/// The sets of a request may be many if most do not exist, or are named again.
#[test]
fn a_long_union_runs_in_slices_whatever_else_it_names() {
    let node = node();
    let mut client = node.client();
    let model = add(&mut client, "s", 0..20_000);
    let absent: Vec<String> = (0..200).map(|number| format!("absent{number}")).collect();
    let mut words: Vec<&[u8]> = vec![b"SUNION"];
    for name in &absent {
        words.extend([b"s".as_slice(), name.as_bytes()]);
    }
    let (reply, slices) = sliced(&mut client, &words, |_| ());
    // Not a slice for each name.
    assert!((6..250).contains(&slices), "{slices} slices");
    let reply = String::from_utf8(reply).unwrap().replace("\r\n", "|");
    assert_eq!(bulks(&reply).into_iter().collect::<Set>(), model);
    assert_eq!(sliced(&mut client, &[b"SINTER", b"s", b"absent"], |_| ()).0, b"*0\r\n");
    let without: [&[u8]; 4] = [b"SDIFF", b"s", b"absent", b"other"];
    let reply = String::from_utf8(sliced(&mut client, &without, |_| ()).0).unwrap();
    assert_eq!(bulks(&reply.replace("\r\n", "|")).into_iter().collect::<Set>(), model);
    assert_eq!(sliced(&mut client, &[b"SDIFF", b"absent", b"s"], |_| ()).0, b"*0\r\n");
    let store: [&[u8]; 2] = [b"SUNIONSTORE", b"to"];
    let words = [&store, words.get(1..).unwrap()].concat();
    let (reply, slices) = sliced(&mut client, &words, |_| ());
    assert!(slices >= 6 && reply == b":20000\r\n", "{slices} slices");
}

#[test]
fn a_flipped_count_of_elements_is_reported_and_bounds_nothing() {
    let node = node();
    let mut client = node.client();
    add(&mut client, "s", 0..20_000);
    let head = [&[0xff; 4][..], &20_000_u64.to_le_bytes()].concat();
    let path = node.region_file();
    let image = std::fs::read(&path).unwrap();
    let places = image.windows(head.len()).enumerate().filter(|(_, bytes)| *bytes == head);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut flipped = 0;
    for (place, _) in places {
        file.write_all_at(&[1], place as u64 + 4 + 4).unwrap();
        flipped += 1;
    }
    assert!(flipped > 0);
    for request in ["DUMP s", "SRANDMEMBER s 1000000000", "SPOP s 1000000000"] {
        let reply = client.ask(request);
        assert!(reply.contains("region check --repair"), "{request}: {reply}");
    }
    assert_eq!(client.ask("PING"), "+PONG|");
}
