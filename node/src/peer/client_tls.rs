//! TLS of the side that connects.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use nearstate_model::{Error, Result};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::tls::{certificates, refused};

/// The TLS configuration of a follower: the authority of the source's certificate, and its own
/// certificate if the source requires one.
/// Clones share it, so [`ClientTls::renew`] is for all of them.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<RwLock<Arc<ClientConfig>>>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Reads PEM files: the accepted authorities, and the own certificate with its key.
    ///
    /// # Errors
    /// `BadArgument`: a file that cannot be read or parsed, or a key that does not match.
    pub fn read(authorities: &Path, own: Option<(&Path, &Path)>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(authorities)? {
            roots.add(authority).map_err(|e| refused(authorities, &e.to_string()))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| refused(authorities, &e.to_string()))?
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| refused(key, &format!("wanted is a private key in PEM ({e})")))?;
                let chain = certificates(certificate)?;
                config
                    .with_client_auth_cert(chain, secret)
                    .map_err(|e| refused(certificate, &e.to_string()))?
            }
        };
        Ok(Self::of(config))
    }

    fn of(config: ClientConfig) -> Self {
        Self { config: Arc::new(RwLock::new(Arc::new(config))) }
    }

    /// The same configuration for connections that offer protocols (ALPN), most preferred first.
    /// It is not renewed with this one.
    #[must_use]
    pub fn with_alpn(&self, protocols: &[&[u8]]) -> Self {
        let mut config = ClientConfig::clone(&self.config());
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Self::of(config)
    }

    /// The current configuration, for clients that do not connect through the node.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces authorities and certificate by those of `other`, also for all clones. Existing
    /// connections are not affected.
    pub fn renew(&self, other: &Self) {
        let config = other.config();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// A connection to the host with this name.
    pub(crate) fn connection(&self, host: &str) -> Result<ClientConnection> {
        let bad = |e: &dyn fmt::Display| Error::BadArgument {
            detail: format!("{host}: is no name that a certificate can have ({e})"),
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| bad(&e))?;
        ClientConnection::new(self.config(), name).map_err(|e| bad(&e))
    }

    /// The configuration for a connection on which one of these protocols is spoken (ALPN), and
    /// the name that the certificate must have.
    pub(crate) fn for_protocols(
        &self,
        host: &str,
        protocols: &[&[u8]],
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
        let mut config = ClientConfig::clone(&self.config());
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        // An IPv6 address has brackets in a URI.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|e| Error::BadArgument {
            detail: format!("{host}: is no name that a certificate can have ({e})"),
        })?;
        Ok((Arc::new(config), name))
    }
}
