//! The states of a UE of 5GS and the procedures that each permits.

use super::procedure::Procedure;
use super::{Context, ContextView};
use crate::state::UeState;

impl Procedure {
    /// The state after this procedure in that one; `None`: it does not happen there. Whether the
    /// session exists is a separate condition: [`Procedure::is_legal`] checks both.
    pub const fn next_state(self, state: UeState) -> Option<UeState> {
        use UeState::{Connected, Deregistered, Idle};
        match (self, state) {
            (Self::Registration, Deregistered) | (Self::ServiceRequest, Idle) => Some(Connected),
            (Self::Deregistration, Idle | Connected) => Some(Deregistered),
            (Self::AnRelease, Connected) => Some(Idle),
            (Self::MobilityUpdate, Idle | Connected)
            | (
                Self::XnHandover
                | Self::N2Handover
                | Self::SessionEstablishment(_)
                | Self::SessionModification(_)
                | Self::SessionRelease(_),
                Connected,
            ) => Some(state),
            (Self::Registration | Self::ServiceRequest, Idle | Connected)
            | (
                Self::Deregistration
                | Self::ServiceRequest
                | Self::AnRelease
                | Self::MobilityUpdate,
                Deregistered,
            )
            | (Self::AnRelease, Idle)
            | (
                Self::XnHandover
                | Self::N2Handover
                | Self::SessionEstablishment(_)
                | Self::SessionModification(_)
                | Self::SessionRelease(_),
                Deregistered | Idle,
            ) => None,
        }
    }

    /// True if the procedure may happen to this UE now: its state allows it, and the session that
    /// it is about is there, or for an establishment is not.
    pub fn is_legal(self, view: ContextView<'_>) -> bool {
        let is_there = self.session().is_some_and(|place| view.has(place.variable()));
        let fits = match self {
            Self::SessionEstablishment(_) => !is_there,
            Self::SessionModification(_) | Self::SessionRelease(_) => is_there,
            Self::Registration
            | Self::Deregistration
            | Self::ServiceRequest
            | Self::AnRelease
            | Self::XnHandover
            | Self::N2Handover
            | Self::MobilityUpdate => true,
        };
        fits && self.next_state(view.state()).is_some()
    }
}

/// The state of a UE, from its variables: with a number at a gNB it is connected, with an AMF only
/// it is idle.
pub fn state_of(context: &Context) -> UeState {
    context.view().state()
}

impl ContextView<'_> {
    /// The state of the UE, as [`state_of`].
    pub fn state(self) -> UeState {
        if self.ran_ue_ngap_id().is_some() {
            UeState::Connected
        } else if self.guami().is_some() {
            UeState::Idle
        } else {
            UeState::Deregistered
        }
    }
}
