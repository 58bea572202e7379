//! The namespaces of a source that are added to the log.

use nearstate_model::Result;
use nearstate_store::{Kind, ReplicationPolicy, Session, WhenFull};

use super::events::{PeerEvent, SourceConfig};

/// The namespaces that were added to the log.
#[derive(Debug, Default)]
pub(crate) struct DeclaredNamespaces {
    changes: Option<u64>,
}

impl DeclaredNamespaces {
    /// Adds the namespaces that are new and match a pattern.
    pub(super) fn update(&mut self, session: &Session, config: &SourceConfig) -> Result<()> {
        let changes = session.namespace_changes()?;
        if changes.is_some() && changes == self.changes {
            return Ok(());
        }
        let policy = if config.keeps { WhenFull::Refuse } else { WhenFull::LoseOldest };
        let mut is_whole = true;
        for (name, namespace) in session.namespaces()? {
            let wanted = config.namespaces.policy_for(&name);
            // A policy that a local consumer has declared is not relaxed.
            let is_done =
                session.is_logged(namespace)? && (self.changes.is_some() || !config.keeps);
            if namespace.kind() == Kind::Counters
                || is_done
                || session.is_followed(namespace)?
                || session.is_kept_local(namespace)?
                || wanted == ReplicationPolicy::Local
            {
                continue;
            }
            // A policy that was set since stays.
            if let Err(error) = session.log_for_group(namespace, policy, wanted)
                && session.has_namespace(namespace)
            {
                is_whole = false;
                let reason = &error.to_string();
                (config.on_event)(&PeerEvent::NotLogged { namespace: &name, reason });
            }
        }
        self.changes = changes.filter(|_| is_whole);
        Ok(())
    }

    /// All namespaces are looked at again.
    pub(crate) fn forget(&mut self) {
        self.changes = None;
    }
}
