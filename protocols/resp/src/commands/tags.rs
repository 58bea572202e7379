//! Tag commands: records with tags and lookups in the indexes of the store, one request for each
//! (`docs/decisions/011-tags-over-resp.md`).
//!
//! A namespace is written as the pattern of all its keys, `{ns},*`, so that the ACL rules for scans
//! apply to lookups by tag.

mod arguments;

use super::arg;
use super::hashes::{pairs, resolve_hash, set_fields};
use super::transactions::{check_watched, reject_in_exec};
use crate::command_context::{CommandContext, CommandTxn};
use crate::connection_state::WatchedTag;
use crate::key_name::KeyName;
use crate::number::integer;
use crate::parse::Args;
use crate::records::{ChangeError, KeyedRecords, RecordRef, ResolvedKey};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use arguments::{TagPair, counted, namespace_of, tag_name, tag_not_declared, tags_of, value_of};
use nearstate_model::Error;
use nearstate_store::{
    Form, Metadata, Namespace, PendingTagDeclaration, RetryPolicy, Session, TagSchema, TagState,
    Values, since_boot,
};
use std::time::Duration;

/// Buckets per slice of a declaration: about fifty records, each indexed in its own transaction.
const DECLARE_BUCKETS: usize = 16;

/// A slice ends after the bucket in which this time has passed, and after a conflict. Fifty records
/// with one value each take a third of it; a record with sixty-four values of an ordered tag takes
/// several times as long.
const DECLARE_SLICE: Duration = Duration::from_millis(1);

/// Limit of the time that a declaration retries one record that changes permanently, with a few
/// attempts per slice. Other clients are served meanwhile. The limit allows thousands of slices.
const DECLARE_RETRY_TIME_MAX: RetryPolicy =
    RetryPolicy { tries: u32::MAX, within: Some(Duration::from_secs(10)) };

/// Limit of keys in a reply: the limit of a transaction, some milliseconds.
const KEYS_MAX: usize = 4096;

/// Limit of index entries read for a reply. Each takes some tenths of a microsecond, and entries of
/// expired records yield no key. Between `MULTI` and `EXEC` the limit is lower, because each is a
/// record of the transaction.
const ENTRIES_MAX: u64 = 16_384;

/// Expired records collected after that limit is reached: some milliseconds. A repeated request
/// thus reaches the other records.
const COLLECTED_MAX: usize = 512;

/// Resolves a key in an existing namespace. Rejects undeclared tags, by which the record could not
/// be found.
fn check_declared<'a>(
    change: &CommandTxn<'_, '_>,
    key: &'a [u8],
    tags: &[TagPair<'_>],
) -> Result<Option<ResolvedKey<'a>>, ChangeError> {
    let resolved = change.records.resolve(key)?;
    for (name, _) in tags {
        let exists = match resolved {
            Some(resolved) => change.records.session().has_tag(resolved.namespace, name)?,
            None => false,
        };
        if !exists {
            return Err(tag_not_declared(KeyName::of(key).namespace, name).into());
        }
    }
    Ok(resolved)
}

/// Condition on the existence of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteCondition {
    Always,
    Absent,
    Present,
}

impl WriteCondition {
    fn read(options: Args<'_>) -> Result<Self, ErrorReply> {
        let is = |word: &str| {
            options.get(0).is_some_and(|given| given.eq_ignore_ascii_case(word.as_bytes()))
        };
        match options.len() {
            0 => Ok(Self::Always),
            1 if is("nx") => Ok(Self::Absent),
            1 if is("xx") => Ok(Self::Present),
            _ => Err(ErrorReply::SYNTAX),
        }
    }

    const fn holds(self, exists: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => !exists,
            Self::Present => exists,
        }
    }
}

/// `TAG DECLARE {ns},* tag [UNIQUE] [ORDERED] [COUNTED] [REQUIRED]`
pub(crate) fn declare(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    namespace_of(arg(args, 2))?;
    let mut tag = TagSchema { name: tag_name(arg(args, 3))?.to_owned(), ..TagSchema::default() };
    for word in args.from(4).iter() {
        match word.to_ascii_lowercase().as_slice() {
            b"unique" => tag.is_unique = true,
            b"ordered" => tag.is_ordered = true,
            b"counted" => tag.is_counted = true,
            b"required" => tag.is_required = true,
            _ => return Err(ErrorReply::SYNTAX),
        }
    }
    let namespace = ctx.records.resolve_or_create(arg(args, 2), 0)?.namespace;
    let name = tag.name.clone();
    let declaring =
        ctx.session().begin_tag_declaration(namespace, &[tag], DECLARE_RETRY_TIME_MAX)?;
    let mut building = DeclareTagTask { declaring, namespace, name };
    // A complete declaration replies at once.
    if building.step(ctx.records, ctx.server, reply)? == TaskProgress::More {
        ctx.connection.task = Some(Box::new(building));
    }
    Ok(())
}

