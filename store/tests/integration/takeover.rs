//! The region of a member of a cluster: fenced, promoted with its log, switched and demoted.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use nearstate_store::{
    Demotion, Error, FeedItem, FeedStart, FollowPosition, FollowState, Follower, LogFeed, Metadata,
    Namespace, OwnerLease, ReceiptState, Schema, Session, TagSchema, TagState, Takeover, Txn,
    WhenFull, lease_clock, now_ms, now_ms_coarse,
};

use crate::follow::{Host, change, contents, deliver, key, mixed, run, start};

/// Where the boot of the lease is in the file (`spec/region.md`, section 11).
const LEASE_BOOT: u64 = 0x1000 + 0x148;

pub(crate) fn ue(session: &Session) -> Namespace {
    session.namespace("ue", &mixed()).unwrap()
}

/// An owner with two members that have everything, and then have got different parts of more.
pub(crate) struct Three {
    pub(crate) owner: Host,
    pub(crate) ahead: Host,
    pub(crate) behind: Host,
}

/// Sends some entries.
fn send_some(feed: &mut LogFeed<'_>, follower: &mut Follower<'_>, entries: usize) {
    let mut left = entries;
    let mut applied = 0;
    let ended = feed.step(true, &mut |item: FeedItem<'_>| {
        if left == 0 {
            return Err(Error::Forked); // The connection ends.
        }
        left -= usize::from(matches!(item, FeedItem::Entry { .. }));
        deliver(follower, item, &mut applied)
    });
    assert!(ended.is_err() || left == 0, "{ended:?}");
}

impl Three {
    pub(crate) fn new() -> Self {
        let [owner, ahead, behind] = [0; 3].map(|_| Host::new());
        let source = owner.region.session().unwrap();
        let ns = ue(&source);
        source.begin_partition(1).unwrap();
        source.stream(ns, WhenFull::Refuse).unwrap();
        (0..200).for_each(|number| change(&source, ns, number));
        let copies = [&ahead, &behind].map(|host| host.region.session().unwrap());
        for copy in &copies {
            let mut follower = copy.follow().unwrap();
            let mut feed = start(&source, &mut follower, copy);
            run(&source, &mut feed, &mut follower);
        }
        let counted = source.receipt();
        source.acknowledge_to(counted.position()).unwrap();
        for number in 0..40_u64 {
            source.put(ns, &key(number + 500), &number.to_le_bytes()).unwrap();
        }
        for (copy, entries) in copies.iter().zip([30, 10]) {
            let mut follower = copy.follow().unwrap();
            let mut feed = start(&source, &mut follower, copy);
            assert!(!feed.is_joining());
            send_some(&mut feed, &mut follower, entries);
        }
        Self { owner, ahead, behind }
    }

    pub(crate) fn check(self) {
        let Self { owner, ahead, behind } = self;
        [owner, ahead, behind].into_iter().for_each(Host::check);
    }
}

pub(crate) fn applied(session: &Session) -> FollowPosition {
    session.following().unwrap().unwrap().applied
}

/// The numbers of a switch.
pub(crate) fn numbers(session: &Session) -> BTreeMap<u32, u32> {
    session.taken_over_numbers().unwrap().into_iter().collect()
}

/// Brings a member at the seal to the log of the new owner.
pub(crate) fn switch(heir: &Session, takeover: &Takeover, copy: &Session) {
    let mut follower = copy.follow().unwrap();
    let place = FollowPosition { position: takeover.position, check: 0 };
    follower.switch(takeover.own, place, &numbers(heir)).unwrap();
    let (mut feed, begun) = heir.log_feed(takeover.own, place).unwrap();
    assert_eq!(begun, FeedStart::Continues);
    run(heir, &mut feed, &mut follower);
}

/// Joins or continues.
pub(crate) fn follow(source: &Session, copy: &Session) {
    let mut follower = copy.follow().unwrap();
    let mut feed = start(source, &mut follower, copy);
    run(source, &mut feed, &mut follower);
}

pub(crate) fn assert_equal(one: &Session, other: &Session) {
    assert_eq!(contents(other, ue(other)), contents(one, ue(one)));
}

