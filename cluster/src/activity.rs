//! What a member does in its role.

use crate::id::{HostId, ViewNumber};
use crate::owner::Owner;

/// What a member is doing, so that it does nothing twice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum MemberActivity {
    /// Nothing.
    Idle,
    /// Serves followers in a view.
    Serving(ViewNumber, Owner),
    /// Follows an owner in a view.
    Following(ViewNumber, HostId),
}
