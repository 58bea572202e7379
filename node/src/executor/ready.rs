//! The tasks of this thread's executor, and a queue of ready tasks for each class. All of it
//! belongs to one thread, so a wakeup is a few loads and a push.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Waker};

use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;

use crate::executor::class::TaskClass;

/// Identifies a task: its slot, and the number of earlier tasks of the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A task.
pub(crate) struct Task {
    pub(crate) id: TaskId,
    /// The class of the queue that the task came from.
    pub(crate) class: TaskClass,
    pub(crate) future: Pin<Box<dyn Future<Output = ()>>>,
    pub(crate) waker: Waker,
    /// The number of its name in the metrics.
    pub(crate) name: u16,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A slot for a task, and its state in the queues.
#[derive(Debug, Default)]
struct TaskSlot {
    generation: u32,
    class: TaskClass,
    /// The slot is in a queue, where it is at most once.
    is_queued: bool,
    /// No task has the slot. It is reused when it is in no queue.
    is_vacant: bool,
    /// `None` while the task is polled.
    task: Option<Box<Task>>,
}

/// The queues and the slots.
#[derive(Debug, Default)]
struct ReadyQueues {
    control: VecDeque<u32>,
    request: VecDeque<u32>,
    background: VecDeque<u32>,
    slots: Vec<TaskSlot>,
    vacant: Vec<u32>,
    control_in_a_row: u32,
    /// Wakes the executor; set while it sleeps.
    sleeper: Option<Waker>,
}

impl ReadyQueues {
    const fn new() -> Self {
        Self {
            control: VecDeque::new(),
            request: VecDeque::new(),
            background: VecDeque::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            control_in_a_row: 0,
            sleeper: None,
        }
    }

    #[inline]
    fn queue(&mut self, class: TaskClass) -> &mut VecDeque<u32> {
        match class {
            TaskClass::Control => &mut self.control,
            TaskClass::Request => &mut self.request,
            TaskClass::Background => &mut self.background,
        }
    }

    #[inline]
    fn push(&mut self, id: TaskId) -> Option<Waker> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation || slot.is_queued || slot.is_vacant {
            return None;
        }
        slot.is_queued = true;
        let class = slot.class;
        self.queue(class).push_back(id.index);
        if self.sleeper.is_some() { self.sleeper.take() } else { None }
    }

    /// Takes the task out of a slot that has left its queue. `None`: the task was cancelled.
    #[inline]
    fn take(&mut self, index: u32) -> Option<Box<Task>> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.is_queued = false;
        if let Some(mut task) = slot.task.take() {
            task.class = slot.class;
            return Some(task);
        }
        if slot.is_vacant {
            self.vacant.push(index);
        }
        None
    }

    #[inline]
    fn next_foreground(&mut self, control_in_a_row_max: u32) -> Option<u32> {
        let is_request_next = self.control_in_a_row >= control_in_a_row_max;
        if let Some(index) = (!is_request_next).then(|| self.control.pop_front()).flatten() {
            self.control_in_a_row += 1;
            return Some(index);
        }
        self.control_in_a_row = 0;
        self.request.pop_front().or_else(|| self.control.pop_front())
    }

    #[inline]
    fn pop_foreground(&mut self, control_in_a_row_max: u32) -> Option<Box<Task>> {
        loop {
            let index = self.next_foreground(control_in_a_row_max)?;
            if let Some(task) = self.take(index) {
                return Some(task);
            }
        }
    }

    /// Returns the task if it was cancelled while it was polled.
    #[inline]
    fn put(&mut self, task: Box<Task>) -> Option<Box<Task>> {
        match self.slot(task.id) {
            Some(slot) => slot.task.replace(task),
            None => Some(task),
        }
    }

    fn allocate(&mut self, class: TaskClass) -> TaskId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(TaskSlot { is_vacant: true, ..TaskSlot::default() });
            let last = u32::try_from(self.slots.len() - 1).ok();
            guaranteed(last, "a core has fewer than 2^32 tasks")
        });
        let slot = guaranteed(self.slots.get_mut(index as usize), "a vacant slot exists");
        invariant!(slot.is_vacant && slot.task.is_none(), "a slot has at most one task");
        slot.class = class;
        slot.is_vacant = false;
        TaskId { index, generation: slot.generation }
    }

    /// The slot of a task that has not ended.
    #[inline]
    fn slot(&mut self, id: TaskId) -> Option<&mut TaskSlot> {
        let slot = self.slots.get_mut(id.index as usize)?;
        (slot.generation == id.generation && !slot.is_vacant).then_some(slot)
    }

    fn remove(&mut self, id: TaskId) -> Option<Box<Task>> {
        let slot = self.slot(id)?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.is_vacant = true;
        let task = slot.task.take();
        if !slot.is_queued {
            self.vacant.push(id.index);
        }
        task
    }
}

