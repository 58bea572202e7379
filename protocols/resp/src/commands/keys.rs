//! Commands for keys of all types: deletion, renaming, copying, existence, type.

use super::arg;
use super::collection_store::{StoreAction, StoreCommand};
use crate::command_context::{CommandContext, RETRY_POLICY};
use crate::number::{integer, small_integer_or_refuse};
use crate::parse::Args;
use crate::records::{RecordRef, ResolvedKey};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_model::Error;
use nearstate_model::limits::{KEY_BYTES_MAX, TRANSACTION_RECORDS_MAX};
use nearstate_store::{Form, Kind, Txn};

/// Initial batch size of a deletion that does not fit into one transaction. Halved as long as the
/// tag indexes need too many records.
const PART_KEYS: usize = 1000;

/// Longest string with Redis' encoding `embstr`.
const EMBEDDED_BYTES_MAX: usize = 44;
/// Limit of elements for Redis' encodings `listpack` and `intset`.
const PACKED_COUNT_MAX: usize = 512;
/// Limit of bytes of a field or value for `listpack`.
const PACKED_BYTES_MAX: usize = 64;

/// The counter with this key, in a namespace of counters that an embedded process created.
fn counter<'k>(
    ctx: &CommandContext<'_>,
    key: &'k [u8],
) -> Result<Option<ResolvedKey<'k>>, ErrorReply> {
    let resolved = ctx.records.resolve(key)?;
    Ok(resolved.filter(|resolved| resolved.namespace.kind() == Kind::Counters))
}

/// Type of a key's record; `None` if it does not exist. A counter is a value.
pub(super) fn type_of_key(
    ctx: &CommandContext<'_>,
    key: &[u8],
) -> Result<Option<Form>, ErrorReply> {
    if let Some(resolved) = counter(ctx, key)? {
        if resolved.key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        let count = ctx.session().read_counter(resolved.namespace, resolved.key)?;
        return Ok(count.map(|_| Form::Value));
    }
    Ok(ctx.read(key)?.map(|found| found.record_type()))
}

/// `DEL key [key ...]`, `UNLINK key [key ...]`
pub(crate) fn del(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let keys = args.from(1);
    if let (Some(key), 1, None) = (keys.get(0), keys.len(), ctx.txn) {
        let is_gone = match ctx.records.resolve(key)? {
            Some(ResolvedKey { namespace, key }) => ctx.session().delete(namespace, key)?,
            None => false,
        };
        reply.int(is_gone.into());
        return Ok(());
    }
    let (mut records, mut counters) = (Vec::with_capacity(keys.len()), Vec::new());
    for key in keys.iter() {
        match (counter(ctx, key)?, ctx.txn) {
            (None, _) => records.push(key),
            (Some(_), Some(_)) => return Err(ErrorReply::WRONG_TYPE),
            (Some(resolved), None) => counters.push(resolved),
        }
    }
    let mut deleted = DeleteProgress::default();
    deleted.all(ctx, &records).and_then(|()| deleted.counters(ctx, &counters)).map_err(
        // Between MULTI and EXEC the whole deletion is undone.
        |error| match (deleted.done, ctx.txn) {
            (0, _) | (_, Some(_)) => ErrorReply::from(error),
            (done, None) => ErrorReply::from(error).after_partial_execution(&format!(
                "of the {} keys the first {done} are done (counters come last), {} of them were \
                 there and are deleted, and the others are as they were: send it again",
                keys.len(),
                deleted.deleted
            )),
        },
    )?;
    reply.count(deleted.deleted);
    Ok(())
}

/// Progress of a deletion.
#[derive(Debug, Default)]
struct DeleteProgress {
    /// Number of processed keys, in their order.
    done: usize,
    /// Number of keys among them that existed.
    deleted: usize,
}

impl DeleteProgress {
    /// Deletes all keys in one transaction, or in batches if it is too large. An error undoes the
    /// keys that are not counted.
    fn all(&mut self, ctx: &CommandContext<'_>, keys: &[&[u8]]) -> Result<(), Error> {
        if keys.len() <= TRANSACTION_RECORDS_MAX || ctx.txn.is_some() {
            match self.part(ctx, keys) {
                // The records of the tag indexes are known only now.
                Err(Error::TransactionTooLarge { .. }) if ctx.txn.is_none() => {}
                done => return done,
            }
        }
        let (mut rest, mut limit) = (keys, PART_KEYS.min(keys.len().div_ceil(2)));
        while !rest.is_empty() {
            let (part, others) = rest.split_at(limit.min(rest.len()));
            match self.part(ctx, part) {
                // A single key fits with the maximum number of tags.
                Err(Error::TransactionTooLarge { .. }) if part.len() > 1 => limit = part.len() / 2,
                done => {
                    done?;
                    rest = others;
                }
            }
        }
        Ok(())
    }

    /// Deletes keys in one transaction, or in that of `EXEC`.
    fn part(&mut self, ctx: &CommandContext<'_>, keys: &[&[u8]]) -> Result<(), Error> {
        let mut spots = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(ResolvedKey { namespace, key }) = ctx.records.resolve(key)? {
                spots.push((namespace, key));
            }
        }
        let delete = |txn: &Txn<'_>| txn.delete_all(&spots);
        self.deleted += match ctx.txn {
            None => ctx.session().transact_within(RETRY_POLICY, delete)?,
            Some(exec_txn) => {
                let mut deleted = Ok(0);
                exec_txn.with(&mut |txn| deleted = delete(txn));
                deleted?
            }
        };
        self.done += keys.len();
        Ok(())
    }

    /// Deletes counters one by one: transactions do not include counters.
    fn counters(
        &mut self,
        ctx: &CommandContext<'_>,
        spots: &[ResolvedKey<'_>],
    ) -> Result<(), Error> {
        for ResolvedKey { namespace, key } in spots {
            self.deleted += usize::from(ctx.session().delete(*namespace, key)?);
            self.done += 1;
        }
        Ok(())
    }
}

