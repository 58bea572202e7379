//! Meta schemas: GET, PUT, DELETE, and what they require of records.
//!
//! A schema applies to the records whose meta names it (`schemaId`). `presence` requires a tag,
//! `UNIQUE_KEY` makes its values unique among the records of the schema. Both are checked in the
//! transaction that writes a record. A new requirement is accepted only while no record names the
//! schema, so that every record that names a schema satisfies it.
//!
//! A record has a digest of each value of a unique key, with its schema and its tag, as the tag
//! [`UNIQUE_TAG`]. So a lookup finds no record of another schema, however common the value is
//! there. Records of a schema that an older build has stored have no digests. Those of a schema
//! with [`DIGESTED_TAG`] do: it was put while no record named it. For any other one the index of
//! the tag itself is searched.
//!
//! The store cannot remove an index that is complete, because readers may use it. A namespace has
//! 32 of them; the tags of a later schema are searched by reading all records.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use hyper::StatusCode;
use nearstate_model::Error;
use nearstate_model::limits::{TAG_NAME_BYTES_MAX, TAGS_DECLARED_MAX, TAGS_MAX};
use nearstate_node::executor::{TaskClass, spawn, yield_now};
use nearstate_store::{
    PendingTagDeclaration, RetryPolicy, Session, Tag, TagSchema, TagState, Txn, Values, View,
};
use serde_json::Value;

use crate::conditions::Validators;
use crate::document::{Document, write_schema};
use crate::meta::{RecordMeta, SCHEMA_TAG, UNIQUE_TAG, UniqueDigest, escape, text, unique_digest};
use crate::operation_context::OperationContext;
use crate::problem::Problem;
use crate::record::version_etag;
use crate::reply::Reply;
use crate::repository::{OperationRefusal, StorageNamespaces};
use crate::request_path::{check_new_id, encode_segment};
use crate::tags::is_reserved;

/// Buckets of an index that a part of a declaration of tags examines: some tens of microseconds.
const DECLARED_BUCKETS: u64 = 16;

/// The tag of a schema whose records have the digests of their unique values.
const DIGESTED_TAG: &str = "\u{1}digested";

/// The most tags of a schema. The store indexes 32 tags of a namespace, one of them by schema.
const SCHEMA_TAGS_MAX: usize = 31;

/// A tag of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SchemaTag {
    name: String,
    is_unique: bool,
    is_required: bool,
    /// The index that searches need, if the key type has one.
    index: Option<TagSchema>,
}

/// Schemas that a core keeps parsed. With more, the one that was parsed first is parsed again.
const PARSED_MAX: usize = 16;

/// The longest document of a schema that is kept: some fifty bytes for each of its tags.
const PARSED_BYTES_MAX: usize = 8 << 10;

/// The tags of a schema, and the document from which they were parsed, with its time.
type ParsedSchema = (Vec<u8>, Rc<[SchemaTag]>);

thread_local! {
    /// Schemas by their documents: each write of a record reads its schema in its transaction, and
    /// would parse it again.
    static PARSED: RefCell<Vec<ParsedSchema>> = const { RefCell::new(Vec::new()) };
}

fn no_schema(id: &str) -> Problem {
    Problem::not_found("SCHEMA_NOT_FOUND", format!("the meta schema {id:?} does not exist"))
}

/// An attribute that must be there.
fn required<'v>(value: Option<&'v Value>, pointer: &str) -> Result<&'v Value, Problem> {
    value.ok_or_else(|| Problem::parameter("MANDATORY_IE_MISSING", pointer, "is required"))
}

