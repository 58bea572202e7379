//! The node over real sockets, with a protocol of lines.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{Echo, LineClient, serve};
use nearstate_node::{ConnectionLimits, Endpoint, ListenAddress, Node, NodeConfig};
use nearstate_store::{CreateOptions, Region};

#[test]
fn lines_are_answered_in_order_regardless_of_packet_boundaries() {
    let served = serve(2, ConnectionLimits::default());
    let mut client = served.tcp();
    for byte in b"one\ntwo\n" {
        client.writer.write_all(&[*byte]).unwrap();
    }
    assert_eq!((client.receive(), client.receive()), ("one".to_owned(), "two".to_owned()));

    let mut sender = client.writer.try_clone().unwrap();
    let pipelined = std::thread::spawn(move || {
        let all: Vec<_> = (0..200_000).map(|number| format!("request {number}\n")).collect();
        let all = all.concat();
        for (part, length) in [1, 7, 4096, 65_535, 65_536, 100_003].into_iter().cycle().scan(
            all.as_bytes(),
            |rest, length: usize| {
                let length = length.min(rest.len());
                let (part, after) = rest.split_at(length);
                *rest = after;
                (length > 0).then_some((part, length))
            },
        ) {
            assert_eq!(part.len(), length);
            sender.write_all(part).unwrap();
        }
    });
    for number in 0..200_000 {
        assert_eq!(client.receive(), format!("request {number}"));
    }
    pipelined.join().unwrap();
    let seen = served.node().stats().total().0;
    assert_eq!(seen.bytes_read, seen.bytes_written);
    assert!(seen.writes < 100_000, "replies are written together: {seen:?}");
}

#[test]
fn a_request_of_eight_megabytes_is_received_completely() {
    let served = serve(1, ConnectionLimits::default());
    let mut client = served.unix();
    let large = "l".repeat(8 << 20);
    let mut sender = client.writer.try_clone().unwrap();
    let line = format!("{large}\nsmall\n");
    let sent = std::thread::spawn(move || sender.write_all(line.as_bytes()).unwrap());
    assert!(client.receive() == large);
    assert_eq!(client.receive(), "small");
    sent.join().unwrap();
}

#[test]
fn clients_of_the_unix_socket_are_distributed_round_robin() {
    let served = serve(3, ConnectionLimits::default());
    let mut clients: Vec<_> = (0..6).map(|_| served.unix()).collect();
    let cores: Vec<_> = clients.iter_mut().map(|client| client.ask("core")).collect();
    assert_eq!(cores, ["0", "1", "2", "0", "1", "2"]);
    let ids: std::collections::BTreeSet<_> =
        clients.iter_mut().map(|client| client.ask("id")).collect();
    assert_eq!(ids.len(), 6);
}

#[test]
fn endpoints_of_one_protocol_share_its_service_on_a_core() {
    let served = serve(1, ConnectionLimits::default());
    let mut working = served.unix();
    // The work ends when another client of the same service asks for it.
    working.send("work\n");
    assert_eq!(served.tcp().ask("stop"), "");
    assert_eq!(working.receive(), "done");
}

#[test]
fn a_client_that_never_reads_is_no_longer_read_and_then_closed() {
    let limits = ConnectionLimits {
        reply_timeout: Duration::from_millis(200),
        ..ConnectionLimits::default()
    };
    let served = serve(1, limits);
    let mut greedy = served.unix();
    // A thousand megabytes of replies to 13 KB of requests.
    greedy.send(&"big 1000000\n".repeat(1000));
    let mut other = served.unix();
    assert_eq!(other.ask("still here"), "still here");
    served.until(|seen| seen.slow_clients == 1 && seen.open() == 1);
    let seen = served.node().stats().total().0;
    assert!(seen.bytes_written < 100_000_000, "{seen:?}");
    assert_eq!(other.ask("still here"), "still here");
}

