//! Watches: notifications of changes, in an event loop or by blocking.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_sdl::WatchFd;
use nearstate_store::{
    Event, EventKind, Filter, Notice, ThreadCall, ThreadGuard, Waiter, Watch, barrier_everywhere,
};

use crate::bytes::{ns_bytes, null};
use crate::ffi::{Out, borrow, guard};
use crate::metadata::ns_tag;
use crate::session::{enter, ns_namespace, ns_session, this_thread};
use crate::status::ns_status;
use crate::view::{call_each, ns_block_fn};
use crate::walk::ns_key_fn;

/// Events of all records of the namespace.
pub const NS_FILTER_ALL: u32 = 0;
/// Events of the record with this key.
pub const NS_FILTER_KEY: u32 = 1;
/// Events of records whose keys start with this prefix.
pub const NS_FILTER_PREFIX: u32 = 2;
/// Events of records that have this value of a tag, before or after the change.
pub const NS_FILTER_TAG: u32 = 3;

/// The record was created.
pub const NS_EVENT_CREATED: u32 = 1;
/// The record was changed.
pub const NS_EVENT_UPDATED: u32 = 2;
/// The record was deleted.
pub const NS_EVENT_DELETED: u32 = 3;
/// The record expired.
pub const NS_EVENT_EXPIRED: u32 = 4;
/// The watcher was too slow and events were lost: read the watched records again.
pub const NS_EVENT_LOST: u32 = 5;

/// Selects the events of a watch. All bytes 0: events of all records.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_watch_filter {
    /// One of `NS_FILTER_..`.
    pub kind: u32,
    /// The key or the prefix.
    pub key: ns_bytes,
    /// The tag and its value.
    pub tag: ns_tag,
}

impl ns_watch_filter {
    /// # Safety
    /// Rule 2.
    unsafe fn read(self) -> Result<Filter> {
        Ok(match self.kind {
            NS_FILTER_ALL => Filter::Namespace,
            // SAFETY: rule 2.
            NS_FILTER_KEY => Filter::Key(unsafe { self.key.key() }?.to_vec()),
            // SAFETY: rule 2.
            NS_FILTER_PREFIX => Filter::Prefix(unsafe { self.key.pattern() }?.to_vec()),
            NS_FILTER_TAG => {
                // SAFETY: rule 2.
                let (name, value) = unsafe { self.tag.read() }?;
                Filter::Tag { name: name.to_owned(), value: value.to_vec() }
            }
            kind => {
                let detail = format!("unknown kind of filter {kind}: expected one of NS_FILTER_..");
                return Err(Error::BadArgument { detail });
            }
        })
    }
}

/// A watch on some records. It is independent of the session that opened it, which may be closed.
/// It is used by one thread at a time: a call while another thread is inside a call of the same
/// watch, or from a signal handler that interrupted one, fails with `NS_SESSION_BUSY` and changes
/// nothing. Between two calls it may move to another thread, which costs some microseconds.
#[derive(Debug)]
pub struct ns_watch {
    source: RefCell<WatchSource>,
    /// Admits the calls of one thread at a time.
    threads: ThreadGuard,
    /// Tells whether this process is a fork of the one that attached.
    waiter: Waiter,
    /// The current event. It points into the source, which keeps it until the next call.
    event: Cell<Option<Event<'static>>>,
    /// The number of iterations over the event that are in progress.
    iterations: Cell<u64>,
}

#[derive(Debug)]
enum WatchSource {
    Plain(Watch),
    /// After a descriptor was requested.
    WithFd(WatchFd),
}

impl ns_watch {
    /// Begins a call of this thread.
    ///
    /// # Errors
    /// `Forked`; as [`ns_watch::enter_to_close`].
    fn enter(&self) -> Result<ThreadCall<'_>> {
        // First: in a forked child the guard may wait for a thread that does not exist there.
        if self.waiter.is_forked() {
            return Err(Error::Forked);
        }
        self.enter_to_close()
    }

    /// Begins a call in a process that is not a forked child.
    ///
    /// # Errors
    /// `SessionBusy` if another thread is inside a call, or if a call of this thread is in progress
    /// and no callback runs.
    fn enter_to_close(&self) -> Result<ThreadCall<'_>> {
        let call = self.threads.enter(this_thread(), barrier_everywhere)?;
        if call.depth() > self.iterations.get() + 1 {
            return Err(Error::SessionBusy);
        }
        Ok(call)
    }

    /// Fails within a callback of an iteration over this watch.
    fn check_idle(&self) -> Result<()> {
        if self.iterations.get() == 0 {
            return Ok(());
        }
        Err(Error::BadArgument {
            detail: "an iteration over the event is in progress: end it first".to_owned(),
        })
    }

    /// Iterates over the current event. Without an event, there is nothing to report.
    fn walk(&self, walk: impl FnOnce(&Event<'_>) -> Result<ns_status>) -> Result<ns_status> {
        let Some(event) = self.event.get() else {
            return Err(null("the watch has no current event (call ns_watch_next)"));
        };
        self.iterations.set(self.iterations.get() + 1);
        // Callbacks do not unwind, so the next line is always reached.
        let status = walk(&event);
        self.iterations.set(self.iterations.get() - 1);
        status
    }
}

