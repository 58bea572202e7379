//! Batches of procedures: all contexts of a batch are read, then all are written. While the replies
//! to one batch are read, the store executes others.
//!
//! A batch sends its reads when its step starts. When the step of the oldest batch must end and the
//! batch has not sent its writes, every batch receives its contexts and sends its writes, the
//! oldest first. A find by GUTI is one of the reads; the GUTI changes with the writes. Replies are
//! received in this order:
//!
//! ```text
//! sent     a reads  b reads | a writes  b writes |         c reads |        d reads | c writes ..
//! received                  | a's       b's      | a done          | b done         | c's ..
//! ```

use super::batch::UeBatch;
use super::gutis::{is_by_guti, wrong_record};
use super::transfer::{ReceivedContext, TransferMode, bytes_of, missing_context};
use super::{Client, KEY_BYTES, PendingProcedure, key_of};
use crate::access::{Connection, PartSet, Request, StoreReply};
use crate::workloads::{Overlapped, Tally};
use nearstate_model::Result;
use std::collections::VecDeque;

impl Client {
    /// Runs a batch: reads all contexts, then writes all.
    pub(super) fn run_batch(
        &mut self,
        store: &mut Connection<'_>,
        tally: &mut Tally,
    ) -> Result<()> {
        self.start_batch();
        self.end_step(store, tally)
    }

    /// Starts a batch of the drawn procedures.
    fn start_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batches.spare);
        batch.fill(&mut self.procedures, |pending| key_of(self.model.global(pending.ue)));
        if self.mode == TransferMode::Tagged {
            let guti = |pending: &PendingProcedure| {
                is_by_guti(pending.procedure).then(|| self.gutis.current(pending.ue))
            };
            batch.gutis.extend(batch.procedures.iter().map(guti));
        }
        self.batches.in_flight.push_back(batch);
    }

    /// After a lost connection: moves the procedures of all batches to `self.procedures`, which are
    /// checked one by one.
    pub(super) fn unbatch(&mut self) {
        for batch in self.batches.in_flight.drain(..) {
            self.procedures.extend(batch.procedures);
        }
    }

    /// Ends the step of the oldest batch.
    fn end_oldest(
        &mut self,
        batches: &mut VecDeque<UeBatch>,
        store: &mut Connection<'_>,
        tally: &mut Tally,
    ) -> Result<()> {
        if batches.front().is_some_and(|oldest| !oldest.is_changed) {
            for batch in batches.iter_mut() {
                debug_assert!(!batch.is_changed, "batches write in the order of their start");
                self.change(batch, store)?;
            }
        }
        if let Some(oldest) = batches.front_mut() {
            self.receive_changes(oldest, store)?;
        }
        if let Some(mut batch) = batches.pop_front() {
            self.complete_batch(&mut batch, tally);
            self.batches.spare = batch;
        }
        Ok(())
    }

    /// Receives the contexts, applies the procedures and sends the writes, if they are sent ahead.
    fn change(&mut self, batch: &mut UeBatch, store: &mut Connection<'_>) -> Result<()> {
        self.receive_reads(batch, store)?;
        batch.change(self.mode);
        if store.sends_ahead() {
            batch.with_changes(self.mode, |requests| store.send_ahead(requests))?;
        }
        Ok(())
    }

    fn receive_reads(&mut self, batch: &mut UeBatch, store: &mut Connection<'_>) -> Result<()> {
        let mut contexts = std::mem::take(&mut batch.contexts);
        let (requests, indices) = batch.reads(|procedure| self.wanted(procedure));
        let mut received = ReceivedContext::new(self.mode);
        let (procedures, keys) = (&batch.procedures, &batch.keys);
        let (mut missing, mut wrong_key, mut bytes_in) = (None, None, 0);
        store.receive_ahead(&requests, &mut |number, reply| {
            let Some(i) = indices.get(number) else { return };
            match (reply, contexts.get_mut(*i), procedures.get(*i)) {
                (StoreReply::Part(part, bytes), Some(context), _) => {
                    received.add(context, part, bytes);
                }
                (StoreReply::Key(key), _, Some(pending)) => {
                    bytes_in += key.len() as u64;
                    if keys.get(*i).is_none_or(|expected| expected != key) {
                        wrong_key = Some((*pending, key.to_vec()));
                    }
                }
                (StoreReply::Done(false), _, Some(pending)) => missing = Some(*pending),
                (StoreReply::Part(..) | StoreReply::Key(_) | StoreReply::Done(_), ..) => {}
            }
        })?;
        bytes_in += received.bytes;
        let any = missing.or_else(|| procedures.first().copied());
        any.map_or(Ok(()), |pending| received.check(missing.is_none(), pending))?;
        if let Some((pending, key)) = wrong_key.filter(|_| !self.is_null_store) {
            return Err(wrong_record(pending, &key));
        }
        let mut finds = 0;
        for (request, i) in requests.iter().zip(&indices) {
            finds += u64::from(matches!(request, Request::Find { .. }));
            if let (Some(pending), Some(context)) = (procedures.get(*i), contexts.get(*i)) {
                self.compare(*pending, wanted_of(request), context)?;
            }
        }
        let bytes_out: u64 = requests.iter().map(bytes_sent).sum();
        self.gutis.finds += finds;
        batch.contexts = contexts;
        batch.tally.bytes_out += bytes_out;
        batch.tally.bytes_in += bytes_in;
        Ok(())
    }

    fn receive_changes(&self, batch: &mut UeBatch, store: &mut Connection<'_>) -> Result<()> {
        let (mut all_exist, mut bytes_out) = (true, 0);
        batch.with_changes(self.mode, |requests| {
            bytes_out = requests.iter().map(bytes_sent).sum();
            store.receive_ahead(requests, &mut |_, reply| {
                all_exist &= reply != StoreReply::Done(false);
            })
        })?;
        batch.tally.bytes_out += bytes_out;
        match batch.procedures.first() {
            Some(pending) if !all_exist => Err(missing_context(*pending)),
            _ => Ok(()),
        }
    }

    fn complete_batch(&mut self, batch: &mut UeBatch, tally: &mut Tally) {
        tally.bytes_out += batch.tally.bytes_out;
        tally.bytes_in += batch.tally.bytes_in;
        for (pending, context) in batch.procedures.drain(..).zip(&batch.contexts) {
            if self.mode == TransferMode::Tagged {
                self.gutis.update(pending.ue, context);
            }
            self.complete(pending, Some(context), tally);
        }
    }
}

/// Bytes of keys, GUTIs and parts.
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
        let in_flight = self.batches.in_flight.iter().flat_map(|batch| &batch.procedures);
        self.batches.busy.clear();
        self.batches.busy.extend(in_flight.map(|pending| pending.ue.index() as u64));
        self.draw_next(count);
        self.batches.busy.clear();
        self.start_batch();
        let Some(batch) = self.batches.in_flight.back() else { return Ok(()) };
        store.send_ahead(&batch.reads(|procedure| self.wanted(procedure)).0)
    }

    fn end_step(&mut self, store: &mut Connection<'_>, tally: &mut Tally) -> Result<()> {
        let mut batches = std::mem::take(&mut self.batches.in_flight);
        let ended = self.end_oldest(&mut batches, store, tally);
        self.batches.in_flight = batches;
        ended
    }
}
