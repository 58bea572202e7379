//! The bare service: hyper over HTTP/2 on one thread of tokio, with responses from memory. It is
//! what a store over HTTP/2 cannot exceed without another implementation of HTTP.

use crate::reaper::system;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use nearstate_model::Result;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use tokio::net::TcpListener;

/// A response.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct RepliedBody {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

/// The responses of the node to the requests of the cases.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Replies {
    pub(super) put: RepliedBody,
    pub(super) record: RepliedBody,
    pub(super) block: RepliedBody,
    pub(super) search: RepliedBody,
    pub(super) large: RepliedBody,
}

/// The responses as hyper sends them, and the bodies that were put.
struct BareService {
    put: Response<Full<Bytes>>,
    record: Response<Full<Bytes>>,
    block: Response<Full<Bytes>>,
    search: Response<Full<Bytes>>,
    large: Response<Full<Bytes>>,
    stored: RefCell<HashMap<String, Bytes>>,
}

fn response(reply: RepliedBody) -> Result<Response<Full<Bytes>>> {
    let refused = |e: &dyn std::fmt::Display| backend_error!("a reply: {e}");
    let builder = Response::builder().status(reply.status);
    let mut response = builder.body(Full::new(Bytes::from(reply.body))).map_err(|e| refused(&e))?;
    for (name, value) in reply.headers {
        let name = HeaderName::try_from(name).map_err(|e| refused(&e))?;
        let value = HeaderValue::try_from(value).map_err(|e| refused(&e))?;
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}

/// Serves on a port until the process ends.
///
/// # Errors
/// `Backend`: no replies in the file. `System`: the port is taken.
pub fn serve(port: u16, replies: &Path) -> Result<()> {
    let text = std::fs::read(replies).map_err(|e| system("reading the replies", &e))?;
    let replies: Replies =
        serde_json::from_slice(&text).map_err(|e| backend_error!("the replies: {e}"))?;
    let service = Rc::new(BareService {
        put: response(replies.put)?,
        record: response(replies.record)?,
        block: response(replies.block)?,
        search: response(replies.search)?,
        large: response(replies.large)?,
        stored: RefCell::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|e| system("creating a runtime", &e))?;
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .map_err(|e| system("listening on the loopback interface", &e))?;
        loop {
            let (stream, _) = listener.accept().await.map_err(|e| system("accepting", &e))?;
            stream.set_nodelay(true).map_err(|e| system("setting TCP_NODELAY", &e))?;
            let service = Rc::clone(&service);
            let answer = service_fn(move |request| answer(Rc::clone(&service), request));
            let builder = http2::Builder::new(LocalExecutor);
            let connection = builder.serve_connection(TokioIo::new(stream), answer);
            drop(tokio::task::spawn_local(connection));
        }
    })
}

async fn answer(
    service: Rc<BareService>,
    request: Request<Incoming>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let found = if request.method() == Method::PUT {
        let path = path.to_owned();
        if let Ok(body) = request.into_body().collect().await {
            service.stored.borrow_mut().insert(path, body.to_bytes());
        }
        &service.put
    } else if path.contains("/blocks/") {
        &service.block
    } else if path.ends_with("/records") {
        &service.search
    } else if path.ends_with("/large") {
        &service.large
    } else {
        &service.record
    };
    Ok(found.clone())
}

#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        drop(tokio::task::spawn_local(async move {
            task.await;
        }));
    }
}
