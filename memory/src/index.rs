//! The index of a namespace: the words of a bucket, lookups, and growth by one bucket at a time.

pub(crate) mod split;
pub(crate) mod collect;
pub(crate) mod known_slot;
pub(crate) mod batch;
pub(crate) mod lookup;
pub(crate) mod intent;
pub(crate) mod chain;
pub(crate) mod bucket;
pub(crate) mod key_equality;
