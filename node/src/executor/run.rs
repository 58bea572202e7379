//! The rounds.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use nearstate_model::{Error, Result};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::time::Sleep;

use crate::executor::class::TaskClass;
use crate::executor::context::{self, ExecutorContext};
use crate::executor::metrics::{ExecutorMetrics, LongPoll};
use crate::executor::ready::{self, Current, Task};
use crate::executor::spawn::{self, TaskHandle};
use crate::executor::spin::IdleGaps;
use crate::executor::waker::RemoteWakes;
use crate::executor::{
    BACKGROUND_SHARE, BACKGROUND_SLICE, CONTROL_IN_A_ROW, ExecutorConfig, POLL_SOURCE_IDLE_MAX,
    POLL_SOURCE_SPIN, REQUEST_SLICE, ROUND,
};

/// Runs tasks on the thread that made it. Dropped, it drops them.
#[derive(Debug)]
pub struct Executor {
    context: Rc<ExecutorContext>,
    runtime: LocalRuntime,
    rounds: Rounds,
}

/// What the rounds need, and keep from one to the next.
#[derive(Debug)]
struct Rounds {
    context: Rc<ExecutorContext>,
    round: u64,
    request_slice: u64,
    background_slice: u64,
    long_poll: u64,
    watch_source: u64,
    look_out_max: u64,
    on_long_poll: fn(&LongPoll),
    gaps: RefCell<IdleGaps>,
    /// When the last work was done; 0 while there is some.
    idle_since: Cell<u64>,
    has_slept: Cell<bool>,
    /// When the present round is over.
    round_end: Cell<u64>,
    /// Ticks of background work that busy rounds owe.
    owed: Cell<u64>,
    alarm: RefCell<RuntimeTimer>,
}

/// The runtime's one timer, and the reading for which it is set.
#[derive(Debug, Default)]
struct RuntimeTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    at: u64,
}

/// Numbers executors, so that a waker knows its own thread. 0 is none.
static EXECUTORS: AtomicU64 = AtomicU64::new(1);

impl Executor {
    /// Makes the executor of this thread, and the runtime under it.
    ///
    /// # Errors
    /// `BadArgument` if this thread has one, `System` if the kernel refuses what the runtime needs.
    pub fn new(config: &ExecutorConfig) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .map_err(|e| Error::System {
                detail: format!("event loop of a core ({e}); raise `ulimit -n`"),
                errno: e.raw_os_error().unwrap_or(0),
            })?;
        let number = EXECUTORS.fetch_add(1, Ordering::Relaxed);
        let metrics = Arc::new(ExecutorMetrics::new(config.clock.clone()));
        let remote = Arc::new(RemoteWakes::new(number));
        let context = Rc::new(ExecutorContext::new(config.clock.clone(), remote, metrics));
        if !context::install(&context, number) {
            return Err(Error::BadArgument {
                detail: "this thread has an executor; drop it first, or use another thread"
                    .to_owned(),
            });
        }
        let rounds = Rounds::new(Rc::clone(&context), config);
        Ok(Self { context, runtime, rounds })
    }

    /// Begins a task. It runs while [`Executor::run`] does.
    pub fn spawn<F>(&self, class: TaskClass, name: &'static str, future: F) -> TaskHandle<F::Output>
    where
        F: Future + 'static,
    {
        spawn::spawn_at(&self.context, class, name, future)
    }

    /// Runs everything until this future is done. The others stay where they are, and go on with
    /// the next call.
    ///
    /// # Panics
    /// If a task panics: a broken invariant ends the core.
    pub fn run<F>(&self, main: F) -> F::Output
    where
        F: Future + 'static,
    {
        let mut main = pin!(self.spawn(TaskClass::Request, "main", main));
        let run = std::future::poll_fn(|cx| {
            self.rounds
                .turn(cx, || main.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())))
        });
        let output = self.runtime.block_on(tokio::task::unconstrained(run));
        output.unwrap_or_else(|| unreachable!("nobody else has the main task's handle"))
    }

    /// What it counts.
    pub fn metrics(&self) -> Arc<ExecutorMetrics> {
        Arc::clone(&self.context.metrics)
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        context::uninstall();
    }
}

