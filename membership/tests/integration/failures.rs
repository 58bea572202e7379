//! Disks that fail, directories that do not fit, and certificates.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_membership::{MemberTls, MembershipConfig};
use nearstate_model::Result;
use nearstate_node::{ClientTls, EngineEvent, StateMachine, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::fixture::{
    Cluster, Host, LONG, Lines, check_stops_at_later_command, earlier, free_address,
};

/// A file system of 256 KiB, which is removed with the test.
struct SmallDisk<'d>(&'d Path);

impl<'d> SmallDisk<'d> {
    /// Mounts it, if this process may.
    fn mount(directory: &'d Path) -> Option<Self> {
        fs::create_dir_all(directory).unwrap();
        let mut mount = Command::new("mount");
        let mounted =
            mount.args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(directory).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(directory));
        }
        let may_skip = std::env::var_os("NEARSTATE_MAY_SKIP").is_some();
        assert!(may_skip, "not tested: only root can mount a tmpfs");
        eprintln!("SKIPPED: only root can mount a tmpfs");
        None
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("-l").arg(self.0).output();
        assert!(ended.is_ok_and(|ended| ended.status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_host_with_a_full_disk_says_so_stops_voting_and_recovers() {
    let mut cluster = Cluster::new(3);
    let directory = cluster.directory(2);
    let Some(_disk) = SmallDisk::mount(&directory) else { return };
    for id in 1..=3 {
        cluster.run(id);
    }
    cluster.hosts[&1].engine.initialize(&[1, 2, 3].into()).unwrap();
    cluster.propose(1, "first");
    let ballast = directory.join("ballast");
    let mut filling = fs::File::create(&ballast).unwrap();
    while filling.write_all(&[0; 4096]).is_ok() {}
    cluster.propose(1, &"x".repeat(4000));
    cluster.propose(1, &"y".repeat(4000));
    let failed = |event: &EngineEvent| match event {
        EngineEvent::Failed { reason } => reason.contains("the file system is full"),
        EngineEvent::Applied { .. } | EngineEvent::Restored { .. } | EngineEvent::Recovered => {
            false
        }
    };
    cluster.hosts[&2].until(|_, others| others.iter().any(failed));
    assert!(cluster.hosts[&2].engine.status().failure.is_some());
    // The others are a majority without it.
    cluster.propose(3, "second");
    drop(filling);
    fs::remove_file(ballast).unwrap();
    let text = cluster.hosts[&2].until(|text, others| {
        text.contains("second\n") && others.contains(&EngineEvent::Recovered)
    });
    assert_eq!(text.matches("first\n").count(), 1, "no command is told twice");
    assert_eq!(cluster.hosts[&2].engine.status().failure, None);
    cluster.hosts.clear();
}

#[test]
fn a_host_stops_at_a_command_that_its_program_cannot_apply() {
    let mut cluster = Cluster::new(3);
    cluster.run(1);
    cluster.run(2);
    let host = Host::start(earlier(cluster.config(3))).unwrap();
    cluster.hosts.insert(3, host);
    cluster.hosts[&1].engine.initialize(&[1, 2, 3].into()).unwrap();
    check_stops_at_later_command(&cluster, 3);
}

/// Commands of which the first application of one panics.
struct PanickingLines(Lines, Arc<AtomicBool>);

const PANICKING_COMMAND: &str = "panics once";

impl PanickingLines {
    fn panic_once(&self, command: &[u8]) {
        let panics = command == PANICKING_COMMAND.as_bytes();
        assert!(!panics || !self.1.swap(false, Ordering::AcqRel), "as planned");
    }
}

impl StateMachine for PanickingLines {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<()> {
        self.panic_once(command);
        self.0.apply(index, command)
    }
    fn snapshot(&self) -> Vec<u8> {
        self.0.snapshot()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<()> {
        self.0.restore(snapshot)
    }
}

/// The configuration of a host whose state machine panics once.
pub(crate) fn panicking(config: MembershipConfig) -> MembershipConfig {
    let panics = Arc::new(AtomicBool::new(true));
    let machine = move || Box::new(PanickingLines(Lines::default(), Arc::clone(&panics))) as Box<_>;
    MembershipConfig { machine: Arc::new(machine), ..config }
}

/// Host 3 is a [`panicking`] one: it says so, and goes on.
pub(crate) fn check_recovers_from_panic(cluster: &Cluster) {
    cluster.propose(1, "known");
    cluster.hosts[&3].until_line("known");
    // No command follows that would find that the one before was not applied.
    cluster.propose(1, PANICKING_COMMAND);
    let text = cluster.hosts[&3].until(|text, others| {
        let failed = |event: &EngineEvent| {
            matches!(event, EngineEvent::Failed { reason } if
            reason.contains("has caused a panic: as planned"))
        };
        text.contains(PANICKING_COMMAND)
            && others.iter().any(failed)
            && others.contains(&EngineEvent::Recovered)
    });
    assert_eq!(text.matches(PANICKING_COMMAND).count(), 1, "{text}");
}

#[test]
fn a_state_machine_that_panics_is_a_failure_from_which_the_host_recovers() {
    let mut cluster = Cluster::new(3);
    cluster.run(1);
    cluster.run(2);
    cluster.hosts.insert(3, Host::start(panicking(cluster.config(3))).unwrap());
    cluster.hosts[&1].engine.initialize(&[1, 2, 3].into()).unwrap();
    check_recovers_from_panic(&cluster);
}

#[test]
fn a_directory_and_an_address_that_do_not_fit_are_refused_at_the_start() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let taken = Host::start(cluster.config(1)).err().unwrap();
    assert!(taken.to_string().contains("cannot listen on"), "{taken}");
    cluster.hosts.remove(&1);
    let mut other = cluster.config(2);
    other.directory = cluster.directory(1);
    other.members.get_mut(&2).unwrap().address = free_address();
    let refused = Host::start(other).err().unwrap();
    assert!(refused.to_string().contains("belongs to host 1 of cluster \"east\""), "{refused}");
    let mut missing = cluster.config(1);
    missing.host = 9;
    let refused = Host::start(missing).err().unwrap();
    assert!(refused.to_string().contains("host 9 is not in the cluster file"), "{refused}");
    let log = cluster.directory(1).join("log");
    let mut bytes = fs::read(&log).unwrap();
    bytes[30] ^= 4;
    fs::write(&log, bytes).unwrap();
    let damaged = Host::start(cluster.config(1)).err().unwrap();
    assert!(damaged.to_string().contains("is damaged"), "{damaged}");
}

/// Writes an authority, and certificates of hosts.
pub(crate) fn certificates(place: &Path, names: &[&str]) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    fs::write(place.join("ca.pem"), authority.pem()).unwrap();
    for name in names {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![(*name).to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        fs::write(place.join(format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(place.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn member_tls(place: &Path, name: &str) -> MemberTls {
    let (certificate, key) = (place.join(format!("{name}.pem")), place.join(format!("{name}.key")));
    let authority = place.join("ca.pem");
    MemberTls {
        server: Tls::read(&certificate, &key, Some(&authority)).unwrap(),
        client: ClientTls::read(&authority, Some((&certificate, &key))).unwrap(),
    }
}

#[test]
fn members_know_each_other_by_their_certificates() {
    let mut cluster = Cluster::new(3);
    let place = cluster.place.path().to_owned();
    certificates(&place, &["host-1", "host-2", "host-3", "intruder"]);
    for id in 1..=2 {
        let mut config = cluster.config(id);
        config.tls = Some(member_tls(&place, &format!("host-{id}")));
        cluster.hosts.insert(id, Host::start(config).unwrap());
    }
    // A third host with a certificate of the right authority and of a wrong name, which is at the
    // same time a server that the others do not accept.
    let mut config = cluster.config(3);
    config.tls = Some(member_tls(&place, "intruder"));
    let intruder = Host::start(config).unwrap();
    cluster.hosts[&1].engine.initialize(&[1, 2, 3].into()).unwrap();
    cluster.propose(2, "first");
    cluster.hosts[&1].until(|text, _| text.contains("first\n"));
    let alone =
        intruder.engine.propose_and_wait(b"forged".to_vec(), std::time::Duration::from_millis(500));
    assert!(alone.is_err());
    assert_eq!(intruder.told().0, "");
    drop(intruder);
    let mut config = cluster.config(3);
    config.tls = Some(member_tls(&place, "host-3"));
    config.machine = Arc::new(|| Box::<Lines>::default());
    cluster.hosts.insert(3, Host::start(config).unwrap());
    let third = cluster.hosts[&3].engine.propose_and_wait(b"second".to_vec(), LONG);
    assert!(third.is_ok(), "{third:?}");
    assert!(!cluster.hosts[&3].told().0.contains("forged"));
}
