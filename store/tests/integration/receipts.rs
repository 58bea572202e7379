//! Receipts that outlive the log that gave them: asked for at another host, in an older copy of the
//! file, and in a region that has left its group.

use std::future::Future as _;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use nearstate_store::{
    Error, Namespace, Receipt, ReceiptState, ReceiptWait, ReceiptWaits, Region, Session, WhenFull,
};

use crate::fixture::clean;
use crate::follow::{Host, key};
use crate::takeover::{Three, applied, follow, switch, ue};

const LONG: Duration = Duration::from_secs(60);

fn put(session: &Session, ns: Namespace, number: u64) -> Receipt {
    session.put(ns, &key(number), &number.to_le_bytes()).unwrap();
    session.receipt()
}

/// Everything that the log has is replicated.
fn acknowledge_all(session: &Session) {
    session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
}

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Completes a future. A token that arrives between a poll and the park ends the park.
fn complete(wait: ReceiptWait) -> ReceiptState {
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    let mut wait = pin!(wait);
    loop {
        if let Poll::Ready(state) = wait.as_mut().poll(&mut Context::from_waker(&waker)) {
            return state.unwrap();
        }
        std::thread::park();
    }
}

/// Tells a test of each wake.
struct Sent(mpsc::Sender<()>);

impl Wake for Sent {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// The thread looks at least each 100 ms.
#[test]
fn a_wait_for_a_receipt_of_another_log_is_woken_when_it_is_decided_and_not_before() {
    let three = Three::new();
    let [old, heir] = [&three.owner, &three.ahead].map(|host| host.region.session().unwrap());
    let lost = old.receipt_of_all().unwrap();
    let waits = ReceiptWaits::new(&heir);
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Sent(sender)));
    let mut cx = Context::from_waker(&waker);
    let mut wait = pin!(waits.wait(lost));
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    std::thread::scope(|scope| {
        scope.spawn(|| waits.run());
        let early = woken.recv_timeout(Duration::from_millis(450));
        heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
        let late = woken.recv_timeout(LONG);
        waits.end();
        assert_eq!((early, late), (Err(mpsc::RecvTimeoutError::Timeout), Ok(())));
    });
    assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(Ok(ReceiptState::Lost)));
    drop((old, heir));
}

/// A source of the log asks whether it may keep entries back for a moment.
#[test]
fn a_wait_is_announced_before_a_thread_sleeps_for_it_until_the_next_acknowledgement() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let ns = ue(&session);
    session.stream(ns, WhenFull::Refuse).unwrap();
    let receipt = put(&session, ns, 1);
    assert!(!session.is_replication_awaited().unwrap(), "the commit alone is no wait");
    // No thread runs the waits.
    let waits = ReceiptWaits::new(&session);
    let mut wait = pin!(waits.wait(receipt));
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(session.is_replication_awaited().unwrap());
    session.acknowledge_to(receipt.position()).unwrap();
    assert!(!session.is_replication_awaited().unwrap());
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    // What is decided is not waited for, and a wait that is given up stays announced.
    session.wait_replicated(receipt, LONG).unwrap();
    assert!(!session.is_replication_awaited().unwrap());
    let pending = put(&session, ns, 2);
    session.wait_replicated(pending, Duration::ZERO).unwrap();
    assert!(session.is_replication_awaited().unwrap());
    session.acknowledge_to(pending.position()).unwrap();
    assert!(!session.is_replication_awaited().unwrap());
}

/// Two processes wait at the same time: the first one spins while the source runs on another
/// processor, which changes, and the second one sleeps.
#[test]
fn each_of_several_waits_ends_with_its_acknowledgement() {
    const ROUNDS: u64 = 500;
    let host = Host::new();
    let session = host.region.session().unwrap();
    let ns = ue(&session);
    session.stream(ns, WhenFull::Refuse).unwrap();
    std::thread::scope(|scope| {
        let (sender, committed) = mpsc::channel();
        for waiter in 0..2 {
            let (sender, session) = (sender.clone(), host.region.session().unwrap());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let receipt = put(&session, ns, round * 2 + waiter);
                    sender.send(receipt.position()).unwrap();
                    let state = session.wait_replicated(receipt, LONG).unwrap();
                    assert_eq!(state, ReceiptState::Replicated);
                }
            });
        }
        drop(sender);
        let mut told = 0;
        for position in committed {
            told = session.tell_source_cpu(told).unwrap();
            session.acknowledge_to(position).unwrap();
        }
        assert_ne!(told, 0, "the kernel tells the processor");
    });
    // A wait that begins with its acknowledgement leaves its mark to the next one.
    acknowledge_all(&session);
    assert!(!session.is_replication_awaited().unwrap());
}

