//! Registration with an NRF (TS 29.510, `Nnrf_NFManagement`): the profile of the data repository,
//! and what to send when. Pure: [`crate::nrf`] sends and waits.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hyper::{Method, StatusCode};
use nearstate_model::{Error, Result};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::meta::is_uuid;
use crate::settings::StorageSpec;

/// The services of the node, each with its version in URIs and its full version.
const SERVICES: [(&str, &str, &str); 2] =
    [("nudsf-dr", "v1", "1.3.0"), ("nudsf-timer", "v1", "1.2.0")];

/// The first wait after a failed request. It doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The longest wait after a failed request.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The interval of heart-beats that the profile asks for. The NRF answers with its own.
const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(10);

/// The longest interval of heart-beats that the node accepts.
const HEARTBEAT_MAX: Duration = Duration::from_secs(3600);

/// What the NRF is told about the node.
#[derive(Clone, Debug, Default)]
pub struct NrfProfile {
    /// The id of the instance: a UUID, the same after each start.
    pub instance: String,
    /// The identity of the group of UDSF instances.
    pub group: Option<String>,
    /// Ranges of SUPIs whose state the node keeps, each `FIRST-LAST` in digits. None: all.
    pub supi_ranges: Vec<String>,
    /// The addresses of the service, each with true for TLS.
    pub endpoints: Vec<(SocketAddr, bool)>,
}

/// The id of one of several instances of a node, which has this id: a UUID of version 4 that is the
/// same each time. An NRF has one profile for each id, which a second one replaces.
pub fn instance_of_part(instance: &str, part: &str) -> String {
    let text = format!("{}/{part}", instance.to_ascii_lowercase());
    let hash = xxh3_128(text.as_bytes());
    let version = hash & !(0xf << 76) | 4 << 76;
    let hex = format!("{:032x}", version & !(0b11 << 62) | 0b10 << 62);
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32];
    groups.map(|group| hex.get(group).unwrap_or_default().to_owned()).join("-")
}

impl NrfProfile {
    /// Checks the profile.
    ///
    /// # Errors
    /// `BadArgument`: an id that is no UUID, an invalid range, or no address that clients can use.
    pub fn validate(&self) -> Result<()> {
        let refused = |detail: String| Err(Error::BadArgument { detail });
        if !is_uuid(&self.instance) {
            return refused(format!("the NF instance id {:?} is no UUID", self.instance));
        }
        if let Some(range) = self.supi_ranges.iter().find(|range| split_range(range).is_none()) {
            return refused(format!("the SUPI range {range:?} is not FIRST-LAST in digits"));
        }
        let is_reachable = |(address, _): &(SocketAddr, bool)| {
            !address.ip().is_unspecified() && address.port() != 0
        };
        if !self.endpoints.iter().any(is_reachable) {
            let detail = "the NRF needs an address of the service, not 0.0.0.0 or port 0";
            return refused(detail.to_owned());
        }
        Ok(())
    }

    /// The `NFProfile`.
    fn to_json(&self, storages: &[StorageSpec]) -> Value {
        let mut ranges: Map<String, Value> = Map::new();
        for spec in storages {
            let range = json!({"pattern": format!("^{}$", escape_pattern(&spec.storage))});
            let of_realm = ranges.entry(&spec.realm).or_insert_with(|| json!([]));
            if let Some(of_realm) = of_realm.as_array_mut() {
                of_realm.push(range);
            }
        }
        let mut info = Map::from_iter([("storageIdRanges".to_owned(), Value::Object(ranges))]);
        if let Some(group) = &self.group {
            info.insert("groupId".to_owned(), json!(group));
        }
        let supis: Vec<Value> = self
            .supi_ranges
            .iter()
            .filter_map(|range| split_range(range))
            .map(|(start, end)| json!({"start": start, "end": end}))
            .collect();
        if !supis.is_empty() {
            info.insert("supiRanges".to_owned(), Value::Array(supis));
        }
        let (v4, v6): (Vec<_>, Vec<_>) =
            self.endpoints.iter().map(|(address, _)| address.ip()).partition(IpAddr::is_ipv4);
        let mut profile = Map::from_iter(
            [
                ("nfInstanceId", json!(self.instance)),
                ("nfType", json!("UDSF")),
                ("nfStatus", json!("REGISTERED")),
                ("heartBeatTimer", json!(HEARTBEAT_DEFAULT.as_secs())),
                ("udsfInfo", Value::Object(info)),
                ("nfServices", Value::Array(self.services())),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        for (name, addresses) in [("ipv4Addresses", v4), ("ipv6Addresses", v6)] {
            if !addresses.is_empty() {
                profile.insert(name.to_owned(), json!(addresses));
            }
        }
        Value::Object(profile)
    }

    /// Each service once for each kind of address: an instance of a service has one scheme.
    fn services(&self) -> Vec<Value> {
        let mut all = Vec::new();
        for (service, version, full) in SERVICES {
            for (scheme, is_tls) in [("http", false), ("https", true)] {
                let of_scheme = self.endpoints.iter().filter(|(_, tls)| *tls == is_tls);
                let points: Vec<Value> = of_scheme.map(|(address, _)| end_point(address)).collect();
                if points.is_empty() {
                    continue;
                }
                all.push(json!({
                    "serviceInstanceId": format!("{service}-{scheme}"),
                    "serviceName": service,
                    "versions": [{"apiVersionInUri": version, "apiFullVersion": full}],
                    "scheme": scheme,
                    "nfServiceStatus": "REGISTERED",
                    "ipEndPoints": points,
                }));
            }
        }
        all
    }
}

fn end_point(address: &SocketAddr) -> Value {
    let name = if address.is_ipv4() { "ipv4Address" } else { "ipv6Address" };
    json!({name: address.ip(), "transport": "TCP", "port": address.port()})
}

/// Escapes what has a meaning in a regular expression.
fn escape_pattern(text: &str) -> String {
    let mut escaped = String::new();
    for found in text.chars() {
        if ".+*?()|[]{}^$\\".contains(found) {
            escaped.push('\\');
        }
        escaped.push(found);
    }
    escaped
}

fn split_range(range: &str) -> Option<(&str, &str)> {
    let (start, end) = range.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(start) && is_number(end)).then_some((start, end))
}

/// A request to the NRF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NrfRequest {
    Register,
    Heartbeat,
    Deregister,
}

