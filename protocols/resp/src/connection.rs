//! One client's conversation: requests in, answers out, and what others send to it.

mod prefetch;

use crate::command::{Flags, Places};
use crate::command_context::{Client, Command};
use crate::commands::{local, pubsub};
use crate::connection_state::{Link, Queue};
use crate::core_context::OnCore;
use crate::parse::{Args, Parsed, Parser};

use crate::reply::error_reply::Refusal;
use crate::reply::{Reply, RespVersion};
use crate::server::SlowRequest;
use crate::sliced_task::Progress;
use crate::table::TABLE;
use nearstate_model::Error;
use nearstate_model::limits::CHANNEL_BYTES_MAX;
use nearstate_node::executor::is_due;
use nearstate_node::{
    ConnectionHandler, Consumed, LocalResource, NextAction, OUTPUT_HIGH_WATER_BYTES,
};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Arguments of a slow request that are kept, and bytes of each, as in Redis.
const SLOW_ARGS_MAX: usize = 32;
const SLOW_ARG_BYTES_MAX: usize = 128;

/// Requests between two looks at the clock, whether it is somebody else's turn.
const REQUESTS_PER_LOOK: u64 = 4;

/// Bytes that `MULTI` may queue. More is refused before it costs memory.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// What a queued request costs beside its bytes.
const QUEUED_BYTES: usize = 64;

/// A client's side.
#[derive(Debug)]
pub(crate) struct Talk {
    core: Rc<OnCore>,
    link: Link,
    parser: Parser,
    /// Requests whose records were asked for already.
    ahead: usize,
    /// Requests so far.
    requests: u64,
}

impl Talk {
    /// Begins to talk.
    pub(crate) fn new(core: Rc<OnCore>, link: Link) -> Self {
        let mut parser = Parser::new(core.server.settings.request_bytes_max);
        parser.set_stranger(link.user.is_none());
        Self { core, link, parser, ahead: 0, requests: 0 }
    }

    /// Answers one request.
    fn answer(core: &OnCore, link: &mut Link, args: Args<'_>, output: &mut Vec<u8>) {
        if args.is_empty() {
            return;
        }
        let max = core.answer_bytes_max();
        let mut reply = Reply::new(output, link.protocol).within(max);
        let mark = reply.mark();
        let mut command = None;
        let mut done = judge(link, args).and_then(|asked| {
            command = Some(asked);
            if is_queued(link, asked) {
                return queue(link, asked, args, &mut reply);
            }
            let mut client = Client {
                catalogue: &TABLE,
                server: &core.server,
                records: &core.records,
                link: &mut *link,
                txn: None,
            };
            (asked.run)(&mut client, args, &mut reply)
        });
        if reply.is_over() && done.is_ok() {
            done = Err(too_long(max, command));
        }
        let is_refused = done.is_err();
        if let Err(refusal) = done {
            reply.rewind(mark);
            reply.error(refusal.text());
            if command.is_none()
                && let Some(queue) = &mut link.queue
            {
                queue.is_spoilt = true;
            }
        }
        core.count(command, is_refused, |micros| slow_request(link, command, args, micros));
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Option<Poll<NextAction>> {
        let work = self.link.work.as_mut()?;
        let max = self.core.answer_bytes_max();
        let mut reply = Reply::new(output, self.link.protocol).within(max);
        let mark = reply.mark();
        let mut stepped = work.step(&self.core.records, &self.core.server, &mut reply);
        if stepped.is_ok() && (reply.is_over() || work.collected() > max) {
            stepped = Err(too_long(max, None));
        }
        match stepped {
            Ok(Progress::More) => return Some(Poll::Ready(NextAction::Work)),
            Ok(Progress::Done) => {}
            Err(refusal) => {
                reply.rewind(mark);
                reply.error(refusal.text());
            }
        }
        self.link.work = None;
        Some(Poll::Ready(NextAction::Read))
    }
}

impl ConnectionHandler for Talk {
    fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed {
        self.core.begin();
        let mut taken = 0;
        self.ahead = 0;
        let then = loop {
            if output.len() >= OUTPUT_HIGH_WATER_BYTES {
                break NextAction::Read;
            }
            let rest = input.get(taken..).unwrap_or_default();
            match self.parser.next(rest) {
                Parsed::Request { taken: bytes } => {
                    if self.ahead > 0 {
                        self.ahead -= 1;
                    } else if bytes < rest.len() && self.link.user.is_some() {
                        self.ahead = prefetch::look(&self.core.records, rest).saturating_sub(1);
                    }
                    let args = self.parser.args(rest);
                    Self::answer(&self.core, &mut self.link, args, output);
                    taken += bytes;
                    self.requests = self.requests.wrapping_add(1);
                }
                Parsed::Incomplete { .. } => break NextAction::Read,
                Parsed::Broken(broken) => {
                    Reply::new(output, self.link.protocol).error(&broken.to_string());
                    break NextAction::Close;
                }
            }
            self.parser.set_stranger(self.link.user.is_none());
            if self.link.is_closing {
                break NextAction::Close;
            }
            // What is left is heard in another turn: others are served between.
            let is_due = self.requests.is_multiple_of(REQUESTS_PER_LOOK) && is_due();
            if let Some(what) = self.link.near.take() {
                break NextAction::Near(what);
            }
            if self.link.work.is_some() {
                break NextAction::Work;
            }
            if is_due {
                break NextAction::Read;
            }
        };
        self.core.note_found();
        Consumed { bytes: taken, next: then }
    }

