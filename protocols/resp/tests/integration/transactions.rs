//! `MULTI` to `EXEC`: replies equal those of Redis 7.0, and the commands are one transaction.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixture::{SetOnDrop, TestClient, node};
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::{Kind, Schema, TagSchema};
use std::sync::atomic::{AtomicBool, Ordering};

fn came(client: &mut TestClient) -> String {
    String::from_utf8(client.poll_progress()).unwrap().replace("\r\n", "|")
}

fn all(client: &mut TestClient, script: &[(&str, &str)]) {
    for (request, answer) in script {
        assert_eq!(client.ask(request), *answer, "{request}");
    }
}

const QUEUED: &str = "+QUEUED|";

#[test]
fn transaction_commands_reply_like_redis() {
    let node = node();
    let mut client = node.client();
    let aborted = "-EXECABORT Transaction discarded because of previous errors.|";
    all(
        &mut client,
        &[
            ("EXEC", "-ERR EXEC without MULTI|"),
            ("DISCARD", "-ERR DISCARD without MULTI|"),
            ("UNWATCH", "+OK|"),
            ("MULTI", "+OK|"),
            ("MULTI", "-ERR MULTI calls can not be nested|"),
            ("WATCH a", "-ERR WATCH inside MULTI is not allowed|"),
            ("EXEC", "*0|"),
            ("MULTI", "+OK|"),
            ("SET a", "-ERR wrong number of arguments for 'set' command|"),
            ("SET a 1", QUEUED),
            ("EXEC", aborted),
            ("GET a", "$-1|"),
            ("MULTI", "+OK|"),
            ("FOO", "-ERR unknown command 'FOO', with args beginning with: |"),
            ("EXEC", aborted),
            ("MULTI", "+OK|"),
            ("SET a x", QUEUED),
            ("DISCARD", "+OK|"),
            ("EXEC", "-ERR EXEC without MULTI|"),
            ("GET a", "$-1|"),
            ("MULTI", "+OK|"),
            ("SET a 1", QUEUED),
            ("GET a", QUEUED),
            ("APPEND a 0", QUEUED),
            ("INCR a", QUEUED),
            ("SELECT 1", QUEUED),
            ("ECHO hi", QUEUED),
            ("CLIENT SETNAME j", QUEUED),
            ("WAIT 0 0", QUEUED),
            ("UNWATCH", QUEUED),
            ("DELIE a 11", QUEUED),
            ("GET a", QUEUED),
            ("EXEC", "*11|+OK|$1|1|:2|:11|-ERR DB index is out of range|$2|hi|+OK|:0|+OK|:1|$-1|"),
            ("CLIENT GETNAME", "$1|j|"),
            ("MULTI", "+OK|"),
            ("QUIT", "+OK|"),
        ],
    );
    assert!(client.is_closed);
}

#[test]
fn a_changed_watched_key_aborts_exec() {
    let node = node();
    let (mut one, mut two) = (node.client(), node.client());
    let exec = |client: &mut TestClient| {
        all(client, &[("MULTI", "+OK|"), ("SET done 1", QUEUED), ("GET {w},b", QUEUED)]);
        client.ask("EXEC")
    };
    // {w},b does not exist, nor does its namespace.
    all(&mut one, &[("WATCH a {w},b", "+OK|")]);
    assert_eq!(exec(&mut one), "*2|+OK|$-1|");
    for (setup, change) in [
        ("SET a 1", "SET a 2"),
        ("SET a 1", "SET a 1"),
        ("SET a 1", "DEL_IT"),
        ("DEL_IT", "SET a 1"),
        ("SET a 1", "SET {w},b 1"),
    ] {
        let change = change.replace("DEL_IT", "DELPUB a c m");
        two.ask(&setup.replace("DEL_IT", "DELPUB a c m"));
        two.ask("DELPUB done {w},b c m");
        assert_eq!(one.ask("WATCH a {w},b a"), "+OK|");
        two.ask(&change);
        assert_eq!(exec(&mut one), "*-1|", "{setup}, {change}");
        assert_eq!(two.ask("GET done"), "$-1|");
        // EXEC ended the watch.
        assert!(exec(&mut one).starts_with("*2|+OK|"), "{setup}, {change}");
    }
    // Deleting and recreating a key is a change.
    one.ask("WATCH a");
    two.ask("DELPUB a c m");
    two.ask("SET a 1");
    assert_eq!(exec(&mut one), "*-1|");
    // A change by the same client counts. UNWATCH and DISCARD end the watch.
    all(&mut one, &[("WATCH a", "+OK|"), ("SET a 9", "+OK|")]);
    assert_eq!(exec(&mut one), "*-1|");
    all(&mut one, &[("WATCH a", "+OK|"), ("SET a 9", "+OK|"), ("UNWATCH", "+OK|")]);
    assert!(exec(&mut one).starts_with("*2|"));
    all(
        &mut one,
        &[("WATCH a", "+OK|"), ("MULTI", "+OK|"), ("DISCARD", "+OK|"), ("SET a 9", "+OK|")],
    );
    assert!(exec(&mut one).starts_with("*2|"));
    one.ask("HELLO 3");
    all(&mut one, &[("WATCH a", "+OK|"), ("SET a 9", "+OK|"), ("MULTI", "+OK|"), ("EXEC", "_|")]);
}

