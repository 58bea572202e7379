//! TLS with ALPN, and access tokens.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nearstate_node::Tls;
use nearstate_nudsf::TokenKeys;
use ring::hmac;
use serde_json::json;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fixture::{MIXED, STORAGE, TestNode, TestNodeOptions, node_of, record_body};
use crate::http2::{status_over_tls, with_tls};

const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";

#[test]
fn req01_tls_negotiates_http_2_by_alpn() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["udsf.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let [chain, secret] = ["chain", "key"].map(|name| folder.path().join(name));
    std::fs::write(&chain, certificate.pem()).unwrap();
    std::fs::write(&secret, key.serialize_pem()).unwrap();
    let tls = Tls::read(&chain, &secret, None).unwrap();
    let node = node_of(TestNodeOptions { tls: Some(tls), ..TestNodeOptions::default() });
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    with_tls(&node, config, async |mut client, protocol| {
        assert_eq!(protocol.as_deref(), Some(&b"h2"[..]));
        let request = hyper::Request::put(format!("https://udsf.example{STORAGE}/records/r1"))
            .header(MIXED.0, MIXED.1)
            .body(record_body("{}", &[("a", "1")]))
            .unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), 201);
        let location = response.headers().get("location").unwrap().to_str().unwrap();
        assert_eq!(location, format!("https://udsf.example{STORAGE}/records/r1"));
    });
}

/// A certificate of an authority of its own: the authority, the certificate and its key.
fn issued(name: &str) -> (rcgen::Certificate, rcgen::Certificate, rcgen::KeyPair) {
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority =
        rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    (authority.as_ref().clone(), certificate, key)
}

#[test]
fn req01_with_mutual_tls_only_clients_of_the_authority_are_served_by_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    let (server_authority, server, server_key) = issued("udsf.example");
    let (client_authority, client, client_key) = issued("amf.example");
    let (_, foreign, foreign_key) = issued("amf.example");
    let [chain, secret, clients] = ["chain", "key", "clients"].map(|name| folder.path().join(name));
    std::fs::write(&chain, server.pem()).unwrap();
    std::fs::write(&secret, server_key.serialize_pem()).unwrap();
    std::fs::write(&clients, client_authority.pem()).unwrap();
    let tls = Tls::read(&chain, &secret, Some(&clients)).unwrap();
    let node = node_of(TestNodeOptions { tls: Some(tls), ..TestNodeOptions::default() });
    let path = format!("{STORAGE}/records/none");
    for version in [&TLS12, &TLS13] {
        let get = |identity: Option<(&rcgen::Certificate, &rcgen::KeyPair)>| {
            let mut roots = RootCertStore::empty();
            roots.add(server_authority.der().clone()).unwrap();
            let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
            let config = config.with_protocol_versions(&[version]).unwrap();
            let config = config.with_root_certificates(roots);
            let mut config = match identity {
                None => config.with_no_client_auth(),
                Some((certificate, key)) => {
                    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
                    config.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
                }
            };
            config.alpn_protocols = vec![b"h2".to_vec()];
            status_over_tls(&node, config, &path)
        };
        assert_eq!(get(Some((&client, &client_key))), Ok(404), "{version:?}");
        assert!(get(None).is_err(), "no certificate, {version:?}");
        assert!(get(Some((&foreign, &foreign_key))).is_err(), "another authority, {version:?}");
    }
    // A refused handshake is no request.
    let counted = node.metrics.snapshot();
    assert!(counted.contains(&("GetRecord", "4xx", 2)), "{counted:?}");
}

fn token(scope: &str, expires_s: u64) -> String {
    let claims = json!({"exp": expires_s, "aud": "UDSF", "scope": scope}).to_string();
    let header = json!({"alg": "HS256"}).to_string();
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    format!("Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// A node that requires tokens.
fn guarded() -> TestNode {
    let set = json!({"keys": [{"kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET)}]}).to_string();
    let keys = TokenKeys::parse(set.as_bytes(), vec!["UDSF".to_owned()]).unwrap();
    let tokens = Some(Arc::new(keys));
    node_of(TestNodeOptions { tokens, ..TestNodeOptions::default() })
}

#[test]
fn req12_every_timer_operation_needs_the_scope_of_the_timer_service() {
    let node = guarded();
    let far = 32_472_144_000;
    let timers = "/nudsf-timer/v1/Realm01/Storage01/timers";
    let one = format!("{timers}/t1");
    let (json, patch) = (Some("application/json"), Some("application/json-patch+json"));
    let timer = r#"{"expires":"2999-01-01T00:00:00Z"}"#;
    let cases = [
        ("PUT", one.as_str(), json, timer, "create", 201),
        ("GET", &one, None, "", "read", 200),
        ("PATCH", &one, patch, r#"[{"op":"add","path":"/deleteAfter","value":1}]"#, "modify", 204),
        ("GET", timers, None, "", "read", 200),
        ("DELETE", &one, None, "", "modify", 204),
        ("DELETE", timers, None, "", "modify", 204),
    ];
    for (method, path, media, body, access, status) in cases {
        let send = |scope: &str| {
            let token = token(scope, far);
            let mut headers = vec![("Authorization", token.as_str())];
            headers.extend(media.map(|media| ("Content-Type", media)));
            node.client().send(method, path, &headers, body)
        };
        // Refused first: each of these changes nothing, or the accepted request would differ.
        send("nudsf-dr").is(403, "INSUFFICIENT_SCOPE");
        send(&format!("nudsf-timer:timer:{access}")).is(403, "INSUFFICIENT_SCOPE");
        for other in ["read", "create", "modify"].into_iter().filter(|other| *other != access) {
            let narrow = send(&format!("nudsf-timer nudsf-timer:timer:{other}"));
            narrow.is(403, "INSUFFICIENT_SCOPE");
        }
        send(&format!("nudsf-timer nudsf-timer:timer:{access}")).is(status, "");
    }
}

#[test]
fn req12_requests_need_a_token_whose_scope_allows_the_operation() {
    let node = guarded();
    let mut client = node.client();
    let refused = client.get("/records/r1");
    assert_eq!(refused.is(401, "ACCESS_TOKEN_INVALID").header("www-authenticate"), Some("Bearer"));
    client.put_record("r1", "{}", &[]).is(401, "ACCESS_TOKEN_INVALID");
    // HTTP/1.1 ends the connection of a refused request whose body has not arrived.
    let mut client = node.client();
    let (far, past) = (32_472_144_000, 1_000);
    let mut get = |token: &str| client.send("GET", "/records/r1", &[("Authorization", token)], "");
    for _ in 0..2 {
        get(&token("nudsf-dr", far)).is(404, "RECORD_NOT_FOUND");
        get(&token("nudsf-dr", past)).is(401, "ACCESS_TOKEN_INVALID");
        get(&token("nudsf-dr nudsf-dr:record:read", far)).is(404, "RECORD_NOT_FOUND");
        let narrow = get(&token("nudsf-dr nudsf-dr:record:modify", far));
        narrow.is(403, "INSUFFICIENT_SCOPE");
        assert!(narrow.header("www-authenticate").unwrap().contains("insufficient_scope"));
        get(&token("nudsf-timer", far)).is(403, "INSUFFICIENT_SCOPE");
        get("Bearer x.y.z").is(401, "ACCESS_TOKEN_INVALID");
    }
}