    fn buffered_bytes(&self) -> usize {
        self.parser.kept() + self.link.kept()
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction> {
        if let Some(then) = self.finish(output) {
            return then;
        }
        while output.len() < OUTPUT_HIGH_WATER_BYTES {
            match self.link.mailbox.poll(cx) {
                Poll::Ready(Some(letter)) => {
                    let mut reply = Reply::new(output, self.link.protocol);
                    pubsub::write_letter(&letter, &mut reply);
                }
                Poll::Ready(None) => return Poll::Ready(NextAction::Close),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }

    fn near(&mut self, what: LocalResource, refused: Option<&Error>, output: &mut Vec<u8>) {
        match refused {
            None => output.extend_from_slice(&local::given(what)),
            Some(why) => Reply::new(output, self.link.protocol).error(&local::refused(why)),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        pubsub::leave_all(&self.core.server, &mut self.link);
        self.core.server.leave(self.link.id);
    }
}

/// What is said instead of an answer that is too long. A change of records, or of what the client
/// hears and is, is made by then; work in slices that has a long answer changes nothing.
fn too_long(max: usize, command: Option<&Command>) -> Refusal {
    let may_change = command.is_some_and(|command| {
        let flags = command.flags;
        flags.has(Flags::WRITE) || flags.has(Flags::NOSCRIPT) && !flags.has(Flags::ADMIN)
    });
    let changed = if may_change { "; what the request was to change is changed" } else { "" };
    Refusal::new(format!(
        "ERR the answer has more than {max} bytes: ask for less at once, or raise \
         limits.output_bytes_max{changed}"
    ))
}

/// The command that is asked for, if this client may run it now.
fn judge(link: &Link, args: Args<'_>) -> Result<&'static Command, Refusal> {
    let asked = TABLE.asked(args);
    let Some(user) = &link.user else {
        return match asked {
            Ok(command) if command.flags.has(Flags::NO_AUTH) => Ok(command),
            _ => Err(Refusal::NO_AUTH),
        };
    };
    let command = asked?;
    if !matches!(command.channels, Places::No) {
        judge_channels(command, args)?;
    }
    user.check(command, args)?;
    if link.protocol == RespVersion::Resp2 && link.hears() > 0 {
        pubsub::may_run_while_hearing(command)?;
    }
    Ok(command)
}

/// A name is compared with patterns, which takes as long as both are long.
fn judge_channels(command: &Command, args: Args<'_>) -> Result<(), Refusal> {
    let mut names = command.channels.of(args).filter_map(|at| args.get(at));
    match names.find(|name| name.len() > CHANNEL_BYTES_MAX) {
        Some(name) => Err(Refusal::new(format!(
            "ERR a channel of {} bytes: its name may have {CHANNEL_BYTES_MAX}",
            name.len()
        ))),
        None => Ok(()),
    }
}

/// Between MULTI and EXEC commands are queued, but for those that are about that.
fn is_queued(link: &Link, command: &Command) -> bool {
    link.queue.is_some()
        && !matches!(
            command.name,
            "exec" | "discard" | "multi" | "watch" | "tag|watch" | "quit" | "reset"
        )
}

fn queue(
    link: &mut Link,
    command: &'static Command,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Refusal> {
    let queue = link.queue.get_or_insert_with(Queue::default);
    let kept = args.keep();
    queue.bytes += kept.bytes() + QUEUED_BYTES;
    if queue.bytes > QUEUE_BYTES_MAX {
        queue.is_spoilt = true;
        queue.requests = Vec::new();
        return Err(Refusal::new(format!(
            "ERR the commands since MULTI have more than {QUEUE_BYTES_MAX} bytes: send fewer"
        )));
    }
    queue.requests.push((command.number, kept));
    reply.simple("QUEUED");
    Ok(())
}

/// A request for the slow log. What may be a password is left out.
fn slow_request(
    link: &Link,
    command: Option<&'static Command>,
    args: Args<'_>,
    micros: u64,
) -> SlowRequest {
    let is_secret = command
        .is_none_or(|command| command.flags.has(Flags::NO_AUTH) || command.name.starts_with("acl"));
    let shown = if is_secret { 1 } else { SLOW_ARGS_MAX };
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
    SlowRequest {
        id: 0,
        at_seconds: nearstate_store::now_ms_coarse() / 1000,
        micros,
        args: kept,
        address: link.address.clone(),
        name: String::from_utf8_lossy(&link.name).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::Users;
    use crate::command::stats::CommandCounts;
    use crate::server::{Server, Settings};
    use nearstate_node::clock::Clock;
    use nearstate_node::{Core, CoreParts, Peer, PeerAddress};
    use nearstate_store::{CreateOptions, Region, since_boot};
    use std::sync::Arc;

    #[test]
    fn a_change_that_meets_conflicts_is_given_up_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
        let server = Arc::new(Server::new(Settings::new(Users::open(&TABLE))));
        let core = Core::new(CoreParts {
            index: 0,
            count: 1,
            region,
            limits: Arc::default(),
            metrics: Arc::default(),
            clock: Clock::new_virtual(),
        });
        let counts = Arc::new(CommandCounts::new(std::iter::empty()));
        let core = OnCore::new(&server, &core.unwrap(), counts);
        let address = PeerAddress::Unix { pid: None, uid: 0, gid: 0 };
        let mut link = core.link(&Peer { id: 1, address, certificate: None });
        let client = Client {
            catalogue: &TABLE,
            server: &server,
            records: &core.records,
            link: &mut link,
            txn: None,
        };
        let mut tries = 0;
        let done = client.change(|_| -> Result<(), _> {
            tries += 1;
            // Each takes half of the time that all may take.
            let begun = since_boot();
            while since_boot() < begun + crate::command_context::TRIED_FOR / 2 {}
            Err(Error::Conflict { detail: "somebody is faster".to_owned() }.into())
        });
        let refusal = done.unwrap_err();
        assert!(refusal.text().starts_with("BUSY"), "{refusal}");
        assert!((1..=3).contains(&tries), "a thousand tries would be a minute: {tries}");
    }
}