/// Reads the tags of a `MetaSchema`.
fn schema_tags(value: &Value) -> Result<Vec<SchemaTag>, Problem> {
    let refused = |reason: &str| Problem::attribute("/metaTags", reason);
    let items = required(value.get("metaTags"), "/metaTags")?;
    let items = items.as_array().ok_or_else(|| refused("must be an array"))?;
    if items.len() > SCHEMA_TAGS_MAX {
        return Err(refused(&format!("must have at most {SCHEMA_TAGS_MAX} tags")));
    }
    let mut names = BTreeSet::new();
    let mut tags = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let at = |name: &str| format!("/metaTags/{index}/{name}");
        let name = required(item.get("tagName"), &at("tagName"))?.as_str().unwrap_or_default();
        let is_valid = !name.is_empty() && name.len() <= TAG_NAME_BYTES_MAX && !is_reserved(name);
        if !is_valid || name.contains('\0') {
            let reason = format!("must be a string of 1 to {TAG_NAME_BYTES_MAX} bytes");
            return Err(Problem::attribute(at("tagName"), reason));
        }
        if !names.insert(name) {
            return Err(Problem::attribute(at("tagName"), "occurs twice"));
        }
        let flag = |name: &str| match item.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Problem::optional(at(name), "must be true or false")),
        };
        let Some(key_type) = required(item.get("keyType"), &at("keyType"))?.as_str() else {
            return Err(Problem::attribute(at("keyType"), "must be a string"));
        };
        let is_unique = key_type == "UNIQUE_KEY";
        let is_ordered = flag("sort")?;
        // Other types, also those of later releases, need no index.
        let is_indexed =
            is_unique || matches!(key_type, "SEARCH_KEY" | "COUNT_KEY" | "SEARCH_AND_COUNT_KEY");
        let index = TagSchema { name: name.to_owned(), is_ordered, ..TagSchema::default() };
        tags.push(SchemaTag {
            name: name.to_owned(),
            is_unique,
            is_required: flag("presence")?,
            index: is_indexed.then_some(index),
        });
    }
    Ok(tags)
}

/// The tags of a stored schema. Those of an equal document that was parsed before are used again.
fn stored_tags(view: &View<'_>) -> Result<Rc<[SchemaTag]>, Problem> {
    let bytes = view.bytes();
    let known = PARSED.with_borrow(|all| {
        let found = all.iter().find(|(document, _)| document == bytes);
        found.map(|(_, tags)| Rc::clone(tags))
    });
    if let Some(tags) = known {
        return Ok(tags);
    }
    let tags: Rc<[SchemaTag]> = schema_tags(&Document::of(view)?.value)?.into();
    if bytes.len() <= PARSED_BYTES_MAX {
        PARSED.with_borrow_mut(|all| {
            if all.len() == PARSED_MAX {
                all.remove(0);
            }
            all.push((bytes.to_vec(), Rc::clone(&tags)));
        });
    }
    Ok(tags)
}

/// True for a schema each record of which has the digests of its unique values.
fn is_digested(view: &View<'_>) -> bool {
    view.tags().any(|(name, _)| name == DIGESTED_TAG)
}

/// Checks the meta of a record against its schema, in the transaction that writes the record.
/// Returns the digests of its values of unique keys, which the record must have.
///
/// # Errors
/// 400: the schema does not exist, or requires a tag that is missing, or the digests leave no room;
/// 409: a value of a unique key belongs to another record.
pub(super) fn check_schema(
    txn: &Txn<'_>,
    context: &OperationContext<'_>,
    meta: &RecordMeta,
) -> Result<Vec<UniqueDigest>, OperationRefusal> {
    let Some(id) = &meta.schema_id else { return Ok(Vec::new()) };
    let Some(view) = txn.get(context.storage.schemas, id.as_bytes())? else {
        let reason = format!("the meta schema {id:?} does not exist");
        return Err(Problem::optional("/schemaId", reason).into());
    };
    let (is_digested, mut digests) = (is_digested(&view), Vec::new());
    for tag in stored_tags(&view)?.iter() {
        if tag.is_required && meta.tags.values(&tag.name).next().is_none() {
            let pointer = format!("/tags/{}", escape(&tag.name));
            let reason = format!("the schema {id:?} requires this tag");
            return Err(Problem::parameter("MANDATORY_IE_MISSING", pointer, reason).into());
        }
        for value in meta.tags.values(&tag.name).filter(|_| tag.is_unique) {
            let pair = (tag.name.as_str(), value);
            let digest = is_digested.then(|| unique_digest(id, pair));
            if let Some(holder) = holder_of(txn, context, (id, pair), digest.as_ref())? {
                let detail = format!(
                    "the unique tag {:?} has the value {value:?} in record {holder:?} of schema \
                     {id:?}",
                    tag.name
                );
                return Err(Problem::conflict("UNIQUE_KEY_TAKEN", detail).into());
            }
            digests.extend(digest);
        }
    }
    // The schema is a value as well.
    let own = 1 + digests.len();
    if meta.tags.len() + own > TAGS_MAX {
        let reason = format!(
            "must have at most {} values over all tags: each value of a unique key counts twice",
            TAGS_MAX.saturating_sub(own)
        );
        return Err(Problem::optional("/tags", reason).into());
    }
    Ok(digests)
}

