//! Operations on the blocks of a record.

use std::borrow::Cow;

use hyper::header::{CONTENT_TYPE, HeaderName};
use hyper::{HeaderMap, StatusCode};
use nearstate_store::Txn;

use super::records::check_block_id;
use crate::conditions::Validators;
use crate::limits::PART_HEADER_BYTES_MAX;
use crate::multipart::{MultipartWriter, has_control};
use crate::operation_context::OperationContext;
use crate::problem::Problem;
use crate::record::{
    BlockDraft, RecordPlace, StoredBlock, StoredRecord, write_block, write_one_block,
};
use crate::reply::{CONTENT_TRANSFER_ENCODING, Reply};
use crate::repository::{OperationRefusal, for_write, no_record, require_exact};
use crate::request_path::encode_segment;

fn no_block(id: &str) -> Problem {
    Problem::not_found("BLOCK_NOT_FOUND", format!("the record has no block {id:?}"))
}

fn with_block(status: StatusCode, block: &StoredBlock<'_>) -> Reply {
    let body = hyper::body::Bytes::copy_from_slice(block.bytes);
    Reply::with_body(status, block.media(), body).encoded(block.encoding)
}

/// `GetBlockList`.
pub(super) fn list(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let session = &context.repository.session;
    let view = session.get_whole(context.storage.records, context.key()).map_err(Problem::from)?;
    let record = view.as_ref().and_then(StoredRecord::of);
    let record = record.ok_or_else(|| no_record(&context.path.id))?;
    let validators = record.validators();
    let blocks = record.blocks();
    if blocks.is_empty() {
        return Ok(Reply::empty(StatusCode::NO_CONTENT));
    }
    let bytes: usize = blocks.iter().map(|block| block.bytes.len() + 256).sum();
    let mut writer = MultipartWriter::with_capacity(bytes);
    for block in &blocks {
        write_block(&mut writer, block.id, block);
    }
    let (boundary, body) = writer.finish(record.version());
    let media = format!("multipart/parallel; boundary={boundary}");
    Ok(Reply::with_body(StatusCode::OK, &media, body).validated(&validators))
}

/// `GetBlock`.
pub(super) fn get(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let session = &context.repository.session;
    let view = session.get_whole(context.storage.records, context.key()).map_err(Problem::from)?;
    let record = view.as_ref().and_then(StoredRecord::of);
    let record = record.ok_or_else(|| no_record(&context.path.id))?;
    let block = record.block(&context.path.block);
    let block = block.ok_or_else(|| no_block(&context.path.block))?;
    let validators = block.validators();
    if let Some(reply) = context.read_refusal(&validators) {
        return Ok(reply);
    }
    Ok(with_block(StatusCode::OK, &block).validated_by(validators))
}

fn place<'c>(context: &'c OperationContext<'_>) -> RecordPlace<'c> {
    RecordPlace { namespace: context.storage.records, key: context.key(), now_ms: context.now_ms }
}

/// A header of the request that is kept with the block. As in a part of a record, it has no control
/// characters, of which a header may have tabs.
pub(super) fn kept_header<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Cow<'h, str>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(Cow::Borrowed("")) };
    match value.to_str() {
        Ok(text) if text.len() <= PART_HEADER_BYTES_MAX && !has_control(text) => {
            Ok(Cow::Borrowed(text))
        }
        _ => {
            let reason = format!("must have at most {PART_HEADER_BYTES_MAX} visible characters");
            Err(Problem::form(format!("header {name}"), reason))
        }
    }
}

/// `CreateOrModifyBlock`.
pub(super) async fn put(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let id = &*context.path.block;
    check_block_id(id)?;
    context.require_no_coding()?;
    let draft = BlockDraft {
        id: Cow::Borrowed(id),
        content_type: kept_header(context.headers, &CONTENT_TYPE)?,
        encoding: kept_header(context.headers, &CONTENT_TRANSFER_ENCODING)?,
        bytes: context.body.clone(),
    };
    let body = |txn: &Txn<'_>| -> Result<Option<Option<Reply>>, OperationRefusal> {
        let view = txn.get(context.storage.records, context.key())?;
        let Some(record) = for_write(view.as_ref())? else {
            return Err(no_record(&context.path.id).into());
        };
        let old = record.block(id);
        let validators = || old.as_ref().map(StoredBlock::validators);
        context.check_write(validators, |status| Some(with_block(status, old.as_ref()?)))?;
        let previous = old.as_ref().filter(|_| context.gets_previous);
        let previous = previous.map(|old| with_block(StatusCode::OK, old));
        if let Some(previous) = &previous {
            context.check_reply(previous)?;
        }
        if record.is_unnamed() {
            require_exact(&record)?;
        }
        write_one_block(txn, place(context), &record, (id, Some(&draft)))?;
        Ok(old.is_some().then_some(previous))
    };
    let (previous, _) = context.transact(context.key(), body).await?;
    let validators = Validators { etag: draft.etag(), modified_ms: Some(context.now_ms) };
    let reply = match previous {
        Some(Some(previous)) => previous,
        Some(None) => Reply::empty(StatusCode::NO_CONTENT),
        None => {
            let record = context.record_uri(&context.path.id);
            let uri = format!("{record}/blocks/{}", encode_segment(id));
            Reply::empty(StatusCode::CREATED).located(&uri)
        }
    };
    Ok(reply.validated_by(validators))
}

/// `DeleteBlock`.
pub(super) async fn delete(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let id = &*context.path.block;
    let body = |txn: &Txn<'_>| -> Result<Reply, OperationRefusal> {
        let view = txn.get(context.storage.records, context.key())?;
        let Some(record) = for_write(view.as_ref())? else {
            return Err(no_record(&context.path.id).into());
        };
        let Some(old) = record.block(id) else { return Err(no_block(id).into()) };
        let validators = old.validators();
        context
            .check_write(|| Some(validators.clone()), |status| Some(with_block(status, &old)))?;
        let reply = if context.gets_previous {
            with_block(StatusCode::OK, &old)
        } else {
            Reply::empty(StatusCode::NO_CONTENT)
        };
        context.check_reply(&reply)?;
        if record.is_unnamed() {
            require_exact(&record)?;
        }
        write_one_block(txn, place(context), &record, (id, None))?;
        Ok(reply.validated(&validators))
    };
    Ok(context.transact(context.key(), body).await?.0)
}
