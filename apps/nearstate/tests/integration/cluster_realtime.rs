//! The thread that keeps leases (`docs/decisions/043-lease-thread.md`): what it gets of the kernel,
//! what is said without the rights, and what ends one that does not wait any more.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use nearstate_local_cluster::skipped;

use crate::cluster::{Hosts, NAMES, cluster_file, own_ips};
use crate::fixture::{Folder, NEARSTATE, free_ports, rejected, until};

const SIGXCPU: i32 = 24;
const SCHED_OTHER: i64 = 0;
const SCHED_FIFO: i64 = 1;

/// Scheduling policy, real-time priority and nice value of a thread.
fn scheduling(process: u32, name: &str) -> Option<[i64; 3]> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let of_thread = |stat: String| {
        let (head, rest) = stat.rsplit_once(')')?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        let field = |number: usize| fields[number - 3].parse::<i64>().unwrap();
        head.ends_with(&format!("({name}")).then(|| [field(41), field(40), field(19)])
    };
    stats.filter_map(of_thread).next()
}

/// True if a process of this user may have a real-time thread.
fn has_rights() -> bool {
    let mut command = Command::new("chrt");
    let output = command.args(["--fifo", "1", "true"]).stdin(Stdio::null()).output();
    output.expect("chrt: install util-linux").status.success()
}

/// A host of a cluster of which no other host runs.
fn one_host(realtime: &str) -> Hosts {
    let lines = format!("[cluster]\nrealtime = \"{realtime}\"\n[[partition]]\n");
    Hosts::new(Folder::new(), "1s", &lines, &[])
}

#[test]
fn the_lease_thread_runs_before_ordinary_threads_and_the_program_is_locked() {
    if !has_rights() {
        return skipped("a real-time thread needs CAP_SYS_NICE");
    }
    let mut hosts = one_host("require");
    hosts.run(0);
    let process = hosts.process_id(0);
    assert_eq!(scheduling(process, "ns-cluster"), Some([SCHED_FIFO, 1, 0]));
    assert_eq!(scheduling(process, "ns-membership"), Some([SCHED_OTHER, 0, -10]));
    // What such a thread starts, and all others, are ordinary ones.
    for name in ["ns-peers", "ns-member", "ns-copy-1", "ns-admin"] {
        until("the thread runs", || scheduling(process, name).is_some());
        assert_eq!(scheduling(process, name), Some([SCHED_OTHER, 0, 0]), "{name}");
    }
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    let locked: u64 = locked.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(locked > 1024, "{locked} KiB of the program are locked");
    assert!(!hosts.log(0).contains("realtime"), "{}", hosts.log(0));
    assert!(hosts.page(0).contains("nearstate_cluster_realtime 1"));
    until("it says so", || hosts.status(0).contains("\"realtime\":true"));
    drop(hosts);
    let mut hosts = one_host("off");
    hosts.run(0);
    assert_eq!(scheduling(hosts.process_id(0), "ns-cluster"), Some([SCHED_OTHER, 0, 0]));
    assert!(hosts.page(0).contains("nearstate_cluster_realtime 0"));
}

/// The command of a host of a cluster file in a folder, whose threads get nothing of the kernel
/// unless `keeps_rights`.
fn host_command(folder: &Folder, realtime: &str, keeps_rights: bool) -> Command {
    let ips = own_ips();
    let text = cluster_file(folder, "1s", ips, &free_ports(ips[0], 7));
    let key = format!("[cluster]\nrealtime = \"{realtime}\"\n");
    let file = folder.path("cluster.toml");
    std::fs::write(&file, text.replacen("[cluster]\n", &key, 1)).unwrap();
    let mut command = if keeps_rights || !has_rights() {
        Command::new(NEARSTATE)
    } else {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_nice,-ipc_lock", "prlimit", "--memlock=65536:65536"]);
        command.args(["--rtprio=0:0", "--nice=20:20", NEARSTATE]);
        command
    };
    command.args(["serve", "--host", NAMES[0], "--cores", "1", "--cluster"]).arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A node, which is killed at the end.
struct KilledNode(Child);

impl Drop for KilledNode {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KilledNode {
    fn start(folder: &Folder, command: &mut Command) -> Self {
        let log = std::fs::File::create(folder.path("log")).unwrap();
        Self(command.stderr(log).spawn().unwrap())
    }
}

#[test]
fn a_lease_thread_that_does_not_wait_any_more_ends_its_process() {
    if !has_rights() {
        return skipped("a real-time thread needs CAP_SYS_NICE");
    }
    let folder = Folder::new();
    let mut command = host_command(&folder, "require", true);
    let mut node = KilledNode::start(&folder, command.env("NEARSTATE_PLANT", "driver-spins"));
    let mut status = None;
    until("the kernel ends the process", || {
        status = node.0.try_wait().unwrap();
        status.is_some()
    });
    let log = std::fs::read_to_string(folder.path("log")).unwrap();
    assert_eq!(status.unwrap().signal(), Some(SIGXCPU), "{log}");
}

#[test]
fn what_is_missing_is_said_once_and_refused_if_it_is_required() {
    let folder = Folder::new();
    let mut node = KilledNode::start(&folder, &mut host_command(&folder, "auto", false));
    let log = || std::fs::read_to_string(folder.path("log")).unwrap();
    until("the host takes part in its cluster", || log().contains("NS-1014"));
    let lines: Vec<_> =
        log().lines().filter(|line| line.contains("realtime")).map(str::to_owned).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in
        ["NS-2012", "SCHED_FIFO is refused", "LimitRTPRIO=1", "cannot be locked", "LimitMEMLOCK="]
    {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
    assert_eq!(scheduling(node.0.id(), "ns-cluster"), Some([SCHED_OTHER, 0, 0]));
    assert!(node.0.try_wait().unwrap().is_none());

    let folder = Folder::new();
    let error = rejected(&mut host_command(&folder, "require", false));
    assert!(error.contains("cluster.realtime = \"require\": SCHED_FIFO is refused"), "{error}");
    assert!(error.contains("grant CAP_SYS_NICE or LimitRTPRIO=1"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path("")).unwrap().count(), 1, "only the file");
}
