//! What an access token allows.

use std::collections::BTreeSet;

use hyper::StatusCode;
use hyper::header::WWW_AUTHENTICATE;

use crate::problem::Problem;

/// What a valid token allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// When it ends, in seconds since 1970.
    pub(crate) expires: u64,
    /// That of the keys that have verified the token.
    pub(crate) generation: u64,
    pub(crate) scopes: BTreeSet<String>,
}

impl Grant {
    /// True until the token expires, or the keys are fetched again: the one that has verified the
    /// token may be withdrawn.
    pub(crate) fn is_current(&self, generation: u64, now_ms: u64) -> bool {
        now_ms / 1000 < self.expires && generation == self.generation
    }

    /// Checks an operation. The service must be in the scope; if scopes of its operations are there
    /// as well, they restrict the token to these.
    ///
    /// # Errors
    /// 403 with `WWW-Authenticate`.
    pub(crate) fn check(&self, scope: &str) -> Result<(), Problem> {
        let (service, _) = scope.split_once(':').unwrap_or((scope, ""));
        let mut narrow = self
            .scopes
            .iter()
            .filter(|known| known.strip_prefix(service).is_some_and(|rest| rest.starts_with(':')));
        let is_narrow = narrow.next().is_some();
        if self.scopes.contains(service) && (!is_narrow || self.scopes.contains(scope)) {
            return Ok(());
        }
        let detail = format!("the scope of the access token does not contain {service} {scope}");
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{service} {scope}\"");
        Err(Problem::new(StatusCode::FORBIDDEN, "INSUFFICIENT_SCOPE", detail)
            .with_header(WWW_AUTHENTICATE, challenge))
    }
}