/// A declaration that runs in slices.
#[derive(Debug)]
struct DeclareTagTask {
    declaring: PendingTagDeclaration,
    namespace: Namespace,
    name: String,
}

impl DeclareTagTask {
    /// The error that ended the declaration. Writers maintain the incomplete index, and lookups
    /// reject it.
    fn ended(&self, session: &Session, error: Error) -> ErrorReply {
        // A repeated request fails as well: an existing tag of this name is another declaration.
        if matches!(error, Error::TagTaken { .. } | Error::BadArgument { .. }) {
            return error.into();
        }
        let is_open =
            |tag: &nearstate_store::Tag| tag.name == self.name && tag.state == TagState::Building;
        let is_begun = session.tags(self.namespace).is_ok_and(|tags| tags.iter().any(is_open));
        let error = ErrorReply::from(error);
        if is_begun {
            return error.after_partial_execution(
                "the tag is there, but not all records are entered: send TAG DECLARE again, and \
                 they will be; until then nothing is found by it",
            );
        }
        error
    }
}

impl SlicedTask for DeclareTagTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let session = records.session();
        let until = since_boot().saturating_add(DECLARE_SLICE);
        for _ in 0..DECLARE_BUCKETS {
            let has_more = session.continue_tag_declaration(&mut self.declaring, 1);
            if !has_more.map_err(|error| self.ended(session, error))? {
                reply.ok();
                return Ok(TaskProgress::Done);
            }
            if self.declaring.is_contended() || since_boot() >= until {
                break;
            }
        }
        Ok(TaskProgress::More)
    }

    fn memory_bytes(&self) -> usize {
        2 * self.name.len() + size_of::<Self>()
    }
}

/// `TAG SET key value tags|KEEP [tag value ..] [NX | XX]`
pub(crate) fn set(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let is_keeping = arg(args, 4).eq_ignore_ascii_case(b"keep");
    let (pairs, options) =
        if is_keeping { (Args::default(), args.from(5)) } else { counted(args, 4)? };
    let (tags, when) = (tags_of(pairs)?, WriteCondition::read(options)?);
    let is_set = ctx.change(|change| {
        let resolved = check_declared(change, arg(args, 2), &tags)?;
        if resolved.is_none() && !when.holds(false) {
            return Ok(false);
        }
        let resolved = change.resolved(arg(args, 2), arg(args, 3).len())?;
        let found = match (is_keeping, when) {
            (false, WriteCondition::Always) => None,
            (true, _) | (false, WriteCondition::Absent | WriteCondition::Present) => {
                change.read_at(resolved)?
            }
        };
        if !when.holds(found.is_some()) {
            return Ok(false);
        }
        let kept = found.as_ref().filter(|_| is_keeping).map(RecordRef::tags).unwrap_or_default();
        drop(found);
        let kept: Vec<TagPair<'_>> =
            kept.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        let metadata = Metadata { tags: if is_keeping { &kept } else { &tags }, expires_ms: 0 };
        change.txn.put_with_metadata(resolved.namespace, resolved.key, arg(args, 3), metadata)?;
        Ok(true)
    })?;
    if is_set {
        reply.ok();
    } else {
        reply.nil();
    }
    Ok(())
}

/// `TAG HSET key fields field value .. tags [tag value ..] [NX | XX]`
pub(crate) fn hset(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let (given, rest) = counted(args, 3)?;
    if given.is_empty() {
        return Err(ErrorReply::fixed(
            "ERR no fields given: use TAG CHANGE to change only the \
                                      tags",
        ));
    }
    let (given_tags, options) = counted(rest, 0)?;
    let (tags, when) = (tags_of(given_tags)?, WriteCondition::read(options)?);
    let changes = pairs(given)?;
    let raw = ctx.change(|change| {
        let resolved = check_declared(change, arg(args, 2), &tags)?;
        if resolved.is_none() && !when.holds(false) {
            return Ok(None);
        }
        let resolved = resolve_hash(change, arg(args, 2), &changes)?;
        let found = change.read_at(resolved)?;
        if !when.holds(found.is_some()) {
            return Ok(None);
        }
        let expires_ms = found.as_ref().map_or(0, RecordRef::expires_ms);
        let raw = set_fields(change, resolved, &changes)?;
        change.txn.set_metadata(
            resolved.namespace,
            resolved.key,
            Metadata { tags: &tags, expires_ms },
        )?;
        Ok(Some(raw))
    })?;
    match raw {
        Some(raw) => reply.count(raw),
        None => reply.nil(),
    }
    Ok(())
}

