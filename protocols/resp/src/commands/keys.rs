//! Keys, whatever their records are: deleting, renaming, copying, telling what is there.

use super::arg;
use crate::command_context::{CommandContext, CommandTxn, RETRY_POLICY};
use crate::number::{integer, small_integer_or_refuse};
use crate::parse::Args;
use crate::records::{ChangeError, KeptMetadata, RecordRef, ResolvedKey, put_set, put_string};
use crate::reply::Reply;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_model::Error;
use nearstate_model::limits::{KEY_BYTES_MAX, TRANSACTION_RECORDS_MAX};
use nearstate_store::{BlockChange, Form, Kind, Txn};

/// How many keys are deleted at one instant at first where one transaction does not take all of
/// them; fewer where the indexes of their tags are too many as well.
const PART_KEYS: usize = 1000;

/// Up to so many bytes Redis keeps a string within its object.
const EMBEDDED_BYTES_MAX: usize = 44;
/// Up to so many elements Redis keeps a small hash, or a set of numbers, in one piece.
const PACKED_COUNT_MAX: usize = 512;
/// Up to so many bytes a field and a value may have in it.
const PACKED_BYTES_MAX: usize = 64;

/// The counter that a key names: of a namespace that an embedded process has made for them.
fn counter<'k>(
    ctx: &CommandContext<'_>,
    key: &'k [u8],
) -> Result<Option<ResolvedKey<'k>>, ErrorReply> {
    let resolved = ctx.records.resolve(key)?;
    Ok(resolved.filter(|resolved| resolved.namespace.kind() == Kind::Counters))
}

/// The form of a key's record; `None` if there is none. A counter is a value.
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
    reply: &mut Reply<'_>,
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
        // Between MULTI and EXEC all is taken back.
        |error| match (deleted.done, ctx.txn) {
            (0, _) | (_, Some(_)) => ErrorReply::from(error),
            (done, None) => ErrorReply::from(error).half_way(&format!(
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

/// How far a `DEL` is.
#[derive(Debug, Default)]
struct DeleteProgress {
    /// Keys that were dealt with, in their order.
    done: usize,
    /// Those of them that were there.
    deleted: usize,
}

impl DeleteProgress {
    /// Deletes all at one instant if one transaction takes them, else in parts. An error undoes
    /// what is not counted.
    fn all(&mut self, ctx: &CommandContext<'_>, keys: &[&[u8]]) -> Result<(), Error> {
        if keys.len() <= TRANSACTION_RECORDS_MAX || ctx.txn.is_some() {
            match self.part(ctx, keys) {
                // What the indexes of tags add is known only by then.
                Err(Error::TransactionTooLarge { .. }) if ctx.txn.is_none() => {}
                done => return done,
            }
        }
        let (mut rest, mut bytes_max) = (keys, PART_KEYS.min(keys.len().div_ceil(2)));
        while !rest.is_empty() {
            let (part, others) = rest.split_at(bytes_max.min(rest.len()));
            match self.part(ctx, part) {
                // With so many tags as a record may have one fits.
                Err(Error::TransactionTooLarge { .. }) if part.len() > 1 => {
                    bytes_max = part.len() / 2
                }
                done => {
                    done?;
                    rest = others;
                }
            }
        }
        Ok(())
    }

    /// Deletes some keys at one instant, alone or in the transaction of `EXEC`.
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
            Some(lent) => {
                let mut deleted = Ok(0);
                lent.with(&mut |txn| deleted = delete(txn));
                deleted?
            }
        };
        self.done += keys.len();
        Ok(())
    }

    /// Deletes counters, each by itself: they are in no transaction.
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
    reply: &mut Reply<'_>,
) -> CommandResult {
    let mut there = 0;
    for key in args.from(1).iter() {
        there += usize::from(type_of_key(ctx, key)?.is_some());
    }
    reply.count(there);
    Ok(())
}

/// `TYPE key`
pub(crate) fn type_of(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    reply.simple(type_of_key(ctx, arg(args, 1))?.map_or("none", type_name));
    Ok(())
}

/// What Redis calls a form.
pub(super) const fn type_name(form: Form) -> &'static str {
    match form {
        Form::Value => "string",
        Form::Blocks => "hash",
        Form::Set => "set",
    }
}

