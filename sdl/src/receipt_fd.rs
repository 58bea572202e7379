//! Receipts with a file descriptor, for event loops: `poll`, `epoll`, `tokio`.
//!
//! One thread in the process sleeps until the log's consumer acknowledges something, and makes the
//! descriptor readable when a receipt that was added is decided, however many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::future::Future as _;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Builder, JoinHandle};

use nearstate_model::Error as Cause;
use nearstate_model::limits::WATCH_FD_STACK_BYTES;
use nearstate_store::{
    Receipt, ReceiptState, ReceiptWait, ReceiptWaits, Session, create_eventfd, with_signals_blocked,
};

use crate::error::Result;

/// Waits for the receipts of a region, any number of them with one thread.
///
/// ```
/// # fn main() -> nearstate_sdl::Result<()> {
/// # let dir = tempfile::tempdir().expect("a folder");
/// use nearstate_sdl::ReceiptNotifier;
/// use nearstate_store::{CreateOptions, ReceiptState, Region, ReplicationPolicy, Schema};
///
/// let region = Region::create(&dir.path().join("smf"), &CreateOptions::default())?;
/// let session = region.session()?;
/// let policy = ReplicationPolicy::Async;
/// let sessions = session.namespace_with_policy("sessions", &Schema::default(), policy)?;
/// let notifier = ReceiptNotifier::new(&session)?;
/// let mut receipts = notifier.receipt_fd()?;
/// session.put(sessions, b"imsi-1/5", b"established")?;
/// receipts.add(session.receipt());
/// // .. epoll says that the descriptor of `receipts` is readable ..
/// # session.acknowledge_to(session.receipt().position())?;
/// # while receipts.next()?.is_none() {}
/// # receipts.add(session.receipt());
/// while let Some((receipt, state)) = receipts.next()? {
///     assert_eq!((receipt, state), (session.receipt(), ReceiptState::Replicated));
/// }
/// # Ok(())
/// # }
/// ```
///
/// After a fork, the child's notifier returns `NotConnected` (`Forked`).
#[derive(Debug)]
pub struct ReceiptNotifier {
    shared: Arc<NotifierThread>,
}

#[derive(Debug)]
struct NotifierThread {
    waits: Arc<ReceiptWaits>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for NotifierThread {
    /// Ends the thread and waits for it, some microseconds. A forked child has no thread, and may
    /// have another one of the same number: dropping the handle would detach that one.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.waits.is_forked() {
            std::mem::forget(thread);
            return;
        }
        self.waits.end();
        let _ = thread.join();
    }
}

impl ReceiptNotifier {
    /// Starts the thread, for the receipts of the region of a session.
    ///
    /// # Errors
    /// `NotConnected` if the process may not start another thread.
    pub fn new(session: &Session) -> Result<Self> {
        let waits = ReceiptWaits::new(session);
        let running = Arc::clone(&waits);
        let builder =
            Builder::new().name("ns-receipts".to_owned()).stack_size(WATCH_FD_STACK_BYTES);
        let thread = with_signals_blocked(|| builder.spawn(move || running.run()));
        let thread = thread.map_err(|error| Cause::System {
            detail: "cannot start the thread that waits for receipts; raise `ulimit -u`".to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Self { shared: Arc::new(NotifierThread { waits, thread: Some(thread) }) })
    }

    /// A future that completes when a receipt is decided, on any executor. It has no
    /// time limit, and does not complete after the notifier was dropped.
    pub fn wait(&self, receipt: Receipt) -> ReceiptWait {
        self.shared.waits.wait(receipt)
    }

    /// A descriptor for receipts.
    ///
    /// # Errors
    /// `NotConnected` if the process may not open another descriptor.
    pub fn receipt_fd(&self) -> Result<ReceiptFd> {
        let signal = File::from(create_eventfd()?);
        let ready = Arc::new(ReadyList { signal, keys: Mutex::default() });
        Ok(ReceiptFd {
            shared: Arc::clone(&self.shared),
            ready,
            waiting: BTreeMap::new(),
            added: 0,
        })
    }
}

/// A receipt, and how many were added before it: one can be added several times.
type ReceiptKey = (Receipt, u64);

/// The receipts of a set that may be decided. The descriptor is readable while there is one.
struct ReadyList {
    signal: File,
    keys: Mutex<BTreeSet<ReceiptKey>>,
}

impl ReadyList {
    /// A panic of a lock holder leaves the list consistent.
    fn lock(&self) -> MutexGuard<'_, BTreeSet<ReceiptKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the lock, so that the descriptor and the list agree.
    fn insert(&self, key: ReceiptKey) {
        let mut keys = self.lock();
        if keys.is_empty() {
            // Any number makes it readable. The write cannot fail: there is room for 2^64 - 2.
            let _ = (&self.signal).write(&1_u64.to_le_bytes());
        }
        keys.insert(key);
    }

