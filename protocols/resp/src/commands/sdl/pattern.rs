//! `NGET` and `NDEL`: all keys that match a pattern.
//!
//! The names are collected in slices between which other clients are served. The atomic commands
//! then use one transaction.

use crate::command_context::{CommandContext, RETRY_POLICY};
use crate::commands::arg;
use crate::commands::key_iterator::{KeyIterator, list_namespaces};
use crate::number::integer;
use crate::parse::Args;
use crate::pattern;
use crate::records::{KeyedRecords, ResolvedKey};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use crate::sliced_task::{SLICE_BUCKETS, SlicedTask, TaskProgress};
use nearstate_model::Result as Stored;
use nearstate_model::limits::{TRANSACTION_BYTES_MAX, TRANSACTION_RECORDS_MAX};
use nearstate_store::{Form, Kind, Txn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const TOO_MANY: ErrorReply = ErrorReply::fixed(
    "ERR more than 4096 keys match, the limit of a transaction: use a narrower pattern, \
     NGET.NOATOMIC, or KEYS and several DEL",
);
const _: () = assert!(TRANSACTION_RECORDS_MAX == 4096, "the text above says it");

/// Limit of the bytes of a reply: that of a transaction's writes.
const ANSWER_BYTES_MAX: usize = TRANSACTION_BYTES_MAX;

const TOO_LARGE: ErrorReply = ErrorReply::fixed(
    "ERR matching keys and values exceed 256 MiB: use a narrower pattern or SCAN",
);
const _: () = assert!(ANSWER_BYTES_MAX == 256 << 20, "the text above says it");

/// `NGET.ATOMIC pattern [COUNT n]`
pub(crate) fn nget_atomic(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_count(args, "nget.atomic")?;
    begin(ctx, arg(args, 1), PatternAction::Get, reply)
}

/// `NGET.NOATOMIC pattern [COUNT n]`
pub(crate) fn nget_noatomic(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_count(args, "nget.noatomic")?;
    if ctx.txn.is_some() {
        return begin(ctx, arg(args, 1), PatternAction::Get, reply);
    }
    let iterator = key_iterator(ctx, arg(args, 1))?;
    let replicated = iterator.first_replicated(ctx.session())?;
    ctx.connection.note_search(replicated);
    ctx.connection.task = Some(Box::new(PatternReadTask {
        iterator,
        found: BTreeMap::new(),
        bytes: 0,
        is_walked: false,
    }));
    Ok(())
}

/// `NDEL.ATOMIC pattern`
pub(crate) fn ndel_atomic(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    begin(ctx, arg(args, 1), PatternAction::Delete, reply)
}

/// Validates the count, which has no effect, with the module's error texts, which have two dashes.
fn check_count(args: Args<'_>, name: &str) -> CommandResult {
    match args.len() {
        4 if !arg(args, 2).eq_ignore_ascii_case(b"count") => {
            Err(ErrorReply::fixed("-ERR syntax error"))
        }
        4 if integer(arg(args, 3)).is_none_or(|count| count < 1) => {
            Err(ErrorReply::fixed("-ERR value is not an integer or out of range"))
        }
        2 | 4 => Ok(()),
        _ => Err(ErrorReply::arity(name)),
    }
}

fn begin(
    ctx: &mut CommandContext<'_>,
    pattern: &[u8],
    action: PatternAction,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let iterator = key_iterator(ctx, pattern)?;
    let (keys, found) = (BTreeSet::new(), VecDeque::new());
    let mut gather = PatternTxnTask { iterator, keys, bytes: 0, action, found, is_answered: false };
    let replicated = gather.iterator.first_replicated(ctx.session())?;
    let Some(exec_txn) = ctx.txn else {
        ctx.connection.note_search(replicated);
        ctx.connection.task = Some(Box::new(gather));
        return Ok(());
    };
    while gather.step_walk(ctx.records)? {
        ctx.check_deadline()?;
    }
    let mut done: Stored<PatternResult> = Ok(PatternResult::default());
    exec_txn.with(&mut |txn| done = gather.carry_out(ctx.records, txn));
    gather.found = done?.begin_answer(action, reply)?;
    if let Some(namespace) = replicated {
        ctx.session().owe_read(namespace, None)?;
        ctx.records.check_lease(namespace)?;
    }
    while gather.write_part(reply) == TaskProgress::More {}
    Ok(())
}

/// The namespace that the pattern names, or all.
fn key_iterator(ctx: &CommandContext<'_>, pattern: &[u8]) -> Result<KeyIterator, ErrorReply> {
    pattern::validate(pattern)?;
    let mut namespaces = list_namespaces(ctx.records, Some(pattern))?;
    // These commands do not include counters.
    namespaces.retain(|namespace_keys| namespace_keys.namespace.kind() != Kind::Counters);
    Ok(KeyIterator::new(namespaces, Some(pattern)))
}

/// A matching key as clients write it, and its value.
type KeyAndValue = (Vec<u8>, Vec<u8>);

/// Operation on the matching keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternAction {
    Get,
    Delete,
}

