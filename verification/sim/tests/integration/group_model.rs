//! The same model with operators that add hosts to the group and remove them (decision 040), and
//! with operators that name the next owner (decision 034).

use crate::model::{ModelGroup, explore, fails, small};
use nearstate_cluster::Switch;

fn changing() -> ModelGroup {
    ModelGroup { changes: 2, changes_group: true, ..small() }
}

#[test]
fn a_group_that_operators_change_keeps_the_rules() {
    println!("{} states", explore(changing(), 10));
}

#[test]
fn a_member_that_counts_must_leave_by_an_eviction() {
    fails(Switch::LeaveByEviction, changing(), 10);
}

fn handing_over() -> ModelGroup {
    ModelGroup { hands_over: true, ..small() }
}

#[test]
fn a_group_whose_next_owner_operators_name_keeps_the_rules() {
    println!("{} states", explore(handing_over(), 11));
}

#[test]
fn a_named_host_must_have_a_copy_that_counts_and_is_the_longest() {
    fails(Switch::PreferredIsComplete, handing_over(), 14);
}
