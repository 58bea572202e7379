//! Procedures of EPS: their frequency, the variables that they change, and the change itself.

use super::{Block, BlockSet, Context, ROWS, Variable};
use crate::draw::Draw;
use crate::effect::Effect;
use crate::layout::{self, ProcedureFootprint};
use crate::value::Value;
use crate::value::apn::Apn;
use crate::value::bearer::Qci;
use crate::value::identity::{Guti, Imsi};
use crate::value::subscriber::{AccessProfile, SubscriberProfile};

/// A signalling procedure of paper 2's Table II.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Procedure {
    /// TS 23.401 clause 5.3.2.1.
    InitialAttach,
    /// TS 23.401 clause 5.3.8.
    Detach,
    /// TS 23.401 clause 5.3.4.
    ServiceRequest,
    /// TS 23.401 clause 5.3.5.
    S1Release,
    /// TS 23.401 clause 5.3.3.
    TrackingAreaUpdate,
    /// Between two eNBs, over X2: TS 23.401 clause 5.5.1.1.
    Handover,
    /// The UE selects another cell of its tracking areas. The core receives no message.
    CellReselection,
    /// The default bearer is set up again: TS 23.401 clause 5.4.
    SessionManagement,
}

impl Procedure {
    /// All procedures, in the order of Table II.
    pub const ALL: [Self; 8] = [
        Self::InitialAttach,
        Self::Detach,
        Self::ServiceRequest,
        Self::S1Release,
        Self::TrackingAreaUpdate,
        Self::Handover,
        Self::CellReselection,
        Self::SessionManagement,
    ];

    /// Its name as Table II prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InitialAttach => "Initial attach",
            Self::Detach => "Detach",
            Self::ServiceRequest => "Service request",
            Self::S1Release => "S1 release",
            Self::TrackingAreaUpdate => "TA update",
            Self::Handover => "Handover",
            Self::CellReselection => "Cell re-selection",
            Self::SessionManagement => "Session management",
        }
    }

    /// The number of these among 1,000 procedures (Table II's "fraction").
    pub const fn per_mille(self) -> u32 {
        match self {
            Self::InitialAttach | Self::Detach => 11,
            Self::ServiceRequest | Self::S1Release => 313,
            Self::TrackingAreaUpdate => 94,
            Self::Handover => 124,
            Self::CellReselection => 65,
            Self::SessionManagement => 69,
        }
    }

    /// [`Procedure::per_mille`] as a share of 1.
    pub fn share(self) -> f64 {
        f64::from(self.per_mille()) / 1000.0
    }

    /// The bits that it updates by Table II. [`Procedure::written_bytes`] is the size here.
    pub const fn table_bits(self) -> u32 {
        match self {
            Self::InitialAttach => 3744,
            Self::Detach => 2400,
            Self::ServiceRequest | Self::S1Release => 1280,
            Self::TrackingAreaUpdate => 736,
            Self::Handover => 1088,
            Self::CellReselection => 0,
            Self::SessionManagement => 152,
        }
    }

    /// The footprint, computed at compile time.
    const fn footprint(self) -> ProcedureFootprint {
        const fn of(procedure: Procedure) -> ProcedureFootprint {
            layout::footprint(ROWS, procedure as usize, BlockSet::ALL.0)
        }
        match self {
            Self::InitialAttach => const { of(Self::InitialAttach) },
            Self::Detach => const { of(Self::Detach) },
            Self::ServiceRequest => const { of(Self::ServiceRequest) },
            Self::S1Release => const { of(Self::S1Release) },
            Self::TrackingAreaUpdate => const { of(Self::TrackingAreaUpdate) },
            Self::Handover => const { of(Self::Handover) },
            Self::CellReselection => const { of(Self::CellReselection) },
            Self::SessionManagement => const { of(Self::SessionManagement) },
        }
    }

    /// Bytes of the variables that it writes here.
    pub const fn written_bytes(self) -> usize {
        self.footprint().written_bytes
    }

    /// Its effect on a variable.
    pub const fn effect(self, variable: Variable) -> Effect {
        layout::effect(ROWS, variable as usize, self as usize)
    }

    /// The blocks of which it writes every variable, so that they need not be read first. The other
    /// blocks of [`blocks_touched`] keep some of their variables.
    pub const fn blocks_overwritten(self) -> BlockSet {
        BlockSet(self.footprint().overwritten)
    }
}

