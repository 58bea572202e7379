//! Message queue of a connection, filled from any core.

use nearstate_model::invariant;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Accounts for the bytes queued in all mailboxes of the node: each message once, plus its
/// deliveries. Each mailbox has its own limit, but the number of clients is not limited by it. The
/// sender of a message checks afterwards whether the budget is exceeded and closes clients.
#[derive(Debug)]
pub struct MessageBudget {
    bytes: AtomicUsize,
    /// The most bytes since [`MessageBudget::take_peak`].
    bytes_peak: AtomicUsize,
    bytes_max: usize,
    overruns: AtomicU64,
}

impl MessageBudget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self { bytes: zero(), bytes_peak: zero(), bytes_max, overruns: AtomicU64::new(0) }
    }

    /// Bytes queued.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of mailboxes that were closed because they exceeded a limit.
    pub fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) {
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if total > self.bytes_peak.load(Ordering::Relaxed) {
            self.bytes_peak.store(total, Ordering::Relaxed);
        }
    }

    /// The most bytes that were queued since the last call. A short peak at the time of the call
    /// may be missing.
    pub(crate) fn take_peak(&self) -> usize {
        self.bytes_peak.swap(0, Ordering::Relaxed)
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// True if the budget is exceeded.
    pub fn is_full(&self) -> bool {
        self.bytes() > self.bytes_max
    }

    /// The budget in bytes.
    pub const fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

/// What a client receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A message of a channel.
    Published,
    /// A line of `MONITOR`.
    Monitor,
    /// A key that a tracking client may have cached has changed.
    Invalidate,
    /// All keys may have changed.
    InvalidateAll,
    /// The connection that receives the invalidations of this client is closed.
    RedirectBroken,
}

/// A message, shared by all its receivers. Its bytes count from the first delivery until it is
/// dropped.
#[derive(Debug)]
pub struct Message {
    /// Channel.
    pub channel: Vec<u8>,
    /// Payload.
    pub payload: Vec<u8>,
    /// How it is written.
    pub kind: MessageKind,
    budget: Arc<MessageBudget>,
    /// True once the bytes count. A message without subscribers, or too large for every mailbox,
    /// does not count: no client may be closed because of it.
    is_counted: AtomicBool,
}

impl Message {
    /// A message that counts in `budget` once it is delivered to a mailbox.
    pub fn new(budget: &Arc<MessageBudget>, channel: &[u8], payload: &[u8]) -> Self {
        Self::with_channel(budget, MessageKind::Published, channel, payload)
    }

    /// A message without a channel, as [`Message::new`].
    pub fn of_kind(budget: &Arc<MessageBudget>, kind: MessageKind, payload: &[u8]) -> Self {
        Self::with_channel(budget, kind, b"", payload)
    }

    fn with_channel(
        budget: &Arc<MessageBudget>,
        kind: MessageKind,
        channel: &[u8],
        payload: &[u8],
    ) -> Self {
        let (channel, payload) = (channel.to_vec(), payload.to_vec());
        let is_counted = AtomicBool::new(false);
        Self { channel, payload, kind, budget: Arc::clone(budget), is_counted }
    }

    fn bytes(&self) -> usize {
        self.channel.len() + self.payload.len()
    }

    /// Counts the bytes at the first delivery. The drop happens after this, ordered by the
    /// mailbox's lock or by the sender.
    fn count(&self) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            self.budget.take(self.bytes());
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if *self.is_counted.get_mut() {
            self.budget.give_back(self.bytes());
        }
    }
}

/// A message for one client.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message.
    pub message: Arc<Message>,
    /// The pattern that matched; `None` for a subscription to the channel.
    pub pattern: Option<Arc<[u8]>>,
}

impl Delivery {
    fn bytes(&self) -> usize {
        self.message.bytes() + DELIVERY_BYTES
    }
}

/// Memory overhead of a delivery.
const DELIVERY_BYTES: usize = 64;

/// Capacity that an empty mailbox keeps: some kilobytes.
const DELIVERIES_KEPT_MAX: usize = 256;

/// Message queue of one connection. A client that reads too slowly is closed when its queue exceeds
/// the limit, or when all queues exceed the budget and its queue is the longest.
#[derive(Debug)]
pub struct Mailbox {
    bytes_max: usize,
    budget: Arc<MessageBudget>,
    state: Mutex<MailboxState>,
}

#[derive(Default)]
struct MailboxState {
    deliveries: VecDeque<Delivery>,
    bytes: usize,
    waker: Option<Waker>,
    is_over: bool,
    is_closed: bool,
}

impl MailboxState {
    fn wake_later(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    /// Discards the queue. The connection will be closed.
    fn overrun(&mut self, budget: &MessageBudget) {
        self.is_over = true;
        budget.overruns.fetch_add(1, Ordering::Relaxed);
        self.discard(budget);
    }

    fn discard(&mut self, budget: &MessageBudget) {
        self.bytes = 0;
        budget.give_back(self.deliveries.len() * DELIVERY_BYTES);
        self.deliveries = VecDeque::new();
    }
}

impl fmt::Debug for MailboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailboxState")
            .field("deliveries", &self.deliveries.len())
            .finish_non_exhaustive()
    }
}

