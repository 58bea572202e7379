//! Sentinel commands on the port of the server, which is always the master.

use super::ANY_TIME;
use crate::command::{CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::sentinel;

const ROW: RespCommand = RespCommand { group: CommandGroup::Sentinel, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "sentinel",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands of Redis Sentinel.",
        differs: "This server is the only master, under every name or under the configured names. \
                  Without configured names, MASTERS returns `dbaasmaster`, `mymaster`, and \
                  `dbaasmaster-cluster-0` to `dbaasmaster-cluster-15`. Clients that check the ROLE \
                  of a Sentinel (redis-rs) need an address of `resp.sentinel_listen`, which serves \
                  only SENTINEL, PING, HELLO, AUTH, ROLE, INFO, CLIENT, COMMAND, QUIT, RESET and \
                  subscriptions. In a cluster each partition is a master at its owner; one whose \
                  owner has no valid lease or is not heard has the flag `s_down`, and no address.",
        ..ROW
    },
    RespCommand {
        name: "sentinel|get-master-addr-by-name",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the address of a master.",
        run: sentinel::get_master_addr,
        ..ROW
    },
    RespCommand {
        name: "sentinel|masters",
        arity: 2,
        flags: ANY_TIME,
        summary: "Returns the monitored masters.",
        run: sentinel::masters,
        ..ROW
    },
    RespCommand {
        name: "sentinel|master",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the state of a master.",
        run: sentinel::master,
        ..ROW
    },
    RespCommand {
        name: "sentinel|slaves",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the replicas of a master.",
        run: sentinel::others,
        ..ROW
    },
    RespCommand {
        name: "sentinel|replicas",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the replicas of a master.",
        run: sentinel::others,
        ..ROW
    },
    RespCommand {
        name: "sentinel|sentinels",
        arity: 3,
        flags: ANY_TIME,
        summary: "Returns the Sentinel instances of a master.",
        run: sentinel::others,
        ..ROW
    },
];
