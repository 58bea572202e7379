//! A member that joins by a walk gets what is written meanwhile, however fast another member
//! acknowledges it, as long as the log has room.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nearstate_node::FollowTarget;
use nearstate_store::{FollowState, LogIdentity, lease_clock};

use crate::partition::{TestHost, has_all, joins, put, replicate, ue, until};

/// The records that are walked exceed what the kernel buffers of a connection hold.
const RECORDS: u64 = 2_500;
const RECORD_BYTES: usize = 8 << 10;

/// How often the first test is tried on a busy machine: a member that gets no welcome in two
/// seconds connects again.
const TRIES: u32 = 20;
const WELCOME_WITHIN: Duration = Duration::from_millis(1_500);

/// Passes everything that a member sends. What its owner sends waits until the gate is opened.
pub(crate) struct GatedLink {
    pub(crate) address: SocketAddr,
    gate: Sender<()>,
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = from.read(&mut buffer)
        && count != 0
        && to.write_all(&buffer[..count]).is_ok()
    {}
    let _ = to.shutdown(Shutdown::Both);
}

fn gated(listener: &TcpListener, owner: SocketAddr, opened: &Receiver<()>) {
    // The first connection waits for the gate, later ones do not.
    while let Ok((member, _)) = listener.accept() {
        let owner = TcpStream::connect(owner).unwrap();
        let (from, to) = (member.try_clone().unwrap(), owner.try_clone().unwrap());
        std::thread::spawn(move || pass(from, to));
        // Closed when the test ends.
        let _ = opened.recv();
        std::thread::spawn(move || pass(owner, member));
    }
}

impl GatedLink {
    pub(crate) fn new(owner: &TestHost) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, owner) = (listener.local_addr().unwrap(), owner.listener.addresses()[0]);
        let (gate, opened) = channel();
        std::thread::spawn(move || gated(&listener, owner, &opened));
        Self { address, gate }
    }

    pub(crate) fn open(&self) {
        self.gate.send(()).unwrap();
    }
}

/// An owner with many records, a member that has them, and one whose walk has begun and waits.
fn joining(test: &str) -> ([TestHost; 3], GatedLink) {
    let [mut owner, mut full, late] =
        ["a", "b", "c"].map(|name| TestHost::new(&format!("{test}-{name}")));
    put_large(&owner, 0..RECORDS);
    owner.own(1, None);
    full.follow(1, &owner, false);
    until(1, &mut [&mut owner, &mut full], |hosts| has_all(hosts[0], hosts[1]));
    let link = GatedLink::new(&owner);
    let address = &link.address.to_string();
    let target = FollowTarget { view: 1, name: "owner", address, clients: None, discards: false };
    late.partition.follow(&target).unwrap();
    until(1, &mut [&mut owner, &mut full], |_| joins(&late) == 1);
    ([owner, full, late], link)
}

fn put_large(host: &TestHost, numbers: std::ops::Range<u64>) {
    let session = host.session();
    for number in numbers {
        let key = format!("large {number}");
        let value = number.to_le_bytes().repeat(RECORD_BYTES / 8);
        session.put(ue(&session), key.as_bytes(), &value).unwrap();
    }
}

/// Everything is acknowledged by the full member, which counts. The log may forget it.
fn acknowledge(owner: &mut TestHost, full: &mut TestHost) {
    replicate(1, owner, &mut [&mut *full]);
    owner.partition.raise_floor(owner.acknowledged[&full.name]);
}

#[test]
fn a_member_joins_while_another_one_acknowledges_at_once() {
    let is_shown = (0..TRIES).any(|number| {
        let ([mut owner, mut full, mut late], link) = joining(&format!("load{number}"));
        let begin = lease_clock();
        for round in 0..20 {
            put(&owner.session(), 10 * round..10 * round + 10);
            // The thread of the full member lets the log forget what was acknowledged in the last
            // one.
            acknowledge(&mut owner, &mut full);
        }
        drop(link.gate);
        if lease_clock().saturating_sub(begin) > WELCOME_WITHIN {
            return false;
        }
        until(1, &mut [&mut owner, &mut full, &mut late], |hosts| has_all(hosts[0], hosts[2]));
        assert_eq!(joins(&late), 1, "it has joined once");
        assert!(owner.behind.is_empty());
        true
    });
    assert!(is_shown, "in {TRIES} tries the gate was opened too late");
}

#[test]
fn a_full_log_makes_no_writer_wait_for_a_member_that_joins() {
    let ([mut owner, mut full, mut late], link) = joining("full-log");
    // The log takes a sixteenth of the heap, 4 MiB.
    for round in 0..20 {
        put_large(&owner, 40 * round..40 * round + 40);
        acknowledge(&mut owner, &mut full);
    }
    drop(link.gate);
    until(1, &mut [&mut owner, &mut full, &mut late], |hosts| has_all(hosts[0], hosts[2]));
    assert!(joins(&late) >= 2, "the log has lost what it lacked");
    assert!(owner.behind.contains(&late.name));
}

/// No other copy is left, and an operator says so.
#[test]
fn a_copy_that_was_joining_becomes_the_partition_by_force() {
    let mut host = TestHost::new("forced-a");
    {
        let session = host.session();
        let mut follower = session.follow().unwrap();
        let source = LogIdentity { region: [1, 2], incarnation: 1, origin: 1 };
        follower.begin(source).unwrap();
    }
    assert_eq!(host.session().following().unwrap().unwrap().state, FollowState::Joining);
    host.own(3, None);
    put(&host.session(), 0..10);
    assert_eq!(host.session().log_identity().unwrap().origin, 3);
    let mut host = host.restarted();
    // It is repeated by the process that starts.
    host.own(3, None);
    put(&host.session(), 10..20);
    drop(host.partition.promote(2, None).unwrap_err());
}
