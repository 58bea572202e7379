//! The copies of a partition on three hosts, over loopback, with a driver that is scripted: counted
//! acknowledgements, a frozen copy, promotion, catching up, demotion, and restarts in between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nearstate_model::Error;
use nearstate_node::{
    FollowTarget, Freeze, Partition, PartitionInput, PartitionOptions, PeerEvent, PeerListener,
};
use nearstate_store::{
    CreateOptions, FollowPosition, FollowState, LogIdentity, Metadata, Namespace, NamespaceRules,
    ReceiptState, Region, ReplicationPolicy, Schema, Session, StreamItem, TagSchema, Txn,
    lease_clock,
};

use crate::hostile_peers::settings;

pub(crate) const CLUSTER: [u8; 16] = *b"0123456789abcdef";
/// A bound for what takes milliseconds.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The hosts that have got all records, in the order in which they did.
static JOINS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The addresses whose connections were refused or have ended, with the reasons.
static REFUSED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

fn on_event(event: &PeerEvent<'_>) {
    match event {
        PeerEvent::Connected { name, joins: true, .. } => {
            JOINS.lock().unwrap_or_else(PoisonError::into_inner).push((*name).to_owned());
        }
        PeerEvent::Refused { address, reason, .. } => refused(&address.to_string(), reason),
        PeerEvent::Left { name, reason } => refused(name, reason),
        PeerEvent::Connected { .. } | PeerEvent::Joined { .. } | PeerEvent::NotLogged { .. } => {}
    }
}

/// The connection from an address was refused, or that of a host has ended.
pub(crate) fn refused(of: &str, reason: &str) {
    let refused = (of.to_owned(), reason.to_owned());
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).push(refused);
}

/// Why the connection from an address was refused, or that of a host has ended, once it has.
pub(crate) fn refusal(of: &str) -> String {
    let end = lease_clock() + WAIT_MAX;
    loop {
        let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, reason)) = refused.iter().rev().find(|(from, _)| from == of) {
            return reason.clone();
        }
        drop(refused);
        assert!(lease_clock() < end, "{of} is not refused");
        std::thread::yield_now();
    }
}

/// The hosts of the cluster that a host belongs to: its name ends in another letter.
fn hosts_like(name: &str) -> BTreeSet<String> {
    let (test, _) = name.rsplit_once('-').unwrap_or((name, ""));
    ["a", "b", "c", "d"].map(|letter| format!("{test}-{letter}")).into()
}

pub(crate) fn joins(host: &TestHost) -> usize {
    let joins = JOINS.lock().unwrap_or_else(PoisonError::into_inner);
    joins.iter().filter(|name| **name == host.name).count()
}

/// The node of a host. It can end and start again with its region.
pub(crate) struct TestHost {
    pub(crate) name: String,
    pub(crate) region: Region,
    pub(crate) partition: Partition,
    pub(crate) listener: PeerListener,
    pub(crate) inputs: Receiver<PartitionInput>,
    /// The last acknowledgement of each member.
    pub(crate) acknowledged: BTreeMap<String, u64>,
    /// The members for which the log has lost entries.
    pub(crate) behind: BTreeSet<String>,
    _folder: Arc<tempfile::TempDir>,
}

