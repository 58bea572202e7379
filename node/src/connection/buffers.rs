//! The buffers of a connection: received bytes that no request has consumed, and replies that the
//! client has not read.

use std::time::Duration;

use nearstate_model::invariant;

use crate::endpoint_context::READ_BYTES;
use crate::executor::Sleep;

/// Received bytes that the handler has not consumed.
#[derive(Default)]
pub(super) struct InputBuffer {
    bytes: Vec<u8>,
    consumed: usize,
    /// The handler consumed some bytes and left others: it is called again after the output is
    /// written.
    pub(super) is_handled_again: bool,
    /// Set while a request is incomplete.
    pub(super) request_timer: Option<RequestTimer>,
}

/// The current period of an incomplete request, in which enough bytes must arrive.
pub(super) struct RequestTimer {
    /// The bytes of the request that had arrived when the period began.
    pub(super) bytes_before: usize,
    pub(super) sleep: Sleep,
}

impl InputBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The number of bytes that are not consumed.
    pub(super) fn unconsumed(&self) -> usize {
        self.bytes.len() - self.consumed
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes the memory out, so that the handler may borrow it; see [`Self::restore`].
    pub(super) fn take(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.bytes), self.consumed)
    }

    /// Puts the memory back after the handler consumed `consumed` more bytes. Frees it if all bytes
    /// are consumed.
    pub(super) fn restore(&mut self, bytes: Vec<u8>, consumed: usize) {
        self.consumed += consumed;
        invariant!(self.consumed <= bytes.len(), "a handler consumes at most its input");
        if self.consumed == bytes.len() {
            self.clear();
        } else {
            self.bytes = bytes;
        }
    }

    /// Appends received bytes. `max` is the size limit of a request.
    pub(super) fn append(&mut self, received: &[u8], max: usize) {
        if self.consumed > 0 {
            self.bytes.drain(..self.consumed);
            self.consumed = 0;
        }
        let needed = self.bytes.len() + received.len();
        if needed > self.bytes.capacity() {
            // Grows by half, but not beyond the limit. The needed size exceeds it by one read.
            let capacity = needed.max((needed + needed / 2).min(max));
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(received);
    }

    /// Drops all bytes and frees their memory.
    pub(super) fn clear(&mut self) {
        self.bytes = Vec::new();
        self.consumed = 0;
    }

    pub(super) fn shrink(&mut self) {
        shrink(&mut self.bytes);
    }
}

/// Replies that the client has not read.
#[derive(Default)]
pub(super) struct OutputBuffer {
    pub(super) bytes: Vec<u8>,
    /// Bytes at the front that the stream has taken.
    sent: usize,
    /// Bytes that the stream itself may still buffer: TLS does.
    pub(super) unflushed: usize,
    /// The reading of the clock when the requests of the unsent replies were read; 0 if there are
    /// none.
    pub(super) requested_at: u64,
    /// The buffer exceeds its limit. The connection is closed as a slow reader.
    pub(super) is_over_limit: bool,
    /// Set while the client does not read.
    pub(super) write_timer: Option<Sleep>,
}

impl OutputBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes that the stream has not taken.
    #[inline]
    pub(super) fn unsent(&self) -> &[u8] {
        let Some(unsent) = self.bytes.get(self.sent..) else {
            invariant!("at most the whole output is sent");
        };
        unsent
    }

    /// The stream has taken this many bytes.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        self.unflushed += bytes;
        invariant!(self.sent <= self.bytes.len(), "a stream takes at most what is written to it");
        self.write_timer = None;
    }

    /// Everything is sent and flushed. Keeps the memory for the next replies.
    #[inline]
    pub(super) fn finish(&mut self) {
        self.unflushed = 0;
        self.write_timer = None;
        self.bytes.clear();
        self.sent = 0;
    }

    /// Removes the sent bytes from memory once they are at least half of the buffer. Each sent byte
    /// pays for the move of one other: a client that reads a long reply slowly would otherwise have
    /// all of it moved at each write.
    pub(super) fn compact(&mut self) {
        if self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Marks the buffer if the bytes that are not sent exceed a limit.
    pub(super) fn check_limit(&mut self, bytes_max: usize) {
        self.is_over_limit |= self.unsent().len() > bytes_max;
    }

    /// Drops all unsent replies and frees their memory.
    pub(super) fn discard(&mut self) {
        self.bytes = Vec::new();
        self.sent = 0;
    }

    /// The timer of a blocked write, started if there is none.
    pub(super) fn write_timer(&mut self, timeout: Duration) -> &mut Sleep {
        self.write_timer.get_or_insert_with(|| crate::executor::sleep(timeout))
    }

    pub(super) fn shrink(&mut self) {
        shrink(&mut self.bytes);
    }
}

/// Gives memory back if three quarters of a large buffer are unused.
fn shrink(buffer: &mut Vec<u8>) {
    if buffer.capacity() > READ_BYTES && buffer.capacity() / 4 > buffer.len() {
        buffer.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reply_that_is_read_slowly_is_moved_at_most_twice() {
        const BYTES: usize = 1 << 20;
        let mut output = OutputBuffer { bytes: vec![1; BYTES], ..OutputBuffer::default() };
        let mut moved = 0;
        while !output.unsent().is_empty() {
            output.advance(output.unsent().len().min(1000));
            let before = output.bytes.len();
            output.compact();
            moved += if output.bytes.len() < before { output.bytes.len() } else { 0 };
            let (held, unsent) = (output.bytes.len(), output.unsent().len());
            assert!(held <= 2 * unsent + 1, "{held} bytes are held, {unsent} are not sent");
        }
        assert!(moved <= 2 * BYTES, "{moved} bytes were moved");
    }

    #[test]
    fn sent_bytes_do_not_count_for_the_limit() {
        let mut output = OutputBuffer { bytes: vec![1; 1000], ..OutputBuffer::default() };
        output.advance(400);
        output.compact();
        output.bytes.extend_from_slice(&[1; 400]);
        output.check_limit(1000);
        assert!(!output.is_over_limit, "1,000 bytes are not sent");
        output.bytes.push(1);
        output.check_limit(1000);
        assert!(output.is_over_limit);
    }
}
