//! The data repository (Nudsf) of the node: its protocols, its endpoints, its TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use nearstate_model::{Error, Result};
use nearstate_node::{ClientTls, Endpoint, ListenAddress, Protocol, Tls};
use nearstate_nudsf::{
    FeatureSet, KeySource, KeySourceSettings, NOTIFIER_PATTERN, NotifierEvent, NotifierLog,
    NotifySettings, NrfClient, NrfEvent, NrfProfile, NrfSettings, NudsfMetrics, NudsfProtocol,
    NudsfSettings, StorageSpec, TokenKeys, instance_of_part, leave_out_notifier,
};
use nearstate_store::{NamespaceRules, ReplicationPolicy};

use crate::cluster::file::{ClusterFile, FilePartition};
use crate::log;
use crate::serve::access_control;
use crate::settings::Settings;

/// The TLS configurations of the node: RESP clients negotiate no protocol.
pub(super) struct ServerTls {
    pub(super) resp: Tls,
    pub(super) nudsf: Tls,
}

impl ServerTls {
    pub(super) fn new(tls: Tls) -> Self {
        Self { nudsf: tls.with_alpn(NudsfProtocol::ALPN), resp: tls }
    }

    /// Replaces the certificates.
    pub(super) fn renew(&self, read: &Tls) {
        self.resp.renew(read);
        self.nudsf.renew(read);
    }
}

/// The data repository before the node starts.
pub(super) struct NudsfParts {
    /// The protocols without and with TLS.
    pub(super) protocols: [Arc<dyn Protocol>; 2],
    /// Fetches the keys of access tokens until it is dropped.
    pub(super) keys: Option<KeySource>,
}

/// The authorities of servers of the control plane.
fn control_tls(settings: &Settings) -> Result<Option<ClientTls>> {
    let Some(path) = &settings.nudsf_control_ca else { return Ok(None) };
    let tls = ClientTls::read(path, None)?;
    access_control::check_mode(path, false)?;
    Ok(Some(tls))
}

/// The keys of access tokens, and what fetches them.
fn tokens(settings: &Settings) -> Result<(Option<Arc<TokenKeys>>, Option<KeySource>)> {
    let audiences = settings.nudsf_token_audiences.clone();
    match (&settings.nudsf_token_keys, &settings.nudsf_token_keys_url) {
        (None, None) => Ok((None, None)),
        (Some(path), None) => {
            let keys = TokenKeys::read(path, audiences)?;
            access_control::check_mode(path, true)?;
            Ok((Some(Arc::new(keys)), None))
        }
        (None, Some(url)) => {
            let tls = control_tls(settings)?;
            let on_fetch = |done: std::result::Result<usize, &str>| match done {
                Ok(keys) => log::emit(log::TOKEN_KEYS_FETCHED, &[("keys", &keys)]),
                Err(reason) => log::emit(log::TOKEN_KEYS_FAILED, &[("reason", &reason)]),
            };
            let source = KeySourceSettings {
                tls,
                on_fetch: Arc::new(on_fetch),
                ..KeySourceSettings::new(url)
            };
            let (keys, source) = KeySource::start(source, audiences)?;
            Ok((Some(Arc::new(keys)), Some(source)))
        }
        (Some(_), Some(_)) => {
            let detail = "nudsf.token_keys and nudsf.token_keys_url are both set: unset one";
            Err(Error::BadArgument { detail: detail.to_owned() })
        }
    }
}

/// Checks that addresses have storages.
///
/// # Errors
/// `BadArgument`.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let has_address = !settings.nudsf.is_empty() || !settings.nudsf_tls.is_empty();
    if has_address && settings.nudsf_storages.0.is_empty() {
        let detail = "nudsf.listen and nudsf.tls_listen require storages: set nudsf.storages, for \
                      example to Realm01/Storage01=ue";
        return Err(Error::BadArgument { detail: detail.to_owned() });
    }
    Ok(())
}

/// The rules by which namespaces are replicated, with one for those of the notifier if these rules
/// replicate a storage without them.
///
/// # Errors
/// As [`NamespaceRules::new`].
pub(super) fn replicated(settings: &Settings, rules: &NamespaceRules) -> Result<NamespaceRules> {
    if leave_out_notifier(rules, &settings.nudsf_storages.0) {
        rules.preceded_by(ReplicationPolicy::Async, NOTIFIER_PATTERN)
    } else {
        Ok(rules.clone())
    }
}

