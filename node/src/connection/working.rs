//! The phase Working: the handler continues a request that takes long, or waits for something.

use std::task::{Context, Poll};

use nearstate_model::invariant;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{ConnectionEnd, ServedConnection};
use crate::executor::{TaskClass, become_class};
use crate::protocol::NextAction;

/// Bytes of later requests from which on none are read while a request waits: a client that has
/// sent more sees that the node does not read, and its end is not noticed before the wait is over.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;

impl<S: AsyncRead + AsyncWrite + Unpin> ServedConnection<S> {
    /// Working: one step of the handler's work. `Ready`: there is output, or the work is finished.
    pub(super) fn poll_working(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        match self.poll_handler(cx) {
            Poll::Ready(NextAction::Work) => {
                // The output is written now; the next step of the work is for the next poll.
                cx.waker().wake_by_ref();
                if self.output.is_empty() {
                    return Poll::Pending;
                }
                match self.write_output(cx) {
                    Poll::Ready(Ok(())) => Poll::Pending,
                    // The caller's next write meets the same result and handles it.
                    Poll::Pending | Poll::Ready(Err(_)) => Poll::Ready(None),
                }
            }
            Poll::Ready(next) => {
                become_class(TaskClass::Request);
                self.follow(next);
                Poll::Ready(None)
            }
            Poll::Pending if self.output.is_empty() => self.poll_hang_up(cx),
            Poll::Pending => Poll::Ready(None),
        }
    }

    /// Notices the end of a client whose request may wait for ever. The end comes behind the
    /// client's later requests, which are kept.
    fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        if !self.handler.may_wait_for_ever() {
            return Poll::Pending;
        }
        let max = self.endpoint.core().limits().input_bytes_max;
        while self.input.unconsumed() < READ_AHEAD_BYTES_MAX {
            let mut scratch = self.endpoint.borrow_scratch();
            let read = self.read_into(&mut scratch, cx);
            if let Poll::Ready(Ok(bytes)) = read
                && bytes > 0
            {
                let Some(received) = scratch.get(..bytes) else {
                    invariant!("a read fills at most its buffer");
                };
                self.input.append(received, max);
                self.input.is_handled_again = true;
            }
            self.endpoint.return_scratch(scratch);
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Some(ConnectionEnd::Closed)),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }
}
