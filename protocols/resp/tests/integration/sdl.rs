//! The commands of the SDL module reply and publish like the reference: with a condition that
//! holds, with one that does not, and for invalid requests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{TestClient, TestNode, node};
use nearstate_resp::table::TABLE;
use nearstate_store::{Form, Kind, Metadata, Schema};
use std::collections::BTreeSet;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value|";

/// A client that subscribes to all channels.
fn subscriber(node: &TestNode) -> TestClient {
    let mut subscriber = node.client();
    assert_eq!(subscriber.ask("PSUBSCRIBE *"), "*3|$10|psubscribe|$1|*|:1|");
    subscriber
}

/// The received messages, as `channel=message`.
fn received(subscriber: &mut TestClient) -> String {
    let bytes = subscriber.poll_progress();
    let text = String::from_utf8(bytes).unwrap();
    let deliveries = text.split("*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n").skip(1);
    let reply = deliveries.map(|delivery| {
        let mut lines = delivery.split("\r\n");
        format!("{}={}", lines.nth(1).unwrap(), lines.nth(1).unwrap())
    });
    reply.collect::<Vec<String>>().join(" ")
}

/// A set at `s` and a hash at `h`, created by an embedded process.
fn other_forms(node: &TestNode, namespace: &str) {
    let session = node.region.session().unwrap();
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    let namespace = session.namespace(namespace, &schema).unwrap();
    session
        .transact(|txn| {
            txn.put_members(namespace, b"s", &[b"m"], Metadata::default())?;
            let bytes = Some(&b"v"[..]);
            txn.patch(namespace, b"h", &[nearstate_store::BlockChange { name: "f", bytes }])
        })
        .unwrap();
    assert_eq!(session.get(namespace, b"h").unwrap().unwrap().form(), Form::Blocks);
}

/// Request, reply and messages, in order, on the same records.
const ROWS: &[(&str, &str, &str)] = &[
    ("SETIE k new old", "$-1|", ""),
    ("SETNE k a x", "+OK|", ""),
    ("GET k", "$1|a|", ""),
    ("SETNE k b a", "$-1|", ""),
    ("SETNE k b x", "+OK|", ""),
    ("SETIE k c a", "$-1|", ""),
    ("SETIE k c b", "+OK|", ""),
    ("setie k d c EX 100", "+OK|", ""),
    ("SETIE k e d KEEPTTL", "+OK|", ""),
    ("SETIE k f e XX GET", "$1|e|", ""),
    ("SETIE k g f NX", "$-1|", ""),
    ("SETIE k g f EX 0", "-ERR invalid expire time in 'set' command|", ""),
    ("SETIE k g f BOGUS", "-ERR syntax error|", ""),
    ("GET k", "$1|f|", ""),
    ("DELIE k x", ":0|", ""),
    ("DELIE absent x", ":0|", ""),
    ("DELNE k f", ":0|", ""),
    ("DELNE absent f", ":0|", ""),
    ("DELNE k x", ":1|", ""),
    ("GET k", "$-1|", ""),
    ("SET k f", "+OK|", ""),
    ("DELIE k f", ":1|", ""),
    ("GET k", "$-1|", ""),
    ("MSETPUB a 1 c m", "+OK|", "c=m"),
    ("MSETPUB a 2 b 2 c m", "+OK|", "c=m"),
    ("MGET a b", "*2|$1|2|$1|2|", ""),
    ("MSETMPUB 2 1 a 3 b 3 c m", "+OK|", "c=m"),
    ("MSETMPUB 1 3 a 4 c m d n c o", "+OK|", "c=m d=n c=o"),
    ("MGET a b", "*2|$1|4|$1|3|", ""),
    ("SETXXPUB x 1 c m", "$-1|", ""),
    ("SETNXPUB x 1 c m", "+OK|", "c=m"),
    ("SETNXPUB x 2 c m", "$-1|", ""),
    ("SETXXPUB x 2 c m", "+OK|", "c=m"),
    ("SETNXMPUB x 3 c m d n", "$-1|", ""),
    ("SETNXMPUB y 3 c m d n", "+OK|", "c=m d=n"),
    ("SETIEPUB x 3 1 c m", "$-1|", ""),
    ("SETIEPUB absent 3 1 c m", "$-1|", ""),
    ("SETIEPUB x 3 2 c m", "+OK|", "c=m"),
    ("SETIEMPUB x 4 2 c m d n", "$-1|", ""),
    ("SETIEMPUB x 4 3 c m d n", "+OK|", "c=m d=n"),
    ("SETNEPUB x 5 4 c m", "$-1|", ""),
    ("SETNEPUB x 5 3 c m", "+OK|", "c=m"),
    ("SETNEPUB z 5 3 c m", "+OK|", "c=m"),
    ("MGET x y z", "*3|$1|5|$1|3|$1|5|", ""),
    ("DELPUB absent c m", ":0|", ""),
    ("DELPUB z absent c m", ":1|", "c=m"),
    ("DELMPUB 1 1 absent c m", ":0|", ""),
    ("DELMPUB 2 2 x y c m d n", ":2|", "c=m d=n"),
    ("DELMPUB 2 1 a a c m", ":1|", "c=m"),
    ("SET x 1", "+OK|", ""),
    ("DELIEPUB x 2 c m", ":0|", ""),
    ("DELIEPUB absent 2 c m", ":0|", ""),
    ("DELIEPUB x 1 c m", ":1|", "c=m"),
    ("SET x 1", "+OK|", ""),
    ("DELIEMPUB x 2 c m d n", ":0|", ""),
    ("DELIEMPUB x 1 c m d n", ":1|", "c=m d=n"),
    ("SET x 1", "+OK|", ""),
    ("DELNEPUB x 1 c m", ":0|", ""),
    ("DELNEPUB absent 1 c m", ":0|", ""),
    ("DELNEPUB x 2 c m", ":1|", "c=m"),
    ("MGET a b x y z", "*5|$-1|$1|3|$-1|$-1|$-1|", ""),
];

