//! Several requests in one message.

use super::commands::{self, Commands, Form};
use super::guard::{self, Guard, needs_guard};
use super::{Dialect, Place, Resp, must_be_whole, place};
use crate::access::{Reply, Request};
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_model::{Error, Result};
use std::io;

/// Requests of one message: their answers have to fit in what a server keeps for a client that does
/// not read while it writes.
const TOGETHER: usize = 256;

/// Changes that met no record, in a message.
type Made = Vec<(usize, i64)>;

fn guard_of<'a>(place: &Place, request: &Request<'a>) -> Option<Guard<'a>> {
    match request {
        Request::Read { .. } => None,
        Request::Put { table, entry } => Some(Guard::of_put(place, *table, entry)),
        Request::Change { table, change } => {
            needs_guard(change).then(|| Guard::of_change(place, *table, change))
        }
        Request::Delete { table, key, tags } => {
            (!tags.is_empty() || place.schema.is_scanned).then(|| Guard::of_delete(*table, key))
        }
    }
}

fn writes_of(place: &Place, request: &Request<'_>, out: &mut Commands) {
    match request {
        Request::Read { .. } => {}
        Request::Put { entry, .. } => guard::writes_of_put(place, entry, out),
        Request::Change { change, .. } => guard::writes_of_change(place, change, out),
        Request::Delete { key, tags, .. } => guard::writes_of_delete(place, key, tags, out),
    }
}

impl<S: io::Read + io::Write> Resp<S> {
    pub(super) fn pipelined(
        &mut self,
        requests: &[Request<'_>],
        hear: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        for (round, some) in requests.chunks(TOGETHER).enumerate() {
            let early = self.watched_ones(some)?;
            for (request, early) in some.iter().zip(&early) {
                if early.is_none() {
                    self.ask_one(request)?;
                }
            }
            if early.iter().any(Option::is_none) {
                self.send()?;
            }
            let (mut made, mut refused) = (Made::new(), None);
            for (at, (request, early)) in some.iter().zip(&early).enumerate() {
                let number = round * TOGETHER + at;
                let mut part = |part, bytes: &[u8]| hear(number, Reply::Part(part, bytes));
                let done = match early {
                    Some(done) => Ok(*done),
                    None => self.hear_one((at, request), &mut made, &mut part),
                };
                match done {
                    Ok(done) => hear(number, Reply::Done(done)),
                    // The answers behind it have to be read all the same.
                    Err(e @ Error::TagTaken { .. }) => refused = refused.or(Some(e)),
                    Err(e) => return Err(e),
                }
            }
            for (at, count) in made {
                if let Some(Request::Change { table, change }) = some.get(at) {
                    self.take_back(*table, change.key, count)?;
                }
            }
            refused.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// What needs more than one command, and which: all that are guarded, and those that write
    /// beside the record.
    fn needs<'a>(&self, request: &Request<'a>) -> Result<Option<Guard<'a>>> {
        let place = place(&self.places, request.table())?;
        if let Request::Put { entry, .. } = request {
            must_be_whole(place, entry.parts)?;
        }
        if self.dialect == Dialect::Tags && !place.schema.tags.is_empty() {
            return Ok(None);
        }
        Ok(guard_of(place, request).filter(|guard| !guard.is_open() || guard.has_more))
    }

    /// Those that need a watch, all in one transaction before the others: whether each is done.
    /// `None` for the others. With scripts nothing needs a watch.
    fn watched_ones(&mut self, some: &[Request<'_>]) -> Result<Vec<Option<bool>>> {
        let mut done = vec![None; some.len()];
        let mut guards = Vec::new();
        for (at, request) in some.iter().enumerate() {
            if let Some(guard) = self.needs(request)?
                && (self.scripts.is_none() || guard.is_open())
            {
                guards.push((at, request, guard));
            }
        }
        if guards.is_empty() {
            return Ok(done);
        }
        let mut queue = std::mem::take(&mut self.queue);
        for _ in 0..TRANSACTION_TRIES {
            self.look(&guards, &mut done)?;
            queue.begin(Form::Requests);
            for (at, request, guard) in &guards {
                if done.get(*at) == Some(&Some(true)) {
                    writes_of(place(&self.places, guard.table)?, request, &mut queue);
                }
            }
            if self.execute(&queue)? {
                self.queue = queue;
                return Ok(done);
            }
        }
        Err(Error::Deadline { tries: TRANSACTION_TRIES })
    }

    /// Watches and looks at what all of these need, in one message.
    fn look(
        &mut self,
        guards: &[(usize, &Request<'_>, Guard<'_>)],
        done: &mut [Option<bool>],
    ) -> Result<()> {
        let closed = |guard: &&(usize, &Request<'_>, Guard<'_>)| !guard.2.is_open();
        for (_, _, guard) in guards.iter().filter(closed) {
            guard.watch_request(place(&self.places, guard.table)?, &mut self.wire.out);
        }
        if !self.wire.out.is_empty() {
            self.send()?;
            self.is_watching = true;
        }
        let mut refused = None;
        for (at, _, guard) in guards {
            let is_there = if guard.is_open() { Ok(true) } else { self.hear_guard(guard) };
            match is_there {
                Ok(is_there) => {
                    if let Some(slot) = done.get_mut(*at) {
                        *slot = Some(is_there);
                    }
                }
                Err(e @ Error::TagTaken { .. }) => refused = refused.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn ask_one(&mut self, request: &Request<'_>) -> Result<()> {
        if let Some(native) = self.native(request)? {
            return self.ask_natively(native, request);
        }
        if let Some(guard) = self.needs(request)? {
            return self.ask_script(&guard, &|place, out| writes_of(place, request, out));
        }
        let place = place(&self.places, request.table())?;
        let out = &mut self.wire.out;
        match request {
            Request::Read { key, wanted, .. } => commands::parts_request(out, place, key, *wanted),
            Request::Put { entry, .. } => {
                commands::parts_write(out, place, entry.key, entry.parts, b"");
            }
            Request::Change { change, .. } => commands::change_request(out, place, change),
            Request::Delete { key, .. } => {
                commands::key_request(out, b"DEL", &place.prefix, key);
            }
        }
        Ok(())
    }

    fn hear_one(
        &mut self,
        (at, request): (usize, &Request<'_>),
        made: &mut Made,
        hear: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<bool> {
        if let Some(native) = self.native(request)? {
            return native.hear(&mut self.wire);
        }
        if let Some(guard) = self.needs(request)? {
            return self.hear_script(&guard);
        }
        match request {
            Request::Read { table, wanted, .. } => self.hear_parts(*table, *wanted, hear),
            Request::Put { .. } => self.wire.skip().map(|()| true),
            Request::Change { table, .. } => {
                let count = self.hear_change(*table)?;
                if count > 0 {
                    made.push((at, count));
                }
                Ok(count == 0)
            }
            Request::Delete { .. } => Ok(self.wire.int()? > 0),
        }
    }
}
