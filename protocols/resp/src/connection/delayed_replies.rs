//! Replies of commits that are not replicated yet, in namespaces whose commits wait
//! (`docs/decisions/029-policies.md`). The connection handles no further request meanwhile; its
//! core serves others.

use std::collections::BTreeMap;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result};
use nearstate_node::executor::{Sleep, sleep};
use nearstate_node::{NextAction, OUTPUT_HIGH_WATER_BYTES};
use nearstate_store::{Receipt, ReceiptState, ReceiptWait, Session};

use crate::connection::RespConnection;
use crate::connection_state::WaitingMessage;
use crate::reply::error_reply::ErrorReply;
use crate::reply::{ReplyWriter, RespVersion};
use crate::server::RespServer;

/// The replies of one read, from the first one on that waits. Those behind it wait as well, because
/// replies are in the order of requests: a pipeline waits once.
#[derive(Debug)]
pub(super) struct DelayedReplies {
    bytes: Vec<u8>,
    owed: Vec<OwedReply>,
    /// What is sent to subscribers with them.
    messages: Vec<WaitingMessage>,
    wait: Option<ReceiptWait>,
    timer: Option<Sleep>,
    /// The longest time that they wait.
    limit: Duration,
    /// What the node does afterwards.
    next: NextAction,
}

/// What has become of commits at one moment.
type CommitStates = BTreeMap<Receipt, Result<ReceiptState>>;

/// A reply that tells of a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwedReply {
    /// Where it begins and ends.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) receipt: Receipt,
    /// Its request has committed. Otherwise it tells of the commit of another one.
    pub(super) has_changed: bool,
    /// Its beginning was sent: it cannot become an error.
    pub(super) is_begun: bool,
}

impl DelayedReplies {
    /// Takes the replies from the first owed one on out of the output. `owed` is not empty, in
    /// the order of the replies.
    pub(super) fn take(
        output: &mut Vec<u8>,
        (mut owed, messages): (Vec<OwedReply>, Vec<WaitingMessage>),
        (wait, limit): (ReceiptWait, Duration),
        next: NextAction,
    ) -> Self {
        let start = owed.first().map_or(output.len(), |first| first.from);
        for one in &mut owed {
            one.from -= start;
            one.to -= start;
        }
        let bytes = output.split_off(start);
        Self { bytes, owed, messages, wait: Some(wait), timer: None, limit, next }
    }

    /// Bytes that are delayed.
    pub(super) fn bytes(&self) -> usize {
        let of = |message: &WaitingMessage| {
            size_of::<WaitingMessage>() + message.channel.len() + message.payload.len()
        };
        self.bytes.len() + self.messages.iter().map(of).sum::<usize>()
    }

    /// What has become of the commits. It is read once: a message is sent if the reply that tells
    /// of its commit is.
    fn states(&self, session: &Session) -> CommitStates {
        let owed = self.owed.iter().map(|one| one.receipt);
        let all = owed.chain(self.messages.iter().map(|message| message.receipt));
        let mut states = CommitStates::from([(Receipt::NONE, Ok(ReceiptState::Replicated))]);
        for receipt in all {
            states.entry(receipt).or_insert_with(|| session.receipt_state(receipt));
        }
        states
    }

    /// Sends the messages, except those whose commits are not replicated. Each is sent once.
    fn publish(&mut self, states: &CommitStates, server: &RespServer) {
        for WaitingMessage { channel, payload, receipt } in self.messages.drain(..) {
            if states.get(&receipt) == Some(&Ok(ReceiptState::Replicated)) {
                server.publish(&channel, &payload);
            }
        }
    }

