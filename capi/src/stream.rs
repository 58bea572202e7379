//! The commit stream: every committed transaction, for a consumer such as a replica or a log.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;

use nearstate_model::{Error, Result};
use nearstate_store::meta::Meta;
use nearstate_store::{CommitStream, Committed, Entry, Session, Step, StreamItem, WhenFull};

use crate::border::{Out, borrow, guard};
use crate::bytes::{ns_bytes, null};
use crate::session::{ns_namespace, ns_session};
use crate::status::ns_status;
use crate::view::{call_each, ns_block_fn};

/// The oldest transactions are lost, and the consumer is told how many. Writers never wait.
pub const NS_STREAM_FULL_OVERWRITE: u32 = 1;
/// Commits are refused with `NS_BEHIND` until the consumer has acknowledged some.
pub const NS_STREAM_FULL_REFUSE: u32 = 2;

/// The record has this value, tags and expiry, and nothing of before.
pub const NS_STREAM_OP_PUT: u32 = 1;
/// Some blocks of the record changed.
pub const NS_STREAM_OP_PATCHED: u32 = 2;
/// The record was deleted.
pub const NS_STREAM_OP_DELETED: u32 = 3;
/// The record is gone because its time had passed.
pub const NS_STREAM_OP_EXPIRED: u32 = 4;

/// Streams the commits of a namespace from now on. `when_full` is one of `NS_STREAM_FULL_..`; a
/// writer's stream is one for all namespaces, and refuses as long as one of them asks for it. Each
/// session that writes takes 4 MiB of the region for it, for good. A transaction of more than a MiB
/// is refused with `NS_TRANSACTION_TOO_LARGE` then.
///
/// Fails with `NS_WRONG_KIND` for counters, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`,
/// `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_enable_stream(
    session: *mut ns_session,
    namespace: ns_namespace,
    when_full: u32,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let session = unsafe { borrow(session, "the session") }?;
        let when_full = match when_full {
            NS_STREAM_FULL_OVERWRITE => WhenFull::LoseOldest,
            NS_STREAM_FULL_REFUSE => WhenFull::Refuse,
            _ => {
                let detail = format!("a policy {when_full}: give one of NS_STREAM_FULL_..");
                return Err(Error::BadArgument { detail });
            }
        };
        session.store().stream(session.namespace(namespace)?, when_full)?;
        Ok(ns_status::NS_OK)
    })
}

/// A consumer of all writers' commits. It is its session's, and used by the same thread.
#[derive(Debug)]
pub struct ns_stream {
    stream: RefCell<CommitStream<'static>>,
    /// What was told last; it points into the stream, which keeps it until the next step.
    entry: Cell<Option<Entry<'static>>>,
    /// Walks over it that go on.
    walks: Cell<usize>,
    session: *const ns_session,
}

impl ns_stream {
    /// Refuses what a callback of this stream's own walk must not do.
    fn settled(&self) -> Result<()> {
        if self.walks.get() == 0 {
            return Ok(());
        }
        Err(Error::BadArgument {
            detail: "a walk over the transaction goes on: let it end first".to_owned(),
        })
    }
}

/// A committed transaction of a writer, or how many of its transactions are lost.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_stream_entry {
    /// How many transactions of this writer are lost: read anew what they may have changed. 0: this
    /// is a transaction, and `ns_stream_records` walks it.
    pub lost: u64,
    /// Number of the transaction in its writer's stream: one more than that of the one before.
    pub number: u64,
    /// Number of the writer's session. One that attaches later may have the same.
    pub writer: u32,
}

/// Opens a consumer, from what was last acknowledged on. One consumer acknowledges; others may read
/// along. A session that has an open one does not close.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_open(
    session: *mut ns_session,
    stream: *mut *mut ns_stream,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let session = unsafe { borrow(session, "the session") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(stream, "the stream") }?;
        // SAFETY: the session is in a box, and stays there while it counts this stream.
        let store: &'static Session = unsafe { &*ptr::from_ref(session.store()) };
        let stream = RefCell::new(store.commit_stream()?);
        session.hold();
        let (entry, walks) = (Cell::new(None), Cell::new(0));
        out.put(Box::into_raw(Box::new(ns_stream { stream, entry, walks, session })));
        Ok(ns_status::NS_OK)
    })
}

