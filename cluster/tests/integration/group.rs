//! The state machine of a partition, command by command.

use crate::fixture::{PARTITION, evict, held, report, suspect, whole};
use nearstate_cluster::{
    Applied, ClusterState, Command, CommandRefusal, GroupState, HostId, Monotonic, ViewNumber,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;

fn group(state: &ClusterState) -> &GroupState {
    state.group(PARTITION).unwrap()
}

fn full(state: &ClusterState) -> Vec<u16> {
    group(state).full().iter().map(|host| host.0).collect()
}

/// One line for each command: what it did, and the state after it.
fn trace(state: &mut ClusterState, commands: &[Command]) -> String {
    let mut text = String::new();
    for command in commands {
        let applied = state.apply(command);
        let applied = if let Applied::Sealed(host, at) = applied {
            format!("sealed: host {host} at {}", at.position)
        } else {
            format!("{applied:?}")
        };
        let group = group(state);
        let phase = group.owner().map_or("sealing".to_owned(), |host| format!("owner {host}"));
        let full: Vec<u16> = group.full().iter().map(|host| host.0).collect();
        let _ = writeln!(text, "{applied} | view {} {phase} full {full:?}", group.view());
    }
    text
}

#[test]
fn the_table_of_a_fail_over() {
    let mut state = whole(3, 2);
    let text = trace(
        &mut state,
        &[
            suspect(1, 2),
            suspect(1, 1),
            suspect(2, 3),
            suspect(1, 3),
            suspect(1, 3),
            report(2, 3, held(1, 7)),
            report(2, 3, held(1, 9)),
            report(2, 1, held(1, 12)),
            report(2, 2, held(1, 8)),
            report(2, 2, held(1, 8)),
        ],
    );
    assert_eq!(
        text,
        "\
Suspected(HostId(2)) | view 1 owner 1 full [1, 2, 3]
Refused(Owner) | view 1 owner 1 full [1, 2, 3]
Refused(OtherView) | view 1 owner 1 full [1, 2, 3]
Excluded(HostId(1)) | view 2 sealing full [1, 2, 3]
Refused(OtherView) | view 2 sealing full [1, 2, 3]
Reported(HostId(3)) | view 2 sealing full [1, 2, 3]
Refused(AlreadyReported) | view 2 sealing full [1, 2, 3]
Reported(HostId(1)) | view 2 sealing full [1, 2, 3]
sealed: host 2 at 8 | view 2 owner 2 full [2]
Refused(NotSealing) | view 2 owner 2 full [2]
"
    );
    assert_eq!(group(&state).origin(), ViewNumber(2));
}

#[test]
fn a_seal_needs_reports_that_meet_every_acknowledgement_quorum() {
    for copies in 2..=7_u8 {
        for acknowledgements in 2..=copies {
            for members in 1..=usize::from(copies) {
                let mut state = whole(copies, acknowledgements);
                // The state machine evicts down to n members.
                while group(&state).full().len() > members {
                    let host = *full(&state).last().unwrap();
                    if let Applied::Refused(refusal) =
                        state.apply(&evict(group(&state).revision(), host))
                    {
                        assert_eq!(refusal, CommandRefusal::TooFewFull);
                        break;
                    }
                }
                let (f, n) = (group(&state).full().len(), usize::from(acknowledgements));
                let needed = group(&state).reports_needed();
                assert!(f >= n && needed >= 1 && needed < f);
                assert!((n - 1) + needed > f - 1, "F = {f}, n = {n}");
            }
        }
    }
}

#[test]
fn a_late_or_repeated_change_of_members_has_no_effect() {
    let mut state = whole(3, 2);
    let late = evict(group(&state).revision(), 3);
    assert_eq!(state.apply(&late), Applied::Evicted(HostId(3)));
    let revision = group(&state).revision();
    let partition = PARTITION;
    let join = Command::Full { partition, revision, host: HostId(3) };
    assert_eq!(state.apply(&join), Applied::Full(HostId(3)));
    let before = state.clone();
    for command in [late, join] {
        assert_eq!(state.apply(&command), Applied::Refused(CommandRefusal::OtherRevision));
    }
    assert_eq!(state, before);
}

#[test]
fn the_order_of_the_group_decides_between_equal_copies() {
    let mut state = whole(4, 2);
    state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    for host in [4, 3, 2] {
        state.apply(&report(2, host, held(1, 5)));
    }
    assert_eq!(group(&state).owner(), Some(HostId(2)));
    assert_eq!(full(&state), [2, 3, 4]);
}

#[test]
fn a_copy_of_a_later_origin_is_longer() {
    let mut state = whole(3, 2);
    state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    state.apply(&report(2, 2, held(1, 900)));
    state.apply(&report(2, 3, held(2, 0)));
    assert_eq!(group(&state).owner(), Some(HostId(3)));
}

#[test]
fn a_fork_is_not_full() {
    let mut state = whole(3, 2);
    state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    let mut fork = held(1, 5);
    fork.check += 1;
    state.apply(&report(2, 2, held(1, 5)));
    state.apply(&report(2, 3, fork));
    assert_eq!(full(&state), [2]);
}

#[test]
fn a_returned_owner_keeps_its_log_and_its_members() {
    let mut state = whole(3, 2);
    let partition = PARTITION;
    state.apply(&Command::Exclude { partition, view: ViewNumber(1) });
    let view = ViewNumber(2);
    let back = |host| Command::Return { partition, view, host: HostId(host) };
    assert_eq!(state.apply(&back(2)), Applied::Refused(CommandRefusal::NotOwner));
    assert_eq!(state.apply(&back(1)), Applied::Returned(HostId(1)));
    assert_eq!(full(&state), [1, 2, 3]);
    assert_eq!((group(&state).view(), group(&state).origin()), (view, ViewNumber(1)));
    assert_eq!(state.apply(&back(1)), Applied::Refused(CommandRefusal::NotSealing));
}

/// An excluded owner that asks late, when it was excluded again, has had no time to be replaced.
#[test]
fn a_return_of_an_earlier_view_or_phase_has_no_effect() {
    let mut state = whole(3, 2);
    let partition = PARTITION;
    let back = |view| Command::Return { partition, view: ViewNumber(view), host: HostId(1) };
    state.apply(&Command::Exclude { partition, view: ViewNumber(1) });
    let sealing = group(&state).revision();
    assert_eq!(state.apply(&back(2)), Applied::Returned(HostId(1)));
    // What was proposed while there was no owner is void.
    let late = evict(sealing, 3);
    assert_eq!(state.apply(&late), Applied::Refused(CommandRefusal::OtherRevision));
    state.apply(&Command::Exclude { partition, view: ViewNumber(2) });
    assert_eq!(state.apply(&back(2)), Applied::Refused(CommandRefusal::OtherView));
    assert_eq!(group(&state).owner(), None);
}

#[test]
fn a_suspicion_that_is_repeated_after_an_eviction_counts() {
    let mut state = whole(3, 2);
    assert_eq!(state.apply(&suspect(1, 2)), Applied::Suspected(HostId(2)));
    let revision = group(&state).revision();
    assert_eq!(state.apply(&evict(revision, 3)), Applied::Evicted(HostId(3)));
    assert_eq!(state.apply(&suspect(1, 2)), Applied::Excluded(HostId(1)));
}

#[test]
fn an_accepted_loss_is_recorded() {
    let mut state = whole(3, 2);
    let partition = PARTITION;
    state.apply(&Command::Exclude { partition, view: ViewNumber(1) });
    state.apply(&report(2, 3, held(1, 4)));
    state.apply(&report(2, 1, held(1, 9)));
    let view = ViewNumber(2);
    let accept = |host| Command::AcceptLoss { partition, view, host: HostId(host) };
    assert_eq!(state.apply(&accept(2)), Applied::Refused(CommandRefusal::NotReported));
    assert_eq!(state.apply(&accept(3)), Applied::LossAccepted(HostId(3), held(1, 4)));
    let loss = group(&state).loss().unwrap();
    assert_eq!((loss.longest, loss.sealed), (Some(held(1, 9)), Some(held(1, 4))));
    assert_eq!(group(&state).full(), &BTreeSet::from([HostId(3)]));
}

#[test]
fn one_copy_of_two_suffices_until_the_other_one_is_full() {
    let mut state = whole(2, 2);
    let (partition, revision) = (PARTITION, group(&state).revision());
    let degrade = |revision, host| Command::Degrade { partition, revision, host: HostId(host) };
    let renew = |revision, stamp| {
        let (host, stamp) = (HostId(1), Monotonic(stamp));
        Command::Renew { partition, revision, host, stamp }
    };
    let full = |revision| Command::Full { partition, revision, host: HostId(2) };
    let no = Applied::Refused;
    assert_eq!(state.apply(&degrade(revision, 2)), no(CommandRefusal::NotOwner));
    assert_eq!(state.apply(&renew(revision, 5)), no(CommandRefusal::NotDegraded));
    assert_eq!(state.apply(&degrade(revision, 1)), Applied::Degraded(HostId(1)));
    // The other host has nothing to say any more.
    assert_eq!(state.apply(&suspect(1, 2)), no(CommandRefusal::NotFull));
    assert_eq!(state.apply(&degrade(revision, 1)), no(CommandRefusal::OtherRevision));
    let before = group(&state).revision();
    assert_eq!(state.apply(&renew(before, 9)), Applied::Renewed(HostId(1)));
    assert_eq!(state.apply(&renew(before, 5)), Applied::Renewed(HostId(1)));
    assert_eq!(group(&state).degraded().map(|degraded| degraded.renewed), Some(Monotonic(9)));
    // It was to count again, and is lost: a late proposal has no effect.
    assert_eq!(state.apply(&degrade(before, 1)), Applied::Degraded(HostId(1)));
    assert_eq!(state.apply(&full(before)), no(CommandRefusal::OtherRevision));
    let revision = group(&state).revision();
    assert_eq!(state.apply(&full(revision)), Applied::Full(HostId(2)));
    assert_eq!(group(&state).degraded(), None);
    assert_eq!(state.apply(&suspect(1, 2)), Applied::Excluded(HostId(1)));
}

#[test]
fn of_three_copies_one_does_not_suffice() {
    let mut state = whole(3, 2);
    let (partition, revision, host) = (PARTITION, group(&state).revision(), HostId(1));
    let degrade = Command::Degrade { partition, revision, host };
    assert_eq!(state.apply(&degrade), Applied::Refused(CommandRefusal::EnoughCopies));
}
