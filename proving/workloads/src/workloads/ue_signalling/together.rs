//! Procedures of different UEs that travel together: all contexts are read, then all are written.

use super::names::is_named;
use super::travel::{Landing, Tagging, Travel, bytes_of, gone, written};
use super::{CONTEXTS, Client, KEY_BYTES, key_of};
use crate::access::{Change, Connection, Reply, Request};
use crate::workloads::Tally;
use nearstate_model::Result;
use nearstate_ue::{BLOCKS, Context, Procedure, apply};

impl Client {
    /// Several procedures together: all read, then all written.
    pub(super) fn fly_together(
        &mut self,
        store: &mut dyn Connection,
        tally: &mut Tally,
    ) -> Result<()> {
        let count = self.flights.len();
        self.keys.clear();
        self.keys.extend(self.flights.iter().map(|flight| key_of(self.model.global(flight.ue))));
        self.contexts.clear();
        self.contexts.resize(count, Context::EMPTY);
        if self.travel == Travel::Tagged {
            self.find_together(store, tally)?;
        }
        self.read_together(store, tally)?;
        let before = self.contexts.clone();
        for (flight, context) in self.flights.iter().zip(&mut self.contexts) {
            apply(flight.procedure, context, flight.draw);
        }
        self.write_together(store, &before, tally)?;
        let after = std::mem::take(&mut self.contexts);
        for (flight, context) in std::mem::take(&mut self.flights).into_iter().zip(&after) {
            if self.travel == Travel::Tagged {
                self.names.took(flight.ue, context);
            }
            self.land(flight, Some(context), tally);
        }
        self.contexts = after;
        Ok(())
    }

    /// Those that name themselves: one after the other, as no store takes such questions together.
    fn find_together(&mut self, store: &mut dyn Connection, tally: &mut Tally) -> Result<()> {
        for place in 0..self.flights.len() {
            let Some(flight) = self.flights.get(place).copied() else { break };
            if is_named(flight.procedure) {
                let found = self.find(store, flight, tally)?;
                if let Some(context) = self.contexts.get_mut(place) {
                    *context = found;
                }
            }
        }
        Ok(())
    }

    fn read_together(&mut self, store: &mut dyn Connection, tally: &mut Tally) -> Result<()> {
        let mut requests = Vec::with_capacity(self.flights.len());
        let mut places = Vec::with_capacity(self.flights.len());
        for (place, (flight, key)) in self.flights.iter().zip(&self.keys).enumerate() {
            let wanted = self.wanted(flight.procedure);
            if !wanted.is_empty() {
                requests.push(Request::Read { table: CONTEXTS, key, wanted });
                places.push(place);
                tally.bytes_out += KEY_BYTES as u64;
            }
        }
        let mut landing = Landing::new(self.travel);
        let (contexts, flights) = (&mut self.contexts, &self.flights);
        let mut missing = None;
        store.pipeline(&requests, &mut |number, reply| {
            let Some(place) = places.get(number) else { return };
            match (reply, contexts.get_mut(*place), flights.get(*place)) {
                (Reply::Part(part, bytes), Some(context), _) => landing.take(context, part, bytes),
                (Reply::Done(false), _, Some(flight)) => missing = Some(*flight),
                (Reply::Part(..) | Reply::Done(_), ..) => {}
            }
        })?;
        tally.bytes_in += landing.bytes;
        let any = missing.or_else(|| flights.first().copied());
        any.map_or(Ok(()), |flight| landing.judge(missing.is_none(), flight))?;
        for (flight, context) in self.flights.iter().zip(&self.contexts) {
            let wanted = self.wanted(flight.procedure);
            self.compare(*flight, wanted, context)?;
        }
        Ok(())
    }

    fn write_together(
        &self,
        store: &mut dyn Connection,
        before: &[Context],
        tally: &mut Tally,
    ) -> Result<()> {
        let count = self.flights.len();
        let mut parts = vec![[(0, &[][..]); BLOCKS.len()]; count];
        let mut tagging = vec![(Tagging::default(), Tagging::default()); count];
        let mut requests = Vec::with_capacity(count);
        let all = self.flights.iter().zip(&self.keys).zip(before.iter().zip(&self.contexts));
        for ((((flight, key), (before, after)), parts), (old, new)) in
            all.zip(&mut parts).zip(&mut tagging)
        {
            if flight.procedure == Procedure::CellReselection {
                continue;
            }
            let parts = written(self.travel, after, flight.procedure, parts);
            tally.bytes_out += KEY_BYTES as u64 + bytes_of(parts);
            let mut change = Change { key, parts, tags: None };
            if self.travel == Travel::Tagged {
                old.fill(before);
                new.fill(after);
                if old.tags() != new.tags() {
                    change.tags = Some((old.tags(), new.tags()));
                }
            }
            requests.push(Request::Change { table: CONTEXTS, change });
        }
        let mut is_whole = true;
        store.pipeline(&requests, &mut |_, reply| is_whole &= reply != Reply::Done(false))?;
        match self.flights.first() {
            Some(flight) if !is_whole => Err(gone(*flight)),
            _ => Ok(()),
        }
    }
}
