//! The context of 5GS: its effects against an independent copy of the table, sizes, life cycles.

use std::collections::BTreeSet;

use nearstate_ue::five_g::procedure::{Procedure, SessionIndex, apply, blocks_touched};
use nearstate_ue::five_g::state::state_of;
use nearstate_ue::five_g::{
    BLOCKS, Block, BlockSet, CONTEXT_BYTES, Context, ContextView, SESSIONS_MAX, Variable,
};
use nearstate_ue::{KeyText, UeState, draw_for};
use proptest::prelude::*;

/// Registration, deregistration, service request, AN release, Xn handover, N2 handover, mobility
/// update | establishment, modification, release of the first session | the same of another one.
const TABLE: &str = "
    SUPI                   . . . . . . . | . . . | . . .
    GPSI                   . . . . . . . | . . . | . . .
    PEI                    + x . . . . . | . . . | . . .
    5G-GUTI                + . . . . . U | . . . | . . .
    AMF-UE-NGAP-ID         + x + x . U . | . . . | . . .
    RAN-UE-NGAP-ID         + x + x U U . | . . . | . . .
    GUAMI                  + x . . . . . | . . . | . . .
    TAI                    + . . . . . U | . . . | . . .
    Registration area      + . . . . . U | . . . | . . .
    NCGI                   + x + x U U . | . . . | . . .
    gNB                    + x + x U U . | . . . | . . .
    Location time          + x + x U U . | . . . | . . .
    Mobility restrictions  . . . . . . . | . . . | . . .
    K_AMF                  + . . . . . . | . . . | . . .
    NAS security           + . . . . . . | . . . | . . .
    AS security            + x + x U U . | . . . | . . .
    Authentication         + . . . . . . | . . . | . . .
    AUSF                   + . . . . . . | . . . | . . .
    Subscribed NSSAI       . . . . . . . | . . . | . . .
    Configured NSSAI       + x . . . . . | . . . | . . .
    Requested NSSAI        + . . . . . U | . . . | . . .
    Allowed NSSAI          + . . . . . U | . . . | . . .
    Subscription           . . . . . . . | . . . | . . .
    Subscribed DNNs        . . . . . . . | . . . | . . .
    UDM                    + x . . . . . | . . . | . . .
    PCF                    + x . . . . . | . . . | . . .
    AM policy association  + x . . . . . | . . . | . . .
    UE policy association  + x . . . . . | . . . | . . .
    AM policy              + x . . . . . | . . . | . . .
    SDM subscription       + x . . . . . | . . . | . . .
    Event subscription     + x . . . . . | . . . | . . .
    UE radio capability ID + x . . . . . | . . . | . . .
    5GMM capability        + x . . . . . | . . . | . . .
    DRX                    + x . . . . . | . . . | . . .
    Establishment cause    + x + x . . . | . . . | . . .
    Uplink data status     . x + x . . . | . . . | . . .
    Session 1              . x . . . . . | + . x | . . .
    Session 1 QoS          . x . . . . . | + U x | . . .
    Session 2              . x . . . . . | . . . | + . x
    Session 2 QoS          . x . . . . . | . . . | + U x
    Session 3              . x . . . . . | . . . | . . .
    Session 3 QoS          . x . . . . . | . . . | . . .
    Session 4              . x . . . . . | . . . | . . .
    Session 4 QoS          . x . . . . . | . . . | . . .
";

/// The procedures in the order of the columns.
const COLUMNS: [Procedure; 13] = [
    Procedure::Registration,
    Procedure::Deregistration,
    Procedure::ServiceRequest,
    Procedure::AnRelease,
    Procedure::XnHandover,
    Procedure::N2Handover,
    Procedure::MobilityUpdate,
    Procedure::SessionEstablishment(SessionIndex::First),
    Procedure::SessionModification(SessionIndex::First),
    Procedure::SessionRelease(SessionIndex::First),
    Procedure::SessionEstablishment(SessionIndex::Second),
    Procedure::SessionModification(SessionIndex::Second),
    Procedure::SessionRelease(SessionIndex::Second),
];

/// Name of the variable, and the sign in each column.
fn table() -> Vec<(&'static str, Vec<char>)> {
    let lines = TABLE.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, signs) = line.split_at_checked(22).expect("a name of 22 columns");
            let signs: Vec<char> = signs.chars().filter(|sign| !" |".contains(*sign)).collect();
            assert_eq!(signs.len(), COLUMNS.len(), "{line}");
            (name.trim(), signs)
        })
        .collect()
}

