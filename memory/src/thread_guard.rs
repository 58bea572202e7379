//! Detects a second thread in a session that is used by one thread at a time.
//!
//! A session may move to another thread between two calls. A call costs the thread that also made
//! the last one two stores and no locked instruction; a thread that takes the session over executes
//! the heavy barrier (`membarrier(2)`), which costs some microseconds.
//!
//! ```text
//! thread that has the session           thread that takes it over, under the mutex
//! G1  slot = current; is it mine?       T1  current = own slot
//! G2  slot.calls += 1                   T2  heavy barrier            pairs with G3
//! G3  light barrier  pairs with T2      T3  old.calls != 0: current = old, refused
//! G4  current == slot, else G2 undone   T4  own.calls = 1
//! G5  the call
//! G6  slot.calls -= 1  (release)        pairs with T3 (acquire)
//! ```
//!
//! Either T3 sees G2, or G4 sees T1. A slot is written by its thread only, so the undoing of G2
//! cannot hide a call of another thread. Slots exist until the session ends.

use nearstate_model::{Error, Result};

use crate::atomic::{AtomicPtr, AtomicU64, Mutex, Ordering, compiler_fence, fence, mutant};

/// One thread that has used the session.
#[derive(Debug)]
struct ThreadSlot {
    thread: u64,
    /// Calls in progress: more than one within callbacks.
    calls: AtomicU64,
}

/// Admits the calls of one thread at a time.
#[derive(Debug)]
pub struct ThreadGuard {
    current: AtomicPtr<ThreadSlot>,
    /// Boxed, so that a slot does not move when the list grows.
    #[expect(clippy::vec_box, reason = "slots are referred to by their address")]
    slots: Mutex<Vec<Box<ThreadSlot>>>,
    is_fenced: bool,
}

/// A call in progress.
#[derive(Debug)]
pub struct ThreadCall<'g> {
    slot: &'g ThreadSlot,
}

impl ThreadCall<'_> {
    /// Calls of this thread in progress, this one included.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.slot.calls.load(Ordering::Relaxed)
    }
}

impl Drop for ThreadCall<'_> {
    #[inline]
    fn drop(&mut self) {
        let calls = self.slot.calls.load(Ordering::Relaxed);
        debug_assert!(calls > 0, "each call ends once");
        let order =
            if mutant("guard-leave-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.slot.calls.store(calls - 1, order);
    }
}

impl ThreadGuard {
    /// `thread` is the thread that has the session first. `is_fenced` if there is no heavy barrier.
    pub fn new(thread: u64, is_fenced: bool) -> Self {
        let first = Box::new(ThreadSlot { thread, calls: AtomicU64::new(0) });
        let current = AtomicPtr::new(std::ptr::from_ref(&*first).cast_mut());
        Self { current, slots: Mutex::new(vec![first]), is_fenced }
    }

    #[inline]
    fn current(&self, order: Ordering) -> &ThreadSlot {
        // SAFETY: it points to a boxed slot, and slots are dropped with the guard only.
        unsafe { &*self.current.load(order) }
    }

