//! The section `[etcd]` of the cluster file.

use std::path::PathBuf;

use nearstate_membership::{EtcdEndpoint, EtcdSettings, EtcdUser};
use nearstate_model::Result;
use nearstate_node::ClientTls;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEtcd {
    endpoints: Vec<String>,
    ca: Option<PathBuf>,
    certificate: Option<String>,
    key: Option<String>,
    user: Option<String>,
    password_file: Option<String>,
    compact: Option<bool>,
}

/// The section of etcd, checked.
#[derive(Debug)]
pub(super) struct EtcdFile {
    endpoints: Vec<EtcdEndpoint>,
    ca: Option<PathBuf>,
    /// Certificate and key of a host, with `{host}`.
    own: Option<(String, String)>,
    /// A user, and the file with its password, with `{host}`.
    user: Option<(String, String)>,
    /// Etcd is told to forget old history.
    compacts: bool,
}

impl EtcdFile {
    /// The section that belongs to the engine, or `None` if the engine is the embedded one.
    pub(super) fn of(
        engine: &str,
        raw: Option<RawEtcd>,
    ) -> std::result::Result<Option<Self>, String> {
        let raw = match (engine, raw) {
            ("raft", None) => return Ok(None),
            ("raft", Some(_)) => {
                return Err("[etcd] is set, and cluster.engine is \"raft\"".to_owned());
            }
            ("etcd", Some(raw)) => raw,
            ("etcd", None) => {
                return Err("cluster.engine = \"etcd\" requires [etcd] with endpoints".to_owned());
            }
            _ => return Err(format!("unknown engine {engine:?}: expected \"raft\" or \"etcd\"")),
        };
        let endpoints = raw.endpoints.iter().map(|text| EtcdEndpoint::parse(text));
        let endpoints: Result<Vec<_>> = endpoints.collect();
        let endpoints = endpoints.map_err(|error| error.to_string())?;
        if endpoints.is_empty() {
            return Err("etcd.endpoints is empty".to_owned());
        }
        let own = match (raw.certificate, raw.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err("etcd.certificate and etcd.key belong together".to_owned());
            }
        };
        let user = match (raw.user, raw.password_file) {
            (Some(user), Some(file)) => Some((user, file)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err("etcd.user and etcd.password_file belong together".to_owned());
            }
        };
        if raw.ca.is_none() && (own.is_some() || endpoints.iter().any(|one| one.is_tls)) {
            return Err("https endpoints and certificates of etcd require etcd.ca".to_owned());
        }
        let compacts = raw.compact.unwrap_or(true);
        Ok(Some(Self { endpoints, ca: raw.ca, own, user, compacts }))
    }

    /// All endpoints, for people.
    pub(super) fn endpoints(&self) -> String {
        self.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// An endpoint without TLS that is not on this machine: whatever reads the network on its way
    /// reads, and may change, what the membership decides.
    pub(super) fn open_endpoint(&self) -> Option<&EtcdEndpoint> {
        let is_here = |host: &str| {
            let address = host.parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|at| at.to_canonical().is_loopback())
        };
        self.endpoints.iter().find(|one| !one.is_tls && !is_here(&one.host))
    }

    /// The endpoints and the certificates of a host, in whose paths `filled` replaces `{host}`.
    ///
    /// # Errors
    /// `BadArgument`: a certificate or a password that cannot be read.
    pub(super) fn settings(&self, filled: impl Fn(&str) -> PathBuf) -> Result<EtcdSettings> {
        let own = self.own.as_ref().map(|(certificate, key)| (filled(certificate), filled(key)));
        let own = own.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let tls = self.ca.as_deref().map(|ca| ClientTls::read(ca, own)).transpose()?;
        let user = self.user.as_ref().map(|(name, password)| EtcdUser {
            name: name.clone(),
            password_file: filled(password),
        });
        user.as_ref().map(EtcdUser::password).transpose()?;
        Ok(EtcdSettings { endpoints: self.endpoints.clone(), tls, user, compacts: self.compacts })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ClusterFile;
    use super::super::tests::GOOD;

    #[test]
    fn the_section_of_etcd_is_checked() {
        let with_cluster = |more: &str, lines: &str| {
            let more = format!("copies = 3\nengine = \"etcd\"\n{more}");
            let engine = GOOD.replacen("copies = 3", &more, 1);
            ClusterFile::parse(&format!("{engine}[etcd]\n{lines}"))
        };
        let with = |lines: &str| with_cluster("insecure = true", lines);
        let file =
            with("endpoints = [\"http://10.0.0.1:2379\", \"http://10.0.0.2:2379\"]").unwrap();
        let settings = file.etcd(file.host("a").unwrap()).unwrap().unwrap();
        assert_eq!(settings.endpoints.len(), 2);
        assert!(settings.compacts);
        let shared = with("endpoints = [\"http://10.0.0.1:2379\"]\ncompact = false").unwrap();
        assert!(!shared.etcd(shared.host("a").unwrap()).unwrap().unwrap().compacts);
        for (lines, error) in [
            ("endpoints = []", "is empty"),
            ("endpoints = [\"10.0.0.1:2379\"]", "expected http://"),
            ("endpoints = [\"https://etcd:2379\"]", "require etcd.ca"),
            ("endpoints = [\"http://etcd:2379\"]\nkey = \"/k\"", "belong together"),
            ("endpoints = [\"http://etcd:2379\"]\nuser = \"u\"", "etcd.password_file belong"),
        ] {
            let refused = with(lines).unwrap_err();
            assert!(refused.contains(error), "{lines}: {refused}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("{host}.password").display().to_string();
        let lines = format!("user = \"ns\"\npassword_file = {path:?}");
        let file = with(&format!("endpoints = [\"http://10.0.0.1:2379\"]\n{lines}")).unwrap();
        let host = file.host("a").unwrap();
        let missing = file.etcd(host).unwrap_err().to_string();
        assert!(missing.contains("etcd.password_file: ") && missing.contains("a.password"));
        std::fs::write(folder.path().join("a.password"), "secret\n").unwrap();
        let user = file.etcd(host).unwrap().unwrap().user.unwrap();
        assert_eq!((user.name.as_str(), user.password().unwrap().as_str()), ("ns", "secret"));
        // Without `insecure` plaintext stays on this machine.
        for host in ["127.0.0.1", "[::1]", "localhost"] {
            let lines = format!("endpoints = [\"http://{host}:2379\"]");
            drop(with_cluster("", &lines).unwrap());
        }
        for host in ["10.0.0.1", "[fd00::1]", "etcd"] {
            let lines = format!("endpoints = [\"http://127.0.0.1:1\", \"http://{host}:2379\"]");
            let refused = with_cluster("", &lines).unwrap_err();
            assert!(refused.contains("etcd.endpoints"), "{refused}");
            assert!(refused.contains("cluster.insecure"), "{refused}");
            drop(with(&lines).unwrap());
        }
    }
}
