//! Debian's `etcd-server`, members on loopback addresses, in memory.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use nearstate_membership::{EtcdEndpoint, EtcdSettings};
use nearstate_node::{ClientTls, EngineEvent};

use crate::failures::certificates;
use crate::fixture::{Cluster, Host, free_address, until};

/// Members of etcd.
pub(crate) struct Etcd {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) members: Vec<(SocketAddr, SocketAddr)>,
    running: Vec<Option<Child>>,
    /// Clients need certificates of the authority in the folder.
    is_tls: bool,
}

impl Etcd {
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(count, false)
    }

    pub(crate) fn start_with(count: usize, is_tls: bool) -> Self {
        let members: Vec<_> = (0..count).map(|_| (free_address(), free_address())).collect();
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let running = members.iter().map(|_| None).collect();
        if is_tls {
            let ips: Vec<_> = members.iter().map(|(clients, _)| clients.ip().to_string()).collect();
            let mut names: Vec<_> = ips.iter().map(String::as_str).collect();
            names.push("host");
            certificates(folder.path(), &names);
        }
        let mut etcd = Self { folder, members, running, is_tls };
        for number in 0..count {
            etcd.run(number);
        }
        etcd
    }

    pub(crate) fn run(&mut self, number: usize) {
        let (clients, peers) = self.members[number];
        let all = self.members.iter().enumerate();
        let all: Vec<_> = all.map(|(n, (_, peers))| format!("m{n}=http://{peers}")).collect();
        let scheme = self.scheme();
        let mut command = Command::new("etcd");
        if self.is_tls {
            let of = |end: &str| self.folder.path().join(format!("{}.{end}", clients.ip()));
            command.arg("--client-cert-auth").arg("--cert-file").arg(of("pem"));
            command.arg("--key-file").arg(of("key"));
            command.arg("--trusted-ca-file").arg(self.folder.path().join("ca.pem"));
        }
        let child = command
            .args(["--name", &format!("m{number}"), "--data-dir"])
            .arg(self.folder.path().join(number.to_string()))
            .args(["--listen-client-urls", &format!("{scheme}://{clients}")])
            .args(["--advertise-client-urls", &format!("{scheme}://{clients}")])
            .args(["--listen-peer-urls", &format!("http://{peers}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peers}")])
            .args(["--initial-cluster", &all.join(",")])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.expect("etcd is missing: `cargo xtask packages` installs etcd-server");
        self.running[number] = Some(child);
    }

    pub(crate) fn kill(&mut self, number: usize) {
        let mut child = self.running[number].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    const fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// Stops the only member, and copies its data.
    pub(crate) fn back_up(&mut self) {
        self.kill(0);
        copy(&self.folder.path().join("0"), &self.folder.path().join("backup"));
        self.run(0);
    }

    /// Stops the only member, and starts it with the data of the backup.
    pub(crate) fn restore(&mut self) {
        self.kill(0);
        let data = self.folder.path().join("0");
        std::fs::remove_dir_all(&data).unwrap();
        copy(&self.folder.path().join("backup"), &data);
        self.run(0);
    }

    pub(crate) fn until_answers(&self) {
        until("etcd answers", || {
            TcpStream::connect(self.members[0].0).is_ok()
                && self.range(&format!("{{\"key\":\"{}\"}}", code("x"))).contains("cluster_id")
        });
    }

    /// Replaces the value of a key, as another program would.
    pub(crate) fn put(&self, key: &str, value: &[u8]) {
        let value = base64::engine::general_purpose::STANDARD.encode(value);
        self.ask("put", &format!("{{\"key\":\"{}\",\"value\":\"{value}\"}}", code(key)));
    }

    /// What the JSON gateway replies to a read.
    pub(crate) fn range(&self, body: &str) -> String {
        self.ask("range", body)
    }

    pub(crate) fn ask(&self, path: &str, body: &str) -> String {
        self.post(&format!("kv/{path}"), "", body)
    }

    /// Requires users from now on.
    pub(crate) fn require_users(&self) {
        let (key, end) = (code("nearstate/east/"), code("nearstate/east0"));
        let permission =
            format!("{{\"permType\":\"READWRITE\",\"key\":\"{key}\",\"range_end\":\"{end}\"}}");
        for name in ["root", "nearstate"] {
            let user = format!("{{\"name\":\"{name}\",\"password\":\"{name} password\"}}");
            self.post("auth/user/add", "", &user);
            self.post("auth/role/add", "", &format!("{{\"name\":\"{name}\"}}"));
            let role = format!("{{\"user\":\"{name}\",\"role\":\"{name}\"}}");
            self.post("auth/user/grant", "", &role);
        }
        let granted = format!("{{\"name\":\"nearstate\",\"perm\":{permission}}}");
        self.post("auth/role/grant", "", &granted);
        self.post("auth/enable", "", "{}");
    }

    /// A token of the user `root`.
    pub(crate) fn root_token(&self) -> String {
        let root = "{\"name\":\"root\",\"password\":\"root password\"}";
        let reply = self.post("auth/authenticate", "", root);
        let token = reply.split("\"token\":\"").nth(1).unwrap();
        token.split('"').next().unwrap().to_owned()
    }

    pub(crate) fn post(&self, path: &str, token: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.members[0].0).unwrap();
        let token =
            if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        write!(
            stream,
            "POST /v3/{path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\
             {token}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    /// The number of keys with a prefix.
    pub(crate) fn count(&self, prefix: &str) -> u64 {
        let (key, end) = (code(prefix), code(&format!("{prefix}~")));
        let body = format!("{{\"key\":\"{key}\",\"range_end\":\"{end}\",\"count_only\":true}}");
        let reply = self.range(&body);
        // The gateway leaves out a number that is 0.
        let count = reply.split("\"count\":\"").nth(1).unwrap_or("0\"");
        count.split('"').next().unwrap().parse().unwrap()
    }

    /// Has etcd forgotten what was at a revision?
    pub(crate) fn has_forgotten(&self, revision: u64) -> bool {
        let key = code("nearstate/east/head");
        let reply = self.range(&format!("{{\"key\":\"{key}\",\"revision\":\"{revision}\"}}"));
        reply.contains("has been compacted")
    }

    pub(crate) fn settings(&self) -> EtcdSettings {
        let endpoint = |(clients, _): &(SocketAddr, SocketAddr)| {
            EtcdEndpoint::parse(&format!("{}://{clients}", self.scheme())).unwrap()
        };
        let tls = self.is_tls.then(|| {
            let (certificate, key) =
                (self.folder.path().join("host.pem"), self.folder.path().join("host.key"));
            let authority = self.folder.path().join("ca.pem");
            ClientTls::read(&authority, Some((&certificate, &key))).unwrap()
        });
        let endpoints = self.members.iter().map(endpoint).collect();
        EtcdSettings { endpoints, tls, user: None, compacts: true }
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

pub(crate) fn code(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Three hosts of a cluster in etcd.
pub(crate) fn hosts(etcd: &Etcd) -> Cluster {
    let mut cluster = Cluster::new(3);
    for id in 1..=3 {
        let host = Host::start_etcd(cluster.config(id), etcd.settings()).unwrap();
        cluster.hosts.insert(id, host);
    }
    let voters: BTreeSet<u64> = (1..=3).collect();
    // Etcd elects its leader meanwhile, and a call without an answer may have created it.
    while let Err(error) = cluster.hosts[&1].engine.initialize(&voters) {
        if error.to_string().contains("exists already") {
            break;
        }
    }
    cluster
}

/// Waits until the host has failed for this reason. Its event has the first reason: etcd may not
/// have answered yet.
pub(crate) fn until_failed(host: &Host, reason: &str) {
    until(reason, || host.engine.status().failure.is_some_and(|failure| failure.contains(reason)));
    host.until(|_, events| matches!(events.last(), Some(EngineEvent::Failed { .. })));
}

/// Proposes commands at host 1 until the list of commands has a length. Returns the last command.
pub(crate) fn propose_until(cluster: &Cluster, first: u64, length: u64) -> u64 {
    let mut command = first;
    while cluster.propose(1, &command.to_string()) < length {
        command += 1;
    }
    command
}
