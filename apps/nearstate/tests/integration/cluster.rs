//! `serve --cluster` as processes: three hosts on loopback addresses. Kills of the owner, restarts
//! within the lease, and mistakes in cluster files.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nearstate_model::Error;
use nearstate_store::{Kind, ReceiptState, Region, Schema};

use crate::fixture::{Client, Folder, NEARSTATE, SetOnDrop, free_ports, own_ip, rejected, until};

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Hosts of a cluster with one partition.
pub(crate) struct Hosts {
    pub(crate) folder: Folder,
    pub(crate) file: PathBuf,
    /// The address of each host, which no other test has.
    pub(crate) ips: [Ipv4Addr; 3],
    pub(crate) port: u16,
    /// Of metrics, of Sentinel, of RESP over TLS and of metrics of a partition, on the address of
    /// each host.
    pub(crate) others: [u16; 4],
    flags: Vec<String>,
    running: Vec<Option<Child>>,
}

/// The lease of tests in which no host may lose it because the machine is slow.
pub(crate) const LONG_LEASE: &str = "10s";

/// How long a drain is repeated that was late: it takes up to eight leases.
const DRAIN_MAX: Duration = Duration::from_secs(240);

/// Addresses for three hosts.
pub(crate) fn own_ips() -> [Ipv4Addr; 3] {
    NAMES.map(|_| own_ip())
}

pub(crate) fn cluster_file(
    folder: &Folder,
    lease: &str,
    ips: [Ipv4Addr; 3],
    ports: &[u16],
) -> String {
    let path = folder.path("");
    let place = path.display();
    let mut text = format!(
        "[cluster]\nname = \"east\"\ncopies = 3\nlease = \"{lease}\"\n\
         regions = \"{place}/{{host}}-{{partition}}\"\ndirectory = \"{place}/{{host}}.d\"\n"
    );
    for (number, (name, ip)) in NAMES.iter().zip(ips).enumerate() {
        let _ = write!(
            text,
            "[[host]]\nid = {}\nname = \"{name}\"\npeer = \"{ip}:{}\"\n\
             membership = \"{ip}:{}\"\nclients = \"{ip}\"\n",
            number + 1,
            ports[2 * number],
            ports[2 * number + 1]
        );
    }
    let _ = write!(
        text,
        "[[partition]]\nid = 1\nname = \"amf\"\ngroup = [\"a\", \"b\", \"c\"]\nport = {}\n\
         region_max = \"64MiB\"\n",
        ports[6]
    );
    text
}

impl Hosts {
    /// Starts all hosts, creates the cluster, and waits until every copy counts.
    fn start(lease: &str) -> Self {
        Self::start_with(Folder::new(), lease, "", &[])
    }

    /// With further lines, in which `{tls}` and `{metrics}` are free ports, and with flags. The
    /// lines belong to the partition, or first to the cluster and then to it if they have the
    /// headings of both.
    pub(crate) fn start_with(folder: Folder, lease: &str, lines: &str, flags: &[String]) -> Self {
        let mut hosts = Self::new(folder, lease, lines, flags);
        for number in 0..NAMES.len() {
            hosts.run(number);
        }
        hosts.init();
        hosts
    }

    /// The same, of which no host runs.
    pub(crate) fn new(folder: Folder, lease: &str, lines: &str, flags: &[String]) -> Self {
        let ips = own_ips();
        // Free at the others as well, which only this test has.
        let ports = free_ports(ips[0], 11);
        let others = [ports[7], ports[8], ports[9], ports[10]];
        let file = folder.path("cluster.toml");
        let lines = lines.replace("{tls}", &others[2].to_string());
        let lines = lines.replace("{metrics}", &others[3].to_string());
        let headings = lines.strip_prefix("[cluster]\n");
        let both = headings.and_then(|lines| lines.split_once("[[partition]]\n"));
        let (of_cluster, of_partition) = both.unwrap_or(("", &lines));
        let mut text = cluster_file(&folder, lease, ips, &ports) + of_partition;
        text = text.replacen("[cluster]\n", &format!("[cluster]\n{of_cluster}"), 1);
        if lines.contains("[etcd]") {
            text = text.replacen("copies = 3", "copies = 3\nengine = \"etcd\"", 1);
        }
        std::fs::write(&file, text).unwrap();
        let running = NAMES.map(|_| None).into_iter().collect();
        let (port, flags) = (ports[6], flags.to_vec());
        Self { folder, file, ips, port, others, flags, running }
    }

