//! Commands of the local transport.

use super::OPERATOR;
use crate::command::{CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::local;

const ROW: RespCommand = RespCommand { group: CommandGroup::Connection, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "local",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands that open the local transport on a Unix socket of this host. \
                  See spec/local-transport.md.",
        differs: "Not in Redis.",
        ..ROW
    },
    RespCommand {
        name: "local|region",
        arity: 2,
        flags: OPERATOR,
        summary: "Sends the file descriptors of the region, so that the client accesses its memory \
                  directly.",
        differs: "Not in Redis. Requires a user with permission for all commands, keys and \
                  channels.",
        run: local::region,
        ..ROW
    },
    RespCommand {
        name: "local|ring",
        arity: 2,
        flags: super::CONNECTION,
        summary: "Continues the connection over a ring in shared memory.",
        differs: "Not in Redis. The client must wait for the reply before it sends the next \
                  request.",
        run: local::ring,
        ..ROW
    },
];
