//! Since when the log has the commits of a namespace.
//!
//! ```text
//! declaration                                      reader of the log
//! N1  declarations += 1                            R1  read an entry at position x
//! N2  flag LOGGED, drain the writers               R2  load declarations
//! N3  since := tail                                R3  changed: look at the namespaces
//! ```
//!
//! A reader that gets an entry behind `since` sees N1: the entry was drawn after N3 had loaded the
//! tail, and the reader synchronizes with its draw. So no reader passes `since` of a namespace
//! before it knows that the namespace is logged.

use nearstate_model::Result;

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::layout::{
    CATALOG_LOGGED_SINCE, Corruption, LOG_DECLARATIONS, catalog_at, entry_of, seal, unseal,
};
use crate::member::Member;

impl Member {
    /// N1: before the namespace gets its flag.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn begin_log_declaration(&self) -> Result<()> {
        self.map().word(LOG_DECLARATIONS)?.fetch_add(1, Ordering::AcqRel);
        crash_point!("declare.begun");
        Ok(())
    }

    /// N3: after all writers that knew the namespace as not logged have ended.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn end_log_declaration(&self, namespace: u32) -> Result<()> {
        let since = self.log_tail()?;
        let word = self.map().word(catalog_at(entry_of(namespace)) + CATALOG_LOGGED_SINCE)?;
        word.store(seal(since), Ordering::Release);
        crash_point!("declare.ended");
        self.check_not_truncated()
    }

    /// How often a namespace became a logged one: R2.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn log_declarations(&self) -> Result<u64, Corruption> {
        Ok(self.map().word(LOG_DECLARATIONS)?.load(Ordering::Acquire))
    }

    /// The position from which the log has all commits of a namespace, `None` if it is not known.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn logged_since(&self, namespace: u32) -> Result<Option<u64>, Corruption> {
        let at = catalog_at(entry_of(namespace)) + CATALOG_LOGGED_SINCE;
        match self.map().word(at)?.load(Ordering::Acquire) {
            0 => Ok(None),
            word => unseal(word, "since when a namespace is logged has a flipped bit").map(Some),
        }
    }
}
