//! A single procedure: read, change, write.

use super::transfer::{
    ContextTags, ReceivedContext, TransferMode, bytes_of, missing_context, written,
};
use super::{BLOCKS, CONTEXTS, Client, KEY_BYTES, PendingProcedure, apply};
use crate::access::{Connection, PartSet, PartsChange, RecordRead, RecordTag, RecordWrite, Work};
use crate::workloads::Tally;
use nearstate_model::Result;
use nearstate_ue::{Context, Procedure};

/// The only procedure in flight.
pub(super) struct SingleProcedure<'c> {
    client: &'c mut Client,
    pending: PendingProcedure,
    key: &'c [u8; KEY_BYTES],
    wanted: PartSet,
    received: ReceivedContext,
    tally: &'c mut Tally,
}

impl<'c> SingleProcedure<'c> {
    #[inline]
    pub(super) fn new(
        client: &'c mut Client,
        (pending, key): (PendingProcedure, &'c [u8; KEY_BYTES]),
        tally: &'c mut Tally,
    ) -> Self {
        let (wanted, received) =
            (client.wanted(pending.procedure), ReceivedContext::new(client.mode));
        Self { client, pending, key, wanted, received, tally }
    }

    /// Reads, applies the procedure and writes.
    #[inline]
    pub(super) fn run(mut self, store: &mut Connection<'_>) -> Result<()> {
        let (key, wanted) = (self.key, self.wanted);
        let exists = if wanted.is_empty() {
            self.write_unread(store)?
        } else if self.pending.procedure == Procedure::CellReselection {
            let exists = store.read(CONTEXTS, key, wanted, &mut |part, bytes| {
                self.receive(part, bytes);
            })?;
            self.check_received(exists)?;
            exists
        } else {
            store.update(RecordRead { table: CONTEXTS, key, wanted }, &mut self)?
        };
        if exists { Ok(()) } else { Err(missing_context(self.pending)) }
    }

    /// Writes without a read, or after the context was found by its GUTI.
    #[inline]
    fn write_unread(&mut self, store: &mut Connection<'_>) -> Result<bool> {
        if self.client.mode == TransferMode::Tagged {
            self.client.find_single(store, self.pending, self.tally)?;
        }
        let mut exists = true;
        self.apply(&mut |change| {
            exists = store.change(CONTEXTS, change)?;
            Ok(())
        })?;
        Ok(exists)
    }

    /// Checks the received context.
    #[inline]
    fn check_received(&mut self, exists: bool) -> Result<()> {
        self.tally.bytes_out += KEY_BYTES as u64;
        self.tally.bytes_in += self.received.bytes;
        self.received.check(exists, self.pending)?;
        // The store may repeat the read.
        self.received = ReceivedContext::new(self.client.mode);
        self.client.compare(self.pending, self.wanted, &self.client.context)
    }

    /// Applies the procedure and writes the changed parts.
    #[inline]
    fn apply(&mut self, write: &mut RecordWrite<'_>) -> Result<()> {
        let key = self.key.as_slice();
        let Self { client, pending, tally, .. } = self;
        let before = (client.mode == TransferMode::Tagged).then_some(client.context);
        apply(pending.procedure, &mut client.context, pending.draw);
        let mut parts = [(0, &[][..]); BLOCKS.len()];
        let parts = written(client.mode, &client.context, pending.procedure, &mut parts);
        tally.bytes_out += key.len() as u64 + bytes_of(parts);
        let Some(before) = before else {
            return write(&PartsChange { key, parts, tags: None });
        };
        let after = client.context;
        with_tags(&before, &after, |tags| write(&PartsChange { key, parts, tags }))?;
        client.gutis.update(pending.ue, &after);
        Ok(())
    }
}

/// Calls `write` with the tags before and after the procedure, if they differ.
#[cold]
fn with_tags(
    before: &Context,
    after: &Context,
    write: impl FnOnce(Option<(&[RecordTag<'_>], &[RecordTag<'_>])>) -> Result<()>,
) -> Result<()> {
    let (mut old, mut new) = (ContextTags::default(), ContextTags::default());
    old.fill(before);
    new.fill(after);
    let tags = (old.tags(), new.tags());
    write((tags.0 != tags.1).then_some(tags))
}

impl Work for SingleProcedure<'_> {
    #[inline]
    fn receive(&mut self, part: usize, bytes: &[u8]) {
        self.received.add(&mut self.client.context, part, bytes);
    }

    #[inline]
    fn change(&mut self, write: &mut RecordWrite<'_>) -> Result<()> {
        self.check_received(true)?;
        self.apply(write)
    }
}
