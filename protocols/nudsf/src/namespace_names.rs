//! The names of the namespaces of storages and of the notifier, and how they are replicated.

use nearstate_store::{NamespaceRules, ReplicationPolicy};

use crate::settings::StorageSpec;

/// The namespace of notifications that are due.
pub(crate) const OUTBOX: &str = "nudsf:outbox";

/// The namespace of the position up to which the notifier has read the log.
pub(crate) const CONTROL: &str = "nudsf:notifier";

/// A pattern of the names of both.
pub const NOTIFIER_PATTERN: &str = "nudsf:*";

/// What follows the name of a storage's namespace in those of its subscriptions, schemas, timers.
pub(crate) const DOCUMENT_SUFFIXES: [&str; 3] = [":subscriptions", ":schemas", ":timers"];

/// True if these rules replicate a namespace of a storage, and not those of the notifier. Put
/// [`NOTIFIER_PATTERN`] in front of them then. One commit takes a timer out of its namespace and
/// puts its notification into the outbox: a host that gets the first part only has lost it.
pub fn leave_out_notifier(rules: &NamespaceRules, storages: &[StorageSpec]) -> bool {
    let is_local = |name: &str| rules.policy_for(name) == ReplicationPolicy::Local;
    let is_replicated = |spec: &StorageSpec| {
        let suffixes = [""].into_iter().chain(DOCUMENT_SUFFIXES);
        suffixes.map(|suffix| format!("{}{suffix}", spec.namespace)).any(|name| !is_local(&name))
    };
    [OUTBOX, CONTROL].into_iter().any(is_local) && storages.iter().any(is_replicated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespaces_of_the_notifier_are_replicated_with_any_of_a_storage() {
        use ReplicationPolicy::{Async, Local, Replicated};
        let storages = ["r/s=ue", "r/t=sm"].map(|text| StorageSpec::parse(text).unwrap());
        let rules = |all: &[(ReplicationPolicy, &str)]| {
            let all = all.iter().map(|(policy, pattern)| (*policy, (*pattern).to_owned()));
            NamespaceRules::new(all).unwrap()
        };
        for (all, is_left_out) in [
            (rules(&[(Async, "*")]), false),
            (rules(&[]), false),
            (rules(&[(Async, "x*")]), false),
            (rules(&[(Async, "ue*")]), true),
            (rules(&[(Replicated, "sm:timers")]), true),
            (rules(&[(Local, "nudsf:n*"), (Async, "*")]), true),
            (rules(&[(Replicated, "ue*"), (Async, "nudsf:outbox")]), true),
        ] {
            assert_eq!(leave_out_notifier(&all, &storages), is_left_out, "{all:?}");
            assert!(!leave_out_notifier(&all, &[]), "{all:?}");
            let added = all.preceded_by(Async, NOTIFIER_PATTERN).unwrap();
            assert!(!leave_out_notifier(&added, &storages), "{added:?}");
        }
    }
}
