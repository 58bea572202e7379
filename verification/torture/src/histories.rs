//! Histories: real processes run transactions, reads and writes on a few records, are killed, and
//! write down what they saw and when. A checker that others wrote (Porcupine) decides whether one
//! order of all of it explains everything that was seen: strict serializability of the whole store.
//!
//! Every operation, of whatever model, is reads and writes of numbered values at one moment, so one
//! specification serves all models. What a model promises beyond that (money is kept, a ring is
//! closed, an index fits) is judged beside it, on every snapshot.
//!
//! Modules stand in the order of floors: each uses only those below it.

pub mod rounds;
mod process_group;
pub mod checker;
pub mod options;
pub mod process;
mod recorded_txn;
pub mod history;
pub mod model;
