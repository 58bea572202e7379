//! Reading four records at one instant, beside four plain views.

use super::desk::{Contexts, Desk, missing};
use super::findings::{Goal, Row, Unit};
use crate::legacy::micro::work::{Material, Work, touch};
use nearstate_model::Result;
use std::hint::black_box;

/// Records of one transaction.
const TOGETHER: usize = 4;

/// A transaction that reads four records, beside four views.
///
/// # Errors
/// What the region said, and `Backend` if a record is missing.
pub fn four(desk: &mut Desk<'_>, contexts: &Contexts, material: &Material) -> Result<()> {
    let title = format!("read-only transaction of {TOGETHER} records");
    let mut row = Row::new(&title, material.len(), Unit::Ns);
    row.goals = vec![Goal::TimesAtMost("views", 1.3)];
    desk.turns(
        row,
        material,
        &mut [
            ("transaction", &mut |work| in_transactions(contexts, work)),
            ("views", &mut |work| in_views(contexts, work)),
        ],
    )
}

fn in_transactions(contexts: &Contexts, work: &Work<'_>) -> Result<u64> {
    let (mut done, mut sum) = (0, 0_u64);
    for keys in work.runs.iter().flat_map(|run| run.as_chunks::<TOGETHER>().0) {
        let seen = contexts.session.transact::<_, nearstate_store::Error>(|txn| {
            let mut seen = 0;
            for key in keys {
                seen += touch(txn.get(contexts.namespace, key)?.ok_or_else(missing)?.bytes());
            }
            Ok(seen)
        })?;
        sum = sum.wrapping_add(seen);
        done += 1;
    }
    black_box(sum);
    Ok(done)
}

fn in_views(contexts: &Contexts, work: &Work<'_>) -> Result<u64> {
    let (mut done, mut sum) = (0, 0_u64);
    for keys in work.runs.iter().flat_map(|run| run.as_chunks::<TOGETHER>().0) {
        for key in keys {
            let view = contexts.session.get(contexts.namespace, key)?.ok_or_else(missing)?;
            sum = sum.wrapping_add(touch(view.bytes()));
        }
        done += 1;
    }
    black_box(sum);
    Ok(done)
}
