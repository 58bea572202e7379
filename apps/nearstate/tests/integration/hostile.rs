//! Clients that mean harm, or are broken, at a node of its own process: each is held to its bounds
//! or sent away, others are served as before, files and memory come back.

mod crowds;
mod target;
mod words;
