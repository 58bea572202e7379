//! `NGET` and `NDEL`: all keys that match a pattern.
//!
//! The names are collected in slices, so that others are served meanwhile. What is to be of one
//! instant is then done by one transaction, at once.

use super::Answer;
use crate::command_context::{Client, PATIENCE};
use crate::commands::arg;
use crate::commands::keyspace_walk::{Path, areas};
use crate::number::integer;
use crate::parse::Args;
use crate::pattern;
use crate::records::{Records, Spot};
use crate::reply::Reply;
use crate::reply::error_reply::Refusal;
use crate::server::Server;
use crate::sliced_task::{Progress, SLICE_BUCKETS, Work};
use nearstate_model::Result as Stored;
use nearstate_model::limits::{TRANSACTION_BYTES_MAX, TRANSACTION_RECORDS_MAX};
use nearstate_store::{Form, Kind, Txn};
use std::collections::{BTreeMap, BTreeSet};

const TOO_MANY: Refusal = Refusal::fixed(
    "ERR more than 4096 keys match, more than one transaction takes: use a narrower pattern, \
     NGET.NOATOMIC, or KEYS and DEL in parts",
);
const _: () = assert!(TRANSACTION_RECORDS_MAX == 4096, "the text above says it");

/// What an answer may take, in bytes: as much as a transaction may write.
const ANSWER_BYTES_MAX: usize = TRANSACTION_BYTES_MAX;

const TOO_LARGE: Refusal = Refusal::fixed(
    "ERR the keys and values that match have more than 256 MiB: use a narrower pattern, or SCAN",
);
const _: () = assert!(ANSWER_BYTES_MAX == 256 << 20, "the text above says it");

