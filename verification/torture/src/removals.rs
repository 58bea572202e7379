//! Removal of namespaces: a child creates, fills, empties and removes two of them. It is killed at
//! every point that this reaches. Another process verifies the region, and completes the removal.

use std::path::Path;

use nearstate_store::{
    Error, Kind, Metadata, Namespace, Pattern, Region, Schema, Session, TagSchema,
};

use crate::error_context::ErrorContext as _;
use crate::region_access::{create_region, open_session};

/// The namespaces that are removed, in this order: one without and one with tags.
pub const REMOVED: [&str; 2] = ["removed", "removed-tagged"];

/// A namespace that is not removed.
const KEPT: &str = "kept";

/// Records of each namespace.
const RECORDS: u32 = 12;

const ROUNDS: usize = 3;

fn tags() -> Vec<TagSchema> {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    vec![
        TagSchema { is_unique: true, ..tag("unique") },
        TagSchema { is_ordered: true, ..tag("ordered") },
        TagSchema { is_counted: true, ..tag("counted") },
        tag("listed"),
    ]
}

fn schema(name: &str) -> Schema {
    let tags = if name == REMOVED[0] { Vec::new() } else { tags() };
    Schema { kind: Kind::Value, tags }
}

/// Puts the records of a namespace, each with a value that names it.
fn fill(session: &Session, name: &str, namespace: Namespace) -> Result<(), String> {
    for number in 0..RECORDS {
        let key = number.to_be_bytes();
        let all: Vec<(&str, &[u8])> =
            ["unique", "ordered", "counted", "listed"].map(|tag| (tag, &key[..])).to_vec();
        let tags = if name == REMOVED[0] { &[][..] } else { &all };
        let expires_ms = if number % 2 == 0 { 0 } else { u64::MAX >> 20 };
        let metadata = Metadata { tags, expires_ms };
        session
            .transact(|txn| txn.put_with_metadata(namespace, &key, name.as_bytes(), metadata))
            .context("put")?;
    }
    Ok(())
}

fn empty(session: &Session, namespace: Namespace) -> Result<(), String> {
    let mut keys = Vec::new();
    session.list(namespace, Pattern::All, |key| keys.push(key.to_vec())).context("list")?;
    keys.iter().try_for_each(|key| session.delete(namespace, key).map(drop)).context("delete")
}

/// A child's role. A repetition continues what a killed child has begun.
pub fn play(folder: &Path) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    for _ in 0..ROUNDS {
        for name in REMOVED {
            let namespace = session.namespace(name, &schema(name)).context(name)?;
            empty(&session, namespace)?;
            fill(&session, name, namespace)?;
            empty(&session, namespace)?;
            // False if another process has written to it meanwhile.
            session.remove_namespace(namespace).context("remove")?;
        }
    }
    Ok(())
}

/// A region with a namespace that stays, and the handles of those that are removed.
#[derive(Debug)]
pub struct RemovalCase {
    session: Session,
    kept: Namespace,
    old: Vec<Namespace>,
}

impl RemovalCase {
    /// Creates the region.
    pub fn new(folder: &Path) -> Result<Self, String> {
        let path = create_region(folder)?;
        let session =
            Region::attach(&path).and_then(|region| region.session()).context("attach")?;
        let kept = session.namespace(KEPT, &schema(KEPT)).context(KEPT)?;
        fill(&session, KEPT, kept)?;
        let old = REMOVED
            .iter()
            .map(|name| session.namespace(name, &schema(name)).context(name))
            .collect::<Result<_, _>>()?;
        Ok(Self { session, kept, old })
    }

    /// The session that had the handles before the removals.
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// The handles that the session had before.
    pub fn old(&self) -> &[Namespace] {
        &self.old
    }

    /// What stays is complete, and an old handle leads to nothing of another namespace.
    pub fn verify(&self) -> Result<(), String> {
        for number in 0..RECORDS {
            let key = number.to_be_bytes();
            let found = self.session.find(self.kept, "unique", &key).context("find")?;
            if found.is_none_or(|view| view.bytes() != KEPT.as_bytes()) {
                return Err(format!("record {number} of {KEPT} is lost"));
            }
            for (name, old) in REMOVED.iter().zip(&self.old) {
                match self.session.get(*old, &key) {
                    Ok(None) => {}
                    Ok(Some(view)) if view.bytes() == name.as_bytes() => {}
                    Ok(Some(view)) => return Err(format!("{name} reads {:?}", view.bytes())),
                    Err(Error::BadArgument { .. }) if !self.session.has_namespace(*old) => {}
                    Err(error) => return Err(format!("get by an old handle: {error}")),
                }
            }
        }
        Ok(())
    }

    /// After complete removals: only what stays is there, and no entry of the catalog is lost.
    pub fn verify_end(self) -> Result<(), String> {
        self.verify()?;
        let all = self.session.namespaces().context("list")?;
        let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        if names != [KEPT] {
            return Err(format!("namespaces {names:?} are left"));
        }
        if self.old.iter().any(|old| self.session.has_namespace(*old)) {
            return Err("an old handle is valid".to_owned());
        }
        // The one that stays, the internal one, and those two.
        for number in 0..2 {
            let name = format!("next-{number}");
            let next = self.session.namespace(&name, &Schema::default()).context(&name)?;
            if next.number() & 0xffff > 3 {
                return Err(format!("an entry of the catalog is lost: {next:?}"));
            }
        }
        Ok(())
    }
}
