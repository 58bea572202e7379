//! Since when the log has the commits of a namespace.
//!
//! ```text
//! declaration                                      reader of the log
//! N1  flag LOGGED, drain the writers               R1  read an entry at position x
//! N2  declarations += 1                            R2  load declarations
//! N3  since := a position drawn for this           R3  changed: look at the namespaces
//! ```
//!
//! A reader that gets an entry behind `since` sees N2: the entry was drawn after N3. If it finds a
//! logged namespace without `since`, it looks again at the next entry. So no reader passes `since`
//! of a namespace before it knows that the namespace is logged. The position is that of no entry:
//! a follower that has applied one behind it has been told of the namespace, and one that has not
//! gets its records.

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::layout::{
    CATALOG_LOGGED_SINCE, Corruption, LOG_DECLARATIONS, LOG_TAIL, SUPER_NAMESPACES_LOCK,
    catalog_at, entry_of, seal, unseal,
};
use crate::member::Member;
use crate::member::arena::LockSlot;

impl Member {
    /// N2 and N3: after all writers that knew the namespace as not logged have ended.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn end_log_declaration(&self, namespace: u32) -> Result<()> {
        let map = self.map();
        map.word(LOG_DECLARATIONS)?.fetch_add(1, Ordering::AcqRel);
        crash_point!("declare.counted");
        // Readers find that it has no entry, as that of a writer that was killed.
        let since = map.word(LOG_TAIL)?.fetch_add(1, Ordering::AcqRel) + 1;
        let word = map.word(catalog_at(entry_of(namespace)) + CATALOG_LOGGED_SINCE)?;
        word.store(seal(since), Ordering::Release);
        crash_point!("declare.ended");
        self.check_not_truncated()
    }

    /// The same, unless writers of logged namespaces are refused: then nothing is changed. Returns
    /// whether it was done. Under the namespaces lock, which a hand-over that has refused them
    /// waits for.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`, `Forked`.
    pub fn end_log_declaration_unless_fenced(&self, namespace: u32) -> Result<bool> {
        self.check_usable()?;
        invariant!(self.has_no_lock(), "a namespace is declared while its member holds a lock");
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let done = match self.is_fenced_off_now() {
                Ok(false) => self.end_log_declaration(namespace).map(|()| true),
                Ok(true) => Ok(false),
                Err(error) => Err(error.into()),
            };
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            done
        })
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
