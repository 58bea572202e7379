//! How the commits of a namespace are replicated: chosen when it is created, by its creator or by
//! the rules of the region, and changed later where that is safe
//! (`docs/decisions/029-policies.md`).
//!
//! | from | to local | to async | to replicated |
//! |---|---|---|---|
//! | local | stays so, whatever the rules say | is logged | is logged |
//! | async | refused: a logged namespace stays so | | commits wait |
//! | replicated | refused | commits wait no longer | |

use nearstate_memory::ReplicationPolicy;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Error, Result, invariant};

use crate::log::consumer::WhenFull;
use crate::namespace_rules::NamespaceRules;
use crate::record::Kind;
use crate::session::{Namespace, Schema, Session, wrong_kind};

impl Session {
    /// Opens a namespace with this policy, and creates it first if it does not exist. A new one has
    /// the policy from its first write on. One that exists gets it as by
    /// [`Session::set_replication_policy`].
    ///
    /// # Errors
    /// As [`Session::namespace`] and [`Session::set_replication_policy`].
    pub fn namespace_with_policy(
        &self,
        name: &str,
        schema: &Schema,
        policy: ReplicationPolicy,
    ) -> Result<Namespace> {
        if policy != ReplicationPolicy::Local && schema.kind == Kind::Counters {
            return Err(wrong_kind(schema.kind, "replicate", ""));
        }
        let namespace = self.open_namespace(name, schema, Some(policy))?;
        invariant!(namespace.kind() == schema.kind, "a namespace is opened with its kind");
        if self.replication_policy(namespace)? != policy || policy == ReplicationPolicy::Local {
            self.set_replication_policy(namespace, policy)?;
        }
        if !schema.tags.is_empty() && !self.is_others(namespace)? {
            self.add_tags(namespace, &schema.tags)?;
        }
        Ok(namespace)
    }

