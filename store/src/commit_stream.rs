//! The commit stream: the entries that commits append to it, and the consumer that reads them.

pub(crate) mod consumer;
pub(crate) mod entry;
