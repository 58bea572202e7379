//! Tests of the executor with a virtual clock, so that no test depends on the speed of the machine.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

use super::*;

fn at_virtual_time() -> (Executor, Clock) {
    let clock = Clock::new_virtual();
    let config = ExecutorConfig { clock: clock.clone(), ..ExecutorConfig::default() };
    (Executor::new(&config).unwrap(), clock)
}

/// Advances the virtual clock, as a computation does.
fn compute(clock: &Clock, micros: u64) {
    clock.advance(Duration::from_micros(micros));
}

type Log = Rc<RefCell<Vec<&'static str>>>;

#[test]
fn a_waiter_receives_the_output_of_its_task() {
    let (executor, _) = at_virtual_time();
    let task = executor.spawn(TaskClass::Request, "seven", async {
        yield_now().await;
        7
    });
    assert_eq!(executor.run(task), Some(7));
}

#[test]
fn classes_are_polled_in_their_order() {
    let (executor, _) = at_virtual_time();
    let log = Log::default();
    for class in [TaskClass::Background, TaskClass::Request, TaskClass::Control] {
        let log = Rc::clone(&log);
        drop(executor.spawn(class, "noter", async move {
            for _ in 0..2 {
                log.borrow_mut().push(class.name());
                yield_now().await;
            }
        }));
    }
    executor.run(sleep_until(1_000_000));
    let seen = log.borrow().join(" ");
    assert_eq!(seen, "control control request request background background");
}

#[test]
fn background_work_gets_exactly_its_share_under_constant_load() {
    let (executor, clock) = at_virtual_time();
    let spent = Rc::new([const { Cell::new(0) }; 2]);
    for (at, class) in [(0, TaskClass::Request), (1, TaskClass::Background)] {
        let (clock, spent) = (clock.clone(), Rc::clone(&spent));
        drop(executor.spawn(class, "busy", async move {
            loop {
                compute(&clock, 10);
                spent[at].set(spent[at].get() + 10);
                yield_now().await;
            }
        }));
    }
    let end = Duration::from_secs(1);
    executor.run(sleep(end));
    let [request, background] = [spent[0].get(), spent[1].get()];
    let percent = 100 * background / (request + background);
    assert!((4..=5).contains(&percent), "{request} and {background} us");
}

#[test]
fn a_request_that_arrives_during_background_work_waits_for_one_slice() {
    let (executor, clock) = at_virtual_time();
    let busy = clock.clone();
    drop(executor.spawn(TaskClass::Background, "scan", async move {
        loop {
            for _ in 0..64 {
                compute(&busy, 1);
                yield_if_due().await;
            }
        }
    }));
    let at = clock.now();
    let worst = executor.run(async move {
        let mut worst = Duration::ZERO;
        for round in 1..100 {
            let deadline = at + clock.ticks(Duration::from_micros(997 * round));
            sleep_until(deadline).await;
            worst = worst.max(clock.time(clock.now() - deadline));
        }
        worst
    });
    assert!(worst <= BACKGROUND_SLICE + Duration::from_micros(1), "{worst:?}");
}

#[test]
fn sockets_are_checked_once_per_round_however_busy_the_tasks_are() {
    let (executor, clock) = at_virtual_time();
    let metrics = executor.metrics();
    let rounds = executor.run(async move {
        let before = metrics.snapshot().rounds;
        let end = clock.now() + clock.ticks(50 * ROUND);
        while clock.now() < end {
            compute(&clock, 20);
            yield_if_due().await;
        }
        metrics.snapshot().rounds - before
    });
    // The last task of a round may be in the middle of its slice when the round is over.
    assert!((40..=50).contains(&rounds), "{rounds}");
}

