//! The table of settings: name, flag, default and documentation of each, and the settings that were
//! renamed.

use std::net::SocketAddr;
use std::path::PathBuf;

use nearstate_model::Result;
use nearstate_node::executor::SpinPolicy;
use nearstate_node::{ConnectionLimits, LoweredCount};
use nearstate_resp::keyspace_events::KeyspaceEvents;

use super::values::{
    AutoSize, ByteSize, CountSetting, FileMode, ItemSeparator, LogFormat, LogLevel, MemoryMax,
    NamespaceLimitLines, PlaceSetting, PositiveCount, RegionPath, SettingValue, SpinSetting,
    StorageList, TextLines, TimeSpan, UnixPaths,
};

/// One setting of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettingSpec {
    /// `section.name`, or a name outside all sections.
    pub(crate) name: &'static str,
    /// Its flag, without `--`.
    pub(crate) flag: &'static str,
    /// The value if it is not set, as one text.
    pub(crate) default: &'static str,
    /// What it does.
    pub(crate) doc: &'static str,
    /// The placeholder of its value.
    pub(crate) wants: &'static str,
    /// How several values are written as one text.
    pub(crate) separator: ItemSeparator,
    /// It takes several values.
    pub(crate) is_list: bool,
    /// The flag without a value means true.
    pub(crate) is_switch: bool,
}

/// The environment variable of a setting.
pub(crate) fn variable_of(name: &str) -> String {
    format!("NEARSTATE_{}", name.replace('.', "_").to_ascii_uppercase())
}

/// The flag that a setting has by its name, without `--`.
pub(crate) fn flag_of(name: &str) -> String {
    name.replace(['.', '_'], "-")
}

impl SettingSpec {
    /// Its environment variable.
    pub(crate) fn variable(&self) -> String {
        variable_of(self.name)
    }

    /// Its flag with the placeholder of its value.
    #[cfg(test)]
    pub(crate) fn usage(&self) -> String {
        let separator = if self.is_switch { "=" } else { " " };
        format!("--{}{separator}{}", self.flag, self.wants)
    }

    /// Its line of `--help`.
    pub(crate) fn help(&self) -> String {
        let default = match self.default {
            "" => "none",
            some => some,
        };
        format!("{} [default: {default}]", self.doc.trim())
    }

    /// The items of a text.
    pub(crate) fn items(&self, text: &str) -> Vec<String> {
        let parts = |separator| text.split(separator).map(str::trim);
        match self.separator {
            ItemSeparator::None => vec![text.to_owned()],
            ItemSeparator::Comma if text.trim().is_empty() => Vec::new(),
            ItemSeparator::Comma => parts(',').map(str::to_owned).collect(),
            ItemSeparator::Newline => {
                parts('\n').filter(|line| !line.is_empty()).map(str::to_owned).collect()
            }
        }
    }
}

