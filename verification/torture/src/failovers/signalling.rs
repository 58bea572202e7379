//! Signalling through an attached process: procedures of UEs, each a transaction on the context, of
//! which the result may leave when it is replicated.
//!
//! The procedures of a UE and their draws depend on their numbers only, so the context after each
//! of them is known.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearstate_store::{BlockChange, Error, Namespace, Receipt, ReceiptState, Session, View};
use nearstate_ue::{BLOCKS, BlockSet, Context, Procedure, apply, blocks_touched, draw_for};

use super::shared_files::AppendedLines;
use super::writer::is_refusal;
use crate::clock::now_ns;
use crate::error_context::ErrorContext as _;
use crate::region_access::open_session;
use crate::rng::Rng;

/// The namespace of the contexts.
pub(super) const CONTEXTS: &str = "ue";

/// UEs of the demo.
pub(super) const UES: u64 = 1000;

/// The block with the number of the last procedure.
const NUMBER: &str = "number";

/// The procedures of a UE, again and again.
const CYCLE: [Procedure; 9] = [
    Procedure::InitialAttach,
    Procedure::SessionManagement,
    Procedure::S1Release,
    Procedure::TrackingAreaUpdate,
    Procedure::ServiceRequest,
    Procedure::Handover,
    Procedure::S1Release,
    Procedure::ServiceRequest,
    Procedure::Detach,
];

/// How long the result of a procedure is waited for. Later it is looked at now and then.
const RECEIPT_MAX: Duration = Duration::from_millis(50);

/// The pause after a refusal, and between two procedures.
const REFUSED_PAUSE: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(100);

/// The contexts of at most this many procedures wait for their receipts.
const PENDING_MAX: usize = 256;

fn procedure(number: u64) -> Procedure {
    let at = usize::try_from(number % CYCLE.len() as u64).unwrap_or(0);
    CYCLE.get(at).copied().unwrap_or(Procedure::InitialAttach)
}

/// The context of a UE after so many procedures.
fn context_after(ue: u64, count: u64) -> Context {
    let mut context = Context::provisioned(ue, 1);
    for number in 0..count {
        apply(procedure(number), &mut context, draw_for(1, ue, number));
    }
    context
}

/// A procedure whose result may leave, with its times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedProcedure {
    /// The host of its process.
    pub host: usize,
    pub ue: u64,
    /// Procedures of the UE with this one.
    pub count: u64,
    pub committed: u64,
    pub replicated: u64,
}

fn journal(folder: &Path, host: usize) -> PathBuf {
    folder.join(format!("signalling-{host}"))
}

