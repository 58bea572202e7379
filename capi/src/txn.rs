//! Transactions: begun, committed, given up, and run again when others were faster.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use nearstate_model::{Error, Result};
use nearstate_store::{Session, Txn, View};

use crate::border::{Out, borrow, guard};
use crate::bytes::{ns_bytes, null};
use crate::session::ns_session;
use crate::status::ns_status;
use crate::view::ns_view;

/// An open transaction: changes of records and objects that happen all at one instant, for every
/// process and every reader, or not at all. What it has read stands still for it; a call that finds
/// something changed answers `NS_CONFLICT`, and the transaction is over then: end it and begin
/// again, or let `ns_transact` do that. Memory that is retired in the region is not used again
/// while it is open, so keep it short. It is its session's, and used by the same thread.
#[derive(Debug)]
pub struct ns_txn {
    /// Views that were lent to the caller, who may point into them until the end.
    #[expect(clippy::vec_box, reason = "a view stays where it is when the list grows")]
    kept: RefCell<Vec<Box<View<'static>>>>,
    /// Keys that were given to the caller.
    keys: RefCell<Vec<Vec<u8>>>,
    /// Walks that go on.
    walks: Cell<usize>,
    place: Place,
    session: *const ns_session,
}

/// Where the transaction itself is.
#[derive(Debug)]
enum Place {
    /// Here: the caller ends it.
    Owned(Txn<'static>),
    /// In a call of `ns_transact`, which ends it.
    Lent(NonNull<Txn<'static>>),
}

impl ns_txn {
    pub(crate) fn store(&self) -> &Txn<'static> {
        match &self.place {
            Place::Owned(txn) => txn,
            // SAFETY: `ns_transact` made it of a reference that outlives this structure.
            Place::Lent(txn) => unsafe { txn.as_ref() },
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
        let mut kept = self.kept.borrow_mut();
        kept.push(Box::new(view));
        let view = kept.last().ok_or_else(|| null("the view"))?;
        Ok(ns_view::shown(view))
    }

    /// Keeps a key for the caller until the transaction ends.
    pub(crate) fn keep_key(&self, key: Vec<u8>) -> ns_bytes {
        // Its bytes stay where they are when the list grows.
        let kept = ns_bytes::of(&key);
        self.keys.borrow_mut().push(key);
        kept
    }

    /// Keeps the transaction open for the time of a walk with callbacks.
    pub(crate) fn while_open<T>(&self, walk: impl FnOnce() -> T) -> T {
        self.walks.set(self.walks.get() + 1);
        // Callbacks do not unwind, and a panic of ours leaves it open for good.
        let told = walk();
        self.walks.set(self.walks.get() - 1);
        told
    }

    fn new(place: Place, session: *const ns_session) -> Self {
        let (kept, keys, walks) = (RefCell::default(), RefCell::default(), Cell::new(0));
        Self { kept, keys, walks, place, session }
    }

    /// The transaction of a handle that its caller may end. The session does not count it any more.
    ///
    /// # Safety
    /// Rule 1.
    unsafe fn end(txn: *mut Self) -> Result<Txn<'static>> {
        // SAFETY: rule 1.
        let open = unsafe { borrow(txn, "the transaction") }?;
        if matches!(open.place, Place::Lent(_)) {
            return Err(Error::BadArgument {
                detail: "ns_transact ends this transaction: answer NS_OK from the function to \
                         commit it, anything else to give it up"
                    .to_owned(),
            });
        }
        if open.walks.get() != 0 {
            return Err(Error::BadArgument {
                detail: "a walk of the transaction goes on: let it end first".to_owned(),
            });
        }
        // SAFETY: `ns_txn_begin` made it of a box, and nobody uses it after this call.
        let Self { kept, place, session, .. } = *unsafe { Box::from_raw(txn) };
        drop(kept);
        // SAFETY: the session stayed open, because it counted this transaction until now.
        unsafe { borrow(session, "the session") }?.release();
        match place {
            Place::Owned(txn) => Ok(txn),
            Place::Lent(_) => Err(null("the transaction")),
        }
    }
}

/// Begins a transaction. Several may be open in one session. It ends with `ns_txn_commit` or
/// `ns_txn_abort`; a session that has an open one does not close.
///
/// Fails with `NS_FORKED`, `NS_DAMAGED`, `NS_BAD_ARGUMENT`.
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
        let session = unsafe { borrow(session, "the session") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(txn, "the transaction") }?;
        // SAFETY: the session is in a box, and stays there while it counts this transaction.
        let store: &'static Session = unsafe { &*ptr::from_ref(session.store()) };
        let place = Place::Owned(store.begin()?);
        session.hold();
        out.put(Box::into_raw(Box::new(ns_txn::new(place, session))));
        Ok(ns_status::NS_OK)
    })
}

