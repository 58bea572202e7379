//! Keys of access tokens from a URL.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nearstate_nudsf::{KeySource, KeySourceSettings};
use ring::hmac;
use serde_json::json;

use crate::fixture::{TestNode, TestNodeOptions, TestReply, node_of};
use crate::scripted_server::ScriptedServer;

const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";

/// Requests of which one is served once there are keys.
const REQUESTS_MAX: usize = 1000;

fn key_set(id: &str) -> String {
    json!({"keys": [{"kty": "oct", "kid": id, "k": URL_SAFE_NO_PAD.encode(SECRET)}]}).to_string()
}

fn token(key: &str) -> String {
    let claims = json!({"exp": 32_472_144_000_u64, "aud": "UDSF", "scope": "nudsf-dr"});
    let header = json!({"alg": "HS256", "kid": key}).to_string();
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    let signed = format!("{}.{claims}", URL_SAFE_NO_PAD.encode(header));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    format!("Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// A server whose answer changes, a node that fetches keys from it, and the number of fetches.
struct Fetching {
    answer: Arc<Mutex<(u16, String)>>,
    server: ScriptedServer,
    node: TestNode,
    fetches: std::sync::mpsc::Receiver<bool>,
    _source: KeySource,
}

fn fetching(interval_min: Duration, first: (u16, String)) -> Fetching {
    let answer = Arc::new(Mutex::new(first));
    let script = Arc::clone(&answer);
    let server = ScriptedServer::start(false, Box::new(move |_| script.lock().unwrap().clone()));
    let (sender, fetches) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    let settings = KeySourceSettings {
        interval_min,
        interval: Duration::from_secs(3600),
        on_fetch: Arc::new(move |done| {
            // The test may have ended.
            let _ = sender.lock().unwrap().send(done.is_ok());
        }),
        ..KeySourceSettings::new(&format!("{}/keys/?set=1", server.uri()))
    };
    let (keys, source) = KeySource::start(settings, vec!["UDSF".to_owned()]).unwrap();
    let tokens = Some(Arc::new(keys));
    let node = node_of(TestNodeOptions { tokens, ..TestNodeOptions::default() });
    let fetching = Fetching { answer, server, node, fetches, _source: source };
    fetching.fetched();
    fetching
}

impl Fetching {
    fn fetched(&self) -> bool {
        self.fetches.recv_timeout(Duration::from_secs(120)).unwrap()
    }

    fn get(&self, key: &str) -> TestReply {
        let token = token(key);
        self.node.client().send("GET", "/records/r1", &[("Authorization", &token)], "")
    }
}

#[test]
fn req12_keys_from_a_url_follow_its_rotation_at_the_first_token_of_a_new_key() {
    let fetching = fetching(Duration::from_nanos(1), (200, key_set("1")));
    fetching.get("1").is(404, "RECORD_NOT_FOUND");
    *fetching.answer.lock().unwrap() = (200, key_set("2"));
    fetching.get("2").is(404, "RECORD_NOT_FOUND");
    fetching.get("1").is(401, "ACCESS_TOKEN_INVALID");
    // While the server fails, the last keys stay.
    *fetching.answer.lock().unwrap() = (500, String::new());
    fetching.get("3").is(401, "ACCESS_TOKEN_INVALID");
    fetching.get("2").is(404, "RECORD_NOT_FOUND");
    let paths = fetching.server.drain();
    assert!(paths.iter().all(|request| request.path == "/keys/?set=1" && request.method == "GET"));
}

#[test]
fn req12_a_token_of_a_withdrawn_key_is_refused_on_connections_that_have_used_it() {
    let fetching = fetching(Duration::from_nanos(1), (200, key_set("1")));
    let mut client = fetching.node.client();
    let token = token("1");
    let mut get = || client.send("GET", "/records/r1", &[("Authorization", &token)], "");
    get().is(404, "RECORD_NOT_FOUND");
    // The same keys again.
    fetching.get("3").is(401, "ACCESS_TOKEN_INVALID");
    get().is(404, "RECORD_NOT_FOUND");
    *fetching.answer.lock().unwrap() = (200, key_set("2"));
    fetching.get("2").is(404, "RECORD_NOT_FOUND");
    get().is(401, "ACCESS_TOKEN_INVALID");
}

#[test]
fn req12_tokens_of_unknown_keys_cause_a_bounded_number_of_fetches() {
    let fetching = fetching(Duration::from_secs(3600), (200, key_set("1")));
    for index in 0..50 {
        fetching.get(&format!("unknown{index}")).is(401, "ACCESS_TOKEN_INVALID");
    }
    fetching.get("1").is(404, "RECORD_NOT_FOUND");
    assert_eq!(fetching.server.drain().len(), 1, "the fetch of the start");
}

#[test]
fn req12_without_any_keys_requests_are_asked_to_come_later() {
    let fetching = fetching(Duration::from_nanos(1), (200, "no keys".to_owned()));
    let refused = fetching.get("1");
    assert_eq!(refused.is(503, "NF_CONGESTION").header("retry-after"), Some("1"));
    *fetching.answer.lock().unwrap() = (200, key_set("1"));
    // A fetch that has begun before ends with the old answer.
    let mut replies = (0..REQUESTS_MAX).map(|_| fetching.get("1"));
    let served = replies.find(|reply| reply.status != 503).unwrap();
    served.is(404, "RECORD_NOT_FOUND");
}
