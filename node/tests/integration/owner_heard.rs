//! What an owner says to its members about their answers: that it has heard those that count, as
//! long as its driver works.

use nearstate_node::PartitionInput;
use nearstate_store::lease_clock;

use crate::partition::{TestHost, WAIT_MAX, group};

/// The highest stamp that a member has answered, and the last one that it got with what the owner
/// said to have heard of its answers, once that is as wanted.
fn stamps_when(owner: &TestHost, member: &TestHost, is_it: impl Fn(u64, u64, u64) -> bool) {
    let (mut counted, mut last) = (0, (0, 0));
    let end = lease_clock() + WAIT_MAX;
    while !is_it(counted, last.0, last.1) {
        assert!(lease_clock() < end, "{counted}, {last:?}");
        while let Ok(input) = owner.inputs.try_recv() {
            if let PartitionInput::MemberAcknowledged { stamp, .. } = input {
                counted = counted.max(stamp);
            }
        }
        while let Ok(input) = member.inputs.try_recv() {
            if let PartitionInput::PositionReceived { view, stamp, answered, .. } = input {
                member.partition.answer(view, stamp);
                last = (stamp, answered);
            }
        }
        std::thread::yield_now();
    }
}

#[test]
fn an_owner_says_that_it_hears_a_member_only_as_long_as_its_driver_works() {
    let [owner, one, _other] = group("hears");
    let now = || u64::try_from(lease_clock().as_nanos()).unwrap();
    // Answers arrive at the connection's thread. The driver, which keeps the lease, hangs.
    let begin = now();
    stamps_when(&owner, &one, |counted, _, _| counted > begin);
    let then = now();
    stamps_when(&owner, &one, |_, stamp, answered| {
        assert_eq!(answered, 0, "the driver has never worked");
        stamp > then
    });
    let worked = lease_clock();
    owner.partition.set_worked_at(worked);
    // It works, and counts another connection of this member, or none: that it does not hear.
    let then = now();
    stamps_when(&owner, &one, |counted, stamp, answered| {
        assert_eq!(answered, 0, "no answer has counted");
        counted > then && stamp > counted
    });
    owner.partition.set_counted(&one.name, u64::MAX);
    let worked = u64::try_from(worked.as_nanos()).unwrap();
    stamps_when(&owner, &one, |_, _, answered| answered > begin);
    // It has heard nothing since.
    let then = now();
    stamps_when(&owner, &one, |counted, stamp, answered| {
        assert!(answered <= worked, "{answered} is behind {worked}");
        counted > then && stamp > counted
    });
}
