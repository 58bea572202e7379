//! Publish and subscribe commands.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use super::deferred_array::{ArrayTask, DeferredArray, ElementSource};
use super::transactions::reject_in_exec;
use crate::command::CommandFlags;
use crate::command_context::{CommandContext, RespCommand};
use crate::connection_state::{ConnectionState, Subscriptions};
use crate::number::integer;
use crate::parse::Args;
use crate::pattern;
use crate::pubsub::mailbox::{Delivery, MessageKind};
use crate::pubsub::{self, PatternShareExceeded, PubSub};
use crate::records::KeyedRecords;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::reply::{ReplyWriter, RespVersion};
use crate::server::RespServer;
use nearstate_store::glob;
use std::collections::BTreeSet;

/// Limit of patterns per client, including those of other clients: each causes a delivery for every
/// matching message. The share of new patterns may be lower.
const PATTERNS_MAX: usize = 1024;

/// Channels that a slice of `PUBSUB CHANNELS` reads under the lock of the subscriptions.
const CHANNELS_IN_SLICE: usize = 64;

/// Limit of the memory of a client's subscriptions, equal to that of `MULTI`. Further subscriptions
/// are rejected before they use memory.
const NAMES_BYTES_MAX: usize = 64 << 20;

/// Rejects commands that a subscribed RESP2 client may not send, because it could not distinguish
/// replies from messages.
pub(crate) fn check_allowed_while_subscribed(command: &RespCommand) -> Result<(), ErrorReply> {
    if command.flags.has(CommandFlags::SUBSCRIBED) {
        return Ok(());
    }
    Err(ErrorReply::new(format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
         allowed in this context",
        command.name
    )))
}

/// Removes all subscriptions of a client.
pub(crate) fn unsubscribe_all(server: &RespServer, connection: &mut ConnectionState) {
    for channel in std::mem::take(&mut connection.channels).iter() {
        server.pubsub.unsubscribe(channel, connection.id);
    }
    let patterns = std::mem::take(&mut connection.patterns);
    server.pubsub.unsubscribe_patterns(patterns.iter(), connection.id);
}

/// Writes a message.
pub(crate) fn write_delivery(
    delivery: &Delivery,
    connection: &ConnectionState,
    reply: &mut ReplyWriter<'_>,
) {
    let payload = &delivery.message.payload;
    match delivery.message.kind {
        MessageKind::Published => write_published(delivery, reply),
        MessageKind::Monitor => reply.simple_bytes(payload),
        MessageKind::Invalidate => write_invalidation(Some(payload), connection, reply),
        MessageKind::InvalidateAll => write_invalidation(None, connection, reply),
        MessageKind::RedirectBroken if connection.protocol == RespVersion::Resp3 => {
            reply.push(2);
            reply.bulk(b"tracking-redir-broken");
            reply.int(integer(payload).unwrap_or_default());
        }
        // RESP2 has no form for it.
        MessageKind::RedirectBroken => {}
    }
}

/// The channel on which a RESP2 client receives the invalidations of another connection.
const INVALIDATE_CHANNEL: &[u8] = b"__redis__:invalidate";

/// Writes the key that has changed, or null for all. A RESP2 client that is not subscribed to the
/// channel could not distinguish it from a reply.
fn write_invalidation(
    key: Option<&[u8]>,
    connection: &ConnectionState,
    reply: &mut ReplyWriter<'_>,
) {
    if connection.protocol == RespVersion::Resp3 {
        reply.push(2);
        reply.bulk(b"invalidate");
    } else if connection.channels.contains(INVALIDATE_CHANNEL) {
        reply.push(3);
        reply.bulk(b"message");
        reply.bulk(INVALIDATE_CHANNEL);
    } else {
        return;
    }
    match key {
        Some(key) => {
            reply.array(1);
            reply.bulk(key);
        }
        None => reply.nil(),
    }
}

fn write_published(delivery: &Delivery, reply: &mut ReplyWriter<'_>) {
    match &delivery.pattern {
        None => {
            reply.push(3);
            reply.bulk(b"message");
        }
        Some(pattern) => {
            reply.push(4);
            reply.bulk(b"pmessage");
            reply.bulk(pattern);
        }
    }
    reply.bulk(&delivery.message.channel);
    reply.bulk(&delivery.message.payload);
}

