//! Transactions: begin, commit, abort, and automatic retry after conflicts.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use nearstate_model::{Error, Result};
use nearstate_store::{Session, Txn, View};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::session::{SessionCall, enter, enter_to_release, ns_session};
use crate::status::ns_status;
use crate::view::ns_view;

/// An open transaction. Its changes of records and objects become visible to all processes at one
/// instant, or not at all. Its reads are consistent: a call that detects a change of something that
/// the transaction has read fails with `NS_CONFLICT`. The transaction then cannot commit: end it
/// and begin another one, or use `ns_transact`. While it is open, memory freed in the region is not
/// reused: keep it short. It belongs to its session and is used by the same thread.
#[derive(Debug)]
pub struct ns_txn {
    /// Views returned to the caller, which are valid until the end.
    #[expect(clippy::vec_box, reason = "views must not move when the list grows")]
    views: RefCell<Vec<Box<View<'static>>>>,
    /// Keys returned to the caller.
    keys: RefCell<Vec<Vec<u8>>>,
    /// The number of iterations in progress.
    iterations: Cell<usize>,
    handle: TxnHandle,
    session: *const ns_session,
}

/// The owner of the transaction.
#[derive(Debug)]
enum TxnHandle {
    /// This structure: the caller ends it.
    Owned(Txn<'static>),
    /// A call of `ns_transact`, which ends it.
    Borrowed(NonNull<Txn<'static>>),
}

impl ns_txn {
    pub(crate) fn store(&self) -> &Txn<'static> {
        match &self.handle {
            TxnHandle::Owned(txn) => txn,
            // SAFETY: `ns_transact` created it from a reference that outlives this structure.
            TxnHandle::Borrowed(txn) => unsafe { txn.as_ref() },
        }
    }

    pub(crate) const fn session(&self) -> &ns_session {
        // SAFETY: the session stays open while it counts this transaction.
        unsafe { &*self.session }
    }

    /// Keeps a view until the transaction ends, and lends it to the caller.
    pub(crate) fn keep(&self, view: View<'_>) -> Result<ns_view> {
        // SAFETY: only the lifetime changes. A view points to its own buffers and into the region,
        // which the transaction's pin keeps as it is, and it is dropped before the transaction is.
        let view = unsafe { std::mem::transmute::<View<'_>, View<'static>>(view) };
        let mut views = self.views.borrow_mut();
        views.push(Box::new(view));
        let view = views.last().ok_or_else(|| null("the view"))?;
        Ok(ns_view::shown(view))
    }

    /// Keeps a key for the caller until the transaction ends.
    pub(crate) fn keep_key(&self, key: Vec<u8>) -> ns_bytes {
        // The bytes do not move when the list grows.
        let records = ns_bytes::of(&key);
        self.keys.borrow_mut().push(key);
        records
    }

    /// Keeps the transaction open during an iteration with callbacks.
    pub(crate) fn while_open<T>(&self, walk: impl FnOnce() -> T) -> T {
        self.iterations.set(self.iterations.get() + 1);
        // Callbacks do not unwind. After a panic of this library the transaction stays open.
        let result = self.session().while_open(walk);
        self.iterations.set(self.iterations.get() - 1);
        result
    }

    fn new(handle: TxnHandle, session: *const ns_session) -> Self {
        let (views, keys, iterations) = (RefCell::default(), RefCell::default(), Cell::new(0));
        Self { views, keys, iterations, handle, session }
    }

    /// Takes the transaction out of a handle that the caller may end. The session no longer counts
    /// it. `None` in a forked child that must leak it.
    ///
    /// # Safety
    /// Rule 1.
    unsafe fn end<'s>(txn: *mut Self) -> Result<(Option<Txn<'static>>, SessionCall<'s>)> {
        // SAFETY: rule 1.
        let open = unsafe { borrow(txn, "the transaction") }?;
        if matches!(open.handle, TxnHandle::Borrowed(_)) {
            return Err(Error::BadArgument {
                detail: "ns_transact ends this transaction: return NS_OK from the function to \
                         commit it, anything else to abort it"
                    .to_owned(),
            });
        }
        // SAFETY: the session stays open, because it counts this transaction.
        let call = unsafe { enter_to_release(open.session) }?;
        let is_iterated = open.iterations.get() != 0;
        if call.must_leak(is_iterated) {
            call.session().release();
            return Ok((None, call));
        }
        if is_iterated {
            return Err(Error::BadArgument {
                detail: "an iteration of the transaction is in progress: end it first".to_owned(),
            });
        }
        // SAFETY: `ns_txn_begin` created it from a box, and the caller no longer uses it.
        let Self { views, handle, .. } = *unsafe { Box::from_raw(txn) };
        drop(views);
        call.session().release();
        match handle {
            TxnHandle::Owned(txn) => Ok((Some(txn), call)),
            TxnHandle::Borrowed(_) => Err(null("the transaction")),
        }
    }
}

