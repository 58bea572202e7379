//! A procedure by itself, from what the store answers to what it is told.

use super::transfer::{Landing, Tagging, TransferMode, bytes_of, gone, written};
use super::{BLOCKS, CONTEXTS, Client, Flight, KEY_BYTES, apply};
use crate::access::{Connection, PartSet, PartsChange, RecordTag, RecordWrite, Work};
use crate::workloads::Tally;
use nearstate_model::Result;
use nearstate_ue::{Context, Procedure};

/// A procedure that is on its way alone.
pub(super) struct Turn<'c> {
    client: &'c mut Client,
    flight: Flight,
    key: &'c [u8; KEY_BYTES],
    wanted: PartSet,
    landing: Landing,
    tally: &'c mut Tally,
}

impl<'c> Turn<'c> {
    #[inline]
    pub(super) fn new(
        client: &'c mut Client,
        (flight, key): (Flight, &'c [u8; KEY_BYTES]),
        tally: &'c mut Tally,
    ) -> Self {
        let (wanted, landing) = (client.wanted(flight.procedure), Landing::new(client.mode));
        Self { client, flight, key, wanted, landing, tally }
    }

    /// From the read to the write.
    #[inline]
    pub(super) fn go(mut self, store: &mut Connection<'_>) -> Result<()> {
        let (key, wanted) = (self.key, self.wanted);
        let is_there = if wanted.is_empty() {
            self.go_blindly(store)?
        } else if self.flight.procedure == Procedure::CellReselection {
            let is_there = store.read(CONTEXTS, key, wanted, &mut |part, bytes| {
                self.receive(part, bytes);
            })?;
            self.take(is_there)?;
            is_there
        } else {
            store.update(CONTEXTS, key, wanted, &mut self)?
        };
        if is_there { Ok(()) } else { Err(gone(self.flight)) }
    }

    /// Writes without having read, or after having found the context by its name.
    #[inline]
    fn go_blindly(&mut self, store: &mut Connection<'_>) -> Result<bool> {
        if self.client.mode == TransferMode::Tagged {
            self.client.find_alone(store, self.flight, self.tally)?;
        }
        let mut is_there = true;
        self.apply(&mut |change| {
            is_there = store.change(CONTEXTS, change)?;
            Ok(())
        })?;
        Ok(is_there)
    }

    /// What was heard is judged.
    #[inline]
    fn take(&mut self, is_there: bool) -> Result<()> {
        self.tally.bytes_out += KEY_BYTES as u64;
        self.tally.bytes_in += self.landing.bytes;
        self.landing.judge(is_there, self.flight)?;
        // It may be read once more.
        self.landing = Landing::new(self.client.mode);
        self.client.compare(self.flight, self.wanted, &self.client.context)
    }

    /// Does the procedure and writes what it changes.
    #[inline]
    fn apply(&mut self, write: &mut RecordWrite<'_>) -> Result<()> {
        let key = self.key.as_slice();
        let Self { client, flight, tally, .. } = self;
        let before = (client.mode == TransferMode::Tagged).then_some(client.context);
        apply(flight.procedure, &mut client.context, flight.draw);
        let mut parts = [(0, &[][..]); BLOCKS.len()];
        let parts = written(client.mode, &client.context, flight.procedure, &mut parts);
        tally.bytes_out += key.len() as u64 + bytes_of(parts);
        let Some(before) = before else {
            return write(&PartsChange { key, parts, tags: None });
        };
        let after = client.context;
        tagged(&before, &after, |tags| write(&PartsChange { key, parts, tags }))?;
        client.names.took(flight.ue, &after);
        Ok(())
    }
}

/// The tags of before and after, where they change.
#[cold]
fn tagged(
    before: &Context,
    after: &Context,
    write: impl FnOnce(Option<(&[RecordTag<'_>], &[RecordTag<'_>])>) -> Result<()>,
) -> Result<()> {
    let (mut old, mut new) = (Tagging::default(), Tagging::default());
    old.fill(before);
    new.fill(after);
    let tags = (old.tags(), new.tags());
    write((tags.0 != tags.1).then_some(tags))
}

impl Work for Turn<'_> {
    #[inline]
    fn receive(&mut self, part: usize, bytes: &[u8]) {
        self.landing.take(&mut self.client.context, part, bytes);
    }

    #[inline]
    fn change(&mut self, write: &mut RecordWrite<'_>) -> Result<()> {
        self.take(true)?;
        self.apply(write)
    }
}
