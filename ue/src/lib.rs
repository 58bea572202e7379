//! The context of a UE as a typed schema over nearstate's record model (paper 2, Table I).
//!
//! A context is a few hundred bytes in which every variable has its place: fixed offsets,
//! big-endian, a bit that says whether it is there. It is cut into **blocks** of variables that the
//! same procedures write, so that a procedure's change is a few blocks, the *delta*; these are the
//! named blocks of a record, and [`tags`] are the tags that it is found by.
//!
//! ```
//! use nearstate_ue::{Context, Procedure, UeState, View, apply, blocks_touched, state_of};
//!
//! // A subscriber that the network knows, and what an attach makes of it.
//! let mut context = Context::provisioned(7, 1);
//! apply(Procedure::InitialAttach, &mut context, 42);
//! assert_eq!(state_of(&context), UeState::Connected);
//!
//! // What a store gave back: checked once, then read in place.
//! let view = View::new(context.as_bytes())?;
//! assert_eq!(view.imsi().unwrap().to_string(), "001010000000007");
//!
//! // A service request writes one block of six.
//! let delta = blocks_touched(Procedure::ServiceRequest);
//! assert_eq!((delta.len(), delta.bytes()), (1, 150));
//! # Ok::<(), nearstate_model::Error>(())
//! ```

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
    BLOCKS, Block, BlockSet, CONTEXT_BYTES, Category, Context, FORMAT, Text, Variable, View,
};
pub use state::UeState;
pub use tag::TagDeclaration;
pub use value::Keys;
