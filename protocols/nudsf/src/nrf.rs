//! The client of the NRF: a thread that registers the node, sends heart-beats, and removes the
//! registration at the end. Requests of network functions never wait for it.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_node::ClientTls;

use crate::control_plane_client::{OutboundClient, PlainHttp, StopFlag, start_thread};
use crate::registration::{NrfProfile, NrfRequest, Registration, message};
use crate::settings::StorageSpec;

/// A change of the registration, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NrfEvent {
    /// The NRF has accepted the profile.
    Registered,
    /// The NRF has removed the profile.
    Deregistered,
    /// A request has failed, and is repeated. The reason.
    Failed(String),
}

/// The registration of a node.
#[derive(Clone)]
pub struct NrfSettings {
    /// The root of the NRF's URIs.
    pub uri: String,
    /// The authorities of the NRF's certificate, for `https`.
    pub tls: Option<ClientTls>,
    /// The node.
    pub profile: NrfProfile,
    /// The storages of the node.
    pub storages: Vec<StorageSpec>,
    /// Called for each event, on the thread of the client.
    pub on_event: Arc<dyn Fn(&NrfEvent) + Send + Sync>,
}

impl fmt::Debug for NrfSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NrfSettings").field("uri", &self.uri).finish_non_exhaustive()
    }
}

/// The longest time of the last request. The NRF removes what sends no heart-beats.
const DEREGISTER_TIME_MAX: Duration = Duration::from_secs(2);

/// A running client. Dropping it removes the registration, in at most 2 s.
#[derive(Debug)]
pub struct NrfClient {
    stop: StopFlag,
    thread: Option<JoinHandle<()>>,
}

impl NrfClient {
    /// Starts the client. An NRF that does not answer is asked again, with growing waits.
    ///
    /// # Errors
    /// `BadArgument`: an invalid URI or profile; `System`: no thread can be started.
    pub fn start(settings: NrfSettings) -> Result<Self> {
        settings.profile.validate()?;
        let client = OutboundClient::new(&settings.uri, PlainHttp::Two, settings.tls.clone())?;
        let stop = StopFlag::default();
        let stopped = stop.clone();
        let thread = start_thread("nudsf-nrf", move || run(settings, client, stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Begins to remove the registration. A request in flight is cancelled. Dropping the client
    /// waits for the end.
    pub fn begin_stop(&self) {
        self.stop.set();
    }
}

impl Drop for NrfClient {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

async fn run(settings: NrfSettings, client: OutboundClient, stop: StopFlag) {
    let (mut state, mut is_registering) = (Registration::default(), false);
    loop {
        let (wait, request) = state.next();
        if stop.wait(wait).await {
            break;
        }
        let sent = Box::pin(send(&settings, &client, (&mut state, request)));
        let sent = stop.unless_set(sent).await;
        if sent.is_none() {
            // The NRF may have the profile.
            is_registering = request == NrfRequest::Register;
            break;
        }
    }
    if state.is_registered() || is_registering {
        let sent = Box::pin(send(&settings, &client, (&mut state, NrfRequest::Deregister)));
        if tokio::time::timeout(DEREGISTER_TIME_MAX, sent).await.is_err() {
            let reason = format!("not removed within {DEREGISTER_TIME_MAX:?}");
            (settings.on_event)(&NrfEvent::Failed(reason));
        }
    }
}

/// Sends a request and reports what it has changed.
async fn send(
    settings: &NrfSettings,
    client: &OutboundClient,
    (state, request): (&mut Registration, NrfRequest),
) {
    let (method, path, body) = message(request, &settings.profile, &settings.storages);
    let reply = client.send((method, &path), body).await;
    let was_registered = state.is_registered();
    let known = reply.as_ref().ok().map(|reply| (reply.status, &reply.body[..]));
    state.answered(request, known);
    let event = match &reply {
        Err(why) => Some(NrfEvent::Failed(why.clone())),
        Ok(reply) if !reply.status.is_success() => {
            Some(NrfEvent::Failed(format!("{request:?}: the NRF answered {}", reply.status)))
        }
        Ok(_) => match request {
            NrfRequest::Register => Some(NrfEvent::Registered).filter(|_| !was_registered),
            NrfRequest::Heartbeat => None,
            NrfRequest::Deregister => Some(NrfEvent::Deregistered),
        },
    };
    if let Some(event) = event {
        (settings.on_event)(&event);
    }
}