#[test]
fn a_task_that_has_used_its_slice_is_due_if_another_waits_or_the_round_is_over() {
    let (executor, clock) = at_virtual_time();
    let over = REQUEST_SLICE + Duration::from_micros(1);
    let task = executor.spawn(TaskClass::Request, "long", async move {
        // The waiter of this task is polled once.
        yield_now().await;
        clock.advance(over);
        assert!(!is_due(), "no other task waits");
        drop(spawn(TaskClass::Request, "other", async {}));
        assert!(is_due(), "another task waits");
        yield_now().await;
        clock.advance(REQUEST_SLICE / 2);
        assert!(!is_due(), "a new slice");
        clock.advance(ROUND);
        assert!(is_due(), "the sockets must be checked");
        yield_now().await;
        clock.advance(over);
        assert!(!is_due());
        let deadline = sleep_until(clock.now() + 1);
        drop(spawn(TaskClass::Request, "sleeper", deadline));
        yield_now().await;
        clock.advance(over);
        assert!(is_due(), "a deadline has passed");
    });
    executor.run(task);
}

#[test]
fn a_thousand_waiting_tasks_cause_no_rounds() {
    let executor =
        Executor::new(&ExecutorConfig { spin: SpinPolicy::Never, ..ExecutorConfig::default() })
            .unwrap();
    let event = Rc::new(TaskEvent::default());
    for _ in 0..1000 {
        let event = Rc::clone(&event);
        drop(executor.spawn(TaskClass::Request, "idle", async move {
            sleep(Duration::from_secs(3600)).await;
            event.wait().await;
        }));
    }
    executor.run(yield_now());
    let metrics = executor.metrics();
    let before = metrics.snapshot();
    executor.run(sleep(Duration::from_millis(50)));
    let after = metrics.snapshot();
    // The runtime's wheel has slots of a millisecond and larger ones further out: a few wakes.
    assert!(after.rounds - before.rounds < 10, "{before:?} {after:?}");
    assert!(after.polls[1].total() - before.polls[1].total() < 5);
}

#[test]
fn deadlines_pass_in_order_and_a_dropped_sleep_does_not_wake() {
    let (executor, clock) = at_virtual_time();
    let log = Log::default();
    for (millis, name) in [(30, "c"), (10, "a"), (20, "b")] {
        let log = Rc::clone(&log);
        drop(executor.spawn(TaskClass::Request, name, async move {
            sleep(Duration::from_millis(millis)).await;
            log.borrow_mut().push(name);
        }));
    }
    let slow = timeout(Duration::from_millis(25), std::future::pending::<()>());
    assert_eq!(executor.run(slow), None);
    assert_eq!(clock.now(), 25_000_000);
    assert_eq!(executor.run(timeout(Duration::from_millis(25), yield_now())), Some(()));
    executor.run(sleep_until(30_000_001));
    assert_eq!(*log.borrow(), ["a", "b", "c"]);
    assert_eq!(clock.now(), 30_000_001, "the deadline at 50 ms was given up");
}

struct OnDrop(Log, &'static str);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.borrow_mut().push(self.1);
    }
}

#[test]
fn a_cancelled_task_drops_its_captures_at_any_await_point() {
    let (executor, _) = at_virtual_time();
    let log = Log::default();
    let held = OnDrop(Rc::clone(&log), "waiting");
    let waiting = executor.spawn(TaskClass::Request, "waiting", async move {
        std::future::pending::<()>().await;
        drop(held);
    });
    let held = OnDrop(Rc::clone(&log), "itself");
    let own = Rc::new(RefCell::new(None::<TaskHandle<()>>));
    let handle = Rc::clone(&own);
    let itself = executor.spawn(TaskClass::Request, "itself", async move {
        handle.borrow().as_ref().unwrap().cancel();
        yield_now().await;
        drop(held);
        handle.borrow_mut().take();
    });
    *own.borrow_mut() = Some(itself);
    executor.run(yield_now());
    assert_eq!(*log.borrow(), ["itself"]);
    waiting.cancel();
    waiting.cancel();
    assert_eq!(*log.borrow(), ["itself", "waiting"]);
    assert!(waiting.is_finished() && own.borrow().as_ref().unwrap().is_finished());
    assert_eq!(executor.run(waiting), None);
    let held = OnDrop(Rc::clone(&log), "executor");
    drop(executor.spawn(TaskClass::Request, "never", async move { drop(held) }));
    drop(executor);
    assert_eq!(*log.borrow(), ["itself", "waiting", "executor"]);
}

