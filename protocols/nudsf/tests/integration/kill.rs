//! Kill -9 of a node under load: no acknowledged write, subscription or timer is lost, and each
//! notification that was due arrives.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a process reports its address, the test its counts")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::fixture::{JSON, TestClient, TestNodeOptions, node_at};
use crate::receiver::receiver;

/// The folder of the region, for the process of a node.
const FOLDER: &str = "NEARSTATE_NUDSF_KILL_FOLDER";

/// How often the node is killed. `NEARSTATE_NUDSF_KILLS` makes the test longer.
const KILLS: usize = 6;

/// Writes between two kills.
const WRITES: usize = 40;

#[test]
#[ignore = "the process of a node, which the kill test starts"]
fn serve_until_killed() {
    let folder = std::env::var(FOLDER).unwrap();
    let node = node_at(&Path::new(&folder).join("region"), TestNodeOptions::default());
    println!("\naddress {}", node.address);
    loop {
        std::thread::park();
    }
}

/// A node in a process of its own, and its address.
fn start(folder: &Path) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "kill::serve_until_killed", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.strip_prefix("address ")?.to_owned())).unwrap();
    (child, address)
}

#[test]
fn req_after_kills_nothing_acknowledged_is_lost_and_everything_due_arrives() {
    let kills = std::env::var("NEARSTATE_NUDSF_KILLS").ok().and_then(|text| text.parse().ok());
    let kills = kills.unwrap_or(KILLS);
    let target = receiver();
    let folder = tempfile::tempdir().unwrap();
    let mut expected: Vec<String> = Vec::new();
    for round in 0..kills {
        let (mut node, address) = start(folder.path());
        let mut client = TestClient::connect(address.parse().unwrap());
        let subscription = json!({
            "clientId": {"nfSetId": "set1"}, "callbackReference": target.uri("/change"),
        });
        let path = format!("/subs-to-notify/s{round}");
        // Earlier subscriptions are still there: all are notified, the first one is enough.
        if round == 0 {
            client.send("PUT", &path, &[JSON], subscription.to_string()).is(201, "");
        } else {
            client.get("/subs-to-notify/s0").is(200, "");
        }
        for number in 0..WRITES {
            let id = format!("{round}-{number}");
            client.put_record(&format!("r{id}"), "{}", &[("b", &format!("<{id}>"))]).is(201, "");
            expected.push(format!("/change <{id}>"));
            let timer = json!({
                "expires": "2020-01-01T00:00:00Z", "deleteAfter": 0,
                "callbackReference": target.uri(&format!("/timer{id}")),
            });
            let path = format!("/nudsf-timer/v1/Realm01/Storage01/timers/t{id}");
            client.send("PUT", &path, &[JSON], timer.to_string()).is(201, "");
            expected.push(format!("/timer{id} "));
        }
        // A record whose expiry comes when its node is gone.
        let ttl = nearstate_store::now_ms() + 300;
        let (seconds, ms) = (i64::try_from(ttl / 1000).unwrap(), ttl % 1000);
        let ttl = time::OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        let ttl = ttl.format(&time::format_description::well_known::Rfc3339).unwrap();
        let ttl = ttl.replace('Z', &format!(".{ms:03}Z"));
        let callback = target.uri(&format!("/expired{round}"));
        let meta = json!({"ttl": ttl, "callbackReference": callback}).to_string();
        client.put_record(&format!("x{round}"), &meta, &[("b", "<last>")]).is(201, "");
        expected.push(format!("/expired{round} <last>"));
        node.kill().unwrap();
        node.wait().unwrap();
    }
    let (mut node, address) = start(folder.path());
    let of = |body: &str| {
        let block = body.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        block.map_or(String::new(), |(id, _)| format!("<{id}>"))
    };
    let received = target.wait(|all| {
        let mut seen: Vec<String> =
            all.iter().map(|one| format!("{} {}", one.path, of(&one.body))).collect();
        seen.sort_unstable();
        expected.iter().all(|one| seen.binary_search(one).is_ok())
    });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for one in &received {
        *counts.entry(format!("{} {}", one.path, of(&one.body))).or_default() += 1;
    }
    let twice: usize = expected.iter().map(|one| counts.get(one).map_or(0, |n| n - 1)).sum();
    println!("{} notifications, {twice} of them twice, after {kills} kills", expected.len());
    // A kill repeats at most the batch that was not removed from the outbox.
    assert!(twice <= kills * 64 * 2, "{twice} of {} arrived twice", expected.len());
    let mut client = TestClient::connect(address.parse().unwrap());
    for round in 0..kills {
        for number in 0..WRITES {
            client.get(&format!("/records/r{round}-{number}")).is(200, "");
        }
    }
    client.get("/nudsf-timer/v1/Realm01/Storage01/timers").is(204, "");
    node.kill().unwrap();
    node.wait().unwrap();
}
