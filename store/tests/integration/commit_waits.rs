//! Commits that wait until they are replicated, and receipts that tasks wait for.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use nearstate_store::{
    CommitWait, Error, Metadata, Namespace, REPLICATION_WAIT_MAX, Receipt, ReceiptState,
    ReceiptWait, ReceiptWaits, ReplicationPolicy, Schema, Session, WhenFull,
};

use crate::fixture::SetOnDrop;
use crate::follow::{Host, key};
use crate::policies::own;
use crate::takeover::{Three, applied, assert_equal, follow, ue};

const SHORT: Duration = Duration::from_millis(2);
/// Reached only by a failing test.
const LONG: Duration = Duration::from_secs(60);

fn replicated(session: &Session) -> Namespace {
    let policy = ReplicationPolicy::Replicated;
    session.namespace_with_policy("sessions", &Schema::default(), policy).unwrap()
}

fn position_of(error: &Error) -> u64 {
    let Error::NotReplicated { position, .. } = error else { panic!("{error}") };
    *position
}

#[test]
fn a_commit_that_nobody_acknowledges_stands_and_returns_its_receipt() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let (sessions, local) =
        (replicated(&session), session.namespace("local", &Schema::default()).unwrap());
    session.set_commit_wait(CommitWait::ByNamespace, SHORT);
    let refused = session.put(sessions, b"k", b"1").unwrap_err();
    assert_eq!(position_of(&refused), session.receipt().position());
    assert!(refused.to_string().contains("within 2 ms"), "{refused}");
    assert_eq!(session.get(sessions, b"k").unwrap().unwrap().bytes(), b"1");
    // Each way to write waits, and runs once.
    let mut runs = 0;
    let refused = session.transact(|txn| {
        runs += 1;
        txn.put(sessions, b"a", b"1")?;
        txn.put(local, b"a", b"1")
    });
    assert_eq!((position_of(&refused.unwrap_err()), runs), (session.receipt().position(), 1));
    position_of(&session.delete(sessions, b"k").unwrap_err());
    assert!(session.get(sessions, b"k").unwrap().is_none());
    // What writes nothing there does not.
    session.put(local, b"k", b"1").unwrap();
    session.transact(|txn| txn.get(sessions, b"a").map(drop)).unwrap();
    session
        .transact(|txn| {
            txn.get(sessions, b"a")?;
            txn.put(local, b"k", b"2")
        })
        .unwrap();
    // As the call wants.
    session.with_commit_wait(CommitWait::Never, SHORT, || {
        assert_eq!(session.take_owed_receipt(), Receipt::NONE);
        session.put(sessions, b"k", b"2").unwrap();
        assert_eq!(session.take_owed_receipt(), session.receipt());
        assert_eq!(session.take_owed_receipt(), Receipt::NONE);
        session.put(local, b"k", b"2").unwrap();
        assert_eq!(session.take_owed_receipt(), Receipt::NONE);
        session.put(sessions, b"k", b"2").unwrap();
    });
    // That one is owed by no other commit.
    session.set_replication_policy(sessions, ReplicationPolicy::Async).unwrap();
    session.put(sessions, b"k", b"3").unwrap();
    session.with_commit_wait(CommitWait::Always, SHORT, || {
        position_of(&session.put(sessions, b"k", b"4").unwrap_err());
        session.put(local, b"k", b"4").unwrap();
    });
    assert_eq!(
        session.set_commit_wait(CommitWait::ByNamespace, REPLICATION_WAIT_MAX),
        (CommitWait::ByNamespace, SHORT)
    );
    session.put(sessions, b"k", b"5").unwrap();
    drop(session);
    host.check();
}

#[test]
fn a_commit_that_does_not_wait_forgets_no_receipt_that_is_owed() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let sessions = replicated(&session);
    let policy = ReplicationPolicy::Async;
    let others = session.namespace_with_policy("others", &Schema::default(), policy).unwrap();
    session.set_commit_wait(CommitWait::ByNamespace, SHORT);
    session.with_commit_wait(CommitWait::Never, SHORT, || {
        session.put(sessions, b"k", b"1").unwrap();
    });
    let owed = session.receipt();
    session.put(others, b"k", b"1").unwrap();
    session.transact(|txn| txn.put(others, b"k", b"2")).unwrap();
    assert!(session.owes_receipt() && session.receipt() != owed);
    assert_eq!(session.take_owed_receipt(), owed);
    assert!(!session.owes_receipt());
    drop(session);
    host.check();
}

