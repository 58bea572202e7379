//! `CLIENT`: commands for connections.

use super::{CONNECTION, OPERATOR};
use crate::command::{CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::{clients, connection, tracking};

const ROW: RespCommand = RespCommand { group: CommandGroup::Connection, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "client",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for connections.",
        differs: "UNBLOCK is not supported: no command blocks.",
        ..ROW
    },
    RespCommand {
        name: "client|id",
        arity: 2,
        flags: CONNECTION,
        summary: "Returns the ID of the connection.",
        run: connection::id,
        ..ROW
    },
    RespCommand {
        name: "client|setname",
        arity: 3,
        flags: CONNECTION,
        summary: "Sets the name of the connection.",
        run: connection::setname,
        ..ROW
    },
    RespCommand {
        name: "client|getname",
        arity: 2,
        flags: CONNECTION,
        summary: "Returns the name of the connection.",
        run: connection::getname,
        ..ROW
    },
    RespCommand {
        name: "client|setinfo",
        arity: 4,
        flags: CONNECTION,
        summary: "Sets the name or the version of the client library.",
        differs: "As in Redis 7.2.",
        run: connection::setinfo,
        ..ROW
    },
    RespCommand {
        name: "client|info",
        arity: 2,
        flags: CONNECTION,
        summary: "Returns information about the connection.",
        differs: "Unknown fields are omitted; `lib-name` and `lib-ver` as in Redis 7.2.",
        run: clients::info,
        ..ROW
    },
    RespCommand {
        name: "client|list",
        arity: -2,
        flags: OPERATOR,
        summary: "Lists open connections.",
        complexity: "O(N), N connections",
        differs: "As CLIENT INFO; `multi` is shown only for the calling connection.",
        run: clients::list,
        ..ROW
    },
    RespCommand {
        name: "client|kill",
        arity: -3,
        flags: OPERATOR,
        summary: "Closes connections, by address or by filters.",
        complexity: "O(N), N connections",
        differs: "MAXAGE as in Redis 7.4. Replies that the client has not read are sent first. The \
                  clients of other nodes and embedded processes are not affected.",
        run: clients::kill,
        ..ROW
    },
    RespCommand {
        name: "client|no-evict",
        arity: 3,
        flags: OPERATOR,
        summary: "Sets the flag that excludes the connection from client eviction.",
        differs: "CLIENT LIST shows the flag. It has no other effect: there is no client eviction.",
        run: clients::no_evict,
        ..ROW
    },
    RespCommand {
        name: "client|pause",
        arity: -3,
        flags: OPERATOR,
        summary: "Suspends the requests of all clients, or those that write, for a time.",
        differs: "Requests of AUTH, HELLO, QUIT, RESET and CLIENT UNPAUSE are not suspended. \
                  Embedded processes and the expiration of keys are not affected.",
        run: clients::pause,
        ..ROW
    },
    RespCommand {
        name: "client|unpause",
        arity: 2,
        flags: OPERATOR,
        summary: "Resumes the requests that CLIENT PAUSE suspended.",
        complexity: "O(N), N suspended clients",
        run: clients::unpause,
        ..ROW
    },
    RespCommand {
        name: "client|reply",
        arity: 3,
        flags: CONNECTION,
        summary: "Decides whether replies are sent: to all requests, to none, or not to the next.",
        differs: "Rejected between MULTI and EXEC.",
        run: clients::reply_mode,
        ..ROW
    },
    RespCommand {
        name: "client|no-touch",
        arity: 3,
        flags: CONNECTION,
        summary: "Returns OK.",
        differs: "As in Redis 7.2, without effect: there is no eviction.",
        run: clients::no_touch,
        ..ROW
    },
    RespCommand {
        name: "client|tracking",
        arity: -3,
        flags: CONNECTION,
        summary: "Enables or disables messages about changed keys, for client-side caches.",
        complexity: "O(N), N namespaces, in slices",
        differs: "Changes by embedded processes and other nodes are reported as well. The messages \
                  follow the change within about a millisecond, and within 100 ms for keys that \
                  expire. With NOLOOP, changes by FLUSHALL, and more than 8192 changes \
                  at once, are reported to their client as well. A message has one key, or null if \
                  changes may have been missed; then discard all. At most 65536 keys are tracked \
                  in default mode, and 1024 prefixes of all clients in BCAST mode. Prefixes must \
                  be of allowed namespaces. REDIRECT requires a connection of the same user. \
                  While a client tracks, each namespace permanently uses memory, as with \
                  notify-keyspace-events. Rejected between MULTI and EXEC.",
        run: tracking::tracking,
        ..ROW
    },
    RespCommand {
        name: "client|caching",
        arity: 3,
        flags: CONNECTION,
        summary: "Decides whether the keys of the next request are tracked.",
        run: tracking::caching,
        ..ROW
    },
    RespCommand {
        name: "client|getredir",
        arity: 2,
        flags: CONNECTION,
        summary: "Returns the ID of the connection to which messages about keys are redirected.",
        run: tracking::getredir,
        ..ROW
    },
    RespCommand {
        name: "client|trackinginfo",
        arity: 2,
        flags: CONNECTION,
        summary: "Returns how CLIENT TRACKING is used by the connection.",
        run: tracking::trackinginfo,
        ..ROW
    },
];
