//! Shared counters: the acknowledged increments, and those that a kill leaves open.

/// The namespace of the shared counters.
pub(crate) const NAMESPACE: &str = "all";

/// A counter that many processes increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SharedCounter {
    /// Incremented by the clients at sockets.
    Sockets,
    /// Incremented by them and by the embedded writers.
    All,
}

impl SharedCounter {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Sockets, Self::All];

    /// Its key in the namespace.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::All => "all",
        }
    }
}

/// Increments of each counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Increments {
    pub(super) sockets: u64,
    pub(super) all: u64,
}

impl Increments {
    pub(super) const fn of(self, counter: SharedCounter) -> u64 {
        match counter {
            SharedCounter::Sockets => self.sockets,
            SharedCounter::All => self.all,
        }
    }

    pub(super) fn add(&mut self, counter: SharedCounter) {
        match counter {
            SharedCounter::Sockets => self.sockets += 1,
            SharedCounter::All => self.all += 1,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.sockets += other.sockets;
        self.all += other.all;
    }
}
