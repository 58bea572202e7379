//! An operator drains the owner while a process writes, without waiting for replication.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nearstate_cluster::{
    ClusterEventKind, ClusterLevel, Command, HostId, OperatorGoal, OperatorRefusal,
};
use nearstate_model::{Error, Result};
use nearstate_node::{ClusterNotice, EngineStatus, OperatorOutcome};
use nearstate_store::{
    FollowedNamespace, Kind, PROMOTIONS_MAX, ReceiptState, Region, ReplicationPolicy,
};

use crate::cluster_driver::{CommandLog, DrivenCluster, PARTITION, locked, status, until};
use crate::partition::{contents, ue};

/// The keys of the writer.
const KEYS: u64 = 10_000;

/// A process that writes at a host.
struct Writer {
    region: Region,
    /// The calls that have returned without an error: each of these commits is acknowledged.
    acknowledged: AtomicU64,
    is_over: AtomicBool,
}

impl Writer {
    fn at(cluster: &DrivenCluster, host: u16) -> Self {
        let region = Region::attach(&cluster.region(host)).unwrap();
        Self { region, acknowledged: AtomicU64::new(0), is_over: AtomicBool::new(false) }
    }

    /// Writes until it is over, or the host owns the partition no longer.
    fn run(&self) {
        let session = self.region.session().unwrap();
        let ue = ue(&session);
        while !self.is_over.load(Ordering::Acquire) {
            let number = self.acknowledged.load(Ordering::Relaxed);
            let (key, value) = ((number % KEYS).to_le_bytes(), number.to_le_bytes().repeat(32));
            match session.put(ue, &key, &value) {
                Ok(_) => self.acknowledged.store(number + 1, Ordering::Release),
                Err(Error::NotOwner { .. }) => return,
                Err(Error::Fenced { .. } | Error::Behind { .. } | Error::Full { .. }) => {
                    std::thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn until_written(&self, more: u64) {
        let end = self.acknowledged.load(Ordering::Acquire) + more;
        until("the writer goes on", || self.acknowledged.load(Ordering::Acquire) >= end);
    }

    /// Every acknowledged write is in this region, or a later one of its key.
    fn assert_kept(&self, region: &Region) {
        let all = self.acknowledged.load(Ordering::Acquire);
        let contents = contents(&region.session().unwrap());
        for number in all.saturating_sub(KEYS)..all {
            let (_, value) = &contents[&(number % KEYS).to_le_bytes()[..]];
            let kept = u64::from_le_bytes(value[..8].try_into().unwrap());
            assert!(kept >= number, "write {number} of {all} is lost: {kept} is there");
        }
    }
}

#[test]
fn a_drain_is_refused_when_no_host_could_be_promoted() {
    let cluster = DrivenCluster::start();
    let session = cluster.host(1).region.session().unwrap();
    assert_eq!(status(cluster.host(1)).unwrap().promotions_left, PROMOTIONS_MAX);
    // The region learns that a log had versions of the last generation.
    let mut follower = session.follow().unwrap();
    let (kind, policy) = (Kind::Value, ReplicationPolicy::Async);
    let (number, name, stamp) = (77, "foreign", (1 << 42) - (1 << 28));
    let told = FollowedNamespace { number, name, kind, stamp, policy, tags: Vec::new() };
    follower.namespace(&told).unwrap();
    drop(follower);
    until("the status says so", || {
        status(cluster.host(1)).is_some_and(|status| status.promotions_left == 0)
    });
    let refused = cluster.drain(1).unwrap_err().to_string();
    assert!(refused.contains("NS-5018"), "{refused}");
    cluster.write(1, 0..10, 100);
}

#[test]
fn a_drain_under_load_loses_nothing_that_was_acknowledged() {
    let cluster = DrivenCluster::start();
    let writer = Writer::at(&cluster, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| writer.run());
        let end = EndOfWriter(&writer);
        writer.until_written(2 * KEYS);
        let outcome = drained(&cluster);
        drop(end);
        let drained = matches!(
            outcome,
            Ok(OperatorOutcome::Done { owner, is_by_decision: false }) if owner != HostId(1)
        );
        assert!(drained, "{outcome:?}");
    });
    let owner = cluster.owner_with(&[1, 2, 3]);
    assert_ne!(owner, 1);
    writer.assert_kept(&Region::attach(&cluster.region(owner)).unwrap());
}

/// With one complete copy left the partition has no second one until the drained host has it: it
/// keeps its records, so it has it at once.
#[test]
fn a_drained_owner_keeps_its_records_and_counts_again() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..100, 100);
    let session = cluster.host(1).region.session().unwrap();
    session.put(ue(&session), b"kept", b"v").unwrap();
    let position = session.receipt().position();
    cluster.write(1, 100..200, 100);
    cluster.stop(3);
    assert_eq!(cluster.owner_with(&[1, 2]), 1);
    let outcome = drained(&cluster);
    let is_done = matches!(outcome, Ok(OperatorOutcome::Done { owner: HostId(2), .. }));
    assert!(is_done, "{outcome:?}");
    assert_eq!(cluster.owner_with(&[1, 2]), 2);
    cluster.write(2, 200..300, 100);
    // The record is the one that was written here: a walk writes another one.
    let kept = session.get(ue(&session), b"kept").unwrap().unwrap();
    assert_eq!(session.receipt_of(&kept).unwrap().position(), position);
    drop(kept);
    cluster.run(3);
    cluster.assert_equal(301);
}

