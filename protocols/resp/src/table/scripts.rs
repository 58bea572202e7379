//! Script commands. Five scripts are supported, identified by SHA-1.

use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::scripts;

const ROW: RespCommand = RespCommand { group: CommandGroup::Scripts, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "eval",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Executes a script.",
        complexity: "That of the script",
        differs: "Supports the lock scripts of redis-py, ricsdl and sdlgo only. Other scripts are \
                  rejected.",
        run: scripts::eval,
        ..ROW
    },
    RespCommand {
        name: "evalsha",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Executes a script by its SHA-1 digest.",
        complexity: "That of the script",
        differs: "The supported scripts need no SCRIPT LOAD.",
        run: scripts::evalsha,
        ..ROW
    },
    RespCommand {
        name: "eval_ro",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::READONLY)
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Executes a read-only script.",
        complexity: "That of the script",
        differs: "Supports only the script of ricsdl that returns the validity time of a lock.",
        run: scripts::eval_ro,
        ..ROW
    },
    RespCommand {
        name: "evalsha_ro",
        arity: -3,
        flags: CommandFlags::NOSCRIPT
            .and(CommandFlags::READONLY)
            .and(CommandFlags::STALE)
            .and(CommandFlags::SKIP_MONITOR)
            .and(CommandFlags::NO_MANDATORY_KEYS)
            .and(CommandFlags::MOVABLE_KEYS),
        keys: ArgPositions::Counted { count: 2, first: 3, step: 1 },
        summary: "Executes a read-only script by its SHA-1 digest.",
        complexity: "That of the script",
        differs: "As EVAL_RO.",
        run: scripts::evalsha_ro,
        ..ROW
    },
    RespCommand {
        name: "script",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands for scripts.",
        ..ROW
    },
    RespCommand {
        name: "script|load",
        arity: 3,
        flags: CommandFlags::NOSCRIPT.and(CommandFlags::STALE),
        summary: "Returns the SHA-1 digest of a supported script.",
        complexity: "O(N), N bytes of the script",
        differs: "Rejects a script that is not supported.",
        run: scripts::load,
        ..ROW
    },
    RespCommand {
        name: "script|exists",
        arity: -3,
        flags: CommandFlags::NOSCRIPT,
        summary: "Returns which scripts, named by their SHA-1 digests, are supported.",
        complexity: "O(N), N scripts given",
        run: scripts::exists,
        ..ROW
    },
    RespCommand {
        name: "script|flush",
        arity: -2,
        flags: CommandFlags::NOSCRIPT,
        summary: "Returns OK.",
        differs: "Removes no script: the supported scripts are built in.",
        run: scripts::flush,
        ..ROW
    },
];