#[test]
fn members_continue_with_the_log_of_the_new_owner_and_the_old_one_joins() {
    let three = Three::new();
    let [old, heir, late] =
        [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    let seal = applied(&heir);
    assert!(applied(&late).position < seal.position);
    // The members end their connections. The heir's records are those of the seal.
    let sealed = contents(&heir, ue(&heir));
    let takeover = heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
    assert_eq!((takeover.seal, takeover.own.origin), (seal, 5));
    assert_eq!(heir.takeover().unwrap(), Some(takeover));
    assert!(heir.is_logged(ue(&heir)).unwrap());
    assert_eq!(contents(&heir, ue(&heir)), sealed);
    (0..30).for_each(|number| change(&heir, ue(&heir), number));
    // A member at the seal gets nothing of the old log.
    let (mut feed, _) = old.log_feed(takeover.old, applied(&late)).unwrap();
    let mut follower = late.follow().unwrap();
    follower.begin_connection().unwrap();
    let missing = 20;
    send_some(&mut feed, &mut follower, missing);
    drop((feed, follower));
    assert_eq!(applied(&late), seal);
    switch(&heir, &takeover, &late);
    assert_equal(&heir, &late);
    assert_eq!(late.following().unwrap().unwrap().source, takeover.own);
    // The old owner has more than the seal.
    let demoted = old.demote(Some(seal.position)).unwrap();
    assert_eq!((demoted.namespaces, demoted.lost_replicated), (1, 0));
    assert!(demoted.lost >= 10, "{demoted:?}");
    follow(&heir, &old);
    assert_equal(&heir, &old);
    drop((old, heir, late));
    three.check();
}

#[test]
fn a_namespace_of_the_same_name_at_the_new_owner_is_another_one() {
    let three = Three::new();
    let [heir, late] = [&three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    follow(&three.owner.region.session().unwrap(), &heir);
    follow(&three.owner.region.session().unwrap(), &late);
    let takeover = heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
    let keys: Vec<Vec<u8>> = contents(&heir, ue(&heir)).into_keys().collect();
    for key in &keys {
        assert!(heir.delete(ue(&heir), key).unwrap());
    }
    assert!(heir.remove_namespace(ue(&heir)).unwrap());
    let ns = ue(&heir);
    heir.stream(ns, WhenFull::Refuse).unwrap();
    heir.put(ns, b"only", b"v").unwrap();
    switch(&heir, &takeover, &late);
    assert_equal(&heir, &late);
    assert_eq!(contents(&late, ue(&late)).len(), 1);
    drop((heir, late));
    three.check();
}

#[test]
fn a_demotion_loses_what_is_behind_the_seal_and_says_so() {
    let three = Three::new();
    let [old, writer] = [0; 2].map(|_| three.owner.region.session().unwrap());
    let heir = three.ahead.region.session().unwrap();
    let (seal, counted) = (applied(&heir).position, old.replicated_position().unwrap());
    let kept = writer.receipt_of_all().unwrap();
    writer.put(ue(&writer), b"lost", b"v").unwrap();
    let lost = writer.receipt();
    let waiter = three.owner.region.session().unwrap();
    let woken = std::thread::scope(|scope| {
        let waiting = scope.spawn(move || waiter.wait_replicated(lost, Duration::from_secs(60)));
        let demoted = old.demote(Some(seal)).unwrap();
        assert!(demoted.lost >= lost.position() - seal, "{demoted:?}");
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(woken, ReceiptState::Lost);
    let state = |position: u64| old.receipt_state(old.receipt_at(position).unwrap()).unwrap();
    assert_eq!(state(counted), ReceiptState::Replicated);
    // The group has kept it, and has not yet replicated it.
    assert_eq!(state(seal), ReceiptState::Pending);
    assert_eq!(state(seal + 1), ReceiptState::Lost);
    assert_eq!(state(kept.position()), ReceiptState::Lost);
    // Attached writers are refused, and learn the owner.
    old.set_owner_address(Some("b.example:6379")).unwrap();
    let refused = writer.put(ue(&writer), b"k", b"v").unwrap_err();
    assert!(refused.to_string().contains("write at b.example:6379"), "{refused}");
    assert!(old.demote(Some(seal)).is_err(), "it is a copy now");
    let takeover = heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
    follow(&heir, &old);
    assert_eq!(old.log_identity().unwrap().origin, 0);
    old.settle_receipts().unwrap();
    assert_eq!(state(seal), ReceiptState::Replicated);
    assert_eq!(state(seal + 1), ReceiptState::Lost);
    assert_equal(&heir, &old);
    assert!(contents(&old, ue(&old)).keys().all(|key| key != b"lost"));
    // It becomes the owner again, of another log.
    let (source, place) = (old.following().unwrap().unwrap().source, applied(&old));
    assert_eq!(source, takeover.own);
    let again = old.promote_logged(6, WhenFull::Refuse, false).unwrap();
    assert_eq!((again.old, again.seal), (source, place));
    writer.put(ue(&writer), b"k", b"v").unwrap();
    assert_eq!(writer.receipt_state(writer.receipt()).unwrap(), ReceiptState::Pending);
    drop((old, writer, heir));
    three.check();
}

#[test]
fn a_demotion_without_a_seal_does_not_know_what_was_not_replicated() {
    let three = Three::new();
    let old = three.owner.region.session().unwrap();
    let heir = three.ahead.region.session().unwrap();
    let (counted, tail) = (old.replicated_position().unwrap(), old.log_tail_position().unwrap());
    let session = three.owner.region.session().unwrap();
    let behind = old.receipt_at(tail).unwrap();
    let demoted = std::thread::scope(|scope| {
        let waiting =
            scope.spawn(move || session.wait_replicated(behind, Duration::from_secs(60)).unwrap());
        let demoted = old.demote(None).unwrap();
        assert_eq!(waiting.join().unwrap(), ReceiptState::Unknown);
        demoted
    });
    let unknown = tail - counted;
    assert_eq!(demoted, Demotion { namespaces: 1, unknown, ..Demotion::default() });
    let state = |position: u64| old.receipt_state(old.receipt_at(position).unwrap()).unwrap();
    let open = [counted + 1, applied(&heir).position, tail];
    assert_eq!(open.map(state), [ReceiptState::Unknown; 3]);
    // The group has some of it, and the copy is full: that says nothing about the rest.
    heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
    follow(&heir, &old);
    old.settle_receipts().unwrap();
    assert_eq!(open.map(state), [ReceiptState::Unknown; 3]);
    assert_eq!(state(counted), ReceiptState::Replicated);
    // The next log of the region is another one.
    old.promote_logged(6, WhenFull::Refuse, false).unwrap();
    old.put(ue(&old), b"k", b"v").unwrap();
    old.acknowledge_to(old.log_tail_position().unwrap()).unwrap();
    assert_eq!(state(old.log_tail_position().unwrap()), ReceiptState::Replicated);
    assert_eq!(open.map(state), [ReceiptState::Unknown; 3]);
    drop((old, heir));
    three.check();
}

#[test]
fn an_accepted_loss_takes_receipts_back() {
    let three = Three::new();
    let old = three.owner.region.session().unwrap();
    let counted = old.replicated_position().unwrap();
    let demoted = old.demote(Some(counted - 7)).unwrap();
    assert_eq!(demoted.lost_replicated, 7);
    let receipt = old.receipt_at(counted).unwrap();
    assert_eq!(old.receipt_state(receipt).unwrap(), ReceiptState::Lost);
    drop(old);
    three.check();
}

#[test]
fn a_fenced_region_refuses_writers_of_logged_namespaces_only() {
    let host = Host::new();
    let [session, node] = [0; 2].map(|_| host.region.session().unwrap());
    let ns = ue(&session);
    let local = session.namespace("local", &Schema::default()).unwrap();
    session.stream(ns, WhenFull::LoseOldest).unwrap();
    session.put(ns, b"k", b"v").unwrap();
    // Its writes need no transaction.
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    session.stream(plain, WhenFull::LoseOldest).unwrap();
    session.put(plain, b"k", b"v").unwrap();
    node.set_fenced(true).unwrap();
    let refused = [
        session.put(ns, b"k", b"w").unwrap_err(),
        session.delete(ns, b"k").unwrap_err(),
        session.transact(|txn| txn.put(ns, b"new", b"v")).unwrap_err(),
        session.transact(|txn| txn.set_fields(ns, b"h", &[(b"f", b"v")])).unwrap_err(),
        session.remove_namespace(ns).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(&error, Error::Fenced { namespace } if namespace == "ue"), "{error}");
    }
    let refused = [
        session.put(plain, b"k", b"w").unwrap_err(),
        session.delete(plain, b"k").unwrap_err(),
        session.transact(|txn| txn.put(plain, b"new", b"v")).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(&error, Error::Fenced { namespace } if namespace == "plain"), "{error}");
    }
    session.put(local, b"k", b"v").unwrap();
    assert_eq!(session.get(ns, b"k").unwrap().unwrap().bytes(), b"v");
    node.set_fenced(false).unwrap();
    session.put(ns, b"k", b"w").unwrap();
    drop((session, node));
    host.check();
}

#[test]
fn a_lease_is_held_until_it_ends() {
    let host = Host::new();
    let [session, node] = [0; 2].map(|_| host.region.session().unwrap());
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Unclustered);
    let until = lease_clock() + Duration::from_secs(3600);
    node.set_owner_lease(until).unwrap();
    let OwnerLease::Held { until: end } = session.owner_lease().unwrap() else { panic!("held") };
    assert!(end <= until && end + Duration::from_millis(1) > until, "{end:?} {until:?}");
    node.set_owner_lease(lease_clock()).unwrap();
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired);
    node.end_leases().unwrap();
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Unclustered);
    drop((session, node));
    host.check();
}