/// The same, for the patterns of the namespaces that followers get.
///
/// # Errors
/// As [`NamespaceRules::new`].
pub(super) fn followed(patterns: &[String], storages: &[StorageSpec]) -> Result<Vec<String>> {
    let mut patterns = patterns.to_vec();
    let all = patterns.iter().map(|pattern| (ReplicationPolicy::Async, pattern.clone()));
    if leave_out_notifier(&NamespaceRules::new(all)?, storages) {
        patterns.push(NOTIFIER_PATTERN.to_owned());
    }
    Ok(patterns)
}

fn notifier_log() -> NotifierLog {
    let on_event = |event: &NotifierEvent| match event {
        NotifierEvent::SetAside { storage, key, reason } => {
            log::emit(
                log::NUDSF_SET_ASIDE,
                &[("storage", storage), ("key", key), ("reason", reason)],
            );
        }
        NotifierEvent::Failed { reason } => {
            log::emit(log::NUDSF_NOTIFIER_FAILED, &[("reason", reason)]);
        }
    };
    NotifierLog(Some(Arc::new(on_event)))
}

/// The protocols, and the source of keys.
///
/// # Errors
/// `BadArgument`: addresses without storages, or settings that contradict each other.
pub(super) fn parts(settings: &Settings, metrics: &Arc<NudsfMetrics>) -> Result<NudsfParts> {
    check(settings)?;
    let storages = settings.nudsf_storages.0.clone();
    let (tokens, keys) = tokens(settings)?;
    let tls = settings.nudsf_notify_ca.as_deref();
    let tls = tls.map(|authorities| ClientTls::read(authorities, None)).transpose()?;
    let given = settings.nudsf_supported_features.as_deref().unwrap_or_default();
    let Some(features) = FeatureSet::parse(given) else {
        let detail = format!(
            "nudsf.supported_features {given:?} is no bitmask: write hexadecimal digits, such as 1F"
        );
        return Err(Error::BadArgument { detail });
    };
    let mut lock = settings.region.path.clone().into_os_string();
    lock.push(".nudsf");
    let nudsf = NudsfSettings {
        storages,
        api_root: settings.nudsf_api_root.clone(),
        tokens,
        notify: NotifySettings {
            lock: Some(lock.into()),
            tls,
            root: own_root(settings),
            log: notifier_log(),
            ..NotifySettings::default()
        },
        overload_delay: settings.nudsf_overload_delay.0,
        features,
        ..NudsfSettings::default()
    };
    let protocol = NudsfProtocol::new(Arc::new(nudsf), Arc::clone(metrics))?;
    let over_tls = protocol.over_tls();
    Ok(NudsfParts { protocols: [Arc::new(protocol), Arc::new(over_tls)], keys })
}

/// The first address that clients of the data repository are told, or that they can connect to.
fn own_root(settings: &Settings) -> Option<String> {
    let is_whole = |address: &&SocketAddr| !address.ip().is_unspecified() && address.port() != 0;
    let lists = [
        ("http", &settings.nudsf_announce),
        ("https", &settings.nudsf_announce_tls),
        ("http", &settings.nudsf),
        ("https", &settings.nudsf_tls),
    ];
    let roots = lists.into_iter().filter_map(|(scheme, list)| {
        list.iter().find(is_whole).map(|address| format!("{scheme}://{address}"))
    });
    roots.into_iter().next()
}

/// The id for the NRF of the node of a partition, if the cluster serves the data repository of
/// others too: a host that owns several registers each, and removes each by itself.
pub(super) fn partition_instance(
    instance: &str,
    file: &ClusterFile,
    partition: &FilePartition,
) -> Option<String> {
    let is_served = |one: &&FilePartition| one.ports.nudsf.or(one.ports.nudsf_tls).is_some();
    let served = file.partitions.iter().filter(is_served).count();
    (served > 1).then(|| instance_of_part(instance, &partition.name))
}

