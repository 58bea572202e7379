//! Watching all namespaces before the reply, for keyspace notifications and tracking clients.

use crate::keyspace_events::KeyspaceEvents;
use crate::records::KeyedRecords;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_store::Namespace;

/// Watches the existing namespaces, one per slice, and replies OK.
#[derive(Debug)]
pub(super) struct WatchNamespacesTask {
    /// The previous events of `CONFIG SET`, restored if a namespace cannot be watched; `None` for
    /// `CLIENT TRACKING`.
    pub(super) before: Option<KeyspaceEvents>,
    /// Remaining namespaces, the next one last.
    pub(super) namespaces: Vec<(String, Namespace)>,
}

impl SlicedTask for WatchNamespacesTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        server: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let Some((name, namespace)) = self.namespaces.pop() else {
            reply.ok();
            return Ok(TaskProgress::Done);
        };
        match server.keyspace.try_watch(records.session(), &name, namespace) {
            Ok(()) => Ok(TaskProgress::More),
            Err(error) => match self.before {
                Some(before) => {
                    server.keyspace.set_events(before);
                    Err(ErrorReply::new(format!(
                        "ERR CONFIG SET failed (possibly related to argument \
                         'notify-keyspace-events') - {error}"
                    )))
                }
                None => Err(error.into()),
            },
        }
    }

    fn memory_bytes(&self) -> usize {
        self.namespaces.iter().map(|(name, _)| name.len() + size_of::<(String, Namespace)>()).sum()
    }
}
