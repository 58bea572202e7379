//! Connections between members: TCP, with TLS and certificates on both sides, or in plain text.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nearstate_node::{ClientTls, Tls, certificate_names};
use rustix::net::sockopt::set_tcp_user_timeout;
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

    /// Connects to the member with this name. What the other side does not acknowledge within
    /// `unacknowledged`, the kernel gives up: a request from before a cut does not arrive when the
    /// link is back.
    pub(crate) async fn connect(
        tls: Option<&Self>,
        (address, name): (SocketAddr, &str),
        unacknowledged: Duration,
    ) -> io::Result<Box<dyn MemberStream>> {
        let socket = TcpStream::connect(address).await?;
        tune(&socket, unacknowledged)?;
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

/// Sends at once, and gives up what is not acknowledged in time.
pub(crate) fn tune(socket: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let ms = u32::try_from(unacknowledged.as_millis()).unwrap_or(u32::MAX);
    Ok(set_tcp_user_timeout(socket, ms)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::tcp_user_timeout;

    #[test]
    fn the_kernel_gives_up_what_is_not_acknowledged() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let socket = TcpStream::connect(address).await.unwrap();
            tune(&socket, Duration::from_millis(300)).unwrap();
            assert_eq!(tcp_user_timeout(&socket).unwrap(), 300);
            assert!(socket.nodelay().unwrap());
        });
    }
}