/// Each procedure of the table with its effect on each variable.
fn expected() -> impl Iterator<Item = (Procedure, Vec<(Variable, char)>)> {
    COLUMNS.into_iter().enumerate().map(|(column, procedure)| {
        let signs = table().into_iter().map(move |(_, signs)| signs.into_iter().nth(column));
        let signs = signs.map(|sign| sign.expect("a sign"));
        (procedure, Variable::ALL.iter().copied().zip(signs).collect())
    })
}

/// A context with every variable present.
fn full() -> Context {
    let mut context = Context::provisioned(99, 3);
    apply(Procedure::Registration, &mut context, 11);
    apply(Procedure::ServiceRequest, &mut context, 12);
    for session in SessionIndex::ALL {
        apply(Procedure::SessionEstablishment(session), &mut context, 13);
    }
    assert!(Variable::ALL.iter().all(|variable| context.view().has(*variable)));
    context
}

/// A UE in a test network: registered, connected, with a session for data and one for voice.
fn realistic() -> Context {
    let mut context = Context::provisioned(7, 1);
    apply(Procedure::Registration, &mut context, draw_for(1, 7, 0));
    let sessions = [SessionIndex::First, SessionIndex::Second];
    for (number, session) in (1..).zip(sessions) {
        apply(Procedure::SessionEstablishment(session), &mut context, draw_for(1, 7, number));
    }
    context
}

#[test]
fn the_variables_match_the_table() {
    let names: Vec<&str> = table().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, Variable::ALL.iter().map(|one| one.name()).collect::<Vec<_>>());
    let json: BTreeSet<&str> = Variable::ALL.iter().map(|one| one.json_name()).collect();
    assert_eq!(json.len(), Variable::ALL.len());
}

#[test]
fn a_procedure_changes_exactly_the_variables_in_its_table() {
    for (procedure, signs) in expected() {
        for (before, draw) in [(Context::EMPTY, 1), (full(), 2), (realistic(), 4)] {
            let mut after = before;
            apply(procedure, &mut after, draw << 30);
            let view =
                ContextView::new(after.as_bytes()).expect("a procedure leaves a legal context");
            for (variable, sign) in &signs {
                let (old, new) = (before.view().raw(*variable), view.raw(*variable));
                let what = format!("{procedure}, {variable}: {old:02x?} -> {new:02x?}");
                assert_eq!(procedure.effect(*variable).sign(), *sign, "{what}");
                match sign {
                    '+' | 'U' => assert!(new.is_some() && old != new, "{what}"),
                    'x' => assert!(new.is_none(), "{what}"),
                    _ => assert_eq!(old, new, "{what}"),
                }
            }
        }
    }
}

#[test]
fn the_touched_blocks_contain_the_changed_variables() {
    for (procedure, signs) in expected() {
        let changed = signs.iter().filter(|(_, sign)| *sign != '.');
        let touched: BlockSet = changed.map(|(variable, _)| variable.block()).collect();
        assert_eq!(blocks_touched(procedure), touched, "{procedure}");
        let kept: BlockSet = signs
            .iter()
            .filter(|(_, sign)| *sign == '.')
            .map(|(variable, _)| variable.block())
            .collect();
        let whole: BlockSet = touched.iter().filter(|block| !kept.contains(*block)).collect();
        assert_eq!(procedure.blocks_overwritten(), whole, "{procedure}");
    }
}

#[test]
fn later_sessions_behave_like_the_first() {
    let of = |make: fn(SessionIndex) -> Procedure, session: SessionIndex| {
        let touched: Vec<Block> = blocks_touched(make(session)).iter().collect();
        (touched == [session.block()], make(session).written_bytes())
    };
    let makes: [fn(SessionIndex) -> Procedure; 3] = [
        Procedure::SessionEstablishment,
        Procedure::SessionModification,
        Procedure::SessionRelease,
    ];
    for make in makes {
        for session in SessionIndex::ALL {
            assert_eq!(of(make, session), (true, of(make, SessionIndex::First).1));
        }
    }
    assert_eq!(Procedure::ALL.iter().collect::<BTreeSet<_>>().len(), 7 + 3 * SESSIONS_MAX);
}

