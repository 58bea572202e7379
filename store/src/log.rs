//! The log of the host, for applications: the commit stream, which reads its entries, and receipts,
//! which name positions in it.

pub(crate) mod waits;
pub(crate) mod consumer;
pub(crate) mod entry;
pub(crate) mod receipt;
