//! The commit stream: every committed transaction in one order, for consumers such as replicas and
//! logs; and receipts, which tell what its consumer has acknowledged.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::meta::Meta;
use nearstate_store::{
    CommitStream, Receipt, ReceiptState, Session, StreamEntry, StreamItem, StreamedChange,
    StreamedRecord, WhenFull,
};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::session::{enter, enter_to_release, ns_namespace, ns_session};
use crate::status::ns_status;
use crate::view::{call_each, ns_block_fn};

/// The oldest transactions are overwritten; the consumer learns how many were lost. Writers never
/// wait.
pub const NS_STREAM_FULL_OVERWRITE: u32 = 1;
/// Commits fail with `NS_BEHIND` until the consumer acknowledges older transactions.
pub const NS_STREAM_FULL_REFUSE: u32 = 2;

/// The record was replaced by this value, tags and expiry.
pub const NS_STREAM_OP_PUT: u32 = 1;
/// Some blocks of the record were changed.
pub const NS_STREAM_OP_PATCHED: u32 = 2;
/// The record was deleted.
pub const NS_STREAM_OP_DELETED: u32 = 3;
/// The record expired and was deleted.
pub const NS_STREAM_OP_EXPIRED: u32 = 4;
/// Some members of a large set or some fields of a large hash were changed.
pub const NS_STREAM_OP_ELEMENTS: u32 = 5;

/// Logs the commits of a namespace from now on; a namespace that is logged stays so. `when_full` is
/// one of `NS_STREAM_FULL_..`. The region has one log for all namespaces; it refuses commits if any
/// namespace is set to `NS_STREAM_FULL_REFUSE`. The log permanently takes a 64th of the region's
/// heap, from 512 KiB to 8 MiB, and holds what its transactions have replaced: at most a sixteenth
/// of the heap. A transaction that replaces more than an eighth of that fails with `NS_BEHIND`
/// while the log holds more than half of it.
///
/// Fails with `NS_WRONG_KIND` for counters, `NS_FULL`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`,
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
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let when_full = match when_full {
            NS_STREAM_FULL_OVERWRITE => WhenFull::LoseOldest,
            NS_STREAM_FULL_REFUSE => WhenFull::Refuse,
            _ => {
                let detail =
                    format!("unknown policy {when_full}: expected one of NS_STREAM_FULL_..");
                return Err(Error::BadArgument { detail });
            }
        };
        session.store().stream(session.namespace(namespace)?, when_full)?;
        Ok(ns_status::NS_OK)
    })
}

/// A consumer of the commits of all writers. It belongs to its session and is used by the same
/// thread.
#[derive(Debug)]
pub struct ns_stream {
    stream: RefCell<CommitStream<'static>>,
    /// The current entry. It points into the stream, which keeps it until the next call.
    entry: Cell<Option<StreamEntry<'static>>>,
    /// The number of iterations over the entry that are in progress.
    iterations: Cell<usize>,
    session: *const ns_session,
}

impl ns_stream {
    /// Fails within a callback of an iteration over this stream.
    fn check_idle(&self) -> Result<()> {
        if self.iterations.get() == 0 {
            return Ok(());
        }
        Err(Error::BadArgument {
            detail: "an iteration over the transaction is in progress: end it first".to_owned(),
        })
    }
}

/// A committed transaction, or a gap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_stream_entry {
    /// The number of lost transactions, at most: read the records again. 0: this is a transaction,
    /// and `ns_stream_records` iterates over its records.
    pub lost: u64,
    /// The position of the transaction in the log. Positions rise, with gaps where a commit was
    /// given up. 0 for a gap.
    pub number: u64,
    /// The number of the writer's session. A later session may reuse it. 0 for a gap.
    pub writer: u32,
}