/// Nothing stores the fence of a node that was killed.
#[test]
fn a_writer_is_refused_when_the_lease_of_a_killed_node_has_ended() {
    let host = Host::new();
    let [session, node] = [0; 2].map(|_| host.region.session().unwrap());
    node.begin_partition(1).unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    session.stream(ns, WhenFull::LoseOldest).unwrap();
    let put = || session.put(ns, b"k", b"v").map(drop);
    let transact = || session.transact(|txn| txn.put(ns, b"k", b"w")).map(drop);
    let hold = || node.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    hold();
    for write in [&put as &dyn Fn() -> Result<(), Error>, &transact] {
        write().unwrap();
        node.set_owner_lease(Duration::from_micros(1)).unwrap();
        let late = lease_clock() + Duration::from_secs(60);
        while write().is_ok() {
            assert!(lease_clock() < late, "the writer goes on");
        }
        for refused in [put(), transact(), put()] {
            assert!(matches!(&refused, Err(Error::Fenced { .. })), "{refused:?}");
        }
        hold();
    }
    // What is rare looks at the lease each time.
    put().unwrap();
    node.set_owner_lease(Duration::from_micros(1)).unwrap();
    let removed = session.remove_namespace(ns).map(drop);
    assert!(matches!(removed, Err(Error::Fenced { .. })), "{removed:?}");
    // In a container with another boot id.
    hold();
    let file = std::fs::OpenOptions::new().write(true).open(host.region.path()).unwrap();
    file.write_all_at(&[0; 8], LEASE_BOOT).unwrap();
    let other = host.region.session().unwrap();
    other.put(ns, b"k", b"x").unwrap();
    hold();
    drop((session, other, node));
    host.check();
}

