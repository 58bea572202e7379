//! How a task has its core look out for what comes through shared memory.

use std::rc::Rc;
use std::task::Context;

use crate::executor::here;
use crate::executor::lookout::Lookout;
use crate::executor::ready::Waiter;

/// Lets the core look out for this, and wakes the task once something has come. It ends with that,
/// and with [`Lookout::fall_asleep`].
///
/// # Panics
/// Outside of a core.
#[inline]
pub fn look_out(what: &Rc<impl Lookout + 'static>, cx: &Context<'_>) {
    if !what.is_listed().replace(true) {
        here::with(|here| {
            let what: Rc<dyn Lookout> = Rc::clone(what) as _;
            here.lookouts.add(what, Waiter::of(cx), here.clock.now());
        });
    }
}