/// A change of a record, or a gap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_watch_event {
    /// One of `NS_EVENT_..`.
    pub kind: u32,
    /// The block names and tags did not fit into the event: read the record.
    pub is_truncated: bool,
    /// The record's key, valid until the next call with the watch.
    pub key: ns_bytes,
    /// The version after the change. For a deleted or expired record, its last version.
    pub version: u64,
    /// For `NS_EVENT_LOST`: the number of lost events, including those that the filter would have
    /// dropped.
    pub lost: u64,
}

/// Watches records of a namespace. Every change that begins after the call has returned is
/// reported, in the order of the changes. To follow records from a known state, open the watch
/// first and read the records afterwards. The first watch of a namespace permanently takes memory
/// (4 KiB to 1 MiB: a thirty-second of the heap divided by the number of the namespace), and its
/// writers publish events from then on.
///
/// Fails with `NS_WRONG_KIND` for counters, `NS_KEY_TOO_LARGE`, `NS_FULL`, `NS_STALLED`,
/// `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 to 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_open(
    session: *mut ns_session,
    namespace: ns_namespace,
    filter: ns_watch_filter,
    watch: *mut *mut ns_watch,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let call = unsafe { enter(session) }?;
        let session = call.session();
        // SAFETY: rule 2.
        let filter = unsafe { filter.read() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(watch, "the watch") }?;
        let opened = session.store().watch(session.namespace(namespace)?, filter)?;
        out.put(Box::into_raw(Box::new(ns_watch {
            waiter: opened.waiter(),
            source: RefCell::new(WatchSource::Plain(opened)),
            threads: ThreadGuard::new(this_thread(), session.has_fenced_pins()),
            event: Cell::new(None),
            iterations: Cell::new(0),
        })));
        Ok(ns_status::NS_OK)
    })
}

/// Gets the next event, or `NS_NOT_FOUND` if there is none at present. Never waits.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT` (also within a
/// callback of this watch).
/// After `NS_DAMAGED`, open a new watch and read the watched records again.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_next(
    watch: *mut ns_watch,
    event: *mut ns_watch_event,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let watch = unsafe { borrow(watch, "the watch") }?;
        let _call = watch.enter()?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(event, "the event") }?;
        watch.check_idle()?;
        watch.event.set(None);
        let mut source = watch.source.borrow_mut();
        let notice = match &mut *source {
            WatchSource::Plain(plain) => plain.next()?,
            WatchSource::WithFd(watch_fd) => watch_fd.next().map_err(|error| error.cause)?,
        };
        let (kind, lost) = match notice {
            None => return Ok(ns_status::NS_NOT_FOUND),
            Some(Notice::Lost { events }) => (NS_EVENT_LOST, events),
            Some(Notice::Event(current)) => {
                // SAFETY: only the lifetime changes. The bytes stay in the source's buffer until
                // the next call, which clears `event` first.
                let current = unsafe { std::mem::transmute::<Event<'_>, Event<'static>>(current) };
                watch.event.set(Some(current));
                let kind = match current.kind {
                    EventKind::Created => NS_EVENT_CREATED,
                    EventKind::Updated => NS_EVENT_UPDATED,
                    EventKind::Deleted => NS_EVENT_DELETED,
                    EventKind::Expired => NS_EVENT_EXPIRED,
                };
                (kind, 0)
            }
        };
        let current = watch.event.get();
        out.put(ns_watch_event {
            kind,
            is_truncated: current.is_some_and(|current| current.is_truncated),
            key: current.map_or(ns_bytes::EMPTY, |current| ns_bytes::of(current.key)),
            version: current.map_or(0, |current| current.version),
            lost,
        });
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with the name of every block that the current event changed. In a namespace of
/// values there are none.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_blocks(
    watch: *const ns_watch,
    each: ns_key_fn,
    context: *mut c_void,
) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let watch = unsafe { borrow(watch, "the watch") }?;
        let _call = watch.enter()?;
        let each = each.ok_or_else(|| null("the callback"))?;
        watch.walk(|event| {
            for name in event.blocks() {
                // SAFETY: rule 4: it takes these arguments and returns.
                if !unsafe { each(context, ns_bytes::of(name.as_bytes())) } {
                    break;
                }
            }
            Ok(ns_status::NS_OK)
        })
    })
}