impl std::fmt::Display for Procedure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The blocks of which a procedure writes a variable: its delta.
pub const fn blocks_touched(procedure: Procedure) -> BlockSet {
    BlockSet(procedure.footprint().touched)
}

/// Applies a procedure to a context: added and modified variables get valid values that `draw` and
/// the variable determine, removed ones are cleared, all others stay unchanged.
///
/// The last procedure that wrote a variable determines its value. Therefore the last occurrences of
/// each procedure in a sequence, in their order, result in the same bytes as the whole sequence.
/// The legality of the procedure is not checked, see [`Procedure::next_state`].
///
/// Each value is valid by itself, and the TAI is the first one of its list. Otherwise values are
/// independent. GUTIs differ if their draws differ in the low
/// [`IDENTITY_BITS`](crate::IDENTITY_BITS) bits: [`draw_for`](crate::draw_for) returns such draws.
#[inline]
pub fn apply(procedure: Procedure, context: &mut Context, draw: u64) {
    const EVERY: u16 = BlockSet::ALL.0;
    match procedure {
        Procedure::InitialAttach => {
            context.change::<{ Procedure::InitialAttach as usize }, EVERY>(draw);
        }
        Procedure::Detach => context.change::<{ Procedure::Detach as usize }, EVERY>(draw),
        Procedure::ServiceRequest => {
            context.change::<{ Procedure::ServiceRequest as usize }, EVERY>(draw);
        }
        Procedure::S1Release => context.change::<{ Procedure::S1Release as usize }, EVERY>(draw),
        Procedure::TrackingAreaUpdate => {
            context.change::<{ Procedure::TrackingAreaUpdate as usize }, EVERY>(draw);
        }
        Procedure::Handover => context.change::<{ Procedure::Handover as usize }, EVERY>(draw),
        Procedure::CellReselection => {
            context.change::<{ Procedure::CellReselection as usize }, EVERY>(draw);
        }
        Procedure::SessionManagement => {
            context.change::<{ Procedure::SessionManagement as usize }, EVERY>(draw);
        }
    }
}

/// The draw of the subscriber's profile.
const PROFILE_SALT: u64 = 0x5b5c_21be;

impl Context {
    /// The context of a subscriber that is not attached: the variables that Table I has in every
    /// state. IMSI and GUTI differ for every `ue` (below 10^10, and below
    /// 2^[`IDENTITY_BITS`](crate::IDENTITY_BITS)) and do not depend on the seed. No procedure
    /// assigns one of these GUTIs.
    pub fn provisioned(ue: u64, seed: u64) -> Self {
        let draw = Draw::new(seed, PROFILE_SALT).part(ue);
        let mut context = Self::EMPTY;
        context.set_imsi(Imsi::of_subscriber(ue));
        context.set_guti(Guti::provisioned(ue));
        context.set_apn(Apn::drawn(draw.part(0)));
        context.set_access_profile(AccessProfile::drawn(draw.part(1)));
        context.set_subscriber_profile(SubscriberProfile::drawn(draw.part(2)));
        context.set_qci(Qci::drawn(draw.part(3)));
        context
    }
}

const _: () = {
    let (mut rest, mut sum) = (Procedure::ALL.as_slice(), 0);
    while let [procedure, after @ ..] = rest {
        sum += procedure.per_mille();
        rest = after;
    }
    assert!(sum == 1000, "the shares of Table II sum to 1000");
    // No procedure overwrites the identities of the subscriber.
    assert!(!blocks_touched(Procedure::InitialAttach).contains(Block::Profile));
};
