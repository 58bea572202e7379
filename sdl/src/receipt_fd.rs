//! Receipts with a file descriptor, for event loops: `poll`, `epoll`, `tokio`.
//!
//! One thread in the process sleeps until the log's consumer acknowledges something, and makes the
//! descriptor readable when a receipt that was added is decided, however many there are.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::future::Future as _;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
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
        let signal = Arc::new(Signal(File::from(create_eventfd()?)));
        let (waker, waiting) = (Waker::from(Arc::clone(&signal)), BTreeMap::new());
        Ok(ReceiptFd { shared: Arc::clone(&self.shared), signal, waker, waiting, added: 0 })
    }
}

/// Makes the descriptor readable.
struct Signal(File);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        // Any number makes it readable. The write cannot fail: there is room for 2^64 - 2.
        let _ = (&self.0).write(&1_u64.to_le_bytes());
    }
}

/// A set of receipts whose descriptor is readable when one of them may be decided.
///
/// Wait until the descriptor ([`AsFd`]) is readable, level- or edge-triggered, then call
/// [`ReceiptFd::next`] until it returns `None`: that makes the descriptor unreadable. Do not read
/// or write the descriptor.
pub struct ReceiptFd {
    shared: Arc<NotifierThread>,
    signal: Arc<Signal>,
    waker: Waker,
    /// By position, then in the order of their adding.
    waiting: BTreeMap<(Receipt, u64), ReceiptWait>,
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
        let mut wait = self.shared.waits.wait(receipt);
        let mut cx = Context::from_waker(&self.waker);
        if Pin::new(&mut wait).poll(&mut cx).is_ready() {
            // `next` looks again.
            self.waker.wake_by_ref();
        }
        self.added += 1;
        self.waiting.insert((receipt, self.added), wait);
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
        // Before the look: what is decided behind it signals again.
        let mut count = [0; 8];
        let _ = (&self.signal.0).read(&mut count);
        let mut cx = Context::from_waker(&self.waker);
        // A fail-over loses the positions behind its seal, and may leave others undecided.
        for ends in [BTreeMap::first_entry, BTreeMap::last_entry] {
            let Some(mut end) = ends(&mut self.waiting) else { break };
            if let Poll::Ready(state) = Pin::new(end.get_mut()).poll(&mut cx) {
                let receipt = end.remove().receipt();
                // There may be more.
                self.waker.wake_by_ref();
                return Ok(Some((receipt, state?)));
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
        self.signal.0.as_fd()
    }
}

impl AsRawFd for ReceiptFd {
    fn as_raw_fd(&self) -> RawFd {
        self.signal.0.as_raw_fd()
    }
}
