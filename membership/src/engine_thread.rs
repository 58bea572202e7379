//! The thread of an engine, with a runtime of its own, and what its callers need.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::{Error, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::time::{error::Elapsed, timeout};

/// Locks. What a panic has left is as good as what was there before it: all values are whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error of the system.
pub(crate) fn system(what: &str, error: &io::Error) -> Error {
    let detail = format!("{what}: {error}");
    Error::System { detail, errno: error.raw_os_error().unwrap_or_default() }
}

/// The membership decides nothing at present.
pub(crate) fn unavailable(detail: impl fmt::Display) -> Error {
    Error::Backend { detail: format!("the membership does not decide: {detail}") }
}

/// Through which a thread says once whether it has started.
pub(crate) type ReadySender = mpsc::SyncSender<Result<()>>;

/// A thread that runs a future until it is stopped.
#[derive(Debug)]
pub(crate) struct EngineThread {
    runtime: Handle,
    thread: Option<JoinHandle<()>>,
    /// The future ends when this is notified.
    stop: Arc<Notify>,
}

impl EngineThread {
    /// Starts, and returns when the future has said that it is ready. `blocking_max`: threads for
    /// work that blocks. With one, it is done in the order in which it is handed over.
    ///
    /// # Errors
    /// `System`: no runtime or no thread; what the future says.
    pub(crate) fn start<F: Future<Output = ()>>(
        stop: Arc<Notify>,
        blocking_max: usize,
        run: impl FnOnce(ReadySender) -> F + Send + 'static,
    ) -> Result<Self> {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(blocking_max).build();
        let runtime = runtime.map_err(|error| system("cannot start a runtime", &error))?;
        let handle = runtime.handle().clone();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("ns-membership".to_owned())
            .spawn(move || runtime.block_on(run(ready)))
            .map_err(|error| system("cannot start a thread", &error))?;
        let thread = Self { runtime: handle, thread: Some(thread), stop };
        match is_ready.recv() {
            Ok(outcome) => outcome.map(|()| thread),
            Err(_) => Err(unavailable("its thread has ended")),
        }
    }

    /// Runs a future on the thread that calls, with the runtime's time and I/O.
    ///
    /// # Errors
    /// It takes longer than `max`.
    pub(crate) fn wait<T>(
        &self,
        max: Duration,
        work: impl Future<Output = T>,
    ) -> std::result::Result<T, Elapsed> {
        // The runtime's time counts, so the time-out is made on it.
        self.runtime.block_on(async { timeout(max, work).await })
    }

    /// Runs a future on the thread of the engine.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
