//! `CONFIG SET`: the one setting that is not for the configuration's file alone, because clients
//! set it by themselves.

use super::server::{NOTIFY, settings};
use super::transactions::refuse_inside;
use crate::command_context::Client;
use crate::keyspace_events::KeyspaceEvents;
use crate::parse::Args;
use crate::records::Records;
use crate::reply::Reply;
use crate::reply::error_reply::Refusal;
use crate::server::Server;
use crate::sliced_task::{Progress, Work};
use nearstate_model::Error;
use nearstate_store::Namespace;

type Answer = Result<(), Refusal>;

/// `CONFIG SET name value [name value ..]`
pub(crate) fn set(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    refuse_inside(client, args)?;
    let pairs = args.from(2);
    if !pairs.len().is_multiple_of(2) {
        return Err(Refusal::SYNTAX);
    }
    let known = settings(client)?;
    let mut letters = None;
    let names = pairs.iter().step_by(2);
    for (said, value) in names.zip(pairs.iter().skip(1).step_by(2)) {
        let name = said.to_ascii_lowercase();
        let Some((name, _)) = known.iter().find(|(known, _)| known.as_bytes() == name) else {
            let said = String::from_utf8_lossy(said);
            return Err(Refusal::new(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{said}'"
            )));
        };
        match (*name, letters.replace(value)) {
            (NOTIFY, None) => {}
            (NOTIFY, Some(_)) => return Err(failed(name, "duplicate parameter")),
            _ => return Err(failed(name, "can't set immutable config")),
        }
    }
    let events = match KeyspaceEvents::parse(letters.unwrap_or_default()) {
        Ok(events) => events,
        Err(Error::BadArgument { detail }) => return Err(failed(NOTIFY, &detail)),
        Err(error) => return Err(error.into()),
    };
    let keyspace = &client.server.keyspace;
    let before = keyspace.events();
    keyspace.choose(events);
    if !events.is_any() {
        reply.ok();
        return Ok(());
    }
    // Each is followed when the answer is given: what the client does next is told.
    let mut namespaces = client.session().namespaces()?;
    namespaces.reverse();
    client.link.work = Some(Box::new(Following { before, namespaces }));
    Ok(())
}

fn failed(name: &str, why: &str) -> Refusal {
    Refusal::new(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}

/// Follows the namespaces that are there, one in each slice.
#[derive(Debug)]
struct Following {
    /// What is chosen again if one cannot be followed.
    before: KeyspaceEvents,
    /// Those that are left, the next one last.
    namespaces: Vec<(String, Namespace)>,
}

impl Work for Following {
    fn step(
        &mut self,
        records: &Records,
        server: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        let Some((name, namespace)) = self.namespaces.pop() else {
            reply.ok();
            return Ok(Progress::Done);
        };
        match server.keyspace.try_to_follow(records.session(), &name, namespace) {
            Ok(()) => Ok(Progress::More),
            Err(error) => {
                server.keyspace.choose(self.before);
                Err(failed(NOTIFY, &error.to_string()))
            }
        }
    }

    fn kept(&self) -> usize {
        self.namespaces.iter().map(|(name, _)| name.len() + size_of::<(String, Namespace)>()).sum()
    }
}
