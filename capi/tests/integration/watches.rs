//! Watches and the commit stream in C, with `epoll` and with writers in other processes:
//! `c/watches.c`.

crate::fixture::c_tests! {
    "c/watches.c":
    a_watch_reports_changes_in_order
    a_watch_rejects_invalid_arguments
    an_event_loop_waits_for_two_watches_at_once
    a_slow_watcher_learns_how_many_events_it_lost
    a_forked_child_must_open_a_new_watch
    the_stream_contains_every_commit_completely
    a_full_stream_refuses_commits_until_it_is_acknowledged
    a_commit_waits_as_its_namespace_and_its_session_say
}
