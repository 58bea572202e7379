//! The rounds of an executor.

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
use crate::executor::ready::{self, CurrentTask, Task};
use crate::executor::spawn::{self, TaskHandle};
use crate::executor::spin::IdleGaps;
use crate::executor::waker::RemoteWakes;
use crate::executor::{
    BACKGROUND_SHARE, BACKGROUND_SLICE, CONTROL_IN_A_ROW, ExecutorConfig, POLL_SOURCE_IDLE_MAX,
    POLL_SOURCE_SPIN, REQUEST_SLICE, ROUND,
};

/// Runs tasks on the thread that created it. Dropping it drops them.
#[derive(Debug)]
pub struct Executor {
    context: Rc<ExecutorContext>,
    runtime: LocalRuntime,
    rounds: RoundState,
}

/// The state of the rounds.
#[derive(Debug)]
struct RoundState {
    context: Rc<ExecutorContext>,
    round: u64,
    request_slice: u64,
    background_slice: u64,
    long_poll: u64,
    source_spin: u64,
    source_idle_max: u64,
    on_long_poll: fn(&LongPoll),
    gaps: RefCell<IdleGaps>,
    /// When the last work ended; 0 while there is work.
    idle_since: Cell<u64>,
    has_slept: Cell<bool>,
    /// The end of the current round.
    round_end: Cell<u64>,
    /// Ticks of background work that busy rounds have left out.
    owed: Cell<u64>,
    timer: RefCell<RuntimeTimer>,
}

/// The runtime's only timer, and the reading for which it is set.
#[derive(Debug, Default)]
struct RuntimeTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    at: u64,
}

/// Numbers the executors, so that a waker recognises its own thread. 0: none.
static EXECUTORS: AtomicU64 = AtomicU64::new(1);

impl Executor {
    /// Creates the executor of this thread and its runtime.
    ///
    /// # Errors
    /// `BadArgument` if this thread has an executor, `System` if the kernel refuses its resources.
    pub fn new(config: &ExecutorConfig) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .map_err(|e| Error::System {
                detail: format!("cannot create the event loop of a core ({e}); raise `ulimit -n`"),
                errno: e.raw_os_error().unwrap_or(0),
            })?;
        let number = EXECUTORS.fetch_add(1, Ordering::Relaxed);
        let metrics = Arc::new(ExecutorMetrics::new(config.clock.clone()));
        let remote = Arc::new(RemoteWakes::new(number));
        let context = Rc::new(ExecutorContext::new(config.clock.clone(), remote, metrics));
        if !context::install(&context, number) {
            return Err(Error::BadArgument {
                detail: "this thread has an executor already; drop it first, or use another thread"
                    .to_owned(),
            });
        }
        let rounds = RoundState::new(Rc::clone(&context), config);
        Ok(Self { context, runtime, rounds })
    }

    /// Spawns a task. It runs while [`Executor::run`] does.
    pub fn spawn<F>(&self, class: TaskClass, name: &'static str, future: F) -> TaskHandle<F::Output>
    where
        F: Future + 'static,
    {
        spawn::spawn_at(&self.context, class, name, future)
    }

    /// Runs all tasks until this future completes. The other tasks continue with the next call.
    ///
    /// # Panics
    /// If a task panics: a violated invariant ends the core.
    pub fn run<F>(&self, main: F) -> F::Output
    where
        F: Future + 'static,
    {
        let mut main = pin!(self.spawn(TaskClass::Request, "main", main));
        let run = std::future::poll_fn(|cx| {
            self.rounds.poll_rounds(cx, || {
                main.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()))
            })
        });
        let output = self.runtime.block_on(tokio::task::unconstrained(run));
        output.unwrap_or_else(|| unreachable!("only this function has the handle of the main task"))
    }

    /// The metrics of the executor.
    pub fn metrics(&self) -> Arc<ExecutorMetrics> {
        Arc::clone(&self.context.metrics)
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        context::uninstall();
    }
}

impl RoundState {
    fn new(context: Rc<ExecutorContext>, config: &ExecutorConfig) -> Self {
        let clock = &config.clock;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let gaps = IdleGaps::new(config.spin, processors, |time| clock.ticks(time));
        Self {
            round: clock.ticks(ROUND),
            request_slice: clock.ticks(REQUEST_SLICE),
            background_slice: clock.ticks(BACKGROUND_SLICE),
            long_poll: clock.ticks(config.long_poll),
            source_spin: clock.ticks(POLL_SOURCE_SPIN),
            source_idle_max: clock.ticks(POLL_SOURCE_IDLE_MAX),
            on_long_poll: config.on_long_poll,
            gaps: RefCell::new(gaps),
            idle_since: Cell::new(0),
            has_slept: Cell::new(false),
            round_end: Cell::new(0),
            owed: Cell::new(0),
            timer: RefCell::default(),
            context,
        }
    }

