//! Frames: a header with size, kind, number and check value, and a part of a message.
//!
//! The check value covers the payload. Its seed has the size, kind and flags, and the number of the
//! frame. So a flipped bit, and a frame at another place of the stream, are found.

use std::io;
use std::ops::Range;

use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::check::check_limit;
use crate::decode::decode;
use crate::encode::{Output, SizeOutput, encode};
use crate::error::WireError;
use crate::kept::KeptMessage;
use crate::limits::{
    FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES, MESSAGE_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX,
    SWITCH_BYTES_MAX,
};
use crate::message::{FrameKind, Message};

/// The flag of a frame that is not the last one of its message.
const CONTINUES: u8 = 1;

/// A reader keeps this much memory in each of its two buffers while it is idle: the largest frame,
/// and what a read from a socket brings behind it.
const KEPT_BYTES_MAX: usize = 2 * FRAME_PAYLOAD_BYTES_MAX;

/// The first 16 bytes of a frame.
#[derive(Clone, Copy)]
struct FrameHeader {
    size: usize,
    kind: FrameKind,
    continues: bool,
    number: u64,
}

impl FrameHeader {
    /// Size, kind, flags, and two bytes of 0.
    fn first_word(self) -> u64 {
        let Ok(size) = u32::try_from(self.size) else {
            invariant!("a frame of {} bytes", self.size)
        };
        let flags = if self.continues { CONTINUES } else { 0 };
        u64::from(size) | u64::from(self.kind.code()) << 32 | u64::from(flags) << 40
    }

    fn check_value(self, payload: &[u8]) -> u64 {
        xxh3_64_with_seed(payload, self.first_word() ^ self.number.rotate_left(32))
    }

    fn encode(self, check: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let words = [self.first_word(), self.number, check];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The header and the check value of a frame. Checks everything but the check value.
    fn decode(bytes: &[u8; HEADER_BYTES], expected_number: u64) -> Result<(Self, u64), WireError> {
        let [s0, s1, s2, s3, kind, flags, r0, r1, rest @ ..] = *bytes;
        let (number, check) = words(rest);
        let size = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
        check_limit("bytes of the payload of a frame", size, FRAME_PAYLOAD_BYTES_MAX)?;
        let invalid = |what: String| Err(WireError::invalid(format!("{what} in a frame's header")));
        let Some(known) = FrameKind::of_code(kind) else {
            return invalid(format!("unknown kind {kind} of a message"));
        };
        if flags & !CONTINUES != 0 || [r0, r1] != [0, 0] {
            return invalid(format!("unknown flags {flags:#04x} {r0:#04x} {r1:#04x}"));
        }
        if size == 0 {
            return invalid("an empty payload".to_owned());
        }
        if number != expected_number {
            return invalid(format!("number {number} where {expected_number} is expected"));
        }
        let continues = flags & CONTINUES != 0;
        Ok((Self { size, kind: known, continues, number }, check))
    }
}

/// Two numbers of 8 bytes.
fn words(bytes: [u8; 16]) -> (u64, u64) {
    let [a0, a1, a2, a3, a4, a5, a6, a7, second @ ..] = bytes;
    (u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]), u64::from_le_bytes(second))
}

/// The largest message of a kind.
const fn message_bytes_max(kind: FrameKind) -> usize {
    if kind.has_values() {
        MESSAGE_BYTES_MAX
    } else if kind.may_be_large() {
        SWITCH_BYTES_MAX
    } else {
        SMALL_MESSAGE_BYTES_MAX
    }
}

/// Writes the frames of one direction of a connection, and counts them.
#[derive(Debug, Default)]
pub struct FrameWriter {
    number: u64,
}

impl FrameWriter {
    /// The writer of a new connection.
    pub const fn new() -> Self {
        Self { number: 0 }
    }

