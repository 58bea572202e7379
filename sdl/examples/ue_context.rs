//! The context of a UE in a region: its blocks are the record's blocks, its identities are tags. It
//! is attached, found by its GUTI, changed by a service request that writes one block, and shown.
//!
//! `cargo run -p nearstate-sdl --example ue_context` prints each step; a test runs the same.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use nearstate_store::{
    BlockChange, CreateOptions, Kind, Metadata, Namespace, Region, Result, Schema, Session,
    TagSchema, Txn,
};
use nearstate_ue::value::to_bytes;
use nearstate_ue::{BlockSet, Context, Procedure, SCHEMA, apply, blocks_touched, state_of, tags};

type Answer<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// A namespace for contexts: their tags are declared by `nearstate_ue`.
fn contexts(session: &Session) -> Result<Namespace> {
    let tag = |name: &str, is_unique| TagSchema {
        name: name.to_owned(),
        is_unique,
        ..TagSchema::default()
    };
    let tags = SCHEMA.iter().map(|declared| tag(declared.name, declared.is_unique)).collect();
    session.namespace("ue-contexts", &Schema { kind: Kind::Blocks, tags })
}

/// Writes some blocks of a context, and all its tags: both or none. A block without variables is
/// not kept.
fn write(
    txn: &Txn<'_>,
    (table, key): (Namespace, &[u8]),
    context: &Context,
    blocks: BlockSet,
) -> Result<usize> {
    let view = context.view();
    let change = |block| BlockChange {
        name: nearstate_ue::Block::name(block),
        bytes: (!view.is_block_empty(block)).then(|| view.block(block)),
    };
    let changes: Vec<BlockChange<'_>> = blocks.iter().map(change).collect();
    txn.patch(table, key, &changes)?;
    let tags: Vec<(&str, &[u8])> = tags(&view).collect();
    txn.set_metadata(table, key, Metadata { tags: &tags, expires_ms: 0 })?;
    Ok(changes.iter().filter_map(|change| change.bytes).map(<[u8]>::len).sum())
}

/// A procedure: the context is read and checked, changed, and its delta written. Says how many
/// bytes that was; `None` if there is no such UE.
fn perform(
    session: &Session,
    (table, key): (Namespace, &[u8]),
    procedure: Procedure,
    draw: u64,
) -> Result<Option<usize>> {
    session.transact(|txn| {
        let Some(record) = txn.get(table, key)? else { return Ok(None) };
        let mut context = Context::from_blocks(|block| record.block(block.name()))?;
        drop(record);
        apply(procedure, &mut context, draw);
        write(txn, (table, key), &context, blocks_touched(procedure)).map(Some)
    })
}

fn run(path: &Path, out: &mut impl Write) -> Answer {
    let region = Region::create(path, &CreateOptions::default())?;
    let mme = region.session()?;
    let table = contexts(&mme)?;

    // The subscriber is known, and attaches.
    let known = Context::provisioned(7, 1);
    let imsi = known.view().imsi().ok_or("a subscriber has an IMSI")?;
    let place = (table, imsi.as_bytes().as_slice());
    let bytes = mme.transact(|txn| write(txn, place, &known, BlockSet::ALL))?;
    writeln!(out, "{imsi} is provisioned: {bytes} B, {:?}", state_of(&known))?;
    for (draw, procedure) in
        (1..).zip([Procedure::InitialAttach, Procedure::S1Release, Procedure::ServiceRequest])
    {
        let bytes = perform(&mme, place, procedure, draw)?.ok_or("the UE is gone")?;
        writeln!(out, "{procedure}: {bytes} B in {} blocks", blocks_touched(procedure).len())?;
    }

    // A message comes in with a GUTI; another process may answer it.
    let other = region.session()?;
    let guti = known.view().guti().ok_or("a subscriber has a GUTI")?;
    let found = other.find(table, "guti", &to_bytes(&guti))?.ok_or("no UE has this GUTI")?;
    let context = Context::from_blocks(|block| found.block(block.name()))?;
    writeln!(out, "{guti} is {:?}, version {}:", state_of(&context), found.version())?;
    writeln!(out, "{context}")?;
    Ok(())
}

fn main() -> Answer {
    let folder = tempfile::tempdir()?;
    run(&folder.path().join("mme"), &mut io::stdout())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_prints_the_expected_steps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mme");
        let mut said = Vec::new();
        run(&path, &mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        let beginning = "\
001010000000007 is provisioned: 192 B, Deregistered
Initial attach: 493 B in 5 blocks
S1 release: 0 B in 1 blocks
Service request: 150 B in 1 blocks
";
        assert!(said.starts_with(beginning), "{said}");
        assert!(said.contains("is Connected, version 4:"), "{said}");
        assert!(said.contains("IMSI                    001010000000007\n"), "{said}");
        let report = nearstate_store::check(&path).unwrap();
        assert!(report.is_clean(), "{:?}", report.faults);
    }
}
