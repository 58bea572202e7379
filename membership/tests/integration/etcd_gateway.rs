//! Endpoints of etcd that refuse, are silent, or answer with an error.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearstate_membership::{EtcdEndpoint, EtcdSettings, EtcdUser};

use crate::etcd_process::{Etcd, until_failed};
use crate::fixture::{Cluster, Host, LONG, free_address, until};

/// A gateway that answers all requests in the same way, but a watch, and keeps their paths.
#[derive(Clone, Default)]
struct ScriptedGateway(Arc<Mutex<Vec<String>>>);

impl ScriptedGateway {
    fn start(status: &'static str, body: String) -> (Self, SocketAddr) {
        let (this, address) = (Self::default(), free_address());
        let listener = TcpListener::bind(address).unwrap();
        let gateway = this.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (gateway, body) = (gateway.clone(), body.clone());
                std::thread::spawn(move || gateway.answer(stream, status, &body));
            }
        });
        (this, address)
    }

    fn answer(&self, mut stream: TcpStream, status: &str, body: &str) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let (mut lines, mut size) = (Vec::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                if line == "\r\n" {
                    break;
                }
                let line = line.to_lowercase();
                size = line
                    .strip_prefix("content-length:")
                    .map_or(size, |text| text.trim().parse().unwrap());
                lines.push(line);
            }
            reader.read_exact(&mut vec![0; size]).ok()?;
            let path = lines[0].split(' ').nth(1)?.to_owned();
            let is_watch = path == "/v3/watch";
            self.0.lock().unwrap().push(path);
            let size = body.len();
            let reply = if is_watch {
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned()
            } else {
                format!("HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n{body}")
            };
            stream.write_all(reply.as_bytes()).ok()?;
        }
    }

    fn is_watched(&self) -> bool {
        self.0.lock().unwrap().iter().any(|path| path == "/v3/watch")
    }
}

fn settings(addresses: &[SocketAddr]) -> EtcdSettings {
    let endpoint = |at: &SocketAddr| EtcdEndpoint::parse(&format!("http://{at}")).unwrap();
    let endpoints = addresses.iter().map(endpoint).collect();
    EtcdSettings { endpoints, tls: None, user: None, compacts: true }
}

/// The watch begins with the second endpoint, which refuses.
#[test]
fn a_watch_reaches_the_other_one_of_two_endpoints() {
    let (gateway, address) = ScriptedGateway::start("200 OK", "{}".to_owned());
    let cluster = Cluster::new(1);
    let settings = settings(&[address, free_address()]);
    let _host = Host::start_etcd(cluster.config(1), settings).unwrap();
    until("a watch has begun", || gateway.is_watched());
}

/// Connections are accepted by the kernel, and no process reads what they send.
#[test]
fn a_cluster_is_created_although_an_endpoint_is_silent() {
    let etcd = Etcd::start(1);
    etcd.until_answers();
    let silent = TcpListener::bind(free_address()).unwrap();
    let addresses = [silent.local_addr().unwrap(), etcd.members[0].0];
    let cluster = Cluster::new(1);
    let mut config = cluster.config(1);
    // That of a lease of two seconds.
    config.election = Duration::from_secs(1);
    let host = Host::start_etcd(config, settings(&addresses)).unwrap();
    host.engine.initialize(&BTreeSet::from([1])).unwrap();
    assert_eq!(etcd.count("nearstate/east/created"), 1);
}

/// With more than is kept of an error.
#[test]
fn an_error_of_etcd_says_what_it_says() {
    let exceeded = "etcdserver: mvcc: database space exceeded";
    for (body, said) in [
        (format!("{{\"error\":\"{exceeded}\",\"code\":8}}"), exceeded),
        (format!("one line\nand another{}", " x".repeat(100_000)), "one line and another x"),
    ] {
        let (_, address) = ScriptedGateway::start("429 Too Many Requests", body);
        let cluster = Cluster::new(1);
        let host = Host::start_etcd(cluster.config(1), settings(&[address])).unwrap();
        until_failed(&host, &format!("etcd answers with status 429 Too Many Requests: {said}"));
        let failure = host.engine.status().failure.unwrap();
        assert!(!failure.contains('\n') && failure.len() < 5000, "{failure}");
    }
}

/// It may use the keys of its cluster only, and its token ends: it is one of a member that starts.
#[test]
fn etcd_takes_commands_of_a_user() {
    let mut etcd = Etcd::start(1);
    let cluster = Cluster::new(2);
    let password_file = cluster.place.path().join("password");
    std::fs::write(&password_file, "nearstate password\n").unwrap();
    let user = Some(EtcdUser { name: "nearstate".to_owned(), password_file });
    let with_user = EtcdSettings { user, ..etcd.settings() };
    let host = Host::start_etcd(cluster.config(1), with_user.clone()).unwrap();
    etcd.until_answers();
    until("the cluster is created", || host.engine.initialize(&[1, 2].into()).is_ok());
    let propose = |text: &str| {
        host.engine.propose_and_wait(text.as_bytes().to_vec(), LONG).unwrap();
    };
    propose("without users");
    etcd.require_users();
    propose("with a user");
    etcd.kill(0);
    etcd.run(0);
    propose("with another token");
    let other = Host::start_etcd(cluster.config(2), etcd.settings()).unwrap();
    until_failed(&other, "user name is empty");
    drop(other);
    let other = Host::start_etcd(cluster.config(2), with_user.clone()).unwrap();
    other.until(|text, _| text == "without users\nwith a user\nwith another token\n");
    drop(other);
    std::fs::write(&with_user.user.as_ref().unwrap().password_file, "wrong").unwrap();
    let other = Host::start_etcd(cluster.config(2), with_user).unwrap();
    until_failed(&other, "etcd.user \"nearstate\": etcd answers with status 400");
    // The user has no other permission.
    let revoked = "{\"name\":\"nearstate\",\"role\":\"nearstate\"}";
    let revoked = etcd.post("auth/user/revoke", &etcd.root_token(), revoked);
    assert!(revoked.contains("200 OK"), "{revoked}");
    until_failed(&host, "permission denied");
}