impl Mailbox {
    /// An empty mailbox with a limit of `bytes_max` bytes.
    pub fn new(bytes_max: usize, budget: &Arc<MessageBudget>) -> Self {
        Self { bytes_max, budget: Arc::clone(budget), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a delivery. Returns false if the mailbox exceeds its limit, now or before, or is
    /// closed: its client does not receive the message.
    pub fn put(&self, delivery: Delivery) -> bool {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return false;
        }
        state.bytes += delivery.bytes();
        let is_queued = state.bytes <= self.bytes_max;
        if is_queued {
            delivery.message.count();
            self.budget.take(DELIVERY_BYTES);
            state.deliveries.push_back(delivery);
        } else {
            state.overrun(&self.budget);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        is_queued
    }

    /// Bytes queued, including bytes shared with other mailboxes; 0 after an overrun or once it is
    /// closed.
    pub fn held(&self) -> usize {
        self.lock().bytes
    }

    /// Closes a client that reads too slowly, as [`Mailbox::put`] does at the limit of the mailbox.
    pub fn overrun(&self) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.overrun(&self.budget);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Requests that the connection closes, or tells that it has: discards the queue.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.discard(&self.budget);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next delivery. `Ready(None)`: the connection must close, after an overrun or on request.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return Poll::Ready(None);
        }
        if let Some(delivery) = state.deliveries.pop_front() {
            invariant!(delivery.bytes() <= state.bytes, "a queued delivery is counted");
            state.bytes -= delivery.bytes();
            self.budget.give_back(DELIVERY_BYTES);
            // Memory that is not accounted for is released after a burst.
            if state.deliveries.is_empty() && state.deliveries.capacity() > DELIVERIES_KEPT_MAX {
                state.deliveries = VecDeque::new();
            }
            return Poll::Ready(Some(delivery));
        }
        state.wake_later(cx);
        Poll::Pending
    }

    /// `Ready`: the connection must close, after an overrun or on request. Takes no delivery.
    pub fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return Poll::Ready(());
        }
        state.wake_later(cx);
        Poll::Pending
    }

    /// Takes all deliveries; none if the connection must close. A client that unsubscribes receives
    /// these first, because they were sent before.
    pub fn take_all(&self) -> Vec<Delivery> {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return Vec::new();
        }
        state.bytes = 0;
        self.budget.give_back(state.deliveries.len() * DELIVERY_BYTES);
        std::mem::take(&mut state.deliveries).into()
    }

    /// True if the connection must close, after an overrun or on request.
    pub fn is_ended(&self) -> bool {
        let state = self.lock();
        state.is_over || state.is_closed
    }

    /// True if it was closed because the client read too slowly.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.budget.give_back(self.lock().deliveries.len() * DELIVERY_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Arc<MessageBudget> {
        Arc::new(MessageBudget::new(usize::MAX))
    }

    fn delivery(bytes: usize) -> Delivery {
        letter_of(&budget(), bytes)
    }

    fn letter_of(budget: &Arc<MessageBudget>, bytes: usize) -> Delivery {
        Delivery { message: Arc::new(Message::new(budget, b"c", &vec![0; bytes])), pattern: None }
    }

    #[test]
    fn a_message_counts_once_for_all_receivers_until_it_is_dropped() {
        let budget = Arc::new(MessageBudget::new(1000));
        let [one, two] = [(); 2].map(|()| Mailbox::new(10_000, &budget));
        let mut cx = Context::from_waker(Waker::noop());
        let large = letter_of(&budget, 800);
        one.put(large.clone());
        two.put(large);
        assert_eq!(budget.bytes(), 801 + 2 * DELIVERY_BYTES, "one message, two letters");
        assert!(!budget.is_full());
        two.put(letter_of(&budget, 300));
        assert!(budget.is_full());
        assert_eq!((one.held(), two.held()), (801 + DELIVERY_BYTES, 1102 + 2 * DELIVERY_BYTES));
        two.overrun();
        two.overrun();
        assert!(two.is_over() && matches!(two.poll(&mut cx), Poll::Ready(None)));
        two.put(letter_of(&budget, 1));
        assert_eq!((two.held(), budget.overruns()), (0, 1));
        assert_eq!(budget.bytes(), 801 + DELIVERY_BYTES, "one has it still");
        let read = one.poll(&mut cx);
        assert_eq!((one.held(), budget.bytes()), (0, 801));
        drop(read);
        assert_eq!(budget.bytes(), 0);
        one.put(letter_of(&budget, 700));
        assert_eq!(one.take_all().len(), 1);
        assert_eq!(budget.bytes(), 0, "taken, and gone");
    }

    #[test]
    fn messages_arrive_in_order_and_a_slow_subscriber_is_closed() {
        let mailbox = Mailbox::new(1000, &budget());
        let mut cx = Context::from_waker(Waker::noop());
        for bytes in [1, 2] {
            mailbox.put(delivery(bytes));
        }
        for bytes in [1, 2] {
            let Poll::Ready(Some(delivery)) = mailbox.poll(&mut cx) else { panic!("no delivery") };
            assert_eq!(delivery.message.payload.len(), bytes);
        }
        assert!(mailbox.poll(&mut cx).is_pending());
        assert!((0..9).all(|_| mailbox.put(delivery(4))));
        assert_eq!(mailbox.take_all().len(), 9);
        assert!(mailbox.poll(&mut cx).is_pending());
        assert!(!(0..20).all(|_| mailbox.put(delivery(40))));
        assert!(mailbox.is_over());
        assert!(matches!(mailbox.poll(&mut cx), Poll::Ready(None)));
    }

    #[test]
    fn a_closed_mailbox_returns_no_messages() {
        let budget = budget();
        let mailbox = Mailbox::new(1000, &budget);
        mailbox.put(letter_of(&budget, 1));
        mailbox.close();
        assert_eq!((mailbox.held(), budget.bytes()), (0, 0), "what it had is discarded");
        assert!(!mailbox.put(letter_of(&budget, 1)));
        assert!(matches!(mailbox.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(None)));
        assert!(!mailbox.is_over());
    }
}
