//! Prefetches the records of pipelined requests.
//!
//! Reading a record that is not cached costs three dependent cache misses. Misses of different
//! records overlap if all records are requested before the first one is needed. Therefore the
//! parser reads up to [`TOGETHER_MAX`] requests before the first one is executed, and the keys of
//! all of them are prefetched. This is a hint only: no request depends on it.

use crate::command::ArgPositions;
use crate::command_context::RespCommand;
use crate::core_context::CoreContext;
use crate::parse::{Args, TOGETHER_MAX};
use crate::records::KeyedRecords;
use nearstate_store::Prefetch;

/// Prefetches the records of these requests.
#[inline(never)]
pub(crate) fn prefetch_keys<'i>(core: &CoreContext, requests: impl Iterator<Item = Args<'i>>) {
    let mut wanted: [Option<Prefetch<'_>>; TOGETHER_MAX] = [None; TOGETHER_MAX];
    let mut count = 0;
    // Most requests of a pipeline have one command.
    let mut last: Option<(&RespCommand, Option<FirstKey>)> = None;
    requests.for_each(|args| {
        let name = args.get(0).unwrap_or_default();
        let found = core.recent.find(name).or_else(|| core.recent.table().find_requested(args));
        if let (Some(command), Some(place)) = (found, wanted.get_mut(count)) {
            let first_key = match last {
                Some((known, first_key)) if std::ptr::eq(known, command) => first_key,
                _ => FirstKey::of(command),
            };
            last = Some((command, first_key));
            *place = first_key.and_then(|first_key| first_key.prefetch(&core.records, args));
        }
        count += 1;
    });
    core.records.session().prefetch_operations(wanted.get(..count).unwrap_or_default());
}

/// The first key of a command's requests, and what the command does with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FirstKey {
    position: usize,
    access: PrefetchKind,
}

/// What a command does with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefetchKind {
    /// It writes the record, or reads its start.
    Touch,
    /// It returns the record.
    Read,
    /// It finds the record by a tag. The key is a pattern.
    Find,
}

impl FirstKey {
    fn of(command: &RespCommand) -> Option<Self> {
        if command.name == "tag|find" {
            return Some(Self { position: 2, access: PrefetchKind::Find });
        }
        let position = match command.keys {
            ArgPositions::None | ArgPositions::AfterCounted { .. } => return None,
            ArgPositions::Span { first, .. } => usize::try_from(first).ok()?,
            ArgPositions::Counted { first, .. } => usize::from(first),
        };
        // Commands that return record contents have `get` in their names: GET, HGETALL, HMGET,
        // GETRANGE.
        let has_get = command.name.as_bytes().windows(3).any(|part| part == b"get");
        let access = if has_get { PrefetchKind::Read } else { PrefetchKind::Touch };
        Some(Self { position, access })
    }

    /// What a request of the command reads.
    #[inline]
    fn prefetch<'i>(self, records: &KeyedRecords, args: Args<'i>) -> Option<Prefetch<'i>> {
        let resolved = records.resolve_known(args.get(self.position)?)?;
        match self.access {
            PrefetchKind::Find => {
                let (tag, value) = (args.get(self.position + 1)?, args.get(self.position + 2)?);
                let tag = str::from_utf8(tag).ok().filter(|_| resolved.key == b"*")?;
                Some(Prefetch::Find(resolved.namespace, tag, value))
            }
            // A pattern `{ns},*` names no record.
            PrefetchKind::Read | PrefetchKind::Touch if resolved.key == b"*" => None,
            PrefetchKind::Read => Some(Prefetch::Read(resolved.namespace, resolved.key)),
            PrefetchKind::Touch => Some(Prefetch::Touch(resolved.namespace, resolved.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_context::test_core::TestCore;
    use crate::parse::OwnedArgs;
    use crate::table::TABLE;
    use nearstate_node::clock::Clock;

    #[test]
    fn the_prefetched_keys_are_those_of_the_request() {
        let test = TestCore::new(&Clock::new_virtual());
        let records = &test.core.records;
        records.resolve_or_create(b"{ns},", 0).unwrap();
        assert!(records.resolve(b"{ns},").unwrap().is_some(), "and known from now on");
        for (line, wanted) in [
            ("GET {ns},k", Some("Read k")),
            ("hmget {ns},k field", Some("Read k")),
            ("HGETALL {ns},k", Some("Read k")),
            ("SET {ns},k v", Some("Touch k")),
            ("TTL {ns},k", Some("Touch k")),
            ("TAG SET {ns},k v 0", Some("Touch k")),
            ("TAG FIND {ns},* tag value field", Some("Find tag value")),
            ("tag find {ns},* tag value", Some("Find tag value")),
            ("TAG KEYS {ns},* tag value", None),
            ("TAG FIND {other},* tag value", None),
            ("KEYS {ns},*", None),
            ("GET {other},k", None),
            ("OBJECT ENCODING {ns},k", Some("Touch k")),
            ("EVAL script 1 {ns},k", Some("Touch k")),
            ("PING", None),
            ("GET", None),
        ] {
            let sent: OwnedArgs = line.split(' ').map(str::as_bytes).collect();
            let command = TABLE.find_requested(sent.args()).unwrap();
            let first_key = FirstKey::of(command);
            let prefetched = first_key.and_then(|key| key.prefetch(records, sent.args()));
            let triple = prefetched.map(|ahead| match ahead {
                Prefetch::Touch(_, key) => format!("Touch {}", key.escape_ascii()),
                Prefetch::Read(_, key) => format!("Read {}", key.escape_ascii()),
                Prefetch::Find(_, tag, value) => format!("Find {tag} {}", value.escape_ascii()),
            });
            assert_eq!(triple.as_deref(), wanted, "{line}");
        }
    }
}
