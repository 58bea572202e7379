//! Transactions and objects in C: `c/transactions.c`.

crate::fixture::c_tests! {
    "c/transactions.c":
    a_transaction_is_atomic
    metadata_belongs_to_its_record
    a_conflict_is_a_status_and_changes_nothing
    the_status_of_a_run_that_met_a_conflict_is_not_returned
    a_function_is_retried_until_it_commits
    the_example_of_the_guide_works
    an_opened_object_does_not_move
    null_and_invalid_arguments_are_rejected
    a_session_stays_open_while_a_transaction_is_open
    a_forked_child_cannot_commit
}

#[test]
fn the_guide_shows_tested_code() {
    let guide = include_str!("../../../clients/c/README.md");
    let shown = guide.split("```c\n").skip(1).find(|shown| shown.contains("ns_transact("));
    let shown = shown.and_then(|rest| rest.split("```").next()).unwrap();
    let function = shown.split("\n\n").next().unwrap();
    assert!(function.starts_with("static int32_t hand_over("), "{function}");
    assert!(include_str!("c/transactions.c").contains(function), "{function}");
}