/// Registers the node with the NRF, if one is set. Dropping the client removes the registration.
///
/// # Errors
/// `BadArgument`: an invalid URI or profile.
pub(super) fn register(settings: &Settings) -> Result<Option<NrfClient>> {
    let Some(uri) = &settings.nudsf_nrf else { return Ok(None) };
    let Some(instance) = &settings.nudsf_nf_instance else {
        let detail = "nudsf.nrf requires nudsf.nf_instance: set it to a UUID of this node";
        return Err(Error::BadArgument { detail: detail.to_owned() });
    };
    let announced = |announced: &[SocketAddr], listened: &[SocketAddr], is_tls: bool| {
        let used = if announced.is_empty() { listened } else { announced };
        used.iter().map(|address| (*address, is_tls)).collect::<Vec<_>>()
    };
    let mut endpoints = announced(&settings.nudsf_announce, &settings.nudsf, false);
    endpoints.extend(announced(&settings.nudsf_announce_tls, &settings.nudsf_tls, true));
    let profile = NrfProfile {
        instance: instance.clone(),
        group: settings.nudsf_nf_group.clone(),
        supi_ranges: settings.nudsf_supi_ranges.clone(),
        endpoints,
    };
    let on_event = |event: &NrfEvent| match event {
        NrfEvent::Registered => log::emit(log::NRF_REGISTERED, &[]),
        NrfEvent::Deregistered => log::emit(log::NRF_DEREGISTERED, &[]),
        NrfEvent::Failed(reason) => log::emit(log::NRF_FAILED, &[("reason", reason)]),
    };
    NrfClient::start(NrfSettings {
        uri: uri.clone(),
        tls: control_tls(settings)?,
        profile,
        storages: settings.nudsf_storages.0.clone(),
        on_event: Arc::new(on_event),
    })
    .map(Some)
}

/// The endpoints.
pub(super) fn endpoints(settings: &Settings, tls: Option<&ServerTls>) -> Vec<Endpoint> {
    let plain = settings.nudsf.iter().map(|address| (address, NudsfProtocol::NAME, None));
    let tls = tls.map(|tls| tls.nudsf.clone());
    // Without TLS files the node has not started: these addresses never serve plain text.
    let over_tls = settings.nudsf_tls.iter().filter(|_| tls.is_some());
    let over_tls = over_tls.map(|address| (address, NudsfProtocol::TLS_NAME, tls.clone()));
    let endpoint = |(address, protocol, tls): (&_, &str, _)| Endpoint {
        protocol: protocol.to_owned(),
        address: ListenAddress::Tcp(*address),
        tls,
    };
    plain.chain(over_tls).map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_get_the_namespaces_of_the_notifier_with_those_of_a_storage() {
        let storages = [StorageSpec::parse("Realm01/Storage01=ue").unwrap()];
        let with = |pattern: &str, storages: &[StorageSpec]| {
            followed(&[pattern.to_owned()], storages).unwrap()
        };
        assert_eq!(with("ue*", &storages), ["ue*", NOTIFIER_PATTERN]);
        for pattern in ["*", "x*"] {
            assert_eq!(with(pattern, &storages), [pattern]);
        }
        assert_eq!(with("ue*", &[]), ["ue*"]);
    }

    #[test]
    fn each_partition_of_several_has_an_instance_of_its_own() {
        const ID: &str = "4947a69a-f61b-4bc1-b9da-47c9c5d14b64";
        let host = |id: u8, name: &str| {
            format!(
                "[[host]]\nid = {id}\nname = \"{name}\"\npeer = \"127.0.0.{id}:1\"\n\
                 membership = \"127.0.0.{id}:2\"\n"
            )
        };
        let partition = |id: u16, name: &str, more: &str| {
            let port = 1000 + id;
            format!(
                "[[partition]]\nid = {id}\nname = \"{name}\"\ngroup = [\"a\", \"b\", \"c\"]\n\
                 port = {port}\n{more}\n"
            )
        };
        let hosts: String =
            [(1, "a"), (2, "b"), (3, "c")].map(|(id, name)| host(id, name)).concat();
        let file = |partitions: &[String]| {
            let head = "[cluster]\nname = \"east\"\ncopies = 3\n";
            let text = format!("{head}{hosts}{}", partitions.concat());
            ClusterFile::parse(&text).unwrap()
        };
        let ids = |file: &ClusterFile| -> Vec<Option<String>> {
            file.partitions.iter().map(|one| partition_instance(ID, file, one)).collect()
        };
        let amf = partition(1, "amf", "nudsf_port = 2000");
        let alone = file(&[amf.clone(), partition(2, "plain", "")]);
        assert_eq!(ids(&alone), [None, None]);
        let both = file(&[amf, partition(2, "smf", "nudsf_tls_port = 2001")]);
        assert_eq!(ids(&both), ["amf", "smf"].map(|name| Some(instance_of_part(ID, name))));
    }
}
