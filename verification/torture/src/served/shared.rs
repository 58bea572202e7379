//! Counters that all raise: how much of each was told, and what a kill leaves open.

/// Where the shared counters stand.
pub(crate) const NAMESPACE: &str = "all";

/// A counter that many raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    /// Raised by the clients at sockets.
    Sockets,
    /// Raised by them and by the embedded writers.
    Everybody,
}

impl Counter {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Sockets, Self::Everybody];

    /// Its key in the namespace.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Everybody => "everybody",
        }
    }
}

/// By how much somebody has raised each counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Raised {
    pub(super) sockets: u64,
    pub(super) everybody: u64,
}

impl Raised {
    pub(super) const fn of(self, counter: Counter) -> u64 {
        match counter {
            Counter::Sockets => self.sockets,
            Counter::Everybody => self.everybody,
        }
    }

    pub(super) fn add(&mut self, counter: Counter) {
        match counter {
            Counter::Sockets => self.sockets += 1,
            Counter::Everybody => self.everybody += 1,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.sockets += other.sockets;
        self.everybody += other.everybody;
    }
}
