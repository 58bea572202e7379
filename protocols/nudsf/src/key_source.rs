//! The key set of access tokens from a URL: fetched at the start, then regularly, and at once when
//! a token names a key that the set does not have.
//!
//! Requests never cause more than one fetch in [`KeySourceSettings::interval_min`]. While fetches
//! fail, the last keys stay in force for [`KEYS_AGE_MAX`]; then, as before the first fetch,
//! requests are answered with 503.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::Method;
use nearstate_model::Result;
use nearstate_node::ClientTls;
use nearstate_node::clock::Clock;
use tokio::sync::watch;

use crate::control_plane_client::{OutboundClient, PlainHttp, StopFlag, start_thread};
use crate::json_web_key::TokenKeySet;
use crate::token::TokenKeys;

/// How long keys stay in force that could not be fetched again. A day: the outage of the key server
/// must not be one of the data repository.
pub const KEYS_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Takes the number of keys of a fetch, or the reason of its failure.
pub type OnFetch = Arc<dyn Fn(std::result::Result<usize, &str>) + Send + Sync>;

/// Where the keys come from.
#[derive(Clone)]
pub struct KeySourceSettings {
    /// The URL of the JSON web key set, with `http` or `https`.
    pub url: String,
    /// The authorities of the server's certificate, for `https`.
    pub tls: Option<ClientTls>,
    /// The time between two fetches that succeed.
    pub interval: Duration,
    /// The least time between two fetches.
    pub interval_min: Duration,
    /// Called after a fetch.
    pub on_fetch: OnFetch,
}

impl fmt::Debug for KeySourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySourceSettings").field("url", &self.url).finish_non_exhaustive()
    }
}

impl KeySourceSettings {
    /// The settings of a URL: every 5 minutes, at most every 10 seconds.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            tls: None,
            interval: Duration::from_secs(300),
            interval_min: Duration::from_secs(10),
            on_fetch: Arc::new(|_| ()),
        }
    }
}

/// A running source of keys. Dropping it ends its thread.
#[derive(Debug)]
pub struct KeySource {
    stop: StopFlag,
    thread: Option<JoinHandle<()>>,
}

impl KeySource {
    /// Starts to fetch keys. Returns the keys, which are none until the first fetch succeeds.
    ///
    /// # Errors
    /// `BadArgument`: an invalid URL; `System`: no thread can be started.
    pub fn start(settings: KeySourceSettings, audiences: Vec<String>) -> Result<(TokenKeys, Self)> {
        let client = OutboundClient::new(&settings.url, PlainHttp::One, settings.tls.clone())?;
        let keys = TokenKeys::fetched(audiences, settings.interval_min);
        let (fetched, stop) = (keys.clone(), StopFlag::default());
        let stopped = stop.clone();
        let thread = start_thread("nudsf-keys", move || run(settings, client, fetched, stopped))?;
        Ok((keys, Self { stop, thread: Some(thread) }))
    }
}

impl Drop for KeySource {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

async fn run(settings: KeySourceSettings, client: OutboundClient, keys: TokenKeys, stop: StopFlag) {
    let mut wanted = keys.wanted();
    let clock = Clock::new();
    let mut fetched_at = None;
    loop {
        wanted.borrow_and_update();
        let done = fetch(&client).await;
        if done.is_ok() {
            fetched_at = Some(clock.now());
        }
        let age = |at: u64| clock.time(clock.now().saturating_sub(at));
        let is_old = fetched_at.is_none_or(|at| age(at) > KEYS_AGE_MAX);
        (settings.on_fetch)(done.as_ref().map(TokenKeySet::len).map_err(String::as_str));
        keys.finish_fetch(done.ok(), is_old);
        if stop.wait(settings.interval_min).await
            || wait(&settings, &mut wanted, &stop, fetched_at.is_none()).await
        {
            return;
        }
    }
}

/// Waits until keys are due or a request wants them. True: the source ends.
async fn wait(
    settings: &KeySourceSettings,
    wanted: &mut watch::Receiver<u64>,
    stop: &StopFlag,
    is_first: bool,
) -> bool {
    let interval = if is_first { settings.interval_min } else { settings.interval };
    let interval = interval.saturating_sub(settings.interval_min);
    let mut stopped = std::pin::pin!(stop.wait(interval));
    let mut changed = std::pin::pin!(wanted.changed());
    std::future::poll_fn(|cx| {
        if changed.as_mut().poll(cx).is_ready() {
            return std::task::Poll::Ready(false);
        }
        stopped.as_mut().poll(cx)
    })
    .await
}

async fn fetch(client: &OutboundClient) -> std::result::Result<TokenKeySet, String> {
    let reply = client.send((Method::GET, ""), None).await?;
    if !reply.status.is_success() {
        return Err(format!("the server of the keys answered {}", reply.status));
    }
    TokenKeySet::parse(&reply.body)
}