/// The settings of all layers, before they are parsed.
pub(crate) trait RawSettings {
    /// The value of a setting.
    ///
    /// # Errors
    /// `BadArgument`: where the setting was set, and what is expected instead.
    fn value<T: SettingValue>(&self, name: &'static str) -> Result<T>;
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:literal as $field:ident: $type:ty = $default:literal,
       --$flag:literal;)+) => {
        /// All settings, in the order in which they are printed. Those of a section are adjacent.
        pub(crate) const SETTINGS: &[SettingSpec] = &[$(SettingSpec {
            name: $name,
            flag: $flag,
            default: $default,
            doc: concat!($($doc),+),
            wants: <$type as SettingValue>::WANTS,
            separator: <$type as SettingValue>::SEPARATOR,
            is_list: !matches!(<$type as SettingValue>::SEPARATOR, ItemSeparator::None),
            is_switch: <$type as SettingValue>::IS_SWITCH,
        }),+];

        /// The effective settings.
        #[derive(Clone, Debug)]
        pub(crate) struct Settings {
            $($(#[doc = $doc])+ pub(crate) $field: $type,)+
        }

        impl Settings {
            /// Parses every setting.
            ///
            /// # Errors
            /// `BadArgument`: where a setting was set, and what is expected instead.
            pub(crate) fn parse(raw: &impl RawSettings) -> Result<Self> {
                Ok(Self { $($field: raw.value::<$type>($name)?,)+ })
            }
        }
    };
}

settings! {
    /// TCP addresses that accept RESP clients. Port 0 selects a free port. The default is none if
    /// `tls.client_ca` is set
    "listen" as listen: Vec<SocketAddr> = "127.0.0.1:6379", --"listen";
    /// Unix sockets that accept RESP clients. `auto` is the region's path followed by `.sock`
    "unix" as unix: UnixPaths = "auto", --"unix";
    /// File mode of the Unix sockets, in octal. It limits which users can connect
    "unix_mode" as unix_mode: FileMode = "600", --"unix-mode";
    /// Allow addresses that other hosts can reach although clients are not authenticated
    "insecure" as is_insecure: bool = "false", --"insecure";
    /// Number of cores that serve clients. 0 uses all processors
    "cores" as cores: CountSetting = "0", --"cores";
    /// Pin each core to its own processor, if there are enough processors
    "pin_cores" as pin_cores: bool = "true", --"pin-cores";
    /// The processors of the cores: `none` takes them in ascending order, `auto` takes processors
    /// that are near each other and creates the region on their memory node, a list such as 2-5 is
    /// taken as it is
    "place" as place: PlaceSetting = "none", --"place";
    /// How long an idle core busy-polls before it sleeps: `adaptive` polls only while polling finds
    /// work, `never` sleeps at once, a time polls for that long
    "spin" as spin: SpinSetting = "adaptive", --"spin";

    /// The region's file. It is created if it does not exist. `auto` is
    /// `/dev/shm/nearstate-UID/region`, in a directory that only this user can use
    "region.path" as region: RegionPath = "auto", --"region";
    /// Maximum size of a region that is created
    "region.max" as region_max: ByteSize = "1GiB", --"max";
    /// File mode of a region that is created, in octal. It limits which users can attach
    "region.mode" as region_mode: FileMode = "600", --"region-mode";
    /// Allow other nodes with this setting to serve the same region. Messages of PUBLISH reach the
    /// clients of one node only
    "region.several_nodes" as is_region_shared: bool = "false", --"region-several-nodes";
    /// Also use a region, a Unix socket, a directory or a symbolic link that belongs to another
    /// user than this one and root
    "region.any_owner" as is_any_owner: bool = "false", --"any-owner";
    /// Limits of namespaces, which the node sets when it starts: one
    /// `NAMESPACE soft=SIZE hard=SIZE` per line, of which one size may be left out. A namespace
    /// that does not exist is created. Limits of other namespaces stay as they are
    "region.namespace_limits" as namespace_limits: NamespaceLimitLines = "",
        --"namespace-limits";

    /// File that declares users, in the format of Redis ACL files: one `user NAME RULE...` per line
    "users.file" as users_file: Option<PathBuf> = "", --"users-file";
    /// The same lines given inline. Cannot be combined with users.file
    "users.lines" as users_lines: TextLines = "", --"users-lines";

    /// TCP addresses that accept RESP clients over TLS. Requires tls.certificate and tls.key
    "tls.listen" as tls_listen: Vec<SocketAddr> = "", --"tls-listen";
    /// The node's certificate chain (PEM)
    "tls.certificate" as tls_certificate: Option<PathBuf> = "", --"tls-certificate";
    /// The private key of the certificate (PEM)
    "tls.key" as tls_key: Option<PathBuf> = "", --"tls-key";
    /// Certificate authorities of client certificates (PEM). If set, every client must present a
    /// certificate
    "tls.client_ca" as tls_client_ca: Option<PathBuf> = "", --"tls-client-ca";

    /// TCP addresses that accept followers (`nearstate region follow`), which get the log of the
    /// region. With `tls.certificate`, `tls.key` and `tls.client_ca`, over TLS, with client
    /// certificates
    "peer.listen" as peer_listen: Vec<SocketAddr> = "", --"peer";
    /// Patterns of the names of the namespaces that followers get. Local namespaces match none
    "peer.namespaces" as peer_namespaces: Vec<String> = "*", --"peer-namespaces";
    /// Refuse commits when the log is full and no follower has acknowledged its oldest entries.
    /// Otherwise these are lost, and the follower gets all records again
    "peer.keep" as peer_keeps: bool = "false", --"peer-keep";
    /// Maximum number of followers. Each has a thread
    "peer.followers_max" as peer_followers_max: PositiveCount = "4", --"peer-followers-max";
    /// Allow addresses for followers that other hosts can reach, without TLS
    "peer.insecure" as is_peer_insecure: bool = "false", --"peer-insecure";

    /// Addresses of the 3GPP data repository (Nudsf) over HTTP/2 and HTTP/1.1. Requires
    /// nudsf.storages
    "nudsf.listen" as nudsf: Vec<SocketAddr> = "", --"nudsf";
    /// The same over TLS. Requires tls.certificate and tls.key
    "nudsf.tls_listen" as nudsf_tls: Vec<SocketAddr> = "", --"nudsf-tls";
    /// Storages of the data repository, each `REALM/STORAGE=NAMESPACE`. The default namespace is
    /// `REALM/STORAGE`
    "nudsf.storages" as nudsf_storages: StorageList = "", --"nudsf-storages";
    /// The apiRoot of URIs in responses, if clients reach the node through a proxy. The default is
    /// the scheme and the authority of the request
    "nudsf.api_root" as nudsf_api_root: Option<String> = "", --"nudsf-api-root";
    /// Optional features of TS 29.598 that clients are told, as the bitmask of its clause 6.1.8 in
    /// hexadecimal
    "nudsf.supported_features" as nudsf_supported_features: Option<String> = "",
        --"nudsf-supported-features";
    /// File with the JSON web key set that access tokens are signed with. If set, every request of
    /// Nudsf must have a token
    "nudsf.token_keys" as nudsf_token_keys: Option<PathBuf> = "", --"nudsf-token-keys";
    /// File with the certificate authorities of targets of notifications. Required for https
    "nudsf.notify_ca" as nudsf_notify_ca: Option<PathBuf> = "", --"nudsf-notify-ca";
    /// Audiences that access tokens may be for: the type of the network function, and the ids of
    /// this instance. Without any, the audience is not checked
    "nudsf.token_audiences" as nudsf_token_audiences: Vec<String> = "UDSF",
        --"nudsf-token-audiences";
    /// URL of the JSON web key set, instead of a file. Fetched every 5 minutes, and when a token
    /// names an unknown key
    "nudsf.token_keys_url" as nudsf_token_keys_url: Option<String> = "",
        --"nudsf-token-keys-url";
    /// PEM file with the authorities of the certificates of the NRF and of the server of the key
    /// set, for https
    "nudsf.control_ca" as nudsf_control_ca: Option<PathBuf> = "", --"nudsf-control-ca";
    /// How long requests may wait for a core before those of low priority are refused
    "nudsf.overload_delay" as nudsf_overload_delay: TimeSpan = "20ms", --"nudsf-overload-delay";
    /// Root of the URIs of the NRF that the node registers with. Requires an id of the instance
    "nudsf.nrf" as nudsf_nrf: Option<String> = "", --"nudsf-nrf";
    /// Id of this instance for the NRF: a UUID, the same after each start
    "nudsf.nf_instance" as nudsf_nf_instance: Option<String> = "", --"nudsf-nf-instance";
    /// Group of UDSF instances that this one belongs to
    "nudsf.nf_group" as nudsf_nf_group: Option<String> = "", --"nudsf-nf-group";
    /// Ranges of SUPIs whose state the node keeps, each `FIRST-LAST` in digits. None: all
    "nudsf.supi_ranges" as nudsf_supi_ranges: Vec<String> = "", --"nudsf-supi-ranges";
    /// Addresses that the NRF tells clients, instead of those that the node listens on
    "nudsf.announce" as nudsf_announce: Vec<SocketAddr> = "", --"nudsf-announce";
    /// The same for TLS
    "nudsf.announce_tls" as nudsf_announce_tls: Vec<SocketAddr> = "", --"nudsf-announce-tls";

    /// HTTP addresses for Prometheus (/metrics) and probes (/health, /ready)
    "metrics.listen" as metrics: Vec<SocketAddr> = "", --"metrics-listen";
    /// Allow metrics addresses that other hosts can reach
    "metrics.insecure" as is_metrics_insecure: bool = "false", --"metrics-insecure";

    /// Least severe level that is logged
    "log.level" as log_level: LogLevel = "info", --"log-level";
    /// Format of a log line
    "log.format" as log_format: LogFormat = "text", --"log-format";

    /// Maximum number of client connections of the node. Further connections receive an error and
    /// are closed
    "limits.connections_max" as connections_max: PositiveCount = "20000",
        --"limits-connections-max";
    /// Maximum bytes of an incomplete request. A client that sends more is disconnected
    "limits.input_bytes_max" as input_bytes_max: ByteSize = "129MiB", --"limits-input-bytes-max";
    /// Maximum bytes of replies that a client has not read. A client with more is disconnected
    "limits.output_bytes_max" as output_bytes_max: ByteSize = "160MiB",
        --"limits-output-bytes-max";
    /// Maximum bytes that one core keeps for its connections: incomplete requests, unread replies,
    /// queued commands, subscriptions and scan results. `auto` is a share of `limits.memory_max`,
    /// at most 2 GiB
    "limits.core_bytes_max" as core_bytes_max: AutoSize = "auto", --"limits-core-bytes-max";
    /// Memory that the node and a region in memory may use. `auto` is the limit of the control
    /// group, if it has one. The node does not start if its other limits together exceed it
    "limits.memory_max" as memory_max: MemoryMax = "auto", --"limits-memory-max";
    /// Maximum time between the first and the last byte of a request. A larger request must arrive
    /// at the minimum rate in each period of this length
    "limits.request_timeout" as request_timeout: TimeSpan = "30s", --"limits-request-timeout";
    /// Minimum bytes per second of a request that takes longer than the request timeout
    "limits.request_bytes_per_second_min" as request_bytes_per_second_min: ByteSize = "64KiB",
        --"limits-request-bytes-per-second-min";
    /// Maximum time that a client may stay connected without authentication, if it has to
    /// authenticate
    "limits.auth_timeout" as auth_timeout: TimeSpan = "30s", --"limits-auth-timeout";
    /// Maximum time that a client may leave a reply unread
    "limits.reply_timeout" as reply_timeout: TimeSpan = "1min", --"limits-reply-timeout";
    /// Idle time after which TCP keepalive probes are sent
    "limits.tcp_keepalive" as tcp_keepalive: TimeSpan = "5min", --"limits-tcp-keepalive";
    /// Maximum time that a shutdown waits for replies in flight
    "limits.shutdown_timeout" as shutdown_timeout: TimeSpan = "5s", --"limits-shutdown-timeout";
    /// Maximum number of connections that the kernel queues until a core accepts them
    "limits.tcp_backlog" as tcp_backlog: PositiveCount = "4096", --"limits-tcp-backlog";
    /// Maximum number of shared-memory rings for clients on this host, 132 KiB each. Further
    /// clients continue over their socket
    "limits.rings_max" as rings_max: CountSetting = "1024", --"limits-rings-max";

    /// TCP addresses that accept clients of Redis Sentinel, for clients that check the ROLE of a
    /// Sentinel. They serve no records. All other addresses answer SENTINEL as well
    "resp.sentinel_listen" as sentinel_listen: Vec<SocketAddr> = "", --"resp-sentinel-listen";
    /// Host name that SENTINEL reports. By default it reports the address that the client connected
    /// to
    "resp.sentinel_announce_host" as sentinel_announce_host: Option<String> = "",
        --"resp-sentinel-announce-host";
    /// Master names that SENTINEL answers. Empty: all names; lists then contain the names that
    /// O-RAN's SDL uses by default
    "resp.sentinel_masters" as sentinel_masters: Vec<String> = "", --"resp-sentinel-masters";
    /// Maximum bytes of one request
    "resp.request_bytes_max" as request_bytes_max: ByteSize = "256MiB",
        --"resp-request-bytes-max";
    /// Maximum bytes of messages queued for one subscriber. A subscriber with more is disconnected
    "resp.subscriber_bytes_max" as subscriber_bytes_max: ByteSize = "32MiB",
        --"resp-subscriber-bytes-max";
    /// Maximum bytes of messages queued for all subscribers. Above it, the subscriber with the
    /// longest queue is disconnected. `auto` is a share of `limits.memory_max`, at most 1 GiB
    "resp.pubsub_bytes_max" as pubsub_bytes_max: AutoSize = "auto", --"resp-pubsub-bytes-max";
    /// Maximum number of channels and patterns of one client
    "resp.subscriptions_max" as subscriptions_max: PositiveCount = "100000",
        --"resp-subscriptions-max";
    /// Keyspace events that are published, in the letters of Redis (KEA: all). Empty: none
    "resp.notify_keyspace_events" as keyspace_events: KeyspaceEvents = "",
        --"resp-notify-keyspace-events";
    /// Maximum time that one EXEC, or one SDL command that publishes, may occupy its core. Longer
    /// ones are rejected
    "resp.exec_max" as exec_max: TimeSpan = "1s", --"resp-exec-max";
    /// Requests that take at least this long are recorded in the slow log
    "resp.slowlog_threshold" as slowlog_threshold: TimeSpan = "10ms", --"resp-slowlog-threshold";
    /// Maximum number of entries of the slow log
    "resp.slowlog_entries_max" as slowlog_entries_max: CountSetting = "128",
        --"resp-slowlog-entries-max";
}

/// Settings that were renamed: the old name and the current one. The old name, its variable and its
/// flag are rejected with an error that gives the new one.
pub(crate) const RENAMED: &[(&str, &str)] = &[
    ("pinned", "pin_cores"),
    ("tls.client_authorities", "tls.client_ca"),
    ("observe.listen", "metrics.listen"),
    ("observe.insecure", "metrics.insecure"),
    ("log.form", "log.format"),
    ("limits.half_sent_max", "limits.request_timeout"),
    ("limits.input_bytes_per_second_min", "limits.request_bytes_per_second_min"),
    ("limits.unread_max", "limits.reply_timeout"),
    ("limits.keep_alive", "limits.tcp_keepalive"),
    ("limits.drain_max", "limits.shutdown_timeout"),
    ("limits.backlog", "limits.tcp_backlog"),
    ("resp.announced_host", "resp.sentinel_announce_host"),
    ("resp.masters", "resp.sentinel_masters"),
    ("resp.mailbox_bytes_max", "resp.subscriber_bytes_max"),
    ("resp.messages_bytes_max", "resp.pubsub_bytes_max"),
    ("resp.slow", "resp.slowlog_threshold"),
    ("resp.slow_entries_max", "resp.slowlog_entries_max"),
];

impl SettingValue for KeyspaceEvents {
    const WANTS: &'static str = "LETTERS";
    fn parse(items: &[String]) -> Result<Self, String> {
        let letters = items.first().map_or("", String::as_str);
        Self::parse(letters.as_bytes()).map_err(|_| {
            format!(
                "{letters:?} is not valid: expected K or E, and letters of Ag$lshzxetdnm for the \
                 events; KEA publishes all"
            )
        })
    }
}

fn size(ByteSize(bytes): ByteSize) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Settings {
    /// The limits of connections. `core_bytes_max` is the one that was derived from the memory
    /// limit.
    pub(crate) fn limits(&self, core_bytes_max: u64) -> ConnectionLimits {
        ConnectionLimits {
            connections_max: self.connections_max.0 as usize,
            input_bytes_max: size(self.input_bytes_max),
            output_bytes_max: size(self.output_bytes_max),
            core_bytes_max: size(ByteSize(core_bytes_max)),
            request_timeout: self.request_timeout.0,
            request_bytes_per_second_min: size(self.request_bytes_per_second_min),
            auth_timeout: self.auth_timeout.0,
            reply_timeout: self.reply_timeout.0,
            tcp_keepalive: self.tcp_keepalive.0,
            shutdown_timeout: self.shutdown_timeout.0,
            tcp_backlog: i32::try_from(self.tcp_backlog.0).unwrap_or(i32::MAX),
            rings_max: self.rings_max.0,
            connections_lowered: LoweredCount::default(),
        }
    }

    /// Sets the settings of the RESP protocol, except users, port and the limit of messages.
    pub(crate) fn apply_to(&self, resp: &mut nearstate_resp::server::RespSettings) {
        resp.announced_host.clone_from(&self.sentinel_announce_host);
        resp.masters.clone_from(&self.sentinel_masters);
        resp.region = self.region.path.display().to_string();
        resp.request_bytes_max = size(self.request_bytes_max);
        resp.mailbox_bytes_max = size(self.subscriber_bytes_max);
        resp.subscriptions_max = self.subscriptions_max.0 as usize;
        resp.keyspace_events = self.keyspace_events;
        resp.exec_max = self.exec_max.0;
        resp.slow_micros = u64::try_from(self.slowlog_threshold.0.as_micros()).unwrap_or(u64::MAX);
        resp.slow_entries_max = self.slowlog_entries_max.0;
    }

    /// What an idle core does before it sleeps. `None`: adaptive.
    pub(crate) fn spin(&self) -> Option<SpinPolicy> {
        match self.spin {
            SpinSetting::Adaptive => None,
            SpinSetting::Never => Some(SpinPolicy::Never),
            SpinSetting::For(time) => Some(SpinPolicy::Always { time }),
        }
    }

    /// The paths of the Unix sockets. The automatic path is left out if it is too long.
    pub(crate) fn unix_paths(&self) -> Vec<PathBuf> {
        match &self.unix {
            UnixPaths::At(paths) => paths.clone(),
            UnixPaths::Auto => {
                let mut path = self.region.path.clone().into_os_string();
                path.push(".sock");
                if path.len() > UNIX_PATH_MAX { Vec::new() } else { vec![path.into()] }
            }
        }
    }

    /// True if the path of the Unix socket is derived from the region's path.
    pub(crate) fn is_unix_auto(&self) -> bool {
        matches!(self.unix, UnixPaths::Auto)
    }
}

/// Maximum length of the path of a Unix socket on Linux.
const UNIX_PATH_MAX: usize = 107;
