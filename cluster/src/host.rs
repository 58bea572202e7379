//! One host of a cluster: its part in every partition.

use crate::effect::Effects;
use crate::id::{HostId, Monotonic};
use crate::input::HostInput;

/// One host of a cluster. It decides; others carry out its effects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    id: HostId,
    started: Monotonic,
}

impl Host {
    /// A host whose process starts now.
    pub fn new(id: HostId, now: Monotonic) -> Self {
        Self { id, started: now }
    }

    /// The host's number.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Takes one input and appends what is to be done.
    pub fn step(&mut self, now: Monotonic, input: HostInput<'_>, effects: &mut Effects) {
        let _ = (now.max(self.started), input, effects);
    }
}