/// Without it each wait would last as long as the source sleeps.
#[test]
fn a_process_that_waits_wakes_a_source_that_has_sent_everything() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let ns = ue(&session);
    session.stream(ns, WhenFull::Refuse).unwrap();
    std::thread::scope(|scope| {
        let source = host.region.session().unwrap();
        let (sender, rounds) = mpsc::channel();
        scope.spawn(move || {
            for () in rounds {
                source.sleep_until_awaited(2 * LONG).unwrap();
                acknowledge_all(&source);
            }
        });
        for round in 0..200 {
            let receipt = put(&session, ns, round);
            sender.send(()).unwrap();
            let state = session.wait_replicated(receipt, LONG).unwrap();
            assert_eq!(state, ReceiptState::Replicated, "round {round}");
        }
        // A wait that was given up stays announced.
        let pending = put(&session, ns, 0);
        session.wait_replicated(pending, Duration::ZERO).unwrap();
        assert!(!session.sleep_until_awaited(LONG).unwrap(), "it does not sleep");
    });
}

#[test]
fn the_host_that_takes_over_decides_the_receipts_of_the_old_log_and_no_other_host_does() {
    let three = Three::new();
    let [old, heir, late] =
        [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    let seal = applied(&heir).position;
    let kept = old.receipt_at(seal).unwrap();
    let lost = old.receipt_of_all().unwrap();
    assert!(kept < lost && kept.incarnation() == lost.incarnation());
    // At a copy nothing is decided: the owner knows.
    for receipt in [kept, lost] {
        assert_eq!(heir.receipt_state(receipt).unwrap(), ReceiptState::Pending);
        let waited = heir.wait_replicated(receipt, Duration::from_millis(1)).unwrap();
        assert_eq!(waited, ReceiptState::Pending);
    }
    let waits = ReceiptWaits::new(&heir);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| waits.run());
        let tasks = [kept, lost].map(|receipt| {
            let wait = waits.wait(receipt);
            scope.spawn(move || complete(wait))
        });
        let waiter = three.ahead.region.session().unwrap();
        let blocked = scope.spawn(move || waiter.wait_replicated(kept, LONG).unwrap());
        let takeover = heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
        // Behind the seal it is lost at once. The rest is as safe as the begin of the new log.
        assert_eq!(heir.receipt_state(lost).unwrap(), ReceiptState::Lost);
        assert_eq!(heir.receipt_state(kept).unwrap(), ReceiptState::Pending);
        heir.acknowledge_to(takeover.position).unwrap();
        assert_eq!(heir.receipt_state(kept).unwrap(), ReceiptState::Replicated);
        let states = tasks.map(|task| task.join().unwrap());
        assert_eq!(states, [ReceiptState::Replicated, ReceiptState::Lost]);
        assert_eq!(blocked.join().unwrap(), ReceiptState::Replicated);
        waits.end();
        running.join().unwrap();
        switch(&heir, &takeover, &late);
    });
    // The new log passes the positions of the old one.
    let ns = ue(&heir);
    let mut newest = heir.receipt();
    while newest.position() <= lost.position() {
        newest = put(&heir, ns, newest.position());
    }
    acknowledge_all(&heir);
    assert!(heir.replicated_position().unwrap() > lost.position());
    assert_eq!(heir.receipt_state(lost).unwrap(), ReceiptState::Lost);
    assert_eq!(heir.receipt_state(newest).unwrap(), ReceiptState::Replicated);
    // A host that has not taken it over does not know.
    let unrelated = Host::new();
    let other = unrelated.region.session().unwrap();
    for (session, receipt) in [(&late, kept), (&late, lost), (&other, kept), (&other, lost)] {
        assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Unknown);
        let waited = session.wait_replicated(receipt, LONG).unwrap();
        assert_eq!(waited, ReceiptState::Unknown);
        let error = waited.require(receipt, LONG).unwrap_err();
        assert_eq!(error, Error::OutcomeUnknown { position: receipt.position() });
    }
    // The old owner knows its own positions, also as a copy of the new log.
    old.demote(Some(seal)).unwrap();
    follow(&heir, &old);
    old.settle_receipts().unwrap();
    assert_eq!(old.receipt_state(kept).unwrap(), ReceiptState::Replicated);
    assert_eq!(old.receipt_state(lost).unwrap(), ReceiptState::Lost);
    assert_eq!(old.receipt_state(newest).unwrap(), ReceiptState::Pending);
    drop((old, heir, late, other, waits));
    unrelated.check();
    three.check();
}