#[test]
fn every_sdl_command_replies_and_publishes_like_the_reference() {
    for namespace in ["", "{ns},"] {
        let node = node();
        let (mut client, mut subscriber) = (node.client(), subscriber(&node));
        let mut actual = BTreeSet::new();
        for (request, answer, messages) in ROWS {
            let words: Vec<&str> = request.split(' ').collect();
            actual.insert(words.first().unwrap().to_ascii_lowercase());
            let kept = words.iter().map(|word| word.as_bytes()).collect();
            let request = in_namespace(&kept, namespace);
            assert_eq!(client.ask(&request), *answer, "{request}");
            assert_eq!(received(&mut subscriber), *messages, "{request}");
        }
        let module = TABLE.commands().iter().filter(|command| command.group.word() == "module");
        let walks = module.clone().filter(|command| command.name.contains('.')).count();
        let untold: Vec<&str> =
            module.map(|command| command.name).filter(|name| !actual.contains(*name)).collect();
        assert_eq!((untold.len(), walks), (3, 3), "{untold:?}");
    }
}

/// The request with its keys moved into a namespace.
fn in_namespace(kept: &nearstate_resp::parse::OwnedArgs, namespace: &str) -> String {
    let args = kept.args();
    let keys: Vec<usize> = match TABLE.lookup(args) {
        Ok(command) => command.keys.of(args).collect(),
        Err(_) => Vec::new(),
    };
    let words = args.iter().enumerate().map(|(at, word)| {
        let word = std::str::from_utf8(word).unwrap();
        if keys.contains(&at) { format!("{namespace}{word}") } else { word.to_owned() }
    });
    words.collect::<Vec<String>>().join(" ")
}

#[test]
fn a_wrong_number_of_arguments_is_rejected() {
    let mut client = node().client();
    for request in [
        "SETIE k n",
        "SETNE k n",
        "DELIE k",
        "DELIE k o x",
        "DELNE k",
        "DELNE k o x",
        "MSETPUB k v c",
        "MSETPUB k v l c m",
        "MSETMPUB 1 1 k v c",
        "MSETMPUB 1 1 k v c m n",
        "SETXXPUB k v c",
        "SETXXPUB k v c m x",
        "SETNXPUB k v c",
        "SETNXPUB k v c m d n",
        "SETNXMPUB k v c",
        "SETNXMPUB k v c m d",
        "SETIEPUB k n o c",
        "SETIEPUB k n o c m d",
        "SETIEMPUB k n o c",
        "SETIEMPUB k n o c m d",
        "SETNEPUB k n o c",
        "SETNEPUB k n o c m d",
        "DELPUB k c",
        "DELMPUB 0 1 c m",
        "DELMPUB 1 1 k c",
        "DELIEPUB k o c",
        "DELIEPUB k o c m d",
        "DELIEMPUB k o c",
        "DELIEMPUB k o c m d",
        "DELNEPUB k o c",
        "DELNEPUB k o c m d",
        "NGET.ATOMIC",
        "NGET.ATOMIC p COUNT",
        "NGET.ATOMIC p COUNT 1 x",
        "NGET.NOATOMIC",
        "NGET.NOATOMIC p COUNT",
        "NDEL.ATOMIC",
        "NDEL.ATOMIC p q",
    ] {
        let name = request.split(' ').next().unwrap().to_ascii_lowercase();
        let text = format!("-ERR wrong number of arguments for '{name}' command|");
        assert_eq!(client.ask(request), text, "{request}");
    }
}

