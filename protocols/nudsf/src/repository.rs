//! The storages of a core, and transactions on them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::ETAG;
use nearstate_model::{Error, Result};
use nearstate_node::executor::yield_now;
use nearstate_store::{
    Kind, Namespace, Receipt, Schema, Session, TagSchema, Txn, View, WhenFull, since_boot,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::limits::{SUBSCRIPTIONS_BYTES_MAX, SUBSCRIPTIONS_MAX, TRIES_MAX};
use crate::meta::SCHEMA_TAG;
use crate::namespace_names::DOCUMENT_SUFFIXES;
use crate::problem::Problem;
use crate::record::StoredRecord;
use crate::reply::Reply;
use crate::request_path::{API, encode_segment};
use crate::settings::{CoreResponses, NudsfMetrics, NudsfSettings, StorageSpec};
use crate::timer::{DUE_TAG, EXPIRED_TAG};

/// Attempts of a transaction that finds the region full: each begins by moving records together.
const FULL_TRIES_MAX: u32 = 4;

/// How often the subscriptions of a storage are counted, while clients create some.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// The namespaces of a storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorageNamespaces {
    pub(crate) records: Namespace,
    pub(crate) subscriptions: Namespace,
    pub(crate) schemas: Namespace,
    pub(crate) timers: Namespace,
    /// The hash of the name of the records' namespace, which is the same in each copy of the
    /// region. Numbers of namespaces are not.
    pub(crate) name_hash: u64,
}

/// A storage on a core.
#[derive(Debug)]
struct Storage {
    spec: StorageSpec,
    namespaces: Cell<StorageNamespaces>,
    /// When the subscriptions were last counted, and whether there was space for another.
    subscriptions: Cell<(Duration, bool)>,
}

/// The data repository on a core.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(crate) session: Rc<Session>,
    storages: Vec<Storage>,
    pub(crate) settings: Arc<NudsfSettings>,
    pub(crate) metrics: Arc<NudsfMetrics>,
    /// The responses of this core.
    pub(crate) responses: Arc<CoreResponses>,
}

/// Why the body of a transaction ends without a commit.
#[derive(Debug)]
pub(crate) enum OperationRefusal {
    Store(Error),
    Problem(Box<Problem>),
    /// A response that needs no commit: 304, or 412 with the current representation.
    Reply(Box<Reply>),
}

impl From<Error> for OperationRefusal {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Problem> for OperationRefusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl From<Reply> for OperationRefusal {
    fn from(reply: Reply) -> Self {
        Self::Reply(Box::new(reply))
    }
}

/// Opens the namespaces of a storage and creates those that do not exist.
fn open(session: &Session, spec: &StorageSpec) -> Result<StorageNamespaces> {
    let tags = vec![TagSchema { name: SCHEMA_TAG.to_owned(), ..TagSchema::default() }];
    let records = match session.known_namespace(&spec.namespace)? {
        // One that an application has created with named blocks only.
        Some(known) if known.kind() == Kind::Blocks => {
            session.add_tags(known, &tags)?;
            known
        }
        _ => session.namespace(&spec.namespace, &Schema { kind: Kind::Mixed, tags })?,
    };
    let documents = |suffix: &str, tags: Vec<TagSchema>| {
        let schema = Schema { kind: Kind::Value, tags };
        session.namespace(&format!("{}{suffix}", spec.namespace), &schema)
    };
    let [of_subscriptions, of_schemas, of_timers] = DOCUMENT_SUFFIXES;
    let tag = |name: &str, is_ordered| {
        let name = name.to_owned();
        TagSchema { name, is_ordered, ..TagSchema::default() }
    };
    let subscriptions = documents(of_subscriptions, vec![tag(DUE_TAG, true)])?;
    let schemas = documents(of_schemas, Vec::new())?;
    let timers = documents(of_timers, vec![tag(DUE_TAG, true), tag(EXPIRED_TAG, false)])?;
    let name_hash = xxh3_64(spec.namespace.as_bytes());
    Ok(StorageNamespaces { records, subscriptions, schemas, timers, name_hash })
}

impl Repository {
    /// Opens all storages.
    ///
    /// # Errors
    /// `WrongKind`: a namespace has another kind; and as [`Session::namespace`].
    pub(crate) fn open(
        session: Rc<Session>,
        settings: Arc<NudsfSettings>,
        metrics: Arc<NudsfMetrics>,
    ) -> Result<Self> {
        let mut storages = Vec::new();
        for spec in &settings.storages {
            let namespaces = Cell::new(open(&session, spec)?);
            let subscriptions = Cell::new((Duration::ZERO, true));
            storages.push(Storage { spec: spec.clone(), namespaces, subscriptions });
        }
        let responses = metrics.of_core();
        Ok(Self { session, storages, settings, metrics, responses })
    }

