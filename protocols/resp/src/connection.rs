//! One client connection: parses requests, executes them, and writes replies and messages.

mod task;
mod delayed_replies;
mod owed;
mod postponed;
mod prefetch;

use crate::command::{ArgPositions, CommandFlags};
use crate::command_context::{CommandContext, RespCommand};
use crate::commands::{local, pubsub, sentinel};
use crate::connection::delayed_replies::{DelayedReplies, OwedReply};
use crate::connection::owed::{is_logged, owe};
use crate::connection_state::{
    CachingMode, CommandQueue, ConnectionState, PostponeCause, PostponedRequest, ReplyMode,
};
use crate::core_context::CoreContext;
use crate::parse::{Args, ParseResult, RequestParser};

use crate::reply::error_reply::ErrorReply;
use crate::reply::{ReplyWriter, RespVersion};
use crate::server::SlowLogEntry;
use crate::table::TABLE;
use nearstate_local_transport::response_line;
use nearstate_model::limits::CHANNEL_BYTES_MAX;
use nearstate_node::executor::is_due;
use nearstate_node::{
    ConnectionHandler, Consumed, DescriptorReply, LocalPeer, NextAction, OUTPUT_HIGH_WATER_BYTES,
};
use nearstate_store::{Receipt, since_boot};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Entries of a slow log's arguments and bytes of each argument, as in Redis.
const SLOW_ARGS_MAX: usize = 32;
const SLOW_ARG_BYTES_MAX: usize = 128;

/// Requests between two checks whether the time slice of this connection is over.
const REQUESTS_PER_CLOCK_CHECK: u64 = 4;

/// Bytes of requests that `MULTI` queues. Further requests are rejected before they use memory.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Memory overhead of a queued request.
const QUEUED_BYTES: usize = 64;

/// Handler of one connection.
#[derive(Debug)]
pub(crate) struct RespConnection {
    core: Rc<CoreContext>,
    connection: ConnectionState,
    parser: RequestParser,
    /// Requests executed.
    requests: u64,
    /// The current task has written a part of its reply.
    is_reply_begun: bool,
    /// The last commit of the current task that waits until it is replicated.
    task_receipt: Receipt,
    /// Replies whose commits are not replicated yet. Boxed: an idle connection has none.
    delayed: Option<Box<DelayedReplies>>,
    /// The node ends.
    is_draining: bool,
}

impl RespConnection {
    /// A new connection.
    pub(crate) fn new(core: Rc<CoreContext>, connection: ConnectionState) -> Self {
        let mut parser = RequestParser::new(core.server.settings.request_bytes_max);
        parser.set_unauthenticated(connection.user.is_none());
        Self {
            core,
            connection,
            parser,
            requests: 0,
            is_reply_begun: false,
            task_receipt: Receipt::NONE,
            delayed: None,
            is_draining: false,
        }
    }

    /// Executes one request.
    fn answer(
        core: &CoreContext,
        connection: &mut ConnectionState,
        args: Args<'_>,
        output: &mut Vec<u8>,
    ) {
        if args.is_empty() {
            return;
        }
        let max = core.answer_bytes_max();
        let mut reply = ReplyWriter::new(output, connection.protocol).within(max);
        let mark = reply.mark();
        let mut command = None;
        let server = &core.server;
        let is_observed = server.pause.is_set()
            | server.monitors.is_any()
            | connection.tracking.is_some()
            | connection.reply_mode.is_limited();
        let mut done = check_request(core, connection, args).and_then(|requested| {
            command = Some(requested);
            if is_observed {
                before_request(core, connection, requested, args)?;
            }
            if is_queued(connection, requested) {
                return queue(connection, requested, args, &mut reply);
            }
            let mut client = CommandContext {
                table: core.recent.table(),
                server: &core.server,
                records: &core.records,
                connection: &mut *connection,
                txn: None,
            };
            (requested.run)(&mut client, args, &mut reply)
        });
        if reply.is_over() && done.is_ok() {
            done = Err(too_long(max, command));
        }
        // One that is queued has not run.
        if connection.queue.is_none()
            && let Some(command) = command
            && is_logged(core)
        {
            done = owe(core, connection, (command, args), done);
        }
        let is_refused = done.is_err();
        if let Err(error) = done {
            reply.rewind(mark);
            if connection.postponed.is_some() {
                // It has changed nothing, and counts when it runs.
                if is_observed {
                    end_recording(core, connection);
                }
                return;
            }
            reply.error(error.text());
            if command.is_none() {
                if let Some(queue) = &mut connection.queue {
                    queue.is_dirty = true;
                }
                core.count_rejected(TABLE.find_requested(args));
            }
        }
        if is_observed {
            if is_silent(connection, command) {
                reply.rewind(mark);
            }
            after_request(core, connection, command, args);
        }
        core.count(command, is_refused, |micros| slow_request(connection, command, args, micros));
    }

