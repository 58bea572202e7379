//! A bounded queue from any threads to one task.
//!
//! ```text
//! sender                                  receiver
//! S1  push                                R1  leave the waker, is_waiting := true
//! S2  fence seq_cst    (pairs with R2)    R2  fence seq_cst       (pairs with S2)
//! S3  is_waiting was true: wake           R3  pop; nothing there: sleep
//!
//! Either R3 sees the push, or S3 sees R1.
//! ```

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crossbeam_queue::ArrayQueue;

struct InboxShared<T> {
    queue: ArrayQueue<T>,
    is_waiting: AtomicBool,
    /// Locked only by a receiver that is about to sleep and by the sender that wakes it.
    waiter: Mutex<Option<Waker>>,
    outboxes: AtomicUsize,
    is_closed: AtomicBool,
}

/// Creates a queue with a capacity.
pub fn inbox<T: Send>(capacity: usize) -> (InboxSender<T>, Inbox<T>) {
    let shared = Arc::new(InboxShared {
        queue: ArrayQueue::new(capacity.max(1)),
        is_waiting: AtomicBool::new(false),
        waiter: Mutex::new(None),
        outboxes: AtomicUsize::new(1),
        is_closed: AtomicBool::new(false),
    });
    (InboxSender { shared: Arc::clone(&shared) }, Inbox { shared })
}

/// The sending end. Cheap to clone; for any thread.
pub struct InboxSender<T> {
    shared: Arc<InboxShared<T>>,
}

/// The receiving end, for one task.
pub struct Inbox<T> {
    shared: Arc<InboxShared<T>>,
}

impl<T> fmt::Debug for InboxSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxSender").field("waiting", &self.shared.queue.len()).finish()
    }
}

impl<T> fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("waiting", &self.shared.queue.len()).finish()
    }
}

impl<T> InboxShared<T> {
    fn wake(&self) {
        fence(Ordering::SeqCst); // S2, pairs with R2
        if self.is_waiting.load(Ordering::Relaxed) && self.is_waiting.swap(false, Ordering::AcqRel)
        {
            let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(waiter) = waiter {
                waiter.wake(); // S3
            }
        }
    }
}

impl<T: Send> InboxSender<T> {
    /// Sends a message and wakes the receiver if it sleeps. Never blocks.
    ///
    /// # Errors
    /// Returns the message if the queue is full or the receiver was dropped.
    pub fn send(&self, message: T) -> Result<(), T> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Err(message);
        }
        self.shared.queue.push(message)?; // S1
        self.shared.wake();
        Ok(())
    }
}

impl<T> Clone for InboxSender<T> {
    fn clone(&self) -> Self {
        self.shared.outboxes.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for InboxSender<T> {
    fn drop(&mut self) {
        if self.shared.outboxes.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.wake();
        }
    }
}

impl<T> Inbox<T> {
    /// The next message, if there is one.
    pub fn take(&mut self) -> Option<T> {
        self.shared.queue.pop()
    }

    /// Waits for the next message. `None`: the queue is empty and all senders were dropped.
    pub async fn receive(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Waits for a message, then moves up to `max` messages into `batch`. Returns their number; 0:
    /// all senders were dropped.
    pub async fn receive_many(&mut self, batch: &mut Vec<T>, max: usize) -> usize {
        let Some(first) = self.receive().await else { return 0 };
        let before = batch.len();
        batch.push(first);
        while batch.len() - before < max.max(1) {
            let Some(next) = self.take() else { break };
            batch.push(next);
        }
        batch.len() - before
    }

    /// As [`Inbox::receive`], as a poll.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(message) = self.take() {
            return Poll::Ready(Some(message));
        }
        *self.shared.waiter.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(cx.waker().clone());
        self.shared.is_waiting.store(true, Ordering::Release); // R1
        fence(Ordering::SeqCst); // R2, pairs with S2
        let has_senders = self.shared.outboxes.load(Ordering::Acquire) > 0;
        match self.take() {
            Some(message) => Poll::Ready(Some(message)), // R3
            None if has_senders => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        while self.shared.queue.pop().is_some() {}
    }
}
