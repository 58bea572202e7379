//! The context of a UE as a typed schema over nearstate's record model (paper 2, Table I).
//!
//! A context is a few hundred bytes in which every variable has its place: fixed offsets,
//! big-endian, a presence bit. It is divided into **blocks** of variables that the
//! same procedures write, so that a procedure's change is a few blocks, the *delta*; these are the
//! named blocks of a record, and [`tags`] are the tags that it is found by.
//!
//! ```
//! use nearstate_ue::{Context, Procedure, UeState, ContextView, apply, blocks_touched, state_of};
//!
//! // A known subscriber, and its context after an attach.
//! let mut context = Context::provisioned(7, 1);
//! apply(Procedure::InitialAttach, &mut context, 42);
//! assert_eq!(state_of(&context), UeState::Connected);
//!
//! // what a store returned: checked once, then read in place.
//! let view = ContextView::new(context.as_bytes())?;
//! assert_eq!(view.imsi().unwrap().to_string(), "001010000000007");
//!
//! // A service request writes one block of six.
//! let delta = blocks_touched(Procedure::ServiceRequest);
//! assert_eq!((delta.len(), delta.bytes()), (1, 150));
//! # Ok::<(), nearstate_model::Error>(())
//! ```
//!
//! [`four_g`] is paper 2's Table I, whose names are re-exported here; [`five_g`] is what an AMF
//! keeps. The bytes of both are drawn in `spec/ue.md`. A network function sets variables by their
//! setters (`context.set_tai(tai)`); [`apply`] is for workloads, which derive values from numbers.
//!
//! A text or a log shows two bytes of each key. [`KeyText::Whole`] shows all: JSON that is to be
//! read back needs it, and is as secret as the context.
//!
//! Costs, in nanoseconds on a guest with an AMD EPYC, out of the second cache (the example `cost`,
//! shortest of 25 rounds, the machine otherwise half idle): a check of a context 53, an accessor 1,
//! a service request 34; context read, checked, changed by a service request and written 76, of
//! which two copies are 15.

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
