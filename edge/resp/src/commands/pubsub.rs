//! Channels.

use crate::client::Command;
use crate::link::Link;
use crate::refusal::Refusal;
use crate::server::Server;

/// Refuses what a RESP2 client that hears something may not ask.
pub(crate) fn may_run_while_hearing(command: &Command) -> Result<(), Refusal> {
    let _ = command;
    Ok(())
}

/// A client has gone: it hears nothing any more.
pub(crate) fn leave_all(server: &Server, link: &mut Link) {
    for channel in std::mem::take(&mut link.channels) {
        server.hub.leave(&channel, link.id);
    }
    for pattern in std::mem::take(&mut link.patterns) {
        server.hub.leave_matching(&pattern, link.id);
    }
}
