//! The context of an operation: a request that was routed, with what the operation needs.

use std::cell::Cell;

use hyper::body::Bytes;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use nearstate_model::Error;
use nearstate_store::{Namespace, OwnerLease, Receipt, ReplicationPolicy, Txn};
use serde_json::Value;

use crate::conditions::{ConditionResult, Conditions, Validators};
use crate::features::FeatureSet;
use crate::meta::{parse_json, value_bytes};
use crate::multipart::is_media_type;
use crate::problem::Problem;
use crate::reply::{Reply, accepts, check_accepted};
use crate::reply_body::{HttpConnectionState, SearchMemory};
use crate::repository::{OperationRefusal, Repository, StorageNamespaces, precondition_failed};
use crate::request_path::{RequestPath, encode_segment};
use crate::table::{NudsfOperation, Resource};

/// A request, and what its operation needs.
#[derive(Debug)]
pub(crate) struct OperationContext<'r> {
    pub(crate) repository: &'r Repository,
    pub(crate) storage: StorageNamespaces,
    pub(crate) path: &'r RequestPath<'r>,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) conditions: Conditions,
    /// The scheme and the authority of the request: `https`, `udsf.example`.
    origin: (&'r str, &'r str),
    pub(crate) body: Bytes,
    /// `get-previous`.
    pub(crate) gets_previous: bool,
    /// The time of the request in milliseconds.
    pub(crate) now_ms: u64,
    state: &'r HttpConnectionState,
    /// The values that were parsed from the body, which the operation may keep until it ends.
    json_memory: SearchMemory<'r>,
    /// The request has changed something: its response must be sent.
    has_committed: Cell<bool>,
    /// The last commit of the request that must be replicated before it is answered.
    owed: Cell<Receipt>,
}

/// The first value of a header. Most requests have few: no search hashes a name.
fn first<'h>(headers: &'h HeaderMap, wanted: &HeaderName) -> Option<&'h HeaderValue> {
    headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

/// True for an error that tells of no record: the request, its client or the node is the reason.
fn is_of_the_request_alone(status: StatusCode) -> bool {
    let tells_of_a_record = [
        StatusCode::NOT_FOUND,
        StatusCode::NOT_MODIFIED,
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::FORBIDDEN,
    ];
    !status.is_success() && !tells_of_a_record.contains(&status)
}

