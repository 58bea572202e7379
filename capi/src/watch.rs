//! Watches: a process is told what happens to records, in an event loop or by waiting.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_sdl::WatchFd;
use nearstate_store::{Event, EventKind, Filter, Notice, Watch};

use crate::border::{Out, borrow, guard};
use crate::bytes::{ns_bytes, null};
use crate::metadata::ns_tag;
use crate::session::{ns_namespace, ns_session};
use crate::status::ns_status;
use crate::view::{call_each, ns_block_fn};
use crate::walk::ns_key_fn;

/// Events of all records of the namespace.
pub const NS_FILTER_ALL: u32 = 0;
/// Of the record with this key.
pub const NS_FILTER_KEY: u32 = 1;
/// Of the records whose keys begin so.
pub const NS_FILTER_PREFIX: u32 = 2;
/// Of the records that have this value of a tag, before the change or after it.
pub const NS_FILTER_TAG: u32 = 3;

/// There was no such record, and now there is.
pub const NS_EVENT_CREATED: u32 = 1;
/// There was one, and it changed.
pub const NS_EVENT_UPDATED: u32 = 2;
/// Somebody deleted it.
pub const NS_EVENT_DELETED: u32 = 3;
/// It ended by itself.
pub const NS_EVENT_EXPIRED: u32 = 4;
/// The watcher was too slow, and events are gone: read what is watched anew.
pub const NS_EVENT_LOST: u32 = 5;

/// Which events a watch gives. All bytes 0: those of all records.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_watch_filter {
    /// One of `NS_FILTER_..`.
    pub kind: u32,
    /// The key, or with what keys begin.
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
                let detail = format!("a filter {kind}: give one of NS_FILTER_..");
                return Err(Error::BadArgument { detail });
            }
        })
    }
}

/// A wish to be told what happens to some records. It owes nothing to the session that made it,
/// which may be closed. One thread at a time uses it.
#[derive(Debug)]
pub struct ns_watch {
    source: RefCell<Source>,
    /// What was told last; it points into the source, which keeps it until the next step.
    event: Cell<Option<Event<'static>>>,
    /// Walks over that event that go on.
    walks: Cell<usize>,
}

#[derive(Debug)]
enum Source {
    Plain(Watch),
    /// Since somebody asked for a descriptor.
    Ringing(WatchFd),
}

impl ns_watch {
    /// Refuses what a callback of this watch's own walk must not do.
    fn settled(&self) -> Result<()> {
        if self.walks.get() == 0 {
            return Ok(());
        }
        Err(Error::BadArgument {
            detail: "a walk over the event goes on: let it end first".to_owned(),
        })
    }

    /// Walks over the event that was told last; of a watch that has told none there is nothing.
    fn walk(&self, walk: impl FnOnce(&Event<'_>) -> Result<ns_status>) -> Result<ns_status> {
        let Some(event) = self.event.get() else {
            return Err(null("the watch has no event (ns_watch_next tells one)"));
        };
        self.walks.set(self.walks.get() + 1);
        // Callbacks do not unwind, so this is reached.
        let told = walk(&event);
        self.walks.set(self.walks.get() - 1);
        told
    }
}

/// A change of a record, or that some are lost.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_watch_event {
    /// One of `NS_EVENT_..`.
    pub kind: u32,
    /// The names of blocks and the tags were too much for an event: read the record.
    pub is_truncated: bool,
    /// The record's key; good until the next call with the watch.
    pub key: ns_bytes,
    /// Its version after the change; the last one it had, if it is gone.
    pub version: u64,
    /// Of `NS_EVENT_LOST`: how many, whether the filter would have let them through or not.
    pub lost: u64,
}

/// Watches records of a namespace: every change that begins after this has returned is told, in the
/// order in which the changes were made. To follow records from a known state on, watch first and
/// read them then. The first watch of a namespace takes a MiB of the region for good, and its
/// writers tell from then on.
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
        let session = unsafe { borrow(session, "the session") }?;
        // SAFETY: rule 2.
        let filter = unsafe { filter.read() }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(watch, "the watch") }?;
        let opened = session.store().watch(session.namespace(namespace)?, filter)?;
        out.put(Box::into_raw(Box::new(ns_watch {
            source: RefCell::new(Source::Plain(opened)),
            event: Cell::new(None),
            walks: Cell::new(0),
        })));
        Ok(ns_status::NS_OK)
    })
}