    /// The first one.
    fn pop(&self) -> Option<ReceiptKey> {
        let mut keys = self.lock();
        let first = keys.pop_first();
        self.clear_signal(&keys);
        first
    }

    fn remove(&self, key: &ReceiptKey) {
        let mut keys = self.lock();
        keys.remove(key);
        self.clear_signal(&keys);
    }

    fn clear_signal(&self, keys: &BTreeSet<ReceiptKey>) {
        if keys.is_empty() {
            // It fails if the list was empty before.
            let _ = (&self.signal).read(&mut [0; 8]);
        }
    }
}

/// Lists a receipt, and so makes the descriptor readable.
struct KeyWaker {
    ready: Arc<ReadyList>,
    key: ReceiptKey,
}

impl Wake for KeyWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.insert(self.key);
    }
}

/// A set of receipts whose descriptor is readable when one of them may be decided.
///
/// Wait until the descriptor ([`AsFd`]) is readable, level- or edge-triggered, then call
/// [`ReceiptFd::next`] until it returns `None`: that makes the descriptor unreadable. Do not read
/// or write the descriptor.
pub struct ReceiptFd {
    shared: Arc<NotifierThread>,
    ready: Arc<ReadyList>,
    /// By position, then in the order of their adding.
    waiting: BTreeMap<ReceiptKey, (ReceiptWait, Waker)>,
    added: u64,
}

impl fmt::Debug for ReceiptFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptFd").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl ReceiptFd {
    /// True in a forked child, which cannot use it.
    pub fn is_forked(&self) -> bool {
        self.shared.waits.is_forked()
    }

    /// Waits for a receipt as well. In a forked child it has no effect.
    pub fn add(&mut self, receipt: Receipt) {
        if self.is_forked() {
            return; // The parent has the descriptor, too, and would be signalled.
        }
        self.added += 1;
        let key = (receipt, self.added);
        let waker = Waker::from(Arc::new(KeyWaker { ready: Arc::clone(&self.ready), key }));
        let mut wait = self.shared.waits.wait(receipt);
        if Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_ready() {
            // `next` looks again.
            waker.wake_by_ref();
        }
        self.waiting.insert(key, (wait, waker));
    }

    /// Waits for a receipt no longer. Returns the number of times that it was added and not yet
    /// taken out by [`ReceiptFd::next`].
    ///
    /// While too few hosts of the group live, nothing decides a receipt. Remove it after a
    /// time-out.
    ///
    /// Complexity: logarithmic in the receipts that are waited for.
    pub fn remove(&mut self, receipt: Receipt) -> usize {
        let mut removed = 0;
        while let Some((&place, _)) = self.waiting.range((receipt, 0)..=(receipt, u64::MAX)).next()
        {
            self.waiting.remove(&place);
            // In a child, a thread of the parent may have held the lock.
            if !self.is_forked() {
                self.ready.remove(&place);
            }
            removed += 1;
        }
        removed
    }

    /// A receipt that is decided: replicated, lost or unknown. It is not waited for any more.
    /// `None`: the descriptor is not readable until another one may be.
    ///
    /// Complexity: logarithmic in the receipts that are waited for.
    ///
    /// # Errors
    /// `NotConnected` (`Forked`), and the descriptor stays readable for the parent;
    /// `BackendFailure` (`Damaged`), and the receipt is not waited for any more.
    #[expect(clippy::should_implement_trait, reason = "an iterator that has ended goes on here")]
    pub fn next(&mut self) -> Result<Option<(Receipt, ReceiptState)>> {
        // A child shares the descriptor with its parent, which needs the signal.
        if self.is_forked() {
            return Err(Cause::Forked.into());
        }
        while let Some(key) = self.ready.pop() {
            // It may have been removed just before its waker was called.
            let Some((wait, waker)) = self.waiting.get_mut(&key) else { continue };
            if let Poll::Ready(state) = Pin::new(wait).poll(&mut Context::from_waker(waker)) {
                self.waiting.remove(&key);
                return Ok(Some((key.0, state?)));
            }
        }
        Ok(None)
    }

    /// The number of receipts that are waited for.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True if none is waited for.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl AsFd for ReceiptFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.signal.as_fd()
    }
}

impl AsRawFd for ReceiptFd {
    fn as_raw_fd(&self) -> RawFd {
        self.ready.signal.as_raw_fd()
    }
}