impl<'r> OperationContext<'r> {
    /// Checks what all operations have in common.
    ///
    /// # Errors
    /// 400, 404 for the realm or the storage.
    pub(crate) fn new(
        (repository, state): (&'r Repository, &'r HttpConnectionState),
        path: &'r RequestPath<'r>,
        (headers, origin): (&'r HeaderMap, (&'r str, &'r str)),
        body: Bytes,
    ) -> Result<Self, Problem> {
        path.query.check_features()?;
        let storage = repository.storage(&path.realm, &path.storage)?;
        Ok(Self {
            repository,
            storage,
            path,
            headers,
            conditions: Conditions::parse(headers)?,
            origin,
            body,
            gets_previous: path.query.flag("get-previous")?,
            now_ms: repository.session.now_ms()?,
            state,
            json_memory: SearchMemory::new(state),
            has_committed: Cell::new(false),
            owed: Cell::default(),
        })
    }

    /// The features of the client that the node supports as well, as `SupportedFeatures`; `None`:
    /// the client's are not hexadecimal.
    pub(crate) fn negotiated_features(&self, client: &str) -> Option<String> {
        let client = FeatureSet::parse(client)?;
        Some(self.repository.settings.features.negotiate(&client))
    }

    /// As [`Repository::transact`].
    ///
    /// # Errors
    /// The response to send instead.
    pub(crate) async fn transact<T>(
        &self,
        key: &[u8],
        body: impl FnMut(&Txn<'_>) -> Result<T, OperationRefusal>,
    ) -> Result<(T, Option<u64>), Reply> {
        let done = self.repository.transact((key, &self.owed), body).await;
        if done.is_ok() {
            self.has_committed.set(true);
        }
        done
    }

    /// Counts the memory of a search of this request.
    pub(crate) fn search_memory(&self) -> SearchMemory<'r> {
        SearchMemory::new(self.state)
    }

    /// True if a transaction of the request has committed.
    pub(crate) fn has_committed(&self) -> bool {
        self.has_committed.get()
    }

    /// Fails if a response must not be sent: the client accepts no such body (406), or has too many
    /// that it has not read (503). A write checks its response before it commits. Errors are sent
    /// whatever the client accepts.
    ///
    /// # Errors
    /// 406, 503.
    pub(crate) fn check_reply(&self, reply: &Reply) -> Result<(), Problem> {
        // The `OpenAPI` file calls a schema `multipart/mixed` by mistake, and so do generated
        // clients.
        if self.path.spec.operation != NudsfOperation::GetMetaSchema {
            reply.check_accepted(self.headers)?;
        }
        self.state.check_reply(reply.body_bytes())
    }

    /// True if `Accept` is absent or allows a media type.
    pub(crate) fn accepts(&self, media: &str) -> bool {
        accepts(self.headers, media)
    }

    /// As [`Self::check_reply`], for a response with a body of this type and length that is made
    /// after the commit.
    ///
    /// # Errors
    /// 406, 503.
    pub(crate) fn check_body(&self, media: &str, bytes: usize) -> Result<(), Problem> {
        check_accepted(self.headers, media)?;
        self.state.check_reply(bytes)
    }

    /// What must be replicated before the request is answered: its commits in namespaces whose
    /// commits wait, or those that the response tells of. A change that was made before, perhaps by
    /// the same request, is not made again: its success stands for all commits so far. So do an
    /// absent resource and a search.
    ///
    /// # Errors
    /// `Fenced`: the lease of a storage whose commits wait has ended; `Damaged`.
    pub(crate) fn owed(&self, reply: &Reply) -> Result<Receipt, Error> {
        let owed = self.owed.get();
        let spec = self.path.spec;
        let is_collection = self.path.id.is_empty();
        let may_be_unchanged =
            spec.method == Method::PATCH || (spec.method == Method::DELETE && is_collection);
        let (session, namespace) = (&self.repository.session, self.namespace());
        // A PUT tells of what it has written: its commit owes nothing, and the lease held then.
        let has_put = spec.method == Method::PUT && self.has_committed();
        if owed != Receipt::NONE || has_put || is_of_the_request_alone(reply.status) {
            return Ok(owed);
        }
        if session.owner_lease()? == OwnerLease::Expired
            && session.replication_policy(namespace)? == ReplicationPolicy::Replicated
        {
            // Another host may own the partition already, and what was read may be what it has
            // discarded, or has changed since.
            return Err(Error::Fenced { namespace: self.path.storage.to_string() });
        }
        let all = session.receipt_of_read(namespace, None)?;
        if all == Receipt::NONE || is_collection || may_be_unchanged && reply.status.is_success() {
            return Ok(all);
        }
        // A version that was written since counts as read.
        let current = session.get(namespace, self.key())?;
        session.receipt_of_read(namespace, current.as_ref())
    }

    /// The namespace of the resource.
    fn namespace(&self) -> Namespace {
        let StorageNamespaces { records, subscriptions, schemas, timers, .. } = self.storage;
        match self.path.spec.resource {
            Resource::Records
            | Resource::Record
            | Resource::Meta
            | Resource::Blocks
            | Resource::Block => records,
            Resource::Subscriptions | Resource::Subscription => subscriptions,
            Resource::Schema => schemas,
            Resource::Timers | Resource::Timer => timers,
        }
    }

    /// The key of the record, subscription or schema.
    pub(crate) fn key(&self) -> &[u8] {
        self.path.id.as_bytes()
    }

    /// The URI of the storage.
    pub(crate) fn uri(&self) -> String {
        let (scheme, authority) = self.origin;
        let origin = format!("{scheme}://{authority}");
        self.repository.storage_uri(&origin, &self.path.realm, &self.path.storage)
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
        let given = first(self.headers, &CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let given = given.unwrap_or_default();
        if is_media_type(given, wanted) {
            self.require_no_coding()?;
            return Ok(given);
        }
        let detail = format!("the content type must be {wanted}, not {given:?}");
        let (status, cause) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE");
        Err(Problem::new(status, cause, detail))
    }

    /// Fails if the body is compressed. It would be stored so, and its coding is not kept.
    ///
    /// # Errors
    /// 415, with what is accepted (RFC 9110, 12.5.3).
    pub(crate) fn require_no_coding(&self) -> Result<(), Problem> {
        if first(self.headers, &CONTENT_ENCODING).is_none() {
            return Ok(());
        }
        let mut codings = self.headers.get_all(CONTENT_ENCODING).iter();
        if codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Ok(());
        }
        let detail = "the body has a Content-Encoding: send it without";
        let (status, cause) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE");
        Err(Problem::new(status, cause, detail).with_header(ACCEPT_ENCODING, "identity"))
    }

    /// The body as JSON of this media type.
    ///
    /// # Errors
    /// 400, 413, 415.
    pub(crate) fn json(&self, media: &str) -> Result<Value, Problem> {
        self.require_media(media)?;
        self.parse_counted(&self.body)
    }

    /// As [`parse_json`] for the body or a part of it. The values, which take sixteen times the
    /// bytes of their text and more, count for the connection until the request ends.
    ///
    /// # Errors
    /// 400, 413.
    pub(crate) fn parse_counted(&self, text: &[u8]) -> Result<Value, Problem> {
        let value = parse_json(text)?;
        self.json_memory.set_kept(value_bytes(&value));
        Ok(value)
    }

    /// The result of the conditions for a read: `Some` is the response to send instead.
    pub(crate) fn read_refusal(&self, current: &Validators) -> Option<Reply> {
        match self.conditions.evaluate(Some(current), true, self.now_ms) {
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
    ) -> Result<(), OperationRefusal> {
        // Validators are digests of the whole content.
        if self.conditions.is_unconditional_write() {
            return Ok(());
        }
        let current = current();
        let current = current.as_ref();
        if self.conditions.evaluate(current, false, self.now_ms) == ConditionResult::Proceed {
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
