//! The thread that wakes what waits for receipts in a node.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nearstate_model::{Error, Result};
use nearstate_store::{Receipt, ReceiptWait, ReceiptWaits, Session, with_signals_blocked};

/// Waits for receipts, any number of them with one thread. Dropping it ends the thread.
#[derive(Debug)]
struct ReceiptThread {
    waits: Arc<ReceiptWaits>,
    thread: Option<JoinHandle<()>>,
}

impl ReceiptThread {
    /// Starts the thread, for the region of a session.
    fn start(session: &Session) -> Result<Self> {
        let waits = ReceiptWaits::new(session);
        let running = Arc::clone(&waits);
        let builder = std::thread::Builder::new().name("ns-receipts".to_owned());
        let thread = with_signals_blocked(|| builder.spawn(move || running.run()));
        let thread = thread.map_err(|error| Error::System {
            detail: "cannot start the thread that waits for receipts; raise `ulimit -u`".to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Self { waits, thread: Some(thread) })
    }
}

impl Drop for ReceiptThread {
    fn drop(&mut self) {
        self.waits.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The receipts that the cores of a node wait for, with the thread that wakes them: it starts with
/// the first one.
#[derive(Debug, Default)]
pub struct ReceiptQueue(Mutex<Option<ReceiptThread>>);

impl ReceiptQueue {
    /// A future that completes when a receipt of the session's region is decided.
    pub(crate) fn wait(&self, session: &Session, receipt: Receipt) -> Result<ReceiptWait> {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            return Ok(thread.waits.wait(receipt));
        }
        Ok(thread.insert(ReceiptThread::start(session)?).waits.wait(receipt))
    }
}
