//! TLS of an endpoint. Certificate and key are read before the node serves, and again on request.
//! Clients may be required to present a certificate, whose name identifies them.
//!
//! There is no session resumption: clients of a database stay connected, and a resumed session
//! would outlive the validation of its certificate.

use std::fmt;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use nearstate_model::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{
    ClientCertVerifierBuilder, NoServerSessionStorage, WebPkiClientVerifier,
};
use tokio_rustls::rustls::{CertificateError, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::endpoint_context::EndpointContext;
use crate::executor::sleep;

/// The TLS configuration of an endpoint. Cheap to clone; clones share the configuration.
#[derive(Clone)]
pub struct Tls {
    /// Read once per new connection.
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for Tls {}

pub(crate) fn refused(path: &Path, what: &str) -> Error {
    Error::BadArgument { detail: format!("{}: {what}", path.display()) }
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let help = "wanted are certificates in PEM, `-----BEGIN CERTIFICATE-----`";
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|e| refused(path, &format!("{help} ({e})")))?;
    if all.is_empty() { Err(refused(path, help)) } else { Ok(all) }
}

impl Tls {
    /// Reads PEM files: the certificate with its chain, its key, and, if clients must present
    /// certificates, the certificates of the accepted authorities.
    ///
    /// # Errors
    /// `BadArgument`: a file that cannot be read or parsed, or a key that does not match the
    /// certificate.
    pub fn read(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Self> {
        let chain = certificates(certificate)?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|e| refused(key, &format!("wanted is a private key in PEM ({e})")))?;
        let provider = Arc::new(default_provider());
        let unfit = |e: &dyn fmt::Display| refused(certificate, &format!("is of no use ({e})"));
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| unfit(&e))?;
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|e| refused(path, &e.to_string()))?;
                }
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = ClientCertVerifierBuilder::build(builder);
                config
                    .with_client_cert_verifier(verifier.map_err(|e| refused(path, &e.to_string()))?)
            }
        };
        let mut config = config.with_single_cert(chain, secret).map_err(|e| {
            let key = key.display();
            refused(certificate, &format!("does not go together with the key {key} ({e})"))
        })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config))) })
    }

    /// The current configuration.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same certificates for an endpoint that offers protocols (ALPN), most preferred first.
    /// Clients that name none are served as well; clients that name others only are refused.
    #[must_use]
    pub fn with_alpn(&self, protocols: &[&[u8]]) -> Self {
        let mut config = ServerConfig::clone(&self.config());
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Self { config: Arc::new(RwLock::new(Arc::new(config))) }
    }

    /// Replaces the certificates by those of `other`; the protocols stay. Existing connections are
    /// not affected.
    pub fn renew(&self, other: &Self) {
        let mut config = ServerConfig::clone(&other.config());
        config.alpn_protocols.clone_from(&self.config().alpn_protocols);
        let config = Arc::new(config);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Performs the handshake with a client. `None`: it failed or timed out, or the node drains.
    pub(crate) async fn handshake<S>(
        &self,
        stream: S,
        endpoint: &EndpointContext,
    ) -> Option<TlsClient<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut accept: Accept<S> = TlsAcceptor::from(self.config()).accept(stream);
        let mut alarm = sleep(endpoint.core().limits().request_timeout);
        let stream = poll_fn(|cx| {
            if let Poll::Ready(done) = Pin::new(&mut accept).poll(cx) {
                return Poll::Ready(done.ok());
            }
            let is_late = Pin::new(&mut alarm).poll(cx).is_ready();
            if is_late || endpoint.is_draining() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await?;
        let shown = stream.get_ref().1.peer_certificates();
        let name = shown.and_then(|chain| chain.first()).and_then(name_in);
        Some(TlsClient { stream, name })
    }
}

/// A client after its TLS handshake.
pub(crate) struct TlsClient<S> {
    pub(crate) stream: TlsStream<S>,
    /// The name in its certificate, if it was required to present one.
    pub(crate) name: Option<String>,
}

/// The certificate of a host, judged as by other hosts that connect to it, and to which it
/// connects.
pub struct HostCertificate {
    path: PathBuf,
    authorities: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    server: Arc<WebPkiServerVerifier>,
    client: Arc<dyn ClientCertVerifier>,
    name: String,
}

impl fmt::Debug for HostCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCertificate").field("path", &self.path).finish_non_exhaustive()
    }
}