#[test]
fn an_event_releases_one_waiter_per_set_and_keeps_a_set_without_a_waiter() {
    let (executor, _) = at_virtual_time();
    let (event, passed) = (Rc::new(TaskEvent::default()), Rc::new(Cell::new(0)));
    for _ in 0..3 {
        let (event, passed) = (Rc::clone(&event), Rc::clone(&passed));
        drop(executor.spawn(TaskClass::Request, "waiter", async move {
            event.wait_and_reset().await;
            passed.set(passed.get() + 1);
        }));
    }
    for opened in 1..=3 {
        event.set();
        executor.run(async {
            for _ in 0..9 {
                yield_now().await;
            }
        });
        assert_eq!(passed.get(), opened);
    }
    event.set();
    executor.run(async move { event.wait_and_reset().await });
}

#[test]
fn a_future_with_its_own_waker_is_polled_only_after_that_waker_was_woken() {
    /// Polls its future with its own waker, and only if that waker was woken.
    struct Wrapped<F>(Pin<Box<F>>, Arc<Flag>, Waker);
    #[derive(Default)]
    struct Flag(AtomicBool, std::sync::Mutex<Option<Waker>>);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
            if let Some(outer) = self.1.lock().unwrap().as_ref() {
                outer.wake_by_ref();
            }
        }
    }
    impl<F: Future> Future for Wrapped<F> {
        type Output = F::Output;
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            *self.1.1.lock().unwrap() = Some(cx.waker().clone());
            if !self.1.0.swap(false, Ordering::Relaxed) {
                return Poll::Pending;
            }
            let waker = self.2.clone();
            self.0.as_mut().poll(&mut Context::from_waker(&waker))
        }
    }
    let (executor, _) = at_virtual_time();
    let flag = Arc::new(Flag(AtomicBool::new(true), std::sync::Mutex::default()));
    let event = Rc::new(TaskEvent::default());
    let setter = Rc::clone(&event);
    let inner = async move {
        yield_now().await;
        sleep(Duration::from_millis(1)).await;
        event.wait().await;
    };
    let wrapped = Wrapped(Box::pin(inner), Arc::clone(&flag), Waker::from(flag));
    let task = executor.spawn(TaskClass::Request, "wrapped", wrapped);
    executor.run(sleep(Duration::from_millis(2)));
    setter.set();
    assert_eq!(executor.run(task), Some(()));
}

#[test]
fn a_long_poll_is_counted_named_and_reported() {
    static REPORTED: AtomicU64 = AtomicU64::new(0);
    let clock = Clock::new_virtual();
    let executor = Executor::new(&ExecutorConfig {
        clock: clock.clone(),
        on_long_poll: |poll| {
            assert_eq!((poll.task, poll.class), ("hog", TaskClass::Request));
            REPORTED.store(u64::try_from(poll.time.as_micros()).unwrap(), Ordering::Relaxed);
        },
        ..ExecutorConfig::default()
    })
    .unwrap();
    let metrics = executor.metrics();
    let seen = Arc::clone(&metrics);
    let hog = executor.spawn(TaskClass::Request, "hog", async move {
        let poll_stamp = seen.poll_stamp();
        compute(&clock, 1500);
        assert_eq!(seen.name_of(poll_stamp), "hog");
        assert_eq!(poll_stamp, seen.poll_stamp(), "still the same poll");
    });
    executor.run(hog);
    let seen = metrics.snapshot();
    assert_eq!((seen.long_polls, seen.long_by_name.get("hog")), (1, Some(&1)));
    assert_eq!(REPORTED.load(Ordering::Relaxed), 1500);
    assert!(seen.polls[1].quantile(1.0) >= 1_500_000);
    assert!(metrics.poll_stamp().is_idle());
}

