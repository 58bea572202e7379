//! The commit stream: the entries that commits append, and their reader.

pub(crate) mod stream;
pub(crate) mod commit;
