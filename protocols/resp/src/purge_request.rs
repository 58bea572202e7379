//! `MEMORY PURGE`: any core asks for it, and the task that keeps the memory usable is woken. So
//! that task needs no timer for it.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Whether a purge was requested since the task has looked.
#[derive(Debug, Default)]
pub(crate) struct PurgeRequest(Mutex<PurgeState>);

#[derive(Debug, Default)]
struct PurgeState {
    is_requested: bool,
    task: Option<Waker>,
}

impl PurgeRequest {
    /// Asks for a purge.
    pub(crate) fn set(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_requested = true;
        if let Some(task) = state.task.take() {
            task.wake();
        }
    }

    /// Ready once for each request, or for several at the same time.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.is_requested) {
            return Poll::Ready(());
        }
        state.task = Some(cx.waker().clone());
        Poll::Pending
    }
}