/// Begins a transaction. A session can have several open transactions. End it with `ns_txn_commit`
/// or `ns_txn_abort`; a session with an open transaction cannot be closed.
///
/// Fails with `NS_FORKED`, `NS_DAMAGED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_begin(
    session: *mut ns_session,
    txn: *mut *mut ns_txn,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 3.
        let out = unsafe { Out::new(txn, "the transaction") }?;
        // SAFETY: the session is boxed and stays there while it counts this transaction.
        let store: &'static Session = unsafe { &*ptr::from_ref(session.store()) };
        let handle = TxnHandle::Owned(store.begin()?);
        session.hold();
        out.put(Box::into_raw(Box::new(ns_txn::new(handle, session))));
        Ok(ns_status::NS_OK)
    })
}

/// Commits a transaction. After `NS_OK`, all of its changes are visible to every process and
/// survive the death of this one. After another status none is, with the exceptions of rule 6.
///
/// The handle, and everything read through it, becomes invalid, whatever is returned, with two
/// exceptions: after `NS_SESSION_BUSY`, and after `NS_BAD_ARGUMENT` in the function of
/// `ns_transact` and in callbacks of the transaction, it stays open and is ended later.
///
/// Fails with `NS_CONFLICT` if something that the transaction had read was changed, `NS_TAG_TAKEN`,
/// `NS_LIMIT_REACHED`, `NS_FULL`, `NS_BEHIND`, `NS_NOT_OWNER`, `NS_FENCED`,
/// `NS_TRANSACTION_TOO_LARGE`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`, `NS_SYSTEM`,
/// `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT` (also for a record without a required tag). With
/// `NS_NOT_REPLICATED`, `NS_LOST` and `NS_OUTCOME_UNKNOWN` the commit was made (rule 6).
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_commit(txn: *mut ns_txn) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let (txn, call) = unsafe { ns_txn::end(txn) }?;
        // Also if it has only read.
        call.session().check_not_forked()?;
        txn.ok_or(Error::Forked)?.commit()?;
        Ok(ns_status::NS_OK)
    })
}

/// Aborts a transaction: none of its changes happens. NULL is ignored. Fails with `NS_BAD_ARGUMENT`
/// in the function of `ns_transact` and in callbacks of the transaction, and with
/// `NS_SESSION_BUSY`; the transaction stays open then.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_abort(txn: *mut ns_txn) -> ns_status {
    guard(|| {
        if !txn.is_null() {
            // SAFETY: rule 1.
            let (txn, _call) = unsafe { ns_txn::end(txn) }?;
            if let Some(txn) = txn {
                txn.abort();
            }
        }
        Ok(ns_status::NS_OK)
    })
}

/// The function of a transaction. Returns an `ns_status`: `NS_OK` to commit, `NS_CONFLICT` (as
/// returned by a call that it made) to be run again, anything else to abort. After a call in it has
/// returned `NS_CONFLICT`, it is run again whatever it returns but `NS_OK`.
pub type ns_txn_fn = Option<unsafe extern "C" fn(context: *mut c_void, txn: *mut ns_txn) -> i32>;

/// Runs `body` in a transaction and commits it. After a conflict it runs `body` again in a new
/// transaction, at most 1,000 times, with increasing pauses. Each conflict means that another
/// transaction committed. `body` must therefore have no side effects except through the
/// transaction. Addresses and records from an earlier run are invalid.
///
/// A commit that finds no room also makes it run again, if moving live records can make some.
///
/// Returns the status of `body` if that is neither `NS_OK` nor `NS_CONFLICT`; nothing was changed
/// then. Fails with `NS_DEADLINE` after the last run, as `ns_txn_begin` and `ns_txn_commit` (also
/// with the statuses after which the commit was made, rule 6), and with `NS_BAD_ARGUMENT` if the
/// result of `body` is not an `ns_status`.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_transact(
    session: *mut ns_session,
    body: ns_txn_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        let body = body.ok_or_else(|| null("the function"))?;
        let mut aborted = None;
        let done = session.while_open(|| {
            session.store().transact(|txn| {
                // Of this run alone: an earlier one may have ended otherwise, after a conflict.
                aborted = None;
                let handle = TxnHandle::Borrowed(NonNull::from(txn).cast());
                let mut lent = ns_txn::new(handle, session);
                // SAFETY: rule 4: it takes these arguments and returns.
                let answer = unsafe { body(context, &raw mut lent) };
                match ns_status::of_number(answer) {
                    Some(ns_status::NS_OK) => Ok(()),
                    Some(ns_status::NS_CONFLICT) => Err(conflict()),
                    Some(other) => {
                        aborted = Some(other);
                        Err(invalid_status(answer))
                    }
                    None => Err(invalid_status(answer)),
                }
            })
        });
        // The status of `body`. The call in it that failed has set the message.
        match (done, aborted) {
            (Ok(()), _) => Ok(ns_status::NS_OK),
            (Err(Error::BadArgument { .. }), Some(status)) => Ok(status),
            // The store has ended it: the last run did not begin, or met a conflict.
            (Err(error), _) => Err(error),
        }
    })
}

fn conflict() -> Error {
    Error::Conflict { detail: "what the transaction read".to_owned() }
}

#[cold]
fn invalid_status(answer: i32) -> Error {
    Error::BadArgument {
        detail: format!(
            "the function of ns_transact returned {answer}: expected an ns_status, NS_OK to commit"
        ),
    }
}
