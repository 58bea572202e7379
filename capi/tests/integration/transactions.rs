//! Transactions and objects as C meets them: `tests/c/transactions.c`, promise by promise.

crate::fixture::kept_in_c! {
    "c/transactions.c":
    all_of_a_transaction_happens_or_nothing
    labels_go_with_a_record
    a_conflict_is_an_answer_and_changes_nothing
    a_function_is_run_until_it_gets_through
    the_example_of_the_guide_does_what_it_says
    an_object_is_opened_and_stays_where_it_is
    null_and_nonsense_are_refused
    a_session_stays_open_while_a_transaction_is
    a_forked_child_cannot_commit
}

#[test]
fn the_guide_shows_what_is_tested() {
    let guide = include_str!("../../../clients/c/README.md");
    let shown = guide.split("```c\n").skip(1).find(|shown| shown.contains("ns_transact("));
    let shown = shown.and_then(|rest| rest.split("```").next()).unwrap();
    let function = shown.split("\n\n").next().unwrap();
    assert!(function.starts_with("static int32_t hand_over("), "{function}");
    assert!(include_str!("c/transactions.c").contains(function), "{function}");
}
