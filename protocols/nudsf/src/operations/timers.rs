//! Operations of `Nudsf_Timer`: search, PUT, PATCH, DELETE, GET.

use hyper::StatusCode;
use nearstate_node::executor::yield_if_due;
use nearstate_store::search::{Op, Search};
use nearstate_store::{Txn, View};
use serde_json::{Map, Value};

use super::records::{patched, refuse_failed_test};
use super::search::{check_deletion, for_each_match};
use crate::document::Document;
use crate::filter::parse_text;
use crate::limits::{DELETED_MAX, LIST_BYTES_MAX, REFERENCES_MAX};
use crate::meta::{check_json_bytes, without_empty_tags};
use crate::operation_context::OperationContext;
use crate::patch::{self, PatchItem};
use crate::problem::Problem;
use crate::reply::Reply;
use crate::reply_body::SearchMemory;
use crate::repository::OperationRefusal;
use crate::request_path::check_new_id;
use crate::timer::{DEFERRED, DUE_TAG, EXPIRED, EXPIRED_TAG, Timer, is_expired_tag};

fn no_timer(id: &str) -> Problem {
    Problem::not_found("TIMER_NOT_FOUND", format!("the timer {id:?} does not exist"))
}

/// Which timers `expired-filter` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expired {
    /// Those whose time has passed, whether they were notified or not.
    Due,
    /// Those that were notified.
    Notified,
}

/// The filter of a request.
fn filter(context: &OperationContext<'_>, selected: Expired) -> Result<Option<Search>, Problem> {
    let query = &context.path.query;
    let filter = query.get("filter").map(|text| parse_text(text, "filter")).transpose()?;
    match query.get("expired-filter") {
        None => return Ok(filter),
        Some("" | "null" | "true") => {}
        Some(_) => return Err(Problem::query("expired-filter", "has no value, or null")),
    }
    let compare = |op, tag: &str, value: &[u8]| Search::Compare {
        op,
        tag: tag.to_owned(),
        value: value.to_vec(),
    };
    let notified = compare(Op::Eq, EXPIRED_TAG, EXPIRED);
    let due = compare(Op::Lte, DUE_TAG, &context.now_ms.to_be_bytes());
    let expired = match selected {
        Expired::Due => Search::Or(vec![notified, due, compare(Op::Eq, EXPIRED_TAG, DEFERRED)]),
        Expired::Notified => notified,
    };
    Ok(Some(match filter {
        None => expired,
        Some(filter) => Search::And(vec![filter, expired]),
    }))
}

