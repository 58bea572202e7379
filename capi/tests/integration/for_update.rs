//! Records for update in C: concurrent changes, blocks by index, rejected calls: `c/for_update.c`.

crate::fixture::c_tests! {
    "c/for_update.c":
    the_example_of_the_guide_works
    a_value_is_written_unless_the_record_changed
    blocks_are_addressed_by_the_index_of_their_names
    the_maximum_number_of_blocks_is_changed_in_one_step
    view_functions_accept_a_record_for_update
    released_records_are_rejected
    a_session_stays_open_while_a_record_is_held
    invalid_arguments_are_rejected_and_change_nothing
    a_patch_keeps_tags_and_a_put_removes_them
    a_forked_child_changes_nothing
}

#[test]
fn the_guide_shows_tested_code() {
    let guide = include_str!("../../../clients/c/README.md");
    let shown = guide.split("```c\n").skip(1).find(|shown| shown.contains("ns_get_for_update"));
    let function = shown.and_then(|rest| rest.split("```").next()).unwrap();
    assert!(function.starts_with("static ns_status hand_over("), "{function}");
    assert!(include_str!("c/for_update.c").contains(function), "{function}");
}