/// Another record of a schema that has a value of a tag.
fn holder_of(
    txn: &Txn<'_>,
    context: &OperationContext<'_>,
    (schema, (tag, value)): (&str, (&str, &str)),
    digest: Option<&UniqueDigest>,
) -> Result<Option<String>, OperationRefusal> {
    let namespace = context.storage.records;
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let indexed = digest.map_or((tag, value.as_bytes()), |digest| (UNIQUE_TAG, &digest[..]));
    let found = txn.find_all(namespace, indexed.0, Values::Equal(indexed.1), |key| {
        if key != context.key() {
            keys.push(key.to_vec());
        }
        true
    });
    if let Err(Error::BadArgument { .. }) = found {
        let detail =
            "the index of the unique keys is not ready: if this lasts, put the schema again";
        return Err(Problem::busy(detail).into());
    }
    found?;
    for key in keys {
        let Some(view) = txn.get(namespace, &key)? else { continue };
        let has = |(name, value): (&str, &[u8])| {
            view.tags().any(|(known, found)| known == name && found == value)
        };
        if has((SCHEMA_TAG, schema.as_bytes())) && has((tag, value.as_bytes())) {
            return Ok(Some(String::from_utf8_lossy(&key).into_owned()));
        }
    }
    Ok(None)
}

/// `GetMetaSchema`.
pub(super) fn get(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let session = &context.repository.session;
    let view = session.get_whole(context.storage.schemas, context.key()).map_err(Problem::from)?;
    let view = view.ok_or_else(|| no_schema(&context.path.id))?;
    let document = Document::of(&view)?;
    let validators = document.validators();
    if let Some(reply) = context.read_refusal(&validators) {
        return Ok(reply);
    }
    Ok(document.reply(StatusCode::OK).validated(&validators))
}

/// The declaration of the indexes of a schema, for records and for timers. The commit of the schema
/// completes it. Unless it is committed, the tags that it has started are removed: also if the
/// client resets the stream.
struct IndexDeclaration {
    session: Rc<Session>,
    pending: Vec<PendingTagDeclaration>,
    /// The digests of unique values are indexed once it is complete.
    has_digests: bool,
}

/// What a schema indexes and is not ready in a namespace. A tag that is declared already keeps its
/// form, which affects the duration of searches only.
fn missing_indexes(tags: &[SchemaTag], known: &[Tag]) -> Vec<TagSchema> {
    let wanted = tags.iter().filter_map(|tag| tag.index.clone());
    // Another request may be busy with a tag, and may be refused: it is declared by both.
    let missing =
        wanted.filter_map(|index| match known.iter().find(|known| known.name == index.name) {
            None => Some(index),
            Some(known) if known.state == TagState::Ready => None,
            Some(known) => Some(TagSchema::from(known.clone())),
        });
    missing.collect()
}

/// 500: the namespace has no room for an index of unique keys.
fn no_index() -> Problem {
    let detail = format!(
        "the storage has {TAGS_DECLARED_MAX} indexed tags, which stay, and none is for unique \
         keys: use the names of tags that are indexed already, or another storage"
    );
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "INSUFFICIENT_RESOURCES", detail)
}

impl IndexDeclaration {
    /// Begins to declare what is not ready, as far as there is room. Records have a tag of their
    /// own, and one for the digests; timers have two. The tags of a schema that do not fit are
    /// searched by reading all records or timers.
    ///
    /// # Errors
    /// 500: no index for unique keys is possible.
    fn begin(context: &OperationContext<'_>, tags: &[SchemaTag]) -> Result<Self, Problem> {
        let session = Rc::clone(&context.repository.session);
        let mut all = Self { session, pending: Vec::new(), has_digests: false };
        let StorageNamespaces { records, timers, .. } = context.storage;
        for namespace in [records, timers] {
            let known = all.session.tags(namespace)?;
            let mut wanted = missing_indexes(tags, &known);
            let has_unique = namespace == records && tags.iter().any(|tag| tag.is_unique);
            let digests = known.iter().find(|known| known.name == UNIQUE_TAG);
            if has_unique && digests.is_none_or(|known| known.state != TagState::Ready) {
                let name = UNIQUE_TAG.to_owned();
                wanted.insert(0, TagSchema { name, ..TagSchema::default() });
            }
            let is_new = |tag: &TagSchema| known.iter().all(|known| known.name != tag.name);
            let mut room = TAGS_DECLARED_MAX.saturating_sub(known.len());
            wanted.retain(|tag| {
                let fits = !is_new(tag) || room > 0;
                room -= usize::from(fits && is_new(tag));
                fits
            });
            let has = |name: &str| {
                known.iter().any(|known| known.name == name)
                    || wanted.iter().any(|tag| tag.name == name)
            };
            if namespace == records {
                let is_ready = digests.is_some_and(|known| known.state == TagState::Ready);
                all.has_digests = is_ready || wanted.iter().any(|tag| tag.name == UNIQUE_TAG);
                let mut unique = tags.iter().filter(|tag| tag.is_unique);
                if !all.has_digests && unique.any(|tag| !has(&tag.name)) {
                    return Err(no_index());
                }
            }
            if !wanted.is_empty() {
                let retries = RetryPolicy::default();
                let pending = all.session.begin_tag_declaration(namespace, &wanted, retries)?;
                all.pending.push(pending.held());
            }
        }
        Ok(all)
    }

