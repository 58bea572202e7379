//! Procedures of 5GS: their effects and their changes.

use super::{Block, BlockSet, Context, ROWS, Variable};
use crate::draw::Draw;
use crate::effect::Effect;
use crate::layout::{self, ProcedureFootprint};
use crate::value::Value;
use crate::value::identity::{Gpsi, Supi};
use crate::value::slice::LongNssai;
use crate::value::subscription::{AccessSubscription, MobilityRestrictions, SubscribedDnns};

/// The index of a PDU session of a UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SessionIndex {
    /// `session1`.
    First,
    /// `session2`.
    Second,
    /// `session3`.
    Third,
    /// `session4`.
    Fourth,
}

impl SessionIndex {
    /// All indices.
    pub const ALL: [Self; super::SESSIONS_MAX] =
        [Self::First, Self::Second, Self::Third, Self::Fourth];

    /// The block of the session.
    pub const fn block(self) -> Block {
        match self {
            Self::First => Block::Session1,
            Self::Second => Block::Session2,
            Self::Third => Block::Session3,
            Self::Fourth => Block::Session4,
        }
    }

    /// The variable whose presence means that the session exists.
    pub const fn variable(self) -> Variable {
        match self {
            Self::First => Variable::Session1,
            Self::Second => Variable::Session2,
            Self::Third => Variable::Session3,
            Self::Fourth => Variable::Session4,
        }
    }
}

/// A signalling procedure of TS 23.502.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Procedure {
    /// Initial registration: clause 4.2.2.2.
    Registration,
    /// Clause 4.2.2.3.
    Deregistration,
    /// Clause 4.2.3.2.
    ServiceRequest,
    /// Clause 4.2.6.
    AnRelease,
    /// Between gNBs: clause 4.9.1.2.
    XnHandover,
    /// Through the AMF: clause 4.9.1.3.
    N2Handover,
    /// Registration because the UE has moved: clause 4.2.2.2.
    MobilityUpdate,
    /// Clause 4.3.2.
    SessionEstablishment(SessionIndex),
    /// Change of the quality of service: clause 4.3.3.
    SessionModification(SessionIndex),
    /// Clause 4.3.4.
    SessionRelease(SessionIndex),
}

use SessionIndex::{First, Fourth, Second, Third};

/// `$then` for each procedure, with its column and the block of its session as constants.
macro_rules! for_each {
    ($procedure:expr, |$column:ident, $blocks:ident| $then:expr) => {
        for_each! { $procedure, $column, $blocks, $then,
            Registration: 0, Deregistration: 1, ServiceRequest: 2, AnRelease: 3, XnHandover: 4,
            N2Handover: 5, MobilityUpdate: 6; SessionEstablishment: 7, SessionModification: 8,
            SessionRelease: 9
        }
    };
    (
        $procedure:expr, $column:ident, $blocks:ident, $then:expr,
        $($plain:ident: $number:literal),+; $($session:ident: $session_number:literal),+
    ) => {
        match $procedure {
            $(Procedure::$plain => {
                const $column: usize = $number;
                const $blocks: u16 = BlockSet::ALL.0;
                $then
            })+
            $(
                Procedure::$session(First) => {
                    const $column: usize = $session_number;
                    const $blocks: u16 = only(First);
                    $then
                }
                Procedure::$session(Second) => {
                    const $column: usize = $session_number;
                    const $blocks: u16 = only(Second);
                    $then
                }
                Procedure::$session(Third) => {
                    const $column: usize = $session_number;
                    const $blocks: u16 = only(Third);
                    $then
                }
                Procedure::$session(Fourth) => {
                    const $column: usize = $session_number;
                    const $blocks: u16 = only(Fourth);
                    $then
                }
            )+
        }
    };
}

/// The blocks that a procedure of this session may write: all except those of other sessions.
const fn only(session: SessionIndex) -> u16 {
    let sessions = BlockSet::EMPTY
        .with(Block::Session1)
        .with(Block::Session2)
        .with(Block::Session3)
        .with(Block::Session4);
    BlockSet::ALL.0 & !sessions.0 | BlockSet::EMPTY.with(session.block()).0
}

