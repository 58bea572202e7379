//! Model-checked protocols.