impl TestHost {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Arc::new(tempfile::tempdir_in("/dev/shm").unwrap());
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &options).unwrap();
        Self::start(name, region, folder)
    }

    pub(crate) fn start(name: &str, region: Region, folder: Arc<tempfile::TempDir>) -> Self {
        let (sender, inputs) = channel();
        let config = PartitionOptions {
            cluster_id: CLUSTER,
            partition: 7,
            host: name.to_owned(),
            lease: Duration::from_millis(400),
            settings: settings("400 ms"),
            namespaces: NamespaceRules::new([(ReplicationPolicy::Async, "*".to_owned())]).unwrap(),
            members: hosts_like(name),
            kills_stopped: true,
            tls: None,
            on_event,
            // A driver that has ended hears nothing.
            inputs: Arc::new(move |input| sender.send(input).unwrap_or(())),
        };
        let partition = Partition::open(config, &region).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = PeerListener::start(&[address], None, on_event).unwrap();
        partition.listen_with(&listener).unwrap();
        let (name, acknowledged, behind) = (name.to_owned(), BTreeMap::new(), BTreeSet::new());
        Self { name, region, partition, listener, inputs, acknowledged, behind, _folder: folder }
    }

    /// The node's process ends, and another one starts.
    pub(crate) fn restarted(self) -> Self {
        let Self { name, region, partition, listener, _folder: folder, .. } = self;
        drop((partition, listener));
        Self::start(&name, region, folder)
    }

    pub(crate) fn address(&self) -> String {
        self.listener.addresses()[0].to_string()
    }

    pub(crate) fn session(&self) -> Session {
        self.region.session().unwrap()
    }

    pub(crate) fn own(&mut self, view: u64, seal: Option<(LogIdentity, FollowPosition)>) {
        self.partition.promote(view, seal).unwrap();
        self.acknowledged.clear();
        self.partition.serve(view).unwrap();
        self.partition.set_fenced(false).unwrap();
    }

    pub(crate) fn follow(&self, view: u64, owner: &Self, discards: bool) {
        let address = &owner.address();
        let clients = Some("clients:6379");
        self.partition
            .follow(&FollowTarget { view, name: "owner", address, clients, discards })
            .unwrap();
    }

    /// The rules of the driver: a stamp is answered at once, and the highest position that a member
    /// has acknowledged is replicated.
    pub(crate) fn take_inputs(&mut self, view: u64) {
        let wait = Duration::from_millis(1);
        while let Ok(input) = self.inputs.recv_timeout(wait) {
            match input {
                PartitionInput::PositionReceived { view, stamp, .. } => {
                    self.partition.answer(view, stamp);
                }
                PartitionInput::MemberAcknowledged { host, view: of, position, .. } => {
                    assert_eq!(of, view, "an acknowledgement of another view");
                    if let Some(position) = position {
                        self.acknowledged.insert(host, position);
                        let highest = self.acknowledged.values().max().copied().unwrap_or(0);
                        self.partition.set_replicated(highest).unwrap();
                    }
                }
                PartitionInput::FollowFailed { reason, .. } => panic!("{}: {reason}", self.name),
                PartitionInput::Panicked { thread } => panic!("{thread} of {}", self.name),
                PartitionInput::MemberBehind { host, .. } => drop(self.behind.insert(host)),
                PartitionInput::MemberConnected { .. }
                | PartitionInput::LogWritten { .. }
                | PartitionInput::MemberLeft { .. }
                | PartitionInput::Joined { .. }
                | PartitionInput::OwnerLost { .. }
                | PartitionInput::OwnerPromotes { .. }
                | PartitionInput::MemberAhead { .. }
                | PartitionInput::HigherView { .. } => {}
            }
        }
    }

    pub(crate) fn frozen(&self, view: u64) -> (LogIdentity, FollowPosition) {
        match self.partition.freeze(view).unwrap() {
            Freeze::Frozen { log, place, .. } => (log, place),
            Freeze::NotFull => panic!("{} is not full", self.name),
        }
    }
}

/// Lets the drivers work until something is true.
pub(crate) fn until(
    view: u64,
    hosts: &mut [&mut TestHost],
    is_true: impl Fn(&[&mut TestHost]) -> bool,
) {
    let end = lease_clock() + WAIT_MAX;
    while !is_true(hosts) {
        assert!(lease_clock() < end, "it does not become true");
        for host in hosts.iter_mut() {
            host.take_inputs(view);
        }
    }
}

/// A member has everything of the owner.
pub(crate) fn has_all(owner: &TestHost, member: &TestHost) -> bool {
    let (ours, theirs) = (owner.partition.state().unwrap(), member.partition.state().unwrap());
    let is_full = theirs.following.is_some_and(|following| {
        following.state == FollowState::Full && following.source == ours.own
    });
    is_full && contents(&owner.session()) == contents(&member.session())
}

pub(crate) fn ue(session: &Session) -> Namespace {
    session.namespace("ue", &Schema::default()).unwrap()
}

pub(crate) fn contents(session: &Session) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut scan = session.scan(ue(session)).unwrap();
    while let Some(view) = scan.next().unwrap() {
        all.insert(view.key().to_vec(), (view.version(), view.bytes().to_vec()));
    }
    all
}