#[test]
fn a_failed_command_in_exec_has_no_effect_and_the_others_take_effect() {
    let node = node();
    let (mut client, mut subscriber) = (node.client(), node.client());
    subscriber.ask("SUBSCRIBE c");
    // A namespace of an embedded process that does not accept strings.
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    node.region.session().unwrap().namespace("blocks", &schema).unwrap();
    client.ask("MULTI");
    client.ask("PUBLISH c m");
    client.ask("SET a x");
    client.ask("INCR a");
    // The first pair is buffered before the second one is refused.
    assert_eq!(client.ask("MSET b 1 {blocks},k 2"), QUEUED);
    client.ask("MSETNX c 3 d 4");
    assert_eq!(client.ask("MSET c 9 {blocks},k 2"), QUEUED);
    client.ask("MGET a b c d");
    let answer = client.ask("EXEC");
    let refused = "-WRONGTYPE ";
    assert!(
        answer.starts_with("*7|:1|+OK|-ERR value is not an integer or out of range|-WRONGTYPE"),
        "{answer}"
    );
    assert_eq!(answer.matches(refused).count(), 2, "{answer}");
    assert!(answer.ends_with("*4|$1|x|$-1|$1|3|$1|4|"), "{answer}");
    assert_eq!(
        came(&mut subscriber),
        "*3|$7|message|$1|c|$1|m|",
        "published once, although the transaction ran three times"
    );
    assert_eq!(client.ask("MGET a b c d"), "*4|$1|x|$-1|$1|3|$1|4|");
    // More conflicts than retries: nothing is changed.
    client.ask("MULTI");
    client.ask("SET a y");
    for _ in 0..17 {
        client.ask("MSET b 1 {blocks},k 2");
    }
    assert!(client.ask("EXEC").starts_with(refused));
    assert_eq!(client.ask("MGET a b"), "*2|$1|x|$-1|");
}

#[test]
fn messages_are_published_after_the_commit_only() {
    let node = node();
    let (mut client, mut subscriber) = (node.client(), node.client());
    subscriber.ask("SUBSCRIBE c");
    all(
        &mut client,
        &[
            ("SET k old", "+OK|"),
            ("WATCH k", "+OK|"),
            ("MULTI", "+OK|"),
            ("PUBLISH c one", QUEUED),
            ("SETIEMPUB k new old c two d x", QUEUED),
            ("SETIEPUB k new old c never", QUEUED),
            ("DELPUB k c three", QUEUED),
        ],
    );
    assert_eq!(came(&mut subscriber), "");
    assert_eq!(client.ask("EXEC"), "*4|:1|+OK|$-1|:1|");
    let message = |text: &str| format!("*3|$7|message|$1|c|${}|{text}|", text.len());
    assert_eq!(came(&mut subscriber), ["one", "two", "three"].map(message).concat());
    // A command that fails publishes nothing.
    all(
        &mut client,
        &[
            ("WATCH k", "+OK|"),
            ("SET k 1", "+OK|"),
            ("MULTI", "+OK|"),
            ("PUBLISH c four", QUEUED),
            ("DELPUB k c five", QUEUED),
            ("EXEC", "*-1|"),
            ("MULTI", "+OK|"),
            ("PUBLISH c six", QUEUED),
            ("DISCARD", "+OK|"),
        ],
    );
    assert_eq!(came(&mut subscriber), "");
}