impl Procedure {
    /// All procedures: seven of the UE, three of each session.
    pub const ALL: [Self; 7 + 3 * super::SESSIONS_MAX] = [
        Self::Registration,
        Self::Deregistration,
        Self::ServiceRequest,
        Self::AnRelease,
        Self::XnHandover,
        Self::N2Handover,
        Self::MobilityUpdate,
        Self::SessionEstablishment(First),
        Self::SessionEstablishment(Second),
        Self::SessionEstablishment(Third),
        Self::SessionEstablishment(Fourth),
        Self::SessionModification(First),
        Self::SessionModification(Second),
        Self::SessionModification(Third),
        Self::SessionModification(Fourth),
        Self::SessionRelease(First),
        Self::SessionRelease(Second),
        Self::SessionRelease(Third),
        Self::SessionRelease(Fourth),
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registration => "Registration",
            Self::Deregistration => "Deregistration",
            Self::ServiceRequest => "Service request",
            Self::AnRelease => "AN release",
            Self::XnHandover => "Xn handover",
            Self::N2Handover => "N2 handover",
            Self::MobilityUpdate => "Mobility registration update",
            Self::SessionEstablishment(_) => "PDU session establishment",
            Self::SessionModification(_) => "PDU session modification",
            Self::SessionRelease(_) => "PDU session release",
        }
    }

    /// The session of the procedure, if it has one.
    pub const fn session(self) -> Option<SessionIndex> {
        match self {
            Self::SessionEstablishment(session)
            | Self::SessionModification(session)
            | Self::SessionRelease(session) => Some(session),
            Self::Registration
            | Self::Deregistration
            | Self::ServiceRequest
            | Self::AnRelease
            | Self::XnHandover
            | Self::N2Handover
            | Self::MobilityUpdate => None,
        }
    }

    /// The footprint, computed at compile time.
    const fn footprint(self) -> ProcedureFootprint {
        for_each!(self, |COLUMN, BLOCKS| const { layout::footprint(ROWS, COLUMN, BLOCKS) })
    }

    /// Bytes of the variables that it writes.
    pub const fn written_bytes(self) -> usize {
        self.footprint().written_bytes
    }

    /// Its effect on a variable.
    pub const fn effect(self, variable: Variable) -> Effect {
        let bit = BlockSet::EMPTY.with(variable.block()).0;
        for_each!(self, |COLUMN, BLOCKS| {
            if BLOCKS & bit == 0 {
                Effect::Untouched
            } else {
                layout::effect(ROWS, variable as usize, COLUMN)
            }
        })
    }

    /// The blocks of which it writes every variable, so that they need not be read first. The other
    /// blocks of [`blocks_touched`] keep some of their variables.
    pub const fn blocks_overwritten(self) -> BlockSet {
        BlockSet(self.footprint().overwritten)
    }
}

impl std::fmt::Display for Procedure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        match self.session() {
            Some(session) => write!(f, " ({})", session.block()),
            None => Ok(()),
        }
    }
}

/// The blocks of which a procedure writes a variable: its delta.
pub const fn blocks_touched(procedure: Procedure) -> BlockSet {
    BlockSet(procedure.footprint().touched)
}

/// Applies a procedure to a context, under the same rules as in EPS
/// ([`apply`](crate::four_g::procedure::apply)): the draw alone determines the written values, so
/// the last occurrence of each procedure (for each session) determines the bytes.
#[inline]
pub fn apply(procedure: Procedure, context: &mut Context, draw: u64) {
    for_each!(procedure, |COLUMN, BLOCKS| context.change::<COLUMN, BLOCKS>(draw));
}

/// The draw of the subscriber's block.
const SUBSCRIBER_SALT: u64 = 0x5b5c_215a;

impl Context {
    /// The context of a subscriber that is not registered. SUPIs differ for every `ue` below 10^10
    /// and do not depend on the seed.
    pub fn provisioned(ue: u64, seed: u64) -> Self {
        let draw = Draw::new(seed, SUBSCRIBER_SALT).part(ue);
        let mut context = Self::EMPTY;
        context.set_supi(Supi::of_subscriber(ue));
        context.set_gpsi(Gpsi::drawn(draw.part(0)));
        context.set_restrictions(MobilityRestrictions::drawn(draw.part(1)));
        context.set_subscribed_nssai(LongNssai::drawn(draw.part(2)));
        context.set_subscription(AccessSubscription::drawn(draw.part(3)));
        context.set_subscribed_dnns(SubscribedDnns::drawn(draw.part(4)));
        context
    }
}
