//! Kill -9 of a node under load: no acknowledged write, subscription or timer is lost, and each
//! notification that was due arrives.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a process reports its address, the test its counts")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use nearstate_node::ConnectionLimits;

use serde_json::{Value, json};

use crate::fixture::{JSON, MIXED, STORAGE, TestClient, TestNodeOptions, node_at, record_body};
use crate::receiver::{Received, Receiver, receiver};

/// The folder of the region, for the process of a node.
const FOLDER: &str = "NEARSTATE_NUDSF_KILL_FOLDER";

/// How often the node is killed. `NEARSTATE_NUDSF_KILLS` makes the test longer.
const KILLS: usize = 6;

/// Clients that write at the same time.
const CLIENTS: usize = 3;

/// Acknowledged records before a kill.
const WRITES: usize = 40;

/// Repetitions of the periodic timer, one a second.
const REPETITIONS: usize = 3;

const TIMERS: &str = "/nudsf-timer/v1/Realm01/Storage01/timers";

#[test]
#[ignore = "the process of a node, which the kill test starts"]
fn serve_until_killed() {
    let folder = std::env::var(FOLDER).unwrap();
    let limits =
        ConnectionLimits { request_timeout: Duration::from_secs(2), ..ConnectionLimits::default() };
    let options = TestNodeOptions { limits, ..TestNodeOptions::default() };
    let node = node_at(&Path::new(&folder).join("region"), options);
    println!("\naddress {}", node.address);
    loop {
        std::thread::park();
    }
}

