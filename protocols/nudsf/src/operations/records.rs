//! Operations on one record: GET, PUT, PATCH, DELETE, and its meta.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use hyper::StatusCode;
use json_patch::PatchOperation;
use nearstate_model::limits::BLOCK_NAME_BYTES_MAX;
use nearstate_store::Txn;
use serde_json::{Value, json};

use super::schemas::check_schema;
use crate::conditions::Validators;
use crate::meta::{RecordMeta, check_json_bytes, without_empty_tags};
use crate::multipart::{self, BodyPart};
use crate::operation_context::OperationContext;
use crate::patch::{self, PatchItem};
use crate::problem::Problem;
use crate::record::{
    BlockDraft, RecordDraft, RecordPlace, StoredRecord, version_etag, write_meta, write_record,
};
use crate::reply::Reply;
use crate::repository::{OperationRefusal, for_write, no_record, require_exact};
use crate::request_path::check_new_id;
use crate::tags::is_reserved;

/// The media type of a record.
const MIXED: &str = "multipart/mixed";

/// Checks the id of a block that a client writes.
pub(super) fn check_block_id(id: &str) -> Result<(), Problem> {
    let is_valid = !id.is_empty()
        && id.len() <= BLOCK_NAME_BYTES_MAX
        && !multipart::has_control(id)
        && id.trim() == id
        && !id.eq_ignore_ascii_case("meta")
        && !is_reserved(id);
    if is_valid {
        return check_new_id(id, "{blockId}");
    }
    let reason = format!(
        "must have 1 to {BLOCK_NAME_BYTES_MAX} bytes, no control characters and no outer spaces, \
         and is not meta"
    );
    Err(Problem::parameter("MANDATORY_IE_INCORRECT", "{blockId}", reason))
}

/// The expiry time of a meta that a client writes must be in the future.
fn check_ttl(
    context: &OperationContext<'_>,
    meta: &RecordMeta,
    pointer: &str,
) -> Result<(), Problem> {
    if meta.expires_ms != 0 && meta.expires_ms <= context.now_ms {
        return Err(Problem::optional(format!("{pointer}/ttl"), "must be in the future"));
    }
    Ok(())
}

/// The blocks of a body after its first part.
fn block_drafts<'b>(parts: &[BodyPart<'b>]) -> Result<Vec<BlockDraft<'b>>, Problem> {
    // Comparing few ids takes less time than building a set of them.
    const FEW: usize = 8;
    let (mut seen, is_few) = (BTreeSet::new(), parts.len() <= FEW);
    let mut blocks: Vec<BlockDraft<'_>> = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let Some(id) = part.id else {
            return Err(Problem::form(format!("part {} Content-Id", index + 2), "is required"));
        };
        check_block_id(id)?;
        let is_repeated =
            if is_few { blocks.iter().any(|block| block.id == id) } else { !seen.insert(id) };
        if is_repeated {
            let reason = format!("another part has {id:?}");
            return Err(Problem::form(format!("part {} Content-Id", index + 2), reason));
        }
        blocks.push(BlockDraft {
            id: Cow::Borrowed(id),
            content_type: Cow::Borrowed(part.content_type.unwrap_or_default()),
            encoding: Cow::Borrowed(part.encoding.unwrap_or_default()),
            bytes: part.bytes.clone(),
        });
    }
    Ok(blocks)
}

/// The first part of a body, and the others.
fn split_parts<'c>(
    context: &'c OperationContext<'_>,
    first: &str,
) -> Result<(BodyPart<'c>, Vec<BodyPart<'c>>), Problem> {
    let content_type = context.require_media(MIXED)?;
    let mut parts = multipart::parse(content_type, &context.body).map_err(Problem::message)?;
    if parts.is_empty() {
        return Err(Problem::message(format!("the first part must be the {first}")));
    }
    let head = parts.remove(0);
    Ok((head, parts))
}

fn record_draft<'c>(context: &'c OperationContext<'_>) -> Result<RecordDraft<'c>, Problem> {
    let (head, parts) = split_parts(context, "meta")?;
    if head.id.is_some_and(|id| !id.eq_ignore_ascii_case("meta")) {
        return Err(Problem::form("part 1 Content-Id", "must be meta"));
    }
    let is_json = |media| multipart::is_media_type(media, "application/json");
    if !head.content_type.is_none_or(is_json) {
        return Err(Problem::form("part 1 Content-Type", "must be application/json"));
    }
    check_json_bytes(&head.bytes)?;
    let meta = RecordMeta::parse(&head.bytes)?;
    check_ttl(context, &meta, "")?;
    Ok(RecordDraft { meta, blocks: block_drafts(&parts)? })
}