/// The state of the registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    is_registered: bool,
    heartbeat: Duration,
    /// Failed requests in a row.
    failures: u32,
}

impl Default for Registration {
    fn default() -> Self {
        Self { is_registered: false, heartbeat: HEARTBEAT_DEFAULT, failures: 0 }
    }
}

impl Registration {
    /// True if the NRF knows the node, as far as the node knows.
    pub(crate) fn is_registered(&self) -> bool {
        self.is_registered
    }

    /// The next request, and how long to wait before it.
    pub(crate) fn next(&self) -> (Duration, NrfRequest) {
        let retry = match self.failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(before) => RETRY_MIN.saturating_mul(1 << before.min(16)).min(RETRY_MAX),
        };
        match (self.is_registered, self.failures) {
            (false, _) => (retry, NrfRequest::Register),
            (true, 0) => (self.heartbeat, NrfRequest::Heartbeat),
            (true, _) => (retry.min(self.heartbeat), NrfRequest::Heartbeat),
        }
    }

    /// A request has this result: the status and the body of the response, or none.
    pub(crate) fn answered(&mut self, request: NrfRequest, reply: Option<(StatusCode, &[u8])>) {
        let status = reply.map(|(status, _)| status);
        let is_success = status.is_some_and(|status| status.is_success());
        match request {
            NrfRequest::Register => self.is_registered = is_success,
            // The NRF has lost the profile, or has removed it after missing heart-beats.
            NrfRequest::Heartbeat if status == Some(StatusCode::NOT_FOUND) => {
                *self = Self::default();
                return;
            }
            NrfRequest::Heartbeat => {}
            NrfRequest::Deregister => self.is_registered = false,
        }
        if !is_success {
            self.failures = self.failures.saturating_add(1);
            return;
        }
        self.failures = 0;
        let body: Option<Value> = reply.and_then(|(_, body)| serde_json::from_slice(body).ok());
        let seconds = body.as_ref().and_then(|body| body.get("heartBeatTimer")?.as_u64());
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0) {
            self.heartbeat = Duration::from_secs(seconds).min(HEARTBEAT_MAX);
        }
    }
}

