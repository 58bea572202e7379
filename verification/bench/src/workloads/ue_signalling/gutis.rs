//! Contexts that are found by their GUTI.
//!
//! | procedure | its message | the context is found by |
//! |---|---|---|
//! | initial attach, service request, TA update | is the first of a connection | its GUTI |
//! | all others | uses an existing connection, or is from the network | its key |
//!
//! The first message of a connection is an initial NAS message, which contains the identity of its
//! sender (TS 36.413 clause 8.6.2; TS 24.301 clauses 8.2.4, 8.2.25 and 8.2.29). A TA update assigns
//! a new GUTI: the next initial message must find the context by the new GUTI, and the old GUTI
//! must find nothing.

use super::model::Ue;
use super::transfer::{ContextTags, ReceivedContext};
use super::{CONTEXTS, Client, Context, KEY_BYTES, PendingProcedure, TAGGED, key_of};
use crate::access::{Connection, PartSet, RecordTag};
use crate::workloads::{Tally, wrong_answer};
use nearstate_model::{Error, Result};
use nearstate_ue::Procedure;

/// Bytes of a GUTI (TS 23.003 clause 2.8.1).
const GUTI_BYTES: usize = 10;

/// The index of the tag with the GUTI.
pub(super) const GUTI: usize = 1;

pub(super) type Guti = [u8; GUTI_BYTES];

/// The GUTIs of a UE.
#[derive(Clone, Copy, Debug, Default)]
struct GutiHistory {
    current: Guti,
    /// The last different GUTI, even if the UE had none in between.
    former: Option<Guti>,
}

impl GutiHistory {
    fn set(&mut self, guti: Guti) {
        if self.current != guti && self.current != Guti::default() {
            self.former = Some(self.current);
        }
        // A UE that has its former GUTI again is found by it.
        self.former = self.former.filter(|former| *former != guti);
        self.current = guti;
    }
}

/// The GUTIs of a client's UEs.
#[derive(Debug, Default)]
pub(super) struct Gutis {
    all: Vec<GutiHistory>,
    /// Finds by GUTI.
    pub(super) finds: u64,
}

/// True if the context is found by its GUTI.
#[inline]
pub(super) const fn is_by_guti(procedure: Procedure) -> bool {
    match procedure {
        Procedure::InitialAttach | Procedure::ServiceRequest | Procedure::TrackingAreaUpdate => {
            true
        }
        Procedure::Detach
        | Procedure::S1Release
        | Procedure::Handover
        | Procedure::CellReselection
        | Procedure::SessionManagement => false,
    }
}

/// The share of procedures whose context is found by its GUTI.
pub(super) fn by_guti_share() -> f64 {
    Procedure::ALL.into_iter().filter(|one| is_by_guti(*one)).map(Procedure::share).sum()
}

fn guti_of(context: &Context) -> Guti {
    let mut tags = ContextTags::default();
    tags.fill(context);
    let found = tags.tags().iter().find(|(tag, _)| *tag == GUTI);
    found.and_then(|(_, value)| (*value).try_into().ok()).unwrap_or_default()
}

impl Gutis {
    /// Records the GUTI of a UE. Not inlined: the variants without tags take nanoseconds.
    #[cold]
    pub(super) fn update(&mut self, ue: Ue, after: &Context) {
        if self.all.len() <= ue.index() {
            self.all.resize(ue.index() + 1, GutiHistory::default());
        }
        if let Some(history) = self.all.get_mut(ue.index()) {
            history.set(guti_of(after));
        }
    }

    /// The GUTI of a UE. It does not change before its procedure has ended.
    pub(super) fn current(&self, ue: Ue) -> Guti {
        self.of(ue).current
    }

    fn of(&self, ue: Ue) -> GutiHistory {
        self.all.get(ue.index()).copied().unwrap_or_default()
    }
}

impl Client {
    /// Finds the context of a single procedure by its GUTI.
    #[cold]
    pub(super) fn find_single(
        &mut self,
        store: &mut Connection<'_>,
        pending: PendingProcedure,
        tally: &mut Tally,
    ) -> Result<()> {
        self.context = self.find(store, pending, tally)?;
        Ok(())
    }

