//! Subscriptions to notifications: GET, PUT, PATCH, DELETE. The notifier
//! (`notifier.rs`) reads them from the log.

use hyper::StatusCode;
use nearstate_node::executor::yield_if_due;
use nearstate_store::{Txn, View};
use serde_json::{Map, Value};

use super::records::{patched, refuse_failed_test};
use crate::conditions::Validators;
use crate::document::{Document, ExpiryAnnouncement, write_subscription};
use crate::features::FeatureSet;
use crate::limits::{LIST_BYTES_MAX, REFERENCES_MAX, SCAN_STEPS};
use crate::meta::{is_uuid, text, uri};
use crate::operation_context::OperationContext;
use crate::patch;
use crate::problem::{Problem, json_reason};
use crate::record::version_etag;
use crate::reply::Reply;
use crate::repository::OperationRefusal;
use crate::request_path::{MonitoredResource, Query, check_new_id, encode_segment};
use crate::times::parse_date_time;

/// The operations that a filter may name.
const OPERATIONS: [&str; 3] = ["CREATED", "UPDATED", "DELETED"];

/// Bytes whose parsing takes as long as a step of a scan.
const STEP_BYTES: usize = 1024;

/// The most resources of a filter.
const MONITORED_MAX: usize = 1024;

fn no_subscription(id: &str) -> Problem {
    let detail = format!("the subscription {id:?} does not exist");
    Problem::not_found("SUBSCRIPTION_NOT_FOUND", detail)
}

/// The identity of a network function: `nfId`, `nfSetId`, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientId {
    instance: Option<String>,
    set: Option<String>,
}

impl ClientId {
    fn parse(value: Option<&Value>, pointer: &str) -> Result<Self, Problem> {
        let none = Map::new();
        let object = value.and_then(Value::as_object).unwrap_or(&none);
        let required = Problem::of_required_attribute;
        let instance = text(object, "nfId", pointer).map_err(required)?;
        if instance.as_deref().is_some_and(|id| !is_uuid(id)) {
            return Err(Problem::attribute(format!("{pointer}/nfId"), "must be a UUID"));
        }
        let set = text(object, "nfSetId", pointer).map_err(required)?;
        if instance.is_none() && set.is_none() {
            let cause = "MANDATORY_IE_MISSING";
            return Err(Problem::parameter(cause, pointer, "must have nfId or nfSetId"));
        }
        Ok(Self { instance, set })
    }

    /// True if the two are one instance, or instances of one set.
    fn is_same(&self, other: &Self) -> bool {
        // UUIDs are compared without regard to case (RFC 9562, section 4).
        let is_equal = |one: &String| {
            other.instance.as_ref().is_some_and(|other| one.eq_ignore_ascii_case(other))
        };
        self.instance.as_ref().is_some_and(is_equal)
            || (self.set.is_some() && self.set == other.set)
    }
}

/// What the node needs of a subscription.
struct Checked {
    client: ClientId,
    /// 0: never.
    expires_ms: u64,
    announcement: ExpiryAnnouncement,
}