    /// Creates the cluster, and waits until every copy counts. Returns what the command says.
    pub(crate) fn init(&self) -> String {
        until("the nodes answer operators", || {
            NAMES.iter().all(|name| self.cluster(&["status", "--host", name]).is_some())
        });
        let text = self.cluster(&["init", "--host", "a"]).unwrap();
        self.until_all_count();
        text
    }

    pub(crate) fn run(&mut self, number: usize) {
        self.run_with(number, &[]);
    }

    /// The same, with environment variables. Returns when the node listens or has ended. The port
    /// of a host that was killed can be in use for a moment: then it is started again.
    pub(crate) fn run_with(&mut self, number: usize, variables: &[(&str, &str)]) {
        until("a node listens or ends", || {
            let before = self.spawn(number, variables);
            let (mut has_ended, mut text) = (false, String::new());
            until("a node listens or ends", || {
                has_ended = self.running[number].as_mut().unwrap().try_wait().unwrap().is_some();
                text = self.log(number).split_off(before);
                has_ended || text.contains("protocol=metrics")
            });
            !(has_ended && text.contains("Address already in use"))
        });
    }

    /// Starts the process of a host. Returns how long its log was.
    fn spawn(&mut self, number: usize, variables: &[(&str, &str)]) -> usize {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path(&format!("{}.log", NAMES[number])))
            .unwrap();
        let before = self.log(number).len();
        let mut command = Command::new(NEARSTATE);
        command.arg("serve");
        let address = |port: u16| format!("{}:{port}", self.ips[number]);
        command.args(["--metrics-listen", &address(self.others[0])]);
        command.args(["--resp-sentinel-listen", &address(self.others[1])]).args(&self.flags);
        command.args(["--host", NAMES[number], "--cores", "1", "--cluster"]);
        command.envs(variables.iter().copied());
        command.arg(&self.file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running[number] = Some(command.spawn().unwrap());
        before
    }

    pub(crate) fn kill(&mut self, number: usize) {
        let mut host = self.running[number].take().unwrap();
        host.kill().unwrap();
        host.wait().unwrap();
    }

    /// The id of a host's process.
    pub(crate) fn process_id(&self, number: usize) -> u32 {
        self.running[number].as_ref().unwrap().id()
    }

