//! Model of the guard against a second thread in a session (`thread_guard.rs`).

use loom::cell::UnsafeCell;

use super::{check, start, wait_for, write};
use crate::thread_guard::ThreadGuard;

/// Loom has no asymmetric barrier, so both sides are fenced.
fn model(threads: [u64; 2], calls: u32) {
    check(move || {
        let shared = loom::sync::Arc::new((ThreadGuard::new(1, true), UnsafeCell::new(0)));
        let work = move |shared: &(ThreadGuard, UnsafeCell<u64>), thread| {
            for _ in 0..calls {
                if let Ok(_call) = shared.0.enter(thread, || true) {
                    // Loom fails if the write of another thread is not ordered with this one.
                    write(&shared.1, thread);
                }
            }
        };
        wait_for(threads.map(|thread| start(&shared, move |shared| work(shared, thread))));
    });
}

#[test]
fn calls_of_two_threads_never_overlap() {
    model([1, 2], 1);
    model([1, 2], 2);
    model([2, 3], 1);
}
