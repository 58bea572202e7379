//! Scripts: those five that the clients send, by their SHA-1.

use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::Command;
use crate::commands::scripts;

const ROW: Command = Command { group: CommandGroup::Scripts, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "eval",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Runs a script.",
        complexity: "That of the script",
        differs: "Knows the lock scripts of redis-py, ricsdl and sdlgo only; any other is refused.",
        run: scripts::eval,
        ..ROW
    },
    Command {
        name: "evalsha",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Runs a script by its SHA-1.",
        complexity: "That of the script",
        differs: "Knows those scripts without a SCRIPT LOAD before.",
        run: scripts::evalsha,
        ..ROW
    },
    Command {
        name: "eval_ro",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::READONLY)
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Runs a script that changes nothing.",
        complexity: "That of the script",
        differs: "Of the known scripts only that of ricsdl which asks how long a lock is valid.",
        run: scripts::eval_ro,
        ..ROW
    },
    Command {
        name: "evalsha_ro",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::READONLY)
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Runs a script that changes nothing, by its SHA-1.",
        complexity: "That of the script",
        differs: "As EVAL_RO.",
        run: scripts::evalsha_ro,
        ..ROW
    },
    Command {
        name: "script",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Looks after scripts.",
        ..ROW
    },
    Command {
        name: "script|load",
        arity: 3,
        flags: CommandFlags::NOSCRIPT.and(CommandFlags::STALE),
        summary: "The SHA-1 of a script, if it is one that we know.",
        complexity: "O(N), N bytes of the script",
        differs: "Refuses a script that we do not know.",
        run: scripts::load,
        ..ROW
    },
    Command {
        name: "script|exists",
        arity: -3,
        flags: CommandFlags::NOSCRIPT,
        summary: "Which scripts we know.",
        complexity: "O(N), N scripts given",
        run: scripts::exists,
        ..ROW
    },
    Command {
        name: "script|flush",
        arity: -2,
        flags: CommandFlags::NOSCRIPT,
        summary: "Forgets nothing.",
        differs: "The known scripts stay.",
        run: scripts::flush,
        ..ROW
    },
];
