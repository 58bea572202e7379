//! A member that cannot follow any more, and its next connection.

use crate::fixture::{PARTITION, whole};
use crate::two_hosts::Proposer;
use nearstate_cluster::{
    Command, CopyState, FollowerAcknowledgement, HostId, HostInput, Monotonic, ViewNumber,
};

const PARTITION_VIEW: ViewNumber = ViewNumber(1);

fn connect(owner: &mut Proposer, host: u16, connection: u64) {
    let (host, view, partition) = (HostId(host), PARTITION_VIEW, PARTITION);
    owner.step(1_000, HostInput::Connected { partition, host, view, connection });
    let (position, stamp) = (Some(5), Monotonic(1_000_000_000));
    let acknowledgement = FollowerAcknowledgement { host, view, connection, position, stamp };
    owner.step(1_000, HostInput::Acknowledged { partition, acknowledgement });
}

#[test]
fn a_member_is_behind_on_the_connection_that_says_so_and_not_on_the_next_one() {
    let state = whole(3, 2);
    let mut owner = Proposer::start(1, 1_000, CopyState::Owner { origin: PARTITION_VIEW });
    owner.step(1_000, HostInput::State(&state));
    connect(&mut owner, 2, 1);
    connect(&mut owner, 3, 2);
    connect(&mut owner, 3, 3);
    let behind =
        |connection| HostInput::Behind { partition: PARTITION, host: HostId(3), connection };
    owner.step(1_001, behind(2));
    owner.step(1_002, HostInput::Tick);
    assert_eq!(owner.proposed, [], "the connection that has ended acts on the next one");
    owner.step(1_003, behind(3));
    let evicted = |command: &Command| matches!(command, Command::Evict { host: HostId(3), .. });
    assert!(owner.proposed.iter().any(evicted), "{:?}", owner.proposed);
}
