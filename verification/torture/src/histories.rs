//! Histories: real processes run transactions, reads and writes on a few records, are killed, and
//! record what they read and when. An external checker (Porcupine) decides whether one order of all
//! operations explains every result: strict serializability of the whole store.
//!
//! Every operation of every model consists of reads and writes of numbered values at one moment, so
//! one specification serves all models. The invariants of a model (the bank's total, a closed ring,
//! a consistent index) are checked separately on every snapshot.
//!
//! A module uses only modules that are listed below it.

pub mod rounds;
mod process_group;
pub mod checker;
pub mod options;
pub mod process;
mod recorded_txn;
pub mod history;
pub mod model;
