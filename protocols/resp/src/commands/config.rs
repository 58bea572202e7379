//! `CONFIG SET` of the one setting that clients set themselves. All others are in the configuration
//! file.

use super::server::{NOTIFY, settings};
use super::transactions::reject_in_exec;
use crate::command_context::CommandContext;
use crate::keyspace_events::KeyspaceEvents;
use crate::parse::Args;
use crate::records::KeyedRecords;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_model::Error;
use nearstate_store::Namespace;

/// `CONFIG SET name value [name value ..]`
pub(crate) fn set(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let pairs = args.from(2);
    if !pairs.len().is_multiple_of(2) {
        return Err(ErrorReply::SYNTAX);
    }
    let known = settings(ctx)?;
    let mut flags = None;
    let names = pairs.iter().step_by(2);
    for (word, value) in names.zip(pairs.iter().skip(1).step_by(2)) {
        let name = word.to_ascii_lowercase();
        let Some((name, _)) = known.iter().find(|(known, _)| known.as_bytes() == name) else {
            let word = String::from_utf8_lossy(word);
            return Err(ErrorReply::new(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{word}'"
            )));
        };
        match (*name, flags.replace(value)) {
            (NOTIFY, None) => {}
            (NOTIFY, Some(_)) => return Err(failed(name, "duplicate parameter")),
            _ => return Err(failed(name, "can't set immutable config")),
        }
    }
    let events = match KeyspaceEvents::parse(flags.unwrap_or_default()) {
        Ok(events) => events,
        Err(Error::BadArgument { detail }) => return Err(failed(NOTIFY, &detail)),
        Err(error) => return Err(error.into()),
    };
    let keyspace = &ctx.server.keyspace;
    let before = keyspace.events();
    keyspace.set_events(events);
    if !events.is_any() {
        reply.ok();
        return Ok(());
    }
    // All namespaces are watched before the reply: later changes are published.
    let mut namespaces = ctx.session().namespaces()?;
    namespaces.reverse();
    ctx.connection.task = Some(Box::new(WatchNamespacesTask { before, namespaces }));
    Ok(())
}

fn failed(name: &str, why: &str) -> ErrorReply {
    ErrorReply::new(format!(
        "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
    ))
}

/// Watches the existing namespaces, one per slice.
#[derive(Debug)]
struct WatchNamespacesTask {
    /// The previous value, restored if a namespace cannot be watched.
    before: KeyspaceEvents,
    /// Remaining namespaces, the next one last.
    namespaces: Vec<(String, Namespace)>,
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
            Err(error) => {
                server.keyspace.set_events(self.before);
                Err(failed(NOTIFY, &error.to_string()))
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        self.namespaces.iter().map(|(name, _)| name.len() + size_of::<(String, Namespace)>()).sum()
    }
}
