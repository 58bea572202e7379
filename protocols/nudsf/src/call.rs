//! A request that was routed, with what its operation needs.

use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use nearstate_store::now_ms;
use serde_json::Value;

use crate::conditions::{ConditionResult, Conditions, Validators};
use crate::limits::JSON_BYTES_MAX;
use crate::multipart::is_media_type;
use crate::problem::Problem;
use crate::reply::Reply;
use crate::repository::{CallRefusal, Repository, StorageNamespaces, precondition_failed};
use crate::target::{NudsfTarget, encode_segment};

/// A request.
#[derive(Debug)]
pub(crate) struct Call<'r> {
    pub(crate) repository: &'r Repository,
    pub(crate) storage: StorageNamespaces,
    pub(crate) target: &'r NudsfTarget<'r>,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) conditions: Conditions,
    /// The scheme and the authority of the request: `https`, `udsf.example`.
    origin: (&'r str, &'r str),
    pub(crate) body: Bytes,
    /// `get-previous`.
    pub(crate) gets_previous: bool,
    /// The time of the request in milliseconds.
    pub(crate) now_ms: u64,
}

impl<'r> Call<'r> {
    /// Checks what all operations have in common.
    ///
    /// # Errors
    /// 400, 404 for the realm or the storage.
    pub(crate) fn new(
        repository: &'r Repository,
        target: &'r NudsfTarget<'r>,
        (headers, origin): (&'r HeaderMap, (&'r str, &'r str)),
        body: Bytes,
    ) -> Result<Self, Problem> {
        target.query.check_features()?;
        let storage = repository.storage(&target.realm, &target.storage)?;
        Ok(Self {
            repository,
            storage,
            target,
            headers,
            conditions: Conditions::parse(headers)?,
            origin,
            body,
            gets_previous: target.query.flag("get-previous")?,
            now_ms: now_ms(),
        })
    }

    /// The key of the record, subscription or schema.
    pub(crate) fn key(&self) -> &[u8] {
        self.target.id.as_bytes()
    }

    /// The URI of the storage.
    pub(crate) fn uri(&self) -> String {
        let (scheme, authority) = self.origin;
        let origin = format!("{scheme}://{authority}");
        self.repository.storage_uri(&origin, &self.target.realm, &self.target.storage)
    }

    /// The URI of a record.
    pub(crate) fn record_uri(&self, id: &str) -> String {
        format!("{}/records/{}", self.uri(), encode_segment(id))
    }

    /// Fails unless the body has this media type.
    ///
    /// # Errors
    /// 415.
    pub(crate) fn require_media(&self, wanted: &str) -> Result<&str, Problem> {
        let given = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let given = given.unwrap_or_default();
        if is_media_type(given, wanted) {
            return Ok(given);
        }
        let detail = format!("the content type must be {wanted}, not {given:?}");
        let (status, cause) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE");
        Err(Problem::new(status, cause, detail))
    }

    /// The body as JSON of this media type.
    ///
    /// # Errors
    /// 400, 413, 415.
    pub(crate) fn json(&self, media: &str) -> Result<Value, Problem> {
        self.require_media(media)?;
        parse_json(&self.body)
    }

    /// The result of the conditions for a read: `Some` is the response to send instead.
    pub(crate) fn read_refusal(&self, current: &Validators) -> Option<Reply> {
        match self.conditions.evaluate(Some(current), true) {
            ConditionResult::Proceed => None,
            ConditionResult::NotModified => {
                Some(Reply::empty(StatusCode::NOT_MODIFIED).validated(current))
            }
            ConditionResult::Failed => {
                Some(Reply::problem(&precondition_failed(Some(&current.etag))))
            }
        }
    }

    /// Checks the conditions of a write. `previous` is the current representation, which 412
    /// contains with `get-previous`.
    ///
    /// # Errors
    /// 412.
    pub(crate) fn check_write(
        &self,
        current: impl FnOnce() -> Option<Validators>,
        previous: impl FnOnce(StatusCode) -> Option<Reply>,
    ) -> Result<(), CallRefusal> {
        // Validators are digests of the whole content.
        if self.conditions.is_unconditional_write() {
            return Ok(());
        }
        let current = current();
        let current = current.as_ref();
        if self.conditions.evaluate(current, false) == ConditionResult::Proceed {
            return Ok(());
        }
        let with_body = current.filter(|_| self.gets_previous).and_then(|current| {
            let reply = previous(StatusCode::PRECONDITION_FAILED)?;
            Some(reply.validated(current))
        });
        match with_body {
            Some(reply) => Err(reply.into()),
            None => Err(precondition_failed(current.map(|current| current.etag.as_str())).into()),
        }
    }
}

/// Parses a JSON text of limited size.
///
/// # Errors
/// 400, 413.
pub(crate) fn parse_json(bytes: &[u8]) -> Result<Value, Problem> {
    if bytes.len() > JSON_BYTES_MAX {
        let detail = format!("the JSON text exceeds {JSON_BYTES_MAX} bytes: send less at once");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", detail));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| Problem::message(format!("the body is no JSON: {error}")))
}