/// Values as they are read.
#[derive(Debug)]
struct PatternReadTask {
    iterator: KeyIterator,
    /// Keys that are visited twice are stored once.
    found: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of the keys and values that are not written yet.
    bytes: usize,
    is_walked: bool,
}

impl PatternReadTask {
    fn write_part(&mut self, reply: &mut ReplyWriter<'_>) -> TaskProgress {
        let Self { found, bytes, .. } = self;
        write_pairs(reply, || {
            let pair = found.pop_first()?;
            *bytes -= pair.0.len() + pair.1.len();
            Some(pair)
        })
    }
}

/// Bytes of a reply between two checks for other clients: what a connection sends at once.
const PART_BYTES: usize = 64 << 10;

/// At most the bytes that the protocol adds to a key and its value.
const PAIR_FRAME_BYTES: usize = 2 * "$1234567890\r\n\r\n".len();

/// Memory of a key and its value.
fn pair_bytes((key, value): &KeyAndValue) -> usize {
    key.len() + value.len() + FOUND_BYTES
}

/// Writes some of the pairs. `Done` after the last one.
fn write_pairs(
    reply: &mut ReplyWriter<'_>,
    mut next: impl FnMut() -> Option<KeyAndValue>,
) -> TaskProgress {
    let mut bytes = 0;
    while bytes < PART_BYTES {
        let Some((key, value)) = next() else { return TaskProgress::Done };
        reply.bulk(&key);
        reply.bulk(&value);
        bytes += key.len() + value.len();
    }
    TaskProgress::More
}

impl SlicedTask for PatternReadTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.is_walked {
            return Ok(self.write_part(reply));
        }
        let Self { iterator, found, bytes, .. } = self;
        let has_more = iterator.walk_keys(records.session(), SLICE_BUCKETS, |key, view| {
            if view.form() == Form::Value {
                *bytes += key.len() + view.bytes().len();
                if *bytes > ANSWER_BYTES_MAX {
                    return Err(TOO_LARGE);
                }
                // A key that is visited twice, because its bucket was split.
                let before = found.insert(key.to_vec(), view.bytes().to_vec());
                *bytes -= before.map_or(0, |before| key.len() + before.len());
            }
            Ok(())
        })?;
        if has_more {
            return Ok(TaskProgress::More);
        }
        records.session().check_not_truncated()?;
        self.is_walked = true;
        reply.check_room_for(self.bytes + self.found.len() * PAIR_FRAME_BYTES);
        reply.array(self.found.len() * 2);
        Ok(self.write_part(reply))
    }

    fn memory_bytes(&self) -> usize {
        self.iterator.memory_bytes() + self.bytes + self.found.len() * FOUND_BYTES
    }

    fn collected(&self) -> usize {
        self.bytes
    }
}