#[test]
fn invalid_counts_and_options_are_rejected_with_the_texts_of_redis() {
    let mut client = node().client();
    let (set_zero, set_sum) = (
        "-ERR SET_PAIR_COUNT and PUB_PAIR_COUNT must be greater than zero|",
        "-ERR SET_PAIR_COUNT or PUB_PAIR_COUNT do not match the total pair count|",
    );
    let (del_zero, del_sum) = (
        "-ERR DEL_COUNT and PUB_PAIR_COUNT must be greater than zero|",
        "-ERR DEL_COUNT or PUB_PAIR_COUNT do not match the total pair count|",
    );
    for (request, answer) in [
        ("MSETMPUB 0 1 k v c m", set_zero),
        ("MSETMPUB 1 0 k v c m", set_zero),
        ("MSETMPUB -1 1 k v c m", set_zero),
        ("MSETMPUB x 1 k v c m", set_zero),
        ("MSETMPUB 1 1x k v c m", set_zero),
        ("MSETMPUB 1 2 k v c m", set_sum),
        ("MSETMPUB 2 1 k v c m", set_sum),
        ("MSETMPUB 9223372036854775807 1 k v c m", set_sum),
        ("DELMPUB 0 1 k c m", del_zero),
        ("DELMPUB 1 x k c m", del_zero),
        ("DELMPUB 2 1 k c m", del_sum),
        ("DELMPUB 1 9223372036854775807 k c m", del_sum),
        ("NGET.ATOMIC * FOO 1", "--ERR syntax error|"),
        ("NGET.ATOMIC * COUNT 0", "--ERR value is not an integer or out of range|"),
        ("NGET.NOATOMIC * COUNT x", "--ERR value is not an integer or out of range|"),
    ] {
        assert_eq!(client.ask(request), answer, "{request}");
    }
}

#[test]
fn a_key_of_another_type_is_not_compared_but_replaced_and_deleted() {
    let node = node();
    let (mut client, mut subscriber) = (node.client(), subscriber(&node));
    other_forms(&node, "f");
    for key in ["{f},s", "{f},h"] {
        for request in [
            "SETIE k n o",
            "SETNE k n o",
            "DELIE k o",
            "DELNE k o",
            "SETXXPUB k v c m",
            "SETNXPUB k v c m",
            "SETNXMPUB k v c m",
            "SETIEPUB k n o c m",
            "SETIEMPUB k n o c m",
            "SETNEPUB k n o c m",
            "DELIEPUB k o c m",
            "DELIEMPUB k o c m",
            "DELNEPUB k o c m",
        ] {
            let request = request.replacen('k', key, 1);
            assert_eq!(client.ask(&request), WRONG_TYPE, "{request}");
        }
    }
    assert_eq!(received(&mut subscriber), "", "a rejected write publishes nothing");
    // These commands do not compare, and accept keys of any type.
    assert_eq!(client.ask("MSETPUB {f},s 1 c m"), "+OK|");
    assert_eq!(client.ask("DELPUB {f},h {f},s c n"), ":2|");
    assert_eq!(received(&mut subscriber), "c=m c=n");
}

#[test]
fn values_are_compared_completely() {
    let node = node();
    let mut client = node.client();
    let ask = |client: &mut TestClient, words: &[&[u8]]| client.ask_bytes(words);
    assert_eq!(ask(&mut client, &[b"SET", b"bin", b"A\0B"]), "+OK|");
    assert_eq!(ask(&mut client, &[b"SETIE", b"bin", b"new", b"A\0C"]), "$-1|");
    assert_eq!(ask(&mut client, &[b"SETNE", b"bin", b"new", b"A\0B"]), "$-1|");
    assert_eq!(ask(&mut client, &[b"DELIE", b"bin", b"A"]), ":0|");
    assert_eq!(ask(&mut client, &[b"DELIE", b"bin", b"A\0B\0"]), ":0|");
    assert_eq!(ask(&mut client, &[b"SETIE", b"bin", b"", b"A\0B"]), "+OK|");
    assert_eq!(ask(&mut client, &[b"SETIE", b"bin", b"x", b""]), "+OK|");
    assert_eq!(ask(&mut client, &[b"DELIE", b"bin", b"x"]), ":1|");
}

