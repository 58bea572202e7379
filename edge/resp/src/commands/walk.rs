//! Walks over the keys that match a pattern, a slice at a time.

use crate::key_name::{pattern_namespace, prefix_of};
use crate::records::Records;
use crate::refusal::Refusal;
use crate::work::SLICE_BUCKETS;
use nearstate_store::{Kind, Namespace, View, glob};

/// How far a walk is. Meets every key that is there all the while, some perhaps twice; of those
/// that come or go meanwhile any.
#[derive(Debug)]
pub(crate) struct KeyWalk {
    /// What the keys that it meets must match.
    pattern: Vec<u8>,
    /// Namespaces that are still to be walked, the present one last, each with what stands before
    /// its keys.
    namespaces: Vec<(Vec<u8>, Namespace)>,
    /// The bucket that comes next.
    from: u64,
    /// The present key, as a client says it.
    said: Vec<u8>,
}

impl KeyWalk {
    /// Over the one namespace that the pattern names, or over all.
    pub(crate) fn new(records: &Records, pattern: &[u8]) -> Result<Self, Refusal> {
        let mut namespaces = match pattern_namespace(pattern) {
            Some(name) => {
                let known = records.namespace(name.namespace)?;
                known
                    .zip(prefix_of(name.namespace))
                    .map(|(ns, prefix)| (prefix, ns))
                    .into_iter()
                    .collect()
            }
            None => records.namespaces()?,
        };
        // Counters are no records to clients.
        namespaces.retain(|(_, namespace)| namespace.kind() != Kind::Counters);
        Ok(Self { pattern: pattern.to_vec(), namespaces, from: 0, said: Vec::new() })
    }

    /// What it keeps beside what its user has found, in bytes.
    pub(crate) fn kept(&self) -> usize {
        self.pattern.len() + self.said.capacity()
    }

    /// Walks a slice, and gives each record that matches with its key. False at the end.
    pub(crate) fn step(
        &mut self,
        records: &Records,
        mut each: impl FnMut(&[u8], &View<'_>) -> Result<(), Refusal>,
    ) -> Result<bool, Refusal> {
        let Some((prefix, namespace)) = self.namespaces.last() else { return Ok(false) };
        let (pattern, said) = (&self.pattern, &mut self.said);
        let mut refused = Ok(());
        let next = records.session().walk_part(*namespace, self.from, SLICE_BUCKETS, |view| {
            said.clear();
            said.extend_from_slice(prefix);
            said.extend_from_slice(view.key());
            if refused.is_ok() && glob::matches(pattern, said) {
                refused = each(said, &view);
            }
            Ok(())
        })?;
        refused?;
        self.from = next.unwrap_or_default();
        if next.is_none() {
            self.namespaces.pop();
        }
        Ok(!self.namespaces.is_empty())
    }
}
