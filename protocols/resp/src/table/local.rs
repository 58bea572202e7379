//! Commands of the local transport.

use super::OPERATOR;
use crate::command::{CommandFlags, CommandGroup};
use crate::command_context::Command;
use crate::commands::local;

const ROW: Command = Command { group: CommandGroup::Connection, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "local",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands that open the local transport on a Unix socket of this host. \
                  See spec/local-transport.md.",
        differs: "Not in Redis.",
        ..ROW
    },
    Command {
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
    Command {
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
