//! A region that has everything of a log up to a position becomes a copy of it with its records:
//! an owner's whose log ends at the seal, and a copy whose promotion was killed.

use nearstate_store::{FollowPosition, FollowState, ReceiptState, Session, WhenFull};

use crate::follow::{change, contents};
use crate::killed_takeover::{STEPS, is_killed};
use crate::takeover::{Three, applied, assert_equal, follow, switch, ue};

/// The points that an owner's region passes that becomes a copy.
const RETURN: [&str; 9] = [
    "return.named",
    "return.begun",
    "flags.drained",
    "demote.forgotten",
    "log.origin",
    "switch.numbered",
    "follow.unnamed",
    "switch.placed",
    "switch.ended",
];

/// The end of the own log, as a report has it.
fn end(session: &Session) -> FollowPosition {
    let check = session.last_entry().unwrap().check;
    FollowPosition { position: session.log_tail_position().unwrap(), check }
}

fn promote(heir: &Session, view: u64) {
    heir.set_fenced(true).unwrap();
    let takeover = heir.promote_logged(view, WhenFull::Refuse, false).unwrap();
    assert_eq!(takeover.own.origin, view);
    heir.set_fenced(false).unwrap();
}

#[test]
fn an_owner_whose_log_ends_at_the_seal_keeps_its_records() {
    let three = Three::new();
    let [old, heir] = [&three.owner, &three.ahead].map(|host| host.region.session().unwrap());
    follow(&old, &heir);
    let log = old.log_identity().unwrap();
    old.set_fenced(true).unwrap();
    let (seal, receipt) = (end(&old), old.receipt());
    let before = contents(&old, ue(&old));
    // A log that goes on behind the seal, or has another entry there, is longer than the partition.
    let earlier = FollowPosition { position: seal.position - 1, ..seal };
    let other = FollowPosition { check: seal.check ^ 1, ..seal };
    for wrong in [earlier, other] {
        assert!(!old.demote_to_copy(log, wrong).unwrap(), "{wrong:?}");
        assert_eq!(old.following().unwrap(), None);
    }
    assert!(old.demote_to_copy(log, seal).unwrap());
    let following = old.following().unwrap().unwrap();
    assert_eq!((following.state, following.source), (FollowState::Full, log));
    assert_eq!((following.reached, following.applied), (seal.position, applied(&heir)));
    assert_eq!(contents(&old, ue(&old)), before);
    assert!(!old.is_fenced().unwrap());
    assert_eq!(old.receipt_state(receipt).unwrap(), ReceiptState::Replicated);
    old.put(ue(&old), b"k", b"v").unwrap_err();
    // It goes on with the log of the new owner, and may be the owner again.
    promote(&heir, 5);
    (0..20).for_each(|number| change(&heir, ue(&heir), number));
    switch(&heir, &heir.takeover().unwrap().unwrap(), &old);
    assert_equal(&heir, &old);
    heir.set_fenced(true).unwrap();
    assert!(heir.demote_to_copy(heir.log_identity().unwrap(), end(&heir)).unwrap());
    promote(&old, 6);
    (20..40).for_each(|number| change(&old, ue(&old), number));
    switch(&old, &old.takeover().unwrap().unwrap(), &heir);
    assert_equal(&old, &heir);
    assert_eq!(old.receipt_state(receipt).unwrap(), ReceiptState::Replicated);
    drop((old, heir));
    three.check();
}

#[test]
fn a_return_that_is_killed_at_any_step_keeps_the_records() {
    for point in RETURN {
        let three = Three::new();
        let [old, heir] = [&three.owner, &three.ahead].map(|host| host.region.session().unwrap());
        follow(&old, &heir);
        let (log, before) = (old.log_identity().unwrap(), contents(&old, ue(&old)));
        old.set_fenced(true).unwrap();
        let seal = end(&old);
        assert!(is_killed(&three, "return", &format!("{point}:1")), "it passes no {point}");
        if old.following().unwrap().is_none() {
            assert!(["return.named", "flags.drained"].contains(&point), "{point}");
            assert!(old.demote_to_copy(log, seal).unwrap());
        }
        // From the decision on it is a complete copy.
        let following = old.following().unwrap().unwrap();
        assert_eq!(following.state, FollowState::Full, "{point}");
        assert_eq!((following.source, following.reached), (log, seal.position), "{point}");
        promote(&heir, 5);
        (0..20).for_each(|number| change(&heir, ue(&heir), number));
        drop(old.follow().unwrap());
        assert_eq!(contents(&old, ue(&old)), before, "{point}");
        switch(&heir, &heir.takeover().unwrap().unwrap(), &old);
        assert_equal(&heir, &old);
        drop((old, heir));
        three.check();
    }
}

#[test]
fn a_copy_whose_promotion_was_killed_at_any_step_is_a_copy_again() {
    let [_, (step, points), ..] = STEPS;
    for point in points {
        let three = Three::new();
        let [old, heir, late] =
            [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
        follow(&old, &heir);
        follow(&old, &late);
        let (before, known) = (contents(&heir, ue(&heir)), heir.following().unwrap().unwrap());
        assert!(is_killed(&three, step, &format!("{point}:1")), "it passes no {point}");
        let is_begun = *point != "cluster.fenced" && *point != "promote.cleared";
        let state = heir.following().unwrap().unwrap().state;
        assert_eq!(state == FollowState::Promoting, is_begun, "{point}");
        assert_eq!(heir.abandon_promotion().unwrap(), is_begun, "{point}");
        assert_eq!(heir.following().unwrap(), Some(known), "{point}");
        assert_eq!(contents(&heir, ue(&heir)), before, "{point}");
        // Another host owns the partition, and loses it to this one.
        promote(&late, 6);
        (0..20).for_each(|number| change(&late, ue(&late), number));
        switch(&late, &late.takeover().unwrap().unwrap(), &heir);
        assert_equal(&late, &heir);
        promote(&heir, 7);
        (20..40).for_each(|number| change(&heir, ue(&heir), number));
        assert!(heir.is_logged(ue(&heir)).unwrap());
        late.set_fenced(true).unwrap();
        assert!(late.demote_to_copy(late.log_identity().unwrap(), end(&late)).unwrap());
        switch(&heir, &heir.takeover().unwrap().unwrap(), &late);
        assert_equal(&heir, &late);
        drop((old, heir, late));
        three.check();
    }
}
