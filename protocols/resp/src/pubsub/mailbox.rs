//! What others send to a connection: messages of channels, from any core.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What waits in all mailboxes of a node together: each message once, and what its letters cost. A
/// mailbox has a bound of its own, but there are as many as there are clients. Who sends a message
/// looks behind it whether the post is full, and makes room.
#[derive(Debug)]
pub struct MessageBudget {
    bytes: AtomicUsize,
    bytes_max: usize,
    overruns: AtomicU64,
}

impl MessageBudget {
    /// For so many bytes.
    pub const fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max, overruns: AtomicU64::new(0) }
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Mailboxes that were closed because more waited than may.
    pub fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// True if more waits than may.
    pub fn is_full(&self) -> bool {
        self.bytes() > self.bytes_max
    }

    /// How many bytes may wait.
    pub const fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

/// A message on its way to a client. One for all that hear it; it counts from when the first of
/// them has it in its mailbox until it is gone.
#[derive(Debug)]
pub struct Message {
    /// Where it was published.
    pub channel: Vec<u8>,
    /// What was.
    pub payload: Vec<u8>,
    budget: Arc<MessageBudget>,
    /// True once it counts. One that nobody hears, or that no mailbox takes because it is too
    /// large, is in nobody's way: it must not be what others are closed for.
    is_counted: AtomicBool,
}

impl Message {
    /// One that counts with this post once it is in a mailbox.
    pub fn new(budget: &Arc<MessageBudget>, channel: &[u8], payload: &[u8]) -> Self {
        let (channel, payload) = (channel.to_vec(), payload.to_vec());
        Self { channel, payload, budget: Arc::clone(budget), is_counted: AtomicBool::new(false) }
    }

    fn bytes(&self) -> usize {
        self.channel.len() + self.payload.len()
    }

    /// It is in a mailbox. Whoever drops it has got it behind this, from the mailbox's lock or from
    /// whoever sent it.
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

/// A message, and why this client gets it.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message.
    pub message: Arc<Message>,
    /// The pattern that let it through; `None`: the client hears the channel itself.
    pub pattern: Option<Arc<[u8]>>,
}

impl Delivery {
    fn bytes(&self) -> usize {
        self.message.bytes() + DELIVERY_BYTES
    }
}

/// What a letter costs beside its bytes.
const DELIVERY_BYTES: usize = 64;

/// Letters that an empty mailbox keeps room for: some kilobytes.
const DELIVERIES_KEPT_MAX: usize = 256;

/// The mailbox of one connection. A client that does not read is closed when the letters that wait
/// for it pass a bound; or when those that wait for all clients pass theirs, and most of them wait
/// for this one.
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
    /// More waits than may: what waits is thrown away, and the connection will be closed.
    fn overrun(&mut self, budget: &MessageBudget) {
        self.is_over = true;
        self.bytes = 0;
        budget.overruns.fetch_add(1, Ordering::Relaxed);
        budget.give_back(self.deliveries.len() * DELIVERY_BYTES);
        self.deliveries = VecDeque::new();
    }
}

impl fmt::Debug for MailboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("letters", &self.deliveries.len()).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// An empty one that may hold so many bytes, of those that the post may.
    pub fn new(bytes_max: usize, budget: &Arc<MessageBudget>) -> Self {
        Self { bytes_max, budget: Arc::clone(budget), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a letter in. A mailbox that is over its bound takes no more, and is read no more.
    pub fn put(&self, delivery: Delivery) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.bytes += delivery.bytes();
        if state.bytes > self.bytes_max {
            state.overrun(&self.budget);
        } else {
            delivery.message.count();
            self.budget.take(DELIVERY_BYTES);
            state.deliveries.push_back(delivery);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Bytes of what waits in it, whoever else it waits for; 0 once it is over.
    pub fn held(&self) -> usize {
        self.lock().bytes
    }

    /// Gives up a client that does not read, as [`Mailbox::put`] does at the mailbox's own bound.
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

    /// Asks the connection to close.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next letter. `Ready(None)`: the connection is to be closed, because the client was too
    /// slow or somebody has asked for it.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return Poll::Ready(None);
        }
        if let Some(delivery) = state.deliveries.pop_front() {
            state.bytes = state.bytes.saturating_sub(delivery.bytes());
            self.budget.give_back(DELIVERY_BYTES);
            // Room that nobody counts is not kept for a burst that is over.
            if state.deliveries.is_empty() && state.deliveries.capacity() > DELIVERIES_KEPT_MAX {
                state.deliveries = VecDeque::new();
            }
            return Poll::Ready(Some(delivery));
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// All letters that wait; none if the connection is to be closed. Who stops to hear something
    /// is given them first: they came before.
    pub fn take_all(&self) -> Vec<Delivery> {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return Vec::new();
        }
        state.bytes = 0;
        self.budget.give_back(state.deliveries.len() * DELIVERY_BYTES);
        std::mem::take(&mut state.deliveries).into()
    }

    /// True if it was closed because the client did not read.
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
    fn a_message_counts_once_and_what_is_given_up_counts_no_more() {
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
    fn letters_come_in_order_and_a_client_that_does_not_read_is_closed() {
        let mailbox = Mailbox::new(1000, &budget());
        let mut cx = Context::from_waker(Waker::noop());
        for bytes in [1, 2] {
            mailbox.put(delivery(bytes));
        }
        for bytes in [1, 2] {
            let Poll::Ready(Some(delivery)) = mailbox.poll(&mut cx) else { panic!("no letter") };
            assert_eq!(delivery.message.payload.len(), bytes);
        }
        assert!(mailbox.poll(&mut cx).is_pending());
        (0..9).for_each(|_| mailbox.put(delivery(4)));
        assert_eq!(mailbox.take_all().len(), 9);
        assert!(mailbox.poll(&mut cx).is_pending());
        (0..20).for_each(|_| mailbox.put(delivery(40)));
        assert!(mailbox.is_over());
        assert!(matches!(mailbox.poll(&mut cx), Poll::Ready(None)));
    }

    #[test]
    fn a_mailbox_that_is_closed_gives_no_more() {
        let mailbox = Mailbox::new(1000, &budget());
        mailbox.put(delivery(1));
        mailbox.close();
        assert!(matches!(mailbox.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(None)));
        assert!(!mailbox.is_over());
    }
}