pub(crate) fn put(session: &Session, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = (number % 100).to_le_bytes();
        session.put(ue(session), &key, &number.to_le_bytes().repeat(20)).unwrap();
    }
}

/// Three hosts, of which the first is the owner in view 1, and the others have everything.
pub(crate) fn group(test: &str) -> [TestHost; 3] {
    let [mut owner, mut one, mut other] =
        ["a", "b", "c"].map(|name| TestHost::new(&format!("{test}-{name}")));
    put(&owner.session(), 0..150);
    owner.own(1, None);
    for member in [&one, &other] {
        member.follow(1, &owner, false);
    }
    until(1, &mut [&mut owner, &mut one, &mut other], |hosts| {
        let [owner, members @ ..] = hosts else { return false };
        members.iter().all(|member| has_all(owner, member))
    });
    [owner, one, other]
}

/// What the owner has committed so far is replicated.
pub(crate) fn replicate(view: u64, owner: &mut TestHost, members: &mut [&mut TestHost]) {
    let session = owner.session();
    let receipt = session.receipt_of_all().unwrap();
    let mut hosts: Vec<&mut TestHost> = vec![owner];
    hosts.extend(members.iter_mut().map(|member| &mut **member));
    until(view, &mut hosts, |_| session.is_replicated(receipt).unwrap());
}

