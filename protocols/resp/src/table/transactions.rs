//! Transaction commands.

use super::CONNECTION;
use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::transactions;

const ROW: RespCommand = RespCommand { group: CommandGroup::Transactions, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "multi",
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE),
        summary: "Starts a transaction.",
        run: transactions::multi,
        ..ROW
    },
    RespCommand {
        name: "exec",
        flags: CONNECTION.and(CommandFlags::SKIP_SLOWLOG).and(CommandFlags::AT_ONCE),
        summary: "Executes all commands of a transaction.",
        complexity: "That of the queued commands",
        differs: "Other clients and embedded processes see all changes or none. A command that \
                  fails during EXEC leaves the changes of the other commands, as in Redis. EXEC \
                  returns one error and changes nothing if the commit is rejected (region full, \
                  more than 4096 records, value of a unique tag taken), if it takes longer than \
                  `resp.exec_max` (one second; each message counts as a microsecond per \
                  subscriber), or if the replies exceed `limits.output_bytes_max`. Commands that \
                  scan keys see the state before EXEC. Commands that change keys during such a \
                  scan, commands that subscribe, and HELLO return an error. Messages are sent \
                  after the commit.",
        run: transactions::exec,
        ..ROW
    },
    RespCommand {
        name: "discard",
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE),
        summary: "Discards a transaction.",
        run: transactions::discard,
        ..ROW
    },
    RespCommand {
        name: "watch",
        arity: -2,
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE),
        keys: ArgPositions::ALL,
        summary: "Monitors changes of keys to determine the execution of a transaction.",
        complexity: "O(N), N keys given",
        differs: "At most 4096 keys. A key that did not exist, was created and deleted again \
                  counts as unchanged.",
        run: transactions::watch,
        ..ROW
    },
    RespCommand {
        name: "unwatch",
        flags: CONNECTION.and(CommandFlags::FAST).and(CommandFlags::ALLOW_BUSY),
        summary: "Removes all keys monitored by WATCH.",
        run: transactions::unwatch,
        ..ROW
    },
];
