//! Sessions, through which threads access a region, and its namespaces.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use nearstate_model::{Error, Result};
use nearstate_store::{
    Kind, Namespace, ReplicationPolicy, Schema, Session, ThreadCall, ThreadGuard,
    barrier_everywhere,
};

use crate::bytes::ns_bytes;
use crate::ffi::{Out, borrow, guard};
use crate::region::ns_region;
use crate::status::ns_status;

/// Each record has one value.
pub const NS_KIND_VALUE: u32 = 1;
/// Each record has named blocks.
pub const NS_KIND_BLOCKS: u32 = 2;
/// Each record is a counter (`ns_counter_add`).
pub const NS_KIND_COUNTERS: u32 = 3;

/// A session gives a thread access to a region. It is used by one thread at a time: a call while
/// another thread is inside a call of the same session, or from a signal handler that interrupted
/// one, fails with `NS_SESSION_BUSY` and changes nothing. Between two calls a session may move to
/// another thread, which costs some microseconds.
#[derive(Debug)]
pub struct ns_session {
    session: Session,
    /// Admits the calls of one thread at a time.
    threads: ThreadGuard,
    /// There is no heavy barrier.
    has_fenced_pins: bool,
    /// Iterations in progress, whose callbacks may call this library.
    walks: Cell<u64>,
    /// Distinguishes the namespaces of this session from those of others.
    serial: u32,
    namespaces: RefCell<OpenNamespaces>,
    /// The number of views, records for update, iterations, transactions and streams in use.
    held: Cell<usize>,
}

/// The handle of a namespace, valid only in the session that opened it. Passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ns_namespace {
    /// The number of the session and the number of the namespace in it. Never 0.
    pub id: u64,
}

/// The namespaces that a session has opened. A session may open all of a region, so no call looks
/// at each of them.
#[derive(Debug, Default)]
struct OpenNamespaces {
    all: Vec<Namespace>,
    /// The places in `all`, by the numbers in the region.
    places: BTreeMap<u32, usize>,
}

impl OpenNamespaces {
    /// The place of a namespace, which gets one if it has none.
    fn place_of(&mut self, namespace: Namespace) -> usize {
        let Self { all, places } = self;
        *places.entry(namespace.number()).or_insert_with(|| {
            all.push(namespace);
            all.len() - 1
        })
    }
}

/// The number of the next session in this process, from 1.
static SERIAL: AtomicU32 = AtomicU32::new(1);

impl ns_session {
    #[inline]
    pub(crate) const fn store(&self) -> &Session {
        &self.session
    }

    /// True if each call executes a fence, because the region was created without `membarrier(2)`.
    #[inline]
    pub(crate) const fn has_fenced_pins(&self) -> bool {
        self.has_fenced_pins
    }

    /// A number that no other session of this process has.
    #[inline]
    pub(crate) const fn serial(&self) -> u32 {
        self.serial
    }

    /// The namespace of a handle.
    #[inline]
    pub(crate) fn namespace(&self, handle: ns_namespace) -> Result<Namespace> {
        let (serial, number) = (handle.id >> 32, handle.id & u64::from(u32::MAX));
        let namespaces = self.namespaces.borrow();
        let namespace = usize::try_from(number).ok().and_then(|number| namespaces.all.get(number));
        match namespace {
            Some(namespace) if serial == u64::from(self.serial) => Ok(*namespace),
            _ => Err(foreign_namespace()),
        }
    }

    /// The handle of the namespace with this number in the region; all 0 if the session has not
    /// opened it.
    pub(crate) fn handle_of(&self, number: u32) -> ns_namespace {
        let namespaces = self.namespaces.borrow();
        let known = namespaces.places.get(&number);
        ns_namespace { id: known.map_or(0, |known| u64::from(self.serial) << 32 | *known as u64) }
    }

    /// Opens a namespace, with this policy or with that of the region's rules.
    pub(crate) fn open_namespace(
        &self,
        name: &str,
        kind: Kind,
        policy: Option<ReplicationPolicy>,
    ) -> Result<ns_namespace> {
        let schema = Schema { kind, ..Schema::default() };
        let opened = match policy {
            None => self.session.namespace(name, &schema)?,
            Some(policy) => self.session.namespace_with_policy(name, &schema, policy)?,
        };
        let number = self.namespaces.borrow_mut().place_of(opened);
        Ok(ns_namespace { id: u64::from(self.serial) << 32 | number as u64 })
    }

