//! What others send to a connection: messages of channels, from any core.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A message on its way to a client. One for all that hear it.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// Where it was published.
    pub channel: Vec<u8>,
    /// What was.
    pub payload: Vec<u8>,
}

/// A message, and why this client gets it.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The message.
    pub message: Arc<Message>,
    /// The pattern that let it through; `None`: the client hears the channel itself.
    pub pattern: Option<Arc<[u8]>>,
}

impl Letter {
    fn bytes(&self) -> usize {
        self.message.channel.len() + self.message.payload.len() + LETTER_BYTES
    }
}

/// What a letter costs beside its bytes.
const LETTER_BYTES: usize = 64;

/// The mailbox of one connection. A client that does not read is closed when the letters that wait
/// for it pass a bound.
#[derive(Debug)]
pub struct Mailbox {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    letters: VecDeque<Letter>,
    bytes: usize,
    waker: Option<Waker>,
    is_over: bool,
    is_closed: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("letters", &self.letters.len()).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// An empty one that may hold so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a letter in. A mailbox that is over its bound takes no more, and is read no more.
    pub fn put(&self, letter: Letter) {
        let mut state = self.lock();
        state.bytes += letter.bytes();
        if state.bytes > self.bytes_max {
            state.is_over = true;
            state.letters = VecDeque::new();
        } else {
            state.letters.push_back(letter);
        }
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
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Letter>> {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return Poll::Ready(None);
        }
        if let Some(letter) = state.letters.pop_front() {
            state.bytes = state.bytes.saturating_sub(letter.bytes());
            return Poll::Ready(Some(letter));
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// All letters that wait; none if the connection is to be closed. Who stops to hear something
    /// is given them first: they came before.
    pub fn take_all(&self) -> Vec<Letter> {
        let mut state = self.lock();
        if state.is_over || state.is_closed {
            return Vec::new();
        }
        state.bytes = 0;
        std::mem::take(&mut state.letters).into()
    }

    /// True if it was closed because the client did not read.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(bytes: usize) -> Letter {
        let message = Arc::new(Message { channel: b"c".to_vec(), payload: vec![0; bytes] });
        Letter { message, pattern: None }
    }

    #[test]
    fn letters_come_in_order_and_a_client_that_does_not_read_is_closed() {
        let mailbox = Mailbox::new(1000);
        let mut cx = Context::from_waker(Waker::noop());
        for bytes in [1, 2] {
            mailbox.put(letter(bytes));
        }
        for bytes in [1, 2] {
            let Poll::Ready(Some(letter)) = mailbox.poll(&mut cx) else { panic!("no letter") };
            assert_eq!(letter.message.payload.len(), bytes);
        }
        assert!(mailbox.poll(&mut cx).is_pending());
        (0..9).for_each(|_| mailbox.put(letter(4)));
        assert_eq!(mailbox.take_all().len(), 9);
        assert!(mailbox.poll(&mut cx).is_pending());
        (0..20).for_each(|_| mailbox.put(letter(40)));
        assert!(mailbox.is_over());
        assert!(matches!(mailbox.poll(&mut cx), Poll::Ready(None)));
    }

    #[test]
    fn a_mailbox_that_is_closed_gives_no_more() {
        let mailbox = Mailbox::new(1000);
        mailbox.put(letter(1));
        mailbox.close();
        assert!(matches!(mailbox.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(None)));
        assert!(!mailbox.is_over());
    }
}