#[test]
fn views_and_evictions_survive_and_never_fall() {
    let host = Host::new();
    let session = host.region.session().unwrap();
    assert_eq!((session.view_seen().unwrap(), session.evicting().unwrap()), (0, None));
    assert_eq!(session.see_view(7).unwrap(), 7);
    assert_eq!(session.see_view(5).unwrap(), 7);
    assert!(session.see_view(1 << 48).is_err());
    session.set_evicting(Some((9, 0))).unwrap();
    assert_eq!(session.evicting().unwrap(), Some((9, 0)), "no member, but the revision counts");
    session.set_evicting(Some((9, 3))).unwrap();
    assert!(session.set_evicting(Some((1 << 32, 3))).is_err());
    assert!(!session.is_bound(*b"0123456789abcdef").unwrap());
    session.bind(*b"0123456789abcdef").unwrap();
    assert!(!session.is_bound(*b"0123456789abcdeg").unwrap());
    drop(session);
    let session = host.region.session().unwrap();
    assert_eq!((session.view_seen().unwrap(), session.evicting().unwrap()), (7, Some((9, 3))));
    assert!(session.is_bound(*b"0123456789abcdef").unwrap());
    session.set_evicting(None).unwrap();
    assert_eq!(session.evicting().unwrap(), None);
    drop(session);
    host.check();
}