/// A commit waits for itself, not for the records that it collects afterwards.
#[test]
fn a_commit_waits_although_it_collects_expired_records_behind_itself() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let sessions = replicated(&session);
    let open = |name, policy| session.namespace_with_policy(name, &Schema::default(), policy);
    let others = open("others", ReplicationPolicy::Async).unwrap();
    session.set_commit_wait(CommitWait::ByNamespace, SHORT);
    let put = |namespace, number: u32| {
        session.transact(|txn| {
            let metadata = Metadata { expires_ms: 1, ..Metadata::default() };
            txn.put_with_metadata(namespace, &number.to_le_bytes(), b"v", metadata)
        })
    };
    for round in 0..100 {
        // It has expired already, and waits to be collected by one of the next commits.
        put(others, round).unwrap();
        let refused = put(sessions, round).expect_err("no host has acknowledged the commit");
        assert_eq!(position_of(&refused), session.receipt().position(), "round {round}");
    }
    session.delete(sessions, b"k").expect_err("all commits so far");
    // The other way round: what is collected in `sessions` is nothing that `local` waits for.
    let local = open("local", ReplicationPolicy::Local).unwrap();
    for round in 100..200 {
        session.with_commit_wait(CommitWait::Never, SHORT, || put(sessions, round).unwrap());
        put(local, round).unwrap();
    }
    drop(session);
    host.check();
}

/// A deletion that is repeated because the first one was not replicated stands for the first one.
#[test]
fn a_deletion_that_finds_no_record_waits_as_the_one_that_has_deleted_it() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let sessions = replicated(&session);
    let local = session.namespace("local", &Schema::default()).unwrap();
    session.set_commit_wait(CommitWait::ByNamespace, SHORT);
    position_of(&session.put(sessions, b"k", b"1").unwrap_err());
    position_of(&session.delete(sessions, b"k").unwrap_err());
    position_of(&session.delete(sessions, b"k").unwrap_err());
    position_of(&session.transact(|txn| txn.delete(sessions, b"k")).unwrap_err());
    assert!(!session.delete(local, b"k").unwrap());
    let all = session.receipt_of_all().unwrap();
    session.with_commit_wait(CommitWait::Never, SHORT, || {
        session.take_owed_receipt();
        assert!(!session.delete(sessions, b"k").unwrap());
        assert!(session.take_owed_receipt() >= all);
        assert!(!session.delete(local, b"k").unwrap());
        assert_eq!(session.take_owed_receipt(), Receipt::NONE);
    });
    let mut stream = session.commit_stream().unwrap();
    while stream.next().unwrap().is_some() {}
    stream.acknowledge().unwrap();
    assert!(!session.delete(sessions, b"k").unwrap());
    drop(stream);
    drop(session);
    host.check();
}

#[test]
fn a_commit_returns_when_it_is_replicated_and_not_before() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let sessions = replicated(&session);
    session.set_commit_wait(CommitWait::ByNamespace, LONG);
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let consumer = host.region.session().unwrap();
            let mut stream = consumer.commit_stream().unwrap();
            while !is_over.load(Ordering::Acquire) {
                while let Some(item) = stream.next().unwrap() {
                    if let nearstate_store::StreamItem::Transaction(entry) = item {
                        acknowledged.store(entry.number, Ordering::Release);
                    }
                }
                stream.acknowledge().unwrap();
            }
        });
        let _end = SetOnDrop(&is_over);
        for number in 0..200_u64 {
            session.put(sessions, &number.to_le_bytes(), b"v").unwrap();
            assert!(acknowledged.load(Ordering::Acquire) >= session.receipt().position());
        }
    });
    drop(session);
    host.check();
}

#[test]
fn a_commit_that_a_fail_over_discards_is_lost_for_those_that_wait() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    own(&session);
    let sessions = replicated(&session);
    let before = session.log_tail_position().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let session = host.region.session().unwrap();
            session.set_commit_wait(CommitWait::ByNamespace, LONG);
            session.put(sessions, b"k", b"v")
        });
        while session.get(sessions, b"k").unwrap().is_none() {
            std::thread::yield_now();
        }
        session.set_fenced(true).unwrap();
        session.demote(Some(before)).unwrap();
        let lost = waiting.join().unwrap().unwrap_err();
        assert!(matches!(lost, Error::Lost { position } if position > before), "{lost}");
    });
    drop(session);
    host.check();
}

/// Sleeps until it is woken.
struct Parked(Thread, AtomicBool);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

fn parked() -> (Arc<Parked>, Waker) {
    let parked = Arc::new(Parked(std::thread::current(), AtomicBool::new(false)));
    (Arc::clone(&parked), Waker::from(parked))
}

