//! Steps of a command that runs in slices.

use std::task::Poll;

use nearstate_model::{Error, Result};
use nearstate_node::NextAction;
use nearstate_store::Receipt;

use super::end_skip;
use crate::connection::RespConnection;
use crate::connection::delayed_replies::OwedReply;
use crate::connection_state::TaskReads;
use crate::records::KeyedRecords;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::ErrorReply;
use crate::sliced_task::TaskProgress;

/// What the reply of a command tells of that has read in slices. A failure of the region is that of
/// the next request.
fn owe_task_reads(records: &KeyedRecords, reads: &TaskReads) -> Result<()> {
    records.owe_reads(reads.keys.iter().map(Vec::as_slice))?;
    let Some(namespace) = reads.namespace else { return Ok(()) };
    records.session().owe_read(namespace, None)?;
    records.check_lease(namespace)
}

impl RespConnection {
    /// One step of the present task, if there is one.
    pub(super) fn finish(&mut self, output: &mut Vec<u8>) -> Option<Poll<NextAction>> {
        let task = self.connection.task.as_mut()?;
        if self.connection.mailbox.is_ended() {
            return Some(Poll::Ready(NextAction::Close));
        }
        let (max, from) = (self.core.answer_bytes_max(), output.len());
        let mut reply = ReplyWriter::new(output, self.connection.protocol).within(max);
        let mark = reply.mark();
        let session = self.core.core.session();
        // What another connection of the core has left.
        session.take_owed_receipt();
        let mut result = task.step(&self.core.records, &self.core.server, &mut reply);
        self.task_receipt = self.task_receipt.max(session.take_owed_receipt());
        if result.is_ok() && (reply.is_over() || task.collected() > max) {
            result = Err(ErrorReply::too_long(max));
        }
        match result {
            Ok(TaskProgress::More) => {
                if self.connection.reply_mode.is_limited() {
                    reply.rewind(mark);
                }
                self.is_reply_begun |= reply.mark() != mark;
                return Some(Poll::Ready(NextAction::Work));
            }
            Ok(TaskProgress::Done) => {}
            Err(_) if self.is_reply_begun => {
                // The client waits for the rest, and would take an error for a part of it.
                reply.rewind(mark);
                return Some(Poll::Ready(NextAction::Close));
            }
            Err(error) => {
                reply.rewind(mark);
                reply.error(error.text());
                if self.connection.tracking.as_ref().is_some_and(|options| options.is_starting) {
                    self.connection.stop_tracking(&self.core.server);
                }
            }
        }
        if let Some(options) = &mut self.connection.tracking {
            options.is_starting = false;
        }
        // What was changed is told, and waits for its replication.
        let has_changed = self.task_receipt != Receipt::NONE || session.owes_receipt();
        if let Some(reads) = self.connection.task_reads.take()
            && let Err(error @ Error::Fenced { .. }) = owe_task_reads(&self.core.records, &reads)
            && !has_changed
        {
            reply.rewind(mark);
            if self.is_reply_begun {
                return Some(Poll::Ready(NextAction::Close));
            }
            reply.error(ErrorReply::from(error).text());
        }
        if self.connection.reply_mode.is_limited() {
            reply.rewind(mark);
            end_skip(&mut self.connection);
        }
        self.connection.task = None;
        self.task_receipt = self.task_receipt.max(session.take_owed_receipt());
        let is_begun = std::mem::take(&mut self.is_reply_begun);
        let receipt = std::mem::take(&mut self.task_receipt);
        if receipt != Receipt::NONE {
            let to = output.len();
            let owed = vec![OwedReply { from, to, receipt, has_changed, is_begun }];
            return Some(Poll::Ready(self.hold(output, owed, NextAction::Read)));
        }
        Some(Poll::Ready(NextAction::Read))
    }
}