    /// What the last request asks for, if it is not the next request.
    #[inline]
    fn next_action(&mut self) -> Option<NextAction> {
        let connection = &self.connection;
        self.parser.set_unauthenticated(connection.user.is_none());
        if connection.is_closing {
            return Some(NextAction::Close);
        }
        if connection.local_request.is_some() {
            return Some(NextAction::SendDescriptors);
        }
        (connection.task.is_some() || connection.postponed.is_some()).then_some(NextAction::Work)
    }
}

impl ConnectionHandler for RespConnection {
    fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed {
        self.core.begin();
        let mut taken = 0;
        let mut owed = Vec::new();
        // What another connection of the core has left.
        self.core.core.session().take_owed_receipt();
        let then = loop {
            if output.len() >= OUTPUT_HIGH_WATER_BYTES {
                break NextAction::Read;
            }
            let rest = input.get(taken..).unwrap_or_default();
            match self.parser.next(rest) {
                ParseResult::Request { taken: bytes } => {
                    if bytes < rest.len() && self.parser.parse_following(rest) {
                        prefetch::prefetch_keys(&self.core, self.parser.parsed(rest));
                    }
                    let args = self.parser.args(rest);
                    if let Some(reply) = answer_owed(&self.core, &mut self.connection, args, output)
                    {
                        owed.push(reply);
                    }
                    taken += bytes;
                    self.requests = self.requests.wrapping_add(1);
                }
                ParseResult::Incomplete { .. } => break NextAction::Read,
                ParseResult::ProtocolError(broken) => {
                    ReplyWriter::new(output, self.connection.protocol).error(&broken.to_string());
                    break NextAction::Close;
                }
            }
            if let Some(next) = self.next_action() {
                break next;
            }
            if taken == input.len() {
                self.parser.end_input();
                break NextAction::Read;
            }
            // The remaining input is read later, after other connections were served.
            if self.requests.is_multiple_of(REQUESTS_PER_CLOCK_CHECK) && is_due() {
                break NextAction::Read;
            }
        };
        self.core.count_lookups();
        Consumed { bytes: taken, next: self.hold(output, owed, then) }
    }

    fn is_unauthenticated(&self) -> bool {
        self.connection.user.is_none()
    }

    fn may_wait_for_ever(&self) -> bool {
        self.connection.postponed.is_some()
    }

    fn begin_drain(&mut self) {
        self.is_draining = true;
    }

