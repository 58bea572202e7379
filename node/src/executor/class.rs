//! The classes of tasks.

/// What a task is for, and so when it is polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskClass {
    /// What keeps the node alive: polled first. Must be short.
    Control,
    /// Work that somebody waits for.
    #[default]
    Request,
    /// Work that can wait: long walks, cleaning. Polled when nobody else is ready.
    Background,
}

impl TaskClass {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Control, Self::Request, Self::Background];

    /// As a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Request => "request",
            Self::Background => "background",
        }
    }
}