    /// Begins a call of a thread. `heavy` is the barrier T2; if it fails, the thread is refused.
    ///
    /// # Errors
    /// `SessionBusy` while a call of another thread is in progress.
    #[inline]
    pub fn enter(&self, thread: u64, heavy: impl Fn() -> bool) -> Result<ThreadCall<'_>> {
        let slot = self.current(Ordering::Acquire);
        if slot.thread == thread {
            let calls = slot.calls.load(Ordering::Relaxed);
            slot.calls.store(calls + 1, Ordering::Relaxed);
            if self.is_fenced && !mutant("guard-no-fence") {
                fence(Ordering::SeqCst);
            } else {
                compiler_fence(Ordering::SeqCst);
            }
            if std::ptr::eq(self.current(Ordering::Relaxed), slot) || mutant("guard-unchecked") {
                return Ok(ThreadCall { slot });
            }
            slot.calls.store(calls, Ordering::Release);
        }
        self.take_over(thread, heavy)
    }

    #[cold]
    fn take_over(&self, thread: u64, heavy: impl Fn() -> bool) -> Result<ThreadCall<'_>> {
        let mut slots = match self.slots.lock() {
            Ok(slots) => slots,
            Err(poisoned) => poisoned.into_inner(),
        };
        let old = self.current(Ordering::Relaxed);
        if !slots.iter().any(|slot| slot.thread == thread) {
            slots.push(Box::new(ThreadSlot { thread, calls: AtomicU64::new(0) }));
        }
        let own = slots.iter().find(|slot| slot.thread == thread);
        let Some(own) = own.map(|slot| std::ptr::from_ref(&**slot)) else {
            return Err(Error::SessionBusy);
        };
        if !std::ptr::eq(old, own) {
            self.current.store(own.cast_mut(), Ordering::Release);
            let has_barrier = self.is_fenced_barrier() || heavy();
            if !has_barrier || old.calls.load(Ordering::Acquire) != 0 {
                self.current.store(std::ptr::from_ref(old).cast_mut(), Ordering::Release);
                return Err(Error::SessionBusy);
            }
        }
        // SAFETY: a boxed slot of the list, which is dropped with the guard only.
        let slot = unsafe { &*own };
        slot.calls.store(slot.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(ThreadCall { slot })
    }

    /// In a forked child: true if another thread of the parent was inside a call at the fork, or
    /// was about to begin one. It does not exist here, and the call never ends. Takes no lock.
    pub fn was_left_by_other(&self, thread: u64) -> bool {
        let Ok(_slots) = self.slots.try_lock() else { return true };
        let current = self.current(Ordering::Acquire);
        current.thread != thread && current.calls.load(Ordering::Acquire) != 0
    }

    /// The barrier T2 of a guard whose calls execute a fence themselves.
    fn is_fenced_barrier(&self) -> bool {
        if self.is_fenced {
            fence(Ordering::SeqCst);
        }
        self.is_fenced
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::system::{barrier_everywhere, register_barrier};

    #[test]
    fn a_session_moves_between_calls_and_not_within_one() {
        for is_fenced in [true, !register_barrier()] {
            let guard = ThreadGuard::new(1, is_fenced);
            for thread in [1, 2, 1, 3] {
                let call = guard.enter(thread, barrier_everywhere).unwrap();
                // A callback of the same thread.
                drop(guard.enter(thread, barrier_everywhere).unwrap());
                let refused = guard.enter(9, barrier_everywhere);
                assert!(matches!(refused, Err(Error::SessionBusy)), "{refused:?}");
                drop(call);
            }
        }
        let guard = ThreadGuard::new(1, false);
        assert!(guard.enter(2, || false).is_err(), "without a barrier nothing is known");
        drop(guard.enter(1, || false).unwrap());
    }

    #[test]
    fn a_call_of_another_thread_is_known_without_a_lock() {
        let guard = ThreadGuard::new(1, !register_barrier());
        assert!(!guard.was_left_by_other(1) && !guard.was_left_by_other(2));
        let call = guard.enter(1, barrier_everywhere).unwrap();
        assert!(!guard.was_left_by_other(1) && guard.was_left_by_other(2));
        drop(call);
        let slots = guard.slots.lock().unwrap();
        assert!(guard.was_left_by_other(1), "a thread that took it over at the fork");
        drop(slots);
    }

    /// `cargo test -p nearstate-memory --release --lib cost_of_a_guarded_call -- --ignored`
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_a_guarded_call() {
        for is_fenced in [false, true] {
            let guard = ThreadGuard::new(1, is_fenced);
            let (calls, begun) = (100_000_000_u32, std::time::Instant::now());
            for _ in 0..calls {
                drop(std::hint::black_box(&guard).enter(std::hint::black_box(1), || true).unwrap());
            }
            let ns = begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls);
            writeln!(std::io::stderr(), "fenced {is_fenced}: {ns:.2} ns").unwrap();
        }
    }

    #[test]
    fn two_threads_are_never_inside_at_once() {
        let is_fenced = !register_barrier();
        let guard = ThreadGuard::new(1, is_fenced);
        let inside = AtomicU64::new(0);
        let admitted = std::thread::scope(|scope| {
            let work = |thread| {
                let (guard, inside) = (&guard, &inside);
                move || {
                    let mut admitted = 0_u64;
                    for _ in 0..20_000 {
                        let Ok(_call) = guard.enter(thread, barrier_everywhere) else { continue };
                        assert_eq!(inside.swap(thread, Ordering::Relaxed), 0);
                        admitted += 1;
                        inside.store(0, Ordering::Relaxed);
                    }
                    admitted
                }
            };
            let threads: Vec<_> = (1..4).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
        });
        assert!(admitted > 0);
    }
}
