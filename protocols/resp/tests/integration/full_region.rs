//! A full region over RESP: expired keys, and a key that grows.

use nearstate_store::{CreateOptions, now_ms_coarse};

use crate::fixture::{TestClient, node_in};

const BYTES: u64 = 64 << 20;

/// Keys expire this long after the fill begins. A machine that takes longer is given more time.
const EXPIRES_MS: u64 = 4000;

/// Sets keys until the region is full. Returns how many. `expires_ms` 0: they do not expire.
fn fill(client: &mut TestClient, expires_ms: u64) -> u32 {
    let value = vec![b'v'; 20_000];
    let expires = expires_ms.to_string();
    for number in 0_u32.. {
        let key = number.to_be_bytes();
        let mut words: Vec<&[u8]> = vec![b"SET", &key, &value];
        if expires_ms != 0 {
            words.extend([&b"PXAT"[..], expires.as_bytes()]);
        }
        let reply = client.ask_bytes(&words);
        if reply.starts_with("-OOM ") {
            return number;
        }
        assert_eq!(reply, "+OK|", "key {number}");
    }
    unreachable!("the region is finite")
}

fn options() -> CreateOptions {
    CreateOptions { bytes_max: BYTES, ..CreateOptions::default() }
}

/// No background task runs: FLUSHDB itself removes what has expired.
#[test]
fn flushdb_empties_a_region_that_is_full_of_expired_keys() {
    let mut wait_ms = EXPIRES_MS;
    let (node, count) = loop {
        let node = node_in(&options());
        let expires_ms = now_ms_coarse() + wait_ms;
        let count = fill(&mut node.client(), expires_ms);
        if now_ms_coarse() < expires_ms {
            while now_ms_coarse() <= expires_ms + 10 {
                std::thread::yield_now();
            }
            break (node, count);
        }
        wait_ms *= 2;
    };
    let mut client = node.client();
    assert!(count > 2000, "{count} keys fit");
    let first = 0_u32.to_be_bytes();
    assert_eq!(client.ask_bytes(&[b"GET", &first]), "$-1|", "it has expired");
    assert_eq!(client.ask_bytes(&[b"DEL", &first]), ":0|", "it has expired");
    assert_eq!(client.ask("FLUSHDB"), "+OK|");
    assert_eq!(client.ask("DBSIZE"), ":0|");
    let again = fill(&mut client, 0);
    assert!(again >= count / 100 * 97, "{again} of {count} keys fit again");
    // And with keys that do not expire.
    assert_eq!(client.ask("FLUSHDB"), "+OK|");
    let once_more = fill(&mut client, 0);
    assert!(once_more >= count / 100 * 97, "{once_more} of {count} keys fit again");
}

/// Once it filled the region at 2 MB.
#[test]
fn a_key_that_grows_by_append_uses_what_it_leaves() {
    let node = node_in(&options());
    let mut client = node.client();
    let part = [b'a'; 100];
    let mut bytes = 0;
    // By 100 bytes at some sizes, and in larger steps between them.
    for target in (300_000..6_000_000_usize).step_by(300_000) {
        for _ in 0..20 {
            bytes += part.len();
            assert_eq!(client.ask_bytes(&[b"APPEND", b"log", &part]), format!(":{bytes}|"));
        }
        let large = vec![b'b'; target - bytes];
        bytes = target;
        assert_eq!(client.ask_bytes(&[b"APPEND", b"log", &large]), format!(":{bytes}|"));
    }
    assert_eq!(client.ask("STRLEN log"), format!(":{bytes}|"));
}

#[test]
fn config_set_changes_nothing_if_a_namespace_cannot_be_watched() {
    let node = node_in(&options());
    let mut client = node.client();
    fill(&mut client, 0);
    let before = "*4|$15|slowlog-max-len|$3|128|$22|notify-keyspace-events|$0||";
    let settings = "CONFIG GET slowlog-max-len notify-keyspace-events";
    let sorted = |reply: &str| {
        let mut words: Vec<String> = reply.split('|').map(str::to_owned).collect();
        words.sort_unstable();
        words
    };
    assert_eq!(sorted(&client.ask(settings)), sorted(before));
    let reply = client.ask("CONFIG SET slowlog-max-len 7 notify-keyspace-events KEA");
    assert!(
        reply.starts_with(
            "-ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events')"
        ),
        "{reply}"
    );
    assert_eq!(sorted(&client.ask(settings)), sorted(before), "{reply}");
    assert_eq!(client.ask("FLUSHALL"), "+OK|");
    let reply = client.ask("CONFIG SET slowlog-max-len 7 notify-keyspace-events KEA");
    assert_eq!(reply, "+OK|");
    assert!(client.ask(settings).contains("|slowlog-max-len|$1|7|"));
}
