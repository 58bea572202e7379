//! Interface to the contents of the pages.

use nearstate_node::Core;

/// Provides the contents of the pages. One for the process.
pub trait ObserveSource: Send + Sync {
    /// Starts a metrics page that is written on this core.
    fn report(&self, core: &Core) -> Box<dyn MetricsReport>;

    /// Whether the node serves requests.
    ///
    /// # Errors
    /// The reason why it does not.
    fn readiness(&self) -> Result<(), String>;
}

/// A metrics page that is written in steps, because its core also serves other clients.
pub trait MetricsReport {
    /// Writes the next part, in some tens of microseconds. Returns false after the last one.
    fn step(&mut self, text: &mut String) -> bool;
}
