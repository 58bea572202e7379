//! `LOCAL`: a client on this host asks for the region's file, or for a ring. The node gives them
//! (`spec/local-transport.md`); here it is judged who may have them, and said what came of it.

use crate::command_context::Client;
use crate::parse::Args;
use crate::reply::Reply;
use crate::reply::error_reply::Refusal;
use nearstate_model::Error;
use nearstate_node::LocalResource;

type Answer = Result<(), Refusal>;

/// `LOCAL REGION`. Whoever has the file may write every byte of it, past all rules.
pub(crate) fn region(client: &mut Client<'_>, _: Args<'_>, _: &mut Reply<'_>) -> Answer {
    let user = client.link.user.as_ref();
    if !user.is_some_and(|user| user.may_everything()) {
        return Err(Refusal::fixed(
            "NOPERM only a user who may run every command on every key and channel is given the \
             region; ask for LOCAL RING",
        ));
    }
    ask(client, LocalResource::Region)
}

/// `LOCAL RING`. What goes through it is judged as it is on the socket.
pub(crate) fn ring(client: &mut Client<'_>, _: Args<'_>, _: &mut Reply<'_>) -> Answer {
    ask(client, LocalResource::Ring)
}

/// The node answers, once everything before is sent.
fn ask(client: &mut Client<'_>, what: LocalResource) -> Answer {
    if client.txn.is_some() {
        return Err(Refusal::fixed("ERR LOCAL is not allowed between MULTI and EXEC"));
    }
    client.link.near = Some(what);
    Ok(())
}

/// The answer that descriptors travel with.
pub(crate) fn given(what: LocalResource) -> Vec<u8> {
    nearstate_local_transport::response_line(what)
}

/// Why there are none.
pub(crate) fn refused(why: &Error) -> String {
    format!("ERR LOCAL: {why}")
}
