//! What operators and clients see of a cluster: status of all hosts, alarms, metrics, Sentinel.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cluster::{Hosts, LONG_LEASE, NAMES};
use crate::fixture::{Client, Folder, NEARSTATE, free_ports, http, own_ip, until};
use crate::serve::tls::Authority;

impl Hosts {
    fn address(&self, number: usize, port: usize) -> String {
        format!("{}:{}", self.ips[number], self.others[port])
    }

    /// The metrics page of a host.
    pub(crate) fn page(&self, number: usize) -> String {
        http(&self.address(number, 0), "/metrics").1
    }

    /// The owner's address, as the Sentinel of a host knows it.
    fn master(&self, number: usize) -> Option<(String, String)> {
        let mut client = Client::tcp(&self.address(number, 1));
        let reply = client.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "amf"]);
        let mut next = || String::from_utf8(client.receive().unwrap()).unwrap();
        (reply == "*2").then(|| (next(), next()))
    }

    /// The status of all hosts.
    fn all(&self) -> Value {
        serde_json::from_str(&self.cluster(&["status", "--json"]).unwrap()).unwrap()
    }

    /// The ids and states of all alarms, with their hosts.
    fn alarms(&self) -> Vec<[String; 3]> {
        let all: Value =
            serde_json::from_str(&self.cluster(&["alarms", "--json"]).unwrap()).unwrap();
        let field = |alarm: &Value, name: &str| alarm[name].as_str().unwrap().to_owned();
        let one = |alarm: &Value| ["id", "state", "host"].map(|name| field(alarm, name));
        // A host that does not answer has an object without an alarm.
        let alarms = all.as_array().unwrap().iter().filter(|alarm| alarm.get("id").is_some());
        alarms.map(one).collect()
    }

    pub(crate) fn has_alarm(&self, id: &str, state: &str) -> bool {
        self.alarms().iter().any(|alarm| alarm[0] == id && alarm[1] == state)
    }
}

/// A cluster whose owner serves RESP over TLS as well.
fn hosts(authority: &Authority) -> Hosts {
    let (folder, signed) = (Folder::new(), authority.sign("localhost"));
    let flag = |name: &str, text: &str| {
        let path = folder.path(name);
        std::fs::write(&path, text).unwrap();
        [format!("--tls-{name}"), path.display().to_string()]
    };
    let flags =
        [flag("certificate", &signed.pem), flag("key", &signed.key.serialize_pem())].concat();
    Hosts::start_with(folder, LONG_LEASE, "tls_port = {tls}\n", &flags)
}

