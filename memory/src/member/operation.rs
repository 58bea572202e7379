//! Stops a session whose operation panicked.
//!
//! An operation that changes the region runs in [`Member::operation`]. A panic that unwinds through
//! it means that an invariant was violated between two stores. From then on the session refuses
//! every operation with `SessionStopped`, so it acknowledges nothing further. Its locks and its
//! undo record are handled at once as recovery handles those of a killed process, so other sessions
//! and other processes continue.

use nearstate_model::Result;

use crate::crash::crash_point;
use crate::member::Member;
use crate::member::arena::{op, undo};

/// Stops the session of a member when it is dropped. Only unwinding drops it.
struct StopOnUnwind<'m>(&'m Member);

impl Drop for StopOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.stop_session();
    }
}

impl Member {
    /// Carries out an operation that changes the region. A panic in `body` stops the session.
    /// Operations nest. The outermost one excludes members that take cells of idle ones
    /// (`member/idle.rs`).
    ///
    /// # Errors
    /// Those of the body; `Forked`, `SessionStopped`, `Damaged`; `Stalled` if a process that is
    /// stopped takes cells of this member.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a call for each part of a write would cost 3 % of it"
    )]
    pub fn operation<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        // A forked child must not touch the arena of its parent.
        self.check_usable()?;
        self.last_operation(body)
    }

    /// As [`Member::operation`], also in a session that was stopped. Not in a forked child.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn last_operation<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let is_outermost = !self.is_in_operation();
        if is_outermost && !self.begin_operation() {
            self.wait_for_taker()?;
        }
        let stop = StopOnUnwind(self);
        crash_point!("operation.begun");
        let result = body();
        std::mem::forget(stop);
        if is_outermost {
            if result.is_err() {
                self.roll_back_failed();
            }
            self.end_operation();
        }
        result
    }

    /// Returns the pending cells of a failed operation to the queues. Between two operations the
    /// undo record is empty, so others may take cells from the queues.
    #[cold]
    #[inline(never)]
    fn roll_back_failed(&self) {
        let arena = self.arena();
        if arena.get(undo::OP) == op::NONE && !self.map().is_damaged() {
            // Damage that prevents it is found again by whatever uses the list next.
            let _ = arena.roll_back();
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