/// A node in a process of its own, and its address.
pub(crate) fn start(folder: &Path) -> (Child, String) {
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

/// What the node has acknowledged, and the notifications that it owes.
#[derive(Default)]
struct Acknowledged {
    records: Vec<String>,
    timers: Vec<String>,
    subscriptions: Vec<String>,
    /// The path and the first block of each notification.
    due: Vec<String>,
}

/// A client that writes until the node is killed. Sends a message for each acknowledged record.
fn write(address: &str, name: &str, target: &Receiver, acks: &Sender<()>) -> Acknowledged {
    let mut client = TestClient::connect(address.parse().unwrap());
    let mut done = Acknowledged::default();
    for number in 0.. {
        let id = format!("{name}-{number}");
        let written = write_one(&mut client, &id, target, &mut done);
        if written.is_err() {
            break;
        }
        // The test has all that it waits for.
        let _ = acks.send(());
    }
    done
}

/// A record of which a change is due, a timer that is due, one that is not, and a subscription.
#[expect(clippy::panic_in_result_fn, reason = "an error is the end of the node")]
fn write_one(
    client: &mut TestClient,
    id: &str,
    target: &Receiver,
    done: &mut Acknowledged,
) -> std::io::Result<()> {
    let mut put = |path: &str, media, body: &str| {
        let reply = client.try_send(("PUT", path), &[media], body.as_bytes())?;
        assert_eq!(reply.status, 201, "{path}: {}", reply.text());
        std::io::Result::Ok(())
    };
    let record = format!("/records/r{id}");
    put(&record, MIXED, &record_body("{}", &[("b", &format!("<{id}>"))]))?;
    done.records.push(record);
    done.due.push(format!("/change <{id}>"));
    let due = json!({
        "expires": "2020-01-01T00:00:00Z", "deleteAfter": 0,
        "callbackReference": target.uri(&format!("/timer{id}")),
    });
    put(&format!("{TIMERS}/due{id}"), JSON, &due.to_string())?;
    done.due.push(format!("/timer{id} "));
    let armed = format!("{TIMERS}/armed{id}");
    put(&armed, JSON, &json!({"expires": "2999-01-01T00:00:00Z"}).to_string())?;
    done.timers.push(armed);
    // It monitors a record that no client writes.
    let other = format!("http://udsf.example{STORAGE}/records/none");
    let subscription = json!({
        "clientId": {"nfSetId": "set1"}, "callbackReference": target.uri("/none"),
        "subFilter": {"monitoredResourceUris": [other]},
    });
    let path = format!("/subs-to-notify/s{id}");
    put(&path, JSON, &subscription.to_string())?;
    done.subscriptions.push(path);
    Ok(())
}

/// A time from now on as a `date-time` with milliseconds.
fn date_time(in_ms: u64) -> String {
    let ms = nearstate_store::now_ms() + in_ms;
    let seconds = i64::try_from(ms / 1000).unwrap();
    let time = time::OffsetDateTime::from_unix_timestamp(seconds).unwrap();
    let text = time.format(&time::format_description::well_known::Rfc3339).unwrap();
    text.replace('Z', &format!(".{:03}Z", ms % 1000))
}

/// Subscribes to all changes, and starts a periodic timer that outlives several nodes.
fn prepare(address: &str, target: &Receiver) {
    let mut client = TestClient::connect(address.parse().unwrap());
    let subscription = json!({
        "clientId": {"nfSetId": "set1"}, "callbackReference": target.uri("/change"),
    });
    client.send("PUT", "/subs-to-notify/all", &[JSON], subscription.to_string()).is(201, "");
    let periodic = json!({
        "expires": date_time(0), "periodicRepetition": 1, "repetitionCount": REPETITIONS,
        "deleteAfter": 0, "callbackReference": target.uri("/periodic"),
    });
    let path = format!("{TIMERS}/periodic");
    client.send("PUT", &path, &[JSON], periodic.to_string()).is(201, "");
}

/// The path of a notification, and the text between the angle brackets of its block.
fn summary(one: &Received) -> String {
    let block = one.body.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    let block = block.map_or(String::new(), |(id, _)| format!("<{id}>"));
    format!("{} {block}", one.path)
}

/// The times of the notifications of the periodic timer, each once.
fn periodic_times(all: &[Received]) -> BTreeSet<String> {
    let of = |one: &Received| {
        let body: Value = serde_json::from_str(&one.body).unwrap();
        body["expires"].as_str().unwrap().to_owned()
    };
    all.iter().filter(|one| one.path == "/periodic").map(of).collect()
}

/// Kills a node when it is dropped. Its writers go on until then, also when the test fails.
struct KillOnDrop<'c>(&'c mut Child);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn req_after_kills_nothing_acknowledged_is_lost_and_everything_due_arrives() {
    let kills = std::env::var("NEARSTATE_NUDSF_KILLS").ok().and_then(|text| text.parse().ok());
    let kills = kills.unwrap_or(KILLS);
    let target = receiver();
    let folder = tempfile::tempdir().unwrap();
    let mut all = Acknowledged::default();
    for round in 0..kills {
        let (mut node, address) = start(folder.path());
        if round == 0 {
            prepare(&address, &target);
        }
        // A record whose expiry comes when its node is gone.
        let callback = target.uri(&format!("/expired{round}"));
        let meta = json!({"ttl": date_time(300), "callbackReference": callback}).to_string();
        let mut client = TestClient::connect(address.parse().unwrap());
        client.put_record(&format!("x{round}"), &meta, &[("b", "<last>")]).is(201, "");
        all.due.push(format!("/expired{round} <last>"));
        let (acks, acked) = channel();
        let written = std::thread::scope(|scope| {
            let end = KillOnDrop(&mut node);
            let writers: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (address, target, acks) = (&address, &target, acks.clone());
                    scope.spawn(move || write(address, &format!("{round}-{client}"), target, &acks))
                })
                .collect();
            for _ in 0..WRITES {
                acked.recv_timeout(Duration::from_secs(120)).unwrap();
            }
            drop(end);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        for one in written {
            all.records.extend(one.records);
            all.timers.extend(one.timers);
            all.subscriptions.extend(one.subscriptions);
            all.due.extend(one.due);
        }
    }
    let (mut node, address) = start(folder.path());
    let received = target.wait(|received| {
        let seen: BTreeSet<String> = received.iter().map(summary).collect();
        let times = periodic_times(received).len();
        all.due.iter().all(|one| seen.contains(one)) && times > REPETITIONS
    });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for one in &received {
        *counts.entry(summary(one)).or_default() += 1;
    }
    let twice: usize = all.due.iter().map(|one| counts.get(one).map_or(0, |n| n - 1)).sum();
    println!("{} notifications, {twice} of them twice, after {kills} kills", all.due.len());
    // A kill repeats at most the batch that was not removed from the outbox.
    assert!(twice <= kills * 64 * 2, "{twice} of {} arrived twice", all.due.len());
    // Each repetition has its own time, a second after the one before.
    let times = periodic_times(&received);
    assert_eq!(times.len(), REPETITIONS + 1, "{times:?}");
    // The first time has the text of the client, with zeros at the end.
    let fraction = |time: &String| {
        let fraction = time.split_once('.').map_or("", |(_, fraction)| fraction);
        fraction.trim_end_matches(['0', 'Z']).to_owned()
    };
    let fractions: BTreeSet<String> = times.iter().map(fraction).collect();
    assert!(fractions.len() <= 1, "{times:?}");
    let mut client = TestClient::connect(address.parse().unwrap());
    for path in all.records.iter().chain(&all.timers).chain(&all.subscriptions) {
        client.get(path).is(200, "");
    }
    // Nothing but what was acknowledged, and what the kill has cut behind its commit.
    let left: Vec<String> =
        serde_json::from_value(client.get(TIMERS).json()["timerIds"].clone()).unwrap();
    let (armed, most) = (all.timers.len(), all.timers.len() + kills * CLIENTS);
    assert!((armed..=most).contains(&left.len()), "{} of {armed}", left.len());
    assert!(left.iter().all(|id| id.starts_with("armed")), "the others have fired: {left:?}");
    node.kill().unwrap();
    node.wait().unwrap();
}
