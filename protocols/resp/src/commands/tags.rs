//! Records with tags: the store's own indexes, one request for each
//! (`docs/decisions/011-tags-over-resp.md`).
//!
//! A namespace is said as the pattern of all of its keys, `{ns},*`: so users' rules about what may
//! be walked hold for what is found by a tag.

use super::arg;
use super::hashes::{fields, pairs, resolve_hash, set_fields};
use super::transactions::{check_watched, reject_in_exec};
use crate::command_context::{CommandContext, CommandTxn};
use crate::connection_state::WatchedTag;
use crate::key_name::{KeyName, PLAIN_NAMESPACE, is_literal, pattern_namespace};
use crate::number::integer;
use crate::parse::Args;
use crate::records::{ChangeError, RecordRef, Records, ResolvedKey};
use crate::reply::Reply;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_model::Error;
use nearstate_model::limits::{
    NAMESPACE_NAME_BYTES_MAX, TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX, TAGS_MAX,
};
use nearstate_store::{
    Declaring, Form, Metadata, Namespace, RetryPolicy, Session, TagSchema, TagState, Values,
    since_boot,
};
use std::time::Duration;

/// A tag and its value.
type TagValue<'a> = (&'a str, &'a [u8]);

/// Buckets whose records a slice of a declaration enters: some fifty, each in a transaction.
const DECLARE_BUCKETS: usize = 16;

/// A slice ends with the bucket in which it has taken as long, and at a conflict. With one value
/// each, fifty records take a third of it; with sixty-four values of an ordered tag each takes
/// several of it.
const DECLARE_SLICE: Duration = Duration::from_millis(1);

/// How long a declaration goes on with one record that others change all the time, a few runs in
/// each slice: others are served meanwhile, so only its own client waits. Thousands of slices; a
/// record for which that is not enough is changed more often than it can be read.
const DECLARE_PATIENCE: RetryPolicy =
    RetryPolicy { tries: u32::MAX, within: Some(Duration::from_secs(10)) };

/// The most keys that a tag's value is answered with: what a transaction takes, some milliseconds.
const KEYS_MAX: usize = 4096;

/// Entries of an index that are gone over for them: each is a look for a record, some tenths of a
/// microsecond, and those whose records have ended answer nothing. Between `MULTI` and `EXEC` there
/// are fewer: each is a record of the transaction.
const ENTRIES_MAX: u64 = 16_384;

/// Ended records that are collected when there were more entries than that: some milliseconds, and
/// so whoever asks again comes to the others.
const COLLECTED_MAX: usize = 512;

const NO_NAMESPACE: ErrorReply = ErrorReply::fixed(
    "ERR tags belong to one namespace: say it as the pattern of all of its keys, {ns},*; ns has 1 \
     to 255 bytes of UTF-8 without { } , and NUL",
);
const NO_TAGS: ErrorReply = ErrorReply::fixed(
    "ERR a key that names no namespace has no tags: call it {ns},key, where ns has 1 to 255 bytes \
     of UTF-8 without { } , and NUL, and declare the tags, TAG DECLARE {ns},* tag",
);
const _: () = assert!(NAMESPACE_NAME_BYTES_MAX == 255, "the texts above say it");

/// The namespace of a pattern `{ns},*`.
fn namespace_of(pattern: &[u8]) -> Result<&str, ErrorReply> {
    match pattern_namespace(pattern) {
        Some(name) if name.key == b"*" => Ok(name.namespace),
        Some(_) => Err(NO_NAMESPACE),
        None => Err(match KeyName::of(pattern).namespace {
            PLAIN_NAMESPACE => NO_NAMESPACE,
            namespace => unsayable(namespace),
        }),
    }
}

/// That no pattern says this namespace, so that nobody can declare its tags or look for them.
#[cold]
fn unsayable(namespace: &str) -> ErrorReply {
    ErrorReply::new(format!(
        "ERR the namespace '{namespace}' can have no tags: in a pattern its * ? [ or \\ stands for \
         other letters; take a namespace whose name has none of them"
    ))
}