    /// How the commits of a namespace are replicated. Of a namespace that belongs to another host,
    /// how that host replicates it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn replication_policy(&self, namespace: Namespace) -> Result<ReplicationPolicy> {
        Ok(self.member.replication_policy(namespace.index)?)
    }

    /// True if the commits of a namespace wait for other hosts, and this host makes them.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_replicated_from_here(&self, namespace: Namespace) -> Result<bool> {
        Ok(self.member.is_replicated_from_here(namespace.index)?)
    }

    /// Changes how the commits of a namespace are replicated. Commits that have begun before may
    /// follow the policy before.
    ///
    /// # Errors
    /// `BadArgument`: the namespace is logged, and is to be local, or was removed; `NotOwner`: it
    /// belongs to another host; `Fenced`: this host has no lease; `WrongKind`: counters are not
    /// replicated; those of [`Session::stream`].
    pub fn set_replication_policy(
        &self,
        namespace: Namespace,
        policy: ReplicationPolicy,
    ) -> Result<()> {
        self.member.check_namespace(namespace.index)?;
        if self.is_others(namespace)? {
            return self.check_may_write(namespace.index);
        }
        match policy {
            ReplicationPolicy::Local => {
                self.member.set_kept_local(namespace.index, true)?;
                // Stored first: a process that looks for namespaces to log finds the one or this
                // finds the other.
                if self.replication_policy(namespace)? == ReplicationPolicy::Local {
                    return Ok(());
                }
                self.member.set_kept_local(namespace.index, false)?;
                let detail = "the namespace is logged, and stays so: create another one, with the \
                              policy `local`";
                Err(Error::BadArgument { detail: detail.to_owned() })
            }
            ReplicationPolicy::Async | ReplicationPolicy::Replicated => {
                if self.replication_policy(namespace)? == ReplicationPolicy::Local {
                    let is_partition = self.member.log_identity()?.origin != 0;
                    let when_full =
                        if is_partition { WhenFull::Refuse } else { WhenFull::LoseOldest };
                    self.stream(namespace, when_full)?;
                    self.member.set_kept_local(namespace.index, false)?;
                }
                if self.member.set_commits_wait(namespace.index, policy, true)? {
                    Ok(())
                } else {
                    Err(self.fenced(namespace.index)?)
                }
            }
        }
    }

    /// For the node of an owner, also while it has no lease: logs a namespace that was local, with
    /// this policy, which is not local. One that is logged keeps its own.
    ///
    /// # Errors
    /// As [`Session::stream`].
    pub fn log_for_group(
        &self,
        namespace: Namespace,
        when_full: WhenFull,
        policy: ReplicationPolicy,
    ) -> Result<()> {
        invariant!(policy != ReplicationPolicy::Local, "a local namespace goes to no log");
        let is_new = !self.is_logged(namespace)?;
        self.log_namespace(namespace, when_full, false)?;
        if is_new {
            self.member.set_commits_wait(namespace.index, policy, false)?;
        }
        Ok(())
    }

    /// The rules by which new namespaces are replicated in this region; none if it belongs to no
    /// cluster.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn namespace_rules(&self) -> Result<NamespaceRules> {
        let text = self.member.namespace_rules()?;
        Ok(text.map_or_else(NamespaceRules::default, |text| NamespaceRules::of_text(&text)))
    }

    /// Stores the rules by which new namespaces of a partition's region are replicated, unless it
    /// has them. In a region that follows another one, a new namespace that they replicate is the
    /// owner's from then on. In an ordinary region they have no effect.
    ///
    /// # Errors
    /// `Stalled`: a stopped process creates a namespace; `Damaged`, `Forked`.
    pub fn set_namespace_rules(&self, rules: &NamespaceRules) -> Result<()> {
        let text = rules.text();
        if self.member.namespace_rules()?.is_some_and(|present| present == text) {
            return Ok(());
        }
        self.member.set_namespace_rules(&text)
    }

    /// From here on each new namespace of the region is logged before its first write if the rules
    /// say so, and each one of a copy whose creator began before the copy became the owner's region
    /// is writable. Before, a namespace may exist that is neither.
    ///
    /// # Errors
    /// As [`Session::set_namespace_rules`] and [`Session::stream`].
    pub fn begin_owner_namespaces(&self, rules: &NamespaceRules) -> Result<()> {
        // A namespace that is logged needs the log at its first commit.
        self.member.open_log()?;
        self.set_namespace_rules(rules)?;
        self.member.wait_for_creations()?;
        if self.following()?.is_some() {
            return Ok(());
        }
        for (_, namespace) in self.followed_namespaces()? {
            self.log_namespace(namespace, WhenFull::Refuse, false)?;
            self.member.open_to_writers(namespace.index)?;
        }
        Ok(())
    }

    /// Of a copy that has begun to follow: each namespace that the rules of the region replicate
    /// belongs to the owner from here on, also one whose creator began before. As
    /// [`Session::follow_empty_namespaces`].
    ///
    /// # Errors
    /// `Stalled`: a stopped process creates a namespace, or is in a commit; `Damaged`, `Forked`.
    pub fn begin_followed_namespaces(&self) -> Result<()> {
        self.member.wait_for_creations()?;
        self.follow_empty_namespaces()
    }

    /// The local namespaces of a copy that the rules of the region replicate belong to the owner
    /// from here on, unless their creator chose `local`. One with records keeps them, and stays
    /// local: they are nowhere else.
    ///
    /// Complexity: linear in the number of namespaces.
    ///
    /// # Errors
    /// `Stalled`: a stopped process is in a commit; `Damaged`, `Forked`.
    pub fn follow_empty_namespaces(&self) -> Result<()> {
        invariant!(self.member.is_follower(), "only a follower gives namespaces to the owner");
        let rules = self.namespace_rules()?;
        for (name, namespace) in self.namespaces()? {
            let flags = self.member.namespace_flags(namespace.index)?;
            let policy = rules.policy_for(&name);
            if flags & (namespace_flags::LOGGED | namespace_flags::FOLLOWED) != 0
                || policy == ReplicationPolicy::Local
                || namespace.kind() == Kind::Counters
                || self.is_kept_local(namespace)?
                || !self.is_empty(namespace)?
            {
                continue;
            }
            self.member.set_namespace_flag(namespace.index, namespace_flags::FOLLOWED)?;
            self.member.drain_writers(self.table(namespace)?)?;
            if self.count(namespace)? == 0 {
                self.member.set_commits_wait(namespace.index, policy, false)?;
            } else {
                self.member.update_namespace_flags(namespace.index, |word| {
                    word & !namespace_flags::FOLLOWED
                })?;
            }
        }
        Ok(())
    }

    /// True if the namespace is never to be logged, whatever the rules say.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_kept_local(&self, namespace: Namespace) -> Result<bool> {
        Ok(self.member.is_kept_local(namespace.index)?)
    }
}