/// `NGET.ATOMIC pattern [COUNT n]`
pub(crate) fn nget_atomic(
    client: &mut Client<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Answer {
    check_count(args, "nget.atomic")?;
    begin(client, arg(args, 1), Aim::Get, reply)
}

/// `NGET.NOATOMIC pattern [COUNT n]`
pub(crate) fn nget_noatomic(
    client: &mut Client<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Answer {
    check_count(args, "nget.noatomic")?;
    if client.txn.is_some() {
        return begin(client, arg(args, 1), Aim::Get, reply);
    }
    let path = path(client, arg(args, 1))?;
    client.link.work = Some(Box::new(Collect { path, found: BTreeMap::new(), bytes: 0 }));
    Ok(())
}

/// `NDEL.ATOMIC pattern`
pub(crate) fn ndel_atomic(
    client: &mut Client<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Answer {
    begin(client, arg(args, 1), Aim::Delete, reply)
}

/// The count changes nothing; what is none is refused with the module's texts, which have two
/// dashes.
fn check_count(args: Args<'_>, name: &str) -> Answer {
    match args.len() {
        4 if !arg(args, 2).eq_ignore_ascii_case(b"count") => {
            Err(Refusal::fixed("-ERR syntax error"))
        }
        4 if integer(arg(args, 3)).is_none_or(|count| count < 1) => {
            Err(Refusal::fixed("-ERR value is not an integer or out of range"))
        }
        2 | 4 => Ok(()),
        _ => Err(Refusal::arity(name)),
    }
}

fn begin(client: &mut Client<'_>, pattern: &[u8], aim: Aim, reply: &mut Reply<'_>) -> Answer {
    let path = path(client, pattern)?;
    let mut gather = Gather { path, keys: BTreeSet::new(), bytes: 0, aim };
    let Some(lent) = client.txn else {
        client.link.work = Some(Box::new(gather));
        return Ok(());
    };
    while gather.step_walk(client.records)? {
        client.judge_time()?;
    }
    let mut done: Stored<Outcome> = Ok(Outcome::default());
    lent.with(&mut |txn| done = gather.carry_out(client.records, txn));
    done?.answer(aim, reply)
}

/// Over the one namespace that the pattern names, or over all.
fn path(client: &Client<'_>, pattern: &[u8]) -> Result<Path, Refusal> {
    pattern::judge(pattern)?;
    let mut areas = areas(client.records, Some(pattern))?;
    // Counters are no records to these commands.
    areas.retain(|area| area.namespace.kind() != Kind::Counters);
    Ok(Path::new(areas, Some(pattern)))
}

/// What is done with the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Get,
    Delete,
}

/// The values as the walk meets them.
#[derive(Debug)]
struct Collect {
    path: Path,
    /// A key that is met twice stands here once.
    found: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Work for Collect {
    fn step(
        &mut self,
        records: &Records,
        _: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        let Self { path, found, bytes } = self;
        let has_more = path.find(records.session(), SLICE_BUCKETS, |key, view| {
            if view.form() == Form::Value {
                *bytes += key.len() + view.bytes().len();
                if *bytes > ANSWER_BYTES_MAX {
                    return Err(TOO_LARGE);
                }
                found.insert(key.to_vec(), view.bytes().to_vec());
            }
            Ok(())
        })?;
        if has_more {
            return Ok(Progress::More);
        }
        records.session().whole()?;
        reply.array(found.len() * 2);
        for (key, value) in found {
            reply.bulk(key);
            reply.bulk(value);
        }
        Ok(Progress::Done)
    }

    fn kept(&self) -> usize {
        self.path.kept() + self.bytes + self.found.len() * FOUND_BYTES
    }

    fn collected(&self) -> usize {
        self.bytes
    }
}

/// What a key, or a key and its value, cost beside their bytes.
const FOUND_BYTES: usize = 96;

/// The names first, then one transaction.
#[derive(Debug)]
struct Gather {
    path: Path,
    keys: BTreeSet<Vec<u8>>,
    /// What the keys cost.
    bytes: usize,
    aim: Aim,
}

impl Gather {
    /// Walks a slice. False at the end.
    fn step_walk(&mut self, records: &Records) -> Result<bool, Refusal> {
        let Self { path, keys, bytes, aim } = self;
        path.find(records.session(), SLICE_BUCKETS, |key, view| {
            let is_asked = *aim == Aim::Delete || view.form() == Form::Value;
            if is_asked && keys.insert(key.to_vec()) {
                *bytes += key.len() + FOUND_BYTES;
            }
            if keys.len() > TRANSACTION_RECORDS_MAX { Err(TOO_MANY) } else { Ok(()) }
        })
    }

    fn carry_out(&self, records: &Records, txn: &Txn<'_>) -> Stored<Outcome> {
        let mut outcome = Outcome::default();
        let mut bytes = 0;
        for said in &self.keys {
            let Some(Spot { namespace, key }) = records.find(said)? else { continue };
            if self.aim == Aim::Delete {
                outcome.deleted += usize::from(txn.delete(namespace, key)?);
                continue;
            }
            let Some(record) = txn.get(namespace, key)? else { continue };
            if record.form() != Form::Value {
                continue;
            }
            bytes += said.len() + record.bytes().len();
            if bytes > ANSWER_BYTES_MAX {
                outcome.is_too_large = true;
                break;
            }
            outcome.found.push((said.clone(), record.bytes().to_vec()));
        }
        Ok(outcome)
    }
}

impl Work for Gather {
    fn step(
        &mut self,
        records: &Records,
        _: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        if self.step_walk(records)? {
            return Ok(Progress::More);
        }
        let session = records.session();
        let outcome = session.transact_within(PATIENCE, |txn| self.carry_out(records, txn))?;
        session.whole()?;
        outcome.answer(self.aim, reply)?;
        Ok(Progress::Done)
    }

    fn kept(&self) -> usize {
        self.path.kept() + self.bytes
    }
}

/// What the transaction has found or done.
#[derive(Debug, Default)]
struct Outcome {
    found: Vec<(Vec<u8>, Vec<u8>)>,
    deleted: usize,
    is_too_large: bool,
}

impl Outcome {
    fn answer(&self, aim: Aim, reply: &mut Reply<'_>) -> Answer {
        if self.is_too_large {
            return Err(TOO_LARGE);
        }
        if aim == Aim::Delete {
            reply.count(self.deleted);
            return Ok(());
        }
        reply.array(self.found.len() * 2);
        for (key, value) in &self.found {
            reply.bulk(key);
            reply.bulk(value);
        }
        Ok(())
    }
}