/// As an owner it would stay in the group, although the operator has removed it.
#[test]
fn a_drain_does_not_give_the_partition_to_a_host_that_is_to_leave() {
    let cluster = DrivenCluster::start();
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    cluster.write(1, 0..50, 100);
    assert_eq!(cluster.owner_with(&[1, 2, 3]), 1);
    // It leaves with its eviction, which is lost.
    *locked(&cluster.log.loses_evictions) = true;
    until("the host is to leave", || {
        let group = cluster.host(1).driver.group(PARTITION).unwrap();
        let (partition, revision, host) = (PARTITION, group.revision(), HostId(2));
        let is_leaving = group.leaving().contains(&host);
        if !is_leaving {
            cluster.log.append(&Command::RemoveMember { partition, revision, host }.encode());
        }
        is_leaving
    });
    // Host 2 is the first of the group.
    let mut outcome = drained(&cluster);
    for _ in 0..TRIES {
        // On a busy machine a member is late, and the owner stays.
        if !matches!(outcome, Ok(OperatorOutcome::Refused(_))) {
            break;
        }
        outcome = drained(&cluster);
    }
    let is_done = matches!(outcome, Ok(OperatorOutcome::Done { owner: HostId(3), .. }));
    assert!(is_done, "{outcome:?}");
}

/// It hears no members, and no silent one is the reason.
#[test]
fn a_drain_at_a_host_that_does_not_own_the_partition_names_that_as_the_reason() {
    let cluster = DrivenCluster::start();
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    assert_eq!(cluster.owner_with(&[1, 2, 3]), 1);
    for goal in [OperatorGoal::Drain, OperatorGoal::DrainTo(HostId(2))] {
        until("the state is applied", || {
            let error = cluster.drain_with(3, goal).unwrap_err().to_string();
            assert!(!error.contains("not heard"), "{error}");
            error.contains("another host owns the partition")
        });
    }
    assert_eq!(cluster.owner_with(&[1, 2, 3]), 1);
}