/// OMEC's AMF keeps 4,766 B of JSON for one UE, and writes all of it each time. The same facts take
/// 1,759 B here, 2.5 times less, and a service request writes 98 of them.
#[test]
fn a_context_is_far_smaller_than_the_same_context_in_json() {
    let context = realistic();
    let json = context.view().json(KeyText::Whole).to_string().len();
    assert!((4300..=5300).contains(&json), "{json} B of JSON");
    let is_stored = |block: &&Block| !context.view().is_block_empty(**block);
    let stored: usize = BLOCKS.iter().filter(is_stored).map(|block| block.range().len()).sum();
    let delta = blocks_touched(Procedure::ServiceRequest).bytes();
    assert_eq!((CONTEXT_BYTES, stored, delta), (2025, 1759, 98));
    assert!(json * 10 >= stored * 24 && json >= delta * 40);
}

#[test]
fn session_procedures_need_their_session() {
    let mut context = Context::provisioned(1, 1);
    let legal = |context: &Context| -> Vec<String> {
        let is_legal = |one: &&Procedure| one.is_legal(context.view());
        Procedure::ALL.iter().filter(is_legal).map(ToString::to_string).collect()
    };
    assert_eq!(legal(&context), ["Registration"]);
    apply(Procedure::Registration, &mut context, 1);
    assert_eq!(
        legal(&context),
        [
            "Deregistration",
            "AN release",
            "Xn handover",
            "N2 handover",
            "Mobility registration update",
            "PDU session establishment (session1)",
            "PDU session establishment (session2)",
            "PDU session establishment (session3)",
            "PDU session establishment (session4)",
        ]
    );
    apply(Procedure::SessionEstablishment(SessionIndex::Third), &mut context, 1);
    let now = legal(&context);
    assert!(!now.contains(&"PDU session establishment (session3)".to_owned()));
    assert!(now.contains(&"PDU session modification (session3)".to_owned()));
    assert!(now.contains(&"PDU session release (session3)".to_owned()));
    apply(Procedure::AnRelease, &mut context, 1);
    assert_eq!(
        legal(&context),
        ["Deregistration", "Service request", "Mobility registration update"]
    );
}

fn procedure() -> impl Strategy<Value = Procedure> {
    prop::sample::select(Procedure::ALL.to_vec())
}

proptest! {
    #[test]
    fn the_last_run_of_each_procedure_determines_the_bytes(
        sequence in prop::collection::vec((procedure(), any::<u64>()), 0..80)
    ) {
        let mut seen = BTreeSet::new();
        let mut last: Vec<_> = sequence.iter().rev().filter(|one| seen.insert(one.0)).collect();
        last.reverse();
        let (mut by_all, mut by_last) = (Context::provisioned(1, 2), Context::provisioned(1, 2));
        for (procedure, draw) in &sequence {
            apply(*procedure, &mut by_all, *draw);
        }
        for (procedure, draw) in last {
            apply(*procedure, &mut by_last, *draw);
        }
        prop_assert_eq!(by_all.as_bytes(), by_last.as_bytes());
    }

    #[test]
    fn the_present_variables_determine_the_state(
        choices in prop::collection::vec(any::<prop::sample::Index>(), 0..80)
    ) {
        let mut context = Context::provisioned(3, 4);
        let mut state = UeState::Deregistered;
        for (step, choice) in choices.iter().enumerate() {
            prop_assert_eq!(state_of(&context), state);
            let view = context.view();
            let legal: Vec<_> =
                Procedure::ALL.iter().filter(|one| one.is_legal(view)).copied().collect();
            let procedure = legal[choice.index(legal.len())];
            state = procedure.next_state(state).expect("a legal procedure has a next state");
            apply(procedure, &mut context, draw_for(9, 3, step as u64));
        }
        prop_assert_eq!(state_of(&context), state);
    }

    #[test]
    fn arbitrary_bytes_are_rejected_or_a_usable_context(
        damage in prop::collection::vec((0..CONTEXT_BYTES, any::<u8>()), 0..6)
    ) {
        let mut bytes = *full().as_bytes();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        match ContextView::new(&bytes) {
            Ok(view) => {
                prop_assert_eq!(view.to_string().lines().count(), Variable::ALL.len());
                let back = Context::from_json(&view.json(KeyText::Whole)).expect("valid JSON");
                prop_assert_eq!(back.as_bytes(), &bytes);
            }
            Err(error) => prop_assert!(error.to_string().starts_with("not a UE context: ")),
        }
    }
}