#[test]
fn a_task_can_change_its_class() {
    let (executor, clock) = at_virtual_time();
    let metrics = executor.metrics();
    let task = executor.spawn(TaskClass::Request, "walk", async move {
        become_class(TaskClass::Background);
        yield_now().await;
        compute(&clock, 40);
        assert!(is_due(), "the slice of background work is shorter");
        become_class(TaskClass::Request);
        yield_now().await;
        compute(&clock, 40);
        assert!(!is_due());
    });
    executor.run(task);
    assert_eq!(metrics.snapshot().polls[2].total(), 1);
}

#[test]
fn a_second_executor_on_a_thread_is_refused() {
    let (_executor, _) = at_virtual_time();
    assert!(Executor::new(&ExecutorConfig::default()).is_err());
}

#[test]
#[should_panic(expected = "a broken invariant")]
fn a_panic_ends_the_core() {
    let (executor, _) = at_virtual_time();
    drop(executor.spawn(TaskClass::Request, "broken", async { panic!("a broken invariant") }));
    executor.run(sleep_until(1));
}

#[expect(clippy::disallowed_methods, reason = "the test needs other threads")]
fn thread<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(run)
}

#[test]
fn messages_of_other_threads_arrive_in_order_and_a_full_queue_rejects() {
    const EACH: u64 = 20_000;
    let executor = Executor::new(&ExecutorConfig::default()).unwrap();
    let (outbox, mut inbox) = inbox::<(usize, u64)>(64);
    let senders: Vec<_> = (0..3)
        .map(|sender| {
            let outbox = outbox.clone();
            thread(move || {
                let mut refused = 0_u64;
                for number in 0..EACH {
                    while outbox.send((sender, number)).is_err() {
                        refused += 1;
                        std::thread::yield_now();
                    }
                }
                refused
            })
        })
        .collect();
    drop(outbox);
    let next = executor.run(async move {
        let (mut next, mut batch) = ([0; 3], Vec::new());
        while inbox.receive_many(&mut batch, 16).await > 0 {
            assert!(batch.len() <= 16);
            for (sender, number) in batch.drain(..) {
                assert_eq!(number, next[sender]);
                next[sender] += 1;
            }
        }
        next
    });
    assert_eq!(next, [EACH; 3]);
    drop(senders.into_iter().map(|sender| sender.join().unwrap()).collect::<Vec<_>>());

    let (outbox, inbox) = super::inbox(2);
    assert_eq!((outbox.send(1), outbox.send(2), outbox.send(3)), (Ok(()), Ok(()), Err(3)));
    drop(inbox);
    assert_eq!(outbox.send(4), Err(4));
}

/// Two threads exchange a number through wakers, with and without sleeping in between. A lost wake
/// makes the test hang.
#[test]
fn no_wake_of_another_thread_is_lost() {
    struct Slot(AtomicU64, std::sync::Mutex<Option<Waker>>);
    const TURNS: u64 = 10_000;
    for spin in [SpinPolicy::Never, SpinPolicy::Always { time: Duration::from_micros(50) }] {
        let slot = Arc::new(Slot(AtomicU64::new(0), std::sync::Mutex::default()));
        let barrier = Arc::new(Barrier::new(2));
        let run = |mine: u64, slot: Arc<Slot>, barrier: Arc<Barrier>| {
            move || {
                let executor =
                    Executor::new(&ExecutorConfig { spin, ..ExecutorConfig::default() }).unwrap();
                barrier.wait();
                let mut next = mine;
                let exchange = std::future::poll_fn(move |cx| {
                    while next < TURNS {
                        let seen = slot.0.load(Ordering::Acquire);
                        if seen == next {
                            slot.0.store(next + 1, Ordering::Release);
                            next += 2;
                            if let Some(other) = slot.1.lock().unwrap().take() {
                                other.wake();
                            }
                        } else {
                            let mut waker = slot.1.lock().unwrap();
                            if slot.0.load(Ordering::Acquire) == next {
                                continue;
                            }
                            *waker = Some(cx.waker().clone());
                            return Poll::Pending;
                        }
                    }
                    Poll::Ready(())
                });
                executor.run(exchange);
            }
        };
        let other = thread(run(1, Arc::clone(&slot), Arc::clone(&barrier)));
        run(0, slot, barrier)();
        other.join().unwrap();
    }
}
