//! A message that is kept after it was applied, to be sent again on another connection.

use crate::decode::decode;
use crate::encode::{Output, SizeOutput, encode};
use crate::error::WireError;
use crate::message::{FrameKind, Message};

/// The payload of a message, without its frames: these belong to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMessage {
    kind: FrameKind,
    payload: Vec<u8>,
}

impl Output for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl KeptMessage {
    /// Copies a message.
    ///
    /// # Errors
    /// What a reader would refuse.
    pub fn of(message: &Message<'_>) -> Result<Self, WireError> {
        // Measured first: a buffer that grows with each field is copied several times.
        let mut size = SizeOutput::default();
        encode(message, &mut size)?;
        let mut payload = Vec::with_capacity(size.bytes);
        encode(message, &mut payload)?;
        Ok(Self { kind: message.kind(), payload })
    }

    /// The message.
    ///
    /// # Errors
    /// None: it was encoded.
    pub fn message(&self) -> Result<Message<'_>, WireError> {
        decode(self.kind, &self.payload)
    }

    /// Bytes of memory that it takes.
    pub const fn bytes(&self) -> usize {
        self.payload.capacity() + size_of::<Self>()
    }
}
