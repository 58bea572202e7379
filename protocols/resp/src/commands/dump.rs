//! `DUMP` and `RESTORE`: moving keys between nodes.

use super::arg;
use super::collection_read::{CollectionKey, DIRECT_MAX, Selection, SetOperation};
use super::collection_store::RestoreTask;
use super::collection_task::{CollectionTask, ReplyForm};
use super::hashes::{check_restored, resolve_hash};
use crate::command_context::{CommandContext, CommandTxn};
use crate::dump_payload::{BytesPair, DumpError, DumpedHead, DumpedRecord, DumpedValue};
use crate::number::integer;
use crate::parse::Args;
use crate::records::{ChangeError, RetainedMetadata, put_hash, put_set, put_string};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_store::Form;

/// `DUMP key`
pub(crate) fn dump(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let Some(found) = ctx.read(arg(args, 1))? else {
        reply.nil();
        return Ok(());
    };
    let selection = match found.record_type() {
        Form::Value => None,
        Form::Set => Some(Selection::Members(SetOperation::Union)),
        Form::Blocks => Some(Selection::Fields),
    };
    if let (Some(selection), None) = (selection, ctx.txn)
        && found.elements()? > DIRECT_MAX
    {
        let keys = vec![CollectionKey::of(ctx.records, arg(args, 1))?];
        let task = CollectionTask::new(selection, ReplyForm::Dump, keys, reply.bytes_max());
        return ctx.begin(task, reply);
    }
    let tags = found.tags();
    let value = match found.record_type() {
        Form::Value => DumpedValue::String(found.string()?),
        Form::Blocks => DumpedValue::Hash(found.fields()?.collect()),
        Form::Set => DumpedValue::Set(found.members()?.collect()),
    };
    let tags = tags.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
    let record = DumpedRecord { tags, value };
    reply.check_room_for(record.encoded_bytes());
    if !reply.is_over() {
        reply.bulk(&record.encode());
    }
    ctx.session().check_not_truncated()?;
    Ok(())
}

/// Options of `RESTORE`.
#[derive(Debug, Default)]
struct RestoreOptions {
    is_replacing: bool,
    is_absolute: bool,
    /// `IDLETIME` or `FREQ`, of which one may be given.
    has_usage: bool,
}

impl RestoreOptions {
    fn read(args: Args<'_>) -> Result<Self, ErrorReply> {
        let mut options = Self::default();
        let mut rest = args;
        while let Some(word) = rest.get(0) {
            let number = rest.get(1).and_then(integer);
            let taken = match word.to_ascii_lowercase().as_slice() {
                b"replace" => {
                    options.is_replacing = true;
                    1
                }
                b"absttl" => {
                    options.is_absolute = true;
                    1
                }
                // Without eviction there are neither access times nor frequencies.
                b"idletime" | b"freq" if options.has_usage => return Err(ErrorReply::SYNTAX),
                b"idletime" if rest.len() > 1 => {
                    options.has_usage = true;
                    if number.ok_or(ErrorReply::NOT_INTEGER)? < 0 {
                        let text = "ERR Invalid IDLETIME value, must be >= 0";
                        return Err(ErrorReply::fixed(text));
                    }
                    2
                }
                b"freq" if rest.len() > 1 => {
                    options.has_usage = true;
                    if !(0..=255).contains(&number.ok_or(ErrorReply::NOT_INTEGER)?) {
                        let text = "ERR Invalid FREQ value, must be >= 0 and <= 255";
                        return Err(ErrorReply::fixed(text));
                    }
                    2
                }
                _ => return Err(ErrorReply::SYNTAX),
            };
            rest = rest.from(taken);
        }
        Ok(options)
    }
}

/// `RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
pub(crate) fn restore(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let key = arg(args, 1);
    let options = RestoreOptions::read(args.from(4))?;
    let ttl = integer(arg(args, 2)).ok_or(ErrorReply::NOT_INTEGER)?;
    if !options.is_replacing && ctx.read(key)?.is_some() {
        return Err(ErrorReply::BUSY_KEY);
    }
    let ttl =
        u64::try_from(ttl).map_err(|_| ErrorReply::fixed("ERR Invalid TTL value, must be >= 0"))?;
    let head = DumpedHead::decode(arg(args, 3))?;
    let now = ctx.records.now_ms()?;
    let expires_ms = match (ttl, options.is_absolute) {
        (0, _) => 0,
        (ttl, true) => ttl,
        (ttl, false) => now.checked_add(ttl).ok_or_else(|| ErrorReply::expire_time("restore"))?,
    };
    let kept = RetainedMetadata { expires_ms, tags: tags_of(&head.tags)? };
    let is_past = expires_ms != 0 && expires_ms <= now;
    if ctx.txn.is_none() && head.elements > DIRECT_MAX && !is_past {
        let task = RestoreTask {
            key: key.to_vec(),
            payload: arg(args, 3).to_vec(),
            form: head.form,
            at: head.at,
            left: head.elements,
            kept,
            is_replacing: options.is_replacing,
            built: ctx.session().collection_builder(head.form)?,
            elements: head.elements,
        };
        return ctx.begin(task, reply);
    }
    let record = DumpedRecord::decode(arg(args, 3))?;
    match &record.value {
        DumpedValue::Hash(fields) => check_restored(fields)?,
        DumpedValue::String(_) | DumpedValue::Set(_) => {}
    }
    ctx.change(|change| {
        let found = change.read(key)?;
        if found.is_some() && !options.is_replacing {
            return Err(ErrorReply::BUSY_KEY.into());
        }
        if is_past {
            change.delete(key)?;
            return Ok(());
        }
        put(change, key, &record, &kept)
    })?;
    reply.ok();
    Ok(())
}

fn tags_of(tags: &[BytesPair<'_>]) -> Result<Vec<(String, Vec<u8>)>, ErrorReply> {
    let tags = tags.iter().map(|(name, value)| {
        let name = str::from_utf8(name).map_err(|_| DumpError::Format)?;
        Ok((name.to_owned(), value.to_vec()))
    });
    tags.collect()
}

/// Writes the record. Everything that can be refused is checked before the first change, because
/// nothing is undone between MULTI and EXEC.
fn put(
    change: &CommandTxn<'_, '_>,
    key: &[u8],
    record: &DumpedRecord<'_>,
    kept: &RetainedMetadata,
) -> Result<(), ChangeError> {
    match &record.value {
        DumpedValue::String(bytes) => {
            put_string(change.txn, change.resolved(key, bytes.len())?, bytes, kept)?;
        }
        DumpedValue::Set(members) => {
            let bytes = members.iter().map(|member| member.len()).max();
            let resolved = change.resolved(key, bytes.unwrap_or_default())?;
            put_set(change.txn, resolved, members, kept)?;
        }
        DumpedValue::Hash(fields) => {
            put_hash(change.txn, resolve_hash(change, key, fields)?, fields, kept)?;
        }
    }
    Ok(())
}
