//! The decided level: it only rises, commands that need a higher one have no effect, and a state
//! above the first level is not read by programs that do not know levels.

use crate::fixture::{PARTITION, held, report, whole};
use nearstate_cluster::{
    Applied, ClusterLevel, ClusterState, Command, CommandRefusal, HostId, Monotonic, SnapshotError,
    ViewNumber,
};

fn finalize(state: &mut ClusterState, level: u16) -> Applied {
    state.apply(&Command::Finalize { level: ClusterLevel(level) })
}

#[test]
fn a_level_rises_and_never_falls() {
    let mut state = whole(3, 2);
    assert_eq!(state.level(), ClusterLevel::FIRST);
    assert_eq!(finalize(&mut state, 1), Applied::Refused(CommandRefusal::LevelReached));
    assert_eq!(finalize(&mut state, 2), Applied::Finalized(ClusterLevel(2)));
    for late in [0, 1, 2] {
        let refused = Applied::Refused(CommandRefusal::LevelReached);
        assert_eq!(finalize(&mut state, late), refused, "{late}");
    }
    // Whichever program applies it: hosts of all versions have the same state.
    assert_eq!(finalize(&mut state, 900), Applied::Finalized(ClusterLevel(900)));
    assert_eq!(state.level(), ClusterLevel(900));
}

#[test]
fn a_command_has_no_effect_below_its_level() {
    let mut state = whole(3, 2);
    let revision = state.group(PARTITION).unwrap().revision();
    let view = state.group(PARTITION).unwrap().view();
    let add = Command::AddMember { partition: PARTITION, revision, host: HostId(4) };
    let raise = Command::RaiseView { partition: PARTITION, view, revision };
    let later = ViewNumber(view.0 + 1);
    let hand_over = Command::HandOver { partition: PARTITION, view, host: HostId(2) };
    let (mut handed, excluded) = (whole(3, 2), Applied::Excluded(HostId(1)));
    finalize(&mut handed, 3);
    assert_eq!(handed.apply(&hand_over), Applied::Refused(CommandRefusal::LevelTooLow));
    assert_eq!(handed.group(PARTITION).unwrap().view(), view);
    finalize(&mut handed, 4);
    assert_eq!((hand_over.level(), handed.apply(&hand_over)), (ClusterLevel(4), excluded));
    assert_eq!(handed.group(PARTITION).unwrap().view(), later);
    for (command, level, applied) in
        [(add, 2, Applied::MemberAdded(HostId(4))), (raise, 3, Applied::ViewRaised(view))]
    {
        let before = state.clone();
        assert_eq!(command.level(), ClusterLevel(level));
        assert_eq!(state.apply(&command), Applied::Refused(CommandRefusal::LevelTooLow));
        assert_eq!(state, before);
        finalize(&mut state, level);
        assert_eq!(state.apply(&command), applied);
    }
}

/// The operator's task looks first. A report may be ordered between its look and its command.
#[test]
fn from_level_5_on_a_partition_does_not_begin_anew_behind_a_report() {
    let forced = |level| {
        let mut state = whole(3, 2);
        finalize(&mut state, level);
        let view = state.group(PARTITION).unwrap().view();
        state.apply(&Command::Exclude { partition: PARTITION, view });
        let view = state.group(PARTITION).unwrap().view();
        let reported = state.apply(&report(view.0, 2, held(1, 90)));
        assert_eq!(reported, Applied::Reported(HostId(2)));
        let host = HostId(3);
        state.apply(&Command::ForceNew { partition: PARTITION, view, host })
    };
    assert_eq!(forced(5), Applied::Refused(CommandRefusal::HasReport));
    // Programs of earlier levels decide so, and all hosts decide the same.
    assert_eq!(forced(4), Applied::ForcedNew(HostId(3)));
}

#[test]
fn a_snapshot_has_the_format_that_its_level_needs() {
    let mut state = whole(2, 2);
    let host = HostId(1);
    assert_eq!(state.encode().first(), Some(&1));
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Degrade { partition: PARTITION, revision, host });
    let second = state.encode();
    assert_eq!(second.first(), Some(&2), "a program that knows no levels reads it");
    assert_eq!(ClusterState::decode(&second).unwrap().level(), ClusterLevel::FIRST);
    let mut fourth = state.clone();
    finalize(&mut fourth, 4);
    assert_eq!(fourth.encode().first(), Some(&4));
    assert_eq!(ClusterState::decode(&fourth.encode()), Ok(fourth));
    finalize(&mut state, 2);
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Renew { partition: PARTITION, revision, host, stamp: Monotonic(7) });
    let mut bytes = state.encode();
    assert_eq!(bytes.first(), Some(&3));
    assert_eq!(ClusterState::decode(&bytes), Ok(state));
    // The first level has no format 3: a state has one encoding.
    let [_, _, _, _, _, low, ..] = bytes.as_mut_slice() else { panic!("it is longer") };
    *low = 1;
    assert!(matches!(ClusterState::decode(&bytes), Err(SnapshotError::Damaged { .. })));
    let [format, ..] = bytes.as_mut_slice() else { panic!("it is longer") };
    *format = 5;
    let error = ClusterState::decode(&bytes).unwrap_err();
    assert_eq!(error, SnapshotError::Format(5));
    assert!(error.to_string().contains("start a later version"), "{error}");
}