#[test]
fn a_slow_reader_gets_everything() {
    let served = serve(1, ConnectionLimits::default());
    let mut client = served.tcp();
    client.send(&"big 300000\n".repeat(40));
    for _ in 0..40 {
        assert_eq!(client.receive().len(), 300_000);
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_client_that_has_shut_down_its_side_receives_all_replies() {
    let served = serve(1, ConnectionLimits::default());
    let mut client = served.tcp();
    client.send("one\nwork 1000\nbig 3000000\nhalf");
    client.writer.shutdown(Shutdown::Write).unwrap();
    let mut answers = String::new();
    client.reader.read_to_string(&mut answers).unwrap();
    let lengths: Vec<_> = answers.lines().map(str::len).collect();
    assert_eq!(lengths, [3, 4, 3_000_000], "one, done, big");
}

#[test]
fn quitting_flushes_first() {
    let served = serve(1, ConnectionLimits::default());
    let mut client = served.tcp();
    client.send("one\nquit\nnever heard\n");
    let mut answers = String::new();
    client.reader.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "one\n");
    drop(client);
    served.until(|seen| seen.open() == 0);
}

#[test]
fn an_incomplete_request_times_out_and_an_idle_connection_does_not() {
    let limits = ConnectionLimits {
        request_timeout: Duration::from_millis(50),
        ..ConnectionLimits::default()
    };
    let served = serve(1, limits);
    let mut silent = served.tcp();
    let mut half = served.tcp();
    half.send("whole\nhal");
    assert_eq!(half.receive(), "whole");
    assert!(half.is_closed());
    served.until(|seen| seen.request_timeouts == 1);
    assert_eq!(silent.ask("here"), "here");
}

#[test]
fn a_large_incomplete_request_does_not_prolong_its_own_time_limit() {
    let limits = ConnectionLimits {
        request_timeout: Duration::from_millis(100),
        ..ConnectionLimits::default()
    };
    let served = serve(1, limits);
    let mut half = served.unix();
    // At the least rate these bytes would take two minutes, but they arrive at once and then
    // nothing follows. A client that is too slow on a busy machine cannot send all of them.
    let _ = half.writer.write_all("l".repeat(8 << 20).as_bytes());
    served.until(|seen| seen.request_timeouts == 1 && seen.open() == 0);
}

#[test]
fn a_request_that_is_too_large_gets_an_error() {
    let limits = ConnectionLimits { input_bytes_max: 100_000, ..ConnectionLimits::default() };
    let served = serve(1, limits);
    let mut client = served.tcp();
    let mut sender = client.writer.try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        // The node stops reading; then the write fails.
        let _ = sender.write_all("l".repeat(10 << 20).as_bytes());
    });
    let refusal = client.receive();
    assert!(refusal.contains("limits.input_bytes_max"), "{refusal}");
    drop(client);
    sent.join().unwrap();
    served.until(|seen| seen.too_large == 1 && seen.open() == 0);
}

#[test]
fn clients_cannot_fill_the_memory_of_a_core_together() {
    let limits = ConnectionLimits { core_bytes_max: 1 << 20, ..ConnectionLimits::default() };
    let served = serve(1, limits);
    let mut clients: Vec<_> = (0..20).map(|_| served.unix()).collect();
    for client in &mut clients {
        // Late writes go to a closed socket.
        let _ = client.writer.write_all("l".repeat(150_000).as_bytes());
    }
    served.until(|seen| seen.out_of_memory >= 10);
    let mut refused = 0;
    for mut client in clients {
        let _ = client.writer.write_all(b"\n");
        refused += usize::from(client.receive().contains("limits.core_bytes_max"));
    }
    assert!(refused >= 10, "{refused}");
    assert_eq!(served.unix().ask("room again"), "room again");
}

#[test]
fn two_thousand_clients_are_served_and_one_more_gets_an_error() {
    let served =
        serve(2, ConnectionLimits { connections_max: 2000, ..ConnectionLimits::default() });
    let mut clients: Vec<_> = (0..2000).map(|_| served.tcp()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&format!("{number}\n"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.receive(), number.to_string());
    }
    assert_eq!(served.node().stats().total().0.open(), 2000);
    let refusal = served.tcp().receive();
    assert!(refusal.contains("limits.connections_max"), "{refusal}");
    let refusal = served.unix().receive();
    assert!(refusal.contains("limits.connections_max"), "{refusal}");

    // An idle node does not run rounds.
    let rounds = || served.node().stats().total().1.rounds;
    served.until(|seen| seen.refused == 2 && seen.open() == 2000);
    let before = rounds();
    std::thread::park_timeout(Duration::from_millis(100));
    assert!(rounds() - before < 20, "{}", rounds() - before);

    drop(clients);
    served.until(|seen| seen.open() == 0);
    assert_eq!(served.tcp().ask("room again"), "room again");
}