/// Writes the queued messages. A RESP2 client without subscriptions could not distinguish them from
/// replies.
pub(crate) fn write_deliveries(connection: &ConnectionState, reply: &mut ReplyWriter<'_>) {
    let deliveries = connection.mailbox.take_all();
    for delivery in &deliveries {
        write_delivery(delivery, connection, reply);
    }
}

/// Kind of a subscription: channel or pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubscriptionKind {
    Channel,
    Pattern,
}

impl SubscriptionKind {
    fn of(self, connection: &mut ConnectionState) -> &mut Subscriptions {
        match self {
            Self::Channel => &mut connection.channels,
            Self::Pattern => &mut connection.patterns,
        }
    }

    fn words(self) -> [&'static [u8]; 2] {
        match self {
            Self::Channel => [b"subscribe", b"unsubscribe"],
            Self::Pattern => [b"psubscribe", b"punsubscribe"],
        }
    }
}

/// `SUBSCRIBE channel ..`
pub(crate) fn subscribe(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    subscribe_all(ctx, args, SubscriptionKind::Channel, reply)
}

/// `PSUBSCRIBE pattern ..`
pub(crate) fn psubscribe(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    subscribe_all(ctx, args, SubscriptionKind::Pattern, reply)
}

/// `UNSUBSCRIBE [channel ..]`
pub(crate) fn unsubscribe(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    leave(ctx, args, SubscriptionKind::Channel, reply)
}

/// `PUNSUBSCRIBE [pattern ..]`
pub(crate) fn punsubscribe(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    leave(ctx, args, SubscriptionKind::Pattern, reply)
}

fn subscribe_all(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    kind: SubscriptionKind,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let names = args.from(1);
    let (pubsub, connection) = (&ctx.server.pubsub, &mut *ctx.connection);
    let fresh: BTreeSet<&[u8]> =
        names.iter().filter(|name| !kind.of(connection).contains(name)).collect();
    let limit = ctx.server.settings.subscriptions_max;
    if connection.subscription_count().saturating_add(fresh.len()) > limit {
        return Err(ErrorReply::new(format!(
            "ERR too many subscriptions: the limit is {limit} channels and patterns per client; \
             unsubscribe from some, use a pattern, or open another connection"
        )));
    }
    let more: usize = fresh.iter().map(|name| Subscriptions::cost(name)).sum();
    if connection.channels.bytes() + connection.patterns.bytes() + more > NAMES_BYTES_MAX {
        return Err(ErrorReply::new(format!(
            "ERR subscriptions of the client exceed {NAMES_BYTES_MAX} bytes of memory: \
             unsubscribe from some or use a pattern"
        )));
    }
    if kind == SubscriptionKind::Pattern {
        subscribe_patterns(pubsub, connection, &fresh)?;
    }
    let [word, _] = kind.words();
    for name in names.iter() {
        if kind.of(connection).insert(name) && kind == SubscriptionKind::Channel {
            pubsub.subscribe(name, connection.id, &connection.mailbox);
        }
        confirm(word, Some(name), connection, reply);
    }
    update_client_list(ctx);
    Ok(())
}

/// Subscribes to all patterns that are new to the client, or to none if there would be too many.
fn subscribe_patterns(
    pubsub: &PubSub,
    connection: &ConnectionState,
    fresh: &BTreeSet<&[u8]>,
) -> CommandResult {
    fresh.iter().try_for_each(|name| pattern::validate(name))?;
    let held = connection.patterns.len();
    if held.saturating_add(fresh.len()) > PATTERNS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR too many patterns: the limit is {PATTERNS_MAX} per client; unsubscribe from \
             some or subscribe to channels"
        )));
    }
    pubsub.subscribe_patterns(fresh, held, (connection.id, &connection.mailbox)).map_err(
        |PatternShareExceeded { in_use, share }| {
            ErrorReply::new(format!(
                "ERR too many patterns: clients of this node use {in_use} of {} patterns, which \
                 limits each client to {share}; this client would have {}. Unsubscribe from \
                 some, or subscribe to channels or to patterns in use",
                pubsub::PATTERNS_MAX,
                held + fresh.len()
            ))
        },
    )
}

