//! By what a UE names itself, where its tags are kept.
//!
//! | procedure | its message comes | the context is found by |
//! |---|---|---|
//! | initial attach, service request, TA update | as the first of a connection | its GUTI |
//! | all others | on a connection that is there, or from the network | the context's key |
//!
//! The first message of a connection is an initial NAS message, and tells who sends it (TS 36.413
//! clause 8.6.2; the identity in it: TS 24.301 clauses 8.2.4, 8.2.25 and 8.2.29).
//! A TA update gives the UE another GUTI, by which the next such message must find it, and nothing
//! may be found by the old one.

use super::model::Ue;
use super::transfer::{Landing, Tagging};
use super::{CONTEXTS, Client, Context, Flight, KEY_BYTES, TAGGED, key_of};
use crate::access::{Connection, PartSet, RecordTag};
use crate::workloads::{Tally, wrong_answer};
use nearstate_model::{Error, Result};
use nearstate_ue::Procedure;

/// Bytes of a GUTI (TS 23.003 clause 2.8.1).
const GUTI_BYTES: usize = 10;

/// Its place among the table's tags.
pub(super) const GUTI: usize = 1;

pub(super) type Guti = [u8; GUTI_BYTES];

/// What a UE and its network call each other: what a UE remembers.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    now: Guti,
    /// The last other one that it had, also where it had none in between.
    before: Option<Guti>,
}

impl Name {
    fn became(&mut self, now: Guti) {
        if self.now != now && self.now != Guti::default() {
            self.before = Some(self.now);
        }
        // Who has its old name again is found by it.
        self.before = self.before.filter(|before| *before != now);
        self.now = now;
    }
}

/// The names of a client's UEs, and how often one was asked for.
#[derive(Debug, Default)]
pub(super) struct Names {
    all: Vec<Name>,
    /// Contexts that were found by a GUTI.
    pub(super) finds: u64,
}

