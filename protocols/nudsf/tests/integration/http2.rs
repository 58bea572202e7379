//! An HTTP/2 client of hyper over plain TCP and over TLS.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::fixture::TestNode;

pub(crate) type Http2Client = hyper::client::conn::http2::SendRequest<String>;

/// Runs `body` with a client that has connected with prior knowledge.
pub(crate) fn with_http2<T>(node: &TestNode, body: impl AsyncFnOnce(Http2Client) -> T) -> T {
    run(async {
        let stream = tokio::net::TcpStream::connect(node.address).await.unwrap();
        body(connect(stream).await).await
    })
}

/// Runs `body` with a client over TLS, and the protocol that was negotiated.
pub(crate) fn with_tls<T>(
    node: &TestNode,
    config: ClientConfig,
    body: impl AsyncFnOnce(Http2Client, Option<Vec<u8>>) -> T,
) -> T {
    run(async {
        let stream = tokio::net::TcpStream::connect(node.address).await.unwrap();
        let name = ServerName::try_from("udsf.example").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await.unwrap();
        let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        body(connect(stream).await, protocol).await
    })
}

/// The status of a GET over a new connection with TLS; the reason if there is none.
pub(crate) fn status_over_tls(
    node: &TestNode,
    config: ClientConfig,
    path: &str,
) -> Result<u16, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    run(async {
        let stream = tokio::net::TcpStream::connect(node.address).await.unwrap();
        let name = ServerName::try_from("udsf.example").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await.map_err(|e| failed(&e))?;
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor, TokioIo::new(stream));
        let (mut client, connection) = handshake.await.map_err(|e| failed(&e))?;
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        let request = hyper::Request::get(format!("https://udsf.example{path}"));
        let request = request.body(String::new()).unwrap();
        let response = client.send_request(request).await.map_err(|e| failed(&e))?;
        Ok(response.status().as_u16())
    })
}

pub(crate) fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, body)
}

async fn connect<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S) -> Http2Client {
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor, TokioIo::new(stream));
    let (client, connection) = handshake.await.unwrap();
    tokio::task::spawn_local(async move {
        let _ = connection.await;
    });
    client
}

#[derive(Clone)]
pub(crate) struct TokioExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for TokioExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}
