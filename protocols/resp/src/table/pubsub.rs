//! Publish and subscribe commands.

use super::{ANY_TIME, CONNECTION};
use crate::command::{ArgPositions, CommandFlags, CommandGroup};
use crate::command_context::RespCommand;
use crate::commands::pubsub;

const ROW: RespCommand = RespCommand { group: CommandGroup::Pubsub, ..super::ROW };

pub(crate) const COMMANDS: &[RespCommand] = &[
    RespCommand {
        name: "subscribe",
        arity: -2,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Subscribes to one or more channels.",
        complexity: "O(N), N channels given",
        differs: "Rejected between MULTI and EXEC. A channel name has at most 4096 bytes.",
        run: pubsub::subscribe,
        ..ROW
    },
    RespCommand {
        name: "unsubscribe",
        arity: -1,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Unsubscribes from channels, or from all channels.",
        complexity: "O(N), N channels given",
        differs: "Rejected between MULTI and EXEC.",
        run: pubsub::unsubscribe,
        ..ROW
    },
    RespCommand {
        name: "psubscribe",
        arity: -2,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Subscribes to the channels that match one or more patterns.",
        complexity: "O(N), N patterns given",
        differs: "Rejected between MULTI and EXEC. A pattern has at most 4096 bytes, a client at \
                  most 1024 patterns, all clients together at most 16384 different patterns. The \
                  limit of a client shrinks as their number grows: it is 256 when half of them \
                  are in use.",
        run: pubsub::psubscribe,
        ..ROW
    },
    RespCommand {
        name: "punsubscribe",
        arity: -1,
        flags: CONNECTION.and(CommandFlags::PUBSUB).and(CommandFlags::SUBSCRIBED),
        channels: ArgPositions::ALL,
        summary: "Unsubscribes from patterns, or from all patterns.",
        complexity: "O(N), N patterns given",
        differs: "Rejected between MULTI and EXEC.",
        run: pubsub::punsubscribe,
        ..ROW
    },
    RespCommand {
        name: "publish",
        arity: 3,
        flags: ANY_TIME.and(CommandFlags::PUBSUB).and(CommandFlags::FAST),
        channels: ArgPositions::ONE,
        summary: "Posts a message to a channel.",
        complexity: "O(N+M), N subscribers, M patterns that start as the channel does",
        differs: "Between MULTI and EXEC the message is sent after the commit, and the reply is \
                  the number of clients that would have received it before.",
        run: pubsub::publish,
        ..ROW
    },
    RespCommand {
        name: "pubsub",
        arity: -2,
        flags: CommandFlags::CONTAINER,
        summary: "Contains commands that inspect channels.",
        ..ROW
    },
    RespCommand {
        name: "pubsub|channels",
        arity: -2,
        flags: ANY_TIME.and(CommandFlags::PUBSUB),
        summary: "Returns the active channels.",
        complexity: "O(N), N channels",
        run: pubsub::channels,
        ..ROW
    },
    RespCommand {
        name: "pubsub|numsub",
        arity: -2,
        flags: ANY_TIME.and(CommandFlags::PUBSUB),
        summary: "Returns the number of subscribers of channels.",
        complexity: "O(N), N channels given",
        run: pubsub::numsub,
        ..ROW
    },
    RespCommand {
        name: "pubsub|numpat",
        arity: 2,
        flags: ANY_TIME.and(CommandFlags::PUBSUB),
        summary: "Returns the number of pattern subscriptions.",
        run: pubsub::numpat,
        ..ROW
    },
];
