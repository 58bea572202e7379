//! Several commands as one transaction of the store.

use super::CONNECTION;
use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::Command;
use crate::commands::transactions;

const ROW: Command = Command { group: CommandGroup::Transactions, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "multi",
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE),
        summary: "Queues what follows until EXEC.",
        run: transactions::multi,
        ..ROW
    },
    Command {
        name: "exec",
        flags: CONNECTION.and(CommandFlags::SKIP_SLOWLOG).and(CommandFlags::AT_ONCE),
        summary: "Runs what was queued, all at one instant.",
        complexity: "That of what was queued",
        differs: "The region is changed by all of them or by none, also for embedded processes; a \
                  command that fails in it leaves the others' changes, as in Redis. If the commit \
                  is refused (no room, more than 4096 records, a tag that is taken), or all of it \
                  takes longer than `resp.exec_max` (a second, the sending of its messages counted \
                  as a microsecond for each hearer), or its answers are longer than \
                  `limits.output_bytes_max`, EXEC answers one error, and nothing has changed. \
                  Commands that walk over keys see what was there before; those that change keys \
                  on such a walk, those that subscribe, and HELLO answer an error. Messages are \
                  sent behind the commit.",
        run: transactions::exec,
        ..ROW
    },
    Command {
        name: "discard",
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE),
        summary: "Forgets what was queued.",
        run: transactions::discard,
        ..ROW
    },
    Command {
        name: "watch",
        arity: -2,
        flags: CONNECTION
            .and(CommandFlags::FAST)
            .and(CommandFlags::ALLOW_BUSY)
            .and(CommandFlags::AT_ONCE),
        keys: ArgPositions::ALL,
        summary: "Lets EXEC do nothing if one of these keys is changed before.",
        complexity: "O(N), N keys given",
        differs: "At most 4096 keys. A key that was not there, has come and has gone again counts \
                  as unchanged.",
        run: transactions::watch,
        ..ROW
    },
    Command {
        name: "unwatch",
        flags: CONNECTION.and(CommandFlags::FAST).and(CommandFlags::ALLOW_BUSY),
        summary: "Watches no key any longer.",
        run: transactions::unwatch,
        ..ROW
    },
];