/// The next transaction of any writer, or `NS_NOT_FOUND` if there is none at present. Never waits.
/// A writer's transactions come in the order of its commits; of two writers' the versions of the
/// records tell.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT` (also within a walk over this stream's
/// transaction).
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_next(
    stream: *mut ns_stream,
    entry: *mut ns_stream_entry,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let stream = unsafe { borrow(stream, "the stream") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(entry, "the transaction") }?;
        stream.settled()?;
        stream.entry.set(None);
        match stream.stream.borrow_mut().next()? {
            None => return Ok(ns_status::NS_NOT_FOUND),
            Some(StreamItem::Lost { writer, transactions }) => {
                out.put(ns_stream_entry { lost: transactions, number: 0, writer });
            }
            Some(StreamItem::Transaction(told)) => {
                out.put(ns_stream_entry { lost: 0, number: told.number, writer: told.writer });
                // SAFETY: only the lifetime changes. The bytes stay in the stream's buffer until
                // its next step, before which `entry` is emptied.
                let told = unsafe { std::mem::transmute::<Entry<'_>, Entry<'static>>(told) };
                stream.entry.set(Some(told));
            }
        }
        Ok(ns_status::NS_OK)
    })
}

/// What became of a record in a committed transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_stream_record {
    /// The handle of the record's namespace; its `id` is 0 if the session has not opened it.
    pub handle: ns_namespace,
    /// The namespace's number in the region, which is the same for every session.
    pub namespace_number: u32,
    /// One of `NS_STREAM_OP_..`.
    pub op: u32,
    /// The record's key.
    pub key: ns_bytes,
    /// The version that it has since; of one that is gone, the last that it had.
    pub version: u64,
    /// The value that was put.
    pub value: ns_bytes,
    /// When it ends by itself, in milliseconds since 1970; 0: never, or as before.
    pub expires_ms: u64,
    /// It has the tags that `ns_stream_record_tags` walks and this expiry. If not, a patched record has
    /// those that it had.
    pub has_metadata: bool,
    /// Of a patched record: all blocks of before are gone.
    pub is_replacement: bool,
    /// Private.
    held: *const c_void,
}

impl ns_stream_record {
    fn new(session: &ns_session, record: &Committed<'_>) -> Result<Self> {
        let metadata = meta_of(record).map(Meta::split).transpose()?;
        let (op, value, is_replacement) = match &record.step {
            Step::Put { value, .. } => (NS_STREAM_OP_PUT, ns_bytes::of(value), true),
            Step::Patched { is_anew, .. } => (NS_STREAM_OP_PATCHED, ns_bytes::EMPTY, *is_anew),
            Step::Deleted { is_expiry: false } => (NS_STREAM_OP_DELETED, ns_bytes::EMPTY, false),
            Step::Deleted { is_expiry: true } => (NS_STREAM_OP_EXPIRED, ns_bytes::EMPTY, false),
        };
        let has_metadata = match &record.step {
            Step::Put { .. } => true,
            Step::Patched { meta, .. } => meta.is_some(),
            Step::Deleted { .. } => false,
        };
        Ok(Self {
            handle: session.handle_of(record.namespace),
            namespace_number: record.namespace,
            op,
            key: ns_bytes::of(record.key),
            version: record.version,
            value,
            expires_ms: metadata.map_or(0, |(_, meta)| meta.expires_ms),
            has_metadata,
            is_replacement,
            held: ptr::from_ref(record).cast(),
        })
    }

    /// # Safety
    /// Rule 1: a walk that goes on has made it.
    unsafe fn held<'a>(record: *const Self) -> Result<&'a Committed<'a>> {
        // SAFETY: rule 1.
        let held = unsafe { borrow(record, "the record") }?.held;
        // SAFETY: rule 1: NULL, or a record that the walk keeps until its callback returns.
        unsafe { borrow(held.cast(), "the record's blocks and tags") }
    }
}

