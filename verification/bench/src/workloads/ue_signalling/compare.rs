//! Comparison of stored contexts with the model.

use super::model::Ue;
use super::transfer::ReceivedContext;
use super::{BLOCKS, CONTEXTS, Client, Context, key_of};
use crate::access::{Connection, PartSet};
use nearstate_model::Result;

impl Client {
    /// The stored context of a UE.
    pub(super) fn read_ue(&self, store: &mut Connection<'_>, ue: Ue) -> Result<Option<Context>> {
        let mut context = Context::EMPTY;
        let mut received = ReceivedContext::new(self.mode);
        let key = key_of(self.model.global(ue));
        let exists = store.read(CONTEXTS, &key, PartSet::ALL, &mut |part, bytes| {
            received.add(&mut context, part, bytes);
        })?;
        Ok(exists.then_some(context))
    }

    pub(super) fn name_of(&self, ue: Ue) -> String {
        String::from_utf8_lossy(&key_of(self.model.global(ue))).into_owned()
    }

    /// Describes how a context differs from the expected one.
    pub(super) fn difference(&self, ue: Ue, found: &Context, exists: bool) -> String {
        let name = self.name_of(ue);
        if !exists {
            return format!("{name} does not exist");
        }
        let expected = self.model.expected(ue);
        let blocks = BLOCKS
            .iter()
            .filter(|block| found.view().block(**block) != expected.view().block(**block))
            .map(|block| block.name());
        format!("{name}: wrong blocks: {}", blocks.collect::<Vec<_>>().join(", "))
    }
}
