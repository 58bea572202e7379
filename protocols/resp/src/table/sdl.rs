//! The twenty commands of the SDL module (o-ran-sc/ric-plt-dbaas).

use super::{GROW, READ, WRITE};
use crate::command::{ArgPositions, CommandFlags, CommandGroup, KeyspaceScope};
use crate::command_context::RespCommand;
use crate::commands::sdl;

const ROW: RespCommand = RespCommand { group: CommandGroup::Sdl, ..super::ROW };

/// Limits of the messages of one command.
const MESSAGES: &str = "At most 1024 messages; rejected if sending them would take longer than \
                        `resp.exec_max`.";

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "setie",
        arity: -4,
        flags: GROW.and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        summary: "Sets a key if its value equals the specified value.",
        complexity: "O(N), N bytes of the values",
        differs: "Compares whole values; the module compares up to the first NUL. The options of \
                  SET are checked before the value.",
        run: sdl::setie,
        ..ROW
    },
    RespCommand {
        name: "setne",
        arity: -4,
        flags: GROW.and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        summary: "Sets a key if its value differs from the specified value.",
        complexity: "O(N), N bytes of the values",
        differs: "Compares whole values. The options of SET are checked before the value.",
        run: sdl::setne,
        ..ROW
    },
    RespCommand {
        name: "delie",
        arity: 3,
        flags: WRITE.and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        summary: "Deletes a key if its value equals the specified value.",
        complexity: "O(N), N bytes of the value",
        differs: "Compares whole values.",
        run: sdl::delie,
        ..ROW
    },
    RespCommand {
        name: "delne",
        arity: 3,
        flags: WRITE.and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        summary: "Deletes a key if its value differs from the specified value.",
        complexity: "O(N), N bytes of the value",
        differs: "Compares whole values.",
        run: sdl::delne,
        ..ROW
    },
    RespCommand {
        name: "msetpub",
        arity: -5,
        flags: GROW.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::span(1, -3, 2),
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Sets keys, and publishes a message.",
        complexity: "O(N), N keys given",
        run: sdl::msetpub,
        ..ROW
    },
    RespCommand {
        name: "msetmpub",
        arity: -7,
        flags: GROW
            .and(CommandFlags::PUBSUB)
            .and(CommandFlags::MOVABLE_KEYS)
            .and(CommandFlags::MODULE),
        keys: ArgPositions::Counted { count: 1, first: 3, step: 2 },
        channels: ArgPositions::AfterCounted { count: 1, first: 3, step: 2 },
        summary: "Sets keys, and publishes messages.",
        complexity: "O(N), N keys and messages given",
        differs: MESSAGES,
        run: sdl::msetmpub,
        ..ROW
    },
    RespCommand {
        name: "setxxpub",
        arity: 5,
        flags: GROW.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Sets a key if it exists, and publishes a message.",
        run: sdl::setxxpub,
        ..ROW
    },
    RespCommand {
        name: "setnxpub",
        arity: 5,
        flags: GROW.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Sets a key if it does not exist, and publishes a message.",
        run: sdl::setnxpub,
        ..ROW
    },
    RespCommand {
        name: "setnxmpub",
        arity: -5,
        flags: GROW.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(3, -2, 2),
        summary: "Sets a key if it does not exist, and publishes messages.",
        complexity: "O(N), N messages given",
        differs: MESSAGES,
        run: sdl::setnxmpub,
        ..ROW
    },
    RespCommand {
        name: "setiepub",
        arity: 6,
        flags: GROW.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Sets a key if its value equals the specified value, and publishes a message.",
        complexity: "O(N), N bytes of the values",
        differs: "Compares whole values.",
        run: sdl::setiepub,
        ..ROW
    },
    RespCommand {
        name: "setiempub",
        arity: -6,
        flags: GROW.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(4, -2, 2),
        summary: "Sets a key if its value equals the specified value, and publishes messages.",
        complexity: "O(N), N bytes of the values",
        differs: "Compares whole values. At most 1024 messages; rejected if sending them \
                  would take longer than `resp.exec_max`.",
        run: sdl::setiempub,
        ..ROW
    },
    RespCommand {
        name: "setnepub",
        arity: 6,
        flags: GROW.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Sets a key if its value differs from the specified value, and publishes a \
                  message.",
        complexity: "O(N), N bytes of the values",
        differs: "Compares whole values.",
        run: sdl::setnepub,
        ..ROW
    },
    RespCommand {
        name: "delpub",
        arity: -4,
        flags: WRITE.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::span(1, -3, 1),
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Deletes keys, and publishes a message if at least one key existed.",
        complexity: "O(N), N keys given",
        run: sdl::delpub,
        ..ROW
    },
    RespCommand {
        name: "delmpub",
        arity: -6,
        flags: WRITE
            .and(CommandFlags::PUBSUB)
            .and(CommandFlags::MOVABLE_KEYS)
            .and(CommandFlags::MODULE),
        keys: ArgPositions::Counted { count: 1, first: 3, step: 1 },
        channels: ArgPositions::AfterCounted { count: 1, first: 3, step: 1 },
        summary: "Deletes keys, and publishes messages if at least one key existed.",
        complexity: "O(N), N keys and messages given",
        differs: MESSAGES,
        run: sdl::delmpub,
        ..ROW
    },
    RespCommand {
        name: "deliepub",
        arity: 5,
        flags: WRITE.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Deletes a key if its value equals the specified value, and publishes a message.",
        complexity: "O(N), N bytes of the value",
        differs: "Compares whole values.",
        run: sdl::deliepub,
        ..ROW
    },
    RespCommand {
        name: "deliempub",
        arity: -5,
        flags: WRITE.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(3, -2, 2),
        summary: "Deletes a key if its value equals the specified value, and publishes messages.",
        complexity: "O(N), N bytes of the value",
        differs: "Compares whole values. At most 1024 messages; rejected if sending them \
                  would take longer than `resp.exec_max`.",
        run: sdl::deliempub,
        ..ROW
    },
    RespCommand {
        name: "delnepub",
        arity: 5,
        flags: WRITE.and(CommandFlags::PUBSUB).and(CommandFlags::MODULE),
        keys: ArgPositions::ONE,
        channels: ArgPositions::span(-2, -2, 1),
        summary: "Deletes a key if its value differs from the specified value, and publishes a \
                  message.",
        complexity: "O(N), N bytes of the value",
        differs: "Compares whole values.",
        run: sdl::delnepub,
        ..ROW
    },
    RespCommand {
        name: "nget.atomic",
        arity: -2,
        flags: READ.and(CommandFlags::MODULE),
        walk: KeyspaceScope::Pattern(1),
        summary: "Returns all keys that match a pattern with their values, read atomically.",
        complexity: "O(N), N keys of the namespace or of all namespaces",
        differs: "All values are of one instant. A key that is created while the names are \
                  collected may be missing. Rejected if more than 4096 keys match. Between MULTI \
                  and EXEC it does not include keys that the same transaction created.",
        run: sdl::nget_atomic,
        ..ROW
    },
    RespCommand {
        name: "nget.noatomic",
        arity: -2,
        flags: READ.and(CommandFlags::MODULE),
        walk: KeyspaceScope::Pattern(1),
        summary: "Returns all keys that match a pattern with their values.",
        complexity: "O(N), N keys of the namespace or of all namespaces",
        differs: "Rejected if keys and values exceed 256 MiB. Between MULTI and EXEC as \
                  NGET.ATOMIC.",
        run: sdl::nget_noatomic,
        ..ROW
    },
    RespCommand {
        name: "ndel.atomic",
        arity: 2,
        flags: WRITE.and(CommandFlags::MODULE),
        walk: KeyspaceScope::Pattern(1),
        summary: "Atomically deletes all keys that match a pattern.",
        complexity: "O(N), N keys of the namespace or of all namespaces",
        differs: "A key that is created while the names are collected may remain. Rejected if more \
                  than 4096 keys match. Between MULTI and EXEC it does not include keys that the \
                  same transaction created.",
        run: sdl::ndel_atomic,
        ..ROW
    },
];
