//! Rules by which new namespaces are replicated: patterns of names, each with a policy. A region of
//! a cluster holds them as text, one rule in each line: the word of the policy, a space, the
//! pattern (`docs/decisions/029-policies.md`).

use std::fmt::Write as _;

use nearstate_memory::ReplicationPolicy;
use nearstate_memory::layout::NAMESPACE_RULES_BYTES_MAX;
use nearstate_model::{Error, Result};

use crate::glob;

/// Rules for the names of namespaces. The first one that matches a name decides. A name that none
/// matches is local.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceRules {
    rules: Vec<(ReplicationPolicy, String)>,
}

impl NamespaceRules {
    /// Rules in the order in which they are tried. A pattern is a glob, as of Redis' `KEYS`.
    ///
    /// # Errors
    /// `BadArgument`: an empty pattern, or one with a line break or a NUL.
    pub fn new(rules: impl IntoIterator<Item = (ReplicationPolicy, String)>) -> Result<Self> {
        let rules = Self { rules: rules.into_iter().collect() };
        for (_, pattern) in &rules.rules {
            if pattern.is_empty() || pattern.contains(['\n', '\0']) {
                let detail = format!(
                    "{pattern:?} is no pattern of a namespace's name: give at least one character, \
                     and no line break"
                );
                return Err(Error::BadArgument { detail });
            }
        }
        Ok(rules)
    }

    /// These rules, behind one more that is tried first.
    ///
    /// # Errors
    /// As [`NamespaceRules::new`].
    pub fn preceded_by(&self, policy: ReplicationPolicy, pattern: &str) -> Result<Self> {
        Self::new([(policy, pattern.to_owned())].into_iter().chain(self.rules.iter().cloned()))
    }

    /// Checks that a region has room for the text, beside `reserved` bytes of others.
    ///
    /// # Errors
    /// `BadArgument`.
    pub fn check_size(&self, reserved: u64) -> Result<()> {
        let bytes = self.text().len() as u64;
        let most = NAMESPACE_RULES_BYTES_MAX.saturating_sub(reserved);
        if bytes > most {
            let detail = format!(
                "the patterns of namespaces take {bytes} bytes, and a region has room for \
                 {most}: use fewer or shorter ones"
            );
            return Err(Error::BadArgument { detail });
        }
        Ok(())
    }

    /// The text that a region holds.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (policy, pattern) in &self.rules {
            let _ = writeln!(text, "{} {pattern}", policy.name());
        }
        text
    }

    /// The rules of a region's text. A policy that this version does not know replicates.
    pub fn of_text(text: &str) -> Self {
        let rule = |line: &str| {
            let (policy, pattern) = line.split_once(' ')?;
            let policy = ReplicationPolicy::of_name(policy).unwrap_or(ReplicationPolicy::Async);
            Some((policy, pattern.to_owned()))
        };
        Self { rules: text.lines().filter_map(rule).collect() }
    }

    /// The policy of a namespace with this name.
    pub fn policy_for(&self, name: &str) -> ReplicationPolicy {
        let matches = |pattern: &str| glob::matches(pattern.as_bytes(), name.as_bytes());
        let found = self.rules.iter().find(|(_, pattern)| matches(pattern));
        found.map_or(ReplicationPolicy::Local, |(policy, _)| *policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(all: &[(ReplicationPolicy, &str)]) -> Result<NamespaceRules> {
        NamespaceRules::new(all.iter().map(|(policy, text)| (*policy, (*text).to_owned())))
    }

    #[test]
    fn the_first_rule_that_matches_decides_also_after_a_trip_through_text() {
        use ReplicationPolicy::{Async, Local, Replicated};
        let all = [(Local, "cache*"), (Replicated, "pdu session*"), (Async, "*")];
        let rules = rules(&all).unwrap();
        for read in [rules.clone(), NamespaceRules::of_text(&rules.text())] {
            assert_eq!(read, rules);
            assert_eq!(read.policy_for("cache-1"), Local);
            assert_eq!(read.policy_for("pdu sessions"), Replicated);
            assert_eq!(read.policy_for("ue"), Async);
        }
        assert_eq!(NamespaceRules::default().policy_for("ue"), Local);
        assert_eq!(NamespaceRules::of_text("quorum ue\n").policy_for("ue"), Async);
    }

    #[test]
    fn patterns_that_no_region_can_hold_are_refused() {
        for pattern in ["", "a\nb", "a\0b"] {
            assert!(rules(&[(ReplicationPolicy::Async, pattern)]).is_err(), "{pattern:?}");
        }
        let long = "x".repeat(usize::try_from(NAMESPACE_RULES_BYTES_MAX).unwrap());
        let size = |pattern: &str| rules(&[(ReplicationPolicy::Async, pattern)])?.check_size(0);
        assert!(size(&long).is_err());
        assert!(size(&long[..900]).is_ok());
    }
}