#[test]
fn a_rejected_commit_is_one_error_and_changes_nothing() {
    let node = node();
    let session = node.region.session().unwrap();
    let tags =
        vec![TagSchema { name: "owner".to_owned(), is_required: true, ..TagSchema::default() }];
    session.namespace("owned", &Schema { tags, ..Schema::default() }).unwrap();
    let (mut client, mut subscriber) = (node.client(), node.client());
    subscriber.ask("SUBSCRIBE c");
    all(
        &mut client,
        &[
            ("MULTI", "+OK|"),
            ("SET a 1", QUEUED),
            ("MSETPUB b 1 c m", QUEUED),
            ("SET {owned},x 1", QUEUED),
        ],
    );
    let refused = client.ask("EXEC");
    assert!(refused.starts_with("-ERR ") && refused.contains("owner"), "{refused}");
    assert_eq!(client.ask("MGET a b {owned},x"), "*3|$-1|$-1|$-1|");
    assert_eq!(came(&mut subscriber), "");
}

#[test]
fn commands_not_allowed_in_multi_are_rejected_and_walks_are_complete() {
    let node = node();
    let mut client = node.client();
    let inside = |name: &str| format!("-ERR {name} is not allowed between MULTI and EXEC|");
    all(
        &mut client,
        &[
            ("MSET {n},a 1 {n},b 2", "+OK|"),
            ("MULTI", "+OK|"),
            ("SUBSCRIBE c", QUEUED),
            ("UNSUBSCRIBE", QUEUED),
            ("HELLO 3", QUEUED),
            ("MSET {n},a 9 {n},c 3", QUEUED),
            ("NGET.ATOMIC {n},*", QUEUED),
            ("NDEL.ATOMIC {n},b", QUEUED),
            ("NGET.NOATOMIC {n},*", QUEUED),
            ("GET {n},c", QUEUED),
        ],
    );
    // The walk does not return {n},c, which the transaction creates. Values are those of the
    // transaction.
    let rest = "+OK|*4|$5|{n},a|$1|9|$5|{n},b|$1|2|:1|*2|$5|{n},a|$1|9|$1|3|";
    let refused = ["SUBSCRIBE", "UNSUBSCRIBE", "HELLO"].map(inside).concat();
    assert_eq!(client.ask("EXEC"), format!("*8|{refused}{rest}"));
    assert_eq!(client.ask("NGET.ATOMIC {n},*"), "*4|$5|{n},a|$1|9|$5|{n},c|$1|3|");
    client.ask("MULTI");
    client.ask("SET {n},d 1");
    client.ask("INFO keyspace");
    let answer = client.ask("EXEC");
    assert!(answer.starts_with("*2|+OK|$") && answer.contains("db0:keys=2,"), "{answer}");
}

/// Concurrent changes of the same records cause conflicts and repeated runs. Each reply, change and
/// message still happens exactly once.
#[test]
fn conflicts_are_retried_and_no_write_is_applied_twice() {
    const ROUNDS: usize = 300;
    let node = node();
    let (mut client, mut subscriber) = (node.client(), node.client());
    subscriber.ask("SUBSCRIBE c");
    client.ask("MSET {n},a 0 {n},b 0");
    let region = node.region.clone();
    let is_finished = AtomicBool::new(false);
    let (executed, added) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let session = region.session().unwrap();
            let namespace = session.known_namespace("n").unwrap().unwrap();
            let mut added = 0_u64;
            while !is_finished.load(Ordering::Acquire) {
                session
                    .transact::<_, nearstate_store::Error>(|txn| {
                        for key in [b"a", b"b"] {
                            let now = txn.get(namespace, key)?.unwrap().bytes().to_vec();
                            let now: u64 = String::from_utf8(now).unwrap().parse().unwrap();
                            txn.put(namespace, key, (now + 1).to_string().as_bytes())?;
                        }
                        Ok(())
                    })
                    .unwrap();
                added += 1;
                (0..2000).for_each(|_| std::hint::spin_loop());
            }
            added
        });
        let end = SetOnDrop(&is_finished);
        let mut executed = 0;
        for _ in 0..ROUNDS {
            client.ask("MULTI");
            client.ask("INCR {n},a");
            // Gives the other writer time to cause a conflict.
            (0..50).for_each(|_| drop(client.ask("GET {n},c")));
            client.ask("PUBLISH c m");
            client.ask("INCR {n},b");
            let answer = client.ask("EXEC");
            // Under this load the node may reply with an error that asks for a retry.
            if answer.starts_with("-BUSY") {
                continue;
            }
            let numbers: Vec<&str> = answer.split('|').collect();
            assert_eq!(numbers.get(1), numbers.get(53), "{answer}");
            executed += 1;
        }
        drop(end);
        (executed, other.join().unwrap())
    });
    let sum = (executed + added).to_string();
    let both = format!("*2|${0}|{sum}|${0}|{sum}|", sum.len());
    assert_eq!(client.ask("MGET {n},a {n},b"), both);
    let deliveries = came(&mut subscriber).matches("message").count();
    assert_eq!(u64::try_from(deliveries).unwrap(), executed);
}

