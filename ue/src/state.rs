//! The state of a UE at its core, in both generations.

/// Registered or not, connected or not (TS 23.401 clause 4.6, TS 23.501 clause 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UeState {
    /// EMM-DEREGISTERED; RM-DEREGISTERED.
    Deregistered,
    /// Registered, and ECM-IDLE or CM-IDLE: without a radio connection.
    Idle,
    /// Registered, and ECM-CONNECTED or CM-CONNECTED.
    Connected,
}

impl UeState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Deregistered, Self::Idle, Self::Connected];
}
