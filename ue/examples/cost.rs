//! What a context costs: bytes and nanoseconds of each procedure.
//!
//! `cargo run --release -p nearstate-ue --example cost`. The shortest of several rounds counts:
//! what the machine does beside it only ever adds.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_types, reason = "it measures time, and decides nothing by it")]

use std::hint::black_box;
use std::io::{self, Write as _};
use std::time::Instant;

use nearstate_ue::{
    BLOCKS, CONTEXT_BYTES, Context, Procedure, View, apply, blocks_touched, draw_for,
};

/// Contexts that are worked on in turn: together 1.2 MB, which the second cache holds.
const CONTEXTS: u32 = 2048;
const ROUNDS: u32 = 25;

/// Nanoseconds of one call, at best.
fn best(mut call: impl FnMut(usize, u64)) -> f64 {
    let mut least = f64::INFINITY;
    for round in 0..ROUNDS {
        let begun = Instant::now();
        for (place, ue) in (0..u64::from(CONTEXTS)).enumerate() {
            call(place, draw_for(1, ue, u64::from(round)));
        }
        least = least.min(begun.elapsed().as_secs_f64() * 1e9 / f64::from(CONTEXTS));
    }
    least
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
    let mut store: Vec<[u8; CONTEXT_BYTES]> =
        contexts.iter().map(|context| *context.as_bytes()).collect();

    writeln!(out, "context {CONTEXT_BYTES} B in {} blocks:", BLOCKS.len())?;
    for block in BLOCKS {
        writeln!(out, "  {:<14}{:>4} B", block.name(), block.range().len())?;
    }
    let mut buffer = [0; CONTEXT_BYTES];
    let copy = best(|place, _| {
        if let Some(slot) = store.get_mut(place) {
            buffer = *black_box(&*slot);
            *slot = *black_box(&buffer);
        }
    });
    writeln!(out, "copy out and in      {copy:>7.1} ns")?;
    let check = best(|place, _| {
        let _ = black_box(store.get(place).map(|bytes| View::new(bytes).is_ok()));
    });
    writeln!(out, "check (View::new)    {check:>7.1} ns")?;
    let read = best(|place, _| {
        let view = contexts.get(place).map(Context::view);
        black_box(view.and_then(View::guti));
        black_box(view.and_then(View::s1_downlink));
    });
    writeln!(out, "read two variables   {read:>7.1} ns\n")?;

    writeln!(
        out,
        "{:<20}{:>8}{:>8}{:>10}{:>22}",
        "procedure", "paper B", "delta B", "apply ns", "read, change, write ns"
    )?;
    for procedure in Procedure::ALL {
        let mut own = contexts.clone();
        let change = best(|place, draw| {
            if let Some(context) = own.get_mut(place) {
                apply(black_box(procedure), context, draw);
            }
        });
        let whole = best(|place, draw| {
            let Some(slot) = store.get_mut(place) else { return };
            let Ok(mut context) = Context::from_bytes(black_box(&*slot)) else { return };
            apply(black_box(procedure), &mut context, draw);
            *slot = *black_box(context.as_bytes());
        });
        let (paper, delta) = (procedure.table_bits() / 8, blocks_touched(procedure).bytes());
        writeln!(out, "{:<20}{paper:>8}{delta:>8}{change:>10.1}{whole:>22.1}", procedure.name())?;
    }
    Ok(())
}