/// # Safety
/// Rules 1 and 4.
unsafe fn tags(
    watch: *const ns_watch,
    is_after: bool,
    each: ns_block_fn,
    context: *mut c_void,
) -> Result<ns_status> {
    // SAFETY: rule 1.
    let watch = unsafe { borrow(watch, "the watch") }?;
    let _call = watch.enter()?;
    watch.walk(|event| {
        if is_after {
            // SAFETY: rule 4.
            unsafe { call_each(event.tags_after(), each, context) }
        } else {
            // SAFETY: rule 4.
            unsafe { call_each(event.tags_before(), each, context) }
        }
    })
}

/// Calls `each` with the name and value of every tag that the record had before the current event.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_tags_before(
    watch: *const ns_watch,
    each: ns_block_fn,
    context: *mut c_void,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { tags(watch, false, each, context) })
}

/// Calls `each` with the name and value of every tag that the record has after the current event. A
/// deleted record has none.
///
/// # Safety
/// Rules 1 and 4.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_tags_after(
    watch: *const ns_watch,
    each: ns_block_fn,
    context: *mut c_void,
) -> ns_status {
    // SAFETY: the same rules.
    guard(|| unsafe { tags(watch, true, each, context) })
}

/// Gets a file descriptor for `poll` and `epoll` that is readable while events may be pending. When
/// it is readable, call `ns_watch_next` until it returns another status than `NS_OK`. After
/// `NS_NOT_FOUND` the descriptor is not readable until the next event of the namespace, which the
/// filter may drop. After an error other than `NS_SESSION_BUSY` it stays readable: close the watch.
/// If the namespace was removed (`NS_BAD_ARGUMENT`), open it and a new watch. The descriptor
/// belongs to the watch: do not read, write or close it. Every call returns the same descriptor.
///
/// The first call starts a thread in this process, which sleeps and blocks all signals;
/// `ns_watch_close` ends it. The work of writers does not depend on it. A forked child cannot use
/// the descriptor.
///
/// Fails with `NS_SYSTEM` if the process cannot create a thread or a descriptor, `NS_FORKED`,
/// `NS_SESSION_BUSY`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_fd(watch: *mut ns_watch, fd: *mut c_int) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let watch = unsafe { borrow(watch, "the watch") }?;
        let _call = watch.enter()?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(fd, "the descriptor") }?;
        watch.check_idle()?;
        let mut source = watch.source.borrow_mut();
        if let WatchSource::Plain(plain) = &*source {
            // A copy: if no thread can be created, the watch continues without a descriptor.
            let watch_fd = WatchFd::new(plain.clone()).map_err(|error| error.cause)?;
            watch.event.set(None);
            *source = WatchSource::WithFd(watch_fd);
        }
        if let WatchSource::WithFd(watch_fd) = &*source {
            out.put(watch_fd.as_raw_fd());
        }
        Ok(ns_status::NS_OK)
    })
}

/// Blocks until events may be pending, for at most `timeout_ms`: `NS_NOT_FOUND` after the timeout.
/// The filter may drop the pending events. A signal does not end the wait: a thread that has to do
/// more polls the descriptor of `ns_watch_fd`.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_wait(watch: *mut ns_watch, timeout_ms: u32) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let watch = unsafe { borrow(watch, "the watch") }?;
        let _call = watch.enter()?;
        let timeout = Duration::from_millis(timeout_ms.into());
        let has_more = match &*watch.source.borrow() {
            WatchSource::Plain(plain) => plain.wait(timeout)?,
            WatchSource::WithFd(watch_fd) => watch_fd.wait(timeout).map_err(|error| error.cause)?,
        };
        Ok(if has_more { ns_status::NS_OK } else { ns_status::NS_NOT_FOUND })
    })
}

/// Closes a watch and its descriptor, which must be removed from an `epoll` instance before. NULL
/// is ignored. Fails with `NS_BAD_ARGUMENT`, without closing it, within a callback of this watch.
///
/// # Safety
/// Rule 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_close(watch: *mut ns_watch) -> ns_status {
    guard(|| {
        if watch.is_null() {
            return Ok(ns_status::NS_OK);
        }
        // SAFETY: rule 1.
        let open = unsafe { borrow(watch, "the watch") }?;
        if open.waiter.is_forked() {
            // A caller of this call may use it, or a thread that does not exist here.
            if open.iterations.get() != 0 || open.threads.was_left_by_other(this_thread()) {
                return Ok(ns_status::NS_OK);
            }
        } else {
            let call = open.enter_to_close()?;
            open.check_idle()?;
            // The call ends with the watch.
            std::mem::forget(call);
        }
        // SAFETY: rule 1: `ns_watch_open` created it from a box, and the caller no longer uses it.
        drop(unsafe { Box::from_raw(watch) });
        Ok(ns_status::NS_OK)
    })
}