#[test]
fn operators_see_all_hosts_and_clients_find_the_owner_after_a_fail_over() {
    let authority = Authority::new();
    let mut hosts = hosts(&authority);
    hosts.clients(0);
    // Every host knows the owner and reports itself.
    for number in 0..NAMES.len() {
        let owner = Some((hosts.ips[0].to_string(), hosts.port.to_string()));
        until("its Sentinel names the owner", || hosts.master(number) == owner);
    }
    let mut over_tls = authority.connect(&hosts.address(0, 2));
    assert_eq!(over_tls.ask(&["SET", "key", "1"]), "+OK");
    until("the members have everything", || {
        let all = hosts.all();
        let members = all[0]["partitions"][0]["members"].as_array().unwrap().clone();
        members.len() == 2 && members.iter().all(|one| one["lag"] == 0 && one["lag_ms"] == 0)
    });
    let all = hosts.all();
    let names: Vec<_> = all.as_array().unwrap().iter().map(|one| &one["host"]).collect();
    assert_eq!(names, NAMES);
    assert_eq!(all[1]["partitions"][0]["role"], "member");
    assert!(all[2]["partitions"][0]["bytes_free"].as_u64().unwrap() > 0);
    let page = hosts.page(0);
    for line in [
        "nearstate_cluster_owned{partition=\"amf\"} 1",
        "nearstate_cluster_members_counted{partition=\"amf\"} 3",
        "nearstate_cluster_role{partition=\"amf\",role=\"owner\"} 1",
        "nearstate_cluster_member_lag_entries{partition=\"amf\",member=\"b\"} 0",
        "nearstate_cluster_events_total{partition=\"amf\",event=\"cluster-owner-started\"} 1",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(!page.contains("failovers_total{"), "{page}");
    until("no alarm is raised", || !hosts.alarms().iter().any(|alarm| alarm[1] == "raised"));

    // The clients' port of the next owner is in use: it is tried again.
    let taken = [1, 2].map(|host| TcpListener::bind((hosts.ips[host], hosts.port)).unwrap());
    hosts.kill(0);
    until("another host owns the partition", || hosts.owner().is_some());
    let owner = hosts.owner().unwrap();
    until("its clients are not served", || hosts.has_alarm("NS-5010", "raised"));
    until("it was tried again", || hosts.log(owner).matches("NS-3015").count() >= 2);
    drop(taken);
    let address = (hosts.ips[owner].to_string(), hosts.port.to_string());
    for number in [1, 2] {
        until("its Sentinel says so", || hosts.master(number).as_ref() == Some(&address));
    }
    assert_eq!(hosts.clients(owner).ask(&["GET", "key"]), "1");
    assert_eq!(authority.connect(&hosts.address(owner, 2)).ask(&["GET", "key"]), "1");
    assert_eq!(hosts.all()[0]["host"], "a");
    assert!(hosts.all()[0]["unreachable"].is_string());
    until("a copy is missing", || hosts.has_alarm("NS-5004", "raised"));
    let page = hosts.page(owner);
    let failovers = "nearstate_cluster_failovers_total{partition=\"amf\"} ";
    let failovers = page.lines().find_map(|line| line.strip_prefix(failovers)).unwrap();
    assert!(failovers.parse::<u64>().unwrap() >= 1, "{page}");
    assert!(page.contains("nearstate_cluster_alarm{id=\"NS-5004\""), "{page}");
    // It is back: the alarm is cleared, and kept.
    hosts.run(0);
    hosts.until_all_count();
    until("the alarm is cleared", || {
        hosts.has_alarm("NS-5004", "cleared") && !hosts.has_alarm("NS-5004", "raised")
    });
    let mut command = Command::new(NEARSTATE);
    let shown = command.args(["top", "--once", "--cluster"]).arg(&hosts.file).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("PARTITION"), "{shown}");
    for name in NAMES {
        assert!(shown.contains(&format!("\n{name}: the membership is led by")), "{shown}");
    }
    assert!(TcpStream::connect(hosts.address(owner, 2)).is_ok());
}

