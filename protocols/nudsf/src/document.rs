//! Subscriptions and schemas: JSON documents, each a record with one unnamed block, the time of its
//! last modification (u64, little-endian) and then the JSON text.

use hyper::StatusCode;
use nearstate_model::limits::TAG_VALUE_BYTES_MAX;
use nearstate_store::{Metadata, Namespace, Txn, View};
use serde_json::Value;

use crate::conditions::Validators;
use crate::problem::Problem;
use crate::record::version_etag;
use crate::reply::Reply;
use crate::timer::{DUE_TAG, document_bytes};
use crate::times::parse_date_time;

/// A stored document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) value: Value,
    pub(crate) modified_ms: u64,
    /// The version of the record when a client last wrote it.
    pub(crate) version: u64,
}

impl Document {
    /// The document of a view.
    ///
    /// # Errors
    /// 500: another client has written something else.
    pub(crate) fn of(view: &View<'_>) -> Result<Self, Problem> {
        let split = view.bytes().split_first_chunk::<8>();
        let parsed = split.and_then(|(modified, text)| {
            Some((u64::from_le_bytes(*modified), serde_json::from_slice(text).ok()?))
        });
        let Some((modified_ms, value)) = parsed else {
            let detail = "the stored document was changed by another client: put it again";
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            return Err(Problem::new(status, "SYSTEM_FAILURE", detail));
        };
        let written = view.tags().find(|(name, _)| *name == VERSION_TAG).map(|(_, bytes)| bytes);
        let written = written.and_then(|bytes| bytes.first_chunk()).copied();
        let version = written.map_or(view.version(), u64::from_le_bytes);
        Ok(Self { value, modified_ms, version })
    }

    /// The JSON text of the document of a view, for which [`Self::of`] has succeeded.
    pub(crate) fn text<'v>(view: &'v View<'_>) -> &'v [u8] {
        view.bytes().get(size_of::<u64>()..).unwrap_or_default()
    }

    /// The validators of the document.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: version_etag(self.version), modified_ms: Some(self.modified_ms) }
    }

    /// True for a subscription that has expired.
    pub(crate) fn has_expired(&self, now_ms: u64) -> bool {
        let expiry = self.value.get("expiry").and_then(Value::as_str).and_then(parse_date_time);
        expiry.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// The document as a response.
    pub(crate) fn reply(&self, status: StatusCode) -> Reply {
        Reply::json(status, &self.value)
    }
}

/// Writes a schema in a transaction, with tags that no client sees.
///
/// # Errors
/// As [`Txn::put_with_metadata`].
pub(crate) fn write_schema(
    txn: &Txn<'_>,
    (namespace, key): (Namespace, &[u8]),
    value: &Value,
    (now_ms, tags): (u64, &[(&str, &[u8])]),
) -> nearstate_model::Result<()> {
    let bytes = document_bytes(now_ms, value);
    txn.put_with_metadata(namespace, key, &bytes, Metadata { tags, expires_ms: 0 })
}

/// The tag of a subscription with the URI of its storage, as its client names it.
pub(crate) const URI_TAG: &str = "\u{1}uri";

/// The tag of a subscription that was announced, with the version before (u64, little-endian). The
/// announcement is no change that a client sees, so that the entity tag remains.
const VERSION_TAG: &str = "\u{1}version";

/// When the expiry of a subscription is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpiryAnnouncement {
    /// Not at all.
    Never,
    /// At this time in milliseconds.
    At(u64),
    /// It was, in the state of this version.
    Done(u64),
}

/// How long a subscription whose expiry is to be notified stays after it, in milliseconds, if no
/// node takes care of it.
const GRACE_MS: u64 = 86_400_000;

/// Writes a subscription: its times of modification and of expiry, when the expiry is announced,
/// and the URI of the storage.
///
/// # Errors
/// As [`Txn::put_with_metadata`].
pub(crate) fn write_subscription(
    txn: &Txn<'_>,
    (namespace, key): (Namespace, &[u8]),
    value: &Value,
    ((modified_ms, expires_ms), announcement, uri): ((u64, u64), ExpiryAnnouncement, &str),
) -> nearstate_model::Result<()> {
    let bytes = document_bytes(modified_ms, value);
    let mut tags: Vec<(&str, &[u8])> = Vec::new();
    let (due, version, grace);
    match announcement {
        ExpiryAnnouncement::Never => grace = 0,
        ExpiryAnnouncement::At(due_ms) => {
            due = due_ms.to_be_bytes();
            tags.push((DUE_TAG, &due));
            grace = GRACE_MS;
        }
        ExpiryAnnouncement::Done(before) => {
            version = before.to_le_bytes();
            tags.push((VERSION_TAG, &version));
            grace = 0;
        }
    }
    // Without it, URIs in notifications are relative.
    if !uri.is_empty() && uri.len() <= TAG_VALUE_BYTES_MAX {
        tags.push((URI_TAG, uri.as_bytes()));
    }
    let expires_ms = if expires_ms == 0 { 0 } else { expires_ms.saturating_add(grace) };
    txn.put_with_metadata(namespace, key, &bytes, Metadata { tags: &tags, expires_ms })
}
