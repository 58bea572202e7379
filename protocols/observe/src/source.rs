//! Where the pages come from.

use nearstate_node::Core;

/// What is told of a node. One for the process.
pub trait Source: Send + Sync {
    /// Begins the page of metrics, to be written on this core.
    fn report(&self, core: &Core) -> Box<dyn Report>;

    /// Whether requests are served.
    ///
    /// # Errors
    /// Why not.
    fn readiness(&self) -> Result<(), String>;
}

/// A page of metrics that is being written. It is written on a core that serves others as well, so
/// it is written in steps.
pub trait Report {
    /// Writes the next part, in some tens of microseconds. `false`: that was the last one.
    fn step(&mut self, text: &mut String) -> bool;
}
