//! Connections that a protocol opens itself, for example to notify its clients. They belong to the
//! core that opens them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::peer::ClientTls;
use crate::resolver::NameResolver;

/// A connection to another host, with or without TLS.
#[derive(Debug)]
pub struct OutboundStream(Inner);

#[derive(Debug)]
enum Inner {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl OutboundStream {
    /// Connects to a host, by name or address, and does the handshake of TLS. The caller limits
    /// the time.
    ///
    /// # Errors
    /// The name is not known, the host refuses, or TLS fails.
    pub async fn connect(
        (host, port): (&str, u16),
        tls: Option<(&ClientTls, &[&[u8]])>,
    ) -> io::Result<Self> {
        let found = NameResolver::of_thread().resolve(host).await?;
        let all: Vec<_> = found.iter().map(|address| SocketAddr::new(*address, port)).collect();
        let stream = TcpStream::connect(all.as_slice()).await?;
        stream.set_nodelay(true)?;
        let Some((tls, alpn)) = tls else { return Ok(Self(Inner::Plain(stream))) };
        let (config, name) = tls.for_protocols(host, alpn).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(Self(Inner::Tls(Box::new(stream))))
    }
}

impl AsyncRead for OutboundStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Inner::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Inner::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for OutboundStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Inner::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Inner::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Inner::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Inner::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Inner::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
