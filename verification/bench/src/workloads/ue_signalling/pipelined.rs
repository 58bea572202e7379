//! Procedures of different UEs that travel together: all contexts of a party are read, then all are
//! written. Several parties may be in flight: while the answers to one are taken, the store works
//! on the others.
//!
//! A party's reads leave when its step begins. When the oldest party's step is to end and it has
//! not written yet, nor has any other: each takes its contexts and sends its writes, the oldest
//! first. A UE that names itself is found by its name among the reads; its name changes with the
//! writes, when the find was answered. So the answers come in the order in which they are taken:
//!
//! ```text
//! sent    a reads  b reads | a writes  b writes |         c reads |         d reads | c writes ..
//! taken                    | a's       b's      | a done          | b done          | c's ..
//! ```

use super::names::{astray, is_named};
use super::party::Party;
use super::transfer::{Landing, TransferMode, bytes_of, gone};
use super::{Client, Flight, KEY_BYTES, key_of};
use crate::access::{Connection, PartSet, Request, StoreReply};
use crate::workloads::{Overlapped, Tally};
use nearstate_model::Result;
use std::collections::VecDeque;

impl Client {
    /// Several procedures together: all read, then all written.
    pub(super) fn fly_together(
        &mut self,
        store: &mut Connection<'_>,
        tally: &mut Tally,
    ) -> Result<()> {
        self.board();
        self.end_step(store, tally)
    }

    /// Those that were decided on become a party.
    fn board(&mut self) {
        let mut party = std::mem::take(&mut self.parties.spare);
        party.board(&mut self.flights, |flight| key_of(self.model.global(flight.ue)));
        if self.mode == TransferMode::Tagged {
            let name =
                |flight: &Flight| is_named(flight.procedure).then(|| self.names.now(flight.ue));
            party.names.extend(party.flights.iter().map(name));
        }
        self.parties.away.push_back(party);
    }

    /// After a lost connection: what was on its way, in parties, is looked at one by one.
    pub(super) fn scatter(&mut self) {
        for party in self.parties.away.drain(..) {
            self.flights.extend(party.flights);
        }
    }

    /// Ends the step of the oldest.
    fn end_oldest(
        &mut self,
        parties: &mut VecDeque<Party>,
        store: &mut Connection<'_>,
        tally: &mut Tally,
    ) -> Result<()> {
        if parties.front().is_some_and(|oldest| !oldest.is_changed) {
            for party in parties.iter_mut() {
                debug_assert!(!party.is_changed, "who departs later changes later");
                self.change(party, store)?;
            }
        }
        if let Some(oldest) = parties.front_mut() {
            self.receive_changes(oldest, store)?;
        }
        if let Some(mut party) = parties.pop_front() {
            self.land_together(&mut party, tally);
            self.parties.spare = party;
        }
        Ok(())
    }

    /// Takes the contexts, does the procedures and sends the writes, where they can leave ahead.
    fn change(&mut self, party: &mut Party, store: &mut Connection<'_>) -> Result<()> {
        self.receive_reads(party, store)?;
        party.change(self.mode);
        if store.sends_ahead() {
            party.with_changes(self.mode, |requests| store.send_ahead(requests))?;
        }
        Ok(())
    }