    /// The namespaces of a storage. One that another client has removed is created again.
    ///
    /// # Errors
    /// 404: the realm or the storage is not configured.
    pub(crate) fn storage(&self, realm: &str, storage: &str) -> Result<StorageNamespaces, Problem> {
        let mut of_realm =
            self.storages.iter().filter(|known| known.spec.realm == realm).peekable();
        if of_realm.peek().is_none() {
            let detail = format!("the realm {realm:?} is not configured");
            return Err(Problem::not_found("REALM_NOT_FOUND", detail));
        }
        let Some(found) = of_realm.find(|known| known.spec.storage == storage) else {
            let detail = format!("the realm {realm:?} has no storage {storage:?}");
            return Err(Problem::not_found("STORAGE_NOT_FOUND", detail));
        };
        Ok(self.current(found)?)
    }

    fn current(&self, storage: &Storage) -> Result<StorageNamespaces> {
        let namespaces = storage.namespaces.get();
        let StorageNamespaces { records, subscriptions, schemas, timers, .. } = namespaces;
        let all = [records, subscriptions, schemas, timers];
        if all.iter().all(|one| self.session.has_namespace(*one)) {
            return Ok(namespaces);
        }
        let opened = open(&self.session, &storage.spec)?;
        // Subscriptions that were not removed with the records are for the new ones.
        let is_copy = self.session.is_followed(opened.records)?;
        if !is_copy && self.session.is_logged(opened.subscriptions)? {
            self.log_changes(&opened)?;
        }
        storage.namespaces.set(opened);
        Ok(opened)
    }

    /// All storages: the namespaces of each, and its URI, which is relative without an `apiRoot`.
    ///
    /// # Errors
    /// As [`Session::namespace`].
    pub(crate) fn storages(&self) -> Result<Vec<(StorageNamespaces, String)>> {
        let of = |storage: &Storage| {
            let StorageSpec { realm, storage: name, .. } = &storage.spec;
            let root = self.settings.notify.root.as_deref().unwrap_or_default();
            Ok((self.current(storage)?, self.storage_uri(root, realm, name)))
        };
        self.storages.iter().map(of).collect()
    }

    /// The log has all changes of a storage from now on, so that they are notified. A storage
    /// without subscriptions and callbacks does not pay for it.
    ///
    /// # Errors
    /// As [`Session::stream`].
    pub(crate) fn log_changes(&self, storage: &StorageNamespaces) -> Result<()> {
        for namespace in [storage.subscriptions, storage.records] {
            if !self.session.is_logged(namespace)? {
                self.session.stream(namespace, WhenFull::LoseOldest)?;
            }
        }
        Ok(())
    }

    /// Checks that a storage may have another subscription. They are counted once in a while, so
    /// that some more than the limit are possible.
    ///
    /// # Errors
    /// 500: it has too many.
    pub(crate) fn check_subscriptions(
        &self,
        namespaces: &StorageNamespaces,
    ) -> Result<(), Problem> {
        let namespace = namespaces.subscriptions;
        let is_it = |storage: &&Storage| storage.namespaces.get().subscriptions == namespace;
        let Some(storage) = self.storages.iter().find(is_it) else { return Ok(()) };
        let (counted, mut has_space) = storage.subscriptions.get();
        let now = since_boot();
        if counted.is_zero() || now >= counted + COUNT_INTERVAL {
            let (mut count, mut bytes) = (0, 0);
            let mut scan = self.session.scan(namespace)?;
            has_space = true;
            while has_space && scan.step()? {
                let view = scan.view()?;
                count += usize::from(view.is_some());
                bytes += view.map_or(0, |view| view.bytes().len());
                has_space = count < SUBSCRIPTIONS_MAX && bytes < SUBSCRIPTIONS_BYTES_MAX;
            }
            storage.subscriptions.set((now, has_space));
        }
        if has_space {
            return Ok(());
        }
        let detail = format!(
            "the storage has {SUBSCRIPTIONS_MAX} subscriptions or {SUBSCRIPTIONS_BYTES_MAX} bytes \
             of them: delete some"
        );
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Err(Problem::new(status, "INSUFFICIENT_RESOURCES", detail))
    }

    /// The absolute URI of a storage. `origin` is the scheme and the authority of the request.
    pub(crate) fn storage_uri(&self, origin: &str, realm: &str, storage: &str) -> String {
        let root = self.settings.api_root.as_deref().unwrap_or(origin).trim_end_matches('/');
        format!("{root}{API}/{}/{}", encode_segment(realm), encode_segment(storage))
    }