    /// Keeps the session open for one more view, iteration, transaction or stream.
    #[inline]
    pub(crate) fn hold(&self) {
        self.held.set(self.held.get() + 1);
    }

    /// Ends one `hold`.
    #[inline]
    pub(crate) fn release(&self) {
        self.held.set(self.held.get().saturating_sub(1));
    }

    /// Begins a call of this thread that uses the region.
    ///
    /// # Errors
    /// `Forked`; as [`ns_session::enter_to_release`].
    #[inline]
    pub(crate) fn enter(&self) -> Result<SessionCall<'_>> {
        // First: in a forked child the guard may wait for a thread that does not exist there.
        self.check_not_forked()?;
        self.enter_guarded()
    }

    /// Fails in a child that was forked after the region was attached.
    #[inline]
    pub(crate) fn check_not_forked(&self) -> Result<()> {
        if self.session.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Begins a call of this thread that only releases what it holds, also in a forked child. There
    /// it is not refused: it may have to leak what it releases ([`SessionCall::must_leak`]).
    ///
    /// # Errors
    /// `SessionBusy` if another thread is inside a call, or if a call of this thread is in progress
    /// and no callback runs: a signal handler interrupted it, or left it by `siglongjmp`.
    #[inline]
    pub(crate) fn enter_to_release(&self) -> Result<SessionCall<'_>> {
        if self.session.is_forked() {
            return Ok(SessionCall { session: self, call: None });
        }
        self.enter_guarded()
    }

    #[inline]
    fn enter_guarded(&self) -> Result<SessionCall<'_>> {
        let call = self.threads.enter(this_thread(), barrier_everywhere)?;
        if call.depth() > self.walks.get() + 1 {
            return Err(Error::SessionBusy);
        }
        Ok(SessionCall { session: self, call: Some(call) })
    }

    /// Keeps the session open during an iteration with callbacks, which may call this library.
    pub(crate) fn while_open<T>(&self, walk: impl FnOnce() -> T) -> T {
        struct HoldGuard<'s>(&'s ns_session);
        impl Drop for HoldGuard<'_> {
            fn drop(&mut self) {
                self.0.walks.set(self.0.walks.get() - 1);
                self.0.release();
            }
        }
        self.walks.set(self.walks.get() + 1);
        self.hold();
        let _guard = HoldGuard(self);
        walk()
    }
}

/// A number that no other running thread of this process has.
#[inline]
pub(crate) fn this_thread() -> u64 {
    // SAFETY: the function has no preconditions.
    (unsafe { libc::pthread_self() }) as u64
}

/// A call that uses a session.
#[derive(Debug)]
pub(crate) struct SessionCall<'s> {
    session: &'s ns_session,
    /// `None` in a forked child.
    call: Option<ThreadCall<'s>>,
}

impl<'s> SessionCall<'s> {
    /// The session.
    #[inline]
    pub(crate) const fn session(&self) -> &'s ns_session {
        self.session
    }

    /// True in a forked child if what is released here must stay in memory: another thread of the
    /// parent was inside a call of the session at the fork and may have left it half changed, or
    /// the handle `is_iterated`, perhaps by a caller of this call.
    pub(crate) fn must_leak(&self, is_iterated: bool) -> bool {
        let is_forked = self.call.is_none();
        is_forked && (is_iterated || self.session.threads.was_left_by_other(this_thread()))
    }
}

/// Begins a call that uses a session.
///
/// # Safety
/// Rule 1.
#[inline]
pub(crate) unsafe fn enter<'s>(session: *const ns_session) -> Result<SessionCall<'s>> {
    // SAFETY: rule 1.
    unsafe { borrow(session, "the session") }?.enter()
}

/// As [`enter`], for a call that only releases what it holds.
///
/// # Safety
/// Rule 1.
#[inline]
pub(crate) unsafe fn enter_to_release<'s>(session: *const ns_session) -> Result<SessionCall<'s>> {
    // SAFETY: rule 1.
    unsafe { borrow(session, "the session") }?.enter_to_release()
}