/// The second member would be the owner by the order of the group.
#[test]
fn an_owner_is_drained_to_the_member_that_an_operator_names() {
    let cluster = DrivenCluster::start();
    cluster.write(1, 0..100, 100);
    let to = |host| OperatorGoal::DrainTo(HostId(host));
    let error = cluster.drain_with(1, to(3)).unwrap_err().to_string();
    assert!(error.contains("level 4 is needed") && error.contains("Nothing has"), "{error}");
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    let nowhere = HostId(9);
    for (host, refusal) in
        [(1, OperatorRefusal::AlreadyOwner(HostId(1))), (9, OperatorRefusal::NotInGroup(nowhere))]
    {
        until("the level is known", || cluster.drain_with(1, to(host)).is_ok());
        let outcome = cluster.drain_with(1, to(host));
        assert!(matches!(outcome, Ok(OperatorOutcome::Refused(seen)) if seen == refusal));
    }
    assert_eq!(cluster.owner_with(&[1, 2, 3]), 1);
    let mut outcome = cluster.drain_with(1, to(3));
    for _ in 0..TRIES {
        if matches!(outcome, Ok(OperatorOutcome::Done { .. })) {
            break;
        }
        outcome = cluster.drain_with(1, to(3));
    }
    let is_done = matches!(outcome, Ok(OperatorOutcome::Done { owner: HostId(3), .. }));
    assert!(is_done, "{outcome:?}");
    assert_eq!(cluster.owner_with(&[1, 2, 3]), 3);
    cluster.write(3, 100..200, 100);
    cluster.assert_equal(200);
}

/// The outcome of a drain. On a busy machine it can take too long, and is repeated.
fn drained(cluster: &DrivenCluster) -> Result<OperatorOutcome> {
    for _ in 0..TRIES {
        match cluster.drain(1) {
            Ok(OperatorOutcome::Late { is_excluded: false, .. }) => {}
            outcome => return outcome,
        }
    }
    cluster.drain(1)
}

/// How often the second test is tried: on a busy machine the lease may end while members stop.
const TRIES: u32 = 5;

#[test]
fn an_owner_whose_log_cannot_be_replicated_stays_and_admits_writers_again() {
    let is_shown = (0..TRIES).any(|_| owner_stays_and_admits_writers_again());
    assert!(is_shown, "in {TRIES} tries the owner lost its lease");
}

/// False if the owner lost its lease before the drain began, or the partition meanwhile.
fn owner_stays_and_admits_writers_again() -> bool {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..100, 100);
    cluster.stop(2);
    cluster.stop(3);
    let session = cluster.host(1).region.session().unwrap();
    let on_one_host = session.put(ue(&session), b"on one host", b"v");
    if matches!(on_one_host, Err(Error::Fenced { .. })) {
        return false;
    }
    on_one_host.unwrap();
    let receipt = session.receipt_of_all().unwrap();
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Pending);
    let outcome = drained(&cluster);
    if matches!(outcome, Ok(OperatorOutcome::Refused(OperatorRefusal::Silent(_)))) {
        return false;
    }
    let refused = matches!(
        outcome,
        Ok(OperatorOutcome::Refused(OperatorRefusal::NotReplicated(HostId(1), missing)))
            if missing > 0
    );
    assert!(refused, "{outcome:?}");
    cluster.run(2);
    cluster.run(3);
    // Members that do not hear the owner for a lease, on a busy machine, seal.
    if cluster.owner_with(&[1, 2, 3]) != 1 {
        return false;
    }
    cluster.write(1, 100..200, 100);
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Replicated);
    cluster.assert_equal(201);
    true
}

/// The membership has failed, has no leader, or orders nothing: writers are not refused.
#[test]
fn a_drain_that_the_membership_cannot_decide_is_refused_before_writers_are() {
    let cluster = DrivenCluster::start();
    cluster.write(1, 0..100, 100);
    let down = |leader, failure: Option<&str>| EngineStatus {
        leader,
        voters: [1, 2, 3].into(),
        failure: failure.map(str::to_owned),
        ..EngineStatus::default()
    };
    let refused = |expected: &str| {
        let error = cluster.drain(1).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("nothing has changed"), "{error}");
        assert!(!error.contains("later"), "{error}");
    };
    *locked(&cluster.log.down) = Some(down(Some(1), Some("no disk")));
    refused("has failed on this host (no disk)");
    *locked(&cluster.log.down) = Some(down(None, None));
    refused("no leader");
    *locked(&cluster.log.down) = Some(down(Some(1), None));
    refused("has not ordered anything in time");
    assert_eq!(cluster.log.count(|command| matches!(command, Command::Exclude { .. })), 0);
    assert_eq!(*locked(&cluster.log.undecided), []);
    *locked(&cluster.log.down) = None;
    // Writers are admitted, and the drain can be repeated.
    cluster.write(1, 100..200, 100);
    let outcome = drained(&cluster);
    assert!(matches!(outcome, Ok(OperatorOutcome::Done { .. })), "{outcome:?}");
}