/// Opens a consumer, which starts after the last acknowledged transaction. One consumer
/// acknowledges; others may read at the same time. A session with an open consumer cannot be
/// closed.
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
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 3.
        let out = unsafe { Out::new(stream, "the stream") }?;
        // SAFETY: the session is boxed and stays there while it counts this stream.
        let store: &'static Session = unsafe { &*ptr::from_ref(session.store()) };
        let stream = RefCell::new(store.commit_stream()?);
        session.hold();
        let (entry, iterations) = (Cell::new(None), Cell::new(0));
        out.put(Box::into_raw(Box::new(ns_stream { stream, entry, iterations, session })));
        Ok(ns_status::NS_OK)
    })
}

/// Gets the next transaction, or `NS_NOT_FOUND` if there is none at present. Waits at most 100 us,
/// for a writer that is in its commit. All transactions arrive in the order of their commits. The
/// current transaction holds memory of the region until the next call.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT` (also within a callback of this stream).
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
        // SAFETY: the session stays open while it counts this stream.
        let _call = unsafe { enter(stream.session) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(entry, "the transaction") }?;
        stream.check_idle()?;
        stream.entry.set(None);
        match stream.stream.borrow_mut().next()? {
            None => return Ok(ns_status::NS_NOT_FOUND),
            Some(StreamItem::Lost { transactions }) => {
                out.put(ns_stream_entry { lost: transactions, number: 0, writer: 0 });
            }
            Some(StreamItem::Transaction(entry)) => {
                out.put(ns_stream_entry { lost: 0, number: entry.number, writer: entry.writer });
                // SAFETY: only the lifetime changes. The stream's pin keeps the bytes in the region
                // until the next call, which clears `entry` first.
                let entry =
                    unsafe { std::mem::transmute::<StreamEntry<'_>, StreamEntry<'static>>(entry) };
                stream.entry.set(Some(entry));
            }
        }
        Ok(ns_status::NS_OK)
    })
}

/// A record of a committed transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_stream_record {
    /// The handle of the record's namespace; its `id` is 0 if the session has not opened it.
    pub handle: ns_namespace,
    /// The namespace's number in the region, which is the same for every session.
    pub namespace_number: u32,
    /// The change: one of `NS_STREAM_OP_..`.
    pub op: u32,
    /// The record's key.
    pub key: ns_bytes,
    /// The version after the change. For a deleted record, its last version.
    pub version: u64,
    /// The value, for `NS_STREAM_OP_PUT`.
    pub value: ns_bytes,
    /// When the record expires, in milliseconds since 1970. 0: never, or unchanged.
    pub expires_ms: u64,
    /// The transaction set the tags that `ns_stream_record_tags` reports and this expiry. If false,
    /// a patched record keeps its previous ones.
    pub has_metadata: bool,
    /// For a patched record, and for changed elements: all previous ones were removed.
    pub is_replacement: bool,
    /// Private.
    record_pointer: *const c_void,
}

impl ns_stream_record {
    fn new(session: &ns_session, record: &StreamedRecord<'_>) -> Result<Self> {
        let metadata = meta_of(record).map(Meta::split).transpose()?;
        let (op, value, is_replacement) = match &record.change {
            StreamedChange::Put { value, .. } => (NS_STREAM_OP_PUT, ns_bytes::of(value), true),
            StreamedChange::Patched { is_anew, .. } => {
                (NS_STREAM_OP_PATCHED, ns_bytes::EMPTY, *is_anew)
            }
            StreamedChange::Elements { is_anew, .. } => {
                (NS_STREAM_OP_ELEMENTS, ns_bytes::EMPTY, *is_anew)
            }
            StreamedChange::Deleted { is_expiry: false } => {
                (NS_STREAM_OP_DELETED, ns_bytes::EMPTY, false)
            }
            StreamedChange::Deleted { is_expiry: true } => {
                (NS_STREAM_OP_EXPIRED, ns_bytes::EMPTY, false)
            }
        };
        let has_metadata = match &record.change {
            StreamedChange::Put { .. } => true,
            StreamedChange::Patched { meta, .. } | StreamedChange::Elements { meta, .. } => {
                meta.is_some()
            }
            StreamedChange::Deleted { .. } => false,
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
            record_pointer: ptr::from_ref(record).cast(),
        })
    }

    /// # Safety
    /// Rule 1: created by an iteration that is in progress.
    unsafe fn record_pointer<'a>(record: *const Self) -> Result<&'a StreamedRecord<'a>> {
        // SAFETY: rule 1.
        let record_pointer = unsafe { borrow(record, "the record") }?.record_pointer;
        // SAFETY: rule 1: NULL, or a record that the iteration keeps until its callback returns.
        unsafe { borrow(record_pointer.cast(), "the record's blocks and tags") }
    }
}

