//! `LOCAL`: a client on this host asks for the region's file, or for a ring. The node gives them
//! (`spec/local-transport.md`); here it is judged who may have them, and said what came of it.

use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::reply::Reply;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_local_transport::LocalResource;
use nearstate_model::Error;
use nearstate_node::{DescriptorReply, LocalPeer};
use nearstate_store::Region;

/// `LOCAL REGION`. Whoever has the file may write every byte of it, past all rules.
pub(crate) fn region(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    _: &mut Reply<'_>,
) -> CommandResult {
    let user = ctx.connection.user.as_ref();
    if !user.is_some_and(|user| user.is_unrestricted()) {
        return Err(ErrorReply::fixed(
            "NOPERM only a user who may run every command on every key and channel is given the \
             region; ask for LOCAL RING",
        ));
    }
    ask(ctx, LocalResource::Region)
}

/// `LOCAL RING`. What goes through it is judged as it is on the socket.
pub(crate) fn ring(ctx: &mut CommandContext<'_>, _: Args<'_>, _: &mut Reply<'_>) -> CommandResult {
    ask(ctx, LocalResource::Ring)
}

/// The node answers, once everything before is sent.
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