/// A response with a whole record.
fn with_record(status: StatusCode, record: &StoredRecord<'_>) -> Reply {
    let (media, body) = record.to_multipart();
    Reply::with_body(status, &media, body)
}

fn place<'c>(context: &'c OperationContext<'_>) -> RecordPlace<'c> {
    RecordPlace { namespace: context.storage.records, key: context.key(), now_ms: context.now_ms }
}

/// `GetRecord`.
pub(super) fn get(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let session = &context.repository.session;
    let view = session.get_whole(context.storage.records, context.key()).map_err(Problem::from)?;
    let record = view.as_ref().and_then(StoredRecord::of);
    let record = record.ok_or_else(|| no_record(&context.path.id))?;
    let validators = record.validators();
    if let Some(reply) = context.read_refusal(&validators) {
        return Ok(reply);
    }
    Ok(with_record(StatusCode::OK, &record).validated_by(validators))
}

/// The validators of a record after a commit that wrote it.
fn written(context: &OperationContext<'_>, version: Option<u64>) -> Validators {
    let version = version.unwrap_or_default();
    Validators { etag: version_etag(version), modified_ms: Some(context.now_ms) }
}

/// A record with a callback needs the log, which has expired records until they were notified.
async fn log_expiry<T>(
    context: &OperationContext<'_>,
    has_callback: bool,
    body: impl FnMut(&Txn<'_>) -> Result<T, OperationRefusal>,
) -> Result<(), Reply> {
    if has_callback {
        context.repository.log_changes_for(&context.storage, body).await?;
    }
    Ok(())
}

/// True if a patch may give a record a callback: its text names the attribute.
fn may_set_callback(items: &[PatchItem]) -> bool {
    const NAME: &str = "callbackReference";
    fn names(value: &Value) -> bool {
        match value {
            Value::Object(object) => {
                object.iter().any(|(name, value)| name == NAME || names(value))
            }
            Value::Array(values) => values.iter().any(names),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    items.iter().any(|item| {
        let value = match &item.operation {
            PatchOperation::Add(add) => Some(&add.value),
            PatchOperation::Replace(replace) => Some(&replace.value),
            PatchOperation::Remove(_)
            | PatchOperation::Move(_)
            | PatchOperation::Copy(_)
            | PatchOperation::Test(_) => None,
        };
        item.path.ends_with(NAME) || value.is_some_and(names)
    })
}

/// `CreateOrModifyRecord`.
pub(super) async fn put(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    check_new_id(&context.path.id, "{recordId}")?;
    let draft = record_draft(context)?;
    let body = |txn: &Txn<'_>| -> Result<Option<Option<Reply>>, OperationRefusal> {
        let view = txn.get(context.storage.records, context.key())?;
        let old = for_write(view.as_ref())?;
        let validators = || old.as_ref().map(StoredRecord::validators);
        context.check_write(validators, |status| Some(with_record(status, old.as_ref()?)))?;
        let unique = check_schema(txn, context, &draft.meta)?;
        let previous = old.as_ref().filter(|_| context.gets_previous);
        let previous = previous.map(|old| with_record(StatusCode::OK, old));
        match &previous {
            Some(previous) => context.check_reply(previous)?,
            None if old.is_some() => {}
            // A client that accepts no record has created it, and gets none.
            None if !context.accepts(MIXED) => {}
            None => context.check_body(MIXED, draft.multipart_bytes())?,
        }
        write_record(txn, place(context), (&draft, &unique), old.as_ref())?;
        Ok(old.is_some().then_some(previous))
    };
    log_expiry(context, draft.meta.callback.is_some(), &body).await?;
    let (previous, version) = context.transact(context.key(), body).await?;
    let validators = written(context, version);
    let reply = match previous {
        Some(Some(previous)) => previous,
        Some(None) => Reply::empty(StatusCode::NO_CONTENT),
        None => {
            let reply = if context.accepts(MIXED) {
                let (media, body) = draft.to_multipart(version.unwrap_or_default());
                Reply::with_body(StatusCode::CREATED, &media, body)
            } else {
                Reply::empty(StatusCode::CREATED)
            };
            reply.located(&context.record_uri(&context.path.id))
        }
    };
    Ok(reply.validated_by(validators))
}

/// `DeleteRecord`.
pub(super) async fn delete(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let body = |txn: &Txn<'_>| -> Result<Reply, OperationRefusal> {
        let view = txn.get(context.storage.records, context.key())?;
        let Some(old) = for_write(view.as_ref())? else {
            return Err(no_record(&context.path.id).into());
        };
        let validators = old.validators();
        context
            .check_write(|| Some(validators.clone()), |status| Some(with_record(status, &old)))?;
        let reply = if context.gets_previous {
            with_record(StatusCode::OK, &old)
        } else {
            Reply::empty(StatusCode::NO_CONTENT)
        };
        context.check_reply(&reply)?;
        txn.delete(context.storage.records, context.key())?;
        Ok(reply.validated(&validators))
    };
    Ok(context.transact(context.key(), body).await?.0)
}

/// `GetMeta`.
pub(super) fn get_meta(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let session = &context.repository.session;
    let view = session.get_whole(context.storage.records, context.key()).map_err(Problem::from)?;
    let record = view.as_ref().and_then(StoredRecord::of);
    let record = record.ok_or_else(|| no_record(&context.path.id))?;
    let text = record.meta_text();
    let validators = record.meta_validators(text);
    if let Some(reply) = context.read_refusal(&validators) {
        return Ok(reply);
    }
    let reply = Reply::with_body(StatusCode::OK, "application/json", text.to_owned());
    Ok(reply.validated_by(validators))
}

/// `UpdateMeta`. Items that fail are discarded and reported with 200; a `test` that fails discards
/// the whole patch.
pub(super) async fn patch_meta(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let items = patch::parse(&context.json(patch::MEDIA)?)?;
    let body = |txn: &Txn<'_>| -> Result<(Validators, Vec<patch::FailedItem>), OperationRefusal> {
        let view = txn.get(context.storage.records, context.key())?;
        let Some(old) = for_write(view.as_ref())? else {
            return Err(no_record(&context.path.id).into());
        };
        require_exact(&old)?;
        let old_meta = old.meta();
        let mut document = old_meta.to_json();
        let validators = old.meta_validators(&document.to_string());
        context.check_write(|| Some(validators.clone()), |_| None)?;
        let validate = |item: &PatchItem, document: &Value| {
            check_attributes(item, "")?;
            meta_of(context, (document, ""), &old_meta).map(drop)
        };
        let failed = patch::apply(&mut document, &items, validate);
        refuse_failed_test(&failed)?;
        context.check_reply(&patched(&failed))?;
        let meta = meta_of(context, (&document, ""), &old_meta)?;
        if meta == old_meta {
            return Ok((validators, failed));
        }
        let unique = check_schema(txn, context, &meta)?;
        write_meta(txn, place(context), &old, (&meta, &unique))?;
        let text = meta.to_text();
        let etag = old.meta_validators(&text).etag;
        Ok((Validators { etag, modified_ms: Some(context.now_ms) }, failed))
    };
    log_expiry(context, may_set_callback(&items), &body).await?;
    let ((validators, failed), _) = context.transact(context.key(), body).await?;
    Ok(patched(&failed).validated(&validators))
}