/// The encoded tags and expiry of a record, if it has any.
fn meta_of<'a>(record: &StreamedRecord<'a>) -> Option<&'a [u8]> {
    let meta = match record.change {
        StreamedChange::Put { meta, .. } => meta,
        StreamedChange::Patched { meta, .. } | StreamedChange::Elements { meta, .. } => {
            meta.unwrap_or_default()
        }
        StreamedChange::Deleted { .. } => &[],
    };
    (!meta.is_empty()).then_some(meta)
}

/// Receives each record of a transaction. The record is valid until the callback returns.
pub type ns_stream_record_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, record: *const ns_stream_record) -> bool>;

/// Calls `each` for every record of the current transaction that is in a streamed namespace.
///
/// Fails with `NS_DAMAGED` (`each` may have been called before), `NS_BAD_ARGUMENT`.
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
        // SAFETY: the session stays open while it counts this stream.
        let session_call = unsafe { enter(stream.session) }?;
        let session = session_call.session();
        // Behind the guard: another thread may have taken the next one.
        let Some(entry) = stream.entry.get() else {
            return Err(null("the stream has no current transaction (call ns_stream_next)"));
        };
        stream.iterations.set(stream.iterations.get() + 1);
        let mut status = Ok(ns_status::NS_OK);
        for record in entry.records() {
            let call = || {
                let record = record?;
                let lent = ns_stream_record::new(session, &record)?;
                // SAFETY: rule 4: it takes these arguments and returns.
                Ok(session.while_open(|| unsafe { each(context, &raw const lent) }))
            };
            match call() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    status = Err(error);
                    break;
                }
            }
        }
        // Callbacks do not unwind, so this line is always reached.
        stream.iterations.set(stream.iterations.get() - 1);
        status
    })
}

/// Receives each changed block of a record; `block` is NULL if the block was removed.
pub type ns_patch_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, name: ns_bytes, block: *const ns_bytes) -> bool,
>;

/// Calls `each` for every changed block of a patched record, or for every changed member or field
/// of a large set or hash. A member has an empty value. Other changes have none.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_stream_record_blocks(
    record: *const ns_stream_record,
    each: ns_patch_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let record = unsafe { ns_stream_record::record_pointer(record) }?;
        let each = each.ok_or_else(|| null("the callback"))?;
        let (StreamedChange::Patched { blocks, .. }
        | StreamedChange::Elements { elements: blocks, .. }) = &record.change
        else {
            return Ok(ns_status::NS_OK);
        };
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

/// Calls `each` with the name and value of every tag that the record has after the change, in
/// ascending order.
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
        let record = unsafe { ns_stream_record::record_pointer(record) }?;
        let metadata = meta_of(record).map(Meta::split).transpose()?;
        let tags = metadata.into_iter().flat_map(|(_, meta)| meta.tags());
        // SAFETY: rule 4.
        unsafe { call_each(tags.filter_map(std::result::Result::ok), each, context) }
    })
}

/// Acknowledges all transactions read so far: they are replicated (`ns_receipt_wait`), and a log
/// that refuses commits when it is full may forget them.
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
        // SAFETY: the session stays open while it counts this stream.
        let _call = unsafe { enter(stream.session) }?;
        stream.stream.borrow_mut().acknowledge()?;
        Ok(ns_status::NS_OK)
    })
}