#[test]
fn getex_without_options_keeps_the_expiry_and_an_option_changes_it() {
    let node = node();
    let mut client = node.client();
    let session = node.region.session().unwrap();
    let ends = |node: &str| {
        let namespace = session.known_namespace("e").unwrap().unwrap();
        session.get(namespace, node.as_bytes()).unwrap().unwrap().expires_ms() != 0
    };
    client.ask("SET {e},k 1 EX 1000");
    assert!(ends("k"));
    for (request, has_end) in [
        ("SETIE {e},k 2 1 KEEPTTL", true),
        ("SETIE {e},k 3 2", false),
        ("SETNE {e},k 4 2 PX 100000", true),
        ("SETIEPUB {e},k 5 4 c m", false),
        ("SETIE {e},k 6 5 EX 1000", true),
        ("MSETPUB {e},k 7 c m", false),
    ] {
        assert_eq!(client.ask(request), "+OK|", "{request}");
        assert_eq!(ends("k"), has_end, "{request}");
    }
}

#[test]
fn nget_and_ndel_process_all_keys_that_match() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.ask("NGET.ATOMIC {ns},*"), "*0|");
    assert_eq!(client.ask("NDEL.ATOMIC {ns},*"), ":0|");
    client.ask("MSET {ns},a1 1 {ns},b 2 {ns},a2 3 {other},a1 4 a1 5");
    other_forms(&node, "ns");
    for command in ["NGET.ATOMIC", "nget.noatomic"] {
        for (pattern, answer) in [
            ("{ns},*", "*6|$7|{ns},a1|$1|1|$7|{ns},a2|$1|3|$6|{ns},b|$1|2|"),
            ("{ns},a*", "*4|$7|{ns},a1|$1|1|$7|{ns},a2|$1|3|"),
            ("{ns},a[12] COUNT 1", "*4|$7|{ns},a1|$1|1|$7|{ns},a2|$1|3|"),
            ("*a1", "*6|$2|a1|$1|5|$7|{ns},a1|$1|1|$10|{other},a1|$1|4|"),
            ("{n?},b", "*2|$6|{ns},b|$1|2|"),
            ("none*", "*0|"),
        ] {
            assert_eq!(client.ask(&format!("{command} {pattern}")), answer, "{command} {pattern}");
        }
    }
    // Keys of any type.
    assert_eq!(client.ask("NDEL.ATOMIC {ns},*"), ":5|");
    assert_eq!(client.ask("NGET.ATOMIC *"), "*4|$2|a1|$1|5|$10|{other},a1|$1|4|");
    assert_eq!(client.ask("NDEL.ATOMIC *"), ":2|");
}

#[test]
fn a_walk_of_many_keys_is_complete_and_one_beyond_the_limits_of_exec_is_rejected() {
    let node = node();
    let mut client = node.client();
    let mut pipeline = Vec::new();
    for number in 0..4096 {
        let key = format!("{{ns}},{number}");
        pipeline.extend(crate::fixture::request(&[b"SET", key.as_bytes(), &[b'v'; 100]]));
    }
    client.send(&pipeline);
    // Several parts, between which other clients are served.
    for command in ["NGET.ATOMIC {ns},*", "NGET.NOATOMIC {ns},*"] {
        let reply = client.ask(command);
        assert!(reply.starts_with("*8192|"), "{command}");
        assert_eq!(reply.matches("|$100|vvv").count(), 4096, "{command}");
        for number in 0..4096 {
            assert!(reply.contains(&format!("|{{ns}},{number}|$100|")), "{command}: {number}");
        }
    }
    client.ask("SET {ns},more v");
    let refused = client.ask("NGET.ATOMIC {ns},*");
    assert!(refused.starts_with("-ERR more than 4096 keys match"), "{refused}");
    assert_eq!(client.ask("NDEL.ATOMIC {ns},*"), refused);
    assert!(client.ask("NGET.NOATOMIC {ns},*").starts_with("*8194|"), "the keys still exist");
    assert_eq!(client.ask("NDEL.ATOMIC {ns},?"), ":10|");
}
