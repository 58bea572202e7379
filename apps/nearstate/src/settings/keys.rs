//! The table of settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use nearstate_model::Result;
use nearstate_node::ConnectionLimits;
use nearstate_node::executor::SpinPolicy;
use nearstate_resp::keyspace_events::KeyspaceEvents;

use super::value::{
    Bytes, Count, Form, Level, Lines, Mode, Number, Shape, Spinning, Time, UnixPaths, Value,
};

/// A setting, as it is named, explained and judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// `section.name`, or a name that stands before all sections.
    pub(crate) name: &'static str,
    /// Its flag, without `--`.
    pub(crate) flag: &'static str,
    /// What is so if nobody says anything, as one text.
    pub(crate) default: &'static str,
    /// What it does.
    pub(crate) doc: &'static str,
    /// What is to be given.
    pub(crate) wants: &'static str,
    /// How several values are written.
    pub(crate) shape: Shape,
    /// More than one value.
    pub(crate) is_list: bool,
    /// The flag alone says true.
    pub(crate) is_switch: bool,
}

impl Key {
    /// The variable of the environment that says it.
    pub(crate) fn variable(&self) -> String {
        format!("NEARSTATE_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    /// Its flag with what is to be given.
    #[cfg(test)]
    pub(crate) fn usage(&self) -> String {
        let separator = if self.is_switch { "=" } else { " " };
        format!("--{}{separator}{}", self.flag, self.wants)
    }

    /// What `--help` says.
    pub(crate) fn help(&self) -> String {
        let default = match self.default {
            "" => "none",
            some => some,
        };
        format!("{} [default: {default}]", self.doc.trim())
    }

    /// The words of a text, as its shape has it.
    pub(crate) fn words(&self, text: &str) -> Vec<String> {
        let parts = |separator| text.split(separator).map(str::trim);
        match self.shape {
            Shape::One => vec![text.to_owned()],
            Shape::List if text.trim().is_empty() => Vec::new(),
            Shape::List => parts(',').map(str::to_owned).collect(),
            Shape::Lines => parts('\n').filter(|l| !l.is_empty()).map(str::to_owned).collect(),
        }
    }
}

/// What was said of settings, by whomever.
pub(crate) trait Sayings {
    /// The value of a setting.
    ///
    /// # Errors
    /// `BadArgument`: who says what that is not possible.
    fn value<T: Value>(&self, name: &'static str) -> Result<T>;
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:literal as $field:ident: $type:ty = $default:literal,
       --$flag:literal;)+) => {
        /// All settings, in the order in which they are shown; those of a section stand together.
        pub(crate) const KEYS: &[Key] = &[$(Key {
            name: $name,
            flag: $flag,
            default: $default,
            doc: concat!($($doc),+),
            wants: <$type as Value>::WANTS,
            shape: <$type as Value>::SHAPE,
            is_list: !matches!(<$type as Value>::SHAPE, Shape::One),
            is_switch: <$type as Value>::IS_SWITCH,
        }),+];

        /// What holds.
        #[derive(Clone, Debug)]
        pub(crate) struct Settings {
            $($(#[doc = $doc])+ pub(crate) $field: $type,)+
        }

        impl Settings {
            /// Judges the words of every setting.
            ///
            /// # Errors
            /// `BadArgument`: which layer says what that is not possible, and what would be.
            pub(crate) fn read(said: &impl Sayings) -> Result<Self> {
                Ok(Self { $($field: said.value::<$type>($name)?,)+ })
            }
        }
    };
}

settings! {
    /// Where clients come in over TCP; port 0: one that is free; by default nowhere if clients have
    /// to show certificates
    "listen" as listen: Vec<SocketAddr> = "127.0.0.1:6379", --"listen";
    /// Where clients come in over Unix sockets; `beside`: the region's path and `.sock`
    "unix" as unix: UnixPaths = "beside", --"unix";
    /// File mode of the Unix sockets, octal: who may connect
    "unix_mode" as unix_mode: Mode = "600", --"unix-mode";
    /// Listen at addresses that other hosts reach, although anybody may do everything there
    "insecure" as is_insecure: bool = "false", --"insecure";
    /// How many cores serve; 0: all processors
    "cores" as cores: Number = "0", --"cores";
    /// Keep each core on a processor of its own, if there are enough of them
    "pinned" as is_pinned: bool = "true", --"pinned";
    /// Whether a core looks for work before it sleeps: as measured to pay, never, or for so long
    "spin" as spin: Spinning = "adaptive", --"spin";

    /// The region's file; created if there is none
    "region.path" as region: PathBuf = "/dev/shm/nearstate", --"region";
    /// The most that a new region may grow to
    "region.max" as region_max: Bytes = "1GiB", --"max";
    /// File mode of a new region, octal: who may attach
    "region.mode" as region_mode: Mode = "600", --"region-mode";

    /// A file of users: `user NAME RULE...`, a line each, as in Redis' ACL files
    "users.file" as users_file: Option<PathBuf> = "", --"users-file";
    /// The same lines here; not together with users.file
    "users.lines" as users_lines: Lines = "", --"users-lines";

    /// Where clients come in over TLS; needs tls.certificate and tls.key
    "tls.listen" as tls_listen: Vec<SocketAddr> = "", --"tls-listen";
    /// The node's certificate and those that have signed it, PEM
    "tls.certificate" as tls_certificate: Option<PathBuf> = "", --"tls-certificate";
    /// The certificate's private key, PEM
    "tls.key" as tls_key: Option<PathBuf> = "", --"tls-key";
    /// Authorities that sign clients' certificates, PEM; with it every client has to show one
    "tls.client_authorities" as tls_clients: Option<PathBuf> = "", --"tls-client-authorities";

    /// Where Prometheus (/metrics) and probes (/health, /ready) come in over HTTP
    "observe.listen" as observe: Vec<SocketAddr> = "", --"observe-listen";
    /// Answer them at addresses that other hosts reach, too
    "observe.insecure" as is_observe_insecure: bool = "false", --"observe-insecure";

    /// What is logged: this, and what is worse
    "log.level" as log_level: Level = "info", --"log-level";
    /// How a line of the log looks
    "log.form" as log_form: Form = "text", --"log-form";

    /// Connections of the node; the next one is told so and closed
    "limits.connections_max" as connections_max: Count = "20000", --"limits-connections-max";
    /// Bytes of a request that is not whole yet; who sends more is closed
    "limits.input_bytes_max" as input_bytes_max: Bytes = "129MiB", --"limits-input-bytes-max";
    /// Bytes of answers that a client has not read; with more it is closed
    "limits.output_bytes_max" as output_bytes_max: Bytes = "160MiB", --"limits-output-bytes-max";
    /// Bytes of both that all connections of a core keep, with what they hear, queue and walk over
    "limits.core_bytes_max" as core_bytes_max: Bytes = "2GiB", --"limits-core-bytes-max";
    /// How long a request may be half sent
    "limits.half_sent_max" as half_sent_max: Time = "30s", --"limits-half-sent-max";
    /// A half sent request may last a second longer for each so many bytes that have come
    "limits.input_bytes_per_second_min" as input_bytes_per_second_min: Bytes = "64KiB",
        --"limits-input-bytes-per-second-min";
    /// How long a client may read nothing of its answer
    "limits.unread_max" as unread_max: Time = "1min", --"limits-unread-max";
    /// After how long a silence TCP asks whether the client is still there
    "limits.keep_alive" as keep_alive: Time = "5min", --"limits-keep-alive";
    /// How long a shutdown waits for answers that are under way
    "limits.drain_max" as drain_max: Time = "5s", --"limits-drain-max";
    /// Connections that the kernel keeps until a core accepts them
    "limits.backlog" as backlog: Count = "4096", --"limits-backlog";
    /// Rings of clients on this host that may not map the region, 132 KiB each; the next one goes
    /// on over its socket
    "limits.rings_max" as rings_max: Number = "1024", --"limits-rings-max";

    /// The host that SENTINEL answers; without it the address that the client came by
    "resp.announced_host" as announced_host: Option<String> = "", --"resp-announced-host";
    /// The names of masters that SENTINEL answers to; empty: every name
    "resp.masters" as masters: Vec<String> = "", --"resp-masters";
    /// The most bytes of one request
    "resp.request_bytes_max" as request_bytes_max: Bytes = "256MiB", --"resp-request-bytes-max";
    /// Bytes of messages that may wait for one subscriber; with more it is closed
    "resp.mailbox_bytes_max" as mailbox_bytes_max: Bytes = "32MiB", --"resp-mailbox-bytes-max";
    /// Bytes of messages that may wait for all subscribers; with more the one is closed for whom
    /// most waits
    "resp.messages_bytes_max" as messages_bytes_max: Bytes = "1GiB", --"resp-messages-bytes-max";
    /// Channels and patterns of one client
    "resp.subscriptions_max" as subscriptions_max: Count = "100000", --"resp-subscriptions-max";
    /// The events of keys that clients are told, in Redis' letters (KEA: all); empty: none
    "resp.notify_keyspace_events" as keyspace_events: KeyspaceEvents = "",
        --"resp-notify-keyspace-events";
    /// How long the commands of one EXEC and the sending of its messages, or of those of one of
    /// SDL's commands, may keep their core; what would take longer is refused
    "resp.exec_max" as exec_max: Time = "1s", --"resp-exec-max";
    /// Requests that take as long are kept in the slow log
    "resp.slow" as slow: Time = "10ms", --"resp-slow";
    /// Entries of the slow log
    "resp.slow_entries_max" as slow_entries_max: Number = "128", --"resp-slow-entries-max";
}

impl Value for KeyspaceEvents {
    const WANTS: &'static str = "LETTERS";
    fn read(words: &[String]) -> Result<Self, String> {
        let letters = words.first().map_or("", String::as_str);
        Self::parse(letters.as_bytes()).map_err(|_| {
            format!(
                "{letters:?} has a letter that is none: K or E, and of Ag$lshzxetdnm what is to be \
                 told; KEA tells all"
            )
        })
    }
}

fn size(Bytes(bytes): Bytes) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Settings {
    /// The bounds of connections.
    pub(crate) fn limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            connections_max: self.connections_max.0 as usize,
            input_bytes_max: size(self.input_bytes_max),
            output_bytes_max: size(self.output_bytes_max),
            core_bytes_max: size(self.core_bytes_max),
            half_sent_max: self.half_sent_max.0,
            input_bytes_per_second_min: size(self.input_bytes_per_second_min),
            unread_max: self.unread_max.0,
            keep_alive: self.keep_alive.0,
            drain_max: self.drain_max.0,
            backlog: i32::try_from(self.backlog.0).unwrap_or(i32::MAX),
            rings_max: self.rings_max.0,
        }
    }

    /// What the protocol of Redis is told, users and the port aside.
    pub(crate) fn apply_to(&self, resp: &mut nearstate_resp::server::RespSettings) {
        resp.announced_host.clone_from(&self.announced_host);
        resp.masters.clone_from(&self.masters);
        resp.region = self.region.display().to_string();
        resp.request_bytes_max = size(self.request_bytes_max);
        resp.mailbox_bytes_max = size(self.mailbox_bytes_max);
        resp.messages_bytes_max = size(self.messages_bytes_max);
        resp.subscriptions_max = self.subscriptions_max.0 as usize;
        resp.keyspace_events = self.keyspace_events;
        resp.exec_max = self.exec_max.0;
        resp.slow_micros = u64::try_from(self.slow.0.as_micros()).unwrap_or(u64::MAX);
        resp.slow_entries_max = self.slow_entries_max.0;
    }

    /// What a core does before it sleeps; `None`: adaptive, as measured.
    pub(crate) fn spin(&self) -> Option<SpinPolicy> {
        match self.spin {
            Spinning::Adaptive => None,
            Spinning::Never => Some(SpinPolicy::Never),
            Spinning::For(time) => Some(SpinPolicy::Always { time }),
        }
    }

    /// Where the Unix sockets are. The region's own place is left out if it is too long for one.
    pub(crate) fn unix_paths(&self) -> Vec<PathBuf> {
        match &self.unix {
            UnixPaths::At(paths) => paths.clone(),
            UnixPaths::Beside => {
                let mut path = self.region.clone().into_os_string();
                path.push(".sock");
                if path.len() > UNIX_PATH_MAX { Vec::new() } else { vec![path.into()] }
            }
        }
    }

    /// The Unix socket's place is the region's.
    pub(crate) fn is_unix_beside(&self) -> bool {
        matches!(self.unix, UnixPaths::Beside)
    }
}

/// The longest path of a Unix socket in Linux.
const UNIX_PATH_MAX: usize = 107;
