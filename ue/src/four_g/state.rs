//! The states of a UE and the procedures that each permits.

use super::procedure::Procedure;
use super::{Context, ContextView};
use crate::state::UeState;

impl Procedure {
    /// The state after this procedure; `None` if it is not legal in `state`.
    ///
    /// A tracking area update leaves an idle UE idle (no active flag), and may follow a handover of
    /// a connected one. Bearers change while the UE is connected, cells are re-selected while it is
    /// idle.
    pub const fn next_state(self, state: UeState) -> Option<UeState> {
        use UeState::{Connected, Deregistered, Idle};
        match (self, state) {
            (Self::InitialAttach, Deregistered) | (Self::ServiceRequest, Idle) => Some(Connected),
            (Self::Detach, Idle | Connected) => Some(Deregistered),
            (Self::S1Release, Connected) => Some(Idle),
            (Self::TrackingAreaUpdate, Idle | Connected)
            | (Self::Handover | Self::SessionManagement, Connected)
            | (Self::CellReselection, Idle) => Some(state),
            (Self::InitialAttach | Self::ServiceRequest, Idle | Connected)
            | (
                Self::Detach
                | Self::S1Release
                | Self::ServiceRequest
                | Self::TrackingAreaUpdate
                | Self::Handover
                | Self::CellReselection
                | Self::SessionManagement,
                Deregistered,
            )
            | (Self::S1Release | Self::Handover | Self::SessionManagement, Idle)
            | (Self::CellReselection, Connected) => None,
        }
    }
}

/// The state of a UE, from its variables: connected with a C-RNTI, idle with a bearer only.
pub fn state_of(context: &Context) -> UeState {
    context.view().state()
}

impl ContextView<'_> {
    /// The state of the UE, as [`state_of`].
    pub fn state(self) -> UeState {
        if self.c_rnti().is_some() {
            UeState::Connected
        } else if self.eps_bearer_id().is_some() {
            UeState::Idle
        } else {
            UeState::Deregistered
        }
    }
}
