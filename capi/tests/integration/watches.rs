//! Watches and the commit stream as C meets them, promise by promise: with `epoll`, and with other
//! processes that write.

crate::fixture::kept_in_c! {
    "c/watches.c":
    a_watch_tells_what_happened_in_order
    a_watch_refuses_nonsense
    an_event_loop_waits_for_two_watches_at_once
    a_slow_watcher_is_told_what_it_lost
    a_forked_child_watches_anew
    every_commit_is_in_the_stream_whole
    a_stream_that_keeps_all_refuses_commits_until_it_is_read
}
