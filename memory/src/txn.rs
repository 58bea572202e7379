//! Commits: of one record, and of many records at once.

pub(crate) mod single_logged;
pub(crate) mod commit;
pub(crate) mod count;
pub(crate) mod finish;
pub(crate) mod usage;
pub(crate) mod plan;
pub(crate) mod events;
pub(crate) mod publish;
pub(crate) mod bucket_lock;
pub(crate) mod fill;
