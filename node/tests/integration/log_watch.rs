//! The log of an owner whose copy alone suffices is read whatever has failed before.

use nearstate_node::PartitionInput;

use crate::partition::{TestHost, WAIT_MAX, put};

/// Waits for a message about the log of a view.
fn until(host: &TestHost, is_it: impl Fn(&PartitionInput) -> bool) -> PartitionInput {
    loop {
        let input = host.inputs.recv_timeout(WAIT_MAX).unwrap();
        if is_it(&input) {
            return input;
        }
    }
}

fn until_written(host: &TestHost, in_view: u64, at: u64) {
    until(host, |input| {
        matches!(input, PartitionInput::LogWritten { view, position }
            if *view == in_view && *position >= at)
    });
}

#[test]
fn a_watch_that_gets_no_session_says_so_and_begins_when_one_is_free() {
    let mut host = TestHost::new("watch-a");
    host.own(1, None);
    let writer = host.session();
    put(&writer, 0..20);
    let mut taken = Vec::new();
    while let Ok(session) = host.region.session() {
        taken.push(session);
    }
    host.partition.watch_log(Some(1));
    until(&host, |input| matches!(input, PartitionInput::FollowFailed { view: 1, .. }));
    drop(taken);
    let end = writer.log_tail_position().unwrap();
    until_written(&host, 1, end);
    // It is ended and begun again, in the same view and in another one.
    host.partition.watch_log(None);
    put(&writer, 20..40);
    host.partition.watch_log(Some(1));
    until_written(&host, 1, writer.log_tail_position().unwrap());
    host.partition.watch_log(Some(2));
    put(&writer, 40..60);
    until_written(&host, 2, writer.log_tail_position().unwrap());
}
