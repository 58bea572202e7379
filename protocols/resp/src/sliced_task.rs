//! Work that goes on after a request: walks over namespaces, a slice at a time.

use crate::records::Records;
use crate::reply::Reply;
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use std::fmt::Debug;

/// The buckets of an index that one slice of a walk looks at: some two hundred records, 20 to 50
/// us.
pub const SLICE_BUCKETS: u64 = 64;

/// Work in slices. Between two of them other connections are served; this one's further requests
/// wait.
pub trait SlicedTask: Debug {
    /// Does a slice. The answer is written as it grows, or at the end.
    ///
    /// # Errors
    /// The work is over. What it has written is taken back if the answer is not begun on the wire;
    /// work that answers with one aggregate therefore writes it at its end.
    fn step(
        &mut self,
        records: &Records,
        server: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply>;

    /// About how many bytes it keeps between two slices. They count for what a core may keep.
    fn memory_bytes(&self) -> usize;

    /// How many bytes of its answer it has collected and not told. Work that has collected more
    /// than an answer may have is over.
    fn collected(&self) -> usize {
        0
    }
}

/// How far work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskProgress {
    /// There is more to do.
    More,
    /// The answer is written.
    Done,
}
