//! The cost of a context: bytes and nanoseconds of each procedure.
//!
//! `cargo run --release -p nearstate-ue --example cost`. The shortest of several rounds counts:
//! what the machine does beside it only ever adds.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_types, reason = "it measures time, and decides nothing by it")]

use std::hint::black_box;
use std::io;
use std::time::Instant;

use nearstate_ue::five_g::{self, procedure::SessionIndex};
use nearstate_ue::{
    BLOCKS, CONTEXT_BYTES, Context, ContextView, KeyText, Procedure, apply, blocks_touched,
    draw_for,
};

/// Contexts that are worked on in turn: together 1.2 MB, which the second cache holds.
const CONTEXTS: u32 = 2048;
const ROUNDS: u32 = 25;

/// Nanoseconds of one call, at best.
fn best(mut call: impl FnMut(usize, u64)) -> f64 {
    let mut min = f64::INFINITY;
    for round in 0..ROUNDS {
        let start = Instant::now();
        for (index, ue) in (0..u64::from(CONTEXTS)).enumerate() {
            call(index, draw_for(1, ue, u64::from(round)));
        }
        min = min.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(CONTEXTS));
    }
    min
}

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let contexts: Vec<Context> = (0..u64::from(CONTEXTS))
        .map(|ue| {
            let mut context = Context::provisioned(ue, 1);
            apply(Procedure::InitialAttach, &mut context, draw_for(2, ue, 0));
            context
        })
        .collect();
    whole(&contexts, &mut out)?;
    procedures(&contexts, &mut out)?;
    five_gs(&mut out)
}

fn whole(contexts: &[Context], out: &mut impl io::Write) -> io::Result<()> {
    writeln!(out, "EPS: {CONTEXT_BYTES} B in {} blocks:", BLOCKS.len())?;
    for block in BLOCKS {
        writeln!(out, "  {:<14}{:>4} B", block.name(), block.range().len())?;
    }
    let mut copies = contexts.to_vec();
    let mut buffer = Context::EMPTY;
    let copy = best(|index, _| {
        if let Some(slot) = copies.get_mut(index) {
            buffer = *black_box(&*slot);
            *slot = *black_box(&buffer);
        }
    });
    writeln!(out, "copy out and in      {copy:>7.1} ns")?;
    let check = best(|index, _| {
        let context = copies.get(index);
        let _ = black_box(context.map(|context| ContextView::new(context.as_bytes()).is_ok()));
    });
    writeln!(out, "check (ContextView::new)    {check:>7.1} ns")?;
    let read = best(|index, _| {
        let view = contexts.get(index).map(Context::view);
        black_box(view.and_then(ContextView::guti));
        black_box(view.and_then(ContextView::s1_downlink));
    });
    writeln!(out, "read two variables   {read:>7.1} ns\n")
}

fn procedures(contexts: &[Context], out: &mut impl io::Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<20}{:>8}{:>8}{:>10}{:>25}",
        "procedure", "paper B", "delta B", "apply ns", "read, change, write ns"
    )?;
    for procedure in Procedure::ALL {
        let mut own = contexts.to_vec();
        let change = best(|index, draw| {
            if let Some(context) = own.get_mut(index) {
                apply(black_box(procedure), context, draw);
            }
        });
        let mut store = contexts.to_vec();
        let whole = best(|index, draw| {
            let Some(slot) = store.get_mut(index) else { return };
            let Ok(mut context) = Context::from_bytes(black_box(&*slot).as_bytes()) else { return };
            apply(black_box(procedure), &mut context, draw);
            *slot = *black_box(&context);
        });
        let (paper, delta) = (procedure.table_bits() / 8, blocks_touched(procedure).bytes());
        writeln!(out, "{:<20}{paper:>8}{delta:>8}{change:>10.1}{whole:>25.1}", procedure.name())?;
    }
    Ok(())
}

fn five_gs(out: &mut impl io::Write) -> io::Result<()> {
    use five_g::procedure::{Procedure, apply, blocks_touched};
    let contexts: Vec<five_g::Context> = (0..u64::from(CONTEXTS))
        .map(|ue| {
            let mut context = five_g::Context::provisioned(ue, 1);
            apply(Procedure::Registration, &mut context, draw_for(2, ue, 0));
            for session in [SessionIndex::First, SessionIndex::Second] {
                apply(Procedure::SessionEstablishment(session), &mut context, draw_for(2, ue, 1));
            }
            context
        })
        .collect();
    let first = contexts.first().map(five_g::Context::view);
    let json = first.map_or(0, |view| view.json(KeyText::Whole).to_string().len());
    let is_there = |block: &&five_g::Block| first.is_some_and(|view| !view.is_block_empty(**block));
    let stored: usize =
        five_g::BLOCKS.iter().filter(is_there).map(|block| block.range().len()).sum();
    writeln!(out, "\n5GS, two sessions: {stored} B, as JSON {json} B")?;
    let check = best(|index, _| {
        let context = contexts.get(index);
        let _ = black_box(context.map(|one| five_g::ContextView::new(one.as_bytes()).is_ok()));
    });
    writeln!(out, "check (ContextView::new)    {check:>7.1} ns\n")?;
    writeln!(out, "{:<40}{:>8}{:>10}", "procedure", "delta B", "apply ns")?;
    for procedure in Procedure::ALL.iter().copied() {
        if procedure.session().is_some_and(|session| session != SessionIndex::First) {
            continue;
        }
        let mut own = contexts.clone();
        let change = best(|index, draw| {
            if let Some(context) = own.get_mut(index) {
                apply(black_box(procedure), context, draw);
            }
        });
        let delta = blocks_touched(procedure).bytes();
        writeln!(out, "{:<40}{delta:>8}{change:>10.1}", procedure.to_string())?;
    }
    Ok(())
}
