//! Bytes of unauthenticated clients and of members of other clusters.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nearstate_node::{EngineEvent, SharedSettings};
use socket2::{Domain, Socket, Type};
use xxhash_rust::xxh3::xxh3_64;

use crate::fixture::{Cluster, LONG, is_within, settings};

/// A host whose engine has failed tries again after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

fn message(text: &str) -> Vec<u8> {
    let size = u32::try_from(text.len()).unwrap();
    [&size.to_le_bytes()[..], &xxh3_64(text.as_bytes()).to_le_bytes(), text.as_bytes()].concat()
}

fn hello(cluster: &str, from: u64, to: u64) -> Vec<u8> {
    hello_with(&settings("cluster.lease", "300 ms"), (cluster, from, to))
}

fn hello_with(settings: &SharedSettings, (cluster, from, to): (&str, u64, u64)) -> Vec<u8> {
    let of = settings.summary();
    let text = of.text.replace('\n', "\\n");
    let settings = format!(r#"{{"digest":{:?},"text":"{text}"}}"#, of.digest);
    let place = format!(r#""cluster":"{cluster}","from":{from},"to":{to}"#);
    message(&format!(r#"{{"format":2,{place},"settings":{settings}}}"#))
}

/// Sends bytes, and returns what is answered until the connection is closed.
fn answer(cluster: &Cluster, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(cluster.address(1)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // The other side may have closed already.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
fn a_hello_that_does_not_fit_is_refused_with_the_reason() {
    let cluster = Cluster::start(3);
    for (bytes, reason) in [
        (hello("west", 2, 1), "cluster \\\"west\\\", this is \\\"east\\\""),
        (hello("east", 2, 3), "host 3 is meant, this is host 1"),
        (hello("east", 7, 1), "host 7 is not in the cluster file"),
        (hello("east", 1, 1), "host 1 is not in the cluster file"),
        (
            message(&format!(
                r#"{{"format":9,"cluster":"east","from":2,"to":1,"settings":{}}}"#,
                r#"{"digest":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"text":""}"#
            )),
            "format 9",
        ),
        (
            hello_with(&settings("cluster.lease", "10 s"), ("east", 2, 1)),
            "other settings: cluster.lease is \\\"300 ms\\\" here and \\\"10 s\\\" there",
        ),
        (hello_with(&SharedSettings::default(), ("east", 2, 1)), "host 2 has other settings"),
    ] {
        let reply = answer(&cluster, &bytes);
        assert!(reply.contains(reason), "{reply:?} does not say {reason:?}");
    }
    cluster.propose(1, "still alive");
}

/// A connection from an address of this machine.
fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

#[test]
fn silent_connections_keep_no_member_out() {
    let cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let mut held = Vec::new();
    for round in 0..10 {
        // More than there are places, all of them new.
        held.clear();
        for number in 0..200_u8 {
            held.push(connect_from([127, 0, 1, number % 40 + 1], cluster.address(1)));
        }
        let reply = answer(&cluster, &hello("east", 2, 1));
        let events = cluster.hosts[&1].told().1;
        assert!(reply.contains("Welcome"), "round {round}: {reply:?}, {events:?}");
    }
    cluster.propose(2, "second");
}

#[test]
fn connections_of_one_host_keep_no_other_host_out() {
    let cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let report = message("\"Report\"");
    let mut held = Vec::new();
    for _ in 0..150 {
        let mut stream = TcpStream::connect(cluster.address(1)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&hello("east", 2, 1)).unwrap();
        let mut welcome = [0; 12];
        stream.read_exact(&mut welcome).unwrap();
        held.push(stream);
    }
    let reply = answer(&cluster, &[hello("east", 3, 1), report.clone()].concat());
    assert!(reply.contains("report of 1"), "another host: {reply:?}");
    let reply = answer(&cluster, &[hello("east", 2, 1), report].concat());
    assert!(reply.contains("report of 1"), "the same host: {reply:?}");
    // Long before an idle connection is closed, which is after a minute.
    held[0].set_read_timeout(Some(LONG / 4)).unwrap();
    let mut rest = Vec::new();
    held[0].read_to_end(&mut rest).unwrap();
    cluster.propose(2, "second");
}

/// The vote of a host for itself in a term that no host has reached.
fn vote_of(host: u64) -> String {
    format!(r#"{{"leader_id":{{"term":900,"node_id":{host}}},"committed":true}}"#)
}

/// A first entry with this leader, as host 2 that leads in a later term.
fn first_entry(leader: &str) -> Vec<u8> {
    let entry = format!(r#"{{"log_id":{{"leader_id":{leader},"index":0}},"payload":"Blank"}}"#);
    let rest = format!(r#""prev_log_id":null,"entries":[{entry}],"leader_commit":null"#);
    let append = message(&format!(r#"{{"Append":{{"vote":{},{rest}}}}}"#, vote_of(2)));
    [hello("east", 2, 1), append].concat()
}

/// A build with assertions: openraft panics when a member takes back what was decided.
#[test]
#[cfg(debug_assertions)]
fn a_panic_of_openraft_is_a_failure_from_which_the_host_recovers() {
    let cluster = Cluster::start(3);
    cluster.propose(1, "first");
    cluster.hosts[&1].until_line("first");
    answer(&cluster, &first_entry(r#"{"term":900,"node_id":2}"#));
    cluster.hosts[&1].until(|_, others| {
        let is_panic = |event: &EngineEvent| {
            matches!(event, EngineEvent::Failed { reason } if reason.contains("panicked"))
        };
        others.iter().any(is_panic) && others.contains(&EngineEvent::Recovered)
    });
    cluster.propose(1, "second");
}

#[test]
fn two_commands_with_one_place_in_the_order_end_the_engine() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let differs = "is another one than that of this host";
    let reply = answer(&cluster, &first_entry(r#"{"term":0,"node_id":0}"#));
    assert!(reply.contains(differs), "{reply}");
    let host = &cluster.hosts[&1];
    host.until(|_, others| {
        let is_reason = |event: &EngineEvent| {
            matches!(event, EngineEvent::Failed { reason } if reason.contains(differs))
        };
        others.iter().any(is_reason)
    });
    // The others go on. What failed was no failure of a disk: it is not tried again.
    cluster.propose(2, "second");
    assert!(!is_within(3 * RETRY_INTERVAL, || host.engine.status().failure.is_none()));
    cluster.hosts.remove(&1);
    cluster.run(1);
    cluster.hosts[&1].until_line("second");
}

#[test]
fn a_member_does_not_speak_for_another_one() {
    let cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let of =
        |host: u64| format!(r#"{{"leader_id":{{"term":900,"node_id":{host}}},"committed":true}}"#);
    let vote = format!(r#"{{"Vote":{{"vote":{},"last_log_id":null}}}}"#, of(3));
    let reply = answer(&cluster, &[hello("east", 2, 1), message(&vote)].concat());
    assert!(reply.contains("Welcome") && !reply.contains("vote_granted"), "{reply}");
    let id = r#"{"leader_id":{"term":900,"node_id":2},"index":77}"#;
    let entries = format!(r#"[{{"log_id":{id},"payload":"Blank"}}]"#);
    let rest = format!(r#""prev_log_id":null,"entries":{entries},"leader_commit":null"#);
    let gap = format!(r#"{{"Append":{{"vote":{},{rest}}}}}"#, of(2));
    let reply = answer(&cluster, &[hello("east", 2, 1), message(&gap)].concat());
    assert!(reply.contains("Welcome") && !reply.contains("Append"), "{reply}");
    assert!(cluster.hosts[&1].told().1.is_empty());
    cluster.propose(1, "second");
}

#[test]
fn arbitrary_bytes_close_the_connection_and_nothing_else() {
    let cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let good = [hello("east", 2, 1), message(r#"{"Propose":[104,105]}"#)].concat();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..60 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut bytes = good.clone();
        let at = usize::try_from(random >> 32).unwrap() % bytes.len();
        bytes[at] ^= 1 << (random & 7);
        answer(&cluster, &bytes);
    }
    let huge = [&u32::MAX.to_le_bytes()[..], &[0; 8], &[b'x'; 64]].concat();
    assert_eq!(answer(&cluster, &huge), "");
    let deep = message(&format!("{}{}", "[".repeat(2000), "]".repeat(2000)));
    assert_eq!(answer(&cluster, &deep), "");
    assert!(cluster.hosts[&1].told().1.is_empty(), "the engine has not failed");
    cluster.propose(1, "second");
}