/// `TAG CHANGE key tags [tag value ..]`
pub(crate) fn change(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let (pairs, rest) = counted(args, 3)?;
    if !rest.is_empty() {
        return Err(ErrorReply::SYNTAX);
    }
    let tags = tags_of(pairs)?;
    let exists = ctx.change(|change| {
        let resolved = check_declared(change, arg(args, 2), &tags)?;
        let Some(resolved) = resolved else { return Ok(false) };
        let Some(found) = change.read_at(resolved)? else { return Ok(false) };
        let expires_ms = found.expires_ms();
        drop(found);
        Ok(change.txn.set_metadata(
            resolved.namespace,
            resolved.key,
            Metadata { tags: &tags, expires_ms },
        )?)
    })?;
    reply.int(exists.into());
    Ok(())
}

/// `TAG OF key`
pub(crate) fn of(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let Some(found) = ctx.read(arg(args, 2))? else {
        reply.nil_array();
        return Ok(());
    };
    let tags = found.tags();
    // Not a map, because a tag may have several values.
    reply.array(2 * tags.len());
    for (name, value) in tags {
        reply.bulk(name.as_bytes());
        reply.bulk(&value);
    }
    ctx.session().check_not_truncated()?;
    Ok(())
}

/// A lookup by tag.
struct TagQuery<'a> {
    namespace: Namespace,
    /// Prefix of the keys as clients write them.
    prefix: &'a [u8],
    tag: &'a str,
    value: &'a [u8],
}

impl<'a> TagQuery<'a> {
    /// Parses arguments 2 to 4. Rejects undeclared tags.
    fn of(ctx: &CommandContext<'_>, args: Args<'a>) -> Result<Self, ErrorReply> {
        let name = namespace_of(arg(args, 2))?;
        let (tag, value) = (tag_name(arg(args, 3))?, value_of(arg(args, 4))?);
        // The pattern of all keys of the namespace.
        let prefix = arg(args, 2).strip_suffix(b"*");
        let known = ctx.records.namespace(name)?.zip(prefix);
        let Some((namespace, prefix)) = known else { return Err(tag_not_declared(name, tag)) };
        if !ctx.session().has_tag(namespace, tag)? {
            return Err(tag_not_declared(name, tag));
        }
        Ok(Self { namespace, prefix, tag, value })
    }

    /// A key as clients write it.
    fn client_key(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix, key].concat()
    }

    /// Calls `read` with the record that has a value of a unique tag, and its key.
    fn find<T>(
        &self,
        ctx: &CommandContext<'_>,
        read: impl Fn(&[u8], &RecordRef<'_>) -> Result<T, ErrorReply>,
    ) -> Result<Option<T>, ErrorReply> {
        let Some(exec_txn) = ctx.txn else {
            let view = ctx.session().find(self.namespace, self.tag, self.value)?;
            ctx.session().owe_read(self.namespace, view.as_ref())?;
            ctx.records.check_lease(self.namespace)?;
            let Some(view) = view else { return Ok(None) };
            let key = view.key().to_vec();
            return read(&key, &RecordRef(view)).map(Some);
        };
        let mut result = Ok(None);
        exec_txn.with(&mut |txn| {
            result = match txn.find(self.namespace, self.tag, self.value) {
                Ok(Some((key, record))) => read(&key, &RecordRef(record)).map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(error.into()),
            };
        });
        ctx.session().owe_read(self.namespace, None)?;
        ctx.records.check_lease(self.namespace)?;
        result
    }
}

