//! A process that is stopped in a commit, when its host loses the partition. It is killed, and no
//! other one, if the configuration allows that.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nearstate_model::Error;
use nearstate_node::StoppedHolder;
use nearstate_store::{Filter, Namespace, Region, Result, Schema, Session};

use crate::cluster_driver::{DrivenCluster, locked, until};

/// The region that a process of this test attaches, and what it does there.
const REGION: &str = "STOPPED_TEST_REGION";
const ROLE: &str = "STOPPED_TEST_ROLE";

/// Records of a transaction: for a good part of its time it holds their locks.
const RECORDS: u64 = 200;

fn namespace(session: &Session) -> Result<Namespace> {
    session.namespace("ue", &Schema::default())
}

#[test]
#[ignore = "a process that the other tests start"]
fn attached_process() {
    let (Some(region), Ok(role)) = (std::env::var_os(REGION), std::env::var(ROLE)) else { return };
    let session = Region::attach(Path::new(&region)).unwrap().session().unwrap();
    let ue = namespace(&session).unwrap();
    if role == "watcher" {
        // It is stopped with the lock of the first bucket.
        let _watch = session.watch(ue, Filter::Namespace);
        return;
    }
    if role == "reader" {
        // It holds a pin, and no lock.
        session.put(ue, b"reader", b"1").unwrap();
        let _view = session.get(ue, b"reader").unwrap();
        loop {
            std::thread::park();
        }
    }
    loop {
        // The members keep up with it.
        std::thread::park_timeout(Duration::from_millis(5));
        // Refused when the host has lost the partition.
        let _ = session.transact(|txn| {
            (0..RECORDS).try_for_each(|key| txn.put(ue, &key.to_le_bytes(), &[7; 100]).map(drop))
        });
    }
}

/// A process, which is killed when this is dropped.
struct Attached(Child);

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Attached {
    fn start(region: &Path, role: &str) -> Self {
        Self::start_at(region, role, "")
    }

    /// One that stops itself at a point of the code.
    fn start_at(region: &Path, role: &str, point: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if !point.is_empty() {
            command.env("NEARSTATE_CRASH_AT", format!("{point}:1:stop"));
        }
        command.args(["--exact", "stopped_writers::attached_process", "--ignored"]);
        command.env(REGION, region).env(ROLE, role);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

/// Starts a process that holds a pin, and no lock, and stops it.
fn stopped_reader(region: &Path) -> Attached {
    let reader = Attached::start(region, "reader");
    let attached = Region::attach(region).unwrap();
    until("it has a view", || {
        let members = attached.inspect().unwrap().members;
        let is_it = |pid: u32| pid == reader.0.id();
        members.iter().any(|one| is_it(one.process.pid) && one.pinned_epoch.is_some())
    });
    reader.signal("-STOP");
    reader
}

/// Starts a process and stops it in a commit: it holds the lock that another writer needs.
fn stopped_writer(region: &Path) -> Attached {
    let writer = Attached::start(region, "writer");
    let session = Region::attach(region).unwrap().session().unwrap();
    let key = 0_u64.to_le_bytes();
    until("it writes", || {
        namespace(&session).is_ok_and(|ue| session.get(ue, &key).unwrap().is_some())
    });
    let ue = namespace(&session).unwrap();
    until("it is stopped in a commit", || {
        writer.signal("-STOP");
        let is_stalled = matches!(session.put(ue, &key, b"1"), Err(Error::Stalled { .. }));
        if !is_stalled {
            writer.signal("-CONT");
        }
        is_stalled
    });
    writer
}

#[test]
fn a_process_that_is_stopped_in_a_commit_is_killed_when_its_host_loses_the_partition() {
    let mut cluster = DrivenCluster::start_with(true, [64 << 20; 3]);
    let region = cluster.region(1);
    let mut reader = stopped_reader(&region);
    let mut writer = stopped_writer(&region);
    cluster.stop(1);
    cluster.owner_with(&[2, 3]);
    // The host is back, and its copy counts again.
    cluster.run(1);
    cluster.owner_with(&[1, 2, 3]);
    assert_eq!(writer.0.wait().unwrap().signal(), Some(9));
    assert!(reader.is_alive(), "it holds no lock");
    let stopped = locked(&cluster.log.stopped).clone();
    let [StoppedHolder::Killed(process)] = stopped.as_slice() else { panic!("{stopped:?}") };
    assert_eq!(process.pid, writer.0.id());
}

#[test]
fn a_process_that_is_stopped_in_a_commit_is_kept_if_it_may_not_be_killed() {
    let mut cluster = DrivenCluster::start_with(false, [64 << 20; 3]);
    let mut writer = stopped_writer(&cluster.region(1));
    cluster.stop(1);
    cluster.owner_with(&[2, 3]);
    cluster.run(1);
    until("it is told why", || !locked(&cluster.log.stopped).is_empty());
    let is_named = |(_, reason): &(_, String)| {
        reason.contains("is alive but stopped") && reason.contains(&writer.0.id().to_string())
    };
    until("the change has failed", || locked(&cluster.log.failures).iter().any(is_named));
    assert!(writer.is_alive());
    let stopped = locked(&cluster.log.stopped).clone();
    let is_kept = |one: &StoppedHolder| match one {
        StoppedHolder::Kept(process, reason) => {
            process.pid == writer.0.id() && reason == "cluster.kill_stopped is false"
        }
        StoppedHolder::Killed(_) => false,
    };
    assert!(stopped.iter().all(is_kept), "{stopped:?}");
    // It goes on, and so does the change.
    writer.signal("-CONT");
    cluster.owner_with(&[1, 2, 3]);
    assert!(writer.is_alive());
}

/// A process that begins a watch of a copy is stopped while it has the lock of a bucket. The copy
/// has to put a record there.
#[test]
fn a_process_that_is_stopped_with_a_lock_on_the_host_of_a_copy_delays_it_for_a_bounded_time() {
    const RECORDS: u64 = 200;
    let cluster = DrivenCluster::start_with(true, [64 << 20; 3]);
    cluster.write(1, 0..1, 100);
    cluster.assert_equal(1);
    let mut watcher = Attached::start_at(&cluster.region(2), "watcher", "flags.changed");
    let id = watcher.0.id();
    until("it is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    });
    // More than the buckets of a new namespace.
    cluster.write(1, 1..RECORDS, 100);
    cluster.assert_equal(RECORDS);
    assert_eq!(watcher.0.wait().unwrap().signal(), Some(9));
    until("it is told", || !locked(&cluster.log.stopped).is_empty());
    let stopped = locked(&cluster.log.stopped).clone();
    let [StoppedHolder::Killed(process)] = stopped.as_slice() else { panic!("{stopped:?}") };
    assert_eq!(process.pid, id);
}