    /// Indexes the records, in parts between which other requests are served.
    async fn run(&mut self) -> Result<(), Problem> {
        for pending in &mut self.pending {
            match run_parts(&self.session, pending).await {
                // Another request has declared the tag in another form, or has taken the room.
                Err(Error::BadArgument { detail }) => return Err(Problem::busy(detail)),
                done => done?,
            }
        }
        Ok(())
    }

    /// Completes the tags in the transaction that writes the schema. False: [`Self::run`] has more
    /// to do before.
    fn complete_in(&self, txn: &Txn<'_>) -> nearstate_model::Result<bool> {
        for pending in &self.pending {
            if !self.session.complete_tags_in(txn, pending)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The schema is committed.
    fn end(mut self) -> Result<(), Problem> {
        for pending in std::mem::take(&mut self.pending) {
            self.session.end_tag_declaration(pending)?;
        }
        Ok(())
    }

    /// The schema is refused.
    async fn withdraw(mut self) {
        for pending in &mut self.pending {
            withdraw(&self.session, pending).await;
        }
        self.pending.clear();
    }
}

impl Drop for IndexDeclaration {
    fn drop(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return;
        }
        let session = Rc::clone(&self.session);
        drop(spawn(TaskClass::Request, "nudsf-withdraw", async move {
            for mut one in pending {
                withdraw(&session, &mut one).await;
            }
        }));
    }
}

/// Removes the tags that a declaration has started.
async fn withdraw(session: &Session, pending: &mut PendingTagDeclaration) {
    session.withdraw_tags(pending);
    // A tag that cannot be removed is maintained, until another declaration completes it.
    drop(run_parts(session, pending).await);
}

async fn run_parts(
    session: &Session,
    pending: &mut PendingTagDeclaration,
) -> nearstate_model::Result<()> {
    while session.continue_tag_declaration(pending, DECLARED_BUCKETS)? {
        yield_now().await;
    }
    Ok(())
}

/// True if a schema requires something of records that an older one did not.
fn adds_requirements(new: &[SchemaTag], old: &[SchemaTag]) -> bool {
    new.iter().any(|tag| {
        let before = old.iter().find(|before| before.name == tag.name);
        (tag.is_unique && before.is_none_or(|before| !before.is_unique))
            || (tag.is_required && before.is_none_or(|before| !before.is_required))
    })
}

/// The tags of a schema that no client sees. `old` is the one that it replaces, and whether digests
/// of unique values are indexed.
fn own_tags(
    txn: &Txn<'_>,
    context: &OperationContext<'_>,
    (old, has_digests): (Option<&View<'_>>, bool),
) -> Result<&'static [(&'static str, &'static [u8])], OperationRefusal> {
    let is_digested =
        has_digests && (old.is_some_and(is_digested) || record_of_schema(txn, context)?.is_none());
    Ok(if is_digested { &[(DIGESTED_TAG, b"1")] } else { &[] })
}

/// `CreateOrModifyMetaSchema`.
pub(super) async fn put(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    check_new_id(&context.path.id, "{schemaId}")?;
    let value = context.json("application/json")?;
    let Some(object) = value.as_object() else {
        return Err(Problem::message("a schema must be an object").into());
    };
    required(object.get("schemaId"), "/schemaId")?;
    let id = text(object, "schemaId", "").map_err(Problem::of_required_attribute)?;
    if id.as_deref() != Some(&*context.path.id) {
        return Err(Problem::attribute("/schemaId", "must be the id in the path").into());
    }
    let tags = schema_tags(&value)?;
    // Known once the declaration of the indexes has begun.
    let has_digests = Cell::new(false);
    let body = |txn: &Txn<'_>| -> Result<Option<Option<Reply>>, OperationRefusal> {
        let view = txn.get(context.storage.schemas, context.key())?;
        let old = view.as_ref().map(Document::of).transpose()?;
        let validators = old.as_ref().map(Document::validators);
        context.check_write(|| validators.clone(), |status| Some(old.as_ref()?.reply(status)))?;
        let old_tags = old.as_ref().map(|old| schema_tags(&old.value)).transpose()?;
        if adds_requirements(&tags, &old_tags.unwrap_or_default()) {
            let advice = "they were not checked against the new requirements: delete such records, \
                          or create another schema";
            refuse_if_used(txn, context, advice)?;
        }
        let previous = old.as_ref().filter(|_| context.gets_previous);
        let previous = previous.map(|old| old.reply(StatusCode::OK));
        match &previous {
            Some(previous) => context.check_reply(previous)?,
            None if old.is_some() => {}
            None => context.check_reply(&Reply::json(StatusCode::CREATED, &value))?,
        }
        let own = own_tags(txn, context, (view.as_ref(), has_digests.get()))?;
        let place = (context.storage.schemas, context.key());
        write_schema(txn, place, &value, (context.now_ms, own))?;
        Ok(old.is_some().then_some(previous))
    };
    // A request that is refused at once declares nothing.
    context.repository.rehearse(&body).await?;
    let mut indexes = IndexDeclaration::begin(context, &tags)?;
    has_digests.set(indexes.has_digests);
    let (previous, version) = loop {
        indexes.run().await?;
        let is_incomplete = Cell::new(false);
        let with_indexes = |txn: &Txn<'_>| {
            let done = body(txn)?;
            is_incomplete.set(!indexes.complete_in(txn)?);
            let refused = || Problem::busy("the tags of the schema are declared by others");
            if is_incomplete.get() { Err(refused().into()) } else { Ok(done) }
        };
        match context.transact(context.key(), with_indexes).await {
            Ok(done) => break done,
            Err(_) if is_incomplete.get() => {}
            Err(reply) => {
                indexes.withdraw().await;
                return Err(reply);
            }
        }
    };
    indexes.end()?;
    let etag = version_etag(version.unwrap_or_default());
    let reply = match previous {
        Some(Some(previous)) => previous,
        Some(None) => Reply::empty(StatusCode::NO_CONTENT),
        None => {
            let uri =
                format!("{}/meta-schemas/{}", context.uri(), encode_segment(&context.path.id));
            Reply::json(StatusCode::CREATED, &value).located(&uri)
        }
    };
    Ok(reply.validated(&Validators { etag, modified_ms: Some(context.now_ms) }))
}