/// An etcd with one member, in memory.
struct Etcd {
    child: Child,
    _folder: Folder,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Etcd {
    fn start(ip: Ipv4Addr, ports: &[u16]) -> Self {
        let folder = Folder::new();
        let [clients, peers] = [ports[0], ports[1]].map(|port| format!("http://{ip}:{port}"));
        let mut command = Command::new("etcd");
        command.args(["--name", "m", "--initial-cluster", &format!("m={peers}"), "--data-dir"]);
        command.arg(folder.path("etcd"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn();
        let child = child.expect("etcd is missing: `cargo xtask packages` installs etcd-server");
        Self { child, _folder: folder }
    }
}

#[test]
fn etcd_orders_the_decisions_of_a_fail_over() {
    let ip = own_ip();
    let ports = free_ports(ip, 2);
    let _etcd = Etcd::start(ip, &ports);
    until("etcd answers", || TcpStream::connect((ip, ports[0])).is_ok());
    let section = format!("[etcd]\nendpoints = [\"http://{ip}:{}\"]\n", ports[0]);
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, &section, &[]);
    let mut client = hosts.clients(0);
    assert_eq!(client.ask(&["SET", "key", "1"]), "+OK");
    assert_eq!(client.ask(&["SET", "key", "2"]), "+OK");
    assert_ne!(client.ask(&["WAIT", "1", "10000"]), ":0");
    assert_eq!(hosts.all()[1]["membership"]["engine"], "etcd");
    hosts.kill(0);
    until("another host owns the partition", || hosts.owner().is_some());
    let owner = hosts.owner().unwrap();
    assert_eq!(hosts.clients(owner).ask(&["GET", "key"]), "2");
    hosts.run(0);
    hosts.until_all_count();
    // It also orders the changes of groups, and the level that they need.
    let change = |word| [word, "a", "--partition", "amf", "--host", NAMES[owner]];
    until("it is removed", || hosts.cluster(&change("remove")).is_some());
    let group = |hosts: &Hosts| hosts.all()[owner]["partitions"][0]["group"].clone();
    assert_eq!(group(&hosts).as_array().unwrap().len(), 2, "{}", group(&hosts));
    until("it is added", || hosts.cluster(&change("add")).is_some());
    hosts.until_all_count();
    // And a hand-over: without its name, another host than this last one of the group is next.
    let drain = ["drain", "--host", NAMES[owner], "--to", "a"];
    until("the named host owns the partition", || {
        hosts.cluster(&drain).is_some() || hosts.owner() == Some(0)
    });
    until("it has a lease", || hosts.owner() == Some(0));
    assert_eq!(hosts.clients(0).ask(&["GET", "key"]), "2");
}

#[test]
fn a_partition_without_a_copy_begins_anew_with_the_region_that_an_operator_names() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    hosts.clients(0);
    for number in 0..NAMES.len() {
        hosts.kill(number);
    }
    // As after a loss of power: the regions are gone, what the membership has is not.
    for name in NAMES {
        std::fs::remove_file(hosts.folder.path(&format!("{name}-amf"))).unwrap();
    }
    for number in 0..NAMES.len() {
        hosts.run(number);
    }
    let copy = |hosts: &Hosts| hosts.all()[1]["partitions"][0].clone();
    until("the partition has no owner", || {
        hosts.cluster(&["status", "--host", "b"]).is_some() && copy(&hosts)["owner"].is_null()
    });
    until("an alarm says so", || hosts.has_alarm("NS-5001", "raised"));
    let words = ["force-new", "--partition", "amf", "--to", "b", "--host", "b"];
    assert!(hosts.cluster(&words).is_none(), "not without --from-region");
    let begun = hosts.cluster(&[&words[..], &["--from-region"]].concat()).unwrap();
    assert!(begun.contains("given up: what other copies had"), "{begun}");
    hosts.until_all_count();
    assert_eq!(hosts.owner(), Some(1));
    assert!(copy(&hosts)["loss"]["view"].as_u64().is_some(), "{}", copy(&hosts));
    assert_eq!(hosts.clients(1).ask(&["SET", "key", "1"]), "+OK");
}

/// A host whose links for replication are cut, and not those of the membership: it hears no owner.
#[test]
fn an_owner_that_only_the_membership_reaches_is_not_given_away() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    let mut client = hosts.clients(0);
    assert_eq!(client.ask(&["SET", "key", "1"]), "+OK");
    hosts.kill(2);
    // It connects to ports at which no host listens.
    let ip = own_ip();
    let mut dead = free_ports(ip, 2).into_iter();
    let line = |line: &str| match line.strip_prefix("peer = ").and_then(|_| dead.next()) {
        Some(port) => format!("peer = \"{ip}:{port}\"\n"),
        None => format!("{line}\n"),
    };
    let text: String = std::fs::read_to_string(&hosts.file).unwrap().lines().map(line).collect();
    let cut = hosts.folder.path("cut.toml");
    std::fs::write(&cut, text).unwrap();
    let whole = std::mem::replace(&mut hosts.file, cut.clone());
    hosts.run(2);
    hosts.file = whole;
    until("the owner does not count it", || hosts.status(0).contains("\"full\":[\"a\",\"b\"]"));
    until("its node answers", || !hosts.status(2).is_empty());
    // Its Sentinel names no owner, and refuses records: its region is not that of clients.
    let owner = Some((hosts.ips[0].to_string(), hosts.port.to_string()));
    for (number, named) in [(0, &owner), (1, &owner), (2, &None)] {
        until("each Sentinel says what its host hears", || hosts.master(number) == *named);
    }
    let refused = Client::tcp(&hosts.address(1, 1)).ask(&["SET", "key", "lost"]);
    assert!(refused.contains(&format!("Connect to {}:{}", hosts.ips[0], hosts.port)), "{refused}");
    for words in [&["accept-loss"][..], &["force-new", "--from-region"]] {
        let mut command = Command::new(NEARSTATE);
        command.arg("cluster").args(words).args(["--partition", "amf", "--to", "c"]);
        let output = command.args(["--host", "c", "--cluster"]).arg(&cut).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{words:?}");
        assert!(text.contains("a lives and owns the partition"), "{words:?}: {text}");
    }
    assert_eq!(hosts.owner(), Some(0));
    assert!(hosts.status(0).contains("\"view\":1}"), "{}", hosts.status(0));
    assert_eq!(client.ask(&["SET", "key", "2"]), "+OK");
}

