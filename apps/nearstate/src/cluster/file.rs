//! The cluster file: hosts, partitions and the lease, the same on all hosts.

mod choices;
mod hosts;
mod raw;
mod etcd;
mod shared;
mod sites;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearstate_cluster::{ClusterConfig, ConfigError, HostId, PartitionConfig, PartitionId};
use nearstate_membership::{EtcdSettings, MemberTls, MembershipHost};
use nearstate_model::limits::{REGION_BYTES_MAX, REGION_BYTES_MIN};
use nearstate_model::{Error, Result};
use nearstate_node::{ClientTls, HostAddress, Tls};
use nearstate_store::{NamespaceRules, ReplicationPolicy};

use self::etcd::EtcdFile;
pub(crate) use self::hosts::FileHost;
use self::hosts::removed;
use self::raw::{RawFile, RawPartition, RawTls};
use crate::settings::{parse_time, read_bounded};

/// The bytes of the largest file: 64 hosts and 256 partitions have some ten kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The bytes of the rules that the node adds: of its own namespace, and of Nudsf's notifier.
const NODE_RULES_BYTES: u64 = 64;

/// The shortest election: a candidate writes its vote to its disk, and so do the others, in round
/// trips between hosts that other work delays by some 10 ms. With less, hosts stand again before
/// one of them is elected. The shortest lease has an election of three times that.
const ELECTION_MIN: Duration = Duration::from_millis(50);

/// The longest name of a cluster: its bytes are the id in messages between members.
const CLUSTER_NAME_BYTES_MAX: usize = 16;

/// The rules for namespaces: the lists are tried in this order.
fn rules_of(
    lists: [(ReplicationPolicy, Vec<String>); 3],
) -> std::result::Result<NamespaceRules, String> {
    let all = lists
        .into_iter()
        .flat_map(|(policy, patterns)| patterns.into_iter().map(move |pattern| (policy, pattern)));
    let rules = NamespaceRules::new(all).map_err(|error| error.to_string())?;
    rules.check_size(NODE_RULES_BYTES).map_err(|error| error.to_string())?;
    Ok(rules)
}

/// A partition of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePartition {
    pub(crate) id: PartitionId,
    pub(crate) name: String,
    pub(crate) group: Vec<HostId>,
    pub(crate) port: u16,
    /// Further ports, each of which may be absent.
    pub(crate) ports: PartitionPorts,
    pub(crate) region_bytes_max: u64,
}

/// Where the owner of a partition serves clients, beside its port of RESP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionPorts {
    /// RESP over TLS.
    pub(crate) tls: Option<u16>,
    /// The data repository, in plain text and over TLS.
    pub(crate) nudsf: Option<u16>,
    pub(crate) nudsf_tls: Option<u16>,
    /// Metrics of the node that serves the clients.
    pub(crate) metrics: Option<u16>,
}

impl PartitionPorts {
    pub(crate) fn all(self) -> impl Iterator<Item = u16> {
        [self.tls, self.nudsf, self.nudsf_tls, self.metrics].into_iter().flatten()
    }
}

/// A valid cluster file.
#[derive(Debug)]
pub(crate) struct ClusterFile {
    pub(crate) name: String,
    pub(crate) lease: Duration,
    pub(crate) election: Duration,
    pub(crate) hosts: Vec<FileHost>,
    /// Hosts that were removed. What was decided before names them; they take part in nothing.
    pub(crate) removed: Vec<FileHost>,
    pub(crate) partitions: Vec<FilePartition>,
    pub(crate) namespaces: NamespaceRules,
    pub(crate) config: ClusterConfig,
    /// A stopped process that holds a lock is killed when a region changes its role.
    pub(crate) kills_stopped: bool,
    /// The clock of expiry of an owned partition is the wall clock of its host.
    pub(crate) is_host_clock: bool,
    regions: String,
    directory: String,
    tls: Option<RawTls>,
    /// How etcd is reached, if it orders the decisions.
    etcd: Option<EtcdFile>,
}

fn refused(path: &Path, what: impl Display) -> Error {
    Error::BadArgument { detail: format!("{}: {what}", path.display()) }
}

