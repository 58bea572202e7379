//! Channels: who hears them, and what is sent.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use super::deferred_array::DeferredArray;
use super::transactions::refuse_inside;
use crate::command::CommandFlags;
use crate::command_context::{CommandContext, Command};
use crate::connection_state::{ConnectionState, Subscriptions};
use crate::parse::Args;
use crate::pattern;
use crate::pubsub::mailbox::Delivery;
use crate::pubsub::{self, PatternShareExceeded, PubSub};
use crate::records::Records;
use crate::reply::Reply;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use crate::sliced_task::{TaskProgress, SlicedTask};
use nearstate_store::glob;
use std::collections::BTreeSet;

/// The most patterns of one client, also of those that others hear as well: each is a letter for
/// every message that matches. What the hub takes of new ones may be fewer.
const PATTERNS_MAX: usize = 1024;

/// Channels that a slice of `PUBSUB CHANNELS` looks at, while nobody can send a message.
const CHANNELS_IN_SLICE: usize = 64;

/// What the channels and patterns of one client may cost the node, in bytes: as much as `MULTI` may
/// queue. The next one is refused before it costs memory.
const NAMES_BYTES_MAX: usize = 64 << 20;

/// Refuses what a RESP2 client that hears something may not ask: it could not tell the answer from
/// a message.
pub(crate) fn may_run_while_hearing(command: &Command) -> Result<(), ErrorReply> {
    if command.flags.has(CommandFlags::SUBSCRIBED) {
        return Ok(());
    }
    Err(ErrorReply::new(format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
         allowed in this context",
        command.name
    )))
}

/// A client hears nothing any more.
pub(crate) fn leave_all(server: &RespServer, link: &mut ConnectionState) {
    for channel in std::mem::take(&mut link.channels).iter() {
        server.hub.leave(channel, link.id);
    }
    let patterns = std::mem::take(&mut link.patterns);
    server.hub.leave_all_matching(patterns.iter(), link.id);
}

/// Writes a message.
pub(crate) fn write_letter(letter: &Delivery, reply: &mut Reply<'_>) {
    match &letter.pattern {
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
    reply.bulk(&letter.message.channel);
    reply.bulk(&letter.message.payload);
}

/// Writes the messages that have come already: in RESP2 they could not be told from answers once
/// the client hears nothing.
pub(crate) fn write_letters(link: &ConnectionState, reply: &mut Reply<'_>) {
    link.mailbox.take_all().iter().for_each(|letter| write_letter(letter, reply));
}

/// What a client may hear: channels, or those that match patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubscriptionKind {
    Channel,
    Pattern,
}

impl SubscriptionKind {
    fn of(self, link: &mut ConnectionState) -> &mut Subscriptions {
        match self {
            Self::Channel => &mut link.channels,
            Self::Pattern => &mut link.patterns,
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
pub(crate) fn subscribe(client: &mut CommandContext<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    subscribe_all(client, args, SubscriptionKind::Channel, reply)
}

/// `PSUBSCRIBE pattern ..`
pub(crate) fn psubscribe(client: &mut CommandContext<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    subscribe_all(client, args, SubscriptionKind::Pattern, reply)
}

/// `UNSUBSCRIBE [channel ..]`
pub(crate) fn unsubscribe(
    client: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    leave(client, args, SubscriptionKind::Channel, reply)
}

/// `PUNSUBSCRIBE [pattern ..]`
pub(crate) fn punsubscribe(
    client: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    leave(client, args, SubscriptionKind::Pattern, reply)
}

fn subscribe_all(
    client: &mut CommandContext<'_>,
    args: Args<'_>,
    kind: SubscriptionKind,
    reply: &mut Reply<'_>,
) -> CommandResult {
    refuse_inside(client, args)?;
    let names = args.from(1);
    let (hub, link) = (&client.server.hub, &mut *client.link);
    let fresh: BTreeSet<&[u8]> =
        names.iter().filter(|name| !kind.of(link).contains(name)).collect();
    let most = client.server.settings.subscriptions_max;
    if link.hears().saturating_add(fresh.len()) > most {
        return Err(ErrorReply::new(format!(
            "ERR a client may hear {most} channels and patterns: unsubscribe from some, use a \
             pattern, or open another connection"
        )));
    }
    let more: usize = fresh.iter().map(|name| Subscriptions::cost(name)).sum();
    if link.channels.bytes() + link.patterns.bytes() + more > NAMES_BYTES_MAX {
        return Err(ErrorReply::new(format!(
            "ERR the names that a client hears may take {NAMES_BYTES_MAX} bytes of the node: \
             unsubscribe from some, or use a pattern"
        )));
    }
    if kind == SubscriptionKind::Pattern {
        hear_matching(hub, link, &fresh)?;
    }
    let [word, _] = kind.words();
    for name in names.iter() {
        if kind.of(link).insert(name) && kind == SubscriptionKind::Channel {
            hub.subscribe(name, link.id, &link.mailbox);
        }
        confirm(word, Some(name), link, reply);
    }
    tell(client);
    Ok(())
}

/// Hears all patterns that are new to a client, or none: with too many a message would take too
/// long.
fn hear_matching(hub: &PubSub, link: &ConnectionState, fresh: &BTreeSet<&[u8]>) -> CommandResult {
    fresh.iter().try_for_each(|name| pattern::judge(name))?;
    let held = link.patterns.len();
    if held.saturating_add(fresh.len()) > PATTERNS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR a client may hear {PATTERNS_MAX} patterns: unsubscribe from some, or subscribe to \
             channels"
        )));
    }
    hub.hear_matching(fresh, held, (link.id, &link.mailbox)).map_err(|PatternShareExceeded { heard, share }| {
        ErrorReply::new(format!(
            "ERR the clients of this node hear {heard} different patterns of at most {}, and \
                 the more they are, the fewer each may have: {share} now, and you would hear {}. \
                 Unsubscribe from some, subscribe to channels, or to patterns that others hear",
            pubsub::PATTERNS_MAX,
            held + fresh.len()
        ))
    })
}

