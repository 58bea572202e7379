//! Declarations that belong to a change of the caller, which commits both or neither.
//!
//! ```text
//! hold          the tags stay "building" when all records are indexed
//! complete_in   the caller's transaction sets them to "ready" with its own writes
//! withdraw      the caller does not commit: the tags that this declaration has started or joined
//!               are abandoned, as after a contradicting record
//! ```

use std::cell::Cell;

use nearstate_model::{Error, Result};

use super::{Contradiction, PendingTagDeclaration, Stage, TrackedTags};
use crate::index::schema::{TagSet, TagState};
use crate::session::Session;
use crate::txn::Txn;

/// How a declaration ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// It completes its tags.
    #[default]
    None,
    /// A transaction of the caller completes them.
    Held,
    /// The caller does not commit: the tags that it has started are removed.
    Withdrawn,
}

impl Hold {
    pub(super) fn is_held(self) -> bool {
        self == Self::Held
    }

    /// The stage after the removal of abandoned tags.
    pub(super) fn after_clearing(self) -> Stage {
        if self == Self::Withdrawn { Stage::Done } else { Stage::Announcing }
    }

    /// The stage after others have changed a tag that was to be abandoned.
    pub(super) fn after_change(self, started: &TrackedTags) -> Stage {
        if self == Self::Withdrawn { withdrawing(started) } else { Stage::Announcing }
    }
}

/// The removal of tags that no record contradicts.
fn withdrawing(started: &TrackedTags) -> Stage {
    Stage::Abandoning(Contradiction { why: None, tag: None }, started.copy())
}

impl PendingTagDeclaration {
    /// The same declaration, as a part of a change of the caller. Its last part ends when all
    /// records are indexed. Then the caller commits a transaction with
    /// [`Session::complete_tags_in`], and calls [`Session::end_tag_declaration`]. A caller that
    /// does not commit calls [`Session::withdraw_tags`].
    #[must_use]
    pub fn held(self) -> Self {
        Self { hold: Hold::Held, ..self }
    }
}

impl Session {
    /// Sets the tags of a [held](PendingTagDeclaration::held) declaration to ready in a
    /// transaction. False, and the transaction must not be committed, if other declarations have
    /// changed the tags: [`Self::continue_tag_declaration`] has parts left then.
    ///
    /// # Errors
    /// As [`Self::add_tags`].
    pub fn complete_tags_in(
        &self,
        txn: &Txn<'_>,
        declaring: &PendingTagDeclaration,
    ) -> Result<bool> {
        let Stage::Held(tracked) = &declaring.stage else {
            return Ok(matches!(declaring.stage, Stage::Done));
        };
        let is_current = Cell::new(true);
        let changed = self.change_tags_in(txn, declaring.namespace, |tags| {
            is_current.set(tracked.are_unchanged(tags, TagState::Building));
            if !is_current.get() {
                // Ends the transaction; this error is not reported.
                return Err(Error::BadArgument { detail: String::new() });
            }
            tags.move_on(TagState::Building, TagState::Ready, &tracked.ids);
            Ok(())
        });
        match changed {
            Ok(tags) => {
                declaring.completed.replace(Some(tags));
                Ok(true)
            }
            Err(_) if !is_current.get() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the tags that a committed transaction has [completed](Self::complete_tags_in) visible
    /// to every session.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn end_tag_declaration(&self, declaring: PendingTagDeclaration) -> Result<()> {
        let completed: Option<TagSet> = declaring.completed.into_inner();
        completed.map_or(Ok(()), |tags| self.raise_to(declaring.namespace.index, &tags))
    }

    /// Begins to remove the tags that are not ready yet and that this declaration has started or
    /// joined, in parts of [`Self::continue_tag_declaration`]. A tag that another declaration is
    /// busy with stays: that one completes it, or removes it when it is withdrawn as well.
    pub fn withdraw_tags(&self, declaring: &mut PendingTagDeclaration) {
        declaring.hold = Hold::Withdrawn;
        declaring.stage = withdrawing(&declaring.started);
    }
}
