//! The region: its file, its mapping, its table of members, and where the buckets of each namespace
//! are.

pub(crate) mod drop_mark;
pub(crate) mod file;
pub(crate) mod catalog;
pub(crate) mod index_table;
pub(crate) mod linear_hash;
pub(crate) mod key_seed;
pub(crate) mod catalog_use;
pub(crate) mod member_table;
pub(crate) mod creation_lock;
pub(crate) mod expiry_clock;
pub(crate) mod map;
pub(crate) mod prefetch;
mod reopened_file;
pub(crate) mod held_file;
pub(crate) mod liveness;
pub(crate) mod lock_page;
pub(crate) mod member_state;
pub(crate) mod opened_file;
pub(crate) mod owner;
pub(crate) mod superblock;
pub(crate) mod page_fault;
