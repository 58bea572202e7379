//! Subscriptions and schemas: JSON documents, each a record with one unnamed block, the time of its
//! last modification (u64, little-endian) and then the JSON text.

use hyper::StatusCode;
use nearstate_store::{Metadata, Namespace, Txn, View};
use serde_json::Value;

use crate::conditions::Validators;
use crate::problem::Problem;
use crate::record::version_etag;
use crate::reply::Reply;

/// A stored document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) value: Value,
    pub(crate) modified_ms: u64,
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
        Ok(Self { value, modified_ms, version: view.version() })
    }

    /// The validators of the document.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: version_etag(self.version), modified_ms: Some(self.modified_ms) }
    }

    /// The document as a response.
    pub(crate) fn reply(&self, status: StatusCode) -> Reply {
        Reply::json(status, &self.value)
    }
}

/// Writes a document in a transaction.
///
/// # Errors
/// As [`Txn::put_with_metadata`].
pub(crate) fn write_document(
    txn: &Txn<'_>,
    (namespace, key): (Namespace, &[u8]),
    value: &Value,
    (now_ms, expires_ms): (u64, u64),
) -> nearstate_model::Result<()> {
    let mut bytes = now_ms.to_le_bytes().to_vec();
    bytes.extend_from_slice(value.to_string().as_bytes());
    txn.put_with_metadata(namespace, key, &bytes, Metadata { tags: &[], expires_ms })
}
