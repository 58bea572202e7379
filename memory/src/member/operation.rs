//! Stops a session whose operation panicked.
//!
//! An operation that changes the region runs in [`Member::operation`]. A panic that unwinds through
//! it means that an invariant was violated between two stores. From then on the session refuses
//! every operation with `SessionStopped`, so it acknowledges nothing further. Its locks and its
//! undo record are handled at once as recovery handles those of a killed process, so other sessions
//! and other processes continue.

use crate::member::Member;

/// Stops the session of a member when it is dropped. Only unwinding drops it.
struct StopOnUnwind<'m>(&'m Member);

impl Drop for StopOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.stop_session();
    }
}

impl Member {
    /// Carries out an operation that changes the region. A panic in `body` stops the session.
    /// Operations nest. Costs nothing unless the operation panics.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a call for each part of a write would cost 3 % of it"
    )]
    pub fn operation<T>(&self, body: impl FnOnce() -> T) -> T {
        let stop = StopOnUnwind(self);
        let result = body();
        std::mem::forget(stop);
        result
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
