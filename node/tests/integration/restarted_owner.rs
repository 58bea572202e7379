//! The node process of an owner ends and starts again, and remembers no connection.

use crate::partition::{TestHost, group, has_all, is_forgotten, joins, put, replicate, until};

/// Two members that have everything, of which one is slower: the log is released up to what that
/// one has acknowledged. Returns that position, too.
fn with_slow_member(test: &str) -> ([TestHost; 3], u64) {
    let [mut owner, mut fast, slow] = group(test);
    slow.partition.stop_following();
    let reached = slow.partition.state().unwrap().following.unwrap().reached;
    put(&owner.session(), 150..180);
    replicate(1, &mut owner, &mut [&mut fast]);
    owner.partition.raise_floor(reached);
    put(&owner.session(), 180..190);
    replicate(1, &mut owner, &mut [&mut fast]);
    until(1, &mut [&mut owner, &mut fast], |hosts| is_forgotten(hosts[0], reached));
    ([owner, fast, slow], reached)
}

fn restart(owner: TestHost) -> TestHost {
    let mut owner = owner.restarted();
    owner.own(1, None);
    owner
}

#[test]
fn both_members_continue_with_the_log_of_an_owner_that_was_restarted() {
    let ([owner, mut fast, mut slow], _) = with_slow_member("restarted");
    let mut owner = restart(owner);
    fast.partition.stop_following();
    let joined = [joins(&fast), joins(&slow)];
    for member in [&slow, &fast] {
        member.follow(1, &owner, false);
    }
    put(&owner.session(), 190..200);
    until(1, &mut [&mut owner, &mut fast, &mut slow], |hosts| {
        has_all(hosts[0], hosts[1]) && has_all(hosts[0], hosts[2])
    });
    assert_eq!([joins(&fast), joins(&slow)], joined, "they got entries, and no walk");
}

#[test]
fn a_member_joins_a_restarted_owner_whose_log_has_forgotten_what_it_lacks() {
    let ([mut owner, mut fast, mut slow], reached) = with_slow_member("forgotten");
    // The slow one counts no longer.
    owner.partition.raise_floor(reached + 5);
    put(&owner.session(), 190..195);
    replicate(1, &mut owner, &mut [&mut fast]);
    until(1, &mut [&mut owner, &mut fast], |hosts| is_forgotten(hosts[0], reached + 5));
    let mut owner = restart(owner);
    let joined = joins(&slow);
    slow.follow(1, &owner, false);
    until(1, &mut [&mut owner, &mut slow], |hosts| has_all(hosts[0], hosts[1]));
    assert_eq!(joins(&slow), joined + 1);
}