/// The response to a patch whose failed items were discarded.
pub(super) fn patched(failed: &[patch::FailedItem]) -> Reply {
    match failed {
        [] => Reply::empty(StatusCode::NO_CONTENT),
        _ => Reply::json(StatusCode::OK, &patch::result(failed)),
    }
}

/// 409 if a `test` has failed.
pub(super) fn refuse_failed_test(failed: &[patch::FailedItem]) -> Result<(), Problem> {
    match failed.iter().find(|item| item.is_test) {
        None => Ok(()),
        Some(item) => {
            let detail = format!("test {}: {}", item.path, item.reason);
            Err(Problem::conflict("MODIFICATION_NOT_ALLOWED", detail))
        }
    }
}

/// The meta of a patched document. Tags that lost their last value are gone.
fn meta_of(
    context: &OperationContext<'_>,
    (document, pointer): (&Value, &str),
    old: &RecordMeta,
) -> Result<RecordMeta, Problem> {
    let meta = RecordMeta::from_json(&without_empty_tags(document, "tags"), pointer)?;
    if meta.expires_ms != old.expires_ms {
        check_ttl(context, &meta, pointer)?;
    }
    Ok(meta)
}

/// Fails if an item names an attribute that a meta does not have: it would be ignored.
fn check_attributes(item: &PatchItem, meta: &str) -> Result<(), Problem> {
    for path in [Some(item.path.as_str()), item.from.as_deref()].into_iter().flatten() {
        let name = path.strip_prefix(meta).and_then(|below| below.strip_prefix('/'));
        let name = name.and_then(|below| below.split('/').next());
        if name.is_some_and(|name| !RecordMeta::ATTRIBUTES.contains(&name)) {
            let detail = format!("a meta has the attributes {}", RecordMeta::ATTRIBUTES.join(", "));
            return Err(Problem::message(detail));
        }
    }
    Ok(())
}

