//! The code matches Table I and Table II of paper 2, copied here as printed.

use nearstate_ue::{
    BLOCKS, Block, BlockSet, CONTEXT_BYTES, Category, Context, ContextView, Effect, Procedure,
    Variable, apply, blocks_touched,
};

/// Table I: category, variable, then initial attach, detach, S1 release, service request, X2
/// handover. The paper repeats a category after a page break, and so does this copy.
const TABLE_1: &str = "
UE identifiers | C-RNTI             | + x x + U
               | eNB S1AP UE ID     | + x x + U
               | GUTI               | . . . . .
               | IMSI               | . . . . .
               | IP                 | + x x + .
Location       | MME ID             | + . . . .
               | TAI                | + . . . .
               | TAI-list           | + . . . .
               | E-CGI              | + x x + U
Security       | K master           | + . . . .
               | NAS security       | + . . . .
               | AS security        | + x x + U
EPS Bearers    | APN                | . . . . .
               | APN in use         | + x . . .
               | EPS bearer ID      | + x . . .
               | E-RAB ID           | + x . . .
               | DRB ID             | + x x + U
               | S1 TEID (UL)       | + x . . .
QoS Parameters | S1 TEID (DL)       | + x x + U
               | S5 TEID (UL/DL)    | + x . . .
               | Access profile     | . . . . .
               | APN-AMBR (UL/DL)   | + . . . .
               | ARP                | + x . . .
QoS Parameters | UE-AMBR (UL/DL)    | + . . . .
               | Subscriber profile | . . . . .
               | QCI                | . . . . .
               | TFT (UL)           | + x . . .
               | TFT (DL)           | + x . . .
";

/// The variables that the paper's generator (`UE.java`) sets in procedures without a column in
/// Table I, in the names of the table: M-TMSI and GUTI are the GUTI; the core does not store the
/// TIN.
const UPDATED_BY_TRACKING_AREA_UPDATE: [&str; 3] = ["GUTI", "TAI", "TAI-list"];
const UPDATED_BY_SESSION_MANAGEMENT: [&str; 4] =
    ["EPS bearer ID", "S1 TEID (UL)", "S1 TEID (DL)", "S5 TEID (UL/DL)"];

/// The columns of Table I.
const COLUMNS: [Procedure; 5] = [
    Procedure::InitialAttach,
    Procedure::Detach,
    Procedure::S1Release,
    Procedure::ServiceRequest,
    Procedure::Handover,
];

struct TableRow {
    category: &'static str,
    name: &'static str,
    signs: Vec<char>,
}

fn table() -> Vec<TableRow> {
    let mut category = "";
    let mut lines = Vec::new();
    for line in TABLE_1.lines().filter(|line| !line.is_empty()) {
        let [first, name, signs] = line.split('|').collect::<Vec<_>>()[..] else {
            panic!("{line:?} has three columns")
        };
        if !first.trim().is_empty() {
            category = first.trim();
        }
        let signs: Vec<char> = signs.chars().filter(|sign| *sign != ' ').collect();
        assert_eq!(signs.len(), COLUMNS.len(), "{line}");
        lines.push(TableRow { category, name: name.trim(), signs });
    }
    lines
}

/// The effect of a procedure on a variable in the paper.
fn expected(procedure: Procedure, name: &str) -> char {
    let line = table().into_iter().find(|line| line.name == name);
    let line = line.unwrap_or_else(|| panic!("{name} is not in Table I"));
    let among = |names: &[&str]| if names.contains(&name) { 'U' } else { '.' };
    match procedure {
        Procedure::TrackingAreaUpdate => among(&UPDATED_BY_TRACKING_AREA_UPDATE),
        Procedure::SessionManagement => among(&UPDATED_BY_SESSION_MANAGEMENT),
        Procedure::CellReselection => '.',
        Procedure::InitialAttach
        | Procedure::Detach
        | Procedure::ServiceRequest
        | Procedure::S1Release
        | Procedure::Handover => {
            let signs = COLUMNS.iter().zip(line.signs);
            let mut mine = signs.filter(|(column, _)| **column == procedure);
            mine.next().expect("a column of Table I").1
        }
    }
}

/// A context with every variable present.
fn full() -> Context {
    let mut context = Context::provisioned(99, 3);
    apply(Procedure::InitialAttach, &mut context, 0x1234_5678_9abc_def0);
    for variable in Variable::ALL {
        assert!(context.view().has(*variable), "{variable}");
    }
    context
}

#[test]
fn the_variables_are_the_28_rows_of_the_table_in_order() {
    let printed: Vec<&str> = table().iter().map(|line| line.name).collect();
    let ours: Vec<&str> = Variable::ALL.iter().map(|variable| variable.name()).collect();
    assert_eq!(ours, printed);
    assert_eq!(ours.len(), 28);
}

#[test]
fn the_categories_match_the_table_except_two_rows_after_its_page_break() {
    let mut moved = Vec::new();
    for (line, variable) in table().iter().zip(Variable::ALL) {
        if !variable.category().name().eq_ignore_ascii_case(line.category) {
            assert_eq!(variable.category(), Category::EpsBearers);
            moved.push(line.name);
        }
    }
    assert_eq!(moved, ["S1 TEID (DL)", "S5 TEID (UL/DL)"]);
    assert_eq!(Category::ALL.len(), 5);
}

