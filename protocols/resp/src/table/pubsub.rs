//! Publish and subscribe.

use super::{ANY_TIME, CONNECTION};
use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::Command;
use crate::commands::pubsub;

const ROW: Command = Command { group: CommandGroup::Pubsub, ..super::ROW };

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "subscribe",
        arity: -2,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Listens to channels.",
        complexity: "O(N), N channels given",
        differs: "Refused between MULTI and EXEC. A name has at most 4096 bytes.",
        run: pubsub::subscribe,
        ..ROW
    },
    Command {
        name: "unsubscribe",
        arity: -1,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Listens to channels no longer; without one, to none.",
        complexity: "O(N), N channels given",
        differs: "Refused between MULTI and EXEC.",
        run: pubsub::unsubscribe,
        ..ROW
    },
    Command {
        name: "psubscribe",
        arity: -2,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Listens to the channels that match patterns.",
        complexity: "O(N), N patterns given",
        differs: "Refused between MULTI and EXEC. A name has at most 4096 bytes, a client at most \
                  1024 patterns, all clients 16384 different ones. The more there are, the \
                  fewer each client may hear that wishes for one which nobody hears yet: 256 when \
                  half are free.",
        run: pubsub::psubscribe,
        ..ROW
    },
    Command {
        name: "punsubscribe",
        arity: -1,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Listens to patterns no longer; without one, to none.",
        complexity: "O(N), N patterns given",
        differs: "Refused between MULTI and EXEC.",
        run: pubsub::punsubscribe,
        ..ROW
    },
    Command {
        name: "publish",
        arity: 3,
        flags: ANY_TIME.and(CommandFlags::PUBSUB).and(CommandFlags::FAST),
        channels: ArgPositions::ONE,
        summary: "Sends a message to all that listen to a channel.",
        complexity: "O(N+M), N that listen, M patterns that begin as the channel does",
        differs: "Between MULTI and EXEC it is sent behind the commit, and answers how many \
                  would have been reached before.",
        run: pubsub::publish,
        ..ROW
    },
    Command {
        name: "pubsub",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Looks at channels.",
        ..ROW
    },
    Command {
        name: "pubsub|channels",
        arity: -2,
        flags: ANY_TIME.and(CommandFlags::PUBSUB),
        summary: "Channels that somebody listens to.",
        complexity: "O(N), N channels",
        run: pubsub::channels,
        ..ROW
    },
    Command {
        name: "pubsub|numsub",
        arity: -2,
        flags: ANY_TIME.and(CommandFlags::PUBSUB),
        summary: "How many listen to channels.",
        complexity: "O(N), N channels given",
        run: pubsub::numsub,
        ..ROW
    },
    Command {
        name: "pubsub|numpat",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::PUBSUB),
        summary: "How many patterns are listened to.",
        run: pubsub::numpat,
        ..ROW
    },
];
