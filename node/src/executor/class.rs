//! The classes of tasks.

/// The purpose of a task, which decides when it is polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskClass {
    /// Keeps the node alive: polled first. Polls must be short.
    Control,
    /// Serves a request of a client.
    #[default]
    Request,
    /// Work that can wait: long scans, reclamation. Polled when no other task is ready.
    Background,
}

impl TaskClass {
    /// All classes in their order.
    pub const ALL: [Self; 3] = [Self::Control, Self::Request, Self::Background];

    /// The name in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Request => "request",
            Self::Background => "background",
        }
    }
}
