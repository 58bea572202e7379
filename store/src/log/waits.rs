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

use nearstate_memory::{LogProgress, LogWaiter, PositionState};
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
    /// Of receipts of other logs, by the number of the wait. No position of the log orders them.
    others: BTreeMap<u64, (Receipt, Waker)>,
    /// The gaps of the log when each of `wakers` was looked at.
    gaps: Option<u64>,
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
                let others = std::mem::take(&mut list.others).into_values();
                others.map(|(_, waker)| waker).for_each(Waker::wake);
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
        let decided = self.take_decided(progress)?;
        // Without the lock: a waker may poll its task at once.
        decided.into_iter().for_each(Waker::wake);
        self.waiter.wait(progress, || self.lock().is_over)
    }

    /// The wakers of what is decided. They are not listed any more.
    fn take_decided(&self, progress: LogProgress) -> Result<Vec<Waker>> {
        let mut list = self.lock();
        // A full log, or a fail-over, loses positions between others that stay undecided. A wait
        // that is listed later looks at its state itself.
        let looks_at_all = list.gaps != Some(progress.gaps());
        let (mut places, mut numbers) = (Vec::new(), Vec::new());
        for &(position, number) in list.wakers.keys() {
            if self.waiter.position_state(position)? != PositionState::Pending {
                places.push((position, number));
            } else if !looks_at_all {
                break;
            }
        }
        for (&number, (receipt, _)) in &list.others {
            if self.state(*receipt)? != ReceiptState::Pending {
                numbers.push(number);
            }
        }
        list.gaps = Some(progress.gaps());
        let mut decided: Vec<Waker> =
            places.iter().filter_map(|place| list.wakers.remove(place)).collect();
        let others = numbers.iter().filter_map(|number| list.others.remove(number));
        decided.extend(others.map(|(_, waker)| waker));
        Ok(decided)
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
            let is_listed_twice = match position {
                Some(position) => list.wakers.insert((position, number), waker).is_some(),
                None => list.others.insert(number, (this.receipt, waker)).is_some(),
            };
            invariant!(!is_new || !is_listed_twice, "two waits have the number {number}");
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