impl Rounds {
    fn new(context: Rc<ExecutorContext>, config: &ExecutorConfig) -> Self {
        let clock = &config.clock;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let gaps = IdleGaps::new(config.spin, processors, |time| clock.ticks(time));
        Self {
            round: clock.ticks(ROUND),
            request_slice: clock.ticks(REQUEST_SLICE),
            background_slice: clock.ticks(BACKGROUND_SLICE),
            long_poll: clock.ticks(config.long_poll),
            watch_source: clock.ticks(POLL_SOURCE_SPIN),
            look_out_max: clock.ticks(POLL_SOURCE_IDLE_MAX),
            on_long_poll: config.on_long_poll,
            gaps: RefCell::new(gaps),
            idle_since: Cell::new(0),
            has_slept: Cell::new(false),
            round_end: Cell::new(0),
            owed: Cell::new(0),
            alarm: RefCell::default(),
            context,
        }
    }

    /// One call of the runtime: a round, and what follows from it.
    fn turn<T>(&self, cx: &mut Context<'_>, mut is_done: impl FnMut() -> Poll<T>) -> Poll<T> {
        ready::set_sleeper(None);
        self.context.remote.unpark();
        let begun = self.context.clock.now();
        loop {
            let is_more = self.round();
            if let Poll::Ready(done) = is_done() {
                return Poll::Ready(done);
            }
            if is_more {
                // The runtime looks at the sockets without waiting, and calls again.
                return look_at_sockets(cx);
            }
            if self.is_worth_looking() {
                // Whoever comes through memory again and again must not keep those away who come
                // by sockets: they are looked at after a round's time at the latest.
                let has_time = self.context.clock.now().saturating_sub(begun) < self.round;
                if has_time && self.looks_out() {
                    continue;
                }
                return look_at_sockets(cx);
            }
            if !self.skip_to_deadline() {
                return self.sleep(cx);
            }
        }
    }

    /// Polls who is ready. `true`: somebody still is.
    fn round(&self) -> bool {
        let context = &*self.context;
        context.metrics.rounds.add(1);
        let woken = context.remote.collect();
        if woken > 0 {
            context.metrics.remote_wakes.add(woken);
        }
        let begin = context.clock.now();
        context.pass_deadlines(begin);
        context.poll_sources.look(begin.saturating_sub(self.look_out_max));
        if !ready::has_foreground() && !ready::has_background() {
            return false;
        }
        self.work_has_come(begin);
        let end = begin + self.round;
        self.round_end.set(end);
        let mut now = begin;
        let mut next = ready::pop_foreground(CONTROL_IN_A_ROW);
        while let Some(task) = next {
            let polled = self.poll(task, &mut now);
            context.pass_deadlines(now);
            if now >= end {
                if let Some(polled) = polled {
                    ready::put(polled);
                }
                break;
            }
            next = ready::put_and_pop_foreground(polled, CONTROL_IN_A_ROW);
        }
        if ready::has_background() {
            now = self.background(begin, now);
        }
        ready::set_current(Current::default());
        let is_more = ready::has_foreground() || ready::has_background();
        if !is_more {
            self.idle_since.set(now.max(1));
            context.metrics.rests(now);
        }
        is_more
    }

    /// A slice of background work, if nobody else is ready or others have had their share.
    fn background(&self, begin: u64, begin_slice: u64) -> u64 {
        let share = (begin_slice - begin) * u64::from(BACKGROUND_SHARE) / 100;
        let owed = self.owed.get().saturating_add(share);
        let is_free = !ready::has_foreground();
        if !is_free && owed < self.background_slice {
            self.owed.set(owed);
            return begin_slice;
        }
        self.context.metrics.slices.add(1);
        let end = begin_slice + self.background_slice;
        let mut now = begin_slice;
        while let Some(next) = ready::pop_background() {
            if let Some(polled) = self.poll(next, &mut now) {
                ready::put(polled);
            }
            self.context.pass_deadlines(now);
            if now >= end || (is_free && ready::has_foreground()) {
                break;
            }
        }
        let used = if is_free { owed } else { now - begin_slice };
        self.owed.set(owed.saturating_sub(used));
        now
    }

