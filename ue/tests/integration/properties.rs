//! Properties of every sequence of procedures, and of every byte string.

use std::collections::BTreeSet;

use nearstate_ue::{
    BLOCKS, CONTEXT_BYTES, Context, ContextView, KeyText, Procedure, UeState, Variable, apply,
    blocks_touched, draw_for, state_of,
};
use proptest::prelude::*;

fn procedure() -> impl Strategy<Value = Procedure> {
    prop::sample::select(Procedure::ALL.to_vec())
}

fn sequence() -> impl Strategy<Value = Vec<(Procedure, u64)>> {
    prop::collection::vec((procedure(), any::<u64>()), 0..60)
}

/// The last run of each procedure, in order.
fn last_of_each(sequence: &[(Procedure, u64)]) -> Vec<(Procedure, u64)> {
    let mut seen = BTreeSet::new();
    let mut last: Vec<_> =
        sequence.iter().rev().filter(|(procedure, _)| seen.insert(*procedure)).copied().collect();
    last.reverse();
    last
}

fn run(mut context: Context, sequence: &[(Procedure, u64)]) -> Context {
    for (procedure, draw) in sequence {
        apply(*procedure, &mut context, *draw);
    }
    context
}

proptest! {
    #[test]
    fn the_last_run_of_each_procedure_determines_the_bytes(
        ue in 0..1_000_000_u64, seed: u64, sequence in sequence()
    ) {
        let start = Context::provisioned(ue, seed);
        let last = last_of_each(&sequence);
        prop_assert!(last.len() <= Procedure::ALL.len());
        let (by_all, by_last) = (run(start, &sequence), run(start, &last));
        prop_assert_eq!(by_all.as_bytes(), by_last.as_bytes());
    }

    #[test]
    fn a_delta_of_the_touched_blocks_is_the_whole_change(
        sequence in sequence(), procedure in procedure(), draw: u64
    ) {
        let before = run(Context::provisioned(1, 1), &sequence);
        let after = run(before, &[(procedure, draw)]);
        // A writer that has read only the touched blocks writes the same bytes. Blocks that are
        // overwritten completely need not be read.
        let touched = blocks_touched(procedure);
        let whole = procedure.blocks_overwritten();
        let read = |block| touched.contains(block) && !whole.contains(block);
        let part = Context::from_blocks(|block| read(block).then(|| before.view().block(block)));
        let part = run(part.unwrap(), &[(procedure, draw)]);
        let mut put = before;
        for block in touched.iter() {
            put.set_block(block, part.view().block(block)).unwrap();
        }
        prop_assert_eq!(put.as_bytes(), after.as_bytes());
    }

    #[test]
    fn the_present_variables_determine_the_state(
        choices in prop::collection::vec(any::<prop::sample::Index>(), 0..80)
    ) {
        let mut context = Context::provisioned(3, 4);
        let mut state = UeState::Deregistered;
        for (step, choice) in choices.iter().enumerate() {
            prop_assert_eq!(state_of(&context), state);
            let legal: Vec<_> = Procedure::ALL
                .iter()
                .filter_map(|procedure| Some((*procedure, procedure.next_state(state)?)))
                .collect();
            let (procedure, next) = legal[choice.index(legal.len())];
            apply(procedure, &mut context, draw_for(9, 3, step as u64));
            state = next;
        }
        prop_assert_eq!(state_of(&context), state);
    }

    #[test]
    fn arbitrary_bytes_are_rejected_or_a_usable_context(
        sequence in sequence(),
        damage in prop::collection::vec((0..CONTEXT_BYTES, any::<u8>()), 0..6),
    ) {
        let mut bytes = *run(Context::provisioned(1, 1), &sequence).as_bytes();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        match ContextView::new(&bytes) {
            Ok(view) => {
                prop_assert!(view.to_string().lines().count() == Variable::ALL.len());
                let back = Context::from_json(&view.json(KeyText::Whole)).unwrap();
                prop_assert_eq!(back.as_bytes(), &bytes);
            }
            Err(error) => prop_assert!(error.to_string().starts_with("not a UE context: ")),
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), CONTEXT_BYTES)) {
        prop_assert!(ContextView::new(&bytes).is_err());
        prop_assert!(ContextView::new(&bytes[1..]).is_err());
    }
}

#[test]
fn legal_procedures_match_ts_23_401() {
    use Procedure::*;
    use UeState::*;
    let legal = |state: UeState| -> Vec<(Procedure, UeState)> {
        let next = |one: &Procedure| Some((*one, one.next_state(state)?));
        Procedure::ALL.iter().filter_map(next).collect()
    };
    assert_eq!(legal(Deregistered), [(InitialAttach, Connected)]);
    assert_eq!(
        legal(Idle),
        [
            (Detach, Deregistered),
            (ServiceRequest, Connected),
            (TrackingAreaUpdate, Idle),
            (CellReselection, Idle)
        ]
    );
    assert_eq!(
        legal(Connected),
        [
            (Detach, Deregistered),
            (S1Release, Idle),
            (TrackingAreaUpdate, Connected),
            (Handover, Connected),
            (SessionManagement, Connected)
        ]
    );
}

#[test]
fn identities_are_unique_over_ues_and_reallocations() {
    let mut seen = BTreeSet::new();
    let mut imsis = BTreeSet::new();
    for ue in 0..3000 {
        let mut context = Context::provisioned(ue, 5);
        assert_eq!(state_of(&context), UeState::Deregistered);
        assert!(imsis.insert(context.view().imsi()));
        assert!(seen.insert(context.view().guti()));
        for step in 0..20 {
            apply(Procedure::TrackingAreaUpdate, &mut context, draw_for(5, ue, step));
            assert!(seen.insert(context.view().guti()), "UE {ue}, step {step}");
        }
    }
}

#[test]
fn an_error_names_the_variable() {
    let mut context = Context::provisioned(1, 1);
    apply(Procedure::InitialAttach, &mut context, 1);
    let good = *context.as_bytes();
    let said = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        ContextView::new(&bytes).unwrap_err().to_string()
    };
    let at = |variable: Variable| variable.range().start;
    assert!(said(at(Variable::Imsi), 0x0a).contains("IMSI has a half byte that is not a digit"));
    assert!(said(at(Variable::EpsBearerId), 4).contains("EPS bearer ID is not from 5 to 15"));
    assert!(said(at(Variable::TaiList), 17).contains("TAI-list does not have 1 to 16 areas"));
    for block in BLOCKS {
        let start = block.range().start;
        assert!(said(start, 2).contains(&format!("block {block} is of a format")));
        assert!(said(start + 1, 0xff).contains(&format!("block {block} has variables")));
    }
    let present = good[Variable::CRnti.range().start - 1];
    let gone = said(Variable::CRnti.range().start - 1, present & !1);
    assert!(gone.contains("C-RNTI is absent, but its bytes are not 0"), "{gone}");
    assert!(ContextView::new(&good[..10]).unwrap_err().to_string().contains("10 bytes"));
    assert!(context.set_block(BLOCKS[0], &good[..5]).unwrap_err().to_string().contains("profile"));
    assert_eq!(context.as_bytes(), &good);
}
