//! A message that is kept after it was applied, to be sent again on another connection.

use crate::decode::decode;
use crate::encode::{SizeOutput, encode};
use crate::error::WireError;
use crate::message::{FrameKind, Message};

/// The payload of a message, without its frames: these belong to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMessage {
    kind: FrameKind,
    payload: Vec<u8>,
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

    /// A copy of the payload of a message that was decoded.
    pub(crate) fn of_payload(kind: FrameKind, payload: &[u8]) -> Self {
        Self { kind, payload: payload.to_vec() }
    }

    /// The message.
    ///
    /// # Errors
    /// None: it was encoded, or decoded before.
    pub fn message(&self) -> Result<Message<'_>, WireError> {
        decode(self.kind, &self.payload)
    }

    /// Bytes of memory that it takes.
    pub const fn bytes(&self) -> usize {
        self.payload.capacity() + size_of::<Self>()
    }
}
