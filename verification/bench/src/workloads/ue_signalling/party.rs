//! UEs whose procedures travel together.

use super::names::{GUTI, Guti};
use super::transfer::{Tagging, TransferMode, written};
use super::{CONTEXTS, Flight, KEY_BYTES};
use crate::access::{PartSet, PartsChange, Request};
use crate::workloads::Tally;
use nearstate_ue::{BLOCKS, Context, Procedure, apply};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Parties {
    /// Those that are on their way, the oldest first.
    pub(super) away: VecDeque<Party>,
    /// UEs of these, while others are picked.
    pub(super) taken: Vec<u64>,
    /// One that has arrived, for its memory.
    pub(super) spare: Party,
}

/// UEs, and how far they are.
#[derive(Debug, Default)]
pub(super) struct Party {
    pub(super) flights: Vec<Flight>,
    pub(super) keys: Vec<[u8; KEY_BYTES]>,
    /// The name by which each UE that names itself is found; empty where none does.
    pub(super) names: Vec<Option<Guti>>,
    pub(super) contexts: Vec<Context>,
    /// What the contexts were, where their tags are kept.
    before: Vec<Context>,
    /// The procedures are done, and their writes have been sent or are next.
    pub(super) is_changed: bool,
    /// Of bytes alone.
    pub(super) tally: Tally,
}

impl Party {
    /// Takes all these on board.
    pub(super) fn board(
        &mut self,
        flights: &mut Vec<Flight>,
        key: impl Fn(&Flight) -> [u8; KEY_BYTES],
    ) {
        self.flights.clear();
        self.flights.append(flights);
        self.keys.clear();
        self.keys.extend(self.flights.iter().map(key));
        self.names.clear();
        self.contexts.clear();
        self.contexts.resize(self.flights.len(), Context::EMPTY);
        (self.is_changed, self.tally) = (false, Tally::default());
    }

    /// Reads of what each procedure wants, by its name where the UE names itself; and whose they
    /// are.
    pub(super) fn reads(
        &self,
        wanted: impl Fn(Procedure) -> PartSet,
    ) -> (Vec<Request<'_>>, Vec<usize>) {
        let mut requests = Vec::with_capacity(self.flights.len());
        let mut places = Vec::with_capacity(self.flights.len());
        for (place, (flight, key)) in self.flights.iter().zip(&self.keys).enumerate() {
            let wanted = wanted(flight.procedure);
            if let Some(Some(guti)) = self.names.get(place) {
                let (tag, wanted) = ((GUTI, guti.as_slice()), PartSet::ALL);
                requests.push(Request::Find { table: CONTEXTS, tag, wanted });
                places.push(place);
            } else if !wanted.is_empty() {
                requests.push(Request::Read { table: CONTEXTS, key, wanted });
                places.push(place);
            }
        }
        (requests, places)
    }

    /// Does the procedures.
    pub(super) fn change(&mut self, mode: TransferMode) {
        if mode == TransferMode::Tagged {
            self.before.clone_from(&self.contexts);
        }
        for (flight, context) in self.flights.iter().zip(&mut self.contexts) {
            apply(flight.procedure, context, flight.draw);
        }
        self.is_changed = true;
    }

    /// Hands over the writes of what the procedures have changed.
    pub(super) fn with_changes<T>(
        &self,
        mode: TransferMode,
        take: impl FnOnce(&[Request<'_>]) -> T,
    ) -> T {
        let count = self.flights.len();
        let mut parts = vec![[(0, &[][..]); BLOCKS.len()]; count];
        let has_tags = mode == TransferMode::Tagged;
        let mut tagging =
            vec![(Tagging::default(), Tagging::default()); if has_tags { count } else { 0 }];
        for ((before, after), (old, new)) in
            self.before.iter().zip(&self.contexts).zip(&mut tagging)
        {
            old.fill(before);
            new.fill(after);
        }
        let mut requests = Vec::with_capacity(count);
        let each = self.flights.iter().zip(&self.keys).zip(self.contexts.iter().zip(&mut parts));
        for (place, ((flight, key), (after, parts))) in each.enumerate() {
            if flight.procedure != Procedure::CellReselection {
                let parts = written(mode, after, flight.procedure, parts);
                let tags = tagging.get(place).map(|(old, new)| (old.tags(), new.tags()));
                let tags = tags.filter(|(old, new)| old != new);
                requests.push(Request::Change {
                    table: CONTEXTS,
                    change: PartsChange { key, parts, tags },
                });
            }
        }
        take(&requests)
    }
}