/// Completes a future by wake-ups alone.
fn complete(wait: ReceiptWait) -> ReceiptState {
    let (parked, waker) = parked();
    let mut wait = pin!(wait);
    loop {
        if let Poll::Ready(state) = wait.as_mut().poll(&mut Context::from_waker(&waker)) {
            return state.unwrap();
        }
        while !parked.1.swap(false, Ordering::AcqRel) {
            std::thread::park();
        }
    }
}

#[test]
fn one_thread_wakes_any_number_of_tasks_and_those_of_lost_receipts() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    own(&session);
    let sessions = replicated(&session);
    session.set_commit_wait(CommitWait::Never, SHORT);
    let mut receipts: Vec<Receipt> = (0..100_u64)
        .map(|number| {
            session.put(sessions, &number.to_le_bytes(), b"v").unwrap();
            session.take_owed_receipt()
        })
        .collect();
    receipts.reverse();
    let seal = receipts[50];
    let waits = ReceiptWaits::new(&session);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| waits.run());
        let tasks: Vec<_> = receipts
            .iter()
            .map(|receipt| {
                let wait = waits.wait(*receipt);
                (*receipt, scope.spawn(move || complete(wait)))
            })
            .collect();
        // A task that gives up is not woken.
        let (given_up, waker) = parked();
        let mut wait = waits.wait(receipts[0]);
        let polled = pin!(&mut wait).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop(wait);
        session.acknowledge_to(seal.position()).unwrap();
        session.set_fenced(true).unwrap();
        session.demote(Some(seal.position())).unwrap();
        for (receipt, task) in tasks {
            let expected =
                if receipt > seal { ReceiptState::Lost } else { ReceiptState::Replicated };
            assert_eq!(task.join().unwrap(), expected, "{receipt:?}");
        }
        assert!(!given_up.1.load(Ordering::Acquire));
        // What is decided already needs no thread.
        waits.end();
        running.join().unwrap();
        assert_eq!(complete(waits.wait(seal)), ReceiptState::Replicated);
    });
    drop((session, waits));
    host.check();
}

/// How often this thread has given up its processor because it waited.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn a_waiter_sleeps_and_does_not_poll() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let sessions = replicated(&session);
    session.set_commit_wait(CommitWait::Never, SHORT);
    session.put(sessions, b"k", b"v").unwrap();
    let before = sleeps();
    // It looks ten times a second, because a consumer may be killed before it wakes others.
    let state = session.wait_replicated(session.receipt(), Duration::from_millis(250)).unwrap();
    let slept = sleeps() - before;
    assert_eq!(state, ReceiptState::Pending);
    assert!((1..=8).contains(&slept), "{slept} sleeps");
    drop(session);
    host.check();
}

/// What a follower deletes is in no log of its region. It must not wait for the last commit of the
/// time as the owner, which no host has.
#[test]
fn a_copy_deletes_records_of_a_replicated_namespace_although_its_last_own_commit_is_lost() {
    let three = Three::new();
    let [old, heir] = [&three.owner, &three.ahead].map(|host| host.region.session().unwrap());
    let seal = applied(&heir).position;
    old.acknowledge_to(old.log_tail_position().unwrap()).unwrap();
    for session in [&old, &heir] {
        session.set_commit_wait(CommitWait::Never, Duration::ZERO);
    }
    old.set_replication_policy(ue(&old), ReplicationPolicy::Replicated).unwrap();
    for number in 0..1_200 {
        old.put(ue(&old), &key(number + 1_000), b"v").unwrap();
    }
    let lost = old.receipt();
    old.set_commit_wait(CommitWait::ByNamespace, Duration::from_secs(60));
    old.demote(Some(seal)).unwrap();
    assert_eq!(old.receipt_state(lost).unwrap(), ReceiptState::Lost);
    heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
    heir.set_replication_policy(ue(&heir), ReplicationPolicy::Replicated).unwrap();
    // It discards what it has, and gets what the next owner has.
    follow(&heir, &old);
    assert_equal(&heir, &old);
    // Deletions alone, of one record and of some.
    for keys in [&[500][..], &[501, 502]] {
        heir.transact(|txn| {
            keys.iter().try_for_each(|number| txn.delete(ue(&heir), &key(*number)).map(drop))
        })
        .unwrap();
    }
    follow(&heir, &old);
    assert_equal(&heir, &old);
    assert_eq!(old.receipt_state(lost).unwrap(), ReceiptState::Lost);
    drop((old, heir));
    three.check();
}
