//! Several threads and signal handlers in one session, in C: `c/threads.c`.

crate::fixture::c_tests! {
    "c/threads.c":
    a_second_thread_is_refused_while_one_is_inside
    a_second_thread_is_refused_while_one_is_inside_a_watch
    a_child_releases_what_another_thread_of_the_parent_was_in
    a_session_moves_between_threads
    four_threads_on_one_session_damage_nothing
    a_handler_that_interrupts_a_call_is_refused
    a_call_that_a_handler_left_stops_the_session_only
}