impl CommandLog {
    /// Orders the exclusions that were delayed, and delays no more.
    pub(crate) fn order_exclusions(&self) {
        let delayed = locked(&self.exclusions).take();
        for command in delayed.iter().flatten() {
            self.append(command);
        }
    }

    pub(crate) fn noticed(&self, host: HostId, notice: &ClusterNotice) {
        if let ClusterNotice::DrainUndecided { .. } = notice {
            locked(&self.undecided).push(host);
        }
        if let ClusterNotice::Event(event) = notice
            && let ClusterEventKind::Evicting(member, _) = event.kind
        {
            locked(&self.evicted).push(member);
        }
    }

    /// True if a command is an exclusion, and those are ordered later; or an eviction, and those
    /// are lost.
    pub(crate) fn is_delayed(&self, command: &[u8]) -> bool {
        let is_eviction = matches!(Command::decode(command), Ok(Command::Evict { .. }));
        if is_eviction && *locked(&self.loses_evictions) {
            return true;
        }
        let is_exclusion = matches!(Command::decode(command), Ok(Command::Exclude { .. }));
        match locked(&self.exclusions).as_mut().filter(|_| is_exclusion) {
            Some(delayed) => delayed.push(command.to_vec()),
            None => return false,
        }
        true
    }
}

/// The membership does not answer the last step of a drain, and orders it later.
#[test]
fn writers_are_refused_until_it_is_decided_that_the_owner_is_excluded() {
    let is_shown = (0..TRIES).any(|_| writers_are_refused_until_it_is_decided());
    assert!(is_shown, "in {TRIES} tries the owner lost its lease");
}

/// False if the owner lost the partition before, on a busy machine.
fn writers_are_refused_until_it_is_decided() -> bool {
    let cluster = DrivenCluster::start();
    cluster.write(1, 0..100, 100);
    *locked(&cluster.log.exclusions) = Some(Vec::new());
    let outcome = drained(&cluster);
    if !matches!(outcome, Err(Error::Backend { .. })) {
        return false;
    }
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("no majority in time") && error.contains("later"), "{error}");
    let session = cluster.host(1).region.session().unwrap();
    let is_refused = || match session.put(ue(&session), b"late", b"v") {
        Err(Error::Fenced { .. } | Error::NotOwner { .. }) => true,
        other => panic!("{other:?}"),
    };
    // The driver has proposed it again, several times, and nothing is decided.
    let proposed = || locked(&cluster.log.exclusions).as_ref().map_or(0, Vec::len);
    until("it is proposed again", || is_refused() && proposed() >= 3);
    let shown = status(cluster.host(1)).unwrap();
    assert!(shown.is_drain_undecided && shown.role != "owner", "{shown:?}");
    assert_eq!(*locked(&cluster.log.undecided), [HostId(1)]);
    let again = cluster.drain(1).unwrap_err().to_string();
    assert!(again.contains("is being drained"), "{again}");
    cluster.log.order_exclusions();
    let owner = Cell::new(1);
    until("another host owns the partition", || {
        is_refused();
        owner.set(cluster.owner_with(&[1, 2, 3]));
        owner.get() != 1
    });
    cluster.write(owner.get(), 100..200, 100);
    until("the drain has ended", || {
        !cluster.drain(1).is_err_and(|error| error.to_string().contains("is being drained"))
    });
    until("the drain is shown no longer", || {
        status(cluster.host(1)).is_some_and(|shown| !shown.is_drain_undecided)
    });
    cluster.assert_equal(200);
    true
}

/// Ends the writer, also if the test fails.
struct EndOfWriter<'w>(&'w Writer);

impl Drop for EndOfWriter<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}