/// Whether a procedure begins with a message in which the UE names itself.
#[inline]
pub(super) const fn is_named(procedure: Procedure) -> bool {
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

/// The share of procedures that [`is_named`].
pub(super) fn named_share() -> f64 {
    Procedure::ALL.into_iter().filter(|one| is_named(*one)).map(Procedure::share).sum()
}

fn guti_of(context: &Context) -> Guti {
    let mut tagging = Tagging::default();
    tagging.fill(context);
    let found = tagging.tags().iter().find(|(tag, _)| *tag == GUTI);
    found.and_then(|(_, value)| (*value).try_into().ok()).unwrap_or_default()
}

impl Names {
    /// Takes up the GUTI that a UE has after a procedure, or after it was loaded. Never inlined:
    /// the variants without tags are measured in nanoseconds.
    #[cold]
    pub(super) fn took(&mut self, ue: Ue, after: &Context) {
        let now = guti_of(after);
        if self.all.len() <= ue.place() {
            self.all.resize(ue.place() + 1, Name::default());
        }
        if let Some(name) = self.all.get_mut(ue.place()) {
            name.became(now);
        }
    }

    /// What a UE names itself now. It has no other name before its procedure is over.
    pub(super) fn now(&self, ue: Ue) -> Guti {
        self.of(ue).now
    }

    fn of(&self, ue: Ue) -> Name {
        self.all.get(ue.place()).copied().unwrap_or_default()
    }
}

impl Client {
    /// Finds the context of a UE that names itself, and makes it the one that is on its way alone.
    #[cold]
    pub(super) fn find_alone(
        &mut self,
        store: &mut Connection<'_>,
        flight: Flight,
        tally: &mut Tally,
    ) -> Result<()> {
        self.context = self.find(store, flight, tally)?;
        Ok(())
    }

    /// Finds the context of a UE that names itself.
    pub(super) fn find(
        &mut self,
        store: &mut Connection<'_>,
        flight: Flight,
        tally: &mut Tally,
    ) -> Result<Context> {
        let guti = self.names.now(flight.ue);
        let (mut context, mut landing) = (Context::EMPTY, Landing::new(self.mode));
        let mut key = Vec::with_capacity(KEY_BYTES);
        let tag = (GUTI, guti.as_slice());
        let is_there = store.find(CONTEXTS, tag, PartSet::ALL, &mut key, &mut |part, bytes| {
            landing.take(&mut context, part, bytes);
        })?;
        self.names.finds += 1;
        tally.bytes_out += guti.len() as u64;
        tally.bytes_in += landing.bytes + key.len() as u64;
        landing.judge(is_there, flight)?;
        if !self.is_unkept && key != key_of(self.model.global(flight.ue)) {
            return Err(astray(flight, &key));
        }
        self.compare(flight, PartSet::ALL, &context)?;
        Ok(context)
    }

    /// Whether each unique tag leads to this UE, and to nothing the GUTI that it had before; else
    /// what is wrong.
    pub(super) fn names_are_right(
        &self,
        store: &mut Connection<'_>,
        ue: Ue,
        expected: &Context,
    ) -> Result<Option<String>> {
        let mut tagging = Tagging::default();
        tagging.fill(expected);
        let rules = TAGGED.tables.first().map_or(&[][..], |table| table.tags);
        let key = key_of(self.model.global(ue));
        for (tag, value) in tagging.tags() {
            let Some(rule) = rules.get(*tag).filter(|rule| rule.is_unique) else { continue };
            let found = key_by(store, (*tag, *value))?;
            if found.as_deref() != Some(key.as_slice()) {
                return Ok(Some(format!("its {} leads to {}", rule.name, in_words(found))));
            }
        }
        let Some(before) = self.names.of(ue).before else { return Ok(None) };
        let found = key_by(store, (GUTI, before.as_slice()))?;
        let is_kept = found.is_some();
        Ok(is_kept.then(|| format!("the GUTI before its last leads to {}", in_words(found))))
    }
}

/// The key of the record that a tag leads to.
fn key_by(store: &mut Connection<'_>, tag: RecordTag<'_>) -> Result<Option<Vec<u8>>> {
    let mut key = Vec::new();
    let is_there = store.find(CONTEXTS, tag, PartSet::one(0), &mut key, &mut |_, _| {})?;
    Ok(is_there.then_some(key))
}

fn in_words(found: Option<Vec<u8>>) -> String {
    found.map_or_else(|| "nothing".to_owned(), |key| String::from_utf8_lossy(&key).into_owned())
}

#[cold]
pub(super) fn astray(flight: Flight, key: &[u8]) -> Error {
    let (ue, procedure) = (flight.ue.place(), flight.procedure);
    let key = String::from_utf8_lossy(key);
    wrong_answer(format_args!("{procedure}: the GUTI of this client's UE {ue} leads to {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a UE is called after these procedures, and what it was called before.
    fn after(gutis: &[u64]) -> (Guti, Option<Guti>) {
        let (ue, mut names) = (Ue::of(3), Names::default());
        for number in gutis {
            names.took(ue, &called(*number));
        }
        let Name { now, before } = names.of(ue);
        (now, before)
    }

    /// A context with this GUTI; 0: with none.
    fn called(number: u64) -> Context {
        let mut context = Context::EMPTY;
        if number > 0 {
            context.set_guti(nearstate_ue::value::identity::Guti::provisioned(number));
        }
        context
    }

    #[test]
    fn the_name_before_stays_known_also_where_there_was_none_in_between() {
        let [none, a, b, c] = [0, 1, 2, 3].map(|number| guti_of(&called(number)));
        assert_eq!(none, Guti::default());
        assert_eq!(after(&[1]), (a, None));
        assert_eq!(after(&[1, 1, 2, 2]), (b, Some(a)));
        assert_eq!(after(&[1, 0]), (none, Some(a)));
        assert_eq!(after(&[1, 0, 2]), (b, Some(a)), "it had none in between");
        assert_eq!(after(&[1, 2, 0, 0, 3]), (c, Some(b)));
        assert_eq!(after(&[1, 0, 1]), (a, None), "it is found by that name again");
    }
}