/// Runs procedures until standard input ends.
pub(crate) fn signal(folder: &Path, host: u16, region: &Path, rng: &mut Rng) -> Result<(), String> {
    let ends = std::thread::spawn(|| std::io::stdin().read(&mut [0]).map(drop));
    let path = journal(folder, host.into());
    let file = File::options().create(true).append(true).open(&path);
    let mut file = file.context(path.display())?;
    let session = open_session(region)?;
    let mut pending: Vec<(u64, u64, u64, Receipt)> = Vec::new();
    while !ends.is_finished() {
        let ue = rng.u64(..UES);
        match run_procedure(&session, ue) {
            Ok(count) if pending.len() < PENDING_MAX => {
                pending.push((ue, count, now_ns(), session.receipt()));
            }
            Ok(_) => {}
            Err(error) if is_refusal(&error) => std::thread::sleep(REFUSED_PAUSE),
            Err(error) => return Err(error.to_string()),
        }
        let settled =
            wait_for_receipts(&session, &mut pending).map_err(|error| error.to_string())?;
        file.write_all(settled.as_bytes()).context("journal")?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The lines of the procedures that are replicated by now.
fn wait_for_receipts(
    session: &Session,
    pending: &mut Vec<(u64, u64, u64, Receipt)>,
) -> nearstate_store::Result<String> {
    if let Some((.., last)) = pending.last() {
        session.wait_replicated(*last, RECEIPT_MAX)?;
    }
    let (mut lines, mut left) = (String::new(), Vec::new());
    for (ue, count, committed, receipt) in std::mem::take(pending) {
        match session.receipt_state(receipt)? {
            ReceiptState::Replicated => {
                let replicated = now_ns();
                let _ = writeln!(lines, "{ue} {count} {committed} {replicated} .");
            }
            ReceiptState::Pending => left.push((ue, count, committed, receipt)),
            ReceiptState::Lost | ReceiptState::Unknown => {}
        }
    }
    *pending = left;
    Ok(lines)
}

fn key(ue: u64) -> String {
    format!("imsi-{ue}")
}

fn contexts(session: &Session) -> nearstate_store::Result<Namespace> {
    let missing = || Error::NotOwner { namespace: CONTEXTS.to_owned(), address: None };
    session.known_namespace(CONTEXTS)?.ok_or_else(missing)
}

fn count_of(view: &View<'_>) -> u64 {
    let bytes = view.block(NUMBER).and_then(|bytes| bytes.first_chunk().copied());
    bytes.map_or(0, u64::from_le_bytes)
}

/// The next procedure of a UE: reads its context, and writes the blocks that change. Returns how
/// many it had by then.
fn run_procedure(session: &Session, ue: u64) -> nearstate_store::Result<u64> {
    let namespace = contexts(session)?;
    session.transact(|txn| {
        let key = key(ue);
        let (mut context, count, is_new) = {
            match txn.get(namespace, key.as_bytes())? {
                None => (Context::provisioned(ue, 1), 0, true),
                Some(view) => {
                    let context = Context::from_blocks(|block| view.block(block.name()))?;
                    (context, count_of(&view), false)
                }
            }
        };
        let next = procedure(count);
        apply(next, &mut context, draw_for(1, ue, count));
        let touched = if is_new { BlockSet::ALL } else { blocks_touched(next) };
        let count = (count + 1).to_le_bytes();
        let view = context.view();
        let mut changes = vec![BlockChange { name: NUMBER, bytes: Some(&count) }];
        changes.extend(
            BLOCKS
                .iter()
                .filter(|block| touched.contains(**block))
                .map(|block| BlockChange { name: block.name(), bytes: Some(view.block(*block)) }),
        );
        txn.patch(namespace, key.as_bytes(), &changes)?;
        Ok(u64::from_le_bytes(count))
    })
}

/// What the process of a host has noted since the last call.
pub(super) fn released(
    lines: &mut AppendedLines,
    folder: &Path,
    host: usize,
) -> Result<Vec<ReleasedProcedure>, String> {
    let parse = |line: String| {
        let numbers: Vec<u64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [ue, count, committed, replicated] = numbers.try_into().ok()?;
        Some(ReleasedProcedure { host, ue, count, committed, replicated })
    };
    Ok(lines.next(journal(folder, host))?.into_iter().filter_map(parse).collect())
}

/// Compares all contexts with what was released. Returns how many contexts were compared.
pub(super) fn check(session: &Session, released: &[ReleasedProcedure]) -> Result<u64, String> {
    let failed = |error: Error| format!("contexts: {error}");
    let namespace = contexts(session).map_err(failed)?;
    let mut least: BTreeMap<u64, u64> = BTreeMap::new();
    for one in released {
        let count = least.entry(one.ue).or_default();
        *count = one.count.max(*count);
    }
    let mut compared = 0;
    for ue in 0..UES {
        let least = least.get(&ue).copied().unwrap_or(0);
        let view = session.get(namespace, key(ue).as_bytes()).map_err(failed)?;
        let Some(view) = view else {
            if least == 0 {
                continue;
            }
            return Err(format!("LOST: the context of UE {ue} after {least} procedures"));
        };
        let count = count_of(&view);
        if count < least {
            return Err(format!("LOST: UE {ue} has {count} procedures, released are {least}"));
        }
        let found = Context::from_blocks(|block| view.block(block.name())).map_err(failed)?;
        if found.as_bytes() != context_after(ue, count).as_bytes() {
            return Err(format!("DIVERGENT: the context of UE {ue} after {count} procedures"));
        }
        compared += 1;
    }
    Ok(compared)
}
