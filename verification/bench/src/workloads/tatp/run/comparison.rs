//! Comparison of the rows of a subscriber with the model.

use super::super::super::support::batch::BatchOp;
use super::super::expected::{BIT, SUBSCRIBER};
use super::super::rows::{number, subscriber_key};
use super::Client;
use crate::access::{Connection, PARTS_MAX, PartSet, RecordTag, StoreReply};
use crate::result::RecordVerification;
use nearstate_model::Result;

impl Client {
    /// Compares all rows that a subscriber may have.
    pub(super) fn compare(
        &mut self,
        store: &mut Connection<'_>,
        slot: u32,
        verdict: &mut RecordVerification,
    ) -> Result<()> {
        let Self { model, batch, key, .. } = self;
        batch.clear();
        let mut expected: Vec<Option<Vec<Vec<u8>>>> = Vec::new();
        model.rows(slot, |table, key, parts| {
            batch.begin(BatchOp::Read(PartSet::ALL), table, |out| out.extend_from_slice(key));
            expected.push(parts.map(|parts| parts.iter().map(|(_, b)| b.to_vec()).collect()));
        });
        let mut found: [Option<Vec<u8>>; PARTS_MAX] = Default::default();
        let s_id = model.s_id(slot);
        batch.send(store, &mut |number, reply| match reply {
            StoreReply::Part(part, bytes) => {
                if let Some(entry) = found.get_mut(part) {
                    *entry = Some(bytes.to_vec());
                }
            }
            StoreReply::Key(_) => {}
            StoreReply::Done(is_found) => {
                let found = std::mem::take(&mut found);
                let is_right = match expected.get(number) {
                    Some(Some(parts)) => {
                        let found = found.into_iter().flatten();
                        is_found && found.eq(parts.iter().cloned())
                    }
                    Some(None) | None => !is_found,
                };
                if is_right {
                    verdict.right(is_found);
                } else {
                    verdict.wrong(|| format!("row {number} of subscriber {s_id}"));
                }
            }
        })?;
        batch.take_sent();
        let tag: RecordTag<'_> = (0, &number(u64::from(s_id)));
        let is_found = store.find(SUBSCRIBER, tag, PartSet::one(BIT), key, &mut |_, _| {})?;
        if !is_found || *key != subscriber_key(s_id) {
            verdict.wrong(|| format!("the number of subscriber {s_id} does not lead to it"));
        }
        Ok(())
    }
}