/// Puts what was found to another place, whatever is there: value, end and tags.
fn put_copy(
    change: &CommandTxn<'_, '_>,
    target: ResolvedKey<'_>,
    found: &RecordRef<'_>,
) -> Result<(), ChangeError> {
    // All that may be refused is judged first: between MULTI and EXEC nothing is taken back.
    let ResolvedKey { namespace, key } = target;
    let may_be = match (namespace.kind(), found.record_type()) {
        (Kind::Mixed, _) | (Kind::Value, Form::Value) | (Kind::Blocks, Form::Blocks) => true,
        (Kind::Value | Kind::Blocks | Kind::Counters, _) => false,
    };
    if !may_be {
        return Err(ErrorReply::WRONG_TYPE.into());
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyTooLarge { bytes: key.len() }.into());
    }
    let kept = KeptMetadata::of(found);
    match found.record_type() {
        Form::Value => put_string(change.txn, target, found.string()?, &kept)?,
        Form::Set => {
            let members: Vec<&[u8]> = found.members()?.collect();
            put_set(change.txn, target, &members, &kept)?;
        }
        Form::Blocks => {
            let fields = found.fields()?;
            let blocks: Vec<BlockChange<'_>> = fields
                .iter()
                .map(|(name, bytes)| BlockChange { name, bytes: Some(bytes) })
                .collect();
            change.txn.delete(namespace, key)?;
            change.txn.patch(namespace, key, &blocks)?;
            let tags = kept.tags();
            if kept.expires_ms != 0 || !tags.is_empty() {
                change.txn.set_metadata(namespace, key, kept.metadata(&tags))?;
            }
        }
    }
    Ok(())
}

/// Gives a record another key. False if `is_free` is asked for and there is a record.
fn rename_to(ctx: &CommandContext<'_>, args: Args<'_>, is_free: bool) -> Result<bool, ErrorReply> {
    let (from, to) = (arg(args, 1), arg(args, 2));
    ctx.change(|change| {
        let Some(found) = change.read(from)? else { return Err(ErrorReply::NO_KEY.into()) };
        if from == to {
            return Ok(false);
        }
        let target = change.resolved(to, 0)?;
        if is_free && change.read_at(target)?.is_some() {
            return Ok(false);
        }
        put_copy(change, target, &found)?;
        change.delete(from)?;
        Ok(true)
    })
}

/// `RENAME key newkey`
pub(crate) fn rename(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    rename_to(ctx, args, false)?;
    reply.ok();
    Ok(())
}

/// `RENAMENX key newkey`
pub(crate) fn renamenx(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    reply.int(rename_to(ctx, args, true)?.into());
    Ok(())
}

/// `COPY source destination [DB destination-db] [REPLACE]`
pub(crate) fn copy(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
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
    let is_copied = ctx.change(|change| {
        let Some(found) = change.read(from)? else { return Ok(false) };
        let target = change.resolved(to, 0)?;
        if !has_replace && change.read_at(target)?.is_some() {
            return Ok(false);
        }
        put_copy(change, target, &found).map(|()| true)
    })?;
    reply.int(is_copied.into());
    Ok(())
}

/// There is one database.
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
    reply: &mut Reply<'_>,
) -> CommandResult {
    match ctx.read(arg(args, 2))? {
        Some(found) => reply.bulk(encoding_of(&found)?.as_bytes()),
        None => reply.nil(),
    }
    Ok(())
}

/// How Redis would keep it.
fn encoding_of(found: &RecordRef<'_>) -> Result<&'static str, ErrorReply> {
    let is_short = |bytes: &[u8]| bytes.len() <= PACKED_BYTES_MAX;
    Ok(match found.record_type() {
        Form::Value => match found.string()? {
            text if integer(text).is_some() => "int",
            text if text.len() <= EMBEDDED_BYTES_MAX => "embstr",
            _ => "raw",
        },
        Form::Blocks => {
            let fields = found.fields()?;
            let is_packed = fields.len() <= PACKED_COUNT_MAX
                && fields.iter().all(|(name, value)| is_short(name.as_bytes()) && is_short(value));
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
