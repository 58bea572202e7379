//! What workloads are built from: batches of requests, keys and contents, the records of a client,
//! and the model with which they are compared.

pub mod record_model;
pub mod batch;
pub mod contents;
pub(super) mod identity;
pub mod share;
#[cfg(test)]
pub(super) mod test_region;