/// The task that is being polled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CurrentTask {
    pub(crate) id: TaskId,
    /// The address of its waker's data; 0 between polls.
    pub(crate) waker: usize,
    /// The clock reading at which it should yield to other tasks.
    pub(crate) due: u64,
    /// The reading at which it should yield even if no other task is ready.
    pub(crate) due_alone: u64,
}

thread_local! {
    static READY: RefCell<ReadyQueues> = const { RefCell::new(ReadyQueues::new()) };
    static CURRENT: Cell<CurrentTask> = const {
        Cell::new(CurrentTask {
            id: TaskId { index: 0, generation: 0 },
            waker: 0,
            due: u64::MAX,
            due_alone: u64::MAX,
        })
    };
    /// The number of the executor on this thread; 0 if there is none.
    static EXECUTOR: Cell<u64> = const { Cell::new(0) };
}

/// The number of the executor on this thread; 0 if there is none.
#[inline]
pub(crate) fn executor() -> u64 {
    EXECUTOR.get()
}

/// Sets the executor of this thread, and drops the tasks of the previous one.
pub(crate) fn install(executor: u64) {
    // Dropping a task may wake or spawn others. A task that does so without end is a bug; the loop
    // gives up.
    for _ in 0..8 {
        let tasks = READY.take();
        if tasks.slots.is_empty() {
            break;
        }
        drop(tasks);
    }
    EXECUTOR.set(executor);
}

#[inline]
pub(crate) fn current() -> CurrentTask {
    CURRENT.get()
}

#[inline]
pub(crate) fn set_current(current: CurrentTask) {
    CURRENT.set(current);
}

/// Puts a task at the end of its queue, unless it is in it. Wakes a sleeping executor.
#[inline]
pub(crate) fn push(id: TaskId) {
    // A waker may be used while thread-local storage is destroyed. No task is polled after that.
    let sleeper = READY.try_with(|ready| ready.borrow_mut().push(id)).ok().flatten();
    if let Some(sleeper) = sleeper {
        sleeper.wake();
    }
}

/// The next control or request task.
#[inline]
pub(crate) fn pop_foreground(control_in_a_row_max: u32) -> Option<Box<Task>> {
    READY.with_borrow_mut(|ready| ready.pop_foreground(control_in_a_row_max))
}

/// [`put`] and [`pop_foreground`] in one step, which happens after every poll.
#[inline]
pub(crate) fn put_and_pop_foreground(
    polled: Option<Box<Task>>,
    control_in_a_row_max: u32,
) -> Option<Box<Task>> {
    let (left, next) = READY.with_borrow_mut(|ready| {
        let left = polled.and_then(|polled| ready.put(polled));
        (left, ready.pop_foreground(control_in_a_row_max))
    });
    drop(left);
    next
}

/// The next background task.
#[inline]
pub(crate) fn pop_background() -> Option<Box<Task>> {
    READY.with_borrow_mut(|ready| {
        loop {
            let index = ready.background.pop_front()?;
            if let Some(task) = ready.take(index) {
                return Some(task);
            }
        }
    })
}

/// Returns a task to its slot.
pub(crate) fn put(polled: Box<Task>) {
    // No task is dropped while the queues are borrowed.
    drop(READY.with_borrow_mut(|ready| ready.put(polled)));
}