#[test]
fn a_copy_without_all_records_is_not_promoted_and_not_switched() {
    let (host, backup) = (Host::new(), Host::new());
    let copy = backup.region.session().unwrap();
    let mut follower = copy.follow().unwrap();
    follower.begin(host.region.session().unwrap().log_identity().unwrap()).unwrap();
    let own = copy.log_identity().unwrap();
    let switched = follower.switch(own, FollowPosition::default(), &BTreeMap::new());
    assert!(matches!(switched, Err(Error::Damaged { .. })));
    drop(follower);
    assert!(copy.promote_logged(1, WhenFull::Refuse, false).is_err());
    assert_eq!(copy.following().unwrap().unwrap().state, FollowState::Joining);
    drop(copy);
    host.check();
    backup.check();
}

/// A tag on records that exist, which the follower has begun to index.
fn late_tag(three: &Three) -> (Session, Session) {
    let [source, copy] = [&three.owner, &three.ahead].map(|host| host.region.session().unwrap());
    let cell = TagSchema { name: "cell".to_owned(), is_counted: true, ..TagSchema::default() };
    for number in 0..5_000_u64 {
        let metadata = Metadata { tags: &[("cell", b"5")], expires_ms: 0 };
        source
            .transact(|txn| {
                txn.put_with_metadata(ue(&source), &number.to_le_bytes(), b"", metadata)
            })
            .unwrap();
    }
    follow(&source, &copy);
    source.add_tags(ue(&source), &[cell]).unwrap();
    (source, copy)
}

fn cell_state(session: &Session) -> Option<TagState> {
    let tags = session.tags(ue(session)).unwrap();
    tags.iter().find(|tag| tag.name == "cell").map(|tag| tag.state)
}

#[test]
fn a_follower_applies_and_acknowledges_while_it_indexes_a_late_tag() {
    let three = Three::new();
    let (source, copy) = late_tag(&three);
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    assert_eq!(cell_state(&copy), Some(TagState::Building), "it has indexed before it answered");
    // Records that are indexed already, or not yet, lose the tag.
    for number in 0..200_u64 {
        source.delete(ue(&source), &(number * 25).to_le_bytes()).unwrap();
        run(&source, &mut feed, &mut follower);
        follower.index_some().unwrap();
    }
    while follower.index_some().unwrap() {}
    assert_eq!(cell_state(&copy), Some(TagState::Ready));
    assert_eq!(copy.count_tagged(ue(&copy), "cell", b"5").unwrap(), 4_800);
    drop((feed, follower));
    assert_equal(&source, &copy);
    drop((source, copy));
    three.check();
}

#[test]
fn a_promotion_completes_what_the_follower_has_not_indexed() {
    let three = Three::new();
    let (source, copy) = late_tag(&three);
    follow(&source, &copy);
    assert_eq!(cell_state(&copy), Some(TagState::Building));
    copy.set_fenced(true).unwrap();
    copy.promote_logged(5, WhenFull::Refuse, false).unwrap();
    assert_eq!(cell_state(&copy), Some(TagState::Ready));
    assert_eq!(copy.count_tagged(ue(&copy), "cell", b"5").unwrap(), 5_000);
    drop((source, copy));
    three.check();
}

/// A namespace with records is logged while the follower indexes a tag of another one.
#[test]
fn a_copy_that_is_extended_still_answers_while_it_indexes() {
    let three = Three::new();
    let (source, copy) = late_tag(&three);
    let other = source.namespace("other", &Schema::default()).unwrap();
    source.put(other, b"k", b"v").unwrap();
    source.stream(other, WhenFull::Refuse).unwrap();
    follow(&source, &copy);
    assert_eq!(copy.following().unwrap().unwrap().state, FollowState::Full);
    assert_eq!(cell_state(&copy), Some(TagState::Building), "it has indexed before it answered");
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    while follower.index_some().unwrap() {}
    drop((feed, follower));
    assert_eq!(copy.count_tagged(ue(&copy), "cell", b"5").unwrap(), 5_000);
    assert_equal(&source, &copy);
    drop((source, copy));
    three.check();
}

