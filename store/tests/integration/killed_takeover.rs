//! A kill at each step of a freeze, a promotion with the log, a switch and a demotion: what was
//! begun is completed by the same call, and every copy has the same records afterwards.

use std::path::{Path, PathBuf};

use nearstate_store::{
    FollowPosition, FollowState, ReceiptState, Region, Session, Takeover, WhenFull,
};

use crate::fixture::{child, clean, output, region_path};
use crate::follow::{change, contents};
use crate::takeover::{Three, applied, assert_equal, follow, switch, ue};

/// What a child does, and the points that it passes.
pub(crate) const STEPS: [(&str, &[&str]); 4] = [
    ("freeze", &["cluster.frozen"]),
    (
        "promote",
        &[
            "cluster.fenced",
            "promote.cleared",
            "follow.state",
            "promote.chosen",
            "follow.raised",
            "flags.drained",
            "declare.counted",
            "declare.ended",
            "takeover.stored",
        ],
    ),
    (
        "switch",
        &[
            "switch.named",
            "switch.begun",
            "switch.numbered",
            "follow.unnamed",
            "follow.placed",
            "switch.placed",
            "switch.ended",
        ],
    ),
    (
        "demote",
        &[
            "demote.sealed",
            "demote.begun",
            "flags.drained",
            "log.gap_stored",
            "log.gap_counted",
            "demote.forgotten",
            "follow.cleared",
            "follow.unnamed",
            "follow.named",
            "cluster.fenced",
        ],
    ),
];

/// Which occurrences of a point: of those in loops also a later one.
const OCCURRENCES: [u32; 2] = [1, 2];

const VIEW: u64 = 5;

fn session_of(path: &Path) -> (Region, Session) {
    let region = Region::attach(path).unwrap();
    let session = region.session().unwrap();
    (region, session)
}

fn promote(heir: &Session) -> Takeover {
    heir.set_fenced(true).unwrap();
    heir.promote_logged(VIEW, WhenFull::Refuse, false).unwrap()
}

/// The paths of the regions of the old owner, the heir and the other member.
fn paths() -> [PathBuf; 3] {
    let text = region_path().into_os_string().into_string().unwrap();
    let mut paths = text.split(',').map(PathBuf::from);
    [0; 3].map(|_| paths.next().unwrap())
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn a_step_in_another_process() {
    let [old, heir, late] = paths();
    match std::env::var("NEARSTATE_TEST_STEP").unwrap().as_str() {
        "freeze" => assert_eq!(session_of(&late).1.see_view(VIEW).unwrap(), VIEW),
        "promote" => drop(promote(&session_of(&heir).1)),
        "switch" => {
            let ((_region, heir), (_other, late)) = (session_of(&heir), session_of(&late));
            switch(&heir, &heir.takeover().unwrap().unwrap(), &late);
        }
        "demote" => {
            let ((_region, old), (_other, heir)) = (session_of(&old), session_of(&heir));
            old.demote(Some(applied(&heir).position)).unwrap();
        }
        "return" => {
            let (_region, old) = session_of(&old);
            let (log, last) = (old.log_identity().unwrap(), old.last_entry().unwrap());
            let seal = FollowPosition { position: old.log_tail_position().unwrap(), ..last };
            assert!(old.demote_to_copy(log, seal).unwrap());
        }
        other => panic!("no step {other}"),
    }
}

/// Runs a step that is killed. False if it ended before.
pub(crate) fn is_killed(three: &Three, step: &str, plan: &str) -> bool {
    let hosts = [&three.owner, &three.ahead, &three.behind];
    let paths = hosts.map(|host| host.folder.path.to_str().unwrap()).join(",");
    let mut command = child("killed_takeover::a_step_in_another_process", Path::new(&paths));
    command.env("NEARSTATE_TEST_STEP", step).env("NEARSTATE_CRASH_AT", plan);
    let ended = output(&mut command).unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code().is_none() || ended.status.success(), "{step} at {plan}: {text}");
    !ended.status.success()
}