/// True if a control or request task is ready.
#[inline]
pub(crate) fn has_foreground() -> bool {
    READY.with_borrow(|ready| !ready.control.is_empty() || !ready.request.is_empty())
}

/// True if a background task is ready.
#[inline]
pub(crate) fn has_background() -> bool {
    READY.with_borrow(|ready| !ready.background.is_empty())
}

/// Allocates a slot for a new task. It is in no queue yet.
pub(crate) fn allocate(class: TaskClass) -> TaskId {
    READY.with_borrow_mut(|ready| ready.allocate(class))
}

/// Frees the slot of a task. Its later wakeups have no effect. Returns the task, unless it is being
/// polled or had no slot.
pub(crate) fn remove(id: TaskId) -> Option<Box<Task>> {
    READY.with_borrow_mut(|ready| ready.remove(id))
}

/// Changes the class of a task, from its next wakeup on.
pub(crate) fn reclassify(id: TaskId, class: TaskClass) {
    READY.with_borrow_mut(|ready| {
        if let Some(slot) = ready.slot(id) {
            slot.class = class;
        }
    });
}

/// Sets the waker that the next push consumes.
pub(crate) fn set_sleeper(sleeper: Option<Waker>) {
    READY.with_borrow_mut(|ready| ready.sleeper = sleeper);
}

/// Wakes the current task.
#[inline]
pub(crate) fn wake_current(cx: &Context<'_>) {
    let current = CURRENT.get();
    if current.waker != 0 && cx.waker().data().addr() == current.waker {
        push(current.id);
    } else {
        cx.waker().wake_by_ref();
    }
}

/// A waiter on this thread. A task of this executor is identified by its number, which costs
/// nothing to store. A wrapped waker (of a `select`, of a set of futures) is stored as it is.
#[derive(Clone, Debug)]
pub(crate) enum TaskWaiter {
    Task(TaskId),
    Other(Waker),
}

impl TaskWaiter {
    #[inline]
    pub(crate) fn of(cx: &Context<'_>) -> Self {
        let current = CURRENT.get();
        if current.waker != 0 && cx.waker().data().addr() == current.waker {
            Self::Task(current.id)
        } else {
            Self::Other(cx.waker().clone())
        }
    }

    #[inline]
    pub(crate) fn wake(self) {
        match self {
            Self::Task(id) => push(id),
            Self::Other(waker) => waker.wake(),
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Task(id), Self::Task(other)) => id == other,
            (Self::Other(waker), Self::Other(other)) => waker.will_wake(other),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(class: TaskClass) -> TaskId {
        let id = allocate(class);
        let waker = Waker::noop().clone();
        let future = Box::pin(std::future::pending());
        put(Box::new(Task { id, class, future, waker, name: 1 }));
        id
    }

    fn pop(control_in_a_row_max: u32) -> Option<TaskId> {
        pop_foreground(control_in_a_row_max).map(|task| task.id)
    }

    #[test]
    fn a_task_is_queued_once_and_a_reused_slot_is_another_task() {
        install(1);
        let first = begin(TaskClass::Request);
        push(first);
        push(first);
        assert!(remove(first).is_some() && remove(first).is_none());
        let second = begin(TaskClass::Request);
        assert_ne!(first.index, second.index, "the place still stands in the queue");
        assert_eq!(pop(9), None);
        let third = begin(TaskClass::Request);
        assert_eq!((third.index, third.generation), (first.index, first.generation + 1));
        push(first);
        assert_eq!(pop(9), None, "a late wake of the first task");
        push(third);
        assert_eq!(pop(9), Some(third));
    }

    #[test]
    fn control_tasks_run_first_but_do_not_starve_others() {
        install(1);
        let control: Vec<_> = (0..3).map(|_| begin(TaskClass::Control)).collect();
        let request = begin(TaskClass::Request);
        push(request);
        control.iter().copied().for_each(push);
        let order: Vec<_> = std::iter::from_fn(|| pop(2)).collect();
        assert_eq!(order, [control[0], control[1], request, control[2]]);
    }
}
