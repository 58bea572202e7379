//! The attach procedure of a mobile core (TS 23.401, clause 5.3.2.1) on a region: a session with
//! three indexed fields, two of them unique (paper 3, section 4), and its bearer, made at one
//! instant; found by its TEID; watched by another session; ended by itself.
//!
//! `cargo run -p nearstate-store --example attach` prints each step; a test runs the same.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use nearstate_store::{
    CreateOptions, Error as Refusal, Filter, Kind, Metadata, Namespace, Notice, Region, Schema,
    Session, TagSchema, Txn, Values, Watch, now_ms_coarse,
};

type ExampleResult<T = ()> = Result<T, Box<dyn Error>>;

/// One hour: the lifetime of a session without a sign of life from its UE.
const REACHABLE_MS: u64 = 3_600_000;

/// What an MME knows of an attached UE and is asked for.
struct Ue {
    imsi: &'static str,
    guti: &'static str,
    teid: [u8; 4],
    area: &'static str,
}

const FIRST: Ue =
    Ue { imsi: "imsi-262011", guti: "guti-1", teid: [0, 0, 0x10, 1], area: "tai-0007" };
const SECOND: Ue =
    Ue { imsi: "imsi-262012", guti: "guti-2", teid: [0, 0, 0x10, 2], area: "tai-0007" };

/// The namespaces of the example.
#[derive(Clone, Copy)]
struct Tables {
    sessions: Namespace,
    bearers: Namespace,
    numbers: Namespace,
}

impl Tables {
    fn open(session: &Session) -> ExampleResult<Self> {
        let unique = |name: &str| TagSchema {
            name: name.to_owned(),
            is_unique: true,
            ..TagSchema::default()
        };
        let area = TagSchema {
            name: "area".to_owned(),
            is_ordered: true,
            is_counted: true,
            ..TagSchema::default()
        };
        let tags = vec![unique("guti"), unique("teid"), area];
        let counters = Schema { kind: Kind::Counters, ..Schema::default() };
        Ok(Self {
            sessions: session.namespace("sessions", &Schema { tags, ..Schema::default() })?,
            bearers: session.namespace("bearers", &Schema::default())?,
            numbers: session.namespace("numbers", &counters)?,
        })
    }

    /// Session and bearer: both or none.
    fn attach(self, txn: &Txn<'_>, ue: &Ue) -> nearstate_store::Result<()> {
        let tags: &[(&str, &[u8])] =
            &[("guti", ue.guti.as_bytes()), ("teid", &ue.teid), ("area", ue.area.as_bytes())];
        let metadata = Metadata { tags, expires_ms: now_ms_coarse() + REACHABLE_MS };
        txn.put_with_metadata(self.sessions, ue.imsi.as_bytes(), b"EMM-REGISTERED", metadata)?;
        txn.put(self.bearers, format!("{}/5", ue.imsi).as_bytes(), b"default bearer")
    }

    /// The UE gets other tags or another end; its value stays.
    fn set_metadata(
        self,
        txn: &Txn<'_>,
        ue: &Ue,
        guti: &str,
        ends: u64,
    ) -> nearstate_store::Result<()> {
        let tags: &[(&str, &[u8])] =
            &[("guti", guti.as_bytes()), ("teid", &ue.teid), ("area", ue.area.as_bytes())];
        let metadata = Metadata { tags, expires_ms: ends };
        txn.set_metadata(self.sessions, ue.imsi.as_bytes(), metadata).map(drop)
    }
}