#[test]
fn a_member_becomes_the_owner_and_the_others_continue_with_its_log() {
    let [mut old, mut heir, mut late] = group("continue");
    let writer = old.session();
    put(&writer, 150..300);
    replicate(1, &mut old, &mut [&mut heir, &mut late]);
    // One member hears nothing more, and the other one has what is replicated.
    late.partition.stop_following();
    put(&writer, 300..400);
    replicate(1, &mut old, &mut [&mut heir]);
    let replicated = writer.receipt();
    // The owner is cut off. What it commits is not replicated.
    old.partition.stop_serving();
    heir.partition.stop_following();
    put(&writer, 400..450);
    let lost = writer.receipt();
    assert_eq!(writer.receipt_state(lost).unwrap(), ReceiptState::Pending);
    let (seal, report) = (heir.frozen(2), late.frozen(2));
    assert!(seal.0 == report.0 && seal.1.position > report.1.position, "{seal:?} {report:?}");
    assert!(seal.1.position >= replicated.position());
    let joined = joins(&late);
    heir.own(2, Some(seal));
    late.follow(2, &heir, false);
    put(&heir.session(), 500..550);
    replicate(2, &mut heir, &mut [&mut late]);
    until(2, &mut [&mut heir, &mut late], |hosts| has_all(hosts[0], hosts[1]));
    assert_eq!(joins(&late), joined, "it got entries, and no walk");
    // The old owner comes back, with a writer that is attached and one that waits.
    let waiter = old.session();
    let woken = std::thread::scope(|scope| {
        let waiting = scope.spawn(move || waiter.wait_replicated(lost, WAIT_MAX));
        let demoted = old.partition.demote(2, Some(seal)).unwrap();
        assert_eq!(demoted.lost_replicated, 0);
        assert!(demoted.lost > 0);
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(woken, ReceiptState::Lost);
    old.take_inputs(1);
    old.follow(2, &heir, false);
    let refused = writer.put(ue(&writer), b"k", b"v").unwrap_err();
    assert!(matches!(&refused, Error::NotOwner { address: Some(at), .. } if at == "clients:6379"));
    until(2, &mut [&mut heir, &mut old, &mut late], |hosts| {
        let [owner, members @ ..] = hosts else { return false };
        members.iter().all(|member| has_all(owner, member))
    });
    assert_eq!(writer.receipt_state(replicated).unwrap(), ReceiptState::Replicated);
    assert_eq!(writer.receipt_state(lost).unwrap(), ReceiptState::Lost);
}

#[test]
fn an_owner_that_was_restarted_serves_those_at_the_seal_and_the_others_join() {
    let [mut old, mut heir, mut late] = group("restart");
    let mut equal = TestHost::new("restart-d");
    equal.follow(1, &old, false);
    until(1, &mut [&mut old, &mut heir, &mut late, &mut equal], |hosts| {
        has_all(hosts[0], hosts[3])
    });
    late.partition.stop_following();
    put(&old.session(), 150..250);
    until(1, &mut [&mut old, &mut heir, &mut equal], |hosts| {
        has_all(hosts[0], hosts[1]) && has_all(hosts[0], hosts[2])
    });
    old.partition.stop_serving();
    let seal = heir.frozen(2);
    assert_eq!(equal.frozen(2), seal);
    late.frozen(2);
    heir.partition.promote(2, Some(seal)).unwrap();
    let [mut heir, mut equal, mut late] = [heir, equal, late].map(TestHost::restarted);
    // The promotion is repeated, and what was stored before the restart holds.
    heir.own(2, Some(seal));
    assert!(
        late.partition
            .follow(&FollowTarget {
                view: 1,
                name: "old",
                address: &old.address(),
                clients: None,
                discards: false,
            })
            .is_err()
    );
    put(&heir.session(), 300..320);
    let joined = [joins(&equal), joins(&late)];
    for member in [&equal, &late] {
        member.follow(2, &heir, false);
    }
    until(2, &mut [&mut heir, &mut equal, &mut late], |hosts| {
        has_all(hosts[0], hosts[1]) && has_all(hosts[0], hosts[2])
    });
    assert_eq!([joins(&equal), joins(&late)], [joined[0], joined[1] + 1]);
}

#[test]
fn a_frozen_copy_applies_nothing_of_the_old_view_and_no_connection_of_it_is_accepted() {
    let [mut old, mut one, mut other] = group("freeze");
    let before = one.frozen(2);
    put(&old.session(), 150..200);
    // The other one has it.
    until(1, &mut [&mut old, &mut other], |hosts| has_all(hosts[0], hosts[1]));
    assert_eq!(one.frozen(2), before);
    one.take_inputs(1);
    // A member of a higher view is refused by an owner of a lower one, and says so.
    one.follow(2, &old, false);
    let end = lease_clock() + WAIT_MAX;
    while !matches!(old.inputs.recv_timeout(WAIT_MAX), Ok(PartitionInput::HigherView { view: 2 })) {
        assert!(lease_clock() < end, "nothing is said about the higher view");
    }
    assert_eq!(one.frozen(2), before);
    // The owner freezes as well: its writers are fenced.
    let own = old.frozen(2);
    assert_eq!(own.0, before.0);
    assert!(own.1.position > before.1.position);
    let session = old.session();
    assert!(matches!(session.put(ue(&session), b"k", b"v"), Err(Error::Fenced { .. })));
    // It returns, with the same log.
    assert!(old.partition.promote(2, None).is_err());
    old.partition.serve(2).unwrap();
    old.partition.set_fenced(false).unwrap();
    put(&session, 200..220);
}

#[test]
fn a_member_that_connects_before_the_owner_serves_its_regions_connects_again() {
    let [mut owner, mut member] = ["a", "b"].map(|name| TestHost::new(&format!("early-{name}")));
    put(&owner.session(), 0..10);
    owner.own(1, None);
    // The owner's process has opened its port, and not yet its regions.
    let early =
        PeerListener::start(&[SocketAddr::from(([127, 0, 0, 1], 0))], None, on_event).unwrap();
    let address = &early.addresses()[0].to_string();
    let target = FollowTarget { view: 1, name: "owner", address, clients: None, discards: false };
    member.partition.follow(&target).unwrap();
    let end = lease_clock() + WAIT_MAX;
    loop {
        assert!(lease_clock() < end, "the member was not refused");
        let input = member.inputs.recv_timeout(WAIT_MAX).unwrap();
        if let PartitionInput::OwnerLost { reason, .. } = &input
            && reason.contains("this host starts")
        {
            break;
        }
        if let PartitionInput::FollowFailed { reason, .. } = input {
            panic!("it has given up: {reason}");
        }
    }
    owner.partition.listen_with(&early).unwrap();
    until(1, &mut [&mut owner, &mut member], |hosts| {
        let [owner, member] = hosts else { return false };
        has_all(owner, member)
    });
}

#[test]
fn a_region_with_records_of_its_own_is_not_discarded_when_its_host_becomes_a_member() {
    let (mut owner, mut member) = (TestHost::new("own-a"), TestHost::new("own-b"));
    owner.own(1, None);
    let session = member.session();
    let mine = session.namespace("mine", &Schema::default()).unwrap();
    session.put(mine, b"k", b"only here").unwrap();
    let address = &owner.address();
    let target = FollowTarget { view: 1, name: "owner", address, clients: None, discards: true };
    let refused = member.partition.follow(&target).unwrap_err();
    let Error::BadArgument { detail } = &refused else { panic!("{refused}") };
    assert!(
        detail.contains("namespace \"mine\"") && detail.contains("cluster.regions"),
        "{detail}"
    );
    assert!(member.partition.state().unwrap().following.is_none());
    assert_eq!(session.get(mine, b"k").unwrap().unwrap().bytes(), b"only here");
    // Without its records it may follow; and what was bound once is a copy.
    session.delete(mine, b"k").unwrap();
    member.follow(1, &owner, true);
    until(1, &mut [&mut owner, &mut member], |hosts| has_all(hosts[0], hosts[1]));
    assert!(member.partition.state().unwrap().is_bound);
    // Nor is that of another cluster.
    let other = TestHost::new("own-c");
    other.session().bind(*b"another cluster!").unwrap();
    put(&other.session(), 0..1);
    let refused = other.partition.follow(&target).unwrap_err();
    assert!(refused.to_string().contains("belongs to another cluster"), "{refused}");
}

#[test]
fn a_namespace_is_replicated_from_its_first_write_and_members_stay_full() {
    let [mut owner, mut one, mut other] = group("born");
    let session = owner.session();
    for number in 0..20 {
        let namespace = session.namespace(&format!("n{number}"), &Schema::default()).unwrap();
        session.put(namespace, b"k", b"v").unwrap();
        assert!(session.receipt() > nearstate_store::Receipt::NONE);
        // Its loss at any moment is one that the group survives.
        for member in [&mut one, &mut other] {
            member.take_inputs(1);
            let following = member.partition.state().unwrap().following.unwrap();
            assert_eq!(following.state, FollowState::Full);
        }
        owner.take_inputs(1);
    }
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
}

#[test]
fn a_copy_that_may_have_too_much_is_discarded_and_joins_again() {
    let [mut owner, mut outdated, other] = group("outdated");
    drop(other);
    outdated.partition.demote(1, None).unwrap();
    let following = outdated.partition.state().unwrap().following.unwrap();
    assert_eq!(following.state, FollowState::Joining);
    assert!(contents(&outdated.session()).is_empty());
    let before = joins(&outdated);
    outdated.follow(1, &owner, false);
    until(1, &mut [&mut owner, &mut outdated], |hosts| has_all(hosts[0], hosts[1]));
    assert_eq!(joins(&outdated), before + 1);
}

#[test]
fn an_excluded_owner_may_own_again_with_what_it_has() {
    let [mut owner, one, mut other] = group("again");
    drop(one);
    let before = contents(&owner.session());
    other.partition.stop_following();
    let (log, place) = owner.frozen(2);
    assert_eq!(log.origin, 1);
    owner.take_inputs(1);
    owner.partition.promote(2, Some((log, place))).unwrap();
    owner.own(2, Some((log, place)));
    assert_eq!(owner.partition.state().unwrap().own.origin, 2);
    assert_eq!(contents(&owner.session()), before);
    put(&owner.session(), 500..510);
    // It is another log: whatever a member had behind that place is gone.
    other.partition.demote(2, None).unwrap();
    other.follow(2, &owner, true);
    until(2, &mut [&mut owner, &mut other], |hosts| has_all(hosts[0], hosts[1]));
}

#[test]
fn a_copy_that_could_not_follow_tries_again() {
    let (mut owner, member) = (TestHost::new("retry-a"), TestHost::new("retry-b"));
    put(&owner.session(), 0..10);
    owner.own(1, None);
    // A namespace of that name has records of this host: nothing can be followed into it.
    member.session().bind(CLUSTER).unwrap();
    put(&member.session(), 0..1);
    let address = &owner.address();
    let target = FollowTarget { view: 1, name: "owner", address, clients: None, discards: false };
    member.partition.follow(&target).unwrap();
    let failed = |input: &PartitionInput| matches!(input, PartitionInput::FollowFailed { .. });
    let end = lease_clock() + WAIT_MAX;
    while !failed(&member.inputs.recv_timeout(WAIT_MAX).unwrap()) {
        assert!(lease_clock() < end, "it follows");
    }
    let session = member.session();
    session.delete(ue(&session), &0_u64.to_le_bytes()).unwrap();
    drop(session);
    let end = lease_clock() + WAIT_MAX;
    while !has_all(&owner, &member) {
        assert!(lease_clock() < end, "it does not follow");
        owner.take_inputs(1);
        while let Ok(input) = member.inputs.recv_timeout(Duration::from_millis(1)) {
            if let PartitionInput::PositionReceived { view, stamp, .. } = input {
                member.partition.answer(view, stamp);
            }
        }
    }
}

/// The owner's log has lost what is at a position.
pub(crate) fn is_forgotten(owner: &TestHost, position: u64) -> bool {
    let session = owner.session();
    let mut stream = session.commit_stream_behind(position - 1).unwrap();
    matches!(stream.next().unwrap(), Some(StreamItem::Lost { .. }))
}

#[test]
fn the_slowest_member_continues_with_the_log_after_a_short_interruption() {
    let [mut owner, mut fast, mut slow] = group("slowest");
    slow.partition.stop_following();
    put(&owner.session(), 150..180);
    replicate(1, &mut owner, &mut [&mut fast]);
    // What all members have is forgotten: the entry that the slow one has applied last, too.
    let reached = slow.partition.state().unwrap().following.unwrap().reached;
    owner.partition.raise_floor(reached);
    put(&owner.session(), 180..181);
    replicate(1, &mut owner, &mut [&mut fast]);
    until(1, &mut [&mut owner, &mut fast], |hosts| is_forgotten(hosts[0], reached));
    let joined = [joins(&fast), joins(&slow)];
    slow.follow(1, &owner, false);
    until(1, &mut [&mut owner, &mut fast, &mut slow], |hosts| has_all(hosts[0], hosts[2]));
    assert_eq!([joins(&fast), joins(&slow)], joined, "it got entries, and no walk");
    // What the log has forgotten since is missing: it joins.
    slow.partition.stop_following();
    put(&owner.session(), 200..230);
    replicate(1, &mut owner, &mut [&mut fast]);
    let behind = slow.partition.state().unwrap().following.unwrap().reached;
    owner.partition.raise_floor(behind + 5);
    until(1, &mut [&mut owner, &mut fast], |hosts| is_forgotten(hosts[0], behind + 5));
    slow.follow(1, &owner, false);
    until(1, &mut [&mut owner, &mut fast, &mut slow], |hosts| has_all(hosts[0], hosts[2]));
    assert_eq!([joins(&fast), joins(&slow)], [joined[0], joined[1] + 1]);
}

#[test]
fn tags_that_are_added_late_are_indexed_on_members() {
    let [mut owner, mut heir, mut late] = group("tags");
    let session = owner.session();
    for number in 0..4_000_u64 {
        let metadata = Metadata { tags: &[("cell", b"5")], expires_ms: 0 };
        let put = |txn: &Txn<'_>| {
            txn.put_with_metadata(ue(&session), &number.to_le_bytes(), b"v", metadata)
        };
        session.transact(put).unwrap();
    }
    replicate(1, &mut owner, &mut [&mut heir, &mut late]);
    let cell = TagSchema { name: "cell".to_owned(), is_counted: true, ..TagSchema::default() };
    session.add_tags(ue(&session), &[cell]).unwrap();
    until(1, &mut [&mut owner, &mut heir, &mut late], |hosts| {
        hosts[1..].iter().all(|host| count_in_cell(&host.session()) == Some(4_000))
    });
}

/// The records with a tag; `None` while they are being indexed.
fn count_in_cell(session: &Session) -> Option<u64> {
    session.count_tagged(ue(session), "cell", b"5").ok()
}
