//! The context of a UE as a typed schema over nearstate's record model (paper 2, Table I).
//!
//! A context has a fixed size and format: every variable has a fixed offset and a presence bit, and
//! is big-endian. It consists of **blocks** of variables that the same procedures write, so that a
//! procedure changes a few blocks, the *delta*. They are the named blocks of a record. [`tags`]
//! returns the tags by which it is found.
//!
//! ```
//! use nearstate_ue::{Context, Procedure, UeState, ContextView, apply, blocks_touched, state_of};
//!
//! // A known subscriber, and its context after an attach.
//! let mut context = Context::provisioned(7, 1);
//! apply(Procedure::InitialAttach, &mut context, 42);
//! assert_eq!(state_of(&context), UeState::Connected);
//!
//! // Bytes from a store: checked once, then read without a copy.
//! let view = ContextView::new(context.as_bytes())?;
//! assert_eq!(view.imsi().unwrap().to_string(), "001010000000007");
//!
//! // A service request writes one block of six.
//! let delta = blocks_touched(Procedure::ServiceRequest);
//! assert_eq!((delta.len(), delta.bytes()), (1, 150));
//! # Ok::<(), nearstate_model::Error>(())
//! ```
//!
//! [`four_g`] is paper 2's Table I; its names are re-exported here. [`five_g`] is the context in an
//! AMF. `spec/ue.md` describes the bytes of both. A network function changes variables with their
//! setters (`context.set_tai(tai)`). [`apply`] is for workloads, which derive values from numbers.
//!
//! Texts and logs show two bytes of each key. [`KeyText::Whole`] shows whole keys. JSON needs it in
//! order to be parsed again, and is then as secret as the context.
//!
//! Costs on a guest with an AMD EPYC, in the second-level cache (example `cost`, shortest of 25
//! rounds): check of a context 53 ns; accessor 1 ns; service request 34 ns; read, check, service
//! request and write of a context 76 ns, of which two copies take 15.

#![forbid(unsafe_code)]

pub mod five_g;
pub mod four_g;
pub mod state;
mod schema;
mod context;
pub mod tag;
pub mod value;
mod layout;
pub mod draw;
mod effect;

pub use draw::{IDENTITY_BITS, draw_for};
pub use effect::Effect;
pub use four_g::procedure::{Procedure, apply, blocks_touched};
pub use four_g::state::state_of;
pub use four_g::tags::{SCHEMA, tags};
pub use four_g::{
    BLOCKS, Block, BlockSet, CONTEXT_BYTES, Category, Context, ContextText, ContextView, FORMAT,
    Variable,
};
pub use state::UeState;
pub use tag::TagDeclaration;
pub use value::KeyText;