/// Checks a `NotificationSubscription`.
fn check(context: &OperationContext<'_>, value: &Value) -> Result<Checked, Problem> {
    let Some(object) = value.as_object() else {
        return Err(Problem::message("a subscription must be an object"));
    };
    let client = ClientId::parse(object.get("clientId"), "/clientId")?;
    let callback = uri(object, "callbackReference", "");
    if callback.map_err(Problem::of_required_attribute)?.is_none() {
        let cause = "MANDATORY_IE_MISSING";
        return Err(Problem::parameter(cause, "/callbackReference", "is required"));
    }
    let expiry_callback = uri(object, "expiryCallbackReference", "")?;
    let expires_ms = match object.get("expiry") {
        None => 0,
        Some(expiry) => {
            let parsed = expiry.as_str().and_then(parse_date_time);
            let refused = || Problem::optional("/expiry", "must be a date-time in the future");
            parsed.filter(|ms| *ms > context.now_ms).ok_or_else(refused)?
        }
    };
    if object.get("expiryNotification").is_some_and(|seconds| !seconds.is_u64()) {
        return Err(Problem::optional("/expiryNotification", "must be a number of seconds"));
    }
    if let Some(filter) = object.get("subFilter") {
        check_filter(context, filter)?;
    }
    if let Some(features) = object.get("supportedFeatures")
        && features.as_str().and_then(FeatureSet::parse).is_none()
    {
        return Err(Problem::optional("/supportedFeatures", "must be hexadecimal digits"));
    }
    let ahead = object.get("expiryNotification").and_then(Value::as_u64).unwrap_or(0);
    let due_ms = expires_ms.saturating_sub(ahead.saturating_mul(1000));
    let is_announced = expires_ms != 0 && expiry_callback.is_some();
    let announcement =
        if is_announced { ExpiryAnnouncement::At(due_ms) } else { ExpiryAnnouncement::Never };
    Ok(Checked { client, expires_ms, announcement })
}

/// Replaces the features of the client by those that both sides support: the representation of a
/// subscription has the negotiated ones (TS 29.500, 6.6.2).
fn negotiate(context: &OperationContext<'_>, value: &mut Value) {
    if let Some(features) = value.get_mut("supportedFeatures")
        && let Some(negotiated) = features.as_str().and_then(|own| context.negotiated_features(own))
    {
        *features = Value::from(negotiated);
    }
}

/// Checks a `SubscriptionFilter`: resources of this storage, and operations.
fn check_filter(context: &OperationContext<'_>, filter: &Value) -> Result<(), Problem> {
    let Some(object) = filter.as_object() else {
        return Err(Problem::optional("/subFilter", "must be an object"));
    };
    if let Some(resources) = object.get("monitoredResourceUris") {
        let pointer = "/subFilter/monitoredResourceUris";
        let items = resources.as_array().filter(|items| (1..=MONITORED_MAX).contains(&items.len()));
        let Some(items) = items else {
            let reason = format!("must be an array of 1 to {MONITORED_MAX} URIs");
            return Err(Problem::optional(pointer, reason));
        };
        // The host may have another name for the client than for the node.
        let (own_realm, own_storage) = (&*context.path.realm, &*context.path.storage);
        let is_here = |text: &str| {
            let found = MonitoredResource::parse(text);
            found.is_some_and(|(realm, storage, _)| realm == own_realm && storage == own_storage)
        };
        for (index, item) in items.iter().enumerate() {
            if !item.as_str().is_some_and(is_here) {
                let reason = "must be the URI of the records of this storage, of a record, its \
                              meta, its blocks or a block";
                return Err(Problem::optional(format!("{pointer}/{index}"), reason));
            }
        }
    }
    if let Some(operations) = object.get("operations") {
        let items = operations.as_array().filter(|items| items.len() <= OPERATIONS.len());
        let is_known = |item: &Value| item.as_str().is_some_and(|name| OPERATIONS.contains(&name));
        if !items.is_some_and(|items| items.iter().all(is_known)) {
            let reason = "must be an array of CREATED, UPDATED and DELETED";
            return Err(Problem::optional("/subFilter/operations", reason));
        }
    }
    Ok(())
}

/// The subscription of a view, unless it has expired.
fn current(
    context: &OperationContext<'_>,
    view: Option<&View<'_>>,
) -> Result<Option<Document>, Problem> {
    let document = view.map(Document::of).transpose()?;
    Ok(document.filter(|document| !document.has_expired(context.now_ms)))
}

fn write(
    txn: &Txn<'_>,
    context: &OperationContext<'_>,
    value: &Value,
    checked: &Checked,
) -> nearstate_model::Result<()> {
    let uri = context.uri();
    let times = ((context.now_ms, checked.expires_ms), checked.announcement, uri.as_str());
    write_subscription(txn, (context.storage.subscriptions, context.key()), value, times)
}

