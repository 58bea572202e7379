//! Access tokens (RFC 6749, 7515, 7519; TS 29.510, `AccessTokenClaims`): JSON web tokens whose
//! signature is checked with the keys of a JSON web key set (RFC 7517).
//!
//! The key determines the algorithm. A token that names another algorithm, or `none`, is refused.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap, WWW_AUTHENTICATE};
use nearstate_model::Error;
use nearstate_node::clock::Clock;
use nearstate_node::executor::timeout;
use serde_json::Value;
use tokio::sync::watch;

use crate::fetch_state::FetchState;
use crate::grant::Grant;
use crate::json_web_key::{NamedKey, TokenKeySet};
use crate::problem::Problem;

/// The longest token, in bytes. A longer one is refused before it is decoded.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// The keys that tokens may be signed with, and the audiences that tokens may be for. Cheap to
/// clone: clones share the keys.
#[derive(Clone)]
pub struct TokenKeys(Arc<SharedKeys>);

struct SharedKeys {
    audiences: Vec<String>,
    /// `None`: not fetched yet, or too old.
    current: RwLock<Option<Arc<TokenKeySet>>>,
    /// Changes with `current`, while its lock is held. A grant of another number is verified again.
    generation: AtomicU64,
    /// The fetches that ended, and those that requests wanted. `None`: keys of a file.
    source: Option<FetchState>,
}

/// A request waits this long for keys that are being fetched.
const FETCH_WAIT_MAX: Duration = Duration::from_secs(2);

/// Why a token was refused.
enum TokenRefusal {
    Invalid(&'static str),
    /// No key has the id that the token names.
    UnknownKey,
    /// No keys have been fetched.
    NoKeys,
}

impl From<&'static str> for TokenRefusal {
    fn from(why: &'static str) -> Self {
        Self::Invalid(why)
    }
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKeys").field("audiences", &self.0.audiences).finish_non_exhaustive()
    }
}

impl TokenKeys {
    /// Reads a file with a JSON web key set.
    ///
    /// # Errors
    /// `BadArgument`: a file that cannot be read or has no valid keys.
    pub fn read(path: &Path, audiences: Vec<String>) -> nearstate_model::Result<Self> {
        let refused =
            |why: String| Error::BadArgument { detail: format!("{}: {why}", path.display()) };
        let text =
            std::fs::read(path).map_err(|error| refused(format!("cannot be read: {error}")))?;
        Self::parse(&text, audiences).map_err(refused)
    }

    /// Parses a key set. Audiences are the type of the network function (`UDSF`) and the ids of its
    /// instance; without any, the audience of tokens is not checked.
    ///
    /// # Errors
    /// Why it is no key set.
    pub fn parse(text: &[u8], audiences: Vec<String>) -> Result<Self, String> {
        let current = RwLock::new(Some(Arc::new(TokenKeySet::parse(text)?)));
        Ok(Self(Arc::new(SharedKeys {
            audiences,
            current,
            generation: AtomicU64::new(0),
            source: None,
        })))
    }

    /// Keys that are fetched. There are none yet.
    pub(crate) fn fetched(audiences: Vec<String>, interval_min: Duration) -> Self {
        let source = FetchState {
            ended: watch::Sender::new(0),
            wanted: watch::Sender::new(0),
            clock: Clock::new(),
            ended_at: AtomicU64::new(0),
            interval_min,
        };
        let current = RwLock::new(None);
        let generation = AtomicU64::new(0);
        Self(Arc::new(SharedKeys { audiences, current, generation, source: Some(source) }))
    }

