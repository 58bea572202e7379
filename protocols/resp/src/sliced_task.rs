//! Commands that run in slices, such as scans of namespaces.

use crate::records::KeyedRecords;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use std::fmt::Debug;

/// Index buckets per slice: about two hundred records, 20 to 50 us.
pub const SLICE_BUCKETS: u64 = 64;

/// The rest of a command that runs in slices. Other connections are served between two slices.
/// Later requests of the same connection wait.
pub trait SlicedTask: Debug {
    /// Runs one slice. Writes the reply as it grows, or at the end.
    ///
    /// # Errors
    /// The task ends. Its output is discarded unless a part of the reply was sent. A task whose
    /// reply is one aggregate therefore writes it at the end.
    fn step(
        &mut self,
        records: &KeyedRecords,
        server: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply>;

    /// Approximate memory between two slices. It counts for the memory limit of the core.
    fn memory_bytes(&self) -> usize;

    /// Bytes of the reply that are collected and not written. A task that collects more than the
    /// limit of a reply is ended.
    fn collected(&self) -> usize {
        0
    }
}

/// Progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskProgress {
    /// More slices follow.
    More,
    /// The reply is complete.
    Done,
}
