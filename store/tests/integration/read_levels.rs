//! Reads at the owner and at copies: what each level sees, waits for and refuses.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use nearstate_store::{
    Error, OwnerLease, ReadLevel, Receipt, Schema, Session, WhenFull, lease_clock,
};

use crate::follow::{Host, key, run, start};
use crate::takeover::{Three, applied, follow, ue};

const LONG: Duration = Duration::from_secs(60);
/// The words of the lease: its end and its boot (`spec/region.md`, section 11).
const LEASE: u64 = 0x1000 + 0x140;
const SHORT: Duration = Duration::from_millis(1);

/// The value of the last record that [`Three`] has written, if the host has it.
fn last_value(session: &Session, level: ReadLevel, limit: Duration) -> Result<Option<u64>, Error> {
    let ns = ue(session);
    session.read_at(ns, level, limit, || {
        let read = session.get(ns, &key(539))?;
        Ok(read.map(|view| u64::from_le_bytes(view.bytes().try_into().unwrap())))
    })
}

#[test]
fn a_copy_is_read_at_a_prefix_at_a_receipt_and_not_as_the_owner() {
    let three = Three::new();
    let [owner, ahead, late] =
        [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    let receipt = owner.receipt_of_all().unwrap();
    let at_least = ReadLevel::AtLeast(receipt);
    // The owner has everything that it has given a receipt for.
    for level in [ReadLevel::Owner, ReadLevel::Prefix, at_least] {
        assert_eq!(last_value(&owner, level, SHORT).unwrap(), Some(39));
    }
    late.set_owner_address(Some("b.example:6379")).unwrap();
    assert_eq!(last_value(&late, ReadLevel::Prefix, SHORT).unwrap(), None);
    let refused = last_value(&late, ReadLevel::Owner, SHORT).unwrap_err();
    let Error::NotOwner { address, .. } = &refused else { panic!("{refused}") };
    assert_eq!(address.as_deref(), Some("b.example:6379"));
    let behind = last_value(&late, at_least, SHORT).unwrap_err();
    assert!(matches!(behind, Error::Behind { .. }), "{behind}");
    let text = behind.to_string();
    let has = applied(&late).position;
    assert!(text.contains(&format!("position {has} of")) && text.contains("b.example"), "{text}");
    // What it has applied it answers at once.
    let applied_here = owner.receipt_at(has).unwrap();
    assert_eq!(last_value(&late, ReadLevel::AtLeast(applied_here), SHORT).unwrap(), None);
    // It waits until the follower has applied the position.
    let reader = three.behind.region.session().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || last_value(&reader, at_least, LONG).unwrap());
        let mut follower = late.follow().unwrap();
        let mut feed = start(&owner, &mut follower, &late);
        run(&owner, &mut feed, &mut follower);
        late.wake_readers().unwrap();
        assert_eq!(waiting.join().unwrap(), Some(39));
    });
    // What a fail-over has discarded, and what is of another log, is not waited for.
    let seal = applied(&ahead).position;
    ahead.promote_logged(5, WhenFull::Refuse, false).unwrap();
    assert!(seal < receipt.position());
    let lost = last_value(&ahead, at_least, LONG).unwrap_err();
    assert_eq!(lost, Error::Lost { position: receipt.position() });
    let kept = ReadLevel::AtLeast(owner.receipt_at(seal).unwrap());
    assert_eq!(last_value(&ahead, kept, SHORT).unwrap(), None);
    let unrelated = Host::new();
    let other = unrelated.region.session().unwrap();
    let unknown = last_value(&other, at_least, LONG).unwrap_err();
    assert_eq!(unknown, Error::OutcomeUnknown { position: receipt.position() });
    assert_eq!(last_value(&other, ReadLevel::AtLeast(Receipt::NONE), SHORT).unwrap(), None);
    // An owner that becomes a copy has its own commits again when the copy is whole.
    owner.demote(Some(seal)).unwrap();
    let behind = last_value(&owner, kept, SHORT).unwrap_err();
    assert!(matches!(behind, Error::Behind { .. }), "{behind}");
    follow(&ahead, &owner);
    owner.settle_receipts().unwrap();
    assert_eq!(last_value(&owner, kept, SHORT).unwrap(), None);
    drop((owner, ahead, late, other));
    unrelated.check();
    three.check();
}

#[test]
fn a_read_as_the_owner_needs_the_lease_after_it() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    let ns = ue(&session);
    session.begin_partition(1).unwrap();
    session.stream(ns, WhenFull::Refuse).unwrap();
    session.put(ns, b"k", b"v").unwrap();
    let local = session.namespace("local", &Schema::default()).unwrap();
    let read = |ns, during: &dyn Fn()| {
        session.read_at(ns, ReadLevel::Owner, SHORT, || {
            during();
            Ok(session.get(ns, b"k")?.is_some())
        })
    };
    assert!(read(ns, &|| ()).unwrap());
    session.set_owner_lease(lease_clock() + LONG).unwrap();
    assert!(read(ns, &|| ()).unwrap());
    let end = || session.set_owner_lease(Duration::from_micros(1)).unwrap();
    let fenced = read(ns, &end).unwrap_err();
    assert!(matches!(fenced, Error::Fenced { .. }), "{fenced}");
    assert!(session.read_at(ns, ReadLevel::Prefix, SHORT, || session.get(ns, b"k")).is_ok());
    assert!(!read(local, &|| ()).unwrap());
    drop(session);
    host.check();
}

#[test]
fn a_region_of_a_cluster_is_read_as_the_owners_only_with_a_lease() {
    const CLUSTER: [u8; 16] = *b"0123456789abcdef";
    let host = Host::new();
    let session = host.region.session().unwrap();
    let ns = ue(&session);
    session.begin_partition(1).unwrap();
    session.stream(ns, WhenFull::Refuse).unwrap();
    session.put(ns, b"k", b"v").unwrap();
    let read =
        || session.read_at(ns, ReadLevel::Owner, SHORT, || Ok(session.get(ns, b"k")?.is_some()));
    session.bind(CLUSTER).unwrap();
    for _ in 0..2 {
        assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired);
        let fenced = read().unwrap_err();
        assert!(matches!(fenced, Error::Fenced { .. }), "{fenced}");
        // The region counts as lost. Its host does not own it because of that.
        session.unbind().unwrap();
    }
    session.bind(CLUSTER).unwrap();
    session.set_owner_lease(lease_clock() + LONG).unwrap();
    session.bind(CLUSTER).unwrap();
    assert!(read().unwrap(), "a lease that is held stays so");
    // An earlier version has bound it, and stored no lease.
    let file = File::options().write(true).open(&host.folder.path).unwrap();
    file.write_all_at(&[0; 16], LEASE).unwrap();
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired);
    session.end_leases().unwrap();
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Unclustered);
    drop(session);
    host.check();
}