#[test]
fn a_procedure_changes_exactly_the_variables_in_its_table() {
    for procedure in Procedure::ALL {
        for (before, draw) in [(Context::EMPTY, 1), (full(), 2), (Context::provisioned(5, 5), 3)] {
            let mut after = before;
            apply(procedure, &mut after, draw);
            let view =
                ContextView::new(after.as_bytes()).expect("a procedure leaves a legal context");
            for variable in Variable::ALL {
                let (old, new) = (before.view().raw(*variable), view.raw(*variable));
                let what = format!("{procedure}, {variable}: {old:02x?} -> {new:02x?}");
                match expected(procedure, variable.name()) {
                    '+' | 'U' => assert!(new.is_some(), "{what}"),
                    'x' => assert!(new.is_none(), "{what}"),
                    _ => assert_eq!(old, new, "{what}"),
                }
                let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
                let slot = &after.as_bytes()[variable.range()];
                assert!(new.is_some() || is_zero(slot), "{what}");
            }
        }
    }
}

#[test]
fn another_draw_changes_every_written_variable() {
    for procedure in Procedure::ALL {
        for variable in Variable::ALL {
            let is_written = matches!(expected(procedure, variable.name()), '+' | 'U');
            let mut seen = std::collections::BTreeSet::new();
            for draw in 0..40 {
                let mut context = full();
                apply(procedure, &mut context, draw << 20);
                seen.insert(context.view().raw(*variable).map(<[u8]>::to_vec));
            }
            assert_eq!(seen.len() > 1, is_written, "{procedure}, {variable}");
        }
    }
}

#[test]
fn effects_match_the_table() {
    for procedure in Procedure::ALL {
        for variable in Variable::ALL {
            let effect = procedure.effect(*variable);
            let sign = expected(procedure, variable.name());
            assert_eq!(effect.sign(), sign, "{procedure}, {variable}");
            assert_eq!(effect.writes(), sign != '.');
            assert_eq!(effect == Effect::Untouched, sign == '.');
        }
    }
}

#[test]
fn the_touched_blocks_contain_the_changed_variables() {
    for procedure in Procedure::ALL {
        let changed = |variable: &&Variable| expected(procedure, variable.name()) != '.';
        let blocks: BlockSet =
            Variable::ALL.iter().filter(changed).map(|variable| variable.block()).collect();
        assert_eq!(blocks_touched(procedure), blocks, "{procedure}");
        for block in BLOCKS {
            let mut context = full();
            apply(procedure, &mut context, 77);
            let is_same = context.view().block(*block) == full().view().block(*block);
            assert_eq!(is_same, !blocks.contains(*block), "{procedure}, {block}");
        }
        let whole = |block: &Block| {
            block.variables().all(|variable| expected(procedure, variable.name()) != '.')
        };
        let overwritten: BlockSet = BLOCKS.iter().copied().filter(whole).collect();
        assert_eq!(procedure.blocks_overwritten(), overwritten, "{procedure}");
    }
}

#[test]
fn shares_and_sizes_match_table_2() {
    let printed = "
        Initial attach | 0.011 | 3744
        Detach | 0.011 | 2400
        Service request | 0.313 | 1280
        S1 release | 0.313 | 1280
        TA update | 0.094 | 736
        Handover | 0.124 | 1088
        Cell re-selection | 0.065 | 0
        Session management | 0.069 | 152
    ";
    let ours: Vec<String> = Procedure::ALL
        .iter()
        .map(|procedure| {
            let share = format!("{:.3}", procedure.share());
            format!("{} | {share} | {}", procedure.name(), procedure.table_bits())
        })
        .collect();
    let printed: Vec<&str> = printed.trim().lines().map(str::trim).collect();
    assert_eq!(ours, printed);
    assert_eq!(Procedure::ALL.iter().map(|procedure| procedure.per_mille()).sum::<u32>(), 1000);
}

/// The paper's context has 4596 bits, and its procedures update the sizes in Table II. Our sizes
/// follow from the encodings of 3GPP and must be close to both.
#[test]
fn sizes_are_close_to_those_of_the_paper() {
    let slots: usize = Variable::ALL.iter().map(|variable| variable.range().len()).sum();
    assert_eq!(slots, 575);
    assert_eq!(CONTEXT_BYTES, slots + 2 * BLOCKS.len());
    let bits: u32 = Variable::ALL.iter().map(|variable| variable.bits()).sum();
    assert_eq!(bits, 4539);
    for variable in Variable::ALL {
        assert!(variable.bits() as usize <= 8 * variable.range().len(), "{variable}");
    }
    let written: Vec<(u32, usize)> = Procedure::ALL
        .iter()
        .map(|procedure| (procedure.table_bits() / 8, procedure.written_bytes()))
        .collect();
    assert_eq!(
        written,
        [(468, 473), (300, 289), (160, 148), (160, 148), (92, 96), (136, 135), (0, 0), (19, 33)]
    );
}
