//! Sentinel, on the same port: it always names this server.

use super::ANY_TIME;
use crate::command::{CommandFlags, CommandGroup};
use crate::command_context::Command;
use crate::commands::sentinel;

const ROW: Command = Command { group: CommandGroup::Sentinel, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "sentinel",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Where masters are.",
        differs: "There is one server, which is the master, under every name, or under those of \
                  the configuration. Where that has none, MASTERS says `dbaasmaster` and \
                  `mymaster`.",
        ..ROW
    },
    Command {
        name: "sentinel|get-master-addr-by-name",
        arity: 3,
        flags: ANY_TIME,
        summary: "The address of a master.",
        run: sentinel::get_master_addr,
        ..ROW
    },
    Command {
        name: "sentinel|masters",
        arity: 2,
        flags: ANY_TIME,
        summary: "All masters.",
        run: sentinel::masters,
        ..ROW
    },
    Command {
        name: "sentinel|master",
        arity: 3,
        flags: ANY_TIME,
        summary: "What is known of a master.",
        run: sentinel::master,
        ..ROW
    },
    Command {
        name: "sentinel|slaves",
        arity: 3,
        flags: ANY_TIME,
        summary: "The replicas of a master.",
        run: sentinel::others,
        ..ROW
    },
    Command {
        name: "sentinel|replicas",
        arity: 3,
        flags: ANY_TIME,
        summary: "The replicas of a master.",
        run: sentinel::others,
        ..ROW
    },
    Command {
        name: "sentinel|sentinels",
        arity: 3,
        flags: ANY_TIME,
        summary: "The other sentinels of a master.",
        run: sentinel::others,
        ..ROW
    },
];