    /// The number of the keys in force, which is another one after each fetch.
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Relaxed)
    }

    /// Changes when a request wants keys that the set does not have.
    pub(crate) fn wanted(&self) -> watch::Receiver<u64> {
        let source = self.0.source.as_ref();
        source.map_or_else(|| watch::channel(0).1, |source| source.wanted.subscribe())
    }

    /// A fetch has ended. `None`: it failed, and the keys stay unless they are too old.
    pub(crate) fn finish_fetch(&self, keys: Option<TokenKeySet>, is_old: bool) {
        {
            let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
            let keys = keys.map(Arc::new);
            if keys.is_some() || is_old {
                *current = keys;
                self.0.generation.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(source) = &self.0.source {
            source.ended_at.store(source.now(), Ordering::Relaxed);
            source.ended.send_modify(|count| *count += 1);
        }
    }

    /// Asks for a fetch and waits for its end, but not for long. False: nothing was fetched.
    async fn refresh(&self) -> bool {
        let Some(source) = &self.0.source else { return false };
        let mut ended = source.ended.subscribe();
        ended.borrow_and_update();
        source.wanted.send_modify(|count| *count += 1);
        let ended_at = source.ended_at.load(Ordering::Relaxed);
        let since = Duration::from_nanos(source.now().saturating_sub(ended_at));
        if ended_at > 0 && since < source.interval_min {
            // The fetch comes later, and this request does not wait for it.
            return false;
        }
        let waited = timeout(FETCH_WAIT_MAX, ended.changed()).await;
        waited.is_some_and(|changed| changed.is_ok())
    }

    /// Verifies the token of a request. A token of an unknown key waits for the keys that are
    /// fetched because of it.
    ///
    /// # Errors
    /// 401 with `WWW-Authenticate`; 503: there are no keys.
    pub(crate) async fn verify(&self, headers: &HeaderMap, now_ms: u64) -> Result<Grant, Problem> {
        let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, token)) = value.and_then(|value| value.trim().split_once(' ')) else {
            let detail = "the request has no access token: get one from the NRF";
            return Err(unauthorized(detail, "Bearer"));
        };
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(unauthorized("the access token must be of type Bearer", "Bearer"));
        }
        let (token, now) = (token.trim(), now_ms / 1000);
        let mut decoded = self.decode(token, now);
        if matches!(decoded, Err(TokenRefusal::UnknownKey | TokenRefusal::NoKeys))
            && self.refresh().await
        {
            decoded = self.decode(token, now);
        }
        decoded.map_err(|refusal| {
            let why = match refusal {
                TokenRefusal::Invalid(why) => why,
                TokenRefusal::UnknownKey => "no key has the id that it names",
                TokenRefusal::NoKeys => {
                    return Problem::busy("the keys of access tokens could not be fetched");
                }
            };
            let detail = format!("the access token is invalid: {why}");
            unauthorized(detail, "Bearer error=\"invalid_token\"")
        })
    }

    fn decode(&self, token: &str, now: u64) -> Result<Grant, TokenRefusal> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err("it is too long".into());
        }
        let (signed, signature) = token.rsplit_once('.').ok_or("it has no signature")?;
        let (header, claims) = signed.split_once('.').ok_or("it has no claims")?;
        let header = decode_json(header).ok_or("its header is no JSON")?;
        let signature =
            URL_SAFE_NO_PAD.decode(signature).map_err(|_| "its signature is no base64url")?;
        if header.get("crit").is_some() {
            return Err("it requires an extension".into());
        }
        let algorithm = header.get("alg").and_then(Value::as_str).unwrap_or_default();
        let id = header.get("kid").and_then(Value::as_str);
        let (keys, generation) = {
            let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner);
            // The lock orders it: it is that of these keys.
            (current.clone(), self.generation())
        };
        let Some(TokenKeySet(keys)) = keys.as_deref() else { return Err(TokenRefusal::NoKeys) };
        // A key without an id may be the one that the token names.
        let is_candidate =
            |key: &&NamedKey| id.is_none() || key.id.is_none() || key.id.as_deref() == id;
        let mut candidates = keys.iter().filter(is_candidate);
        if !candidates.any(|key| key.verifies(algorithm, signed.as_bytes(), &signature)) {
            let is_known = id.is_none() || keys.iter().any(|key| key.id.as_deref() == id);
            let refusal = TokenRefusal::Invalid("no key verifies its signature");
            return Err(if is_known { refusal } else { TokenRefusal::UnknownKey });
        }
        let claims = decode_json(claims).ok_or("its claims are no JSON")?;
        Ok(self.grant(&claims, (now, generation))?)
    }

    fn grant(&self, claims: &Value, (now, generation): (u64, u64)) -> Result<Grant, &'static str> {
        let time = |name: &str| claims.get(name).map(Value::as_u64);
        let Some(Some(expires)) = time("exp") else { return Err("it has no time of expiry") };
        if expires <= now {
            return Err("it has expired");
        }
        if time("nbf").is_some_and(|begin| begin.is_none_or(|begin| begin > now)) {
            return Err("it is not valid yet");
        }
        let is_ours = |value: &Value| {
            value.as_str().is_some_and(|name| self.0.audiences.iter().any(|known| known == name))
        };
        let is_for_us = match claims.get("aud") {
            _ if self.0.audiences.is_empty() => true,
            Some(Value::Array(all)) => all.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        if !is_for_us {
            return Err("it is for another audience");
        }
        let scopes = claims.get("scope").and_then(Value::as_str).unwrap_or_default();
        let scopes = scopes.split(' ').filter(|scope| !scope.is_empty()).map(str::to_owned);
        Ok(Grant { expires, generation, scopes: scopes.collect() })
    }
}