/// The copy gives the positions again.
#[test]
fn a_region_that_was_restored_does_not_know_the_receipts_that_came_after_its_copy() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let ns = ue(&session);
    session.begin_partition(1).unwrap();
    session.stream(ns, WhenFull::Refuse).unwrap();
    let before = (0..10).map(|number| put(&session, ns, number)).last().unwrap();
    acknowledge_all(&session);
    drop(session);
    let copy = host.folder.path.with_extension("copy");
    std::fs::copy(&host.folder.path, &copy).unwrap();
    let session = host.region.session().unwrap();
    let ns = ue(&session);
    let after = (0..30).map(|number| put(&session, ns, number)).last().unwrap();
    acknowledge_all(&session);
    assert_eq!(session.receipt_state(after).unwrap(), ReceiptState::Replicated);
    assert_eq!(before.incarnation(), after.incarnation());
    drop(session);

    let restored = Region::attach(&copy).unwrap();
    let session = restored.session().unwrap();
    // The copy has not given that position, whatever it has acknowledged.
    assert_eq!(session.receipt_state(after).unwrap(), ReceiptState::Unknown);
    for cycle in 2..40 {
        session.demote(None).unwrap();
        session.leave_source().unwrap();
        session.promote_incomplete(WhenFull::Refuse).unwrap();
        session.continue_partition(cycle).unwrap();
        let ns = ue(&session);
        let here = (0..40).map(|number| put(&session, ns, number)).last().unwrap();
        acknowledge_all(&session);
        assert!(here.position() > after.position());
        assert_eq!(session.receipt_state(here).unwrap(), ReceiptState::Replicated);
        assert_eq!(session.receipt_state(after).unwrap(), ReceiptState::Unknown, "{cycle}");
        // Of the last 16 incarnations it is known where they ended: a cycle has three.
        let known = session.receipt_state(before).unwrap();
        let expected = if cycle <= 6 { ReceiptState::Replicated } else { ReceiptState::Unknown };
        assert_eq!(known, expected, "{cycle}");
        // The receipt of an old position is one that this region answers.
        let again = session.receipt_at(before.position()).unwrap();
        assert_eq!(session.receipt_state(again).unwrap(), ReceiptState::Replicated);
    }
    drop(session);
    drop(restored);
    clean(&copy);
    host.check();
}

/// Nothing else would decide them.
#[test]
fn a_host_that_has_left_its_group_says_that_it_does_not_know() {
    let three = Three::new();
    let [old, waiter] = [0; 2].map(|_| three.owner.region.session().unwrap());
    let heir = three.ahead.region.session().unwrap();
    let (counted, seal) = (old.replicated_position().unwrap(), applied(&heir).position);
    let [counted, kept] = [counted, seal].map(|position| old.receipt_at(position).unwrap());
    // An owner goes on.
    assert_eq!(old.give_up_receipts().unwrap(), 0);
    assert_eq!(old.receipt_state(kept).unwrap(), ReceiptState::Pending);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || waiter.wait_replicated(kept, LONG).unwrap());
        old.demote(Some(seal)).unwrap();
        assert_eq!(old.receipt_state(kept).unwrap(), ReceiptState::Pending);
        assert!(old.give_up_receipts().unwrap() > 0);
        assert_eq!(waiting.join().unwrap(), ReceiptState::Unknown);
    });
    old.settle_receipts().unwrap();
    assert_eq!(old.receipt_state(kept).unwrap(), ReceiptState::Unknown);
    assert_eq!(old.receipt_state(counted).unwrap(), ReceiptState::Replicated);
    // A fenced owner whose node acts for no partition any more.
    let late = three.behind.region.session().unwrap();
    late.promote_logged(5, WhenFull::Refuse, false).unwrap();
    let open = put(&late, ue(&late), 7);
    late.set_fenced(true).unwrap();
    assert!(late.give_up_receipts().unwrap() > 0);
    assert_eq!(late.receipt_state(open).unwrap(), ReceiptState::Unknown);
    drop((old, heir, late));
    three.check();
}