fn not_owner() -> Problem {
    let detail = "the subscription belongs to another network function";
    Problem::new(StatusCode::FORBIDDEN, "MODIFICATION_NOT_ALLOWED", detail)
}

/// `GetNotificationSubscriptions`. Their texts are copied: the parsed values of all would take
/// sixteen times the memory and more.
pub(super) async fn list(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let limit = context.path.query.number("limit-range")?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(REFERENCES_MAX);
    let (session, memory) = (&context.repository.session, context.search_memory());
    let mut scan = session.scan(context.storage.subscriptions).map_err(Problem::from)?;
    let (mut list, mut count, mut unyielded) = (vec![b'['], 0, 0);
    while count < limit.min(REFERENCES_MAX)
        && list.len() < LIST_BYTES_MAX
        && scan.step().map_err(Problem::from)?
    {
        if let Some(view) = scan.view().map_err(Problem::from)? {
            unyielded += view.bytes().len();
            if !Document::of(&view)?.has_expired(context.now_ms) {
                if count > 0 {
                    list.push(b',');
                }
                list.extend_from_slice(Document::text(&view));
                memory.set_kept(list.capacity());
                count += 1;
            }
        }
        unyielded += STEP_BYTES;
        if unyielded >= STEP_BYTES * SCAN_STEPS as usize {
            unyielded = 0;
            yield_if_due().await;
        }
    }
    list.push(b']');
    Ok(Reply::with_body(StatusCode::OK, "application/json", list))
}

/// `GetNotificationSubscription`.
pub(super) fn get(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let session = &context.repository.session;
    let view =
        session.get_whole(context.storage.subscriptions, context.key()).map_err(Problem::from)?;
    let document = current(context, view.as_ref())?;
    let document = document.ok_or_else(|| no_subscription(&context.path.id))?;
    let validators = document.validators();
    if let Some(reply) = context.read_refusal(&validators) {
        return Ok(reply);
    }
    Ok(document.reply(StatusCode::OK).validated(&validators))
}

fn written(context: &OperationContext<'_>, version: Option<u64>) -> Validators {
    let etag = version_etag(version.unwrap_or_default());
    Validators { etag, modified_ms: Some(context.now_ms) }
}

/// `CreateAndUpdateNotificationSubscription`.
pub(super) async fn put(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    check_new_id(&context.path.id, "{subscriptionId}")?;
    let mut value = context.json("application/json")?;
    let checked = check(context, &value)?;
    negotiate(context, &mut value);
    let reply = Reply::json(StatusCode::OK, &value);
    context.check_reply(&reply)?;
    let body = |txn: &Txn<'_>| -> Result<bool, OperationRefusal> {
        let view = txn.get(context.storage.subscriptions, context.key())?;
        let old = current(context, view.as_ref())?;
        if let Some(old) = &old {
            let owner = ClientId::parse(old.value.get("clientId"), "/clientId")?;
            if !owner.is_same(&checked.client) {
                return Err(not_owner().into());
            }
        }
        context.check_write(|| old.as_ref().map(Document::validators), |_| None)?;
        if view.is_none() {
            context.repository.check_subscriptions(&context.storage)?;
        }
        write(txn, context, &value, &checked)?;
        Ok(old.is_some())
    };
    // From here on the log has what the subscription asks for.
    context.repository.log_changes_for(&context.storage, &body).await?;
    let (existed, version) = context.transact(context.key(), body).await?;
    let reply = if existed {
        reply
    } else {
        let uri = format!("{}/subs-to-notify/{}", context.uri(), encode_segment(&context.path.id));
        reply.with_status(StatusCode::CREATED).located(&uri)
    };
    Ok(reply.validated(&written(context, version)))
}

