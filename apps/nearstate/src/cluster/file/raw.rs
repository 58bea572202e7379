//! The cluster file as it is written: tables, keys and their defaults.

use std::path::PathBuf;

use serde::Deserialize;

use super::etcd::RawEtcd;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    pub(super) cluster: RawCluster,
    pub(super) tls: Option<RawTls>,
    pub(super) etcd: Option<RawEtcd>,
    #[serde(default, rename = "host")]
    pub(super) hosts: Vec<RawHost>,
    #[serde(default, rename = "partition")]
    pub(super) partitions: Vec<RawPartition>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCluster {
    pub(super) name: String,
    #[serde(default = "default_lease")]
    pub(super) lease: String,
    pub(super) copies: u8,
    #[serde(default = "default_acknowledgements")]
    pub(super) acknowledgements: u8,
    #[serde(default = "default_when_copy_missing")]
    pub(super) when_copy_missing: String,
    #[serde(default = "default_engine")]
    pub(super) engine: String,
    pub(super) election: Option<String>,
    #[serde(default = "default_regions")]
    pub(super) regions: String,
    #[serde(default = "default_directory")]
    pub(super) directory: String,
    #[serde(default = "default_namespaces")]
    pub(super) namespaces: Vec<String>,
    #[serde(default)]
    pub(super) replicated: Vec<String>,
    #[serde(default)]
    pub(super) local: Vec<String>,
    #[serde(default)]
    pub(super) insecure: bool,
    #[serde(default = "default_kill_stopped")]
    pub(super) kill_stopped: bool,
    #[serde(default = "default_expiry_clock")]
    pub(super) expiry_clock: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) ca: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHost {
    pub(super) id: u16,
    pub(super) name: String,
    pub(super) peer: String,
    pub(super) membership: String,
    pub(super) clients: Option<String>,
    #[serde(default = "default_votes")]
    pub(super) votes: bool,
    #[serde(default)]
    pub(super) witness: bool,
    #[serde(default)]
    pub(super) removed: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPartition {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) group: Vec<String>,
    pub(super) port: u16,
    pub(super) tls_port: Option<u16>,
    pub(super) nudsf_port: Option<u16>,
    pub(super) nudsf_tls_port: Option<u16>,
    pub(super) metrics_port: Option<u16>,
    #[serde(default = "default_region_max")]
    pub(super) region_max: String,
}

fn default_lease() -> String {
    "300ms".to_owned()
}
fn default_acknowledgements() -> u8 {
    2
}
fn default_when_copy_missing() -> String {
    "stop".to_owned()
}
fn default_engine() -> String {
    "raft".to_owned()
}
fn default_regions() -> String {
    "/dev/shm/nearstate-{cluster}-{host}-{partition}".to_owned()
}
fn default_directory() -> String {
    "/var/lib/nearstate/{cluster}-{host}".to_owned()
}
fn default_namespaces() -> Vec<String> {
    vec!["*".to_owned()]
}
const fn default_kill_stopped() -> bool {
    true
}
fn default_expiry_clock() -> String {
    "steady".to_owned()
}
const fn default_votes() -> bool {
    true
}
fn default_region_max() -> String {
    "1GiB".to_owned()
}
