//! When a member keeps what it has, whatever it was told and whatever the owner's log is.

use nearstate_model::{Error, Result};
use nearstate_store::{FollowState, Following, LogIdentity, Session};

use super::applier::Membership;

/// Is it a complete copy of a partition? An order to discard was given for one that had gaps: it
/// has become complete since, and may be all that is left.
pub(super) fn is_whole(
    session: &Session,
    membership: Option<Membership<'_>>,
    following: &Following,
) -> Result<bool> {
    let Some(member) = membership else { return Ok(false) };
    Ok(following.state == FollowState::Full && session.is_bound(member.group.cluster_id)?)
}

/// Fails if a region that is in no group has records of its own ([`Session::check_may_join`],
/// [`Session::check_disposable`]), or if a complete copy would be discarded for another log of the
/// same view: the owner's region was replaced or repaired, and may lack what the copy has.
pub(super) fn check_origin(
    session: &Session,
    membership: Option<Membership<'_>>,
    source: LogIdentity,
) -> Result<()> {
    match membership {
        None => session.check_may_join(source)?,
        // A process may have written since the host was told to follow.
        Some(member) => session.check_disposable(member.group.cluster_id)?,
    }
    let Some(following) = session.following()? else { return Ok(()) };
    let is_other = following.source.origin == source.origin && following.source != source;
    if !is_other || !is_whole(session, membership, &following)? {
        return Ok(());
    }
    let detail = "the owner's region has another log than the one that this complete copy \
                  follows: it was replaced or repaired in the view of that log. The copy is kept. \
                  Stop the owner's node: \
                  another host takes over, or `nearstate cluster accept-loss` names this one";
    Err(Error::BadArgument { detail: detail.to_owned() })
}