/// The name of a tag, if one may have it.
fn tag_name(said: &[u8]) -> Result<&str, ErrorReply> {
    let is_right =
        |name: &&str| (1..=TAG_NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
    str::from_utf8(said).ok().filter(is_right).ok_or_else(|| {
        ErrorReply::new(format!(
            "ERR a tag's name has 1 to {TAG_NAME_BYTES_MAX} bytes of UTF-8 without a NUL: give \
             this one such a name"
        ))
    })
}

fn value_of(said: &[u8]) -> Result<&[u8], ErrorReply> {
    if said.len() <= TAG_VALUE_BYTES_MAX {
        return Ok(said);
    }
    Err(ErrorReply::new(format!(
        "ERR a tag's value of {} bytes: it has at most {TAG_VALUE_BYTES_MAX}, take a digest of a \
         longer one",
        said.len()
    )))
}

/// So many pairs as argument `at` says, and what stands behind them.
fn counted(args: Args<'_>, at: usize) -> Result<(Args<'_>, Args<'_>), ErrorReply> {
    let count = integer(arg(args, at)).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or(ErrorReply::NOT_INTEGER)?;
    let behind = args.from(at + 1);
    let words = count.saturating_mul(2);
    if behind.len() < words {
        return Err(ErrorReply::new(format!(
            "ERR {count} pairs were announced, and {} words follow: give a name and a value for \
             each",
            behind.len()
        )));
    }
    Ok((behind.first(words), behind.from(words)))
}

fn tags_of(pairs: Args<'_>) -> Result<Vec<TagValue<'_>>, ErrorReply> {
    let count = pairs.len() / 2;
    if count > TAGS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR {count} tags: a record has at most {TAGS_MAX}; put what is not searched for into \
             the value"
        )));
    }
    let at = (0..pairs.len()).step_by(2);
    at.map(|at| Ok((tag_name(arg(pairs, at))?, value_of(arg(pairs, at + 1))?))).collect()
}

/// Where a key's record is, if its namespace is there. Refuses a tag that the namespace does not
/// have: nobody would find the record by it.
fn check_declared<'a>(
    change: &CommandTxn<'_, '_>,
    key: &'a [u8],
    tags: &[TagValue<'_>],
) -> Result<Option<ResolvedKey<'a>>, ChangeError> {
    let resolved = change.records.resolve(key)?;
    for (name, _) in tags {
        let exists = match resolved {
            Some(resolved) => change.records.session().has_tag(resolved.namespace, name)?,
            None => false,
        };
        if !exists {
            return Err(undeclared(KeyName::of(key).namespace, name).into());
        }
    }
    Ok(resolved)
}

#[cold]
fn undeclared(namespace: &str, tag: &str) -> ErrorReply {
    if namespace == PLAIN_NAMESPACE {
        return NO_TAGS;
    }
    if !is_literal(namespace) {
        return unsayable(namespace);
    }
    ErrorReply::new(format!(
        "ERR the namespace has no tag '{tag}': declare it first, TAG DECLARE {{{namespace}}},* \
         {tag}"
    ))
}

/// Under which condition a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteCondition {
    Always,
    Absent,
    Present,
}