/// Brings the others to the heir, whatever was killed, and compares them.
fn complete(three: Three, takeover: &Takeover, plan: &str) {
    let [old, heir, late] =
        [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    heir.set_fenced(false).unwrap();
    (0..20).for_each(|number| change(&heir, ue(&heir), number));
    let following = late.following().unwrap().unwrap();
    if following.source == takeover.old {
        assert_eq!(following.applied, takeover.seal, "{plan}");
        switch(&heir, takeover, &late);
    } else {
        assert_eq!(following.source, takeover.own, "{plan}");
        assert_eq!(following.state, FollowState::Full, "{plan}");
        follow(&heir, &late);
    }
    if old.following().unwrap().is_none_or(|known| known.state == FollowState::Demoting) {
        old.demote(Some(takeover.seal.position)).unwrap();
    }
    assert!(!old.is_fenced().unwrap());
    follow(&heir, &old);
    assert_equal(&heir, &late);
    assert_equal(&heir, &old);
    drop((old, heir, late));
    let folders = [&three.owner, &three.ahead, &three.behind].map(|host| host.folder.path.clone());
    let Three { owner, ahead, behind } = three;
    let kept = [owner, ahead, behind].map(|host| {
        drop(host.region);
        host.folder
    });
    for path in &folders {
        clean(path);
    }
    drop(kept);
}

#[test]
fn a_kill_at_any_step_of_a_takeover_is_completed_and_loses_nothing() {
    let mut kills = 0;
    for (step, points) in STEPS {
        for point in points {
            for occurrence in OCCURRENCES {
                let plan = format!("{point}:{occurrence}");
                let three = Three::new();
                let [old, heir, late] = [&three.owner, &three.ahead, &three.behind]
                    .map(|host| host.region.session().unwrap());
                // Both members have the same.
                follow(&old, &heir);
                follow(&old, &late);
                let (seal, sealed) = (applied(&heir), contents(&heir, ue(&heir)));
                let expected = (step == "switch").then(|| promote(&heir));
                if step == "demote" {
                    // It has commits that no member has.
                    (0..9).for_each(|number| change(&old, ue(&old), number));
                }
                let is_first = is_killed(&three, step, &plan);
                if step == "freeze" {
                    assert_eq!(late.view_seen().unwrap(), VIEW);
                }
                let takeover = match expected {
                    Some(takeover) => takeover,
                    None if heir.following().unwrap().is_some() => promote(&heir),
                    None => heir.takeover().unwrap().unwrap(),
                };
                assert_eq!(takeover.seal, seal, "{plan}");
                assert_eq!(contents(&heir, ue(&heir)), sealed, "{step} at {plan}");
                drop((old, heir, late));
                complete(three, &takeover, &plan);
                if !is_first {
                    assert_ne!(occurrence, 1, "{step} does not pass {point}");
                    break;
                }
                kills += 1;
            }
        }
    }
    assert!(kills >= 26, "{kills} kills");
}

/// The log has another incarnation behind a part of the steps, so the node does not find the seal
/// when it repeats them.
#[test]
fn a_demotion_that_was_killed_is_completed_with_its_seal() {
    for point in ["demote.begun", "flags.drained", "log.gap_counted", "demote.forgotten"] {
        let three = Three::new();
        let (counted, seal) = {
            let [old, heir] = [&three.owner, &three.ahead].map(|host| host.region.session());
            (old.unwrap().replicated_position().unwrap(), applied(&heir.unwrap()).position)
        };
        assert!(counted < seal, "the group has more than what counted");
        assert!(is_killed(&three, "demote", &format!("{point}:1")), "{point}");
        let old = three.owner.region.session().unwrap();
        old.demote(None).unwrap();
        let state = |position| old.receipt_state(old.receipt_at(position).unwrap()).unwrap();
        assert_eq!(state(seal), ReceiptState::Pending, "{point}");
        assert_eq!(state(seal + 1), ReceiptState::Lost, "{point}");
        old.settle_receipts().unwrap();
        assert_eq!(state(seal), ReceiptState::Replicated, "{point}");
        assert_eq!(state(seal + 1), ReceiptState::Lost, "{point}");
        drop(old);
        three.check();
    }
}

/// The generation of the version that the next change of a record gets.
fn generation_of_next(session: &Session) -> u64 {
    session.put(ue(session), b"generation", b"of the last promotion").unwrap();
    session.get(ue(session), b"generation").unwrap().unwrap().version() >> 23
}

#[test]
fn a_promotion_takes_one_generation_however_often_it_is_killed() {
    let three = Three::new();
    let [old, heir, late] =
        [&three.owner, &three.ahead, &three.behind].map(|host| host.region.session().unwrap());
    follow(&old, &heir);
    follow(&old, &late);
    let [_, (step, points), ..] = STEPS;
    for point in points {
        assert!(is_killed(&three, step, &format!("{point}:1")) || heir.takeover().is_ok());
    }
    let takeover = promote(&heir);
    heir.set_fenced(false).unwrap();
    assert_eq!([generation_of_next(&old), generation_of_next(&heir)], [0, 1]);
    // A later promotion takes another one, also on a copy that was being promoted before.
    switch(&heir, &takeover, &late);
    heir.demote(None).unwrap();
    promote(&late);
    late.set_fenced(false).unwrap();
    assert_eq!(generation_of_next(&late), 2);
    follow(&late, &heir);
    late.demote(None).unwrap();
    promote(&heir);
    heir.set_fenced(false).unwrap();
    assert_eq!(generation_of_next(&heir), 3);
    drop((old, heir, late));
    three.check();
}
