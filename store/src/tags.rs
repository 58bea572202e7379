//! Tags: the indexes that every commit keeps up to date, and the lookups and searches by them.

pub(crate) mod candidates;
pub(crate) mod lookup;
pub(crate) mod declare;
pub(crate) mod expiry;
pub(crate) mod maintain;
pub(crate) mod lists;
mod nodes;