fn unauthorized(detail: impl Into<String>, challenge: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "ACCESS_TOKEN_INVALID", detail)
        .with_header(WWW_AUTHENTICATE, challenge)
}

fn decode_json(part: &str) -> Option<Value> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&bytes).ok().filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ring::hmac;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    const NOW_MS: u64 = 1_000_000;
    const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";

    fn encode(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn secret_keys() -> Value {
        json!({"keys": [{"kty": "oct", "kid": "1", "k": encode(SECRET)}]})
    }

    fn keys(set: &Value) -> TokenKeys {
        TokenKeys::parse(set.to_string().as_bytes(), vec!["UDSF".to_owned()]).unwrap()
    }

    fn claims() -> Value {
        json!({"exp": 2000, "aud": "UDSF", "scope": "nudsf-dr other"})
    }

    fn signed(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        format!("{signed}.{}", encode(sign(signed.as_bytes())))
    }

    fn mac(bytes: &[u8]) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        hmac::sign(&key, bytes).as_ref().to_vec()
    }

    fn verify(keys: &TokenKeys, token: &str) -> Result<Grant, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        verify_headers(keys, &headers)
    }

    fn verify_headers(keys: &TokenKeys, headers: &HeaderMap) -> Result<Grant, Problem> {
        let mut verified = std::pin::pin!(keys.verify(headers, NOW_MS));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(done) = verified.as_mut().poll(&mut cx) else {
            unreachable!("keys of a file need no wait")
        };
        done
    }

    #[test]
    fn tokens_of_each_kind_of_key_are_verified_with_its_algorithm_only() {
        let random = SystemRandom::new();
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random)
                .unwrap();
        let ed =
            Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref())
                .unwrap();
        let point = ec.public_key().as_ref();
        let keys = keys(&json!({"keys": [
            {"kty": "EC", "crv": "P-256", "x": encode(&point[1..33]), "y": encode(&point[33..])},
            {"kty": "OKP", "crv": "Ed25519", "x": encode(ed.public_key().as_ref())},
            secret_keys()["keys"][0],
        ]}));
        let sign_ec = |bytes: &[u8]| ec.sign(&random, bytes).unwrap().as_ref().to_vec();
        let edwards = |bytes: &[u8]| ed.sign(bytes).as_ref().to_vec();
        let header = |algorithm: &str| json!({"alg": algorithm});
        for token in [
            signed(&header("ES256"), &claims(), sign_ec),
            signed(&header("EdDSA"), &claims(), edwards),
            signed(&header("HS256"), &claims(), mac),
        ] {
            assert!(verify(&keys, &token).is_ok(), "{token}");
        }
        for token in [
            signed(&header("EdDSA"), &claims(), sign_ec),
            signed(&header("none"), &claims(), |_| Vec::new()),
            signed(&header("HS256"), &claims(), |_| Vec::new()),
            // The public key as the secret of a MAC.
            signed(&header("HS256"), &claims(), |bytes| {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, point), bytes).as_ref().to_vec()
            }),
            signed(&json!({"alg": "HS256", "kid": "2"}), &claims(), mac),
            signed(&json!({"alg": "HS256", "crit": ["x"]}), &claims(), mac),
            signed(&header("HS256"), &claims(), mac).replacen('.', ".e30", 1),
        ] {
            let problem = verify(&keys, &token).unwrap_err();
            assert_eq!(problem.status.as_u16(), 401, "{token}");
            assert!(problem.header.unwrap().1.contains("invalid_token"));
        }
    }

    /// A token that OpenSSL has signed with this RSA key of 2048 bits.
    const RSA_MODULUS: &str = "\
        88M6FokGceO8tQ46y2rhZ2ML-1VbhA1a96pMgC4qNIvZ3zrJ1n6OUfGw11QGcJNd0k508GhuGbhh-fm4Pyfd\
        N8TcHjCXefTBkS-DSEttbL6PG5U_FGdxQtvBdphmWom2gPNFM27pH-EDc8_X6KZ4iuQ4HKxv4jUq8fcRdzj5\
        0Vh_ujXRrhgl-I5Am7jFzC5GHJyp2wVlbQiAUCyTgPFzvbXWLycennB-6PfM2yJeL_7bhg0f2l85f4v4l4m2\
        xEEMo4PkF487wlN7bey5M5hHgRtK_HetLw3Jn-acCcT73q5Mqyc6WTnprIRrZwBCVTUsbE0GlAB8AX78KoQD\
        UIbZrw";
    const RSA_TOKEN: &str = "\
        eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJleHAiOjIwMDAsImF1ZCI6IlVEU0YiLCJzY29wZSI6Im5\
        1ZHNmLWRyIn0.boZ2-7d6cNd0a92Ole-8jKSGM16XtNDrg4gqnv4Zyv_Ug6aH4tHsdHzizuXx28TWfsZvoSC\
        gd-GYTLuSjzRb-vFujGZBuJKzDNvBzrQuyPeukdr7GjhR4Aq4pITRfSakPXm3m8WSNG1zFkPX4U8GmlksYaN\
        II989jDPdSwxETXxaGgebiDQjhlVivyam-8fepogHIlQUdw1vNNXyXgrf-j6FsmokelT37Al3giONPpR-fYl\
        IPLE0bGZfU9Q6hjKV6kCZxpnKWm1Sw9kMphzf0qzpNwoFHo9FikAuZQXGGGPRDf5GTua1B9y0tysmAGGC-Cd\
        bHu1pH4aKy3qGcGsEHA";

    #[test]
    fn a_token_of_another_implementation_is_verified_with_its_rsa_key() {
        let key = json!({"kty": "RSA", "kid": "rsa", "n": RSA_MODULUS, "e": "AQAB"});
        let keys = keys(&json!({"keys": [key]}));
        assert!(verify(&keys, RSA_TOKEN).is_ok());
        let (signed, _) = RSA_TOKEN.rsplit_once('.').unwrap();
        assert!(verify(&keys, &format!("{signed}.{}", encode([1; 256]))).is_err());
    }

    #[test]
    fn claims_limit_time_audience_and_operations() {
        let keys = keys(&secret_keys());
        let with = |name: &str, value: Value| {
            let mut changed = claims();
            changed[name] = value;
            verify(&keys, &signed(&json!({"alg": "HS256"}), &changed, mac))
        };
        for (name, value) in [
            ("exp", json!(1000)),
            ("exp", json!("2000")),
            ("exp", Value::Null),
            ("nbf", json!(1001)),
            ("nbf", json!("x")),
            ("aud", json!("AMF")),
            ("aud", json!(["AMF"])),
            ("aud", Value::Null),
        ] {
            assert!(with(name, value.clone()).is_err(), "{name} {value}");
        }
        assert!(with("aud", json!(["AMF", "UDSF"])).is_ok());
        let grant = with("nbf", json!(1000)).unwrap();
        assert!(grant.is_current(0, 1_999_999) && !grant.is_current(0, 2_000_000));
        assert!(!grant.is_current(1, 1_999_999));
        for (scope, read, modify) in [
            ("nudsf-dr", true, true),
            ("nudsf-dr nudsf-dr:record:read", true, false),
            ("nudsf-dr:record:read", false, false),
            ("nudsf-drx", false, false),
            ("", false, false),
        ] {
            let grant = with("scope", json!(scope)).unwrap();
            assert_eq!(grant.check("nudsf-dr:record:read").is_ok(), read, "{scope}");
            assert_eq!(grant.check("nudsf-dr:record:modify").is_ok(), modify, "{scope}");
        }
        let problem = with("scope", json!("")).unwrap().check("nudsf-dr:block:read").unwrap_err();
        assert_eq!(problem.status.as_u16(), 403);
    }

    #[test]
    fn a_request_without_a_bearer_token_gets_a_challenge() {
        let keys = keys(&secret_keys());
        for value in ["", "Basic abc", "Bearer", "x"] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            let problem = verify_headers(&keys, &headers).unwrap_err();
            assert_eq!(problem.status.as_u16(), 401, "{value}");
            assert_eq!(*problem.header.unwrap(), (WWW_AUTHENTICATE, "Bearer".to_owned()));
        }
    }

    #[test]
    fn keys_that_cannot_be_used_are_ignored() {
        let secret = &secret_keys()["keys"][0];
        let with = |name: &str, value: Value| {
            let mut changed = secret.clone();
            changed[name] = value;
            changed
        };
        let token = signed(&json!({"alg": "HS256", "kid": "1"}), &claims(), mac);
        let is_valid = |key: Value| {
            // RFC 7517, section 5: the first two are ignored.
            let set = json!({"keys": [
                {"kty": "X", "kid": "1"}, {"kty": "RSA", "n": "YQ", "e": "AQAB"}, key,
                {"kty": "oct", "kid": "other", "k": encode([7; 32])},
            ]});
            verify(&keys(&set), &token).is_ok()
        };
        for key in [
            secret.clone(),
            with("use", json!("sig")),
            with("key_ops", json!(["sign", "verify"])),
            with("alg", json!("HS256")),
            // One without an id may be the one that the token names.
            json!({"kty": "oct", "k": encode(SECRET)}),
        ] {
            assert!(is_valid(key.clone()), "{key}");
        }
        for key in [
            with("use", json!("enc")),
            with("use", json!(1)),
            with("key_ops", json!(["encrypt"])),
            with("key_ops", json!("verify")),
            with("alg", json!("HS384")),
            with("kid", json!("2")),
            with("k", json!(encode([8; 32]))),
        ] {
            assert!(!is_valid(key.clone()), "{key}");
        }
    }

    proptest! {
        #[test]
        fn no_other_token_is_valid(token in "[A-Za-z0-9_.-]{0,80}") {
            prop_assert!(verify(&keys(&secret_keys()), &token).is_err());
        }

        #[test]
        fn a_changed_character_makes_a_token_invalid(at in 0_usize..120, to in "[A-Za-z0-9_-]") {
            let token = signed(&json!({"alg": "HS256"}), &claims(), mac);
            let mut changed = token.clone();
            let at = at % token.len();
            changed.replace_range(at..=at, &to);
            // The last character has bits that no byte has.
            if changed != token && at + 1 < token.len() {
                prop_assert!(verify(&keys(&secret_keys()), &changed).is_err(), "{changed}");
            }
        }
    }
}