    /// Finds a context by its GUTI.
    pub(super) fn find(
        &mut self,
        store: &mut Connection<'_>,
        pending: PendingProcedure,
        tally: &mut Tally,
    ) -> Result<Context> {
        let guti = self.gutis.current(pending.ue);
        let (mut context, mut received) = (Context::EMPTY, ReceivedContext::new(self.mode));
        let mut key = Vec::with_capacity(KEY_BYTES);
        let tag = (GUTI, guti.as_slice());
        let exists = store.find(CONTEXTS, tag, PartSet::ALL, &mut key, &mut |part, bytes| {
            received.add(&mut context, part, bytes);
        })?;
        self.gutis.finds += 1;
        tally.bytes_out += guti.len() as u64;
        tally.bytes_in += received.bytes + key.len() as u64;
        received.check(exists, pending)?;
        if !self.is_null_store && key != key_of(self.model.global(pending.ue)) {
            return Err(wrong_record(pending, &key));
        }
        self.compare(pending, PartSet::ALL, &context)?;
        Ok(context)
    }

    /// Returns an error text unless each unique tag finds this UE and its former GUTI finds
    /// nothing.
    pub(super) fn check_tags(
        &self,
        store: &mut Connection<'_>,
        ue: Ue,
        expected: &Context,
    ) -> Result<Option<String>> {
        let mut tags = ContextTags::default();
        tags.fill(expected);
        let rules = TAGGED.tables.first().map_or(&[][..], |table| table.tags);
        let key = key_of(self.model.global(ue));
        for (tag, value) in tags.tags() {
            let Some(rule) = rules.get(*tag).filter(|rule| rule.is_unique) else { continue };
            let found = key_of_tag(store, (*tag, *value))?;
            if found.as_deref() != Some(key.as_slice()) {
                return Ok(Some(format!("its {} leads to {}", rule.name, key_text(found))));
            }
        }
        let Some(former) = self.gutis.of(ue).former else { return Ok(None) };
        let found = key_of_tag(store, (GUTI, former.as_slice()))?;
        let is_kept = found.is_some();
        Ok(is_kept.then(|| format!("its former GUTI leads to {}", key_text(found))))
    }
}

/// The key of the record with this tag.
fn key_of_tag(store: &mut Connection<'_>, tag: RecordTag<'_>) -> Result<Option<Vec<u8>>> {
    let mut key = Vec::new();
    let exists = store.find(CONTEXTS, tag, PartSet::one(0), &mut key, &mut |_, _| {})?;
    Ok(exists.then_some(key))
}

fn key_text(found: Option<Vec<u8>>) -> String {
    found.map_or_else(|| "nothing".to_owned(), |key| String::from_utf8_lossy(&key).into_owned())
}

#[cold]
pub(super) fn wrong_record(pending: PendingProcedure, key: &[u8]) -> Error {
    let (ue, procedure) = (pending.ue.index(), pending.procedure);
    let key = String::from_utf8_lossy(key);
    wrong_answer(format_args!("{procedure}: the GUTI of this client's UE {ue} leads to {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The GUTI of a UE after these updates, and its former one.
    fn after(gutis: &[u64]) -> (Guti, Option<Guti>) {
        let (ue, mut all) = (Ue::of(3), Gutis::default());
        for number in gutis {
            all.update(ue, &with_guti(*number));
        }
        let GutiHistory { current, former } = all.of(ue);
        (current, former)
    }

    /// A context with this GUTI; 0: without one.
    fn with_guti(number: u64) -> Context {
        let mut context = Context::EMPTY;
        if number > 0 {
            context.set_guti(nearstate_ue::value::identity::Guti::provisioned(number));
        }
        context
    }

    #[test]
    fn the_former_guti_stays_known_if_the_ue_had_none_in_between() {
        let [none, a, b, c] = [0, 1, 2, 3].map(|number| guti_of(&with_guti(number)));
        assert_eq!(none, Guti::default());
        assert_eq!(after(&[1]), (a, None));
        assert_eq!(after(&[1, 1, 2, 2]), (b, Some(a)));
        assert_eq!(after(&[1, 0]), (none, Some(a)));
        assert_eq!(after(&[1, 0, 2]), (b, Some(a)), "none in between");
        assert_eq!(after(&[1, 2, 0, 0, 3]), (c, Some(b)));
        assert_eq!(after(&[1, 0, 1]), (a, None), "the former GUTI is the current one again");
    }
}