/// The bytes of a record's tags and expiry, if it has any.
fn meta_of<'a>(record: &Committed<'a>) -> Option<&'a [u8]> {
    let meta = match record.step {
        Step::Put { meta, .. } => meta,
        Step::Patched { meta, .. } => meta.unwrap_or_default(),
        Step::Deleted { .. } => &[],
    };
    (!meta.is_empty()).then_some(meta)
}

/// Gets the records of a transaction, which end with the callback.
pub type ns_stream_record_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, record: *const ns_stream_record) -> bool>;

/// Calls `each` with every record of the transaction that was told last, as far as it is of
/// streamed namespaces.
///
/// Fails with `NS_DAMAGED` (some may have been told then), `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_records(
    stream: *const ns_stream,
    each: ns_stream_record_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let stream = unsafe { borrow(stream, "the stream") }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        let Some(entry) = stream.entry.get() else {
            return Err(null("the stream has no transaction (ns_stream_next tells one)"));
        };
        // SAFETY: the session stays open while it counts this stream.
        let session = unsafe { borrow(stream.session, "the session") }?;
        stream.walks.set(stream.walks.get() + 1);
        let mut told = Ok(ns_status::NS_OK);
        for record in entry.records() {
            let call = || {
                let record = record?;
                let lent = ns_stream_record::new(session, &record)?;
                // SAFETY: rule 4: it takes these arguments and returns.
                Ok(unsafe { each(context, &raw const lent) })
            };
            match call() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    told = Err(error);
                    break;
                }
            }
        }
        // Callbacks do not unwind, so this is reached.
        stream.walks.set(stream.walks.get() - 1);
        told
    })
}

/// Gets the blocks of a patched record; `block` is NULL if the block is gone.
pub type ns_block_change_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, name: ns_bytes, block: *const ns_bytes) -> bool,
>;

/// Calls `each` with every block that changed; none of a record that was not patched.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_record_blocks(
    record: *const ns_stream_record,
    each: ns_block_change_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let record = unsafe { ns_stream_record::held(record) }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        let Step::Patched { blocks, .. } = &record.step else { return Ok(ns_status::NS_OK) };
        for (name, block) in blocks {
            let bytes = block.map(ns_bytes::of);
            let block = bytes.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: rule 4: it takes these arguments and returns.
            if !unsafe { each(context, ns_bytes::of(name), block) } {
                break;
            }
        }
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with every tag that the record has since, in ascending order: its name and a value.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_record_tags(
    record: *const ns_stream_record,
    each: ns_block_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let record = unsafe { ns_stream_record::held(record) }?;
        let metadata = meta_of(record).map(Meta::split).transpose()?;
        let tags = metadata.into_iter().flat_map(|(_, meta)| meta.tags());
        // SAFETY: rule 4.
        unsafe { call_each(tags.filter_map(std::result::Result::ok), each, context) }
    })
}

/// Acknowledges everything that was told: a stream that refuses when it is full may overwrite it.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_acknowledge(stream: *mut ns_stream) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let stream = unsafe { borrow(stream, "the stream") }?;
        stream.stream.borrow().acknowledge()?;
        Ok(ns_status::NS_OK)
    })
}

/// Ends a consumer. What was not acknowledged is told again to the next one. NULL is left alone.
/// `NS_BAD_ARGUMENT`, and no end, within a walk over its transaction.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_close(stream: *mut ns_stream) -> ns_status {
    guard(|| {
        if stream.is_null() {
            return Ok(ns_status::NS_OK);
        }
        // SAFETY: rule 1.
        unsafe { borrow(stream, "the stream") }?.settled()?;
        // SAFETY: rule 1: `ns_stream_open` made it of a box, and nobody uses it after this call.
        let ended = unsafe { Box::from_raw(stream) };
        let session = ended.session;
        drop(ended);
        // SAFETY: the session stayed open, because it counted this stream until now.
        unsafe { borrow(session, "the session") }?.release();
        Ok(ns_status::NS_OK)
    })
}