    /// Waits until all of them are decided, or the time is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| sleep(self.limit));
        if Pin::new(timer).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // An error of the region is that of the look that follows.
        self.wait.as_mut().map_or(Poll::Ready(()), |wait| Pin::new(wait).poll(cx).map(drop))
    }

    /// Appends the replies; an error in place of each one whose commit is not replicated.
    fn release(
        self,
        states: &CommitStates,
        protocol: RespVersion,
        output: &mut Vec<u8>,
    ) -> NextAction {
        let mut sent = 0;
        for OwedReply { from, to, receipt, has_changed, is_begun } in self.owed {
            let state = guaranteed(states.get(&receipt), "the state of each commit was read");
            if *state == Ok(ReceiptState::Replicated) {
                continue;
            }
            if is_begun {
                // The client waits for the rest, and would take an error for a part of it.
                return NextAction::Close;
            }
            let required = state.clone().and_then(|state| state.require(receipt, self.limit));
            let error = required.err();
            output.extend_from_slice(self.bytes.get(sent..from).unwrap_or_default());
            sent = to;
            // A reply that the client does not want is empty.
            if from < to {
                let error = error.unwrap_or(Error::Lost { position: receipt.position() });
                let error = if has_changed { error.into() } else { of_unchanged(error) };
                ReplyWriter::new(output, protocol).error(error.text());
            }
        }
        output.extend_from_slice(self.bytes.get(sent..).unwrap_or_default());
        self.next
    }
}

/// The error of a request that has changed nothing, whose reply would have told of a commit: its
/// client may repeat it.
fn of_unchanged(error: Error) -> ErrorReply {
    let Error::NotReplicated { position, waited_ms } = error else { return error.into() };
    ErrorReply::new(format!(
        "NOTREPLICATED the reply would tell of the commit at position {position}, which was not \
         replicated within {waited_ms} ms and may be lost: repeat the request, here or at the host \
         that owns the records by then"
    ))
}

impl RespConnection {
    /// Holds the replies from the first of these on, if there are some, until their commits are
    /// replicated. Returns what the node does now; `next` follows.
    #[inline]
    pub(super) fn hold(
        &mut self,
        output: &mut Vec<u8>,
        owed: Vec<OwedReply>,
        next: NextAction,
    ) -> NextAction {
        debug_assert!(
            !owed.is_empty() || self.connection.waiting_messages.messages.is_empty(),
            "a message waits for a reply that does not"
        );
        if owed.is_empty() { next } else { self.hold_some(output, owed, next) }
    }

    #[cold]
    fn hold_some(
        &mut self,
        output: &mut Vec<u8>,
        owed: Vec<OwedReply>,
        next: NextAction,
    ) -> NextAction {
        let last = owed.iter().map(|one| one.receipt).max().unwrap_or_default();
        let messages = std::mem::take(&mut self.connection.waiting_messages).messages;
        match self.core.core.wait_replicated(last) {
            Ok(wait) => {
                let limit = self.core.server.settings.replication_wait;
                let delayed = DelayedReplies::take(output, (owed, messages), (wait, limit), next);
                self.delayed = Some(Box::new(delayed));
                NextAction::Work
            }
            Err(error) => {
                // Without a thread nothing can be said about the commits.
                output.truncate(owed.first().map_or(output.len(), |first| first.from));
                let error = ErrorReply::from(error);
                ReplyWriter::new(output, self.connection.protocol).error(error.text());
                self.connection.is_closing = true;
                NextAction::Close
            }
        }
    }

    /// Sends delayed replies, if there are some, once their commits are replicated.
    pub(super) fn release(
        &mut self,
        cx: &mut Context<'_>,
        output: &mut Vec<u8>,
    ) -> Option<Poll<NextAction>> {
        let delayed = self.delayed.as_mut()?;
        if self.connection.mailbox.poll_end(cx).is_ready() {
            return Some(Poll::Ready(NextAction::Close));
        }
        if output.len() >= OUTPUT_HIGH_WATER_BYTES || delayed.poll(cx).is_pending() {
            return Some(Poll::Pending);
        }
        let mut delayed = self.delayed.take()?;
        let states = delayed.states(self.core.core.session());
        delayed.publish(&states, &self.core.server);
        let next = delayed.release(&states, self.connection.protocol, output);
        Some(Poll::Ready(next))
    }
}
