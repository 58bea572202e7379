//! The states of a UE of 5GS and the procedures that each permits.

use super::procedure::Procedure;
use super::{Context, ContextView};
use crate::state::UeState;

impl Procedure {
    /// The state after this procedure; `None` if it is not legal in `state`. The existence of the
    /// session is a separate condition: [`Procedure::is_legal`] checks both.
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

    /// True if the procedure is legal for this UE now: the state permits it, and its session
    /// exists, or does not exist before an establishment.
    pub fn is_legal(self, view: ContextView<'_>) -> bool {
        let exists = self.session().is_some_and(|session| view.has(session.variable()));
        let fits = match self {
            Self::SessionEstablishment(_) => !exists,
            Self::SessionModification(_) | Self::SessionRelease(_) => exists,
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

/// The state of a UE, from its variables: connected with a RAN-UE-NGAP-ID, idle with a GUAMI only.
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