/// Commits a transaction: with `NS_OK` all of it is there, for every process, and survives this
/// one; with any other answer nothing was changed. One that only read has nothing to do. In each
/// case the transaction is over, and neither it nor what it gave out must be used any more.
///
/// Fails with `NS_CONFLICT` if something that it had read was changed meanwhile, `NS_TAG_TAKEN`,
/// `NS_FULL`, `NS_BEHIND`, `NS_STALLED`, `NS_DAMAGED`, `NS_FORKED`; with `NS_BAD_ARGUMENT`, and
/// without an end, for NULL, in the function of `ns_transact` and in callbacks of its walks.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_commit(txn: *mut ns_txn) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        unsafe { ns_txn::end(txn) }?.commit()?;
        Ok(ns_status::NS_OK)
    })
}

/// Gives a transaction up: nothing of it happens. NULL is left alone. `NS_BAD_ARGUMENT` in the
/// function of `ns_transact`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_txn_abort(txn: *mut ns_txn) -> ns_status {
    guard(|| {
        if !txn.is_null() {
            // SAFETY: rule 1.
            unsafe { ns_txn::end(txn) }?.abort();
        }
        Ok(ns_status::NS_OK)
    })
}

/// What is done in a transaction. Answers an `ns_status`: `NS_OK` to commit, `NS_CONFLICT` (as a
/// call that it made has answered) to be run again, anything else to give up.
pub type ns_txn_fn = Option<unsafe extern "C" fn(context: *mut c_void, txn: *mut ns_txn) -> i32>;

/// Runs `body` in a transaction and commits it. If others have changed what it had read it is run
/// again in a new one, with growing pauses, at most 1,000 times: each conflict means that another
/// one went through. So it does nothing that must not happen twice, but through the transaction.
/// What it has allocated, opened or got is over with each run.
///
/// Answers what `body` does, if that is neither `NS_OK` nor `NS_CONFLICT`; nothing was changed
/// then. Fails with `NS_DEADLINE` after the last run, as `ns_txn_begin` and `ns_txn_commit`, and
/// with `NS_BAD_ARGUMENT` if `body` answers what is no `ns_status`.
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
        let session = unsafe { borrow(session, "the session") }?;
        let body = body.ok_or_else(|| null("the function"))?;
        let mut given_up = None;
        let done = session.while_open(|| {
            session.store().transact(|txn| {
                let place = Place::Lent(NonNull::from(txn).cast());
                let mut lent = ns_txn::new(place, session);
                // SAFETY: rule 4: it takes these arguments and returns.
                let answer = unsafe { body(context, &raw mut lent) };
                match ns_status::of_number(answer) {
                    Some(ns_status::NS_OK) => Ok(()),
                    Some(ns_status::NS_CONFLICT) => Err(conflict()),
                    Some(other) => {
                        given_up = Some(other);
                        Err(no_status(answer))
                    }
                    None => Err(no_status(answer)),
                }
            })
        });
        // What the function answered; the call in it that failed has left its sentence.
        given_up.map_or_else(|| done.map(|()| ns_status::NS_OK), Ok)
    })
}

fn conflict() -> Error {
    Error::Conflict { detail: "what the transaction had read".to_owned() }
}

#[cold]
fn no_status(answer: i32) -> Error {
    Error::BadArgument {
        detail: format!(
            "the function of ns_transact answered {answer}: answer an ns_status, NS_OK to commit"
        ),
    }
}