    /// What `nearstate cluster` prints. `None`: it fails.
    pub(crate) fn cluster(&self, words: &[&str]) -> Option<String> {
        let output = self.output(words);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// The same, with what it says when it fails.
    pub(crate) fn output(&self, words: &[&str]) -> Output {
        let mut command = Command::new(NEARSTATE);
        command.arg("cluster").args(words).arg("--cluster").arg(&self.file).output().unwrap()
    }

    /// What a `nearstate cluster` that fails says.
    pub(crate) fn refusal(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Waits until the process of a host has ended, and returns its exit status.
    pub(crate) fn ended(&mut self, number: usize) -> Option<i32> {
        let mut node = self.running[number].take().unwrap();
        let mut status = None;
        until("the node ends", || {
            status = node.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// The status of the partition on a host, as JSON in one line.
    pub(crate) fn status(&self, number: usize) -> String {
        self.cluster(&["status", "--json", "--host", NAMES[number]]).unwrap_or_default()
    }

    /// Drains the host that owns the partition. On a busy machine a drain can end late, and its
    /// decision takes effect afterwards or not: it is repeated until another host is the owner.
    pub(crate) fn drain(&self, number: usize) {
        let (begin, mut is_late) = (Instant::now(), false);
        loop {
            let mut command = Command::new(NEARSTATE);
            command.args(["cluster", "drain", "--host", NAMES[number], "--cluster"]);
            let output = command.arg(&self.file).output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            if output.status.success() {
                assert!(text.contains(" owns amf"), "{text}");
                return;
            }
            is_late |= text.contains("in time");
            assert!(is_late && begin.elapsed() < DRAIN_MAX, "{text}");
            if self.owner().is_some_and(|owner| owner != number) {
                return;
            }
        }
    }

    fn is_owner(&self, number: usize) -> bool {
        self.status(number).contains("\"role\":\"owner\"")
    }

    pub(crate) fn owner(&self) -> Option<usize> {
        (0..NAMES.len()).find(|number| self.running[*number].is_some() && self.is_owner(*number))
    }

    pub(crate) fn until_all_count(&self) {
        until("all copies count", || {
            self.owner()
                .is_some_and(|owner| self.status(owner).contains("\"full\":[\"a\",\"b\",\"c\"]"))
        });
    }

    pub(crate) fn clients(&self, number: usize) -> Client<std::net::TcpStream> {
        let address = format!("{}:{}", self.ips[number], self.port);
        until("the owner serves clients", || std::net::TcpStream::connect(&address).is_ok());
        Client::tcp(&address)
    }

    pub(crate) fn log(&self, number: usize) -> String {
        std::fs::read_to_string(self.folder.path(&format!("{}.log", NAMES[number]))).unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in self.running.iter_mut().flatten() {
            let _ = host.kill();
            let _ = host.wait();
        }
        if std::thread::panicking() {
            for (number, name) in NAMES.iter().enumerate() {
                eprintln!("--- {name}\n{}", self.log(number));
            }
        }
    }
}

#[test]
fn a_lost_owner_is_replaced_and_nothing_replicated_is_lost() {
    let mut hosts = Hosts::start(LONG_LEASE);
    assert_eq!(hosts.owner(), Some(0));
    let mut client = hosts.clients(0);
    // The first write creates the namespace, and is covered by `WAIT` as every other one.
    for number in 0..100 {
        assert_eq!(client.ask(&["SET", &format!("key {number}"), &format!("{number}")]), "+OK");
    }
    let replicas = client.ask(&["WAIT", "1", "10000"]);
    assert!([":1", ":2"].contains(&replicas.as_str()), "{replicas}");
    // An attached process creates one of its own, and loses its host right after its receipt.
    let state = {
        let session = Region::attach(&hosts.folder.path("a-amf")).unwrap().session().unwrap();
        let fresh =
            session.namespace("fresh", &Schema { kind: Kind::Value, ..Schema::default() }).unwrap();
        session.put(fresh, b"k", b"attached").unwrap();
        session.wait_replicated(session.receipt(), Duration::from_secs(60)).unwrap()
    };
    assert_eq!(state, ReceiptState::Replicated);
    hosts.kill(0);
    until("another host owns the partition", || hosts.owner().is_some());
    let owner = hosts.owner().unwrap();
    let mut client = hosts.clients(owner);
    assert_eq!(client.ask(&["GET", "{fresh},k"]), "attached");
    for number in 0..100 {
        assert_eq!(client.ask(&["GET", &format!("key {number}")]), format!("{number}"));
    }
    assert_eq!(client.ask(&["SET", "after", "1"]), "+OK");
    // The old owner joins as a member.
    hosts.run(0);
    hosts.until_all_count();
    assert_eq!(hosts.owner(), Some(owner));
    until("it is a member", || hosts.status(0).contains("\"role\":\"member\""));
    let id = hosts.process_id(owner).to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(hosts.ended(owner), Some(0));
    let log = hosts.log(owner);
    assert!(log.lines().last().unwrap().contains("NS-1005"), "{log}");
}

/// Without the end of the process, its host would neither decide nor be replaced by a supervisor.
#[test]
fn a_node_whose_driver_panics_ends_with_an_error() {
    let mut hosts = Hosts::start("1s");
    (0..NAMES.len()).for_each(|number| hosts.kill(number));
    // The driver of the next owner panics when it gets its lease.
    for number in 0..NAMES.len() {
        hosts.run_with(number, &[("NEARSTATE_PLANT", "driver-panics")]);
    }
    let mut ended = None;
    until("the node of the owner ends", || {
        let mut nodes = hosts.running.iter_mut().enumerate();
        let status = |(number, node): (usize, &mut Option<Child>)| {
            Some((number, node.as_mut()?.try_wait().unwrap()?))
        };
        ended = nodes.find_map(status);
        ended.is_some()
    });
    let (number, status) = ended.unwrap();
    assert_eq!(status.code(), Some(1), "{}", hosts.log(number));
    assert!(hosts.log(number).contains("NS-3023"), "{}", hosts.log(number));
}

/// Writes in an `async` namespace of an attached region until writers are refused. Returns how many
/// keys were accepted: each one is acknowledged when the call returns.
fn write_until_refused(
    region: &Region,
    accepted: &AtomicU32,
    is_over: &AtomicBool,
) -> ReceiptState {
    let session = region.session().unwrap();
    let schema = Schema { kind: Kind::Value, ..Schema::default() };
    let namespace = session.namespace("ue", &schema).unwrap();
    let mut number = 0_u32;
    loop {
        assert!(!is_over.load(Ordering::Acquire), "writers are not refused");
        // As many keys as fit, so that the load does not end before the command.
        let key = (number % DRAINED_KEYS).to_string();
        match session.put(namespace, key.as_bytes(), format!("{number:256}").as_bytes()) {
            Ok(_) => number += 1,
            // The members are slower.
            Err(Error::Behind { .. } | Error::Full { .. }) => std::thread::yield_now(),
            Err(error) => {
                let refused = matches!(error, Error::Fenced { .. } | Error::NotOwner { .. });
                assert!(refused, "{error}");
                break;
            }
        }
        accepted.store(number, Ordering::Release);
    }
    session.wait_replicated(session.receipt(), Duration::from_secs(60)).unwrap()
}

/// The keys of the writer.
const DRAINED_KEYS: u32 = 10_000;

#[test]
fn a_drain_under_load_loses_nothing_that_was_acknowledged_in_an_async_namespace() {
    let hosts = Hosts::start(LONG_LEASE);
    assert_eq!(hosts.owner(), Some(0));
    let region = Region::attach(&hosts.folder.path("a-amf")).unwrap();
    let (accepted, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_refused(&region, &accepted, &is_over));
        let end = SetOnDrop(&is_over);
        until("the writer is at work", || accepted.load(Ordering::Acquire) > 2 * DRAINED_KEYS);
        hosts.drain(0);
        // The writer is refused, or was while the log was replicated. Its thread fails otherwise.
        until("the writer has ended", || writer.is_finished());
        drop(end);
        assert_eq!(writer.join().unwrap(), ReceiptState::Replicated, "the last commit");
    });
    until("another host owns the partition", || hosts.owner().is_some_and(|owner| owner != 0));
    let accepted = accepted.into_inner();
    let mut client = hosts.clients(hosts.owner().unwrap());
    for number in accepted - DRAINED_KEYS..accepted {
        let value = client.ask(&["GET", &format!("{{ue}},{}", number % DRAINED_KEYS)]);
        assert_eq!(value.trim(), number.to_string(), "of {accepted} writes");
    }
    // The old owner is a member.
    hosts.until_all_count();
}

#[test]
fn a_node_that_is_back_within_its_lease_is_no_fail_over() {
    let mut hosts = Hosts::start(LONG_LEASE);
    let region = Region::attach(&hosts.folder.path("a-amf")).unwrap();
    let session = region.session().unwrap();
    let namespace =
        session.namespace("ue", &Schema { kind: Kind::Value, ..Schema::default() }).unwrap();
    assert!(session.is_logged(namespace).unwrap(), "before its first write");
    session.put(namespace, b"before", b"1").unwrap();
    hosts.kill(0);
    // Attached processes go on without the node.
    session.put(namespace, b"meanwhile", b"2").unwrap();
    hosts.run(0);
    until("the same host owns the partition", || hosts.is_owner(0));
    hosts.until_all_count();
    assert!(hosts.status(0).contains("\"view\":1}"), "{}", hosts.status(0));
    session.put(namespace, b"after", b"3").unwrap();
    let receipt = session.receipt();
    until("it is replicated", || session.is_replicated(receipt).unwrap());
}

#[test]
fn mistakes_in_a_cluster_file_are_refused_before_anything_is_created() {
    let folder = Folder::new();
    let file = folder.path("cluster.toml");
    let good = cluster_file(&folder, "1s", own_ips(), &[1, 2, 3, 4, 5, 6, 7]);
    for (from, to, host, error) in [
        ("id = 2", "id = 1", "a", "two hosts have the number 1"),
        ("\"c\"]", "\"d\"]", "a", "names host \"d\", which is unknown"),
        ("copies = 3", "copies = 4", "a", "only 3 hosts"),
        ("copies = 3", "copies = 3", "x", "no host \"x\" in the cluster file"),
    ] {
        std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
        let mut command = Command::new(NEARSTATE);
        command.args(["serve", "--host", host, "--cluster"]).arg(&file);
        let refused = rejected(&mut command);
        assert!(refused.contains(error), "{refused}");
    }
    let left = std::fs::read_dir(folder.path("")).unwrap().count();
    assert_eq!(left, 1, "only the file");
}