#[cold]
fn foreign_namespace() -> Error {
    Error::BadArgument {
        detail: "the namespace belongs to another session: open it with ns_namespace_open in the \
             session that uses it"
            .to_owned(),
    }
}

/// The kind with a number of the interface.
pub(crate) fn kind_of(kind: u32) -> Result<Kind> {
    match kind {
        NS_KIND_VALUE => Ok(Kind::Value),
        NS_KIND_BLOCKS => Ok(Kind::Blocks),
        NS_KIND_COUNTERS => Ok(Kind::Counters),
        _ => {
            let detail = format!("unknown kind {kind}: expected one of NS_KIND_..");
            Err(Error::BadArgument { detail })
        }
    }
}

/// Opens a session. This takes some microseconds: open one per thread and keep it. Sessions of dead
/// processes are recovered.
///
/// Fails with `NS_FULL` if 16,384 sessions of all processes are open, `NS_FORKED`, `NS_DAMAGED`,
/// `NS_SYSTEM`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_session_open(
    region: *const ns_region,
    session: *mut *mut ns_session,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let region = unsafe { borrow(region, "the region") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(session, "the session") }?;
        let opened = ns_session {
            session: region.store().session()?,
            threads: ThreadGuard::new(this_thread(), region.store().is_fenced()),
            has_fenced_pins: region.store().is_fenced(),
            walks: Cell::new(0),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            namespaces: RefCell::default(),
            held: Cell::new(0),
        };
        out.put(Box::into_raw(Box::new(opened)));
        Ok(ns_status::NS_OK)
    })
}

/// Fails with `NS_DAMAGED` if the file of the region was truncated and something of the lost part
/// was read or written: bytes that were read through views until now may be zeros instead of what
/// was stored. Call it between reading a view and using what was read. The calls that copy bytes,
/// iterate or commit do that themselves. Cost: one load.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_session_check(session: *mut ns_session) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        call.session().store().check_not_truncated()?;
        Ok(ns_status::NS_OK)
    })
}

/// Closes a session. NULL is ignored. The session stays open, and the call fails with
/// `NS_BAD_ARGUMENT`, while a view or a record for update is held, while a transaction or a stream
/// is open, and within callbacks of the session. Its watches stay open; its block layouts are
/// closed separately.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_session_close(session: *mut ns_session) -> ns_status {
    guard(|| {
        if session.is_null() {
            return Ok(ns_status::NS_OK);
        }
        // SAFETY: rule 1.
        let call = unsafe { enter_to_release(session) }?;
        if call.must_leak(call.session().walks.get() != 0) {
            return Ok(ns_status::NS_OK);
        }
        let held = call.session().held.get();
        if held != 0 {
            return Err(Error::BadArgument {
                detail: format!(
                    "{held} views, records for update, iterations, transactions or streams of \
                     the session are in use: end them first"
                ),
            });
        }
        // The call ends with the session.
        std::mem::forget(call);
        // SAFETY: rule 1: `ns_session_open` created it from a box, and the caller no longer uses
        // it.
        drop(unsafe { Box::from_raw(session) });
        Ok(ns_status::NS_OK)
    })
}

/// Opens a namespace, and creates it if it does not exist. The name is 1 to 255 bytes of UTF-8
/// without a NUL. `kind` is `NS_KIND_VALUE`, `NS_KIND_BLOCKS` or `NS_KIND_COUNTERS`. Call it once
/// and keep the handle.
///
/// A region has at most 65,536 namespaces. When a creation finds no room, it removes empty ones
/// that have no tags and no commit stream. A call with the handle of a removed namespace fails with
/// `NS_BAD_ARGUMENT`: open it again.
///
/// Fails with `NS_WRONG_KIND` if the namespace has another kind, `NS_BAD_NAME`, `NS_FULL`,
/// `NS_DAMAGED`, `NS_SYSTEM`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_namespace_open(
    session: *mut ns_session,
    name: ns_bytes,
    kind: u32,
    out: *mut ns_namespace,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let name = unsafe { name.name() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(out, "the namespace") }?;
        out.put(session.open_namespace(name, kind_of(kind)?, None)?);
        Ok(ns_status::NS_OK)
    })
}