    /// Appends the frames of a message. Keys and values are copied once, into `out`.
    ///
    /// # Errors
    /// What exceeds a limit, and what a reader would refuse. Then nothing was appended, and the
    /// connection can continue with another message.
    pub fn write(&mut self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), WireError> {
        let start = out.len();
        match self.write_one(message, out) {
            Ok(true) => Ok(()),
            Ok(false) => {
                out.truncate(start);
                self.write_frames(message, out)
            }
            Err(error) => {
                out.truncate(start);
                Err(error)
            }
        }
    }

    /// Appends a message that is one frame: nearly all are. Its fields need not be divided, and it
    /// is not measured first. False if it is longer: a part of it was appended.
    fn write_one(&mut self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<bool, WireError> {
        let (kind, number, start) = (message.kind(), self.number, out.len());
        // The header follows when the size is known.
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let room = FRAME_PAYLOAD_BYTES_MAX.min(message_bytes_max(kind));
        let mut payload = OnePayload { out, room, is_too_long: false };
        encode(message, &mut payload)?;
        if payload.is_too_long {
            return Ok(false);
        }
        let size = out.len() - start - HEADER_BYTES;
        invariant!(size > 0, "a message has a payload");
        complete(FrameHeader { size, kind, continues: false, number }, start, out);
        self.number += 1;
        Ok(true)
    }

    /// Appends a message in as many frames as it needs.
    #[cold]
    fn write_frames(&mut self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), WireError> {
        let mut size = SizeOutput::default();
        encode(message, &mut size)?;
        let kind = message.kind();
        check_limit("bytes of a message", size.bytes, message_bytes_max(kind))?;
        let count = size.bytes.div_ceil(FRAME_PAYLOAD_BYTES_MAX);
        out.reserve(size.bytes + count * HEADER_BYTES);
        let mut frames =
            FrameOutput { out, kind, number: self.number, rest: size.bytes, open: None };
        let written = encode(message, &mut frames);
        invariant!(written.is_ok(), "a message that was measured is written: {:?}", written);
        invariant!(frames.rest == 0 && frames.open.is_none(), "a message has its measured size");
        self.number = frames.number;
        Ok(())
    }
}

/// Completes a frame that begins there with its check value.
fn complete(header: FrameHeader, start: usize, out: &mut [u8]) {
    let bytes = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut);
    let (bytes, payload) = guaranteed(bytes, "a frame begins with its header");
    *bytes = header.encode(header.check_value(payload));
}

/// Takes the payload of a message as long as it fits one frame.
struct OnePayload<'o> {
    out: &'o mut Vec<u8>,
    room: usize,
    is_too_long: bool,
}

impl Output for OnePayload<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room.checked_sub(bytes.len()) {
            self.room = room;
            self.out.extend_from_slice(bytes);
        } else {
            (self.room, self.is_too_long) = (0, true);
        }
    }
}

/// Divides the payload of a message into frames.
struct FrameOutput<'o> {
    out: &'o mut Vec<u8>,
    kind: FrameKind,
    /// The number of the next frame.
    number: u64,
    /// Bytes of the message that belong to later frames.
    rest: usize,
    open: Option<OpenFrame>,
}

/// A frame whose payload is incomplete.
struct OpenFrame {
    header: FrameHeader,
    /// Where it begins in the output.
    start: usize,
    /// Bytes that its payload lacks.
    left: usize,
}

impl FrameOutput<'_> {
    /// Begins a frame with a check value of 0.
    fn begin(&mut self) -> OpenFrame {
        let size = self.rest.min(FRAME_PAYLOAD_BYTES_MAX);
        invariant!(size > 0, "a message has its measured size");
        self.rest -= size;
        let (kind, number) = (self.kind, self.number);
        let header = FrameHeader { size, kind, continues: self.rest > 0, number };
        self.number += 1;
        let start = self.out.len();
        self.out.extend_from_slice(&header.encode(0));
        OpenFrame { header, start, left: size }
    }
}

impl Output for FrameOutput<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut frame = self.open.take().unwrap_or_else(|| self.begin());
            let (now, later) = bytes.split_at(bytes.len().min(frame.left));
            self.out.extend_from_slice(now);
            bytes = later;
            frame.left -= now.len();
            if frame.left == 0 {
                complete(frame.header, frame.start, self.out);
            } else {
                self.open = Some(frame);
            }
        }
    }
}