    fn receive_reads(&mut self, party: &mut Party, store: &mut Connection<'_>) -> Result<()> {
        let mut contexts = std::mem::take(&mut party.contexts);
        let (requests, places) = party.reads(|procedure| self.wanted(procedure));
        let mut landing = Landing::new(self.mode);
        let (flights, keys) = (&party.flights, &party.keys);
        let (mut missing, mut strange, mut bytes_in) = (None, None, 0);
        store.receive_ahead(&requests, &mut |number, reply| {
            let Some(place) = places.get(number) else { return };
            match (reply, contexts.get_mut(*place), flights.get(*place)) {
                (StoreReply::Part(part, bytes), Some(context), _) => {
                    landing.take(context, part, bytes);
                }
                (StoreReply::Key(key), _, Some(flight)) => {
                    bytes_in += key.len() as u64;
                    if keys.get(*place).is_none_or(|own| own != key) {
                        strange = Some((*flight, key.to_vec()));
                    }
                }
                (StoreReply::Done(false), _, Some(flight)) => missing = Some(*flight),
                (StoreReply::Part(..) | StoreReply::Key(_) | StoreReply::Done(_), ..) => {}
            }
        })?;
        bytes_in += landing.bytes;
        let any = missing.or_else(|| flights.first().copied());
        any.map_or(Ok(()), |flight| landing.judge(missing.is_none(), flight))?;
        if let Some((flight, key)) = strange.filter(|_| !self.is_unkept) {
            return Err(astray(flight, &key));
        }
        let mut finds = 0;
        for (request, place) in requests.iter().zip(&places) {
            finds += u64::from(matches!(request, Request::Find { .. }));
            if let (Some(flight), Some(context)) = (flights.get(*place), contexts.get(*place)) {
                self.compare(*flight, wanted_of(request), context)?;
            }
        }
        let bytes_out: u64 = requests.iter().map(bytes_sent).sum();
        self.names.finds += finds;
        party.contexts = contexts;
        party.tally.bytes_out += bytes_out;
        party.tally.bytes_in += bytes_in;
        Ok(())
    }

    fn receive_changes(&self, party: &mut Party, store: &mut Connection<'_>) -> Result<()> {
        let (mut is_whole, mut bytes_out) = (true, 0);
        party.with_changes(self.mode, |requests| {
            bytes_out = requests.iter().map(bytes_sent).sum();
            store.receive_ahead(requests, &mut |_, reply| {
                is_whole &= reply != StoreReply::Done(false);
            })
        })?;
        party.tally.bytes_out += bytes_out;
        match party.flights.first() {
            Some(flight) if !is_whole => Err(gone(*flight)),
            _ => Ok(()),
        }
    }

    fn land_together(&mut self, party: &mut Party, tally: &mut Tally) {
        tally.bytes_out += party.tally.bytes_out;
        tally.bytes_in += party.tally.bytes_in;
        for (flight, context) in party.flights.drain(..).zip(&party.contexts) {
            if self.mode == TransferMode::Tagged {
                self.names.took(flight.ue, context);
            }
            self.land(flight, Some(context), tally);
        }
    }
}

/// Bytes of keys, names and parts.
fn bytes_sent(request: &Request<'_>) -> u64 {
    match request {
        Request::Change { change, .. } => KEY_BYTES as u64 + bytes_of(change.parts),
        Request::Read { key, .. } => key.len() as u64,
        Request::Find { tag, .. } => tag.1.len() as u64,
        Request::Put { .. } | Request::Delete { .. } => 0,
    }
}

const fn wanted_of(request: &Request<'_>) -> PartSet {
    match request {
        Request::Read { wanted, .. } | Request::Find { wanted, .. } => *wanted,
        Request::Put { .. } | Request::Change { .. } | Request::Delete { .. } => PartSet(0),
    }
}

impl Overlapped for Client {
    fn begin_step(&mut self, store: &mut Connection<'_>, count: usize) -> Result<()> {
        let away = self.parties.away.iter().flat_map(|party| &party.flights);
        self.parties.taken.clear();
        self.parties.taken.extend(away.map(|flight| flight.ue.place() as u64));
        self.depart(count);
        self.parties.taken.clear();
        self.board();
        let Some(party) = self.parties.away.back() else { return Ok(()) };
        store.send_ahead(&party.reads(|procedure| self.wanted(procedure)).0)
    }

    fn end_step(&mut self, store: &mut Connection<'_>, tally: &mut Tally) -> Result<()> {
        let mut parties = std::mem::take(&mut self.parties.away);
        let ended = self.end_oldest(&mut parties, store, tally);
        self.parties.away = parties;
        ended
    }
}