    /// One poll of the runtime: rounds, then busy-polling or sleep.
    fn poll_rounds<T>(
        &self,
        cx: &mut Context<'_>,
        mut is_done: impl FnMut() -> Poll<T>,
    ) -> Poll<T> {
        ready::set_sleeper(None);
        self.context.remote.unpark();
        let begun = self.context.clock.now();
        loop {
            let is_more = self.round();
            if let Poll::Ready(done) = is_done() {
                return Poll::Ready(done);
            }
            if is_more {
                // The runtime checks the sockets without waiting and polls again.
                return check_sockets(cx);
            }
            if self.should_spin() {
                // Continuous work from shared memory must not starve the sockets: they are checked
                // after the time of a round at the latest.
                let has_time = self.context.clock.now().saturating_sub(begun) < self.round;
                if has_time && self.spin_on_sources() {
                    continue;
                }
                return check_sockets(cx);
            }
            if !self.skip_to_deadline() {
                return self.sleep(cx);
            }
        }
    }

    /// Polls the ready tasks. `true`: some are still ready.
    fn round(&self) -> bool {
        let context = &*self.context;
        context.metrics.rounds.add(1);
        let woken = context.remote.collect();
        if woken > 0 {
            context.metrics.remote_wakes.add(woken);
        }
        let begin = context.clock.now();
        context.pass_deadlines(begin);
        context.poll_sources.poll(begin.saturating_sub(self.source_idle_max));
        if !ready::has_foreground() && !ready::has_background() {
            return false;
        }
        self.work_arrived(begin);
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
        ready::set_current(CurrentTask::default());
        let is_more = ready::has_foreground() || ready::has_background();
        if !is_more {
            self.idle_since.set(now.max(1));
            context.metrics.idles(now);
        }
        is_more
    }

    /// A slice of background work, if no other task is ready or if background work has time left
    /// over.
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

    /// Polls one task and reads the clock after it. Returns the task, unless it has ended.
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
        ready::set_current(CurrentTask { id: task.id, waker, due, due_alone });
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

    fn work_arrived(&self, now: u64) {
        let since = self.idle_since.replace(0);
        if since > 0 {
            let has_slept = self.has_slept.replace(false);
            if has_slept {
                self.context.metrics.wakes_up(now);
            }
            self.gaps.borrow_mut().note(now.saturating_sub(since), has_slept);
        }
    }

    /// True if work has been arriving so fast that a sleep would cost more than busy-polling.
    fn should_spin(&self) -> bool {
        let context = &*self.context;
        let bound = self.gaps.borrow().spin_time();
        let since = self.idle_since.get();
        let is_short = bound > 0
            && !self.has_slept.get()
            && !context.clock.is_virtual()
            && context.clock.now().saturating_sub(since) < bound;
        if is_short {
            context.metrics.spins.add(1);
        }
        is_short
    }

    /// Polls shared memory for a while. True if a source became ready.
    fn spin_on_sources(&self) -> bool {
        let context = &*self.context;
        if context.poll_sources.is_empty() {
            return false;
        }
        let begin = context.clock.now();
        let mut now = begin;
        while now - begin < self.source_spin {
            if context.poll_sources.poll(now.saturating_sub(self.source_idle_max)) {
                return true;
            }
            std::hint::spin_loop();
            now = context.clock.now().max(now);
        }
        false
    }

    /// A virtual clock skips to the next deadline.
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
        if !self.context.poll_sources.arm_all()
            || !self.context.remote.park(cx.waker())
            || self.has_deadline_passed(cx)
        {
            self.context.remote.unpark();
            return check_sockets(cx);
        }
        ready::set_sleeper(Some(cx.waker().clone()));
        self.has_slept.set(true);
        self.context.metrics.parks.add(1);
        Poll::Pending
    }

    /// Sets the runtime's timer to the next deadline. `true`: it has passed.
    fn has_deadline_passed(&self, cx: &mut Context<'_>) -> bool {
        let next = self.context.deadline_next();
        let mut timer = self.timer.borrow_mut();
        if next == u64::MAX {
            *timer = RuntimeTimer::default();
            return false;
        }
        if timer.sleep.is_none() || timer.at != next {
            let left = self.context.clock.time(next.saturating_sub(self.context.clock.now()));
            // Rounded up, so that the core does not wake up too early and sleep again.
            let at = tokio::time::Instant::now() + left + Duration::from_micros(1);
            match &mut timer.sleep {
                Some(sleep) => sleep.as_mut().reset(at),
                None => timer.sleep = Some(Box::pin(tokio::time::sleep_until(at))),
            }
            timer.at = next;
        }
        let has_passed =
            timer.sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready());
        if has_passed {
            *timer = RuntimeTimer::default();
        }
        has_passed
    }
}

/// Yields to the runtime, which polls its sockets and returns at once.
fn check_sockets<T>(cx: &mut Context<'_>) -> Poll<T> {
    let looked = pin!(tokio::task::yield_now()).poll(cx);
    debug_assert!(looked.is_pending(), "a yield gives way first");
    Poll::Pending
}
