//! Tags: their indexes, which each commit maintains, and lookups and searches by tags.

pub(crate) mod candidates;
pub(crate) mod lookup;
pub(crate) mod declare;
pub(crate) mod expiry;
pub(crate) mod maintain;
pub(crate) mod lists;
mod nodes;
