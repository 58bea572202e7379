//! Tests of the Redis back-end alone: the O-RAN SDL clients see the same records; errors of a
//! server that rejects, dies or is slow.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use nearstate_sdl::{ErrorKind, RedisStorage, SyncStorage as _, open};

use crate::fixture::{Server, folder};

fn raw(server: &Server) -> redis::Connection {
    redis::Client::open(server.tcp()).unwrap().get_connection().unwrap()
}

#[test]
fn records_have_the_keys_that_sdl_clients_use() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    let mut sdl = open(&server.tcp()).unwrap();
    let mut client = raw(&server);
    sdl.set("ns", &[(b"a\0,b", b"v\0w")]).unwrap();
    let value: Vec<u8> = redis::cmd("GET").arg(&b"{ns},a\0,b"[..]).query(&mut client).unwrap();
    assert_eq!(value, b"v\0w");

    // The clients write with MSET and allow the empty key.
    let mut set = redis::cmd("MSET");
    set.arg("{ns},theirs").arg("1").arg("{ns},").arg("2").arg("ns,other").arg("3");
    set.exec(&mut client).unwrap();
    assert_eq!(sdl.get("ns", &[b"theirs", b""]).unwrap().len(), 2);
    let keys: Vec<Vec<u8>> = sdl.list_keys("ns", b"*").unwrap().into_iter().collect();
    assert_eq!(keys, [&b""[..], b"a\0,b", b"theirs"]);

    sdl.remove_all("ns").unwrap();
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut client).unwrap();
    assert_eq!(left, ["ns,other"]);
}

#[test]
fn several_pairs_are_set_with_one_command() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    let mut sdl = open(&server.unix()).unwrap();
    sdl.set("ns", &[(b"a", b"1"), (b"b", b"2")]).unwrap();
    sdl.get("ns", &[b"a", b"b"]).unwrap();
    sdl.remove("ns", &[b"a", b"b"]).unwrap();
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut raw(&server)).unwrap();
    for command in ["mset", "mget", "del"] {
        assert!(stats.contains(&format!("cmdstat_{command}:calls=1,")), "{command}: {stats}");
    }
    assert!(!stats.contains("cmdstat_set:"), "{stats}");
}

#[test]
fn a_set_on_a_key_of_another_type_is_refused() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    let mut sdl = open(&server.tcp()).unwrap();
    // A group of the SDL clients is a set in the same key space.
    redis::cmd("SADD").arg("{ns},group").arg("m").exec(&mut raw(&server)).unwrap();
    let error = sdl.set_if("ns", b"group", b"old", b"new").unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
    assert!(sdl.get("ns", &[b"group"]).unwrap().is_empty());
    assert!(sdl.is_ready("ns").unwrap(), "a rejected command does not close the connection");
}

#[test]
fn a_restarted_server_is_used_again() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    let address = server.address;
    let mut sdl = open(&server.tcp()).unwrap();
    sdl.set("ns", &[(b"k", b"v")]).unwrap();
    drop(server);
    let error = sdl.set("ns", &[(b"k", b"w")]).unwrap_err();
    assert_eq!(
        error.kind,
        ErrorKind::OperationInterrupted,
        "the outcome of the request is unknown: {error}"
    );
    let error = sdl.set("ns", &[(b"k", b"w")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotConnected, "the closed connection is known: {error}");
    assert!(!sdl.is_ready("ns").unwrap());
    let error = sdl.wait_ready("ns", Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedBySdl, "{error}");

    let restarted = Server::start_at(address, folder.path(), &[]);
    let _server = restarted.expect("only this test has the address");
    sdl.wait_ready("ns", Duration::from_secs(120)).unwrap();
    assert!(sdl.get("ns", &[b"k"]).unwrap().is_empty(), "the server has no persistence");
}

#[test]
fn a_read_is_retried_after_the_connection_was_closed() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    let mut sdl = open(&server.tcp()).unwrap();
    sdl.set("ns", &[(b"k", b"v")]).unwrap();
    redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(&mut raw(&server)).unwrap();
    assert_eq!(sdl.get("ns", &[b"k"]).unwrap().len(), 1);
}

#[test]
fn a_wrong_password_is_rejected_at_once() {
    let folder = folder();
    let server = Server::start(folder.path(), &["--requirepass", "right"]);
    let error = open(&server.tcp()).unwrap().set("ns", &[(b"k", b"v")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
    let wrong = format!("redis://:wrong@{}", server.address);
    let mut sdl = open(&wrong).unwrap();
    let error = sdl.wait_ready("ns", Duration::from_secs(120)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
    let right = format!("redis://:right@{}", server.address);
    open(&right).unwrap().set("ns", &[(b"k", b"v")]).unwrap();
}

#[test]
fn a_silent_server_costs_at_most_the_timeout() {
    // The kernel accepts the connection, and no reply follows.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut sdl = RedisStorage::open(&format!("redis://127.0.0.1:{port}?timeout=100ms")).unwrap();
    let error = sdl.set("ns", &[(b"k", b"v")]).unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::NotConnected | ErrorKind::OperationInterrupted),
        "{error}"
    );
    assert!(!sdl.is_ready("ns").unwrap());
}

/// The words of a request; `None`: the connection has ended.
fn request(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let number = |stream: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    let count = number(stream)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(stream)? + 2];
        stream.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

/// Serves one connection for each list: each reply to a `SCAN` with its cursor. After the last one
/// the connection is closed.
fn serve_scans(listener: &TcpListener, connections: &[&[(&str, &str)]]) -> Vec<String> {
    let mut cursors = Vec::new();
    for replies in connections {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut left = replies.iter();
        while left.len() > 0
            && let Some(words) = request(&mut stream)
        {
            let reply = match words.first().map(String::as_str) {
                Some("SCAN") => {
                    cursors.push(words[1].clone());
                    let (next, key) = left.next().unwrap();
                    format!("*2\r\n${}\r\n{next}\r\n*1\r\n${}\r\n{key}\r\n", next.len(), key.len())
                }
                _ => "+OK\r\n".to_owned(),
            };
            stream.get_mut().write_all(reply.as_bytes()).unwrap();
        }
    }
    cursors
}

/// The cursor of a server that was restarted has another meaning: keys would be missing.
#[test]
fn a_listing_begins_again_after_the_connection_was_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let first: &[_] = &[("7", "{ns},gone")];
        serve_scans(&listener, &[first, &[("9", "{ns},a"), ("0", "{ns},b")]])
    });
    let keys = open(&url).unwrap().list_keys("ns", b"*").unwrap();
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), [b"a", b"b"], "those of one listing");
    assert_eq!(server.join().unwrap(), ["0", "0", "9"]);
}

#[test]
fn a_server_that_ends_each_listing_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let one: &[_] = &[("7", "{ns},a")];
        serve_scans(&listener, &[one; 4])
    });
    let error = open(&url).unwrap().list_keys("ns", b"*").unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotConnected, "{error}");
    assert_eq!(server.join().unwrap(), ["0"; 4]);
}
