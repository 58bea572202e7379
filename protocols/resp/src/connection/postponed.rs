//! Requests that run later: after failed authentications, during `CLIENT PAUSE`, and `WAIT`.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use nearstate_node::executor::sleep;
use nearstate_node::{NextAction, OUTPUT_HIGH_WATER_BYTES};
use nearstate_store::since_boot;

use crate::connection::{RespConnection, answer_owed};
use crate::connection_state::{PostponeCause, PostponedRequest};
use crate::reply::ReplyWriter;

/// What a request is answered that waits when its node ends.
const ENDED: &str = "UNBLOCKED the node ends, or its host owns the partition no longer: the \
                     request has not waited to its end";

impl RespConnection {
    /// Runs the postponed request, if there is one, once its wait is over.
    pub(super) fn resume(
        &mut self,
        cx: &mut Context<'_>,
        output: &mut Vec<u8>,
    ) -> Option<Poll<NextAction>> {
        let postponed = self.connection.postponed.as_mut()?;
        if self.connection.mailbox.poll_end(cx).is_ready() {
            return Some(Poll::Ready(NextAction::Close));
        }
        if output.len() >= OUTPUT_HIGH_WATER_BYTES {
            return Some(Poll::Pending);
        }
        if self.is_draining && postponed.cause.is_unbounded() {
            self.connection.postponed = None;
            self.connection.is_closing = true;
            ReplyWriter::new(output, self.connection.protocol).error(ENDED);
            return Some(Poll::Ready(NextAction::Close));
        }
        let is_over = match postponed.cause {
            PostponeCause::Auth | PostponeCause::Replicas => false,
            PostponeCause::Pause(is_write) => {
                let pause = &self.core.server.pause;
                pause.poll(cx, self.connection.id, is_write, since_boot()).is_ready()
            }
        };
        if !is_over {
            let timer = postponed.timer.get_or_insert_with(|| sleep(postponed.wait));
            if Pin::new(timer).poll(cx).is_pending() {
                return Some(Poll::Pending);
            }
        }
        let PostponedRequest { request, cause, .. } = self.connection.postponed.take()?;
        if matches!(cause, PostponeCause::Pause(_)) {
            self.core.server.pause.forget(self.connection.id);
        }
        // It was parsed and accepted when it arrived: the limits of a parser do not concern it.
        self.core.begin();
        // What another connection of the core has left.
        self.core.core.session().take_owed_receipt();
        self.connection.is_auth_due = cause == PostponeCause::Auth;
        let owed = answer_owed(&self.core, &mut self.connection, request.args(), output);
        self.connection.is_auth_due = false;
        self.requests = self.requests.wrapping_add(1);
        let then = self.next_action().unwrap_or(NextAction::Read);
        self.core.count_lookups();
        let next = self.hold(output, owed.into_iter().collect(), then);
        Some(Poll::Ready(next))
    }
}