/// A record that names the schema. The transaction reads the index, so that no record can name the
/// schema before the commit.
fn record_of_schema(
    txn: &Txn<'_>,
    context: &OperationContext<'_>,
) -> Result<Option<String>, OperationRefusal> {
    let mut holder = None;
    txn.find_all(context.storage.records, SCHEMA_TAG, Values::Equal(context.key()), |key| {
        holder = Some(String::from_utf8_lossy(key).into_owned());
        false
    })?;
    Ok(holder)
}

/// 409 if a record names the schema.
fn refuse_if_used(
    txn: &Txn<'_>,
    context: &OperationContext<'_>,
    advice: &str,
) -> Result<(), OperationRefusal> {
    match record_of_schema(txn, context)? {
        None => Ok(()),
        Some(record) => {
            let detail = format!("records name this schema, such as {record:?}: {advice}");
            Err(Problem::conflict("SCHEMA_IN_USE", detail).into())
        }
    }
}

/// `DeleteMetaSchema`.
pub(super) async fn delete(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let body = |txn: &Txn<'_>| -> Result<Reply, OperationRefusal> {
        let Some(view) = txn.get(context.storage.schemas, context.key())? else {
            return Err(no_schema(&context.path.id).into());
        };
        let old = Document::of(&view)?;
        let validators = old.validators();
        context.check_write(|| Some(validators.clone()), |status| Some(old.reply(status)))?;
        let reply = if context.gets_previous {
            old.reply(StatusCode::OK)
        } else {
            Reply::empty(StatusCode::NO_CONTENT)
        };
        context.check_reply(&reply)?;
        // Such records could not be changed any more.
        refuse_if_used(txn, context, "delete such records, or change their schemaId, first")?;
        txn.delete(context.storage.schemas, context.key())?;
        Ok(reply.validated(&validators))
    };
    Ok(context.transact(context.key(), body).await?.0)
}