    /// Runs `body` in a transaction and commits it. After a conflict it runs again. Returns the
    /// result and the version of the record with this key after the commit; `None` if it was
    /// deleted or not written. If the commit must be replicated before it is answered, `owed` has
    /// its receipt then.
    ///
    /// # Errors
    /// The response to send instead.
    pub(crate) async fn transact<T>(
        &self,
        (key, owed): (&[u8], &Cell<Receipt>),
        mut body: impl FnMut(&Txn<'_>) -> Result<T, OperationRefusal>,
    ) -> Result<(T, Option<u64>), Reply> {
        let (done, version, receipt) = repeat(|| self.attempt(key, &mut body)).await?;
        owed.set(owed.get().max(receipt));
        Ok((done, version))
    }

    /// Runs `body` in a transaction that is not committed. A request that changes something outside
    /// of its transaction does this first, so that one that is refused changes nothing.
    ///
    /// # Errors
    /// The response to send instead.
    pub(crate) async fn rehearse<T>(
        &self,
        mut body: impl FnMut(&Txn<'_>) -> Result<T, OperationRefusal>,
    ) -> Result<(), Reply> {
        repeat(|| {
            let txn = self.session.begin()?;
            body(&txn).map(drop)
        })
        .await
    }

    /// As [`Self::log_changes`], if the transaction of the request is not refused.
    ///
    /// # Errors
    /// The response to send instead.
    pub(crate) async fn log_changes_for<T>(
        &self,
        storage: &StorageNamespaces,
        body: impl FnMut(&Txn<'_>) -> Result<T, OperationRefusal>,
    ) -> Result<(), Reply> {
        let is_logged = |namespace| self.session.is_logged(namespace).map_err(Problem::from);
        if !is_logged(storage.subscriptions)? || !is_logged(storage.records)? {
            self.rehearse(body).await?;
            self.log_changes(storage).map_err(Problem::from)?;
        }
        Ok(())
    }

    fn attempt<T>(
        &self,
        key: &[u8],
        body: &mut impl FnMut(&Txn<'_>) -> Result<T, OperationRefusal>,
    ) -> Result<(T, Option<u64>, Receipt), OperationRefusal> {
        // What another protocol or the notifier has left.
        self.session.take_owed_receipt();
        let txn = self.session.begin()?;
        let done = body(&txn)?;
        let mut version = None;
        txn.commit_with_versions(|written, after| {
            if written == key {
                version = after;
            }
        })?;
        Ok((done, version, self.session.take_owed_receipt()))
    }
}

/// Repeats an attempt after conflicts, and a few times if the region was full.
async fn repeat<T>(mut attempt: impl FnMut() -> Result<T, OperationRefusal>) -> Result<T, Reply> {
    let mut full_tries = 0;
    for _ in 0..TRIES_MAX {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(OperationRefusal::Reply(reply)) => return Err(*reply),
            Err(OperationRefusal::Problem(problem)) => return Err(Reply::problem(&problem)),
            Err(OperationRefusal::Store(Error::Conflict { .. })) => {}
            Err(OperationRefusal::Store(Error::Full { .. })) if full_tries < FULL_TRIES_MAX => {
                full_tries += 1;
            }
            Err(OperationRefusal::Store(error)) => {
                return Err(Reply::problem(&Problem::from(error)));
            }
        }
        yield_now().await;
    }
    Err(Reply::problem(&Problem::from(Error::Deadline { tries: TRIES_MAX })))
}

/// The record of a view, if it is one of the data repository.
///
/// # Errors
/// 409: a set, which a write must not replace.
pub(crate) fn for_write<'v>(
    view: Option<&'v View<'v>>,
) -> std::result::Result<Option<StoredRecord<'v>>, Problem> {
    let Some(view) = view else { return Ok(None) };
    let refused = || {
        let detail = "the key has a set of another interface: delete it there, or use another id";
        Problem::conflict("RECORD_OF_ANOTHER_KIND", detail)
    };
    StoredRecord::of(view).map(Some).ok_or_else(refused)
}

/// 409 if a write of the whole record would lose what another interface has given it.
pub(crate) fn require_exact(record: &StoredRecord<'_>) -> Result<(), Problem> {
    match record.inexact() {
        None => Ok(()),
        Some(why) => {
            let detail = format!("{why}, and would be lost: change it there, or put the record");
            Err(Problem::conflict("RECORD_OF_ANOTHER_KIND", detail))
        }
    }
}

/// 404 for a record.
pub(crate) fn no_record(id: &str) -> Problem {
    Problem::not_found("RECORD_NOT_FOUND", format!("the record {id:?} does not exist"))
}

/// 412 without a representation, but with the current entity tag.
pub(crate) fn precondition_failed(etag: Option<&str>) -> Problem {
    let detail = match etag {
        Some(etag) => format!("the current entity tag is {etag}: read the resource again"),
        None => "the resource does not exist".to_owned(),
    };
    let (status, cause) = (StatusCode::PRECONDITION_FAILED, "PRECONDITION_FAILED");
    let problem = Problem::new(status, cause, detail);
    match etag {
        Some(etag) => problem.with_header(ETAG, etag),
        None => problem,
    }
}
