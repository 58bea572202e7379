//! Memory of idle sessions: a child fills a region and takes what an idle session of another
//! process has freed. It is killed or stopped at every point of that.

use std::path::Path;

use nearstate_store::{Error, Namespace, Region, Schema, Session};

use crate::region_access::{create_region, open_session, text};

/// Records that the idle session keeps, and as many that it has deleted.
const RECORDS: u32 = 600;

/// Records of [`LARGE`] bytes that are deleted from the full region: room for some bump ranges.
const LARGE_DELETED: u32 = 6;

/// Records that the idle session then replaces: it keeps as many cells, and a part of a bump range.
const REPLACED: u32 = 100;

/// Bytes of a record: of the idle session, of those that fill most of the region, and of those that
/// the child puts.
const SMALL: usize = 1000;
const LARGE: usize = 60_000;

/// Puts records until the region is full. Returns how many.
fn fill(session: &Session, name: &str, bytes: usize) -> Result<u32, String> {
    let namespace = session.namespace(name, &Schema::default()).map_err(text(name))?;
    let value = vec![b'x'; bytes];
    for number in 0_u32.. {
        match session.put(namespace, &number.to_be_bytes(), &value) {
            Ok(_) => {}
            Err(Error::Full { .. }) => return Ok(number),
            Err(error) => return Err(text("fill")(error)),
        }
    }
    unreachable!("a region is full some time")
}

/// A child's role. It prints nothing: what it has put is in its namespace.
///
/// # Errors
/// An operation that failed.
pub fn play(folder: &Path) -> Result<(), String> {
    fill(&open_session(&folder.join("region"))?, "child", SMALL).map(drop)
}

/// A full region, and an idle session that has free cells and a bump range.
#[derive(Debug)]
pub struct IdleCase {
    session: Session,
    namespace: Namespace,
}

impl IdleCase {
    /// Creates and fills the region.
    ///
    /// # Errors
    /// The store's error.
    pub fn new(folder: &Path) -> Result<Self, String> {
        let path = create_region(folder)?;
        let region = Region::attach(&path).map_err(text("attach"))?;
        let session = region.session().map_err(text("session"))?;
        let namespace = session.namespace("idle", &Schema::default()).map_err(text("idle"))?;
        let mut case = Self { session, namespace };
        case.work()?;
        let other = region.session().map_err(text("session"))?;
        fill(&other, "large", LARGE)?;
        fill(&other, "rest", SMALL)?;
        let large = other.namespace("large", &Schema::default()).map_err(text("large"))?;
        for number in 0..LARGE_DELETED {
            other.delete(large, &number.to_be_bytes()).map_err(text("delete"))?;
        }
        drop(other);
        // A session that has found no room near its last chunk takes single cells. A new one takes
        // a bump range. What it replaces are its free cells.
        case.session = region.session().map_err(text("session"))?;
        case.namespace =
            case.session.namespace("idle", &Schema::default()).map_err(text("idle"))?;
        for number in (1..2 * REPLACED).step_by(2) {
            let put = case.session.put(case.namespace, &number.to_be_bytes(), &[b'i'; SMALL]);
            put.map_err(text("replace"))?;
        }
        Ok(case)
    }

    /// The idle session puts its records and deletes every second one of them.
    fn work(&self) -> Result<(), String> {
        for number in 0..2 * RECORDS {
            let put = self.session.put(self.namespace, &number.to_be_bytes(), &[b'i'; SMALL]);
            match put {
                // In the full region it replaces what it has kept.
                Ok(_) | Err(Error::Full { .. }) => {}
                Err(error) => return Err(text("put")(error)),
            }
        }
        for number in (0..2 * RECORDS).step_by(2) {
            self.session.delete(self.namespace, &number.to_be_bytes()).map_err(text("delete"))?;
        }
        Ok(())
    }

    /// One write of the idle session: it replaces a record by one of the same size.
    ///
    /// # Errors
    /// The store's error.
    pub fn write(&self) -> nearstate_store::Result<()> {
        self.session.put(self.namespace, &1_u32.to_be_bytes(), &[b'i'; SMALL]).map(drop)
    }

    /// The idle session continues, and has what it kept.
    ///
    /// # Errors
    /// The violation.
    pub fn verify(self) -> Result<(), String> {
        self.write().map_err(text("a write of the idle session"))?;
        for number in (1..2 * RECORDS).step_by(2) {
            let found = self.session.get(self.namespace, &number.to_be_bytes());
            if found.map_err(text("get"))?.is_none_or(|view| view.bytes() != [b'i'; SMALL]) {
                return Err(format!("record {number} of the idle session is lost"));
            }
        }
        self.work()
    }
}