    fn buffered_bytes(&self) -> usize {
        let delayed = self.delayed.as_ref().map_or(0, |delayed| delayed.bytes());
        self.parser.memory_bytes() + self.connection.memory_bytes() + delayed
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction> {
        if let Some(then) = self.release(cx, output) {
            return then;
        }
        if let Some(then) = self.resume(cx, output) {
            return then;
        }
        if let Some(then) = self.finish(output) {
            return then;
        }
        while output.len() < OUTPUT_HIGH_WATER_BYTES {
            match self.connection.mailbox.poll(cx) {
                Poll::Ready(Some(delivery)) => {
                    let mut reply = ReplyWriter::new(output, self.connection.protocol);
                    pubsub::write_delivery(&delivery, &self.connection, &mut reply);
                }
                Poll::Ready(None) => return Poll::Ready(NextAction::Close),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.connection.mailbox.poll_end(cx)
    }

    fn send_descriptors(
        &mut self,
        peer: nearstate_model::Result<&LocalPeer<'_>>,
        output: &mut Vec<u8>,
    ) -> Option<DescriptorReply> {
        let resource = self.connection.local_request.take()?;
        let granted = peer.and_then(|peer| local::grant(resource, peer, self.core.core.region()));
        match granted {
            Ok(reply) => {
                output.extend_from_slice(&response_line(resource));
                Some(reply)
            }
            Err(error) => {
                ReplyWriter::new(output, self.connection.protocol).error(&local::error(&error));
                None
            }
        }
    }
}

impl Drop for RespConnection {
    fn drop(&mut self) {
        // Others may hold the mailbox: nothing is queued in it any more.
        self.connection.mailbox.close();
        pubsub::unsubscribe_all(&self.core.server, &mut self.connection);
        self.core.server.monitors.remove(self.connection.id);
        self.connection.stop_tracking(&self.core.server);
        if self.connection.postponed.is_some() {
            self.core.server.pause.forget(self.connection.id);
        }
        self.core.server.remove_client(self.connection.id);
        if self.core.server.tracking.is_any() {
            let budget = &self.core.server.pubsub.budget;
            self.core.server.tracking.close_redirections(self.connection.id, budget);
        }
    }
}

/// Executes one request. Returns its reply if that has to wait until a commit is replicated.
fn answer_owed(
    core: &CoreContext,
    connection: &mut ConnectionState,
    args: Args<'_>,
    output: &mut Vec<u8>,
) -> Option<OwedReply> {
    let (from, first) = (output.len(), connection.waiting_messages.messages.len());
    let session = core.core.session();
    let before = session.last_commit_position();
    RespConnection::answer(core, connection, args, output);
    if !session.owes_receipt() {
        return None;
    }
    let receipt = session.take_owed_receipt();
    connection.waiting_messages.owe(first, receipt);
    let has_changed = session.last_commit_position() != before;
    Some(OwedReply { from, to: output.len(), receipt, has_changed, is_begun: false })
}

/// The error for a reply that is too long. By then a change of the connection's subscriptions or
/// user is made. A command that changes records and returns some of them checks its reply before
/// the commit. A sliced task with a long reply changes nothing.
fn too_long(max: usize, command: Option<&RespCommand>) -> ErrorReply {
    let may_change = command.is_some_and(|command| {
        let flags = command.flags;
        flags.has(CommandFlags::WRITE)
            || flags.has(CommandFlags::NOSCRIPT) && !flags.has(CommandFlags::ADMIN)
    });
    let error = ErrorReply::too_long(max);
    if may_change {
        return ErrorReply::new(format!("{error}; the changes of the request were made"));
    }
    error
}

/// The command of a request, if this client may execute it now.
fn check_request(
    core: &CoreContext,
    connection: &ConnectionState,
    args: Args<'_>,
) -> Result<&'static RespCommand, ErrorReply> {
    let requested = core.recent.lookup(args);
    let Some(user) = &connection.user else {
        return match requested {
            Ok(command) if command.flags.has(CommandFlags::NO_AUTH) => Ok(command),
            _ => Err(ErrorReply::NO_AUTH),
        };
    };
    if connection.is_sentinel {
        sentinel::check_served(&core.server, connection, args)?;
    }
    let command = requested?;
    if !matches!(command.channels, ArgPositions::None) {
        check_channel_names(command, args)?;
    }
    user.check(command, args)?;
    if connection.protocol == RespVersion::Resp2 && connection.subscription_count() > 0 {
        pubsub::check_allowed_while_subscribed(command)?;
    }
    Ok(command)
}

/// Limits the length of names, because matching a name with a pattern takes time in proportion to
/// the product of their lengths.
fn check_channel_names(command: &RespCommand, args: Args<'_>) -> Result<(), ErrorReply> {
    let mut names = command.channels.of(args).filter_map(|at| args.get(at));
    match names.find(|name| name.len() > CHANNEL_BYTES_MAX) {
        Some(name) => Err(ErrorReply::new(format!(
            "ERR channel name of {} bytes is too long: the limit is {CHANNEL_BYTES_MAX}",
            name.len()
        ))),
        None => Ok(()),
    }
}

/// Before a request while there is a pause, a monitoring client, or tracking of this one.
#[cold]
fn before_request(
    core: &CoreContext,
    connection: &mut ConnectionState,
    command: &RespCommand,
    args: Args<'_>,
) -> Result<(), ErrorReply> {
    pause(core, connection, command, args)?;
    if connection.tracking.is_some() && !is_queued(connection, command) {
        connection.track_keys(&core.server, command, args);
        if connection.is_no_loop() {
            core.records.session().record_own_changes();
            core.server.tracking.begin_request(connection.id);
        }
    }
    Ok(())
}

/// Whether the reply to a request is not sent. Confirmations of subscriptions are messages.
fn is_silent(connection: &ConnectionState, command: Option<&RespCommand>) -> bool {
    let is_pushed = command.is_some_and(|command| command.name.ends_with("subscribe"));
    connection.reply_mode.is_limited() && !is_pushed
}

/// The request to which `CLIENT REPLY SKIP` applies is complete.
fn end_skip(connection: &mut ConnectionState) {
    if connection.reply_mode == ReplyMode::Skip {
        connection.reply_mode = ReplyMode::On;
    }
}

/// After a request while there is a pause, a monitoring client, or tracking of this one.
#[cold]
fn after_request(
    core: &CoreContext,
    connection: &mut ConnectionState,
    command: Option<&RespCommand>,
    args: Args<'_>,
) {
    let is_executed =
        command.is_some_and(|command| command.is_monitored() && !is_queued(connection, command));
    if is_executed && core.server.monitors.is_any() {
        core.server.monitor(&connection.address, args);
    }
    if connection.task.is_none() && command.is_none_or(|command| command.name != "client|reply") {
        end_skip(connection);
    }
    end_recording(core, connection);
    if let Some(options) = &mut connection.tracking
        && connection.queue.is_none()
        && command.is_none_or(|command| !command.name.starts_with("client|"))
    {
        options.caching = CachingMode::Unset;
    }
}

/// Ends what [`before_request`] has begun. Always: the request may have ended the tracking.
fn end_recording(core: &CoreContext, connection: &ConnectionState) {
    let changes = core.records.session().take_own_changes();
    if connection.is_no_loop() {
        let budget = &core.server.pubsub.budget;
        core.server.tracking.end_request(connection.id, changes, budget);
    }
}

/// Postpones a request that `CLIENT PAUSE` concerns. Requests that authenticate or end the
/// connection run, and so does the one that ends the pause.
fn pause(
    core: &CoreContext,
    connection: &mut ConnectionState,
    command: &RespCommand,
    args: Args<'_>,
) -> Result<(), ErrorReply> {
    if command.flags.has(CommandFlags::NO_AUTH) || command.name == "client|unpause" {
        return Ok(());
    }
    let is_write = |command: &RespCommand| {
        // A message changes something as well.
        command.may_write() || matches!(command.name, "publish")
    };
    let is_writing = match &connection.queue {
        Some(queue) if command.name == "exec" => queue
            .requests
            .iter()
            .any(|(number, _)| TABLE.commands().get(usize::from(*number)).is_some_and(is_write)),
        _ => is_write(command),
    };
    let Some(wait) = core.server.pause.left(is_writing, since_boot()) else { return Ok(()) };
    let cause = PostponeCause::Pause(is_writing);
    connection.postponed =
        Some(PostponedRequest { request: args.keep(), cause, wait, timer: None });
    Err(ErrorReply::fixed("ERR the request is postponed"))
}

/// Between MULTI and EXEC all commands are queued except those that control the transaction.
#[inline]
fn is_queued(connection: &ConnectionState, command: &RespCommand) -> bool {
    connection.queue.is_some() && is_part_of_transaction(command)
}

#[inline(never)]
fn is_part_of_transaction(command: &RespCommand) -> bool {
    !matches!(command.name, "exec" | "discard" | "multi" | "watch" | "tag|watch" | "quit" | "reset")
}

fn queue(
    connection: &mut ConnectionState,
    command: &'static RespCommand,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> Result<(), ErrorReply> {
    let queue = connection.queue.get_or_insert_with(CommandQueue::default);
    let kept = args.keep();
    queue.bytes += kept.bytes() + QUEUED_BYTES;
    if queue.bytes > QUEUE_BYTES_MAX {
        queue.is_dirty = true;
        queue.requests = Vec::new();
        return Err(ErrorReply::new(format!(
            "ERR queued commands exceed {QUEUE_BYTES_MAX} bytes: queue fewer commands after \
             MULTI"
        )));
    }
    queue.requests.push((command.number, kept));
    reply.simple("QUEUED");
    Ok(())
}

/// The slow log entry of a request, without arguments that may contain passwords.
fn slow_request(
    connection: &ConnectionState,
    command: Option<&'static RespCommand>,
    args: Args<'_>,
    micros: u64,
) -> SlowLogEntry {
    let is_secret = command.is_none_or(|command| {
        command.flags.has(CommandFlags::NO_AUTH) || command.name.starts_with("acl")
    });
    let shown = match args.len() {
        _ if is_secret => 1,
        // The last entry is the number of those that are not shown.
        count if count > SLOW_ARGS_MAX => SLOW_ARGS_MAX - 1,
        count => count,
    };
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for arg in args.iter().take(shown) {
        let cut = arg.get(..SLOW_ARG_BYTES_MAX).unwrap_or(arg);
        let mut bytes = cut.to_vec();
        if cut.len() < arg.len() {
            bytes.extend_from_slice(
                format!("... ({} more bytes)", arg.len() - cut.len()).as_bytes(),
            );
        }
        kept.push(bytes);
    }
    if args.len() > kept.len() {
        kept.push(format!("... ({} more arguments)", args.len() - kept.len()).into_bytes());
    }
    SlowLogEntry {
        id: 0,
        at_seconds: nearstate_store::now_ms_coarse() / 1000,
        micros,
        args: kept,
        address: connection.address.clone(),
        name: String::from_utf8_lossy(&connection.name).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_context::test_core::TestCore;
    use nearstate_node::clock::Clock;
    use nearstate_store::since_boot;

    #[test]
    fn a_change_with_repeated_conflicts_ends_at_the_deadline() {
        let test = TestCore::new(&Clock::new_virtual());
        let (core, mut connection) = (&test.core, test.connection());
        let client = CommandContext {
            table: &TABLE,
            server: &test.server,
            records: &core.records,
            connection: &mut connection,
            txn: None,
        };
        let session = core.records.session();
        let resolved = core.records.resolve_or_create(b"{n},k", 1).unwrap();
        let mut tries = 0_u32;
        let done = client.change(|change| -> Result<(), _> {
            tries += 1;
            // Each run takes half of the time limit.
            let begun = since_boot();
            while since_boot() < begun + crate::command_context::RETRY_TIME_MAX / 2 {}
            change.read_at(resolved)?;
            session.put(resolved.namespace, resolved.key, &tries.to_le_bytes())?;
            change.txn.put(resolved.namespace, resolved.key, b"late")?;
            Ok(())
        });
        let error = done.unwrap_err();
        assert!(error.text().starts_with("BUSY"), "{error}");
        assert_eq!(tries, nearstate_store::RUNS_MIN, "a thousand tries would be a minute");
    }
}
