//! The tables in `spec/ue.md` match the code. On a difference the test prints the expected table.

use std::fmt::Write as _;

use nearstate_ue::{Effect, five_g, four_g};

const SPEC: &str = include_str!("../../../spec/ue.md");

/// Writes the tables of a generation. The modules have the same names, but different types.
macro_rules! tables {
    ($generation:ident, $procedures:expr) => {{
        use $generation::{BLOCKS, CONTEXT_BYTES, Variable};
        let procedures = $procedures;
        let mut text = String::new();
        let _ = writeln!(text, "| block | first byte | bytes | variables |");
        let _ = writeln!(text, "|---|---|---|---|");
        for block in BLOCKS {
            let (range, count) = (block.range(), block.variables().count());
            let _ = writeln!(text, "| {block} | {} | {} | {count} |", range.start, range.len());
        }
        let _ = writeln!(text, "| all | 0 | {CONTEXT_BYTES} | {} |", Variable::ALL.len());
        let _ = writeln!(
            text,
            "\n| variable | in JSON | type | block | at | bytes | bits | {} | source |",
            "effects"
        );
        let _ = writeln!(text, "|---|---|---|---|---|---|---|---|---|");
        for one in Variable::ALL {
            let signs: String =
                procedures.iter().map(|procedure| sign(procedure.effect(*one))).collect();
            let (range, block) = (one.range(), one.block());
            let _ = writeln!(
                text,
                "| {one} | `{}` | `{}` | {block} | {} | {} | {} | `{signs}` | {} |",
                one.json_name(),
                one.type_name(),
                range.start - block.range().start,
                range.len(),
                one.bits(),
                one.source(),
            );
        }
        text
    }};
}

fn sign(effect: Effect) -> char {
    effect.sign()
}

#[test]
fn the_tables_of_eps_in_the_spec_match_the_code() {
    let text = tables!(four_g, nearstate_ue::Procedure::ALL);
    assert!(SPEC.contains(&text), "spec/ue.md must contain:\n{text}");
}

#[test]
fn the_tables_of_5gs_in_the_spec_match_the_code() {
    use five_g::procedure::{Procedure, SessionIndex::First};
    let procedures = [
        Procedure::Registration,
        Procedure::Deregistration,
        Procedure::ServiceRequest,
        Procedure::AnRelease,
        Procedure::XnHandover,
        Procedure::N2Handover,
        Procedure::MobilityUpdate,
        Procedure::SessionEstablishment(First),
        Procedure::SessionModification(First),
        Procedure::SessionRelease(First),
    ];
    let text = tables!(five_g, procedures);
    assert!(SPEC.contains(&text), "spec/ue.md must contain:\n{text}");
}