fn leave(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    kind: SubscriptionKind,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let (pubsub, connection) = (&ctx.server.pubsub, &mut *ctx.connection);
    let given = args.from(1);
    let names: Vec<Vec<u8>> = if given.is_empty() {
        kind.of(connection).iter().map(<[u8]>::to_vec).collect()
    } else {
        given.iter().map(<[u8]>::to_vec).collect()
    };
    for name in &names {
        match kind {
            SubscriptionKind::Channel => pubsub.unsubscribe(name, connection.id),
            SubscriptionKind::Pattern => pubsub.unsubscribe_pattern(name, connection.id),
        };
    }
    write_deliveries(connection, reply);
    let [_, word] = kind.words();
    if names.is_empty() {
        confirm(word, None, connection, reply);
    }
    for name in &names {
        kind.of(connection).remove(name);
        confirm(word, Some(name), connection, reply);
    }
    update_client_list(ctx);
    Ok(())
}

fn confirm(
    word: &[u8],
    name: Option<&[u8]>,
    connection: &ConnectionState,
    reply: &mut ReplyWriter<'_>,
) {
    reply.push(3);
    reply.bulk(word);
    reply.bulk_or_nil(name);
    reply.count(connection.subscription_count());
}

/// Updates `CLIENT LIST`.
pub(crate) fn update_client_list(ctx: &CommandContext<'_>) {
    let subscription_count = [ctx.connection.channels.len(), ctx.connection.patterns.len()];
    ctx.server.update_client(ctx.connection.id, |client_entry| {
        client_entry.subscription_count = subscription_count;
    });
}

/// `PUBLISH channel message`
pub(crate) fn publish(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let reached = ctx.publish(arg(args, 1), arg(args, 2));
    reply.count(reached);
    Ok(())
}

/// `PUBSUB CHANNELS [pattern]`
pub(crate) fn channels(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    _: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len() > 3 {
        return Err(ErrorReply::fixed(
            "ERR unknown subcommand or wrong number of arguments for 'channels'. Try PUBSUB HELP.",
        ));
    }
    if let Some(pattern) = args.get(2) {
        pattern::validate(pattern)?;
    }
    let pattern = args.get(2).map(<[u8]>::to_vec);
    let source = ChannelsSource { pattern, last: None };
    ctx.connection.task = Some(Box::new(ArrayTask::new(source)));
    Ok(())
}

/// The channels of `PUBSUB CHANNELS`.
#[derive(Debug)]
struct ChannelsSource {
    pattern: Option<Vec<u8>>,
    /// The channel that was read last.
    last: Option<Vec<u8>>,
}

impl ElementSource for ChannelsSource {
    fn read(
        &mut self,
        _: &KeyedRecords,
        server: &RespServer,
        found: &mut DeferredArray,
    ) -> Result<bool, ErrorReply> {
        let names = server.pubsub.channels(self.last.as_deref(), CHANNELS_IN_SLICE);
        let takes =
            |name: &[u8]| self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, name));
        names.iter().filter(|name| takes(name)).for_each(|name| found.push(name));
        let is_last = names.len() < CHANNELS_IN_SLICE;
        self.last = names.into_iter().next_back();
        Ok(is_last)
    }

    fn memory_bytes(&self) -> usize {
        [&self.pattern, &self.last].into_iter().flatten().map(Vec::len).sum()
    }
}

/// `PUBSUB NUMSUB [channel ..]`
pub(crate) fn numsub(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let channels = args.from(2);
    reply.array(channels.len() * 2);
    for channel in channels.iter() {
        reply.bulk(channel);
        reply.count(ctx.server.pubsub.subscribers(channel));
    }
    Ok(())
}

/// `PUBSUB NUMPAT`
pub(crate) fn numpat(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.count(ctx.server.pubsub.patterns());
    Ok(())
}