fn leave(client: &mut CommandContext<'_>, args: Args<'_>, kind: SubscriptionKind, reply: &mut Reply<'_>) -> CommandResult {
    refuse_inside(client, args)?;
    let (hub, link) = (&client.server.hub, &mut *client.link);
    let given = args.from(1);
    let names: Vec<Vec<u8>> = if given.is_empty() {
        kind.of(link).iter().map(<[u8]>::to_vec).collect()
    } else {
        given.iter().map(<[u8]>::to_vec).collect()
    };
    for name in &names {
        match kind {
            SubscriptionKind::Channel => hub.leave(name, link.id),
            SubscriptionKind::Pattern => hub.leave_matching(name, link.id),
        };
    }
    write_letters(link, reply);
    let [_, word] = kind.words();
    if names.is_empty() {
        confirm(word, None, link, reply);
    }
    for name in &names {
        kind.of(link).remove(name);
        confirm(word, Some(name), link, reply);
    }
    tell(client);
    Ok(())
}

fn confirm(word: &[u8], name: Option<&[u8]>, link: &ConnectionState, reply: &mut Reply<'_>) {
    reply.push(3);
    reply.bulk(word);
    reply.bulk_or_nil(name);
    reply.count(link.hears());
}

/// Lets `CLIENT LIST` know.
pub(crate) fn tell(client: &CommandContext<'_>) {
    let hears = [client.link.channels.len(), client.link.patterns.len()];
    client.server.note(client.link.id, |card| card.hears = hears);
}

/// `PUBLISH channel message`
pub(crate) fn publish(client: &mut CommandContext<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let reached = client.publish(arg(args, 1), arg(args, 2));
    reply.count(reached);
    Ok(())
}

/// `PUBSUB CHANNELS [pattern]`
pub(crate) fn channels(client: &mut CommandContext<'_>, args: Args<'_>, _: &mut Reply<'_>) -> CommandResult {
    if args.len() > 3 {
        return Err(ErrorReply::fixed(
            "ERR unknown subcommand or wrong number of arguments for 'channels'. Try PUBSUB HELP.",
        ));
    }
    if let Some(pattern) = args.get(2) {
        pattern::judge(pattern)?;
    }
    let pattern = args.get(2).map(<[u8]>::to_vec);
    client.link.work = Some(Box::new(ChannelsTask { pattern, ..ChannelsTask::default() }));
    Ok(())
}

/// `PUBSUB CHANNELS`, a slice at a time.
#[derive(Debug, Default)]
struct ChannelsTask {
    pattern: Option<Vec<u8>>,
    /// The channel that was looked at last.
    last: Option<Vec<u8>>,
    found: DeferredArray,
    is_walked: bool,
}

impl SlicedTask for ChannelsTask {
    fn step(
        &mut self,
        _: &Records,
        server: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.is_walked {
            return Ok(self.found.hand_on(reply));
        }
        let looked = server.hub.channels(self.last.as_deref(), CHANNELS_IN_SLICE);
        let takes =
            |name: &[u8]| self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, name));
        looked.iter().filter(|name| takes(name)).for_each(|name| self.found.push(name));
        self.is_walked = looked.len() < CHANNELS_IN_SLICE;
        if !self.is_walked {
            self.last = looked.into_iter().next_back();
            return Ok(TaskProgress::More);
        }
        reply.array(self.found.count());
        Ok(self.found.hand_on(reply))
    }

    fn kept(&self) -> usize {
        let names = [&self.pattern, &self.last];
        self.found.bytes() + names.into_iter().flatten().map(Vec::len).sum::<usize>()
    }

    fn collected(&self) -> usize {
        self.found.bytes()
    }
}

/// `PUBSUB NUMSUB [channel ..]`
pub(crate) fn numsub(client: &mut CommandContext<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let channels = args.from(2);
    reply.array(channels.len() * 2);
    for channel in channels.iter() {
        reply.bulk(channel);
        reply.count(client.server.hub.hearers(channel));
    }
    Ok(())
}

/// `PUBSUB NUMPAT`
pub(crate) fn numpat(client: &mut CommandContext<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.count(client.server.hub.patterns());
    Ok(())
}