/// `TAG FIND {ns},* tag value [field ..]`
pub(crate) fn find(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let query = TagQuery::of(ctx, args)?;
    let (fields, mark) = (args.from(5), reply.mark());
    let reply = std::cell::RefCell::new(reply);
    let found = query.find(ctx, |key, found| {
        let mut reply = reply.borrow_mut();
        reply.rewind(mark);
        reply.array(2);
        reply.bulk(&query.client_key(key));
        write_record(found, fields, &mut reply)
    })?;
    ctx.records.count_lookup(found.is_some());
    if found.is_none() {
        reply.borrow_mut().nil_array();
    }
    ctx.session().check_not_truncated()?;
    Ok(())
}

/// Writes a record by its type, or some fields of a hash.
fn write_record(
    found: &RecordRef<'_>,
    fields: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if !fields.is_empty() {
        reply.array(fields.len());
        for field in fields.iter() {
            reply.bulk_or_nil(found.field(field)?);
        }
        return Ok(());
    }
    match found.record_type() {
        Form::Value => reply.bulk(found.string()?),
        Form::Blocks => {
            let fields = found.fields()?;
            reply.map(fields.len());
            for (name, value) in fields {
                reply.bulk(name);
                reply.bulk(value);
            }
        }
        Form::Set => {
            let members = found.members()?;
            reply.set(members.len());
            members.for_each(|member| reply.bulk(member));
        }
    }
    Ok(())
}

/// `TAG KEYS {ns},* tag value [COUNT n]`
pub(crate) fn keys(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let limit = match args.len() {
        5 => None,
        7 if arg(args, 5).eq_ignore_ascii_case(b"count") => {
            let count = integer(arg(args, 6)).and_then(|count| usize::try_from(count).ok());
            let count = count.filter(|count| (1..=KEYS_MAX).contains(count));
            Some(count.ok_or_else(|| {
                ErrorReply::new(format!("ERR invalid COUNT: it must be between 1 and {KEYS_MAX}"))
            })?)
        }
        _ => return Err(ErrorReply::SYNTAX),
    };
    let query = TagQuery::of(ctx, args)?;
    let mut found: Vec<Vec<u8>> = Vec::new();
    // One more than the limit shows that there are more.
    let enough = limit.unwrap_or(KEYS_MAX + 1);
    let mut note = |key: &[u8]| {
        found.push(query.client_key(key));
        found.len() < enough
    };
    let values = Values::Equal(query.value);
    match ctx.txn {
        None => {
            let each = |view: &nearstate_store::View<'_>| note(view.key());
            let (namespace, of) = (query.namespace, (query.tag, values));
            if !ctx.session().find_some(namespace, of, ENTRIES_MAX, each)? {
                // Failures of the collection are reported by later writes.
                let collected = ctx.session().collect_expired(COLLECTED_MAX);
                let progress = match collected {
                    Ok(collected) if collected.records != 0 => "are being collected: repeat",
                    Ok(_) | Err(_) => {
                        "cannot be collected here at present (those of a copy are deleted when \
                         their owner collects them): wait, then repeat"
                    }
                };
                return Err(ErrorReply::new(format!(
                    "BUSY most of more than {ENTRIES_MAX} records with this value have expired \
                     and {progress} the command"
                )));
            }
        }
        Some(exec_txn) => {
            let mut done = Ok(());
            exec_txn.with(&mut |txn| {
                done = txn.find_all(query.namespace, query.tag, values, &mut note);
            });
            done?;
        }
    }
    if found.len() > KEYS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR more than {KEYS_MAX} records have this value: use COUNT, or search from a \
             process on the node's host"
        )));
    }
    ctx.session().owe_read(query.namespace, None)?;
    ctx.records.check_lease(query.namespace)?;
    reply.array(found.len());
    for key in &found {
        reply.bulk(key);
    }
    ctx.session().check_not_truncated()?;
    Ok(())
}

/// `TAG WATCH {ns},* tag value`
pub(crate) fn watch(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if ctx.connection.queue.is_some() {
        return Err(ErrorReply::fixed("ERR TAG WATCH inside MULTI is not allowed"));
    }
    let query = TagQuery::of(ctx, args)?;
    check_watched(ctx.connection, 2)?;
    let seen = query.find(ctx, |key, found| Ok((query.client_key(key), found.version())))?;
    let (key, version) = seen.unwrap_or_else(|| (query.client_key(b""), None));
    let (name, value) = (query.tag.to_owned(), query.value.to_vec());
    ctx.connection.watched.add_tag(WatchedTag { name, value, key, version });
    ctx.session().check_not_truncated()?;
    reply.ok();
    Ok(())
}