/// Reads the frames of one direction of a connection. Push what arrives, then take messages until
/// there is none: then at most one incomplete frame and one incomplete message are buffered.
///
/// After an error every call returns that error, no bytes are added, and the next call frees the
/// buffers.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// Bytes that arrived, and room for others. All of it is initialised once.
    input: Vec<u8>,
    /// How many bytes of the input have arrived.
    arrived: usize,
    /// How many of them were consumed.
    consumed: usize,
    /// The payload of a message of several frames.
    message: Vec<u8>,
    /// The kind of the incomplete message in `message`.
    continued: Option<FrameKind>,
    /// The number of the next frame.
    number: u64,
    /// True if messages that only a source sends and that may be large are refused.
    refuses_values: bool,
    failure: Option<WireError>,
}

/// A message that has arrived, and its bytes.
#[derive(Clone, Debug)]
pub struct ReceivedMessage<'r> {
    /// The message.
    pub message: Message<'r>,
    payload: &'r [u8],
}

impl ReceivedMessage<'_> {
    /// A copy of the message. Its bytes are copied once, and none of its fields is looked at.
    pub fn keep(&self) -> KeptMessage {
        KeptMessage::of_payload(self.message.kind(), self.payload)
    }
}

/// Where the payload of a complete message is.
enum PayloadPlace {
    /// In the input.
    Input(Range<usize>),
    /// In the buffer of messages of several frames.
    Message,
}

impl FrameReader {
    /// The reader of a new connection.
    pub const fn new() -> Self {
        Self {
            input: Vec::new(),
            arrived: 0,
            consumed: 0,
            message: Vec::new(),
            continued: None,
            number: 0,
            refuses_values: false,
            failure: None,
        }
    }

