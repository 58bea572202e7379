//! The times of a follower: of a member of a group, and of one outside.

use std::time::Duration;

use super::applier::Membership;
use super::limits::{
    BEAT_INTERVAL, CONNECT_MAX, MEMBER_LOOK_INTERVAL, RETRY_MAX, RETRY_MIN, SILENCE_MAX,
};

/// How long a follower waits for what.
#[derive(Clone, Copy)]
pub(super) struct FollowPace {
    /// Between two looks at whether it is over.
    pub(super) look: Duration,
    pub(super) connect_max: Duration,
    pub(super) silence_max: Duration,
    pub(super) retry_min: Duration,
    pub(super) retry_max: Duration,
    /// A member whose region is full.
    pub(super) retry_full: Duration,
}

impl FollowPace {
    /// A member of a group waits for nothing longer than for a lease: it may be the next owner.
    pub(super) fn of(membership: Option<Membership<'_>>) -> Self {
        match membership {
            None => Self {
                look: BEAT_INTERVAL,
                connect_max: CONNECT_MAX,
                silence_max: SILENCE_MAX,
                retry_min: RETRY_MIN,
                retry_max: RETRY_MAX,
                retry_full: RETRY_MAX,
            },
            Some(member) => Self {
                look: MEMBER_LOOK_INTERVAL,
                connect_max: (member.group.lease / 3).min(CONNECT_MAX),
                silence_max: (member.group.lease * 2).min(SILENCE_MAX),
                retry_min: MEMBER_LOOK_INTERVAL,
                // A new owner that promotes its copy has no lease before its members connect.
                retry_max: member.group.lease / 8,
                // Each connection grants one lease, from the message on that begins it.
                retry_full: member.group.lease / 4,
            },
        }
    }
}
