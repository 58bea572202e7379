//! `region follow` and `region promote` as processes: kills of both sides under load, TLS,
//! refusals, and hostile bytes at the address for followers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use nearstate_store::{Kind, Region, Schema};

use crate::fixture::{
    Folder, HANG_TIMEOUT, NEARSTATE, Node, is_stopped, own_ip, rejected, serve, start, until,
};
use crate::serve::tls::Authority;

/// A node with an address for followers: the last one of its log.
fn source(folder: &Folder, listen: &str, more: &[&str]) -> (Node, String) {
    let mut command = serve(&folder.path("source"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "64MiB"]);
    let node = start(command.args(["--peer", listen]).args(more));
    until("the address for followers", || node.log().contains("protocol=peer"));
    let log = node.log();
    let line = log.lines().find(|line| line.contains("protocol=peer")).unwrap();
    let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap();
    (node, address.to_owned())
}

fn follow(folder: &Folder, from: &str, more: &[&str]) -> Command {
    let mut command = Command::new(NEARSTATE);
    command
        .args(["region", "follow", "--max", "64MiB", "--from", from, "--json", "--name", "copy"]);
    command.arg(folder.path("copy")).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A follower that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check(folder: &Folder, name: &str) {
    let mut command = Command::new(NEARSTATE);
    let output = command.args(["region", "check"]).arg(folder.path(name)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn promote(folder: &Folder) -> String {
    let mut command = Command::new(NEARSTATE);
    let output = command.args(["region", "promote"]).arg(folder.path("copy")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What an attached writer has seen replicated survives the loss of the source, whatever is killed
/// meanwhile: the follower, the node, both.
#[test]
fn what_was_replicated_is_in_the_promoted_copy_after_kills_of_both_sides() {
    const ROUNDS: u64 = 6;
    let folder = Folder::new();
    let (mut node, address) = source(&folder, &format!("{}:0", own_ip()), &["--peer-keep"]);
    let region = Region::attach(&folder.path("source")).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap();
    until("the namespace is logged", || session.is_logged(ns).unwrap());
    let mut follower = Running(follow(&folder, &address, &[]).spawn().unwrap());
    let (mut number, mut replicated) = (0_u64, 0);
    for round in 0..ROUNDS {
        // Some hundred commits, with a kill in between, and all of them acknowledged at the end.
        for step in 0..300_u64 {
            let key = format!("imsi-{}", number % 97);
            session.put(ns, key.as_bytes(), &number.to_le_bytes()).unwrap();
            number += 1;
            if step == 100 + 17 * round && round % 3 != 1 {
                drop(follower);
                follower = Running(follow(&folder, &address, &[]).spawn().unwrap());
            }
            if step == 130 + 11 * round && round % 3 != 0 {
                node.kill();
                node = source(&folder, &address, &["--peer-keep"]).0;
            }
        }
        let receipt = session.receipt();
        until("the commits are replicated", || session.is_replicated(receipt).unwrap());
        replicated = number;
    }
    // The loss of the host: what was not acknowledged may be lost.
    node.kill();
    for _ in 0..50 {
        session.put(ns, b"later", &number.to_le_bytes()).unwrap();
        number += 1;
    }
    drop(follower);
    assert!(promote(&folder).contains("1 namespace may be written"));
    let copy = Region::attach(&folder.path("copy")).unwrap();
    let other = copy.session().unwrap();
    let mirrored = other.known_namespace("ue").unwrap().unwrap();
    for number in replicated - 97..replicated {
        let key = format!("imsi-{}", number % 97);
        let [expected, found] = [(&session, ns), (&other, mirrored)]
            .map(|(session, ns)| session.get(ns, key.as_bytes()).unwrap().unwrap());
        assert_eq!(found.bytes(), number.to_le_bytes());
        assert_eq!((found.bytes(), found.version()), (expected.bytes(), expected.version()));
    }
    other.put(mirrored, b"k", b"by the new owner").unwrap();
    drop((other, copy, session, region));
    check(&folder, "copy");
    check(&folder, "source");
}

/// Redis' commands about replicas, for followers.
#[test]
fn clients_wait_for_followers_and_see_them() {
    let folder = Folder::new();
    let (node, address) = source(&folder, "127.0.0.1:0", &[]);
    let mut client = node.tcp();
    assert_eq!(client.ask(&["SET", "k", "v"]), "+OK");
    assert_eq!(client.ask(&["WAIT", "0", "0"]), ":0");
    assert_eq!(client.ask(&["WAIT", "1", "20"]), ":0", "no follower in time");
    let mut follower = Running(follow(&folder, &address, &[]).spawn().unwrap());
    until("the follower has joined", || node.log().contains("NS-1012"));
    for number in 0..200 {
        assert_eq!(client.ask(&["SET", "k", &number.to_string()]), "+OK");
        assert_eq!(client.ask(&["WAIT", "1", "0"]), ":1");
    }
    let copy = Region::attach(&folder.path("copy")).unwrap();
    let session = copy.session().unwrap();
    let (_, ns) = session.namespaces().unwrap().remove(0);
    assert_eq!(session.get(ns, b"k").unwrap().unwrap().bytes(), b"199");
    // More than there are: the answer is their number, at the end of the time.
    assert_eq!(client.ask(&["WAIT", "2", "20"]), ":1");
    let info = client.ask(&["INFO", "replication"]);
    assert!(info.contains("role:master") && info.contains("connected_slaves:1"), "{info}");
    assert!(info.contains("slave0:ip=127.0.0.1,port=") && info.contains("state=online"), "{info}");
    // A stopped follower acknowledges nothing, and the client is answered in time.
    let pid = follower.0.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    until("all threads are stopped", || is_stopped(follower.0.id()));
    assert_eq!(client.ask(&["SET", "k", "later"]), "+OK");
    assert_eq!(client.ask(&["WAIT", "1", "50"]), ":0");
    assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
    assert_eq!(client.ask(&["WAIT", "1", "0"]), ":1");
    // A node that serves the copy is a replica, and refuses writes.
    let mut command = serve(&folder.path("copy"));
    let replica = start(command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1"]));
    let mut reader = replica.tcp();
    assert_eq!(reader.ask(&["GET", "k"]), "later");
    assert!(reader.ask(&["SET", "k", "v"]).starts_with("-READONLY "), "read only");
    let info = reader.ask(&["INFO", "replication"]);
    assert!(info.contains("role:slave") && info.contains("slave_read_only:1"), "{info}");
    follower.0.kill().unwrap();
    until("the follower has left", || client.ask(&["WAIT", "0", "0"]) == ":0");
    // The copy is full, so the next one continues, and ends when it has what was written meanwhile.
    assert_eq!(client.ask(&["SET", "k", "last"]), "+OK");
    let mut command = follow(&folder, &address, &["--until-joined"]);
    let done = command.stdout(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.contains(r#""joins":false"#), "{text}");
    assert!(text.contains(r#""event":"ended""#) && !text.contains(r#""position":0"#), "{text}");
    assert_eq!(reader.ask(&["GET", "k"]), "last");
}

#[test]
fn a_follower_over_tls_needs_a_certificate_of_the_authority() {
    let folder = Folder::new();
    let (authority, outsider) = (Authority::new(), Authority::new());
    let write = |name: &str, text: &str| {
        let path = folder.path(name);
        std::fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        path.display().to_string()
    };
    let files = |authority: &Authority, name: &str| {
        let signed = authority.sign("localhost");
        [
            write(&format!("{name}.pem"), &signed.pem),
            write(&format!("{name}.key"), &signed.key.serialize_pem()),
            write(&format!("{name}.ca"), &authority.pem()),
        ]
    };
    let [server, client, unknown] =
        [files(&authority, "server"), files(&authority, "client"), files(&outsider, "unknown")];
    let tls = ["--tls-certificate", &server[0], "--tls-key", &server[1], "--tls-client-ca"];
    let tls: Vec<&str> = tls.into_iter().chain([server[2].as_str()]).collect();
    let (node, address) = source(&folder, "127.0.0.1:0", &tls);
    assert!(node.log().contains("protocol=peer tls=true"), "{}", node.log());
    let address = address.replace("127.0.0.1", "localhost");
    let mut client_node = node.tcp();
    assert_eq!(client_node.ask(&["SET", "k", "v"]), "+OK");
    let with = |files: &[String; 3], ca: &str| {
        let more = ["--until-joined", "--tls-ca", ca, "--tls-certificate", &files[0]];
        let more: Vec<&str> = more.into_iter().chain(["--tls-key", &files[1]]).collect();
        Running(follow(&folder, &address, &more).spawn().unwrap())
    };
    // Neither a follower with a certificate of another authority, nor one without TLS.
    let refused =
        [with(&unknown, &client[2]), Running(follow(&folder, &address, &[]).spawn().unwrap())];
    until("two refusals", || node.log().matches("NS-2008").count() >= 2);
    assert!(!node.log().contains("NS-1011"), "{}", node.log());
    drop(refused);
    let mut follower = with(&client, &client[2]);
    assert!(follower.0.wait().unwrap().success());
    until("the follower has left", || node.log().contains("NS-3006"));
    assert!(node.log().contains("NS-1012"), "{}", node.log());
    promote(&folder);
    let region = Region::attach(&folder.path("copy")).unwrap();
    let session = region.session().unwrap();
    let (_, ns) = session.namespaces().unwrap().remove(0);
    assert_eq!(session.get(ns, b"k").unwrap().unwrap().bytes(), b"v");
}

#[test]
fn addresses_that_others_can_reach_need_tls_and_a_wrong_copy_is_refused() {
    let folder = Folder::new();
    let wide = ["--listen", "127.0.0.1:0", "--peer", "0.0.0.0:0", "--max", "64MiB"];
    let output = rejected(serve(&folder.path("wide")).args(wide));
    assert!(output.contains("--peer-insecure") && output.contains("tls.client_ca"), "{output}");
    let output = rejected(follow(&folder, "192.0.2.1:1", &[]).stderr(Stdio::piped()));
    assert!(output.contains("--tls-ca") && output.contains("--insecure"), "{output}");
    let (node, address) = source(&folder, "127.0.0.1:0", &["--peer-followers-max", "1"]);
    let follow_to_end = || {
        let mut command = follow(&folder, &address, &["--until-joined"]);
        assert!(command.status().unwrap().success());
    };
    follow_to_end();
    // The same region cannot follow another one, unless it discards what it has.
    let other = Folder::new();
    let (second, second_address) = source(&other, "127.0.0.1:0", &[]);
    let output = rejected(follow(&folder, &second_address, &[]).stderr(Stdio::piped()));
    assert!(output.contains("--discard"), "{output}");
    let mut command = follow(&folder, &second_address, &["--until-joined", "--discard"]);
    assert!(command.status().unwrap().success());
    // A region does not follow itself: the node that serves it has attached it.
    let own = Command::new(NEARSTATE)
        .args(["region", "follow", "--from", &address, "--until-joined"])
        .arg(folder.path("source"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&own.stderr);
    assert!(!own.status.success() && text.contains("has attached it"), "{text}");
    drop((node, second));
}

/// A region with records of its own is as before, also the copy that was promoted and is served.
#[test]
fn a_region_with_records_of_its_own_is_refused_before_anything_of_it_changes() {
    let (folder, other) = (Folder::new(), Folder::new());
    let (node, address) = source(&folder, "127.0.0.1:0", &[]);
    assert_eq!(node.tcp().ask(&["SET", "k", "v"]), "+OK");
    let status = follow(&folder, &address, &["--until-joined"]).status().unwrap();
    assert!(status.success());
    promote(&folder);
    let mut command = serve(&folder.path("copy"));
    let served = start(command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1"]));
    let (second, second_address) = source(&other, "127.0.0.1:0", &[]);
    assert_eq!(second.tcp().ask(&["SET", "k", "other"]), "+OK");
    let copy = Region::attach(&folder.path("copy")).unwrap();
    let session = copy.session().unwrap();
    let (_, ns) = session.namespaces().unwrap().remove(0);
    for more in [&[][..], &["--discard"]] {
        let before = copy.inspect().unwrap();
        let mut command = follow(&folder, &second_address, more);
        let output = rejected(command.stderr(Stdio::piped()));
        assert!(output.contains("(nearstate) has attached it"), "{output}");
        let after = copy.inspect().unwrap();
        assert_eq!((after.following, after.namespaces.len()), (None, before.namespaces.len()));
        assert_eq!(after.heap.live, before.heap.live);
        assert_eq!(session.get(ns, b"k").unwrap().unwrap().bytes(), b"v");
        assert_eq!(served.tcp().ask(&["SET", "written", "after"]), "+OK");
        assert_eq!(served.tcp().ask(&["DEL", "written"]), ":1");
    }
    drop((session, copy, served));
    let output = rejected(follow(&folder, &second_address, &[]).stderr(Stdio::piped()));
    assert!(output.contains("has records of its own"), "{output}");
    let copy = Region::attach(&folder.path("copy")).unwrap();
    assert_eq!(copy.session().unwrap().get(ns, b"k").unwrap().unwrap().bytes(), b"v");
}

/// A node whose region is still empty would lose the right to write it.
#[test]
fn an_empty_region_that_is_served_does_not_become_a_follower() {
    let folder = Folder::new();
    let (_node, address) = source(&folder, "127.0.0.1:0", &[]);
    let mut command = serve(&folder.path("copy"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "64MiB"]);
    let served = start(&mut command);
    let output = rejected(follow(&folder, &address, &[]).stderr(Stdio::piped()));
    let wanted = format!("process {} (nearstate) has attached it", served.pid());
    assert!(output.contains(&wanted), "{output}");
    assert_eq!(served.tcp().ask(&["SET", "k", "v"]), "+OK");
}

/// A refusal leaves no file, and a size that an existing region does not have is refused.
#[test]
fn a_region_that_is_too_small_is_removed_and_another_size_than_its_own_is_refused() {
    let folder = Folder::new();
    let mut command = serve(&folder.path("source"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "128MiB"]);
    let node = start(command.args(["--peer", "127.0.0.1:0"]));
    until("the address for followers", || node.log().contains("protocol=peer"));
    let log = node.log();
    let line = log.lines().find(|line| line.contains("protocol=peer")).unwrap();
    let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap();
    let output = rejected(follow(&folder, address, &[]).stderr(Stdio::piped()));
    assert!(output.contains("heap"), "{output}");
    assert!(!folder.path("copy").exists());
    let create = |max: &str| {
        let mut command = Command::new(NEARSTATE);
        command.args(["region", "create", "--max", max]).arg(folder.path("copy"));
        assert!(command.stdout(Stdio::null()).status().unwrap().success());
    };
    create("128MiB");
    let output = rejected(follow(&folder, address, &[]).stderr(Stdio::piped()));
    assert!(output.contains("128.0 MiB, not 64.0 MiB (--max)"), "{output}");
    assert!(folder.path("copy").exists());
}

/// A script that goes on with the copy would find none.
#[test]
fn a_follower_that_is_interrupted_before_it_has_all_records_fails_and_leaves_no_region() {
    let folder = Folder::new();
    // It accepts, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut command = follow(&folder, &address, &["--until-joined"]);
    let mut child = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let _connection = silent.accept().unwrap();
    let pid = child.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.0.wait().unwrap();
    let mut said = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted before"), "{said}");
    assert!(!folder.path("copy").exists());
}

/// Bytes that are no protocol end their connection, and nothing else.
#[test]
fn hostile_bytes_at_the_address_for_followers_have_no_effect() {
    let folder = Folder::new();
    let (node, address) = source(&folder, "127.0.0.1:0", &[]);
    let mut client = node.tcp();
    assert_eq!(client.ask(&["SET", "k", "v"]), "+OK");
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        seed.to_le_bytes()[7]
    };
    let streams: Vec<Vec<u8>> = (0..40)
        .map(|round| match round % 4 {
            0 => (0..round * 50).map(|_| random()).collect(),
            1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            2 => [&[0xff; 4][..], &[u8::try_from(round).unwrap(); 60]].concat(),
            _ => vec![0; round * 1000],
        })
        .collect();
    for bytes in &streams {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // A refusal, or the end of the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    until("all were refused", || node.log().matches("NS-2008").count() >= 5);
    assert!(!node.log().contains("panicked"), "{}", node.log());
    assert_eq!(client.ask(&["GET", "k"]), "v");
    let status = follow(&folder, &address, &["--until-joined"]).status().unwrap();
    assert!(status.success());
}
