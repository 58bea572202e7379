//! Limits of namespaces, and what their records take (`docs/decisions/016-namespaces.md`).

use nearstate_memory::{NamespaceLimits, NamespaceUsage};
use nearstate_model::Result;

use crate::session::{Namespace, Session};

impl Session {
    /// Sets the limits of a namespace for all processes, or removes them
    /// ([`NamespaceLimits::default`]). Above the hard limit a write is refused with `LimitReached`,
    /// unless it takes no more memory than what it replaces; deletes are always executed.
    ///
    /// In a namespace with limits every write is a transaction. Its records are counted once, while
    /// others write: about 300 ns each.
    ///
    /// ```
    /// # use nearstate_store::{CreateOptions, Error, NamespaceLimits, Region, Schema};
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// let tenant = session.namespace("tenant", &Schema::default())?;
    /// let limits = NamespaceLimits { soft_bytes: 0, hard_bytes: 1 << 10 };
    /// session.set_limits(tenant, limits)?;
    /// session.put(tenant, b"one", &[1; 900])?;
    /// assert!(matches!(session.put(tenant, b"two", &[2; 900]), Err(Error::LimitReached { .. })));
    /// session.put(tenant, b"one", &[3; 900])?;
    /// session.delete(tenant, b"one")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed, or the soft limit is above the hard one;
    /// `Stalled`, `Damaged`, `Forked`. After `Stalled` the limits may be set; call it again.
    pub fn set_limits(&self, namespace: Namespace, limits: NamespaceLimits) -> Result<()> {
        self.member.set_namespace_limits(namespace.index, limits)
    }

    /// The limits of a namespace, and what its records take; `None` if it has no limits.
    ///
    /// Cost: some loads.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed; `Damaged`, `Forked`.
    pub fn usage(&self, namespace: Namespace) -> Result<Option<NamespaceUsage>> {
        self.member.namespace_usage(namespace.index)
    }

    /// The namespaces that have limits: name, [`Namespace::number`], and what their records take.
    /// Without those whose names are not UTF-8.
    ///
    /// Complexity: some nanoseconds for each namespace of the region.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn limited_namespaces(&self) -> Result<Vec<(String, u32, NamespaceUsage)>> {
        let all = self.member.limited_namespaces()?.into_iter();
        let named = |(name, number, usage)| Some((String::from_utf8(name).ok()?, number, usage));
        Ok(all.filter_map(named).collect())
    }
}
