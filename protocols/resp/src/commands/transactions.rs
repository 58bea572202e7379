//! `MULTI` to `EXEC`: the queued commands run in one transaction of the store, so that all of them,
//! and what `WATCH` has seen, are of one instant.
//!
//! A conflict runs them anew, which nobody sees: replies are taken back, and messages are sent only
//! behind the commit. A command that fails has its error as its reply and leaves nothing; if it had
//! written something before it failed, all are run anew without it.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command::Flags;
use crate::command_context::{Client, Command, Lent, Timed};
use crate::connection_state::{Link, Outbox, Queue, WatchedTag, Watching};
use crate::parse::Args;
use crate::records::{Records, Spot, judge as judge_record};
use crate::reply::Reply;
use crate::reply::error_reply::Refusal;
use crate::sliced_task::Progress;
use nearstate_model::limits::{TRANSACTION_RECORDS_MAX, TRANSACTION_TRIES};
use nearstate_model::{Error, Result as Stored};
use nearstate_store::{RetryPolicy, Txn, since_boot};
use std::collections::{BTreeMap, BTreeSet};

type Answer = Result<(), Refusal>;

const ABORTED: Refusal =
    Refusal::fixed("EXECABORT Transaction discarded because of previous errors.");

/// How many commands of one `EXEC` may fail after they have written something. Each costs another
/// run of all; one more refuses all.
const HALF_DONE_MAX: usize = 16;

/// `MULTI`
pub(crate) fn multi(client: &mut Client<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    if client.link.queue.is_some() {
        return Err(Refusal::fixed("ERR MULTI calls can not be nested"));
    }
    client.link.queue = Some(Queue::default());
    reply.ok();
    Ok(())
}

/// `DISCARD`
pub(crate) fn discard(client: &mut Client<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    if client.link.queue.take().is_none() {
        return Err(Refusal::fixed("ERR DISCARD without MULTI"));
    }
    client.link.watched = Watching::default();
    reply.ok();
    Ok(())
}

