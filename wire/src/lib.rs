//! Layer 1: the protocol between hosts. Messages become frames, and received bytes become messages
//! or an error. `spec/wire.md` describes the bytes.
//!
//! ```text
//! source                                              follower
//! Message -> FrameWriter -> bytes  ==== TCP ====>  bytes -> FrameReader -> Message
//! ```
//!
//! - Any bytes give messages or an error, never a panic. A message has exactly one encoding: what a
//!   [`FrameReader`] accepts, a [`FrameWriter`] writes with the same payload.
//! - A flipped, lost, repeated or reordered byte is found by the check value or the number of its
//!   frame.
//! - Memory is reserved only for bytes that have arrived. A decoded message has lists of slices
//!   into them: at most ten bytes for each byte that arrived, and 1 GiB in all, for the most
//!   elements. A list reserves what its valid parts need, not what its count says.
//! - The crate is pure: it has no sockets, clocks or threads.
//!
//! ```
//! use nearstate_wire::{Acknowledgement, FrameReader, FrameWriter, Message};
//!
//! let message = Message::Acknowledge(Acknowledgement { position: 7, stamp: 1 });
//! let mut bytes = Vec::new();
//! FrameWriter::new().write(&message, &mut bytes)?;
//!
//! let mut reader = FrameReader::new();
//! reader.push(&bytes);
//! assert_eq!(reader.next()?, Some(message));
//! assert_eq!(reader.next()?, None);
//! # Ok::<(), nearstate_wire::WireError>(())
//! ```
//!
//! A module uses only modules that are listed below it.

#![forbid(unsafe_code)]

pub use error::WireError;
pub use frame::{FrameReader, FrameWriter, ReceivedMessage};
pub use kept::KeptMessage;
pub use message::{
    AbsentMessage, Acknowledgement, Change, ChangedPart, EntryMessage, Hello, Message,
    NamespaceKind, NamespaceMessage, PartitionPlace, PositionMessage, RecordChange, RecordMessage,
    Refusal, ReplicatedTag, Start, SwitchMessage, Welcome,
};
pub use refusal::RefusalReason;
pub use settings::{SettingsSummary, SharedSettings};

mod frame;
mod kept;
mod encode;
mod decode;
mod message;
mod settings;
mod refusal;
mod check;
mod error;
pub mod limits;
