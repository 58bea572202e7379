//! The heap: cells, their size classes, the queues of retired cells, and allocation.

pub(crate) mod reserve;
pub(crate) mod allocate;
pub(crate) mod refusal;
pub(crate) mod usage;
pub(crate) mod release;
pub(crate) mod fixed;
pub(crate) mod ahead;
pub(crate) mod span;
pub(crate) mod lending;
pub(crate) mod refill;
pub(crate) mod kept;
pub(crate) mod set_aside;
pub(crate) mod idle;
pub(crate) mod held;
pub(crate) mod free;
pub(crate) mod reuse;
pub(crate) mod chunk;
pub(crate) mod queue;
pub(crate) mod watched;
pub(crate) mod cell;
pub(crate) mod bitmap;
pub(crate) mod class;
