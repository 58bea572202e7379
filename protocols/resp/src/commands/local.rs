//! `LOCAL`: requests the region's descriptors or a ring (`spec/local-transport.md`). These
//! functions check the permission; the node sends the descriptors.

use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_local_transport::LocalResource;
use nearstate_model::Error;
use nearstate_node::{DescriptorReply, LocalPeer};
use nearstate_store::Region;

/// `LOCAL REGION`. A client with the region can write every byte of it, regardless of ACL rules.
pub(crate) fn region(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    _: &mut ReplyWriter<'_>,
) -> CommandResult {
    let user = ctx.connection.user.as_ref();
    if !user.is_some_and(|user| user.is_unrestricted()) {
        return Err(ErrorReply::fixed(
            "NOPERM LOCAL REGION requires permission for all commands, keys and channels: use \
             LOCAL RING",
        ));
    }
    ask(ctx, LocalResource::Region)
}

/// `LOCAL RING`. Requests over the ring are checked as on the socket.
pub(crate) fn ring(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    _: &mut ReplyWriter<'_>,
) -> CommandResult {
    ask(ctx, LocalResource::Ring)
}

/// The node replies once all earlier output is sent.
fn ask(ctx: &mut CommandContext<'_>, what: LocalResource) -> CommandResult {
    if ctx.txn.is_some() {
        return Err(ErrorReply::fixed("ERR LOCAL is not allowed between MULTI and EXEC"));
    }
    ctx.connection.local_request = Some(what);
    Ok(())
}

/// Makes the reply that carries the resource.
pub(crate) fn grant(
    resource: LocalResource,
    peer: &LocalPeer<'_>,
    region: &Region,
) -> Result<DescriptorReply, Error> {
    match resource {
        LocalResource::Region => {
            let files = region.files()?;
            peer.descriptors(vec![files.file, files.liveness])
        }
        LocalResource::Ring => peer.ring(),
    }
}

/// The error reply of a request that was not granted.
pub(crate) fn error(error: &Error) -> String {
    format!("ERR LOCAL: {error}")
}
