//! What a store has of a UE, beside what it must have.

use super::model::Ue;
use super::transfer::Landing;
use super::{BLOCKS, CONTEXTS, Client, Context, key_of};
use crate::access::{Connection, PartSet};
use nearstate_model::Result;

impl Client {
    /// What the store has of a UE.
    pub(super) fn look(&self, store: &mut Connection<'_>, ue: Ue) -> Result<Option<Context>> {
        let mut context = Context::EMPTY;
        let mut landing = Landing::new(self.mode);
        let key = key_of(self.model.global(ue));
        let is_there = store.read(CONTEXTS, &key, PartSet::ALL, &mut |part, bytes| {
            landing.take(&mut context, part, bytes);
        })?;
        Ok(is_there.then_some(context))
    }

    pub(super) fn name_of(&self, ue: Ue) -> String {
        String::from_utf8_lossy(&key_of(self.model.global(ue))).into_owned()
    }

    /// In what a context is not what it must be.
    pub(super) fn differs(&self, ue: Ue, found: &Context, is_there: bool) -> String {
        let name = self.name_of(ue);
        if !is_there {
            return format!("{name} is not there");
        }
        let expected = self.model.expected(ue);
        let blocks = BLOCKS
            .iter()
            .filter(|block| found.view().block(**block) != expected.view().block(**block))
            .map(|block| block.name());
        format!("{name}: {}", blocks.collect::<Vec<_>>().join(", "))
    }
}