#[test]
fn the_limits_of_a_transaction_are_errors() {
    // The time limit must not interfere on a slow machine.
    let mut settings = RespSettings::new(Users::open(&TABLE));
    settings.exec_max = std::time::Duration::from_secs(3600);
    let node = crate::fixture::node_with(settings);
    let mut client = node.client();
    client.ask("PING");
    let kept = client.kept();
    let keys: Vec<String> = (0..4097).map(|number| format!("k{number}")).collect();
    let mut words: Vec<&[u8]> = vec![b"WATCH"];
    words.extend(keys.iter().map(String::as_bytes));
    let refused = client.ask_bytes(&words);
    assert!(
        refused.starts_with("-ERR too many watched keys: a transaction holds at most 4096"),
        "{refused}"
    );
    // In addition to the buffers of the parser.
    assert!(client.kept() < kept + 100_000, "a rejected WATCH keeps no keys");
    // A request with too many keys reads none of them.
    words.truncate(4097);
    assert_eq!(client.ask_bytes(&words), "+OK|");
    assert_eq!(client.ask_bytes(&words), "+OK|", "the keys are already watched");
    assert!(
        client
            .ask("WATCH other")
            .starts_with("-ERR too many watched keys: a transaction holds at most 4096")
    );
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask("GET k0"), "+QUEUED|");
    assert_eq!(client.ask("EXEC"), "*1|$-1|");
    // More records than a transaction accepts: the command that exceeds the limit fails.
    client.ask("MULTI");
    for part in keys.chunks(2000) {
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        words.extend(part.iter().flat_map(|key| [key.as_bytes(), b"v"]));
        client.ask_bytes(&words);
    }
    let answer = client.ask("EXEC");
    assert!(answer.starts_with("*3|+OK|+OK|-ERR "), "{answer}");
    assert_eq!(client.ask("MGET k0 k3999 k4000 k4096"), "*4|$1|v|$1|v|$-1|$-1|");
}

#[test]
fn watched_keys_are_limited_and_a_read_only_exec_creates_no_namespace() {
    let node = node();
    let mut client = node.client();
    let long = vec![b'k'; 4097];
    assert!(client.ask_bytes(&[b"WATCH", &long]).starts_with("-ERR a key of 4097 bytes"));
    let longest = [&b"{"[..], &[b'n'; 255], b"},", &[b'k'; 4096]].concat();
    assert_eq!(client.ask_bytes(&[b"WATCH", &longest]), "+OK|");
    assert_eq!(client.ask("WATCH {absent},k"), "+OK|");
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask("GET {other},k"), "+QUEUED|");
    assert_eq!(client.ask("EXEC"), "*1|$-1|");
    let session = node.region.session().expect("a session");
    assert!(session.known_namespace("absent").expect("no damage").is_none());
}

/// What creates a namespace meanwhile would otherwise not be noticed.
#[test]
fn a_watched_key_of_a_missing_namespace_is_validated_if_only_scripts_write() {
    const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
    let node = node();
    let mut client = node.client();
    let session = node.region.session().expect("a session");
    assert_eq!(client.ask("SET {locks},lock token"), "+OK|");
    assert_eq!(client.ask("WATCH {absent},k"), "+OK|");
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask(&format!("EVALSHA {RELEASE} 1 {{locks}},lock token")), "+QUEUED|");
    assert_eq!(client.ask("EXEC"), "*1|:1|");
    let watched = session.known_namespace("absent").expect("no damage");
    assert!(watched.is_some(), "the commit has validated that it has no such record");
}
