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
    /// The UE camps on another cell of its areas. The core receives no message.
    CellReselection,
    /// The default bearer is set up again: TS 23.401 clause 5.4.
    SessionManagement,
}

impl Procedure {
    /// All of them, in the order of Table II.
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

    /// How many of a thousand procedures are this one (Table II's "fraction"; they sum to 1000).
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

    /// Bits that it updates by Table II. What it writes here is [`Procedure::written_bytes`].
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

    /// What follows from its column, worked out beforehand.
    const fn facts(self) -> ProcedureFootprint {
        const fn of(procedure: Procedure) -> ProcedureFootprint {
            layout::facts(ROWS, procedure as usize, BlockSet::ALL.0)
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
        self.facts().written_bytes
    }

    /// What it does to a variable.
    pub const fn effect(self, variable: Variable) -> Effect {
        layout::effect(ROWS, variable as usize, self as usize)
    }

    /// The blocks that it overwrites from end to end: these it can write without having read them.
    /// The others of [`blocks_touched`] keep some of their variables.
    pub const fn blocks_overwritten(self) -> BlockSet {
        BlockSet(self.facts().overwritten)
    }
}

impl std::fmt::Display for Procedure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The blocks of which a procedure writes something: its delta.
pub const fn blocks_touched(procedure: Procedure) -> BlockSet {
    BlockSet(procedure.facts().touched)
}

/// Changes a context as the procedure does: what it adds or modifies gets a legal value that `draw`
/// and the variable alone decide, what it removes is cleared, the rest keeps its bytes.
///
/// The last procedure that wrote a variable determines its value: of a sequence, the last
/// occurrence of each procedure, in their order, gives the same bytes as all of them. Whether the
/// procedure is legal now is not asked: that is [`Procedure::next_state`].
///
/// Values are legal each by itself, and the TAI is the first of its list; beyond that they do not
/// know each other. A GUTI differs from every other whose draw differs in the low
/// [`IDENTITY_BITS`](crate::IDENTITY_BITS) bits: [`draw_for`](crate::draw_for) gives such draws.
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
    /// The context of a subscriber that the network knows and that is not attached: what Table I
    /// has in every state. IMSI and GUTI differ for every `ue` (below 10^10, and below
    /// 2^[`IDENTITY_BITS`](crate::IDENTITY_BITS)) and do not depend on the seed; no GUTI that a
    /// procedure gives is one of these.
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
    assert!(sum == 1000, "the shares of Table II are all procedures");
    // A context must not be written without its block of identities having been read.
    assert!(!blocks_touched(Procedure::InitialAttach).contains(Block::Profile));
};
