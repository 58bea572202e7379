//! The structures of indexes: what a namespace declares, the keys and bytes of postings and nodes,
//! the ordered set, and the plan of a search. They know no session; `tags` keeps them up to date.

pub(crate) mod scratch;
pub mod ordered;
pub(crate) mod internal;
pub(crate) mod postings;
pub(crate) mod schema;
pub mod search;