    /// Polls one task, and notes the time after it. Returns the task, unless it has ended.
    #[inline]
    fn poll(&self, mut task: Box<Task>, now: &mut u64) -> Option<Box<Task>> {
        let context = &*self.context;
        let class = task.class;
        let (due, due_alone) = match class {
            TaskClass::Background => (*now + self.background_slice, *now + self.background_slice),
            TaskClass::Control | TaskClass::Request => {
                (*now + self.request_slice, self.round_end.get())
            }
        };
        let waker = task.waker.data().addr();
        ready::set_current(Current { id: task.id, waker, due, due_alone });
        let name = task.name;
        context.metrics.poll_begins(*now, name);
        let mut cx = Context::from_waker(&task.waker);
        let polled = task.future.as_mut().poll(&mut cx);
        let kept = if polled.is_pending() && !context.is_current_cancelled() {
            Some(task)
        } else {
            context.end(task);
            None
        };
        let after = context.clock.now().max(*now);
        let ticks = after - *now;
        *now = after;
        context.metrics.poll_ended(class, ticks);
        if ticks > self.long_poll {
            (self.on_long_poll)(&context.metrics.poll_was_long(name, class, ticks));
        }
        kept
    }

    fn work_has_come(&self, now: u64) {
        let since = self.idle_since.replace(0);
        if since > 0 {
            let has_slept = self.has_slept.replace(false);
            if has_slept {
                self.context.metrics.awakes(now);
            }
            self.gaps.borrow_mut().note(now.saturating_sub(since), has_slept);
        }
    }

    /// True if work has been coming so fast that a sleep would cost more than to look for it.
    fn is_worth_looking(&self) -> bool {
        let context = &*self.context;
        let bound = self.gaps.borrow().look();
        let since = self.idle_since.get();
        let is_worth = bound > 0
            && !self.has_slept.get()
            && !context.clock.is_virtual()
            && context.clock.now().saturating_sub(since) < bound;
        if is_worth {
            context.metrics.spins.add(1);
        }
        is_worth
    }

    /// Looks at shared memory for a while. True if something has come.
    fn looks_out(&self) -> bool {
        let context = &*self.context;
        if context.poll_sources.is_empty() {
            return false;
        }
        let begin = context.clock.now();
        let mut now = begin;
        while now - begin < self.watch_source {
            if context.poll_sources.look(now.saturating_sub(self.look_out_max)) {
                return true;
            }
            std::hint::spin_loop();
            now = context.clock.now().max(now);
        }
        false
    }

    /// A virtual clock has no reason to wait.
    fn skip_to_deadline(&self) -> bool {
        let next = self.context.deadline_next();
        let is_virtual = self.context.clock.is_virtual() && next < u64::MAX;
        if is_virtual {
            self.context.clock.advance_to(next);
        }
        is_virtual
    }

    /// Sleeps until a socket, another thread or the next deadline.
    fn sleep<T>(&self, cx: &mut Context<'_>) -> Poll<T> {
        if !self.context.poll_sources.all_asleep()
            || !self.context.remote.park(cx.waker())
            || self.is_alarmed(cx)
        {
            self.context.remote.unpark();
            return look_at_sockets(cx);
        }
        ready::set_sleeper(Some(cx.waker().clone()));
        self.has_slept.set(true);
        self.context.metrics.parks.add(1);
        Poll::Pending
    }

    /// Sets the runtime's timer to the next deadline. `true`: it has passed.
    fn is_alarmed(&self, cx: &mut Context<'_>) -> bool {
        let next = self.context.deadline_next();
        let mut alarm = self.alarm.borrow_mut();
        if next == u64::MAX {
            *alarm = RuntimeTimer::default();
            return false;
        }
        if alarm.sleep.is_none() || alarm.at != next {
            let left = self.context.clock.time(next.saturating_sub(self.context.clock.now()));
            // Rounded up: what is woken a little too early would have to sleep again.
            let at = tokio::time::Instant::now() + left + Duration::from_micros(1);
            match &mut alarm.sleep {
                Some(sleep) => sleep.as_mut().reset(at),
                None => alarm.sleep = Some(Box::pin(tokio::time::sleep_until(at))),
            }
            alarm.at = next;
        }
        let has_passed =
            alarm.sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready());
        if has_passed {
            *alarm = RuntimeTimer::default();
        }
        has_passed
    }
}

/// Gives way to the runtime, which polls its sockets and comes back at once.
fn look_at_sockets<T>(cx: &mut Context<'_>) -> Poll<T> {
    let looked = pin!(tokio::task::yield_now()).poll(cx);
    debug_assert!(looked.is_pending(), "a yield gives way first");
    Poll::Pending
}