/// Closes a consumer. The next consumer receives the transactions that were not acknowledged. NULL
/// is ignored. Fails with `NS_BAD_ARGUMENT`, without closing it, within a callback of this stream.
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
        let open = unsafe { borrow(stream, "the stream") }?;
        // SAFETY: the session stays open while it counts this stream.
        let call = unsafe { enter_to_release(open.session) }?;
        if call.must_leak(open.iterations.get() != 0) {
            call.session().release();
            return Ok(ns_status::NS_OK);
        }
        open.check_idle()?;
        // SAFETY: rule 1: `ns_stream_open` created it from a box, and the caller no longer uses it.
        drop(unsafe { Box::from_raw(stream) });
        call.session().release();
        Ok(ns_status::NS_OK)
    })
}

/// A position in the log, and the incarnation of the log that gave it. What it stands for is
/// replicated when the consumer of the stream has acknowledged it. It can be kept and asked for at
/// the host that has taken the partition over. Positions of one region can be compared.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_receipt {
    /// The position; 0: nothing, which is replicated at any time.
    pub position: u64,
    /// The incarnation: a number for the region and for how often its log has begun anew.
    pub incarnation: u64,
}

impl ns_receipt {
    pub(crate) const fn of(receipt: Receipt) -> Self {
        Self { position: receipt.position(), incarnation: receipt.incarnation() }
    }

    pub(crate) const fn receipt(self) -> Receipt {
        Receipt::from_parts(self.position, self.incarnation)
    }
}

/// The consumer has not acknowledged it yet.
pub const NS_RECEIPT_PENDING: u32 = 1;
/// The consumer has acknowledged it.
pub const NS_RECEIPT_REPLICATED: u32 = 2;
/// Another host owns the partition without it, or the log has given it up before the consumer read
/// it.
pub const NS_RECEIPT_LOST: u32 = 3;
/// Nothing is known of it here, and will not be: it is of a log that this region has neither
/// written nor taken over, or the host has left the group before it was decided. Read the record
/// before the commit is repeated.
pub const NS_RECEIPT_UNKNOWN: u32 = 4;

pub(crate) const fn code_of(state: ReceiptState) -> u32 {
    match state {
        ReceiptState::Pending => NS_RECEIPT_PENDING,
        ReceiptState::Replicated => NS_RECEIPT_REPLICATED,
        ReceiptState::Lost => NS_RECEIPT_LOST,
        ReceiptState::Unknown => NS_RECEIPT_UNKNOWN,
    }
}

/// Gets the receipt of the session's last commit in a logged namespace; position 0 before the first
/// one.
///
/// Fails with `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_of_commit(
    session: *mut ns_session,
    receipt: *mut ns_receipt,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(receipt, "the receipt") }?;
        let store = call.session().store();
        out.put(ns_receipt::of(store.receipt_at(store.last_commit_position())?));
        Ok(ns_status::NS_OK)
    })
}

/// Gets a receipt that covers everything that the session has read so far, absent records included.
/// Output that depends on it may leave the host when the receipt is replicated.
///
/// Fails with `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_of_reads(
    session: *mut ns_session,
    receipt: *mut ns_receipt,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(receipt, "the receipt") }?;
        out.put(ns_receipt::of(call.session().store().receipt_of_all()?));
        Ok(ns_status::NS_OK)
    })
}

/// Waits until what a receipt stands for is not pending any more, for at most `timeout_ms`
/// milliseconds; with 0 it does not wait. `state` becomes one of `NS_RECEIPT_..`. A signal does not
/// end the wait: a thread that has to do more polls the descriptor of a set
/// (`ns_receipt_set_open`).
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_receipt_wait(
    session: *mut ns_session,
    receipt: ns_receipt,
    timeout_ms: u64,
    state: *mut u32,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(state, "the state") }?;
        let (store, receipt) = (call.session().store(), receipt.receipt());
        let known = match timeout_ms {
            0 => store.receipt_state(receipt)?,
            _ => store.wait_replicated(receipt, Duration::from_millis(timeout_ms))?,
        };
        out.put(code_of(known));
        Ok(ns_status::NS_OK)
    })
}
