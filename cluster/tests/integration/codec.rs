//! Commands and snapshots: any bytes give a value or an error, and a value has one encoding.

use crate::fixture::{PARTITION, held, report, suspect, whole};
use nearstate_cluster::limits::RAISED_VIEW_STEP;
use nearstate_cluster::{
    ClusterLevel, ClusterState, Command, CommandError, HostId, MemberRecord, Monotonic, Revision,
    SnapshotError, ViewNumber,
};
use proptest::prelude::*;

/// One command of each kind.
fn commands() -> Vec<Command> {
    let (partition, host) = (PARTITION, HostId(2));
    let (view, revision) = (ViewNumber(5), Revision(9));
    vec![
        suspect(5, 2),
        Command::Trust { partition, view, host },
        Command::Exclude { partition, view },
        report(5, 2, held(3, 8)),
        Command::Return { partition, view, host },
        Command::Full { partition, revision, host },
        Command::Evict { partition, revision, host },
        Command::AcceptLoss { partition, view, host },
        Command::AddMember { partition, revision, host },
        Command::RemoveMember { partition, revision, host },
        Command::Register { partition, host, process: u64::MAX },
        Command::ForceNew { partition, view, host },
        Command::Degrade { partition, revision, host },
        Command::Renew { partition, revision, host, stamp: Monotonic(u64::MAX) },
        Command::Finalize { level: ClusterLevel(u16::MAX) },
        Command::RaiseView { partition, view, revision },
        Command::HandOver { partition, view, host },
    ]
}

#[test]
fn a_command_survives_its_encoding() {
    for (index, command) in commands().into_iter().enumerate() {
        let bytes = command.encode();
        assert!(bytes.len() <= nearstate_cluster::limits::CLUSTER_COMMAND_BYTES_MAX);
        assert_eq!(usize::from(bytes[1]), index + 1, "the kinds are numbered from 1");
        assert_eq!(Command::decode(&bytes), Ok(command));
        assert!(Command::decode(&bytes[..bytes.len() - 1]).is_err());
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(Command::decode(&longer), Err(CommandError::Size(longer.len())));
    }
}

#[test]
fn a_damaged_command_is_refused() {
    let bytes = suspect(1, 2).encode();
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Command::decode(&bytes)
    };
    assert_eq!(with(0, 2), Err(CommandError::Format(2)));
    assert_eq!(with(1, 0), Err(CommandError::Kind(0)));
    assert_eq!(with(1, 18), Err(CommandError::Kind(18)));
    assert_eq!(with(1, 16), Err(CommandError::Size(16)));
    assert_eq!(with(1, 15), Err(CommandError::Partition(1)));
    assert_eq!(with(14, 0), Err(CommandError::Host(0)));
    assert_eq!(with(1, 3), Err(CommandError::Host(2)));
    assert_eq!(with(1, 4), Err(CommandError::Size(16)));
    let finalize = |at: usize, value: u8| {
        let mut bytes = Command::Finalize { level: ClusterLevel(2) }.encode();
        bytes[at] = value;
        Command::decode(&bytes)
    };
    assert_eq!(finalize(8, 1), Err(CommandError::UnknownLevel(2 + (1 << 16))));
    assert_eq!(finalize(14, 3), Err(CommandError::Host(3)));
}