/// `WATCH key ..`
pub(crate) fn watch(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    if client.link.queue.is_some() {
        return Err(Refusal::fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let keys = args.from(1);
    if keys.len() > TRANSACTION_RECORDS_MAX {
        return Err(too_many_watched());
    }
    let watched = &client.link.watched;
    let fresh: BTreeSet<&[u8]> = keys.iter().filter(|key| !watched.has(key)).collect();
    judge_watched(client.link, fresh.len())?;
    fresh.iter().try_for_each(|key| judge_record(key, 0))?;
    let mut seen = Vec::with_capacity(fresh.len());
    for key in fresh {
        seen.push((key, client.read(key)?.and_then(|found| found.version())));
    }
    for (key, version) in seen {
        client.link.watched.add(key, version);
    }
    client.session().whole()?;
    reply.ok();
    Ok(())
}

/// Refuses to watch `more` records when a transaction does not take them: `EXEC` reads them all.
pub(super) fn judge_watched(link: &Link, more: usize) -> Answer {
    if link.watched.records() + more <= TRANSACTION_RECORDS_MAX {
        return Ok(());
    }
    Err(too_many_watched())
}

#[cold]
fn too_many_watched() -> Refusal {
    Refusal::new(format!(
        "ERR a client watches at most {TRANSACTION_RECORDS_MAX} keys, as many as a transaction \
         takes (a value of a tag counts twice): UNWATCH, and watch fewer"
    ))
}

/// `UNWATCH`
pub(crate) fn unwatch(client: &mut Client<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    client.link.watched = Watching::default();
    reply.ok();
    Ok(())
}

/// `EXEC`
pub(crate) fn exec(client: &mut Client<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let Some(queue) = client.link.queue.take() else {
        return Err(Refusal::fixed("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut client.link.watched);
    if queue.is_spoilt {
        return Err(ABORTED);
    }
    let mut execution = Execution { queue, watched, refused: BTreeMap::new() };
    let done = execution.carry_out(client, reply);
    let outbox = std::mem::take(&mut client.link.outbox);
    done?;
    for (channel, payload) in outbox.messages {
        client.server.publish(&channel, &payload);
    }
    Ok(())
}

/// The commands of one `EXEC`.
struct Execution {
    queue: Queue,
    watched: Watching,
    /// Those that failed half way in an earlier run, by their place: they are left out.
    refused: BTreeMap<usize, Refusal>,
}

/// How a run ended.
enum End {
    /// Every command has its reply; a watched key that has changed has made it nil.
    Whole,
    /// A command failed after it had written something.
    HalfDone(usize, Refusal),
    /// They took too long, or answered too much: nothing of it is to be.
    Stopped(Refusal),
}

impl Execution {
    fn carry_out(&mut self, client: &mut Client<'_>, reply: &mut Reply<'_>) -> Answer {
        let (session, mark) = (client.session(), reply.mark());
        // This core serves nobody else until then, however often all are run.
        let until = since_boot().saturating_add(client.server.settings.exec_max);
        loop {
            let left = until.saturating_sub(since_boot());
            let retry_policy = RetryPolicy { tries: TRANSACTION_TRIES, within: Some(left) };
            let mut cut = None;
            let done = session.transact_within(retry_policy, |txn| {
                reply.rewind(mark);
                client.link.outbox = Outbox::default();
                // With each read they would cost the square of their number. What the commands do
                // until then is the transaction's, the reply's, or the outbox'.
                match txn.validated_once(|| self.run(client, &Timed { txn, until }, reply))? {
                    // Behind the commit it would be too late to refuse.
                    End::Whole => return session.whole(),
                    End::HalfDone(place, refusal) => cut = Some((Some(place), refusal)),
                    End::Stopped(refusal) => cut = Some((None, refusal)),
                }
                // Ends the transaction; nobody reads this.
                Err(Error::BadArgument { detail: String::new() })
            });
            match (done, cut) {
                (Ok(()), _) => return Ok(()),
                (Err(error), None) => return Err(error.into()),
                (Err(_), Some((Some(place), refusal))) if self.refused.len() < HALF_DONE_MAX => {
                    self.refused.insert(place, refusal);
                }
                (Err(_), Some((_, refusal))) => return Err(refusal),
            }
        }
    }

    /// Runs every command once.
    fn run(
        &self,
        client: &mut Client<'_>,
        lent: &Timed<'_, '_>,
        reply: &mut Reply<'_>,
    ) -> Stored<End> {
        let txn = lent.txn;
        let commands = client.catalogue.commands();
        let is_writing = self.queue.requests.iter().any(|(number, _)| {
            let command = commands.get(usize::from(*number));
            command.is_some_and(|command| command.flags.has(Flags::WRITE))
        });
        if self.watched.records() > 0 {
            let stands = self.stands(client.records, lent, is_writing)?;
            if let Some(why) = judge(client, lent, reply) {
                return Ok(End::Stopped(why));
            }
            if !stands {
                reply.nil_array();
                return Ok(End::Whole);
            }
        }
        reply.array(self.queue.requests.len());
        for (place, (number, kept)) in self.queue.requests.iter().enumerate() {
            let Some(command) = commands.get(usize::from(*number)) else { continue };
            let (mark, changes) = (reply.mark(), txn.changes());
            let done = match self.refused.get(&place) {
                Some(refusal) => Err(refusal.clone()),
                None => run_one(client, (command, kept.args()), lent, reply),
            };
            if let Some(why) = judge(client, lent, reply) {
                return Ok(End::Stopped(why));
            }
            let Err(refusal) = done else { continue };
            if refusal.is_conflict() {
                return Err(Error::Conflict { detail: "what a command had read".to_owned() });
            }
            if txn.changes() != changes {
                return Ok(End::HalfDone(place, refusal));
            }
            reply.rewind(mark);
            reply.error(refusal.text());
        }
        Ok(End::Whole)
    }

    /// Whether all that is watched is as it was. It looks no further once no time is left: who asks
    /// judges that as well.
    fn stands(&self, records: &Records, lent: &Timed<'_, '_>, is_writing: bool) -> Stored<bool> {
        for tag in self.watched.tags() {
            if !tag_stands(records, lent.txn, tag)? {
                return Ok(false);
            }
            if lent.is_late() {
                return Ok(true);
            }
        }
        for (key, seen) in self.watched.keys() {
            // Made if need be: what is not there yet is watched as well, if something is written.
            let spot = if is_writing { Some(records.make(key, 0)?) } else { records.find(key)? };
            let version = match spot {
                Some(Spot { namespace, key }) => {
                    lent.txn.get(namespace, key)?.map(|record| record.version())
                }
                None => None,
            };
            if version != seen {
                return Ok(false);
            }
            if lent.is_late() {
                return Ok(true);
            }
        }
        Ok(true)
    }
}

/// Whether a watched tag still leads to the same record in the same version, in a transaction.
fn tag_stands(records: &Records, txn: &Txn<'_>, tag: &WatchedTag) -> Stored<bool> {
    let Some(Spot { namespace, key }) = records.find(&tag.key)? else {
        return Ok(tag.version.is_none());
    };
    Ok(match (txn.find(namespace, &tag.name, &tag.value)?, tag.version) {
        (Some((found, record)), Some(version)) => found == key && record.version() == version,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    })
}

/// Why the commands are to stop here, if they are.
fn judge(client: &Client<'_>, lent: &dyn Lent, reply: &Reply<'_>) -> Option<Refusal> {
    if reply.is_over() {
        return Some(Refusal::new(format!(
            "EXECABORT the answers have more than {} bytes: ask for less at once, or raise \
             limits.output_bytes_max; nothing was changed",
            reply.most()
        )));
    }
    let (most, rest) = (client.server.settings.exec_max, lent.left());
    if rest.is_zero() {
        return Some(Refusal::new(format!(
            "EXECABORT the commands took longer than {most:?}, and nobody else was served: send \
             fewer, walk outside of MULTI, or raise resp.exec_max; nothing was changed"
        )));
    }
    let weight = client.link.outbox.weight;
    (weight.takes > rest).then(|| {
        Refusal::new(format!(
            "EXECABORT with {} messages for {} hearers it would take longer than {most:?}, and \
             nobody else would be served: publish fewer at once, or outside of MULTI, or raise \
             resp.exec_max; nothing was changed and nothing sent",
            weight.messages, weight.letters
        ))
    })
}

fn run_one(
    client: &mut Client<'_>,
    (command, args): (&'static Command, Args<'_>),
    txn: &dyn Lent,
    reply: &mut Reply<'_>,
) -> Answer {
    // An AUTH among them may have changed who this is.
    if let Some(user) = &client.link.user {
        user.check(command, args)?;
    }
    let mut inner = Client {
        catalogue: client.catalogue,
        server: client.server,
        records: client.records,
        link: &mut *client.link,
        txn: Some(txn),
    };
    let done = (command.run)(&mut inner, args, reply);
    let work = client.link.work.take();
    done?;
    let Some(mut work) = work else { return Ok(()) };
    if command.flags.has(Flags::WRITE) {
        let name = command.name.to_ascii_uppercase();
        return Err(Refusal::new(format!(
            "ERR {name} walks over all keys and cannot be a part of a transaction: send it alone"
        )));
    }
    while work.step(client.records, client.server, reply)? == Progress::More {
        reply.judge_more(work.collected());
        if reply.is_over() || txn.is_late() {
            break;
        }
    }
    Ok(())
}

/// Refuses what cannot be undone or run twice.
pub(crate) fn refuse_inside(client: &Client<'_>, args: Args<'_>) -> Answer {
    if client.txn.is_none() {
        return Ok(());
    }
    let name = String::from_utf8_lossy(arg(args, 0)).to_ascii_uppercase();
    Err(Refusal::new(format!("ERR {name} is not allowed between MULTI and EXEC")))
}
#[cfg(test)]
mod tests;