#[test]
fn work_that_yields_does_not_stop_others() {
    let served = serve(1, ConnectionLimits::default());
    let mut worker = served.unix();
    let mut other = served.unix();
    worker.send("work\nafter\n");
    for round in 0..100 {
        assert_eq!(other.ask(&round.to_string()), round.to_string());
    }
    // The other client can stop it only if its requests are served in between.
    assert_eq!(other.ask("stop"), "");
    assert_eq!((worker.receive(), worker.receive()), ("done".to_owned(), "after".to_owned()));
}

#[test]
fn messages_of_other_threads_reach_an_idle_client() {
    let served = serve(2, ConnectionLimits::default());
    let mut clients: Vec<_> = (0..4).map(|_| served.unix()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("listen"), "");
    }
    let mailboxes = served.mailboxes.lock().unwrap().clone();
    let senders = std::thread::spawn(move || {
        for number in 0..1000 {
            for mailbox in &mailboxes {
                while mailbox.send(number.to_string()).is_err() {
                    std::thread::yield_now();
                }
            }
        }
    });
    for number in 0..1000 {
        for client in &mut clients {
            assert_eq!(client.receive(), number.to_string());
        }
    }
    senders.join().unwrap();
    assert_eq!(clients[0].ask("and talks"), "and talks");
}

#[test]
fn a_shutdown_waits_for_work_and_then_closes_the_remaining_connections() {
    let limits = ConnectionLimits {
        shutdown_timeout: Duration::from_secs(5),
        ..ConnectionLimits::default()
    };
    let mut served = serve(2, limits);
    let (mut idle, mut busy, mut half) = (served.unix(), served.unix(), served.unix());
    assert_eq!((idle.ask("idle"), half.ask("half")), ("idle".to_owned(), "half".to_owned()));
    half.send("never whole");
    busy.send("hello\nwork 1000\n");
    assert_eq!(busy.receive(), "hello");
    served.node().shutdown();
    assert_eq!(busy.receive(), "done");
    assert!(idle.is_closed() && busy.is_closed() && half.is_closed());
    let path = served.folder.path().join("node.sock");
    served.until(|seen| seen.open() == 0);
    assert_eq!(served.node().stats().total().0.drain_aborts, 1);
    served.node.take().unwrap().join().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_panicking_core_stops_the_node_and_join_reports_it() {
    let mut served = serve(2, ConnectionLimits::default());
    let mut idle = served.unix();
    assert_eq!(idle.ask("core"), "0");
    let mut client = served.unix();
    client.send("panic\n");
    assert!(client.is_closed() && idle.is_closed());
    let error = served.node.take().unwrap().join().unwrap_err().to_string();
    assert!(error.contains("panic"), "{error}");
}

#[test]
fn an_invalid_configuration_is_refused_at_the_start() {
    let served = serve(1, ConnectionLimits::default());
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let start = |protocol: &str, address: ListenAddress| {
        let endpoint = Endpoint { protocol: protocol.to_owned(), address, tls: None };
        let config = NodeConfig { cores: 1, endpoints: vec![endpoint], ..NodeConfig::default() };
        Node::start(&config, &region, &[Arc::new(Echo::default())])
    };
    let taken = start("echo", served.node().addresses()[1].clone()).unwrap_err().to_string();
    assert!(taken.contains("another server"), "{taken}");
    let living = start("echo", served.node().addresses()[0].clone()).unwrap_err().to_string();
    assert!(living.contains("living process"), "{living}");
    let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let unknown = start("http", any.clone()).unwrap_err().to_string();
    assert!(unknown.contains("\"http\"") && unknown.contains("echo"), "{unknown}");
    let many = NodeConfig { cores: 100_000, ..NodeConfig::default() };
    assert!(Node::start(&many, &region, &[]).is_err());
    drop(start("echo", any).unwrap());
}

#[test]
fn closed_connections_release_all_resources() {
    let served = serve(2, ConnectionLimits::default());
    for round in 0..500 {
        let mut client: LineClient<TcpStream> = served.tcp();
        if round % 2 == 0 {
            client.send("unread answers\n");
        }
    }
    served.until(|seen| seen.accepted == 500 && seen.open() == 0);
}
