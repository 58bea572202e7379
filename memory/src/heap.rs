//! The heap: cells, their size classes, the queues of retired cells, and allocation.

pub(crate) mod allocate;
pub(crate) mod queue;
pub(crate) mod cell;
pub(crate) mod class;