/// `EXISTS key [key ...]`, `TOUCH key [key ...]`
pub(crate) fn exists(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if let (Some(key), 2) = (args.get(1), args.len()) {
        reply.count(usize::from(type_of_key(ctx, key)?.is_some()));
        return Ok(());
    }
    let (mut counters, mut keys) = (0, Vec::new());
    for key in args.from(1).iter() {
        if counter(ctx, key)?.is_some() {
            counters += usize::from(type_of_key(ctx, key)?.is_some());
        } else {
            keys.push(key);
        }
    }
    let mut count = 0;
    ctx.read_together(keys.iter().copied(), |number, found| {
        count = if number == 0 { 0 } else { count } + usize::from(found.is_some());
    })?;
    reply.count(counters + count);
    Ok(())
}

/// `TYPE key`
pub(crate) fn type_of(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.simple(type_of_key(ctx, arg(args, 1))?.map_or("none", type_name));
    Ok(())
}

/// Redis' name of a type.
pub(super) const fn type_name(form: Form) -> &'static str {
    match form {
        Form::Value => "string",
        Form::Blocks => "hash",
        Form::Set => "set",
    }
}

/// Copies or renames the record of a key; a large set or hash in slices. Writes the reply.
fn store_record(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    action: StoreAction,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let (source, target) = (arg(args, 1).to_vec(), arg(args, 2).to_vec());
    let command = StoreCommand { sources: vec![source], target, action };
    command.begin(ctx, reply)
}

/// `RENAME key newkey`
pub(crate) fn rename(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    store_record(ctx, args, StoreAction::Rename { is_free: false }, reply)
}

/// `RENAMENX key newkey`
pub(crate) fn renamenx(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    store_record(ctx, args, StoreAction::Rename { is_free: true }, reply)
}

/// `COPY source destination [DB destination-db] [REPLACE]`
pub(crate) fn copy(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let (from, to) = (arg(args, 1), arg(args, 2));
    let mut has_replace = false;
    let mut rest = args.from(3);
    while let Some(option) = rest.get(0) {
        let taken = match (option.to_ascii_lowercase().as_slice(), rest.get(1)) {
            (b"replace", _) => {
                has_replace = true;
                1
            }
            (b"db", Some(number)) => {
                check_database(number)?;
                2
            }
            _ => return Err(ErrorReply::SYNTAX),
        };
        rest = rest.from(taken);
    }
    if from == to {
        return Err(ErrorReply::fixed("ERR source and destination objects are the same"));
    }
    store_record(ctx, args, StoreAction::Copy { is_replacing: has_replace }, reply)
}

/// Accepts database 0 only.
pub(super) fn check_database(number: &[u8]) -> Result<(), ErrorReply> {
    match small_integer_or_refuse(number)? {
        0 => Ok(()),
        _ => Err(ErrorReply::fixed("ERR DB index is out of range")),
    }
}

/// `OBJECT ENCODING key`
pub(crate) fn encoding(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    match ctx.read(arg(args, 2))? {
        Some(found) => reply.bulk(encoding_of(&found)?.as_bytes()),
        None => reply.nil(),
    }
    Ok(())
}

/// `OBJECT FREQ key`
pub(crate) fn freq(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if ctx.read(arg(args, 2))?.is_none() {
        reply.nil();
        return Ok(());
    }
    Err(ErrorReply::fixed(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
         that when switching between policies at runtime LRU and LFU data will take some time to \
         adjust.",
    ))
}

/// `OBJECT IDLETIME key`
pub(crate) fn idletime(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    number_if_exists(ctx, arg(args, 2), 0, reply)
}

/// `OBJECT REFCOUNT key`
pub(crate) fn refcount(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    number_if_exists(ctx, arg(args, 2), 1, reply)
}

fn number_if_exists(
    ctx: &CommandContext<'_>,
    key: &[u8],
    number: i64,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    match ctx.read(key)? {
        Some(_) => reply.int(number),
        None => reply.nil(),
    }
    Ok(())
}

/// The encoding that Redis would use.
fn encoding_of(found: &RecordRef<'_>) -> Result<&'static str, ErrorReply> {
    let is_short = |bytes: &[u8]| bytes.len() <= PACKED_BYTES_MAX;
    Ok(match found.record_type() {
        Form::Value => match found.string()? {
            text if integer(text).is_some() => "int",
            text if text.len() <= EMBEDDED_BYTES_MAX => "embstr",
            _ => "raw",
        },
        Form::Blocks => {
            let mut fields = found.fields()?;
            let is_packed = fields.len() <= PACKED_COUNT_MAX
                && fields.all(|(name, value)| is_short(name) && is_short(value));
            if is_packed { "listpack" } else { "hashtable" }
        }
        Form::Set => {
            let mut members = found.members()?;
            let is_packed = members.len() <= PACKED_COUNT_MAX;
            let is_intset = is_packed && members.all(|member| integer(member).is_some());
            if is_intset { "intset" } else { "hashtable" }
        }
    })
}
