//! Records that are read to be changed as C meets them, promise by promise: who was faster, blocks
//! by their places, and what is refused.

crate::fixture::kept_in_c! {
    "c/for_update.c":
    the_example_of_the_guide_does_what_it_says
    a_value_is_put_unless_somebody_was_faster
    blocks_go_by_the_places_of_their_names
    as_many_blocks_as_a_record_may_have_are_changed_at_once
    the_functions_of_views_show_what_was_read
    what_was_released_is_refused
    a_session_stays_open_while_a_record_is_held
    nonsense_is_refused_and_changes_nothing
    tags_stay_with_a_patch_and_go_with_a_put
    a_forked_child_changes_nothing
}

#[test]
fn the_guide_shows_what_is_tested() {
    let guide = include_str!("../../../clients/c/README.md");
    let shown = guide.split("```c\n").skip(1).find(|shown| shown.contains("ns_get_for_update"));
    let function = shown.and_then(|rest| rest.split("```").next()).unwrap();
    assert!(function.starts_with("static ns_status hand_over("), "{function}");
    assert!(include_str!("c/for_update.c").contains(function), "{function}");
}