/// `UpdateNotificationSubscription`. Items that fail are discarded and reported, as for meta.
pub(super) async fn patch(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let items = patch::parse(&context.json(patch::MEDIA)?)?;
    let body =
        |txn: &Txn<'_>| -> Result<(Vec<patch::FailedItem>, Option<Validators>), OperationRefusal> {
            let view = txn.get(context.storage.subscriptions, context.key())?;
            let Some(old) = current(context, view.as_ref())? else {
                return Err(no_subscription(&context.path.id).into());
            };
            context.check_write(|| Some(old.validators()), |_| None)?;
            let owner = ClientId::parse(old.value.get("clientId"), "/clientId")?;
            let mut value = old.value.clone();
            let failed = patch::apply(&mut value, &items, |_, value| {
                let checked = check(context, value)?;
                if checked.client == owner { Ok(()) } else { Err(not_owner()) }
            });
            refuse_failed_test(&failed)?;
            context.check_reply(&patched(&failed))?;
            negotiate(context, &mut value);
            if value == old.value {
                return Ok((failed, Some(old.validators())));
            }
            write(txn, context, &value, &check(context, &value)?)?;
            Ok((failed, None))
        };
    let ((failed, unchanged), version) = context.transact(context.key(), body).await?;
    let validators = unchanged.unwrap_or_else(|| written(context, version));
    Ok(patched(&failed).validated(&validators))
}

/// The client of a query: `client-id` as JSON, or its attributes as parameters. The contract gives
/// the parameter a `schema`, so that generated clients send the second form. The one of free5GC
/// sends a third, and no other.
fn client_id(query: &Query) -> Result<Option<ClientId>, Problem> {
    const NAME: &str = "client-id";
    let value = if let Some(text) = query.get(NAME) {
        match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => members_in_order(text).ok_or_else(|| {
                Problem::query(NAME, format!("must be JSON: {}", json_reason(&error)))
            })?,
        }
    } else {
        let given = |name: &str| Some((name.to_owned(), Value::from(query.get(name)?)));
        let members: Map<String, Value> =
            ["nfId", "nfSetId"].into_iter().filter_map(given).collect();
        if members.is_empty() {
            return Ok(None);
        }
        Value::Object(members)
    };
    ClientId::parse(Some(&value), "query client-id").map(Some)
}

/// The client as its attributes in their order, `{NFID NFSETID}`, of which one may be empty: how Go
/// prints a structure.
fn members_in_order(text: &str) -> Option<Value> {
    let (instance, set) = text.strip_prefix('{')?.strip_suffix('}')?.split_once(' ')?;
    if set.contains(' ') {
        return None;
    }
    let given = [("nfId", instance), ("nfSetId", set)].into_iter();
    let given = given.filter(|(_, text)| !text.is_empty());
    Some(Value::Object(given.map(|(name, text)| (name.to_owned(), text.into())).collect()))
}

/// `DeleteNotificationSubscription`.
pub(super) async fn delete(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let client = client_id(&context.path.query).map_err(Problem::of_required_query);
    let Some(client) = client? else {
        let cause = "MANDATORY_QUERY_PARAM_MISSING";
        return Err(Problem::parameter(cause, "query client-id", "is required").into());
    };
    let body = |txn: &Txn<'_>| -> Result<Reply, OperationRefusal> {
        let view = txn.get(context.storage.subscriptions, context.key())?;
        let Some(old) = current(context, view.as_ref())? else {
            return Err(no_subscription(&context.path.id).into());
        };
        if !ClientId::parse(old.value.get("clientId"), "/clientId")?.is_same(&client) {
            return Err(not_owner().into());
        }
        context.check_write(|| Some(old.validators()), |status| Some(old.reply(status)))?;
        let reply = if context.gets_previous {
            Reply::json(StatusCode::OK, &Value::Array(vec![old.value]))
        } else {
            Reply::empty(StatusCode::NO_CONTENT)
        };
        context.check_reply(&reply)?;
        txn.delete(context.storage.subscriptions, context.key())?;
        Ok(reply)
    };
    Ok(context.transact(context.key(), body).await?.0)
}
