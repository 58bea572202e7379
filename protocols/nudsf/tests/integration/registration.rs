//! Registration with a scripted NRF.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearstate_nudsf::{NrfClient, NrfEvent, NrfProfile, NrfSettings, StorageSpec};
use nearstate_store::lease_clock;
use serde_json::{Value, json};

use crate::scripted_server::ScriptedServer;

const INSTANCE: &str = "4947a69a-f61b-4bc1-b9da-47c9c5d14b64";

type Events = std::sync::mpsc::Receiver<NrfEvent>;

fn register(uri: String) -> (NrfClient, Events) {
    let (sender, events) = channel();
    let sender = Mutex::new(sender);
    let settings = NrfSettings {
        uri,
        tls: None,
        profile: NrfProfile {
            instance: INSTANCE.to_owned(),
            endpoints: vec![(([127, 0, 0, 1], 8080).into(), false)],
            ..NrfProfile::default()
        },
        storages: vec![StorageSpec::parse("Realm01/Storage01=ue").unwrap()],
        on_event: Arc::new(move |event| {
            // The test may have ended.
            let _ = sender.lock().unwrap().send(event.clone());
        }),
    };
    (NrfClient::start(settings).unwrap(), events)
}

fn next(events: &Events) -> NrfEvent {
    events.recv_timeout(Duration::from_secs(120)).unwrap()
}

#[test]
fn req13_the_node_registers_as_udsf_sends_heart_beats_and_removes_its_registration() {
    let mut answers = vec![
        (503, "{}"),
        (201, r#"{"heartBeatTimer":1}"#),
        (204, ""),
        (404, "{}"),
        (201, r#"{"heartBeatTimer":1}"#),
    ]
    .into_iter();
    let script = move |_: &_| {
        let (status, body) = answers.next().unwrap_or((204, ""));
        (status, body.to_owned())
    };
    let nrf = ScriptedServer::start(true, Box::new(script));
    let (client, events) = register(nrf.uri());
    let path = format!("/nnrf-nfm/v1/nf-instances/{INSTANCE}");
    let expect = |method: &str| {
        let request = nrf.next();
        assert_eq!((request.method.as_str(), &request.path), (method, &path));
        request
    };
    assert!(matches!(next(&events), NrfEvent::Failed(_)), "busy, and asked again");
    expect("PUT");
    let profile = expect("PUT");
    assert_eq!(profile.media, "application/json");
    let profile: Value = serde_json::from_str(&profile.body).unwrap();
    assert_eq!(profile.get("nfType"), Some(&json!("UDSF")));
    assert_eq!(
        profile.pointer("/udsfInfo/storageIdRanges/Realm01/0/pattern"),
        Some(&json!("^Storage01$"))
    );
    for (index, name) in ["nudsf-dr", "nudsf-timer"].into_iter().enumerate() {
        let path = format!("/nfServices/{index}/serviceName");
        assert_eq!(profile.pointer(&path), Some(&json!(name)), "{profile}");
    }
    assert_eq!(next(&events), NrfEvent::Registered);
    let beat = expect("PATCH");
    assert_eq!(beat.media, "application/json-patch+json");
    assert_eq!(
        serde_json::from_str::<Value>(&beat.body).unwrap(),
        json!([{"op": "replace", "path": "/nfStatus", "value": "REGISTERED"}])
    );
    expect("PATCH");
    assert!(matches!(next(&events), NrfEvent::Failed(_)), "the NRF has lost the node");
    expect("PUT");
    assert_eq!(next(&events), NrfEvent::Registered);
    drop(client);
    let mut rest = nrf.drain();
    let last = rest.pop().unwrap();
    assert_eq!((last.method.as_str(), &last.path), ("DELETE", &path));
    assert_eq!(next(&events), NrfEvent::Deregistered);
}

#[test]
fn req13_an_nrf_that_is_away_delays_neither_start_nor_end() {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (client, events) = register(format!("http://{address}"));
    assert!(matches!(next(&events), NrfEvent::Failed(_)));
    drop(client);
    assert!(events.try_iter().all(|event| matches!(event, NrfEvent::Failed(_))));
}

/// Waits for a connection, which must come.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let begun = lease_clock();
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            return stream;
        }
        assert!(lease_clock().saturating_sub(begun) < Duration::from_secs(120), "no connection");
        std::thread::yield_now();
    }
}

#[test]
fn req13_a_request_that_the_nrf_does_not_answer_is_cancelled_at_the_end() {
    let nrf = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (client, events) = register(format!("http://{}", nrf.local_addr().unwrap()));
    let mut registers = accept(&nrf);
    client.begin_stop();
    // It may have registered. The connection ends, and nothing has failed before that.
    let removes = accept(&nrf);
    assert_eq!(events.try_recv().ok(), None, "no time limit has passed");
    registers.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    registers.read_to_end(&mut Vec::new()).unwrap();
    drop(removes);
    drop(client);
    assert!(events.try_iter().all(|event| matches!(event, NrfEvent::Failed(_))));
}