/// `PatchRecord`: all items or none.
pub(super) async fn patch(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let (head, parts) = split_parts(context, "patch")?;
    let media = head.content_type.map(multipart::media_type).unwrap_or_default();
    if media != patch::MEDIA {
        let reason = format!("must be {}", patch::MEDIA);
        return Err(Problem::form("part 1 Content-Type", reason).into());
    }
    let document = context.parse_counted(&head.bytes)?;
    let parts = block_drafts(&parts)?;
    let items = patch::parse(&refer_to_parts(document, &parts))?;
    let body = |txn: &Txn<'_>| -> Result<(), OperationRefusal> {
        let view = txn.get(context.storage.records, context.key())?;
        let Some(old) = for_write(view.as_ref())? else {
            return Err(no_record(&context.path.id).into());
        };
        context.check_write(|| Some(old.validators()), |_| None)?;
        require_exact(&old)?;
        let draft = patched_draft(context, &old, (&items, &parts))?;
        let unique = check_schema(txn, context, &draft.meta)?;
        write_record(txn, place(context), (&draft, &unique), Some(&old))?;
        Ok(())
    };
    log_expiry(context, may_set_callback(&items), &body).await?;
    let ((), version) = context.transact(context.key(), body).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT).validated(&written(context, version)))
}

/// The document of a patch has an object in the place of each block: `{"stored": index}` for one of
/// the record, `{"part": index}` for one of the request. Values of items that name a part become
/// such objects, so that no value of a client is taken for one.
fn refer_to_parts(mut document: Value, parts: &[BlockDraft<'_>]) -> Value {
    let parts: BTreeMap<&str, usize> =
        parts.iter().enumerate().map(|(index, part)| (&*part.id, index)).collect();
    let refer = |value: &mut Value| {
        let index = value.as_str().and_then(|id| parts.get(id));
        *value = match index {
            Some(index) => json!({"part": index}),
            None => json!({"missing": value.as_str().unwrap_or_default()}),
        };
    };
    for item in document.as_array_mut().into_iter().flatten() {
        let path = item.get("path").and_then(Value::as_str).unwrap_or_default();
        let (is_all, is_one) = (path == "/blocks", path.starts_with("/blocks/"));
        let Some(value) = item.get_mut("value") else { continue };
        match value.as_object_mut() {
            Some(blocks) if is_all => blocks.values_mut().for_each(refer),
            _ if is_one => refer(value),
            _ => {}
        }
    }
    document
}

/// Items of paths that are neither attributes of the meta nor blocks: the whole record, an unknown
/// attribute, or a place inside a block, whose content no patch sees; and those that would move a
/// block into the meta.
fn foreign_paths(items: &[PatchItem]) -> Vec<patch::FailedItem> {
    let is_foreign = |path: &str| {
        let is_inside = |id: &str| id.is_empty() || id.contains('/');
        path.is_empty() || path.strip_prefix("/blocks/").is_some_and(is_inside)
    };
    let is_block = |path: &str| path.starts_with("/blocks");
    let mut failed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let crosses =
            item.from.as_deref().is_some_and(|from| is_block(from) != is_block(&item.path));
        let is_attribute = is_block(&item.path) || check_attributes(item, "/meta").is_ok();
        let from_foreign = item.from.as_deref().is_some_and(is_foreign);
        if crosses || !is_attribute || is_foreign(&item.path) || from_foreign {
            let reason = format!(
                "a path is an attribute in /meta or is /blocks/{{blockId}}, and nothing moves \
                 between the two (failed operation index= {index})"
            );
            failed.push(patch::FailedItem { path: item.path.clone(), reason, is_test: false });
        }
    }
    failed
}