/// The rows of `cluster check` about whether other hosts take host a for a member.
fn accepted(hosts: &Hosts, file: &std::path::Path) -> Vec<[String; 3]> {
    let mut command = Command::new(NEARSTATE);
    command.args(["cluster", "check", "--json", "--host", "a", "--cluster"]).arg(file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}, {}", hosts.log(1));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = all["checks"].as_array().unwrap().iter();
    let row = |row: &Value| {
        ["subject", "outcome", "detail"].map(|name| row[name].as_str().unwrap().to_owned())
    };
    rows.filter(|row| row["check"] == "membership").map(row).collect()
}

#[test]
fn a_check_asks_the_other_hosts_whether_they_take_this_one_for_a_member() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    let rows = accepted(&hosts, &hosts.file);
    let passed: Vec<_> = rows.iter().map(|[host, outcome, _]| (&**host, &**outcome)).collect();
    assert_eq!(passed, [("b", "passed"), ("c", "passed")], "{rows:?}");
    let other = hosts.folder.path("other.toml");
    let text = std::fs::read_to_string(&hosts.file).unwrap();
    let changed = text.replace(LONG_LEASE, "9s");
    assert_ne!(changed, text);
    std::fs::write(&other, changed).unwrap();
    for [host, outcome, detail] in accepted(&hosts, &other) {
        assert_eq!(outcome, "warning", "{host}: {detail}");
        assert!(detail.contains("other settings: cluster.lease"), "{host}: {detail}");
    }
    // One that does not answer at all has its own row.
    hosts.kill(2);
    let rows = accepted(&hosts, &hosts.file);
    assert_eq!(rows.iter().map(|[host, ..]| &**host).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn an_alarm_tells_that_the_file_of_a_copy_was_removed() {
    let hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    std::fs::remove_file(hosts.folder.path("b-amf")).unwrap();
    until("the alarm is raised", || hosts.has_alarm("NS-5014", "raised"));
    assert!(hosts.log(1).contains("NS-3027"), "{}", hosts.log(1));
}

/// The drained host keeps its records, so the partition has two complete copies at once.
#[test]
fn writers_go_on_behind_a_drain_with_one_other_complete_copy() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    let owner = hosts.owner().unwrap();
    assert_eq!(hosts.clients(owner).ask(&["SET", "key", "1"]), "+OK");
    hosts.kill((owner + 1) % NAMES.len());
    let other = (owner + 2) % NAMES.len();
    let counts_all = |at: usize| hosts.status(at).contains("\"full\":[\"a\",\"b\",\"c\"]");
    until("the host that was killed does not count", || !counts_all(owner));
    hosts.drain(owner);
    until("the other host admits writers", || {
        hosts.clients(other).ask(&["SET", "key", "2"]) == "+OK"
    });
    assert_eq!(hosts.clients(other).ask(&["WAIT", "1", "0"]), ":1");
    let log = hosts.log(owner);
    assert!(!log.contains("NS-1020"), "it has discarded its copy: {log}");
}

/// The kernel accepts the connection for a process that is stopped.
#[test]
fn a_stopped_node_is_named_and_the_next_one_on_this_machine_is_asked() {
    let hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    let signal = |name: &str| {
        let process = hosts.process_id(0).to_string();
        assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    };
    signal("-STOP");
    let status = hosts.output(&["status"]);
    let refusal = hosts.refusal(&["status", "--host", "a"]);
    signal("-CONT");
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(status.status.success() && text.contains("a: UNREACHABLE"), "{text}");
    assert!(refusal.contains("does not answer, and nothing was done"), "{refusal}");
}