#[test]
fn a_follower_that_indexes_keeps_what_expires_meanwhile() {
    let three = Three::new();
    let (source, copy) = late_tag(&three);
    let metadata = Metadata { tags: &[("cell", b"5")], expires_ms: now_ms() + 300 };
    let set = |name: &[u8]| {
        let set = |txn: &Txn<'_>| {
            txn.set_fields(ue(&source), b"short", &[(name, b"v")])?;
            txn.set_metadata(ue(&source), b"short", metadata)
        };
        source.transact(set).unwrap();
    };
    set(b"one");
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    // It is still alive, and its change is in flight.
    set(b"other");
    while now_ms_coarse() <= metadata.expires_ms {
        std::thread::yield_now();
    }
    while follower.index_some().unwrap() {}
    while source.collect_expired(100).unwrap().records > 0 {}
    run(&source, &mut feed, &mut follower);
    drop((feed, follower));
    assert_equal(&source, &copy);
    drop((source, copy));
    three.check();
}

#[test]
fn an_incomplete_copy_that_is_promoted_is_logged_before_it_may_be_written() {
    let [owner, copy] = [0; 2].map(|_| Host::new());
    let (source, session) = (owner.region.session().unwrap(), copy.region.session().unwrap());
    let ns = ue(&source);
    source.begin_partition(1).unwrap();
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    for number in 0..5_000 {
        source.put(ns, &key(number), b"1").unwrap();
    }
    {
        let mut follower = session.follow().unwrap();
        let mut feed = start(&source, &mut follower, &session);
        let mut applied = 0;
        let mut sink = |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied);
        feed.step(true, &mut sink).unwrap();
        assert!(feed.is_joining(), "a part of the walk");
    }
    let mirrored = ue(&session);
    assert!(session.is_followed(mirrored).unwrap() && !session.is_logged(mirrored).unwrap());
    session.continue_partition(2).unwrap();
    assert_eq!(session.promote_incomplete(WhenFull::Refuse).unwrap().namespaces, 1);
    assert!(session.is_logged(mirrored).unwrap(), "its log exists when it may be written");
    session.put(mirrored, b"own", b"1").unwrap();
    let receipt = session.receipt();
    assert!(receipt.position() > 0);
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Pending);
    drop((source, session));
    [owner, copy].into_iter().for_each(Host::check);
}

/// A partition goes to another host and back, without a commit. The log of the first one begins
/// anew, so what its earlier log was released up to is no entry of it.
#[test]
fn an_entry_of_an_earlier_log_of_a_host_is_none_of_its_next_one() {
    let three = Three::new();
    let [first, second, third] =
        [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    follow(&first, &second);
    follow(&first, &third);
    let sealed = applied(&second);
    assert_ne!(sealed.check, 0);
    let takeover = second.promote_logged(5, WhenFull::Refuse, false).unwrap();
    switch(&second, &takeover, &third);
    first.demote(Some(sealed.position)).unwrap();
    follow(&second, &first);
    // Back, and no process has written meanwhile.
    let takeover = first.promote_logged(6, WhenFull::Refuse, false).unwrap();
    switch(&first, &takeover, &third);
    second.demote(Some(applied(&third).position)).unwrap();
    follow(&first, &second);
    let [one, other] = [&second, &third].map(|copy| copy.following().unwrap().unwrap());
    assert_eq!(one.source, other.source);
    assert_eq!((one.reached, one.applied.check), (other.reached, other.applied.check));
    assert_eq!((other.reached, other.applied.check), (takeover.position, 0));
    // Both continue, also behind what the log has forgotten.
    for copy in [&second, &third] {
        let known = copy.following().unwrap().unwrap();
        assert_eq!(first.log_feed(known.source, known.applied).unwrap().1, FeedStart::Continues);
    }
    drop((first, second, third));
    three.check();
}