#[test]
fn a_state_survives_its_snapshot_in_every_phase() {
    let mut state = whole(3, 2);
    let script = [
        suspect(1, 2),
        suspect(1, 3),
        report(2, 1, held(1, 9)),
        report(2, 3, held(1, 7)),
        report(2, 2, held(1, 8)),
        Command::Register { partition: PARTITION, host: HostId(1), process: 5 },
        Command::Exclude { partition: PARTITION, view: ViewNumber(2) },
        report(3, 3, held(1, 7)),
        Command::AcceptLoss { partition: PARTITION, view: ViewNumber(3), host: HostId(3) },
        Command::Exclude { partition: PARTITION, view: ViewNumber(3) },
        Command::ForceNew { partition: PARTITION, view: ViewNumber(4), host: HostId(1) },
        Command::Degrade { partition: PARTITION, revision: Revision(9), host: HostId(1) },
        Command::Renew {
            partition: PARTITION,
            revision: Revision(10),
            host: HostId(1),
            stamp: Monotonic(77),
        },
        Command::Finalize { level: ClusterLevel(3) },
        Command::Exclude { partition: PARTITION, view: ViewNumber(4) },
        Command::RaiseView { partition: PARTITION, view: ViewNumber(7), revision: Revision(99) },
        report(7 + RAISED_VIEW_STEP, 3, held(3, 8)),
        Command::Finalize { level: ClusterLevel(4) },
        Command::AcceptLoss {
            partition: PARTITION,
            view: ViewNumber(7 + RAISED_VIEW_STEP),
            host: HostId(3),
        },
        Command::Full { partition: PARTITION, revision: Revision(101), host: HostId(2) },
        Command::HandOver {
            partition: PARTITION,
            view: ViewNumber(7 + RAISED_VIEW_STEP),
            host: HostId(2),
        },
    ];
    for command in script {
        let before = state.clone();
        state.apply(&command);
        assert_ne!(state, before, "{command:?} has an effect");
        let bytes = state.encode();
        assert_eq!(ClusterState::decode(&bytes), Ok(state.clone()));
        for length in 0..bytes.len() {
            assert!(ClusterState::decode(&bytes[..length]).is_err());
        }
    }
}

/// The last word of a snapshot of one partition is the preferred host.
#[test]
fn a_preferred_host_that_could_not_have_been_named_is_damage() {
    let mut state = whole(3, 2);
    state.apply(&Command::Finalize { level: ClusterLevel::HAND_OVERS });
    let with = |state: &ClusterState, host: u8| {
        let mut bytes = state.encode();
        let last = bytes.len() - 2;
        bytes[last] = host;
        ClusterState::decode(&bytes).is_ok()
    };
    // There is an owner.
    assert!(with(&state, 0) && !with(&state, 2));
    let view = ViewNumber(1);
    state.apply(&Command::HandOver { partition: PARTITION, view, host: HostId(2) });
    assert!(with(&state, 0) && with(&state, 2) && with(&state, 3));
    // The excluded owner, and a host without a copy.
    assert!(!with(&state, 1) && !with(&state, 9));
    let (view, revision) = (ViewNumber(2), Revision(9));
    state.apply(&Command::RaiseView { partition: PARTITION, view, revision });
    assert!(with(&state, 0) && !with(&state, 1));
    // No report counts there, so no other copy is full.
    let mut bytes = state.encode();
    let one = [&1_u16.to_le_bytes()[..], &[1], &1_u16.to_le_bytes()].concat();
    let at = bytes.windows(one.len()).position(|bytes| bytes == one).unwrap();
    bytes.splice(at + 2..at + 5, [2, 1, 0, 2, 0]);
    assert!(matches!(ClusterState::decode(&bytes), Err(SnapshotError::Damaged { .. })));
}

proptest! {
    #[test]
    fn any_bytes_give_a_command_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Ok(command) = Command::decode(&bytes) {
            prop_assert_eq!(command.encode(), bytes);
        }
    }

    #[test]
    fn a_flipped_snapshot_is_an_error_or_another_state(at in 0usize..200, bit in 0u8..8) {
        let mut bytes = whole(3, 2).encode();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(state) = ClusterState::decode(&bytes) {
            prop_assert_eq!(state.encode(), bytes);
        }
    }

    #[test]
    fn any_two_words_give_a_record(view: u64, acted: u64) {
        let record = MemberRecord::from_words([view, acted]);
        prop_assert_eq!(MemberRecord::from_words(record.to_words()), record);
    }
}
