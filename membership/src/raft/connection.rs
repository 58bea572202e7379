//! Connections between members: TCP, with TLS and certificates on both sides, or in plain text.

use std::io;
use std::net::SocketAddr;

use nearstate_node::{ClientTls, Tls, certificate_names};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A connection.
pub(crate) trait MemberStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + Sync> MemberStream for S {}

/// The certificates of a member. Each side presents one that names its host.
#[derive(Clone, Debug)]
pub struct MemberTls {
    /// For connections from other members. It must require certificates of clients.
    pub server: Tls,
    /// For connections to other members. It must have an own certificate.
    pub client: ClientTls,
}

impl MemberTls {
    /// Replaces the certificates by those of `other`, also for all clones. Existing connections are
    /// not affected.
    pub fn renew(&self, other: &Self) {
        self.server.renew(&other.server);
        self.client.renew(&other.client);
    }

    /// Connects to the member with this name.
    pub(crate) async fn connect(
        tls: Option<&Self>,
        address: SocketAddr,
        name: &str,
    ) -> io::Result<Box<dyn MemberStream>> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok(Box::new(socket)) };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(tls.client.config());
        Ok(Box::new(connector.connect(name, socket).await?))
    }

    /// Accepts a connection. Also returns the names in the other side's certificate; `None`: the
    /// connection has no certificates.
    pub(crate) async fn accept(
        tls: Option<&Self>,
        socket: TcpStream,
    ) -> io::Result<(Box<dyn MemberStream>, Option<Vec<String>>)> {
        socket.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok((Box::new(socket), None)) };
        let stream = TlsAcceptor::from(tls.server.config()).accept(socket).await?;
        let shown = stream.get_ref().1.peer_certificates();
        let names = shown.and_then(|chain| chain.first()).map(certificate_names);
        Ok((Box::new(stream), Some(names.unwrap_or_default())))
    }
}