/// The method, the path below the root of the NRF, and the body of a request.
pub(crate) fn message(
    request: NrfRequest,
    profile: &NrfProfile,
    storages: &[StorageSpec],
) -> (Method, String, Option<(&'static str, String)>) {
    let path = format!("/nnrf-nfm/v1/nf-instances/{}", profile.instance);
    match request {
        NrfRequest::Register => {
            let body = profile.to_json(storages).to_string();
            (Method::PUT, path, Some(("application/json", body)))
        }
        NrfRequest::Heartbeat => {
            let item = json!([{"op": "replace", "path": "/nfStatus", "value": "REGISTERED"}]);
            (Method::PATCH, path, Some((crate::patch::MEDIA, item.to_string())))
        }
        NrfRequest::Deregister => (Method::DELETE, path, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> NrfProfile {
        NrfProfile {
            instance: "4947a69a-f61b-4bc1-b9da-47c9c5d14b64".to_owned(),
            group: Some("g1".to_owned()),
            supi_ranges: vec!["262010000000000-262019999999999".to_owned()],
            endpoints: vec![
                (([127, 0, 0, 1], 8080).into(), false),
                ("[::1]:8443".parse().unwrap(), true),
            ],
        }
    }

    #[test]
    fn the_profile_names_realms_storages_ranges_and_addresses() {
        let storages = ["R/S.1=a", "R/T=b"].map(|text| StorageSpec::parse(text).unwrap());
        let json = profile().to_json(&storages);
        assert_eq!(json["nfType"], "UDSF");
        assert_eq!(
            json["udsfInfo"],
            json!({
                "groupId": "g1",
                "supiRanges": [{"start": "262010000000000", "end": "262019999999999"}],
                "storageIdRanges": {"R": [{"pattern": "^S\\.1$"}, {"pattern": "^T$"}]},
            })
        );
        assert_eq!(json["ipv4Addresses"], json!(["127.0.0.1"]));
        assert_eq!(json["ipv6Addresses"], json!(["::1"]));
        let services = json["nfServices"].as_array().unwrap();
        let of = |name: &str| -> Vec<&Value> {
            services.iter().filter(|service| service["serviceName"] == name).collect()
        };
        assert_eq!(services.len(), 4);
        for (name, version) in [("nudsf-dr", "1.3.0"), ("nudsf-timer", "1.2.0")] {
            let [plain, tls] = of(name)[..] else { panic!("{services:?}") };
            assert_eq!((&plain["scheme"], &tls["scheme"]), (&json!("http"), &json!("https")));
            assert_eq!(plain["serviceInstanceId"], format!("{name}-http"));
            assert_eq!(plain["versions"][0]["apiFullVersion"], version);
            assert_eq!(plain["ipEndPoints"][0]["port"], 8080);
            assert_eq!(tls["ipEndPoints"][0]["ipv6Address"], "::1");
        }
    }

    #[test]
    fn parts_of_an_instance_have_ids_of_their_own_that_stay() {
        let instance = profile().instance;
        let [amf, smf] = ["amf", "smf"].map(|part| instance_of_part(&instance, part));
        assert_eq!(amf, "0d47d3e9-afd2-4e9f-94be-99b291cf61d8");
        for part in [&amf, &smf] {
            assert!(is_uuid(part) && *part != instance, "{part}");
            assert_eq!((&part[14..15], "89ab".contains(&part[19..20])), ("4", true), "{part}");
        }
        assert_ne!(amf, smf);
        assert_eq!(amf, instance_of_part(&instance.to_ascii_uppercase(), "amf"));
        assert_ne!(amf, instance_of_part("4947a69a-f61b-4bc1-b9da-47c9c5d14b65", "amf"));
    }

    #[test]
    fn an_invalid_profile_is_refused() {
        assert!(profile().validate().is_ok());
        let refused = |change: fn(&mut NrfProfile)| {
            let mut changed = profile();
            change(&mut changed);
            changed.validate().is_err()
        };
        assert!(refused(|profile| profile.instance = "node-1".to_owned()));
        assert!(refused(|profile| profile.supi_ranges = vec!["1".to_owned()]));
        assert!(refused(|profile| profile.supi_ranges = vec!["imsi-1-2".to_owned()]));
        assert!(refused(|profile| profile.endpoints.clear()));
        assert!(refused(|profile| profile.endpoints = vec![(([0, 0, 0, 0], 80).into(), false)]));
    }

    #[test]
    fn the_node_registers_beats_and_registers_again_when_the_nrf_has_lost_it() {
        let mut state = Registration::default();
        assert_eq!(state.next(), (Duration::ZERO, NrfRequest::Register));
        let created = StatusCode::CREATED;
        state.answered(NrfRequest::Register, Some((created, br#"{"heartBeatTimer":3}"#)));
        assert_eq!(state.next(), (Duration::from_secs(3), NrfRequest::Heartbeat));
        state.answered(NrfRequest::Heartbeat, Some((StatusCode::NO_CONTENT, b"")));
        assert_eq!(state.next(), (Duration::from_secs(3), NrfRequest::Heartbeat));
        state.answered(NrfRequest::Heartbeat, Some((StatusCode::NOT_FOUND, b"{}")));
        assert!(!state.is_registered());
        assert_eq!(state.next(), (Duration::ZERO, NrfRequest::Register));
    }

    #[test]
    fn failed_requests_are_repeated_with_growing_waits() {
        let mut state = Registration::default();
        let mut waits = Vec::new();
        for _ in 0..9 {
            state.answered(NrfRequest::Register, None);
            waits.push(state.next().0.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        state.answered(NrfRequest::Register, Some((StatusCode::OK, b"not JSON")));
        assert_eq!(state.next(), (HEARTBEAT_DEFAULT, NrfRequest::Heartbeat));
        // A heart-beat that fails comes again soon, and the registration stays.
        state.answered(NrfRequest::Heartbeat, Some((StatusCode::SERVICE_UNAVAILABLE, b"")));
        assert_eq!(state.next(), (RETRY_MIN, NrfRequest::Heartbeat));
        assert!(state.is_registered());
    }
}