/// The next event, or `NS_NOT_FOUND` if there is none at present. Never waits.
///
/// Fails with `NS_DAMAGED`, `NS_FORKED`, `NS_BAD_ARGUMENT` (also within a walk over this watch's
/// event). After damage open a new watch, and read what is watched anew.
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
        // SAFETY: rule 3.
        let out = unsafe { Out::new(event, "the event") }?;
        watch.settled()?;
        watch.event.set(None);
        let mut source = watch.source.borrow_mut();
        let notice = match &mut *source {
            Source::Plain(plain) => plain.next()?,
            Source::Ringing(watch_fd) => watch_fd.next().map_err(|error| error.cause)?,
        };
        let (kind, lost) = match notice {
            None => return Ok(ns_status::NS_NOT_FOUND),
            Some(Notice::Lost { events }) => (NS_EVENT_LOST, events),
            Some(Notice::Event(told)) => {
                // SAFETY: only the lifetime changes. The bytes stay in the source's buffer until
                // its next step, before which `event` is emptied.
                let told = unsafe { std::mem::transmute::<Event<'_>, Event<'static>>(told) };
                watch.event.set(Some(told));
                let kind = match told.kind {
                    EventKind::Created => NS_EVENT_CREATED,
                    EventKind::Updated => NS_EVENT_UPDATED,
                    EventKind::Deleted => NS_EVENT_DELETED,
                    EventKind::Expired => NS_EVENT_EXPIRED,
                };
                (kind, 0)
            }
        };
        let told = watch.event.get();
        out.put(ns_watch_event {
            kind,
            is_truncated: told.is_some_and(|told| told.is_cut),
            key: told.map_or(ns_bytes::EMPTY, |told| ns_bytes::of(told.key)),
            version: told.map_or(0, |told| told.version),
            lost,
        });
        Ok(ns_status::NS_OK)
    })
}

/// Calls `each` with the name of every block that changed in the event that was told last; none in
/// a namespace of values.
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

/// Calls `each` with every tag that the record had before the event that was told last: name and
/// value.
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

/// Calls `each` with every tag that the record has since the event that was told last: name and
/// value. None if it is gone.
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

/// A descriptor for `poll` and `epoll` that is readable as long as there may be something to tell.
/// When it is, call `ns_watch_next` until the answer is `NS_NOT_FOUND`; then it is not readable
/// until the next event of the namespace, which the filter may hold back. It is the watch's: do not
/// read, write or close it. The same at each call.
///
/// The first call starts a thread of this process, which sleeps and takes no signals;
/// `ns_watch_close` ends it. Writers do the same work with it and without it. A forked child cannot
/// use it.
///
/// Fails with `NS_SYSTEM` if the process may have no further thread or descriptor, `NS_FORKED`,
/// `NS_BAD_ARGUMENT`.
///
/// # Safety
/// Rules 1 and 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ns_watch_fd(watch: *mut ns_watch, fd: *mut c_int) -> ns_status {
    guard(|| {
        // SAFETY: rule 1.
        let watch = unsafe { borrow(watch, "the watch") }?;
        // SAFETY: rule 3.
        let out = unsafe { Out::new(fd, "the descriptor") }?;
        watch.settled()?;
        let mut source = watch.source.borrow_mut();
        if let Source::Plain(plain) = &*source {
            if plain.waiter().is_forked() {
                return Err(Error::Forked);
            }
            // A copy: if there is no thread to be had, the watch goes on as it was.
            let watch_fd = WatchFd::new(plain.clone()).map_err(|error| error.cause)?;
            watch.event.set(None);
            *source = Source::Ringing(watch_fd);
        }
        if let Source::Ringing(watch_fd) = &*source {
            out.put(watch_fd.as_raw_fd());
        }
        Ok(ns_status::NS_OK)
    })
}

/// Waits without a descriptor until there may be something to tell, `timeout_ms` at the most:
/// `NS_NOT_FOUND` if there is nothing then. What there is, the filter may hold back.
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
        let timeout = Duration::from_millis(timeout_ms.into());
        let has_more = match &*watch.source.borrow() {
            Source::Plain(plain) => plain.wait(timeout)?,
            Source::Ringing(watch_fd) => watch_fd.wait(timeout).map_err(|error| error.cause)?,
        };
        Ok(if has_more { ns_status::NS_OK } else { ns_status::NS_NOT_FOUND })
    })
}

/// Ends a watch, with its descriptor, which the caller has taken out of its `epoll` before. NULL is
/// left alone. `NS_BAD_ARGUMENT`, and no end, within a walk over its event.
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
        unsafe { borrow(watch, "the watch") }?.settled()?;
        // SAFETY: rule 1: `ns_watch_open` made it of a box, and nobody uses it after this call.
        drop(unsafe { Box::from_raw(watch) });
        Ok(ns_status::NS_OK)
    })
}
