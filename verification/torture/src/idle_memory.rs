//! Memory of idle sessions: a child fills a region and takes what an idle session of another
//! process has freed. It is killed or stopped at every point of that.

use std::path::Path;

use nearstate_store::{Namespace, Region, Schema, Session};

use crate::error_context::ErrorContext as _;
use crate::region_access::{create_region, fill, open_session, unless_full};

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

/// A child's role. It prints nothing: what it has put is in its namespace.
pub fn play(folder: &Path) -> Result<(), String> {
    fill(&open_session(&folder.join("region"))?, "child", SMALL)
}

/// A full region, and an idle session that has free cells and a bump range.
#[derive(Debug)]
pub struct IdleCase {
    session: Session,
    namespace: Namespace,
}

impl IdleCase {
    /// Creates and fills the region.
    pub fn new(folder: &Path) -> Result<Self, String> {
        let path = create_region(folder)?;
        let region = Region::attach(&path).context("attach")?;
        let session = region.session().context("session")?;
        let namespace = session.namespace("idle", &Schema::default()).context("idle")?;
        let mut case = Self { session, namespace };
        case.work()?;
        let other = region.session().context("session")?;
        fill(&other, "large", LARGE)?;
        fill(&other, "rest", SMALL)?;
        let large = other.namespace("large", &Schema::default()).context("large")?;
        for number in 0..LARGE_DELETED {
            other.delete(large, &number.to_be_bytes()).context("delete")?;
        }
        drop(other);
        // A session that has found no room near its last chunk takes single cells. A new one takes
        // a bump range. What it replaces are its free cells.
        case.session = region.session().context("session")?;
        case.namespace = case.session.namespace("idle", &Schema::default()).context("idle")?;
        for number in (1..2 * REPLACED).step_by(2) {
            let put = case.session.put(case.namespace, &number.to_be_bytes(), &[b'i'; SMALL]);
            put.context("replace")?;
        }
        Ok(case)
    }

    /// The idle session puts its records and deletes every second one of them.
    fn work(&self) -> Result<(), String> {
        for number in 0..2 * RECORDS {
            let put = self.session.put(self.namespace, &number.to_be_bytes(), &[b'i'; SMALL]);
            // In the full region it replaces what it has kept.
            unless_full(put)?;
        }
        for number in (0..2 * RECORDS).step_by(2) {
            self.session.delete(self.namespace, &number.to_be_bytes()).context("delete")?;
        }
        Ok(())
    }

    /// One write of the idle session: it replaces a record by one of the same size.
    pub fn write(&self) -> nearstate_store::Result<()> {
        self.session.put(self.namespace, &1_u32.to_be_bytes(), &[b'i'; SMALL]).map(drop)
    }

    /// The idle session continues, and has what it kept.
    pub fn verify(self) -> Result<(), String> {
        self.write().context("a write of the idle session")?;
        for number in (1..2 * RECORDS).step_by(2) {
            let found = self.session.get(self.namespace, &number.to_be_bytes());
            if found.context("get")?.is_none_or(|view| view.bytes() != [b'i'; SMALL]) {
                return Err(format!("record {number} of the idle session is lost"));
            }
        }
        self.work()
    }
}
