//! `serve --cluster` as processes: three hosts on loopback addresses. Kills of the owner, restarts
//! within the lease, and mistakes in cluster files.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nearstate_model::Error;
use nearstate_store::{Kind, ReceiptState, Region, Schema};

use crate::fixture::{Client, Folder, NEARSTATE, rejected, until};

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Hosts of a cluster with one partition.
pub(crate) struct Hosts {
    pub(crate) folder: Folder,
    pub(crate) file: PathBuf,
    pub(crate) port: u16,
    /// Of metrics, of Sentinel and of RESP over TLS, on the address of each host.
    pub(crate) others: [u16; 3],
    flags: Vec<String>,
    running: Vec<Option<Child>>,
}

/// Ports that are free now, on all addresses of loopback.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("0.0.0.0:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

pub(crate) fn cluster_file(folder: &Folder, lease: &str, ports: &[u16]) -> String {
    let path = folder.path("");
    let place = path.display();
    let mut text = format!(
        "[cluster]\nname = \"east\"\ncopies = 3\nlease = \"{lease}\"\n\
         regions = \"{place}/{{host}}-{{partition}}\"\ndirectory = \"{place}/{{host}}.d\"\n"
    );
    for (number, name) in NAMES.iter().enumerate() {
        let _ = write!(
            text,
            "[[host]]\nid = {}\nname = \"{name}\"\npeer = \"127.0.0.1:{}\"\n\
             membership = \"127.0.0.1:{}\"\nclients = \"127.0.0.{}\"\n",
            number + 1,
            ports[2 * number],
            ports[2 * number + 1],
            number + 1
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

    /// With further lines, in which `{tls}` is a free port, and with flags. The lines belong to the
    /// partition, or first to the cluster and then to it if they have the headings of both.
    pub(crate) fn start_with(folder: Folder, lease: &str, lines: &str, flags: &[String]) -> Self {
        let ports = free_ports(10);
        let others = [ports[7], ports[8], ports[9]];
        let file = folder.path("cluster.toml");
        let lines = lines.replace("{tls}", &others[2].to_string());
        let headings = lines.strip_prefix("[cluster]\n");
        let both = headings.and_then(|lines| lines.split_once("[[partition]]\n"));
        let (of_cluster, of_partition) = both.unwrap_or(("", &lines));
        let mut text = cluster_file(&folder, lease, &ports) + of_partition;
        text = text.replacen("[cluster]\n", &format!("[cluster]\n{of_cluster}"), 1);
        if lines.contains("[etcd]") {
            text = text.replacen("copies = 3", "copies = 3\nengine = \"etcd\"", 1);
        }
        std::fs::write(&file, text).unwrap();
        let running = NAMES.map(|_| None).into_iter().collect();
        let (port, flags) = (ports[6], flags.to_vec());
        let mut hosts = Self { folder, file, port, others, flags, running };
        for number in 0..NAMES.len() {
            hosts.run(number);
        }
        until("the nodes answer operators", || {
            NAMES.iter().all(|name| hosts.cluster(&["status", "--host", name]).is_some())
        });
        assert!(hosts.cluster(&["init", "--host", "a"]).is_some());
        hosts.until_all_count();
        hosts
    }

    pub(crate) fn run(&mut self, number: usize) {
        self.run_with(number, &[]);
    }

    /// The same, with environment variables.
    fn run_with(&mut self, number: usize, variables: &[(&str, &str)]) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path(&format!("{}.log", NAMES[number])))
            .unwrap();
        let mut command = Command::new(NEARSTATE);
        command.arg("serve");
        let address = |port: u16| format!("127.0.0.{}:{port}", number + 1);
        command.args(["--metrics-listen", &address(self.others[0])]);
        command.args(["--resp-sentinel-listen", &address(self.others[1])]).args(&self.flags);
        command.args(["--host", NAMES[number], "--cores", "1", "--cluster"]);
        command.envs(variables.iter().copied());
        command.arg(&self.file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running[number] = Some(command.spawn().unwrap());
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
        let mut command = Command::new(NEARSTATE);
        let output = command.arg("cluster").args(words).arg("--cluster").arg(&self.file).output();
        let output = output.unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// The status of the partition on a host, as JSON in one line.
    pub(crate) fn status(&self, number: usize) -> String {
        self.cluster(&["status", "--json", "--host", NAMES[number]]).unwrap_or_default()
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
        let address = format!("127.0.0.{}:{}", number + 1, self.port);
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
    let mut hosts = Hosts::start("1s");
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
        session.wait_replicated(session.receipt(), std::time::Duration::from_secs(60)).unwrap()
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
    assert!(hosts.status(0).contains("\"role\":\"member\""), "{}", hosts.status(0));
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
fn write_until_refused(region: &Region, accepted: &AtomicU32) -> ReceiptState {
    let session = region.session().unwrap();
    let schema = Schema { kind: Kind::Value, ..Schema::default() };
    let namespace = session.namespace("ue", &schema).unwrap();
    let mut number = 0_u32;
    loop {
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
    session.wait_replicated(session.receipt(), std::time::Duration::from_secs(60)).unwrap()
}

/// The keys of the writer.
const DRAINED_KEYS: u32 = 10_000;

#[test]
fn a_drain_under_load_loses_nothing_that_was_acknowledged_in_an_async_namespace() {
    let hosts = Hosts::start("3s");
    assert_eq!(hosts.owner(), Some(0));
    let region = Region::attach(&hosts.folder.path("a-amf")).unwrap();
    let accepted = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_refused(&region, &accepted));
        until("the writer is at work", || accepted.load(Ordering::Acquire) > 2 * DRAINED_KEYS);
        let drained = hosts.cluster(&["drain", "--host", "a"]).expect("the drain succeeds");
        assert!(drained.contains(" owns amf"), "{drained}");
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
    let mut hosts = Hosts::start("10s");
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
    let good = cluster_file(&folder, "1s", &[1, 2, 3, 4, 5, 6, 7]);
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