impl ClusterFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// `BadArgument`: what is wrong, and in which line if it is one of syntax.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let read = read_bounded(path, FILE_BYTES_MAX);
        let bytes = read.map_err(|error| refused(path, error))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(refused(path, "is larger than 1 MiB"));
        }
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| refused(path, "is not valid UTF-8"))?;
        Self::parse(&text).map_err(|what| refused(path, what))
    }

    /// Parses and checks the text of a file.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                1 + text.get(..span.start).unwrap_or_default().matches('\n').count()
            });
            let message = error.message();
            let key = error.span().and_then(|span| text.get(span));
            match key.filter(|_| message == "duplicate key") {
                Some(key) => format!("line {line}: duplicate key `{key}`"),
                None => format!("line {line}: {message}"),
            }
        })?;
        let hosts: std::result::Result<Vec<FileHost>, String> =
            raw.hosts.into_iter().map(FileHost::of).collect();
        let hosts = hosts?;
        let partitions = partitions(raw.partitions, &hosts)?;
        let all = hosts.iter().map(FileHost::config).collect();
        let (removed, hosts) = hosts.into_iter().partition(|host| host.removed);
        let cluster = raw.cluster;
        let etcd = EtcdFile::of(&cluster.engine, raw.etcd)?;
        let lease = parse_time(&cluster.lease).map_err(|what| format!("cluster.lease: {what}"))?;
        let election = match &cluster.election {
            None => lease / 2,
            Some(text) => parse_time(text).map_err(|what| format!("cluster.election: {what}"))?,
        };
        let config = ClusterConfig {
            hosts: all,
            partitions: partitions.iter().map(FilePartition::config).collect(),
            copies: cluster.copies,
            acknowledgements: cluster.acknowledgements,
            lease_ms: u32::try_from(lease.as_millis()).unwrap_or(u32::MAX),
            copy_missing: sites::policy(&cluster.when_copy_missing)?,
        };
        let file = Self {
            name: cluster.name,
            lease,
            election,
            hosts,
            removed,
            partitions,
            namespaces: rules_of([
                (ReplicationPolicy::Local, cluster.local),
                (ReplicationPolicy::Replicated, cluster.replicated),
                (ReplicationPolicy::Async, cluster.namespaces),
            ])?,
            config,
            kills_stopped: cluster.kill_stopped,
            is_host_clock: choices::is_host_clock(&cluster.expiry_clock)?,
            regions: cluster.regions,
            directory: cluster.directory,
            tls: raw.tls,
            etcd,
        };
        file.check(cluster.insecure)?;
        Ok(file)
    }

    fn check(&self, is_insecure: bool) -> std::result::Result<(), String> {
        self.config.validate().map_err(|error| error.to_string())?;
        let bytes = self.name.len();
        if bytes == 0 || bytes > CLUSTER_NAME_BYTES_MAX || !is_plain(&self.name) {
            return Err(format!(
                "the name {:?} of the cluster: expected 1 to {CLUSTER_NAME_BYTES_MAX} letters, \
                 digits, - and _",
                self.name
            ));
        }
        if let Some(host) = self.all_hosts().find(|host| !is_plain(&host.name)) {
            return Err(format!(
                "the name {:?} of a host: expected letters, digits, . - and _",
                host.name
            ));
        }
        if self.election < ELECTION_MIN {
            return Err(format!(
                "cluster.election is {:?}: an election takes at least {ELECTION_MIN:?}. Leave it \
                 out, for half the lease",
                self.election
            ));
        }
        // A third more at the longest, as the engine's random part says.
        if self.election * 4 / 3 >= self.lease {
            return Err(format!(
                "an election of {:?} does not end within a lease of {:?}: set cluster.election to \
                 at most half the lease",
                self.election, self.lease
            ));
        }
        sites::check(self)?;
        for what in ["regions", "directory"] {
            let pattern = if what == "regions" { &self.regions } else { &self.directory };
            if what == "regions" && !pattern.contains("{partition}") && self.partitions.len() > 1 {
                return Err("cluster.regions must contain {partition}".to_owned());
            }
            if !pattern.starts_with('/') {
                return Err(format!("cluster.{what} {pattern:?} is not an absolute path"));
            }
        }
        self.check_addresses(is_insecure)
    }

    fn check_addresses(&self, is_insecure: bool) -> std::result::Result<(), String> {
        let mut taken: BTreeMap<SocketAddr, String> = BTreeMap::new();
        let mut take = |address: SocketAddr, what: String| match taken.insert(address, what.clone())
        {
            Some(other) => Err(format!("{address} is the address of {other} and of {what}")),
            None => Ok(()),
        };
        for host in &self.hosts {
            take(host.peer, format!("the peers of host {:?}", host.name))?;
            take(host.membership, format!("the membership of host {:?}", host.name))?;
            for partition in self.partitions.iter().filter(|of| of.group.contains(&host.id)) {
                for port in std::iter::once(partition.port).chain(partition.ports.all()) {
                    let address = SocketAddr::new(host.clients, port);
                    let what = format!("partition {:?} on host {:?}", partition.name, host.name);
                    take(address, what)?;
                }
            }
        }
        let is_open = |host: &&FileHost| {
            let is_wide = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
            is_wide(host.peer) || is_wide(host.membership)
        };
        match self.hosts.iter().find(is_open) {
            Some(host) if self.tls.is_none() && !is_insecure => Err(format!(
                "host {:?} has addresses that other hosts can reach, without certificates: add \
                 [tls], or set cluster.insecure = true if the network restricts access",
                host.name
            )),
            Some(_) | None => Ok(()),
        }?;
        match self.etcd.as_ref().and_then(EtcdFile::open_endpoint) {
            Some(endpoint) if !is_insecure => Err(format!(
                "etcd.endpoints: {endpoint} is on another host and without TLS: use https:// with \
                 etcd.ca, or set cluster.insecure = true if the network restricts access"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The host with this name.
    ///
    /// # Errors
    /// `BadArgument`: there is none; the names that there are.
    pub(crate) fn host(&self, name: &str) -> Result<&FileHost> {
        self.hosts.iter().find(|host| host.name == name).ok_or_else(|| {
            if self.removed.iter().any(|host| host.name == name) {
                return removed(name);
            }
            let names: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            let detail =
                format!("no host {name:?} in the cluster file: it has {}", names.join(", "));
            Error::BadArgument { detail }
        })
    }

    /// The name of a host, or its number.
    pub(crate) fn host_name(&self, id: HostId) -> String {
        let host = self.all_hosts().find(|host| host.id == id);
        host.map_or_else(|| id.to_string(), |host| host.name.clone())
    }

    /// The name of a partition, or its number.
    pub(crate) fn partition_name(&self, id: PartitionId) -> String {
        let partition = self.partitions.iter().find(|partition| partition.id == id);
        partition.map_or_else(|| id.to_string(), |partition| partition.name.clone())
    }

    /// The region file of a partition on a host.
    pub(crate) fn region_file(&self, host: &FileHost, partition: &FilePartition) -> PathBuf {
        self.filled(&self.regions, &host.name).replace("{partition}", &partition.name).into()
    }

    /// The directory of a host's membership.
    pub(crate) fn directory(&self, host: &FileHost) -> PathBuf {
        self.filled(&self.directory, &host.name).into()
    }

    fn filled(&self, pattern: &str, host: &str) -> String {
        pattern.replace("{cluster}", &self.name).replace("{host}", host)
    }

    /// The partitions of whose group in the file a host is no member. It may have a region of one.
    pub(crate) fn partitions_outside(
        &self,
        host: &FileHost,
    ) -> impl Iterator<Item = &FilePartition> {
        self.partitions.iter().filter(|partition| !partition.group.contains(&host.id))
    }

    /// The hosts that the file lists, also those that were removed.
    pub(crate) fn all_hosts(&self) -> impl Iterator<Item = &FileHost> {
        self.hosts.iter().chain(&self.removed)
    }

    /// The hosts that vote when the cluster is created.
    pub(crate) fn voters(&self) -> BTreeSet<u64> {
        self.all_hosts().filter(|host| host.votes).map(|host| host.id.0.into()).collect()
    }

    /// All hosts as members of the engine.
    pub(crate) fn members(&self) -> BTreeMap<u64, MembershipHost> {
        let member = |host: &FileHost| {
            let member = MembershipHost { name: host.name.clone(), address: host.membership };
            (host.id.0.into(), member)
        };
        self.hosts.iter().map(member).collect()
    }

    /// Where all hosts are.
    pub(crate) fn addresses(&self) -> BTreeMap<HostId, HostAddress> {
        let address = |host: &FileHost| {
            let address = HostAddress {
                name: host.name.clone(),
                peer: host.peer.to_string(),
                clients: host.clients.to_string(),
            };
            (host.id, address)
        };
        self.hosts.iter().map(address).collect()
    }

    /// The id of the cluster in messages between members.
    pub(crate) fn cluster_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        for (to, from) in id.iter_mut().zip(self.name.bytes()) {
            *to = from;
        }
        id
    }

    /// The engine that orders the decisions.
    pub(crate) const fn engine_name(&self) -> &'static str {
        if self.etcd.is_some() { "etcd" } else { "raft" }
    }

    /// The endpoints of etcd, if it orders the decisions.
    pub(crate) fn etcd_endpoints(&self) -> Option<String> {
        self.etcd.as_ref().map(EtcdFile::endpoints)
    }

    /// How a host reaches etcd; `None`: the embedded engine orders the decisions.
    ///
    /// # Errors
    /// `BadArgument`: a certificate that cannot be read.
    pub(crate) fn etcd(&self, host: &FileHost) -> Result<Option<EtcdSettings>> {
        let Some(etcd) = &self.etcd else { return Ok(None) };
        etcd.settings(|pattern| self.filled(pattern, &host.name).into()).map(Some)
    }

    /// The file of a host's certificate and that of the authorities, if the file has some.
    pub(crate) fn certificate(&self, host: &FileHost) -> Option<(PathBuf, PathBuf)> {
        let tls = self.tls.as_ref()?;
        Some((self.filled(&tls.certificate, &host.name).into(), tls.ca.clone()))
    }

    /// The file of a host's private key, if the file has one.
    pub(crate) fn private_key(&self, host: &FileHost) -> Option<PathBuf> {
        self.tls.as_ref().map(|tls| self.filled(&tls.key, &host.name).into())
    }

    /// The certificates of a host, if the file has some.
    ///
    /// # Errors
    /// `BadArgument`: a file that cannot be read.
    pub(crate) fn tls(&self, host: &FileHost) -> Result<Option<MemberTls>> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let certificate = PathBuf::from(self.filled(&tls.certificate, &host.name));
        let key = PathBuf::from(self.filled(&tls.key, &host.name));
        Ok(Some(MemberTls {
            server: Tls::read(&certificate, &key, Some(&tls.ca))?,
            client: ClientTls::read(&tls.ca, Some((&certificate, &key)))?,
        }))
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn partitions(
    raw: Vec<RawPartition>,
    hosts: &[FileHost],
) -> std::result::Result<Vec<FilePartition>, String> {
    let mut names = BTreeSet::new();
    if let Some(twice) = hosts.iter().find(|host| !names.insert(&host.name)) {
        return Err(ConfigError::DuplicateHostName(twice.name.clone()).to_string());
    }
    let mut partitions = Vec::new();
    for partition in raw {
        let name = partition.name;
        if !is_plain(&name) {
            return Err(format!(
                "the name {name:?} of a partition: expected letters, digits, . - and _"
            ));
        }
        let mut group = Vec::new();
        for member in &partition.group {
            let Some(host) = hosts.iter().find(|host| host.name == *member) else {
                return Err(format!("partition {name:?} names host {member:?}, which is unknown"));
            };
            group.push(host.id);
        }
        let region_bytes_max = crate::region::parse_bytes(&partition.region_max)
            .map_err(|what| format!("partition {name:?}, region_max: {what}"))?;
        if !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&region_bytes_max) {
            return Err(format!(
                "partition {name:?}, region_max: {:?} is outside {}MiB to {}TiB",
                partition.region_max,
                REGION_BYTES_MIN >> 20,
                REGION_BYTES_MAX >> 40
            ));
        }
        let (id, port) = (PartitionId(partition.id), partition.port);
        let ports = PartitionPorts {
            tls: partition.tls_port,
            nudsf: partition.nudsf_port,
            nudsf_tls: partition.nudsf_tls_port,
            metrics: partition.metrics_port,
        };
        if port == 0 || ports.all().any(|port| port == 0) {
            return Err(format!(
                "partition {name:?}: a port is 0. Clients of each host connect to the same port: \
                 choose one"
            ));
        }
        partitions.push(FilePartition { id, name, group, port, ports, region_bytes_max });
    }
    Ok(partitions)
}

impl FilePartition {
    fn config(&self) -> PartitionConfig {
        PartitionConfig { id: self.id, name: self.name.clone(), group: self.group.clone() }
    }
}

#[cfg(test)]
pub(crate) mod tests;