impl HostCertificate {
    /// Reads PEM files: the certificate with its chain, and the accepted authorities.
    ///
    /// # Errors
    /// `BadArgument`: a file that cannot be read.
    pub fn read(certificate: &Path, authorities: &Path, name: &str) -> Result<Self> {
        let unfit = |e: &dyn fmt::Display| refused(authorities, &e.to_string());
        let mut roots = RootCertStore::empty();
        for authority in certificates(authorities)? {
            roots.add(authority).map_err(|e| unfit(&e))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(default_provider()));
        let server =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let client = WebPkiClientVerifier::builder_with_provider(roots, provider);
        Ok(Self {
            path: certificate.to_owned(),
            authorities: authorities.to_owned(),
            chain: certificates(certificate)?,
            server: server.build().map_err(|e| unfit(&e))?,
            client: ClientCertVerifierBuilder::build(client).map_err(|e| unfit(&e))?,
            name: name.to_owned(),
        })
    }

    /// The file of the certificate.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the authorities have signed it, it has the name, and it is valid after this
    /// time.
    ///
    /// # Errors
    /// `BadArgument`: what is wrong with the certificate.
    pub fn check(&self, after: Duration) -> Result<()> {
        let unfit = |what: &str| refused(&self.path, what);
        let invalid = |e: rustls::Error| unfit(&problem(&e, &self.name, &self.authorities));
        let Some((own, others)) = self.chain.split_first() else {
            return Err(unfit("it is empty"));
        };
        let at = UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs()) + after);
        let name = ServerName::try_from(self.name.clone());
        let name = name.map_err(|e| unfit(&e.to_string()))?;
        self.server.verify_server_cert(own, others, &name, &[], at).map_err(invalid)?;
        self.client.verify_client_cert(own, others, at).map_err(invalid)?;
        let names = certificate_names(own);
        if has_name(&names, &self.name) {
            return Ok(());
        }
        let what = format!(
            "its DNS names {names:?} do not contain \"{}\": hosts know each other by their whole \
             names, so a wildcard does not count",
            self.name
        );
        Err(unfit(&what))
    }
}

/// What is wrong with the certificate of a host with this name, and what is wanted.
fn problem(error: &rustls::Error, name: &str, authorities: &Path) -> String {
    use CertificateError as Kind;
    let rustls::Error::InvalidCertificate(kind) = error else { return error.to_string() };
    let authorities = authorities.display();
    if let Kind::NotValidForNameContext { presented, .. } = kind {
        return format!(
            "it is not valid for name \"{name}\", only for {}: make one that has the name as a DNS \
             name (subject alternative name)",
            if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") }
        );
    }
    if let Kind::Other(other) = kind
        && other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
    {
        return "it is the certificate of an authority (CA:TRUE), as most self-signed ones are: \
                wanted is one with CA:FALSE that an authority has signed"
            .to_owned();
    }
    if matches!(kind, Kind::InvalidPurpose | Kind::InvalidPurposeContext { .. }) {
        return "its extended key usage does not allow both sides of a connection: wanted are \
                serverAuth and clientAuth"
            .to_owned();
    }
    if matches!(kind, Kind::Expired | Kind::ExpiredContext { .. }) {
        return "it has expired, or one of its chain has: make a new one".to_owned();
    }
    if matches!(kind, Kind::NotValidYet | Kind::NotValidYetContext { .. }) {
        return "it is not valid yet: correct the clock of this host, or make another one"
            .to_owned();
    }
    if matches!(kind, Kind::UnknownIssuer | Kind::BadSignature) {
        return format!(
            "no authority in {authorities} has signed it: put the right authority there, and the \
             certificates between it and this one behind this one"
        );
    }
    error.to_string()
}

/// Whether the names of a certificate contain the one of a host. Case does not matter in DNS names.
/// A wildcard is no name of a host: with it each host could claim to be any other.
pub fn has_name(names: &[String], host: &str) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

/// The DNS names among the subject alternative names of a certificate that was validated already.
pub fn certificate_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate);
    certificate
        .map(|certificate| certificate.valid_dns_names().map(str::to_owned).collect())
        .unwrap_or_default()
}

/// The first DNS name among the subject alternative names of a certificate that was validated
/// already. The common name is ignored, as browsers do.
fn name_in(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_dns_names().next().map(str::to_owned)
}