/// The keys of the timers that a filter selects, at most `limit` and of [`LIST_BYTES_MAX`].
async fn matching(
    context: &OperationContext<'_>,
    (filter, memory): (Option<&Search>, &SearchMemory<'_>),
    limit: usize,
) -> Result<Vec<Vec<u8>>, Problem> {
    let (mut keys, mut bytes) = (Vec::new(), 0);
    for_each_match(context, context.storage.timers, (filter, memory), |view, _| {
        if str::from_utf8(view.key()).is_ok() {
            bytes += view.key().len() + size_of::<Vec<u8>>();
            memory.set_kept(bytes);
            keys.push(view.key().to_vec());
        }
        Ok(keys.len() < limit && bytes < LIST_BYTES_MAX)
    })
    .await?;
    Ok(keys)
}

fn id_of(key: &[u8]) -> Value {
    Value::from(String::from_utf8_lossy(key).into_owned())
}

/// `SearchTimer`.
pub(super) async fn search(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let filter = filter(context, Expired::Due)?;
    let memory = context.search_memory();
    let keys = matching(context, (filter.as_ref(), &memory), REFERENCES_MAX).await?;
    if keys.is_empty() {
        return Ok(Reply::empty(StatusCode::NO_CONTENT));
    }
    let ids: Value = keys.iter().map(|key| id_of(key)).collect();
    let body = Map::from_iter([("timerIds".to_owned(), ids)]);
    Ok(Reply::json(StatusCode::OK, &Value::Object(body)))
}

/// `DeleteTimers`. Each timer is deleted in a transaction of its own, if it still matches. Without
/// a filter, all timers of the storage are. With `expired-filter`, a timer that is due is not
/// deleted before its notification is in the outbox.
pub(super) async fn delete_matching(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let filter = filter(context, Expired::Notified)?;
    let memory = context.search_memory();
    let keys = matching(context, (filter.as_ref(), &memory), DELETED_MAX).await?;
    check_deletion(context, &keys)?;
    let (mut deleted, mut failed, mut failure) = (Vec::new(), Vec::new(), None);
    for key in keys {
        let done = context.transact(&key, |txn| {
            let Some(view) = txn.get(context.storage.timers, &key)? else { return Ok(false) };
            let tags: Vec<(&str, &[u8])> = view.tags().collect();
            if filter.as_ref().is_some_and(|filter| !filter.matches(&key, &tags)) {
                return Ok(false);
            }
            txn.delete(context.storage.timers, &key).map_err(OperationRefusal::from)
        });
        match done.await {
            Ok((true, _)) => deleted.push(id_of(&key)),
            Ok((false, _)) => {}
            Err(reply) => {
                failed.push(id_of(&key));
                failure = Some(reply);
            }
        }
        yield_if_due().await;
    }
    if deleted.is_empty() {
        return Ok(failure.unwrap_or_else(|| Reply::empty(StatusCode::NO_CONTENT)));
    }
    let mut body = Map::from_iter([("timerIds".to_owned(), Value::Array(deleted))]);
    if !failed.is_empty() {
        body.insert("failedTimerIdList".to_owned(), Value::Array(failed));
    }
    Ok(Reply::json(StatusCode::OK, &Value::Object(body)))
}

/// 412 if a condition of the request does not hold. TS 29.598 has none for timers; RFC 9110 forbids
/// to ignore them.
fn check_conditions(
    context: &OperationContext<'_>,
    view: Option<&View<'_>>,
) -> Result<(), OperationRefusal> {
    if context.conditions.is_unconditional_write() {
        return Ok(());
    }
    let current = view.map(Document::of).transpose()?.map(|document| document.validators());
    context.check_write(|| current, |_| None)
}

/// `CreateOrModifyTimer`.
pub(super) async fn put(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    check_new_id(&context.path.id, "{timerId}")?;
    context.require_media("application/json")?;
    let timer = Timer::read(&context.body, &context.path.id)?;
    timer.check_tags()?;
    let body = |txn: &Txn<'_>| -> Result<bool, OperationRefusal> {
        let view = txn.get(context.storage.timers, context.key())?;
        let existed = view.is_some();
        check_conditions(context, view.as_ref())?;
        timer.write(txn, (context.storage.timers, context.key()), None, context.now_ms)?;
        Ok(existed)
    };
    let (existed, _) = context.transact(context.key(), body).await?;
    Ok(Reply::empty(if existed { StatusCode::NO_CONTENT } else { StatusCode::CREATED }))
}

/// `UpdateTimer`. Items that fail are discarded and reported. An expired timer whose `expires`
/// changes is armed again.
pub(super) async fn patch(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let items = patch::parse(&context.json(patch::MEDIA)?)?;
    let id = &context.path.id;
    let body = |txn: &Txn<'_>| -> Result<Vec<patch::FailedItem>, OperationRefusal> {
        let Some(view) = txn.get(context.storage.timers, context.key())? else {
            return Err(no_timer(id).into());
        };
        check_conditions(context, Some(&view))?;
        let old = Document::of(&view)?.value;
        let mut value = old.clone();
        let validate = |_: &PatchItem, value: &Value| Timer::of_patched(value, id)?.check_tags();
        let failed = patch::apply(&mut value, &items, validate);
        refuse_failed_test(&failed)?;
        context.check_reply(&patched(&failed))?;
        if value != old {
            let is_expired = view.tags().any(is_expired_tag);
            let is_same = value.get("expires") == old.get("expires");
            let timer = Timer::of_patched(&value, id)?;
            check_json_bytes(timer.text())?;
            let kept = (is_expired && is_same).then(|| timer.kept_until_ms());
            timer.write(txn, (context.storage.timers, context.key()), kept, context.now_ms)?;
        }
        Ok(failed)
    };
    let (failed, _) = context.transact(context.key(), body).await?;
    Ok(patched(&failed))
}

/// `DeleteTimer`.
pub(super) async fn delete(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let body = |txn: &Txn<'_>| -> Result<(), OperationRefusal> {
        if !context.conditions.is_unconditional_write() {
            check_conditions(context, txn.get(context.storage.timers, context.key())?.as_ref())?;
        }
        if txn.delete(context.storage.timers, context.key())? {
            return Ok(());
        }
        Err(no_timer(&context.path.id).into())
    };
    context.transact(context.key(), body).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT))
}

/// `GetTimer`.
pub(super) fn get(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let session = &context.repository.session;
    let view = session.get_whole(context.storage.timers, context.key()).map_err(Problem::from)?;
    let view = view.ok_or_else(|| no_timer(&context.path.id))?;
    let timer = Document::of(&view)?.value;
    // One of an older build may have an empty object of tags, which the contract does not allow.
    Ok(Reply::json(StatusCode::OK, &without_empty_tags(&timer, "metaTags")))
}
