//! `set` in a namespace whose commits wait, and receipts in an event loop.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_sdl::{Error as SdlError, ErrorKind, ReceiptNotifier, RegionStorage, SyncStorage};
use nearstate_store::{
    CreateOptions, Error, Kind, Receipt, ReceiptState, Region, ReplicationPolicy, Schema, Session,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A region whose namespace `sessions` waits.
fn region(folder: &tempfile::TempDir) -> (Region, Session) {
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("r"), &options).unwrap();
    let session = region.session().unwrap();
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    session.namespace_with_policy("sessions", &schema, ReplicationPolicy::Replicated).unwrap();
    (region, session)
}

#[test]
fn set_returns_when_the_policy_of_the_namespace_holds() {
    let folder = tempfile::tempdir().unwrap();
    let (region, session) = region(&folder);
    let mut sdl = RegionStorage::on(region).unwrap();
    sdl.set("other", &[(b"k", b"v")]).unwrap();
    // No other host has it: it may have happened.
    let error = sdl.set("sessions", &[(b"k", b"v")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OperationInterrupted);
    assert!(matches!(error.cause, Error::NotReplicated { .. }), "{error}");
    assert_eq!(sdl.get("sessions", &[b"k"]).unwrap().len(), 1);
    // A consumer that acknowledges everything at once.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &is_over;
        scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
            }
        });
        let _end = SetOnDrop(&is_over);
        until_replicated(|| sdl.set("sessions", &[(b"a", b"1"), (b"b", b"2")]));
        let mut tries = 0;
        let is_set = until_replicated(|| {
            tries += 1;
            sdl.set_if("sessions", b"a", b"1", b"2")
        });
        // An earlier one stands that was not replicated in time.
        assert!(is_set || tries > 1);
        assert_eq!(sdl.get("sessions", &[b"a"]).unwrap()[&b"a"[..]], b"2");
        until_replicated(|| sdl.remove("sessions", &[b"a", b"b"]));
    });
}

/// Sets a flag when it is dropped: the thread that looks at it ends as well when the test fails.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Repeats a write that is not replicated in time on a busy machine.
fn until_replicated<T>(mut write: impl FnMut() -> Result<T, SdlError>) -> T {
    loop {
        match write() {
            Err(error) if matches!(error.cause, Error::NotReplicated { .. }) => {}
            other => return other.unwrap(),
        }
    }
}

fn is_readable(fd: &impl AsFd, wait: Duration) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::try_from(wait).unwrap())).unwrap() == 1
}

#[test]
fn a_descriptor_is_readable_when_a_receipt_is_decided_and_not_before() {
    const LONG: Duration = Duration::from_secs(60);
    let folder = tempfile::tempdir().unwrap();
    let (_region, session) = region(&folder);
    session.set_commit_wait(nearstate_store::CommitWait::Never, LONG);
    let sessions = session.known_namespace("sessions").unwrap().unwrap();
    let receipts: Vec<Receipt> = (0..100_u64)
        .map(|number| {
            session.put(sessions, &number.to_le_bytes(), b"v").unwrap();
            session.take_owed_receipt()
        })
        .collect();
    let notifier = ReceiptNotifier::new(&session).unwrap();
    let (mut fd, mut other) = (notifier.receipt_fd().unwrap(), notifier.receipt_fd().unwrap());
    receipts.iter().rev().for_each(|receipt| fd.add(*receipt));
    other.add(receipts[99]);
    assert!(!is_readable(&fd, Duration::ZERO));
    assert_eq!(fd.next().unwrap(), None);
    let mut decided = Vec::new();
    for upto in [0, 49, 50, 99] {
        session.acknowledge_to(receipts[upto].position()).unwrap();
        while decided.len() <= upto {
            assert!(is_readable(&fd, LONG));
            while let Some((receipt, state)) = fd.next().unwrap() {
                assert_eq!(state, ReceiptState::Replicated);
                decided.push(receipt);
            }
        }
        assert!(!is_readable(&fd, Duration::ZERO));
        assert_eq!(decided.len(), upto + 1);
    }
    assert_eq!(decided, receipts);
    assert!(fd.is_empty());
    assert!(is_readable(&other, LONG));
    // One that is removed is not waited for, whether it is decided or not.
    fd.add(receipts[3]);
    fd.add(receipts[3]);
    assert_eq!((fd.remove(receipts[3]), fd.remove(receipts[3]), fd.len()), (2, 0, 0));
    assert_eq!(fd.next().unwrap(), None);
    // One that is decided already is seen at once.
    fd.add(receipts[3]);
    assert!(is_readable(&fd, Duration::ZERO));
    assert_eq!(fd.next().unwrap(), Some((receipts[3], ReceiptState::Replicated)));
}

/// Neither end of the order of receipts is decided.
#[test]
fn a_decided_receipt_between_two_pending_ones_makes_the_descriptor_readable() {
    let folder = tempfile::tempdir().unwrap();
    let (_region, session) = region(&folder);
    session.set_commit_wait(nearstate_store::CommitWait::Never, Duration::ZERO);
    let sessions = session.known_namespace("sessions").unwrap().unwrap();
    let [first, second, last] = [1_u8, 2, 3].map(|number| {
        session.put(sessions, &[number], b"v").unwrap();
        session.take_owed_receipt()
    });
    // Of a log that this region does not know.
    let foreign = Receipt::from_parts(second.position(), second.incarnation() ^ (1 << 60));
    let notifier = ReceiptNotifier::new(&session).unwrap();
    let mut fd = notifier.receipt_fd().unwrap();
    for receipt in [first, last, foreign] {
        fd.add(receipt);
    }
    assert!(is_readable(&fd, Duration::ZERO));
    assert_eq!(fd.next().unwrap(), Some((foreign, ReceiptState::Unknown)));
    assert!(!is_readable(&fd, Duration::ZERO), "the last one that is decided was taken out");
    assert_eq!((fd.next().unwrap(), fd.len()), (None, 2));
    // One that is decided stays readable when a pending one before it is removed, and one that is
    // removed is not readable any more.
    fd.add(foreign);
    assert_eq!(fd.remove(first), 1);
    assert!(is_readable(&fd, Duration::ZERO));
    assert_eq!(fd.remove(foreign), 1);
    assert!(!is_readable(&fd, Duration::ZERO));
    assert_eq!((fd.next().unwrap(), fd.len()), (None, 1));
}