fn run(path: &Path, out: &mut impl Write) -> ExampleResult {
    let region = Region::create(path, &CreateOptions::default())?;
    let mme = region.session()?;
    let tables = Tables::open(&mme)?;
    let other = region.session()?; // as in another process
    let mut watch = other.watch(tables.sessions, Filter::Namespace)?;

    for ue in [&FIRST, &SECOND] {
        mme.transact(|txn| tables.attach(txn, ue))?;
        mme.add(tables.numbers, b"attached", 1)?; // an add is no part of a transaction
        writeln!(out, "attached {}: session, bearer and three indexes at one instant", ue.imsi)?;
    }
    let attached = mme.read_counter(tables.numbers, b"attached")?.unwrap_or(0);
    writeln!(out, "attached so far: {attached}")?;
    find(&mme, tables, out)?;
    taken(&mme, tables, out)?;

    mme.transact(|txn| tables.set_metadata(txn, &FIRST, "guti-9", now_ms_coarse() + REACHABLE_MS))?;
    let old = mme.find(tables.sessions, "guti", b"guti-1")?.is_some();
    let new = mme.find(tables.sessions, "guti", b"guti-9")?.is_some();
    writeln!(out, "GUTI reallocated: by the old one {old}, by the new one {new}")?;

    mme.transact(|txn| tables.set_metadata(txn, &SECOND, "guti-2", now_ms_coarse()))?;
    let is_found = mme.find(tables.sessions, "teid", &SECOND.teid)?.is_some();
    writeln!(out, "{} has expired: found {is_found}, though not collected", SECOND.imsi)?;
    let collected = mme.collect_expired(10)?.records;
    writeln!(out, "collected {collected}, then {}", mme.collect_expired(10)?.records)?;
    print_events(&mut watch, out)
}

/// A packet comes in, and a paging of an area.
fn find(mme: &Session, tables: Tables, out: &mut impl Write) -> ExampleResult {
    if let Some(view) = mme.find(tables.sessions, "teid", &FIRST.teid)? {
        let (key, value) =
            (String::from_utf8_lossy(view.key()), String::from_utf8_lossy(view.bytes()));
        writeln!(out, "TEID {:02x?} is {key}, {value}", FIRST.teid)?;
    }
    let mut paged = Vec::new();
    mme.find_all(tables.sessions, "area", Values::Prefix(b"tai-00"), |view| {
        paged.push(String::from_utf8_lossy(view.key()).into_owned());
        true
    })?;
    let count = mme.count_tagged(tables.sessions, "area", b"tai-0007")?;
    writeln!(out, "area tai-0007 has {count}: {}", paged.join(", "))?;
    Ok(())
}

/// The TEID is already in use: the attach has no effect.
fn taken(mme: &Session, tables: Tables, out: &mut impl Write) -> ExampleResult {
    let third = Ue { imsi: "imsi-262013", guti: "guti-3", ..FIRST };
    match mme.transact(|txn| tables.attach(txn, &third)) {
        Err(Refusal::TagTaken { tag, holder, .. }) => {
            let bearer = mme.get(tables.bearers, b"imsi-262013/5")?.is_some();
            writeln!(out, "refused {}: its {tag} is of {holder}; bearer {bearer}", third.imsi)?;
            Ok(())
        }
        other => Err(format!("a TEID was given twice: {other:?}").into()),
    }
}

/// The events of the other session.
fn print_events(watch: &mut Watch, out: &mut impl Write) -> ExampleResult {
    while let Some(notice) = watch.next()? {
        match notice {
            Notice::Event(event) => {
                let key = String::from_utf8_lossy(event.key);
                writeln!(out, "event: {key} {:?}, version {}", event.kind, event.version)?;
            }
            Notice::Lost { events } => writeln!(out, "event: {events} were lost")?,
        }
    }
    Ok(())
}

fn main() -> ExampleResult {
    let folder = tempfile::tempdir()?;
    run(&folder.path().join("mme"), &mut io::stdout())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_says_what_happens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mme");
        let mut said = Vec::new();
        run(&path, &mut said).unwrap();
        let expected = "\
attached imsi-262011: session, bearer and three indexes at one instant
attached imsi-262012: session, bearer and three indexes at one instant
attached so far: 2
TEID [00, 00, 10, 01] is imsi-262011, EMM-REGISTERED
area tai-0007 has 2: imsi-262011, imsi-262012
refused imsi-262013: its teid is of imsi-262011; bearer false
GUTI reallocated: by the old one false, by the new one true
imsi-262012 has expired: found false, though not collected
collected 1, then 0
event: imsi-262011 Created, version 1
event: imsi-262012 Created, version 1
event: imsi-262011 Updated, version 2
event: imsi-262012 Updated, version 2
event: imsi-262012 Expired, version 2
";
        assert_eq!(String::from_utf8(said).unwrap(), expected);
        let report = nearstate_store::check(&path).unwrap();
        assert!(report.is_clean(), "{:?}", report.faults);
    }
}
