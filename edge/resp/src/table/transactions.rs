//! Several commands as one transaction of the store.

use super::TALK;
use crate::client::Command;
use crate::command::{Flags, Group, Places};

const ROW: Command = Command { group: Group::Transactions, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "multi",
        flags: TALK.and(Flags::FAST).and(Flags::ALLOW_BUSY).and(Flags::AT_ONCE),
        summary: "Queues what follows until EXEC.",
        ..ROW
    },
    Command {
        name: "exec",
        flags: TALK.and(Flags::SKIP_SLOWLOG).and(Flags::AT_ONCE),
        summary: "Runs what was queued, all at one instant.",
        complexity: "That of what was queued",
        differs: "The region is changed by all of them or by none, also for embedded processes; a \
                  command that fails in it leaves the others' changes, as in Redis.",
        ..ROW
    },
    Command {
        name: "discard",
        flags: TALK.and(Flags::FAST).and(Flags::ALLOW_BUSY).and(Flags::AT_ONCE),
        summary: "Forgets what was queued.",
        ..ROW
    },
    Command {
        name: "watch",
        arity: -2,
        flags: TALK.and(Flags::FAST).and(Flags::ALLOW_BUSY).and(Flags::AT_ONCE),
        keys: Places::ALL,
        summary: "Lets EXEC do nothing if one of these keys is changed before.",
        complexity: "O(N), N keys given",
        ..ROW
    },
    Command {
        name: "unwatch",
        flags: TALK.and(Flags::FAST).and(Flags::ALLOW_BUSY),
        summary: "Watches no key any longer.",
        ..ROW
    },
];
