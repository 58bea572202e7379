//! A server of the control plane (an NRF, a server of keys) that answers as a test tells it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use crate::http2::{TokioExecutor, run};

/// A request that the server got.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) media: String,
    pub(crate) body: String,
}

/// The status and the body of the answer to a request.
pub(crate) type Script = Box<dyn FnMut(&SeenRequest) -> (u16, String) + Send>;

/// A running server.
pub(crate) struct ScriptedServer {
    pub(crate) address: SocketAddr,
    seen: Receiver<SeenRequest>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedServer {
    /// Starts a server of HTTP/2 with prior knowledge, or of HTTP/1.1.
    pub(crate) fn start(is_two: bool, script: Script) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, seen) = channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().spawn(move || {
            run(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let script = Rc::new(RefCell::new(script));
                let mut accepting = pin!(accept(&listener, is_two, script, sender));
                let mut stopped = pin!(stopped);
                // The sender is dropped at the end.
                std::future::poll_fn(|cx| {
                    assert!(accepting.as_mut().poll(cx).is_pending());
                    stopped.as_mut().poll(cx).map(drop)
                })
                .await;
            });
        });
        let thread = thread.unwrap();
        Self { address, seen, stop: Some(stop), thread: Some(thread) }
    }

    /// The next request, which must come soon.
    pub(crate) fn next(&self) -> SeenRequest {
        self.seen.recv_timeout(Duration::from_secs(120)).unwrap()
    }

    /// Requests that have come and were not taken.
    pub(crate) fn drain(&self) -> Vec<SeenRequest> {
        self.seen.try_iter().collect()
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

async fn accept(
    listener: &tokio::net::TcpListener,
    is_two: bool,
    script: Rc<RefCell<Script>>,
    seen: Sender<SeenRequest>,
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (script, seen) = (Rc::clone(&script), seen.clone());
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                answer(request, Rc::clone(&script), seen.clone())
            });
            let stream = TokioIo::new(stream);
            // A client may close its connection at any time.
            if is_two {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor);
                drop(builder.serve_connection(stream, service).await);
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                drop(builder.serve_connection(stream, service).await);
            }
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    script: Rc<RefCell<Script>>,
    seen: Sender<SeenRequest>,
) -> hyper::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let media = head.headers.get("content-type").map(|value| value.to_str().unwrap());
    let request = SeenRequest {
        method: head.method.to_string(),
        path: head.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        media: media.unwrap_or_default().to_owned(),
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    let (status, body) = (script.borrow_mut())(&request);
    // The test may have ended.
    let _ = seen.send(request);
    let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
    Ok(response.unwrap())
}
