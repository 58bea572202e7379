//! A network function that receives notifications over HTTP/2 with prior knowledge, and answers as
//! a script says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "the receiver stands for another host")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use crate::http2::{TokioExecutor, run};

/// The longest time in which a test that waits for notifications gets none. It is not reached on a
/// loaded machine, as long as some arrive.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// More notifications than any test waits for.
const ARRIVALS_MAX: usize = 100_000;

/// A notification that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) content_type: String,
    pub(crate) location: String,
    pub(crate) body: String,
}

/// The status of the answer; `None`: it never comes.
pub(crate) type Script = Arc<dyn Fn(&Received) -> Option<u16> + Send + Sync>;

#[derive(Default)]
struct ReceiverState {
    received: Mutex<Vec<Received>>,
    /// Requests without an answer that the sender has given up.
    cancelled: Mutex<usize>,
    changed: Condvar,
    has_cancelled: Condvar,
}

/// A receiver with its thread.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    state: Arc<ReceiverState>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An address of loopback that only this call has, without a port. A port that is free at it stays
/// free: the connections of other tests begin at 127.0.0.1.
pub(crate) fn own_address() -> SocketAddr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    ([127, high, low, CALLS.fetch_add(1, Ordering::Relaxed)], 0).into()
}

/// Without those that came before. What is answered late is sent again.
pub(crate) fn distinct(all: &[Received]) -> Vec<Received> {
    let mut seen = BTreeSet::new();
    all.iter().filter(|one| seen.insert((&one.path, &one.body))).cloned().collect()
}

/// A receiver that accepts everything.
pub(crate) fn receiver() -> Receiver {
    receiver_at(([127, 0, 0, 1], 0).into(), Arc::new(|_| Some(204)))
}

/// A receiver with a script.
pub(crate) fn scripted(
    script: impl Fn(&Received) -> Option<u16> + Send + Sync + 'static,
) -> Receiver {
    receiver_at(([127, 0, 0, 1], 0).into(), Arc::new(script))
}

pub(crate) fn receiver_at(address: SocketAddr, script: Script) -> Receiver {
    receiver_over(address, script, None)
}

/// A receiver over TLS, if an acceptor is given.
pub(crate) fn receiver_over(
    address: SocketAddr,
    script: Script,
    tls: Option<tokio_rustls::TlsAcceptor>,
) -> Receiver {
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let state = Arc::<ReceiverState>::default();
    let shared = Arc::clone(&state);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        run(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let accept = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (state, script) = (Arc::clone(&shared), Arc::clone(&script));
                    let service = hyper::service::service_fn(move |request| {
                        answer(request, Arc::clone(&state), Arc::clone(&script))
                    });
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor);
                    match &tls {
                        None => {
                            let connection =
                                builder.serve_connection(TokioIo::new(stream), service);
                            drop(tokio::task::spawn_local(connection));
                        }
                        Some(tls) => {
                            let stream = tls.accept(stream).await.unwrap();
                            let connection =
                                builder.serve_connection(TokioIo::new(stream), service);
                            drop(tokio::task::spawn_local(connection));
                        }
                    }
                }
            };
            tokio::select! {
                () = accept => {}
                _ = stopped => {}
            }
        });
    });
    Receiver { address, state, stop: Some(stop), thread: Some(thread) }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<ReceiverState>,
    script: Script,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let field = |name: &str| {
        let value = head.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    assert_eq!(head.method, "POST");
    let body = body.collect().await?.to_bytes();
    let received = Received {
        path: head.uri.path().to_owned(),
        content_type: field("content-type"),
        location: field("content-location"),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let status = script(&received);
    if status.is_none_or(|status| status < 300) {
        state.received.lock().unwrap().push(received);
        state.changed.notify_all();
    }
    let Some(status) = status else {
        let _request = UnansweredRequest(state);
        return std::future::pending().await;
    };
    Ok(Response::builder().status(status).body(Full::default()).unwrap())
}

/// Is dropped when its stream is reset.
struct UnansweredRequest(Arc<ReceiverState>);

impl Drop for UnansweredRequest {
    fn drop(&mut self) {
        *self.0.cancelled.lock().unwrap() += 1;
        self.0.has_cancelled.notify_all();
    }
}

impl Receiver {
    /// A callback URI.
    pub(crate) fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Waits until the notifications that were accepted satisfy a condition, and returns them.
    #[track_caller]
    pub(crate) fn wait(&self, holds: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let mut received = self.state.received.lock().unwrap();
        while !holds(&received) {
            let before = received.len();
            let is_same = |received: &mut Vec<Received>| received.len() == before;
            let waited = self.state.changed.wait_timeout_while(received, WAIT_MAX, is_same);
            received = waited.unwrap().0;
            assert!(received.len() > before, "only these arrived: {received:#?}");
            // One that is sent again and again would make the wait endless.
            assert!(received.len() < ARRIVALS_MAX, "{} notifications arrived", received.len());
        }
        received.clone()
    }

    /// Waits for this number of notifications.
    #[track_caller]
    pub(crate) fn wait_for(&self, count: usize) -> Vec<Received> {
        self.wait(|received| received.len() >= count)
    }
}

impl Receiver {
    /// Waits until the sender has given up a request.
    #[track_caller]
    pub(crate) fn wait_for_cancellation(&self) {
        let cancelled = self.state.cancelled.lock().unwrap();
        let waited =
            self.state.has_cancelled.wait_timeout_while(cancelled, WAIT_MAX, |count| *count == 0);
        assert!(!waited.unwrap().1.timed_out(), "the request stays");
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
