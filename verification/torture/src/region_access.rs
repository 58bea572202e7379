//! Sessions of the region under test.

use std::path::Path;

use nearstate_store::{Region, Session};

/// Attaches a region, which recovers dead sessions, and opens a session.
pub(crate) fn open_session(path: &Path) -> Result<Session, String> {
    let region = Region::attach(path).map_err(|e| format!("attach: {e}"))?;
    region.session().map_err(|e| format!("session: {e}"))
}
