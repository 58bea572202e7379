//! How a client of this host comes near.

use super::OPERATOR;
use crate::command::{Flags, Group};
use crate::command_context::Command;
use crate::commands::local;

const ROW: Command = Command { group: Group::Connection, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "local",
        arity: -2,
        flags: Flags::CONTAINER,
        summary: "Opens the local transport on a Unix socket of this host: see spec/local-transport.md.",
        differs: "Is not there.",
        ..ROW
    },
    Command {
        name: "local|region",
        arity: 2,
        flags: OPERATOR,
        summary: "The region's file, by its descriptors: the client reads and writes it itself.",
        differs: "Is not there. For users who may run every command on every key and channel.",
        run: local::region,
        ..ROW
    },
    Command {
        name: "local|ring",
        arity: 2,
        flags: super::TALK,
        summary: "A ring in shared memory, through which the connection goes on.",
        differs: "Is not there. Nothing may be sent behind it before its answer.",
        run: local::ring,
        ..ROW
    },
];