    /// The reader of what a follower sends: messages that may be large are refused at their
    /// first header, so no message of more than 64 KiB is buffered.
    pub const fn of_follower() -> Self {
        let mut reader = Self::new();
        reader.refuses_values = true;
        reader
    }

    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        let pushed = self.read_from(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            Ok(bytes.len())
        });
        invariant!(pushed.is_ok(), "bytes in memory are read: {pushed:?}");
    }

    /// Adds the bytes that `read` stores at the beginning of the room that it gets, which has
    /// `bytes_max` bytes. It returns how many these are.
    ///
    /// Consumed bytes leave the buffer when they are at least as many as the others, so each byte
    /// moves once at most on average, and does not if all messages were taken.
    ///
    /// # Errors
    /// That of `read`: then no byte was added.
    pub fn read_from(
        &mut self,
        bytes_max: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.consumed > 0 && self.consumed >= self.arrived - self.consumed {
            self.input.copy_within(self.consumed..self.arrived, 0);
            (self.arrived, self.consumed) = (self.arrived - self.consumed, 0);
            if self.arrived < KEPT_BYTES_MAX / 2 && self.input.len() > KEPT_BYTES_MAX {
                self.input.truncate(KEPT_BYTES_MAX / 2);
                self.input.shrink_to_fit();
            }
        }
        let end = self.arrived + bytes_max;
        if self.input.len() < end {
            self.input.resize(end, 0);
        }
        let room = guaranteed(self.input.get_mut(self.arrived..end), "the input has room");
        let count = read(room)?;
        invariant!(count <= bytes_max, "{count} bytes were stored in room for {bytes_max}");
        if self.failure.is_none() {
            self.arrived += count;
        }
        Ok(count)
    }

    /// Bytes that are buffered for messages that were not returned yet. Not 0 at the end of a
    /// stream: the last message was cut short.
    pub fn buffered_bytes(&self) -> usize {
        let is_incomplete = self.continued.is_some();
        self.arrived - self.consumed + if is_incomplete { self.message.len() } else { 0 }
    }

    /// The next message, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// The first violation of the protocol. The connection has to be closed.
    #[expect(
        clippy::should_implement_trait,
        reason = "a message borrows from its reader, which an iterator's item cannot"
    )]
    pub fn next(&mut self) -> Result<Option<Message<'_>>, WireError> {
        Ok(self.next_received()?.map(|received| received.message))
    }

    /// As [`FrameReader::next`], with what it takes to keep the message.
    ///
    /// # Errors
    /// As [`FrameReader::next`].
    pub fn next_received(&mut self) -> Result<Option<ReceivedMessage<'_>>, WireError> {
        if let Some(failure) = &self.failure {
            (self.input, self.arrived, self.consumed) = (Vec::new(), 0, 0);
            (self.message, self.continued) = (Vec::new(), None);
            return Err(failure.clone());
        }
        let next = self.next_payload().inspect_err(|error| self.failure = Some(error.clone()))?;
        let Some((kind, place)) = next else { return Ok(None) };
        let payload = match place {
            PayloadPlace::Input(range) => self.input.get(range),
            PayloadPlace::Message => Some(self.message.as_slice()),
        };
        let payload = guaranteed(payload, "a payload is in the input");
        let failure = &mut self.failure;
        let message = decode(kind, payload).inspect_err(|error| *failure = Some(error.clone()))?;
        Ok(Some(ReceivedMessage { message, payload }))
    }

    /// Consumes frames up to the end of a message.
    fn next_payload(&mut self) -> Result<Option<(FrameKind, PayloadPlace)>, WireError> {
        if self.continued.is_none() {
            // The last message was returned.
            self.message.clear();
            release(&mut self.message);
        }
        while let Some((header, range)) = self.next_frame()? {
            let is_whole = self.continued.is_none() && !header.continues;
            if is_whole {
                return Ok(Some((header.kind, PayloadPlace::Input(range))));
            }
            let part = guaranteed(self.input.get(range), "a payload is in the input");
            self.message.extend_from_slice(part);
            self.continued = header.continues.then_some(header.kind);
            if !header.continues {
                return Ok(Some((header.kind, PayloadPlace::Message)));
            }
        }
        Ok(None)
    }

    /// Consumes one frame, if all of it has arrived. Its header is checked as soon as it is there.
    fn next_frame(&mut self) -> Result<Option<(FrameHeader, Range<usize>)>, WireError> {
        let arrived = self.input.get(self.consumed..self.arrived);
        let input = guaranteed(arrived, "consumed bytes have arrived");
        let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (header, check) = FrameHeader::decode(header, self.number)?;
        self.check_message(header)?;
        let Some(payload) = rest.get(..header.size) else { return Ok(None) };
        if header.check_value(payload) != check {
            let (number, kind) = (header.number, header.kind.name());
            let detail = format!(
                "the check value of frame {number} ({kind}) is wrong: its bytes were changed"
            );
            return Err(WireError::invalid(detail));
        }
        let start = self.consumed + HEADER_BYTES;
        self.consumed = start + header.size;
        self.number += 1;
        Ok(Some((header, start..self.consumed)))
    }

    /// Refuses a frame that does not continue the incomplete message, and one that makes it too
    /// large.
    fn check_message(&self, header: FrameHeader) -> Result<(), WireError> {
        if self.refuses_values && header.kind.may_be_large() {
            let kind = header.kind.name();
            let detail = format!("a message of kind {kind}, which only a source sends");
            return Err(WireError::invalid(detail));
        }
        if let Some(kind) = self.continued.filter(|kind| *kind != header.kind) {
            let (kind, other) = (kind.name(), header.kind.name());
            let detail = format!("a message of kind {kind} continues with one of kind {other}");
            return Err(WireError::invalid(detail));
        }
        let begun = if self.continued.is_some() { self.message.len() } else { 0 };
        // A frame that is not the last one is followed by a byte at least.
        let size = begun + header.size + usize::from(header.continues);
        check_limit("bytes of a message", size, message_bytes_max(header.kind))
    }
}

/// Frees the memory of a buffer that was large once.
fn release(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES_MAX && buffer.len() < KEPT_BYTES_MAX / 2 {
        buffer.shrink_to(KEPT_BYTES_MAX / 2);
    }
}
