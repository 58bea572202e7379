//! Stops a session whose operation panicked.
//!
//! An operation that changes the region holds a [`MemberOperation`]. A panic that unwinds through
//! it means that an invariant was violated between two stores. From then on the session refuses every
//! operation with `SessionStopped`, so it acknowledges nothing further. Its locks and its undo
//! record are handled at once as recovery handles those of a killed process, so other sessions and
//! other processes continue.

use crate::member::Member;

/// An operation in progress, until it is dropped.
#[derive(Debug)]
pub struct MemberOperation<'m> {
    member: &'m Member,
    /// A destructor that runs while its thread unwinds may use a session.
    was_panicking: bool,
}

impl Member {
    /// Marks the beginning of an operation that changes the region. Operations nest.
    ///
    /// Cost: two loads of a word that only a panic changes.
    #[inline]
    pub fn operation(&self) -> MemberOperation<'_> {
        MemberOperation { member: self, was_panicking: std::thread::panicking() }
    }
}

impl Drop for MemberOperation<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.member.stop_session();
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