/// Memory overhead of a key, or of a key with its value.
const FOUND_BYTES: usize = 96;

/// Collects the names, then runs one transaction.
#[derive(Debug)]
struct PatternTxnTask {
    iterator: KeyIterator,
    keys: BTreeSet<Vec<u8>>,
    /// Memory of the keys.
    bytes: usize,
    action: PatternAction,
    /// What the transaction has read and is not written yet.
    found: VecDeque<KeyAndValue>,
    is_answered: bool,
}

impl PatternTxnTask {
    fn write_part(&mut self, reply: &mut ReplyWriter<'_>) -> TaskProgress {
        let Self { found, bytes, .. } = self;
        write_pairs(reply, || {
            let pair = found.pop_front()?;
            *bytes = bytes.saturating_sub(pair_bytes(&pair));
            Some(pair)
        })
    }

    /// Scans one slice. Returns false at the end.
    fn step_walk(&mut self, records: &KeyedRecords) -> Result<bool, ErrorReply> {
        let Self { iterator, keys, bytes, action, .. } = self;
        iterator.walk_keys(records.session(), SLICE_BUCKETS, |key, view| {
            let is_asked = *action == PatternAction::Delete || view.form() == Form::Value;
            if is_asked && keys.insert(key.to_vec()) {
                *bytes += key.len() + FOUND_BYTES;
            }
            if keys.len() > TRANSACTION_RECORDS_MAX { Err(TOO_MANY) } else { Ok(()) }
        })
    }

    fn carry_out(&self, records: &KeyedRecords, txn: &Txn<'_>) -> Stored<PatternResult> {
        let mut outcome = PatternResult::default();
        let mut bytes = 0;
        for key_text in &self.keys {
            let Some(ResolvedKey { namespace, key }) = records.resolve(key_text)? else { continue };
            if self.action == PatternAction::Delete {
                outcome.deleted += usize::from(txn.delete(namespace, key)?);
                continue;
            }
            let Some(record) = txn.get(namespace, key)? else { continue };
            if record.form() != Form::Value {
                continue;
            }
            bytes += key_text.len() + record.bytes().len();
            if bytes > ANSWER_BYTES_MAX {
                outcome.is_too_large = true;
                break;
            }
            outcome.found.push_back((key_text.clone(), record.bytes().to_vec()));
        }
        Ok(outcome)
    }
}

impl SlicedTask for PatternTxnTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.is_answered {
            return Ok(self.write_part(reply));
        }
        if self.step_walk(records)? {
            return Ok(TaskProgress::More);
        }
        let session = records.session();
        let outcome = session.transact_within(RETRY_POLICY, |txn| self.carry_out(records, txn))?;
        session.check_not_truncated()?;
        self.found = outcome.begin_answer(self.action, reply)?;
        self.is_answered = true;
        self.keys = BTreeSet::new();
        self.bytes = self.found.iter().map(pair_bytes).sum();
        Ok(self.write_part(reply))
    }

    fn memory_bytes(&self) -> usize {
        self.iterator.memory_bytes() + self.bytes
    }
}

/// Result of the transaction.
#[derive(Debug, Default)]
struct PatternResult {
    found: VecDeque<KeyAndValue>,
    deleted: usize,
    is_too_large: bool,
}

impl PatternResult {
    /// Begins the reply. Returns the pairs that are its elements.
    fn begin_answer(
        self,
        action: PatternAction,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<VecDeque<KeyAndValue>, ErrorReply> {
        if self.is_too_large {
            return Err(TOO_LARGE);
        }
        match action {
            PatternAction::Delete => reply.count(self.deleted),
            PatternAction::Get => {
                let bytes: usize =
                    self.found.iter().map(|(key, value)| key.len() + value.len()).sum();
                reply.check_room_for(bytes + self.found.len() * PAIR_FRAME_BYTES);
                reply.array(self.found.len() * 2);
            }
        }
        Ok(self.found)
    }
}
