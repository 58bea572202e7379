//! A copy whose host has left the group: no owner sends it anything, and none that it hears decides
//! what became of the log that it has followed (`docs/decisions/036-receipts.md`).

use nearstate_model::{Result, invariant};

use super::{FollowState, load, store};
use crate::crash::crash_point;
use crate::layout::{Corruption, FOLLOW_STATE, seal};
use crate::member::Member;
use crate::region::map::Map;

/// True if the host of a copy has left the group whose log it has followed.
pub(crate) fn has_left(map: &Map) -> Result<bool, Corruption> {
    let word = load(map, FOLLOW_STATE)?;
    Ok(word == seal(FollowState::LEFT_FULL) || word == seal(FollowState::LEFT_EXTENDING))
}

impl Member {
    /// The host of a copy has left the group whose log it has followed, or is a member again: it
    /// follows. Nothing changes for a copy that is not complete. The caller has the follower's
    /// lock.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_left(&self, has_left: bool) -> Result<()> {
        self.check_usable()?;
        invariant!(!self.is_follower(), "a follower leaves the group that it follows");
        let map = self.map();
        let word = load(map, FOLLOW_STATE)?;
        let codes = [
            (FollowState::Full.code(), FollowState::LEFT_FULL),
            (FollowState::Extending.code(), FollowState::LEFT_EXTENDING),
        ];
        for (member, left) in codes {
            let (from, to) = if has_left { (member, left) } else { (left, member) };
            if word == seal(from) {
                store(map, FOLLOW_STATE, seal(to))?;
                crash_point!("follow.left");
            }
        }
        self.check_not_truncated()
    }
}