impl WriteCondition {
    fn read(options: Args<'_>) -> Result<Self, ErrorReply> {
        let is = |word: &str| {
            options.get(0).is_some_and(|said| said.eq_ignore_ascii_case(word.as_bytes()))
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
    reply: &mut Reply<'_>,
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
    let declaring = ctx.session().begin_declaring(namespace, &[tag], DECLARE_PATIENCE)?;
    let mut building = DeclareTagTask { declaring, namespace, name };
    // What is there already is answered at once.
    if building.step(ctx.records, ctx.server, reply)? == TaskProgress::More {
        ctx.connection.task = Some(Box::new(building));
    }
    Ok(())
}

/// A tag that is declared in slices, so that others are served between them.
#[derive(Debug)]
struct DeclareTagTask {
    declaring: Declaring,
    namespace: Namespace,
    name: String,
}

impl DeclareTagTask {
    /// Why it has ended. What stands of it is kept by all writers, and not looked up.
    fn ended(&self, session: &Session, error: Error) -> ErrorReply {
        // It is refused, and would be again: what may be there of this name is another's.
        if matches!(error, Error::TagTaken { .. } | Error::BadArgument { .. }) {
            return error.into();
        }
        let is_open =
            |tag: &nearstate_store::Tag| tag.name == self.name && tag.state == TagState::Building;
        let is_begun = session.tags(self.namespace).is_ok_and(|tags| tags.iter().any(is_open));
        let refusal = ErrorReply::from(error);
        if is_begun {
            return refusal.half_way(
                "the tag is there, but not all records are entered: send TAG DECLARE again, and \
                 they will be; until then nothing is found by it",
            );
        }
        refusal
    }
}

impl SlicedTask for DeclareTagTask {
    fn step(
        &mut self,
        records: &Records,
        _: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let session = records.session();
        let until = since_boot().saturating_add(DECLARE_SLICE);
        for _ in 0..DECLARE_BUCKETS {
            let has_more = session.go_on(&mut self.declaring, 1);
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
    reply: &mut Reply<'_>,
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
        let kept: Vec<TagValue<'_>> =
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
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (given, rest) = counted(args, 3)?;
    if given.is_empty() {
        return Err(ErrorReply::fixed("ERR no field is set: TAG CHANGE changes the tags alone"));
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
        let raw = set_fields(change, resolved, &fields(found.as_ref())?, &changes)?;
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
    reply: &mut Reply<'_>,
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
    reply: &mut Reply<'_>,
) -> CommandResult {
    let Some(found) = ctx.read(arg(args, 2))? else {
        reply.nil_array();
        return Ok(());
    };
    let tags = found.tags();
    // No map: a name may have several values.
    reply.array(2 * tags.len());
    for (name, value) in tags {
        reply.bulk(name.as_bytes());
        reply.bulk(&value);
    }
    ctx.session().whole()?;
    Ok(())
}

/// What is looked for.
struct TagQuery<'a> {
    namespace: Namespace,
    /// What stands before its keys where clients say them.
    prefix: &'a [u8],
    tag: &'a str,
    value: &'a [u8],
}

impl<'a> TagQuery<'a> {
    /// Of arguments 2 to 4. A tag that is not declared is refused.
    fn of(ctx: &CommandContext<'_>, args: Args<'a>) -> Result<Self, ErrorReply> {
        let name = namespace_of(arg(args, 2))?;
        let (tag, value) = (tag_name(arg(args, 3))?, value_of(arg(args, 4))?);
        // The pattern is that of all of its keys.
        let prefix = arg(args, 2).strip_suffix(b"*");
        let known = ctx.records.namespace(name)?.zip(prefix);
        let Some((namespace, prefix)) = known else { return Err(undeclared(name, tag)) };
        if !ctx.session().has_tag(namespace, tag)? {
            return Err(undeclared(name, tag));
        }
        Ok(Self { namespace, prefix, tag, value })
    }

    /// A key as clients say it.
    fn said(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix, key].concat()
    }

    /// Hands the record that has a unique tag's value to `read`, with its key.
    fn find<T>(
        &self,
        ctx: &CommandContext<'_>,
        read: impl Fn(&[u8], &RecordRef<'_>) -> Result<T, ErrorReply>,
    ) -> Result<Option<T>, ErrorReply> {
        let Some(lent) = ctx.txn else {
            let view = ctx.session().find(self.namespace, self.tag, self.value)?;
            let Some(view) = view else { return Ok(None) };
            let key = view.key().to_vec();
            return read(&key, &RecordRef(view)).map(Some);
        };
        let mut heard = Ok(None);
        lent.with(&mut |txn| {
            heard = match txn.find(self.namespace, self.tag, self.value) {
                Ok(Some((key, record))) => read(&key, &RecordRef(record)).map(Some),
                Ok(None) => Ok(None),
                Err(error) => Err(error.into()),
            };
        });
        heard
    }
}

/// `TAG FIND {ns},* tag value [field ..]`
pub(crate) fn find(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let query = TagQuery::of(ctx, args)?;
    let (lookup, mark) = (args.from(5), reply.mark());
    let reply = std::cell::RefCell::new(reply);
    let found = query.find(ctx, |key, found| {
        let mut reply = reply.borrow_mut();
        reply.rewind(mark);
        reply.array(2);
        reply.bulk(&query.said(key));
        write_record(found, lookup, &mut reply)
    })?;
    ctx.records.count_lookup(found.is_some());
    if found.is_none() {
        reply.borrow_mut().nil_array();
    }
    ctx.session().whole()?;
    Ok(())
}

/// A record in the form that it has, or some fields of a hash.
fn write_record(found: &RecordRef<'_>, lookup: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if !lookup.is_empty() {
        reply.array(lookup.len());
        for field in lookup.iter() {
            reply.bulk_or_nil(found.field(field)?);
        }
        return Ok(());
    }
    match found.record_type() {
        Form::Value => reply.bulk(found.string()?),
        Form::Blocks => {
            let there = found.fields()?;
            reply.map(there.len());
            for (name, value) in there {
                reply.bulk(name.as_bytes());
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
    reply: &mut Reply<'_>,
) -> CommandResult {
    let bytes_max = match args.len() {
        5 => None,
        7 if arg(args, 5).eq_ignore_ascii_case(b"count") => {
            let count = integer(arg(args, 6)).and_then(|count| usize::try_from(count).ok());
            let count = count.filter(|count| (1..=KEYS_MAX).contains(count));
            Some(count.ok_or_else(|| {
                ErrorReply::new(format!("ERR a count of keys is 1 to {KEYS_MAX}: give such a one"))
            })?)
        }
        _ => return Err(ErrorReply::SYNTAX),
    };
    let query = TagQuery::of(ctx, args)?;
    let mut found: Vec<Vec<u8>> = Vec::new();
    // One more than may be tells that there are more.
    let enough = bytes_max.unwrap_or(KEYS_MAX + 1);
    let mut note = |key: &[u8]| {
        found.push(query.said(key));
        found.len() < enough
    };
    let values = Values::Equal(query.value);
    match ctx.txn {
        None => {
            let each = |view: &nearstate_store::View<'_>| note(view.key());
            let (namespace, of) = (query.namespace, (query.tag, values));
            if !ctx.session().find_some(namespace, of, ENTRIES_MAX, each)? {
                // What keeps them from being collected is told to whoever writes.
                let _ = ctx.session().collect_expired(COLLECTED_MAX);
                return Err(ErrorReply::new(format!(
                    "BUSY of more than {ENTRIES_MAX} records that had this value most have ended, \
                     and are still being collected: ask again"
                )));
            }
        }
        Some(lent) => {
            let mut done = Ok(());
            lent.with(&mut |txn| {
                done = txn.find_all(query.namespace, query.tag, values, &mut note);
            });
            done?;
        }
    }
    if found.len() > KEYS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR more than {KEYS_MAX} records have this value: ask for some with COUNT, or let a \
             process on the node's host find them"
        )));
    }
    reply.array(found.len());
    for key in &found {
        reply.bulk(key);
    }
    ctx.session().whole()?;
    Ok(())
}

/// `TAG WATCH {ns},* tag value`
pub(crate) fn watch(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if ctx.connection.queue.is_some() {
        return Err(ErrorReply::fixed("ERR TAG WATCH inside MULTI is not allowed"));
    }
    let query = TagQuery::of(ctx, args)?;
    check_watched(ctx.connection, 2)?;
    let seen = query.find(ctx, |key, found| Ok((query.said(key), found.version())))?;
    let (key, version) = seen.unwrap_or_else(|| (query.said(b""), None));
    let (name, value) = (query.tag.to_owned(), query.value.to_vec());
    ctx.connection.watched.add_tag(WatchedTag { name, value, key, version });
    ctx.session().whole()?;
    reply.ok();
    Ok(())
}
