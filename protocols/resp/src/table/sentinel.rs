//! Sentinel commands on the port of the server, which is always the master.

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
        summary: "Contains commands of Redis Sentinel.",
        differs: "This server is the only master, under every name or under the configured names. \
                  Without configured names, MASTERS returns `dbaasmaster` and `mymaster`.",
        ..ROW
    },
    Command {
        name: "sentinel|get-master-addr-by-name",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the address of a master.",
        run: sentinel::get_master_addr,
        ..ROW
    },
    Command {
        name: "sentinel|masters",
        arity: 2,
        flags: ANY_TIME,
        summary: "Returns the monitored masters.",
        run: sentinel::masters,
        ..ROW
    },
    Command {
        name: "sentinel|master",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the state of a master.",
        run: sentinel::master,
        ..ROW
    },
    Command {
        name: "sentinel|slaves",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the replicas of a master.",
        run: sentinel::others,
        ..ROW
    },
    Command {
        name: "sentinel|replicas",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the replicas of a master.",
        run: sentinel::others,
        ..ROW
    },
    Command {
        name: "sentinel|sentinels",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the Sentinel instances of a master.",
        run: sentinel::others,
        ..ROW
    },
];
