//! Waiting for many receipts at once: futures that one thread wakes.
//!
//! ```text
//! task                                        thread
//! W1  state: pending                          T1  progress of the log
//! W2  the waker is listed                     T2  wake what is decided, in the order of positions
//! W3  state again: decided, or sleep          T3  sleep until the progress is another one
//! ```
//!
//! A receipt that is decided between W1 and W2 is seen in W3. One that is decided behind W3 changes
//! the progress, so T3 ends and T2 finds the waker. An acknowledgement costs its consumer one
//! system call for all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nearstate_memory::{LogWaiter, PositionState};
use nearstate_model::{Error, Result, invariant};

use crate::log::receipt::{Receipt, ReceiptState};
use crate::session::Session;

/// The receipts that the tasks of a process wait for. A thread runs [`ReceiptWaits::run`].
pub struct ReceiptWaits {
    waiter: LogWaiter,
    state: Mutex<WaitList>,
    /// Signalled when there is something to wait for, or at the end.
    changed: Condvar,
}

#[derive(Default)]
struct WaitList {
    /// By position, then by the number of the wait.
    wakers: BTreeMap<(u64, u64), Waker>,
    /// Of receipts of other logs, by the number of the wait. They look again at each progress.
    others: BTreeMap<u64, Waker>,
    next: u64,
    is_over: bool,
    /// Why the thread has ended early.
    failed: Option<Error>,
}

impl fmt::Debug for ReceiptWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptWaits").field("waiting", &self.lock().wakers.len()).finish()
    }
}

/// Completes when a receipt is not pending any more. Dropping it ends the wait.
#[derive(Debug)]
pub struct ReceiptWait {
    waits: Arc<ReceiptWaits>,
    receipt: Receipt,
    /// Its place in the list: its position, unless it is one of another log, and its number.
    listed: Option<(Option<u64>, u64)>,
}

impl ReceiptWaits {
    /// For the receipts of the region of a session.
    pub fn new(session: &Session) -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { waiter: session.member.log_waiter(), state, changed })
    }

    /// A future that completes when this receipt is not pending any more. It has no time limit.
    pub fn wait(self: &Arc<Self>, receipt: Receipt) -> ReceiptWait {
        ReceiptWait { waits: Arc::clone(self), receipt, listed: None }
    }

    /// What has become of what a receipt stands for.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn state(&self, receipt: Receipt) -> Result<ReceiptState> {
        Ok(self.waiter.place_state(receipt.place())?.into())
    }

    /// Wakes the tasks whose receipts are decided, until [`ReceiptWaits::end`]. Called on a thread
    /// of its own.
    pub fn run(&self) {
        while self.has_waits() {
            if let Err(error) = self.wake_once() {
                let mut list = self.lock();
                list.failed = Some(error);
                std::mem::take(&mut list.wakers).into_values().for_each(Waker::wake);
                std::mem::take(&mut list.others).into_values().for_each(Waker::wake);
                return;
            }
        }
    }

    /// Ends [`ReceiptWaits::run`].
    pub fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
        // A damaged region ends the thread by itself.
        let _ = self.waiter.wake();
    }

    /// True in a process that was forked from the one that attached: it has no thread.
    pub fn is_forked(&self) -> bool {
        self.waiter.is_forked()
    }

    /// A panic of a lock holder leaves the list consistent.
    fn lock(&self) -> MutexGuard<'_, WaitList> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to wait for. False at the end.
    fn has_waits(&self) -> bool {
        let mut list = self.lock();
        while list.wakers.is_empty() && list.others.is_empty() && !list.is_over {
            list = self.changed.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        !list.is_over
    }

    /// T1 to T3.
    fn wake_once(&self) -> Result<()> {
        let progress = self.waiter.progress()?;
        let mut decided = Vec::new();
        {
            let mut list = self.lock();
            decided.extend(std::mem::take(&mut list.others).into_values());
            // A fail-over loses the positions behind its seal, and may leave others undecided.
            for ends in [BTreeMap::first_entry, BTreeMap::last_entry] {
                while let Some(end) = ends(&mut list.wakers) {
                    let (position, _) = *end.key();
                    if self.waiter.position_state(position)? == PositionState::Pending {
                        break;
                    }
                    decided.push(end.remove());
                }
            }
        }
        // Without the lock: a waker may poll its task at once.
        decided.into_iter().for_each(Waker::wake);
        self.waiter.wait(progress, || self.lock().is_over)
    }
}

impl ReceiptWait {
    /// The receipt.
    pub const fn receipt(&self) -> Receipt {
        self.receipt
    }

    fn unlist(&mut self) {
        if self.waits.is_forked() {
            return; // A thread of the parent may have held the lock.
        }
        match self.listed.take() {
            Some((Some(position), number)) => {
                self.waits.lock().wakers.remove(&(position, number));
            }
            Some((None, number)) => drop(self.waits.lock().others.remove(&number)),
            None => {}
        }
    }
}

impl Future for ReceiptWait {
    type Output = Result<ReceiptState>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut is_listed = false;
        loop {
            match this.waits.state(this.receipt) {
                Ok(ReceiptState::Pending) if !is_listed => {}
                Ok(ReceiptState::Pending) => return Poll::Pending,
                decided => {
                    this.unlist();
                    return Poll::Ready(decided);
                }
            }
            let position = match this.listed {
                Some((position, _)) => position,
                None => this.waits.waiter.own_position(this.receipt.place())?,
            };
            let mut list = this.waits.lock();
            if let Some(error) = &list.failed {
                return Poll::Ready(Err(error.clone()));
            }
            let is_new = this.listed.is_none();
            let (_, number) = *this.listed.get_or_insert_with(|| {
                list.next += 1;
                (position, list.next)
            });
            invariant!(number <= list.next, "wait {number} has a number that was not given");
            let waker = cx.waker().clone();
            let before = match position {
                Some(position) => list.wakers.insert((position, number), waker),
                None => list.others.insert(number, waker),
            };
            invariant!(!is_new || before.is_none(), "two waits have the number {number}");
            is_listed = true;
            if is_new {
                this.waits.waiter.announce()?;
            }
            this.waits.changed.notify_one();
        }
    }
}

impl Drop for ReceiptWait {
    fn drop(&mut self) {
        self.unlist();
    }
}