fn patched_draft<'d>(
    context: &OperationContext<'_>,
    old: &'d StoredRecord<'_>,
    (items, parts): (&[PatchItem], &'d [BlockDraft<'d>]),
) -> Result<RecordDraft<'d>, OperationRefusal> {
    let stored = old.to_draft();
    let blocks = stored.blocks.iter().enumerate();
    let blocks: serde_json::Map<String, Value> =
        blocks.map(|(index, block)| (block.id.to_string(), json!({"stored": index}))).collect();
    let mut document = json!({"meta": stored.meta.to_json(), "blocks": blocks});
    let known: BTreeMap<&str, usize> =
        stored.blocks.iter().enumerate().map(|(index, block)| (&*block.id, index)).collect();
    let build = |document: &Value| -> Result<RecordDraft<'d>, Problem> {
        let meta = match document.get("meta") {
            None => RecordMeta::default(),
            Some(meta) => meta_of(context, (meta, "/meta"), &stored.meta)?,
        };
        let extra = document
            .as_object()
            .is_none_or(|object| object.keys().any(|name| name != "meta" && name != "blocks"));
        if extra {
            return Err(Problem::message("a record has only /meta and /blocks/{blockId}"));
        }
        let mut blocks = Vec::new();
        let none = serde_json::Map::new();
        let object = match document.get("blocks") {
            None => &none,
            Some(blocks) => {
                let refused = || Problem::message("a patch names blocks as /blocks/{blockId}");
                blocks.as_object().ok_or_else(refused)?
            }
        };
        for (id, reference) in object {
            check_block_id(id)?;
            let block = referred(reference, &stored.blocks, parts)?;
            blocks.push(BlockDraft { id: Cow::Owned(id.clone()), ..block.clone() });
        }
        // The order of the record, then that of the ids.
        blocks.sort_by_key(|block| known.get(&*block.id).copied().unwrap_or(usize::MAX));
        Ok(RecordDraft { meta, blocks })
    };
    let mut failed = foreign_paths(items);
    if failed.is_empty() {
        failed = patch::apply_whole(&mut document, items, |document| build(document).map(drop));
    }
    if failed.is_empty() {
        return Ok(build(&document)?);
    }
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    Err(Reply::json(status, &patch::result(&failed)).into())
}

/// The block that a reference of the document names.
fn referred<'b, 'd>(
    reference: &Value,
    stored: &'b [BlockDraft<'d>],
    parts: &'b [BlockDraft<'d>],
) -> Result<&'b BlockDraft<'d>, Problem> {
    let object = reference.as_object().filter(|object| object.len() == 1);
    let (name, value) = object.and_then(|object| object.iter().next()).unzip();
    let index = value.and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
    let found = match (name.map(String::as_str), index) {
        (Some("stored"), Some(index)) => stored.get(index),
        (Some("part"), Some(index)) => parts.get(index),
        _ => None,
    };
    found.ok_or_else(|| {
        Problem::message("the value of a block must be the Content-Id of a part of the request")
    })
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::body::Bytes;
    use hyper::header::{CONTENT_TYPE, HeaderValue};
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::Attributes;
    use crate::operations::blocks::kept_header;
    use crate::record::attributes_of;

    /// Texts with characters that one parser may accept and another one refuse.
    fn odd_text() -> impl Strategy<Value = String> {
        let odd = vec!["\t", "\u{1}", "\u{7f}", "\u{85}", "\u{2028}", "\n", "%00", "é"];
        let plain = vec!["a", "/", ";", " ", "http://nf/"];
        let parts = prop_oneof![
            1 => prop::sample::select(odd), 4 => prop::sample::select(plain),
        ];
        prop::collection::vec(parts, 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn the_attributes_of_every_draft_that_the_parsers_accept_are_decoded_as_they_were(
            callback in odd_text(),
            parts in prop::collection::vec((odd_text(), odd_text(), odd_text()), 0..3),
            header in odd_text(),
        ) {
            let meta = json!({"callbackReference": format!("http://nf.example/{callback}")});
            let mut body = format!("--b\r\n\r\n{meta}\r\n");
            for (id, content_type, encoding) in parts {
                body = format!(
                    "{body}--b\r\nContent-Id: {id}\r\nContent-Type: {content_type}\r\n\
                     Content-Transfer-Encoding: {encoding}\r\n\r\nx\r\n"
                );
            }
            let body = Bytes::from(format!("{body}--b--"));
            let parts = multipart::parse("multipart/mixed; boundary=b", &body);
            let (head, blocks) = match parts.as_deref() {
                Ok([head, parts @ ..]) => (RecordMeta::parse(&head.bytes), block_drafts(parts)),
                _ => (Ok(RecordMeta::default()), Ok(Vec::new())),
            };
            let mut draft =
                RecordDraft { meta: head.unwrap_or_default(), blocks: blocks.unwrap_or_default() };
            let mut kept = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&header) {
                kept.append(CONTENT_TYPE, value);
            }
            if let Ok(content_type) = kept_header(&kept, &CONTENT_TYPE) {
                let id = Cow::Borrowed("of a request");
                draft.blocks.push(BlockDraft { id, content_type, ..BlockDraft::default() });
            }
            let attributes = attributes_of(&draft, None, 1);
            let encoded = attributes.encode();
            prop_assert_eq!(Attributes::decode(&encoded), Some(attributes));
        }
    }
}
