//! State of the protocol on one core.

use crate::auth_limit::AuthSource;
use crate::command::CommandFlags;
use crate::command::command_table::RecentCommands;
use crate::command::stats::RespCoreStats;
use crate::command_context::{CommandFn, RespCommand};
use crate::connection_state::{
    ConnectionState, DeferredMessages, ReplyMode, Subscriptions, WaitingMessages, WatchedRecords,
};
use crate::pubsub::mailbox::Mailbox;
use crate::records::KeyedRecords;
use crate::reply::RespVersion;
use crate::server::{ClientEntry, RespServer, ServerStats, SlowLogEntry};
use nearstate_node::{Core, PeerAddress, PeerIdentity};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const MICROS_PER_MILLI: u64 = 1000;

/// State of the protocol on one core.
#[derive(Debug)]
pub(crate) struct CoreContext {
    pub(crate) server: Arc<RespServer>,
    pub(crate) records: KeyedRecords,
    pub(crate) core: Core,
    /// Its connections are used as a Sentinel.
    pub(crate) is_sentinel: bool,
    pub(crate) recent: RecentCommands<CommandFn>,
    counts: Arc<RespCoreStats>,
    /// Start of the current request, which is the end of the previous one, in ticks.
    request_start: Cell<u64>,
}

impl CoreContext {
    pub(crate) fn new(
        server: &Arc<RespServer>,
        core: &Core,
        counts: Arc<RespCoreStats>,
        recent: RecentCommands<CommandFn>,
    ) -> Self {
        Self {
            server: Arc::clone(server),
            records: KeyedRecords::new(Rc::clone(core.session()), Arc::clone(server)),
            core: core.clone(),
            is_sentinel: false,
            recent,
            counts,
            request_start: Cell::new(0),
        }
    }

    /// The same for connections that are used as a Sentinel.
    pub(crate) fn for_sentinels(self) -> Self {
        Self { is_sentinel: true, ..self }
    }

    /// The state of a new connection. Registers it with the server.
    pub(crate) fn new_connection(&self, peer: &PeerIdentity) -> ConnectionState {
        let settings = &self.server.settings;
        // A verified certificate authenticates a user as a password does.
        let proven = peer
            .certificate
            .as_ref()
            .and_then(|name| settings.users.find(name.as_bytes()).filter(|user| user.is_on()));
        let user = proven.or_else(|| settings.users.initial_user()).cloned();
        let mailbox = Arc::new(Mailbox::new(
            self.server.runtime.mailbox_bytes_max(),
            &self.server.pubsub.budget,
        ));
        let (address, local, local_host, local_port) = match &peer.address {
            PeerAddress::Tcp { remote, local } => {
                (remote.to_string(), local.to_string(), local.ip().to_string(), local.port())
            }
            PeerAddress::Unix { pid, .. } => {
                let path = format!("unix:{}", pid.unwrap_or_default());
                (path.clone(), path, "127.0.0.1".to_owned(), self.server.port())
            }
        };
        ServerStats::add(&self.server.stats.connections, 1);
        self.server.add_client(
            peer.id,
            ClientEntry {
                address: address.clone(),
                local,
                name: String::new(),
                library: Default::default(),
                user: user.as_ref().map(|user| user.name().to_owned()).unwrap_or_default(),
                since_ms: nearstate_store::now_ms_coarse(),
                subscription_count: [0; 2],
                protocol: 2,
                is_no_evict: false,
                is_monitor: false,
                tracking: None,
                mailbox: Arc::clone(&mailbox),
            },
        );
        ConnectionState {
            id: peer.id,
            protocol: RespVersion::default(),
            initial_user: user.clone(),
            user,
            auth_source: AuthSource::of(&peer.address),
            auth_failures: 0,
            is_auth_due: false,
            tracking: None,
            replica_wait: None,
            postponed: None,
            name: Vec::new(),
            address,
            local_host,
            local_port,
            is_sentinel: self.is_sentinel,
            mailbox,
            channels: Subscriptions::default(),
            patterns: Subscriptions::default(),
            queue: None,
            watched: WatchedRecords::default(),
            deferred_messages: DeferredMessages::default(),
            waiting_messages: WaitingMessages::default(),
            task: None,
            task_reads: None,
            is_closing: false,
            reply_mode: ReplyMode::On,
            local_request: None,
        }
    }

    /// Limit of the bytes of a reply.
    #[inline]
    pub(crate) fn answer_bytes_max(&self) -> usize {
        self.core.limits().output_bytes_max
    }

    /// Adds the hits and misses of reads to the statistics.
    #[inline]
    pub(crate) fn count_lookups(&self) {
        let found = self.records.take_hits_and_misses();
        if found != [0, 0] {
            self.counts.add_hits_and_misses(found);
        }
    }

    /// Starts the clock for the first request of an input.
    pub(crate) fn begin(&self) {
        self.request_start.set(self.core.clock().now());
    }

    /// Counts a request that was rejected before its command was called.
    #[cold]
    pub(crate) fn count_rejected(&self, command: Option<&'static RespCommand>) {
        if let Some(command) = command {
            self.counts.count_rejected(command.number);
        }
    }

    /// Counts an executed request, and adds it to the slow log if it was slow.
    #[inline]
    pub(crate) fn count(
        &self,
        command: Option<&'static RespCommand>,
        is_refused: bool,
        slow: impl FnOnce(u64) -> SlowLogEntry,
    ) {
        let now = self.core.clock().now();
        let nanos = self.core.clock().nanos(now.saturating_sub(self.request_start.replace(now)));
        self.core.metrics().requests.add(1);
        self.counts.count(command.map(|command| command.number), nanos, is_refused);
        let micros = nanos / 1000;
        if micros >= self.server.runtime.slow_micros() {
            self.server.log_slow(slow(micros));
        }
        if micros >= MICROS_PER_MILLI {
            self.count_latency(command, micros / MICROS_PER_MILLI);
        }
    }

    /// Adds a request of some milliseconds to the events of `LATENCY`.
    #[cold]
    fn count_latency(&self, command: Option<&'static RespCommand>, millis: u64) {
        let threshold = self.server.runtime.latency_threshold_ms();
        if threshold == 0 || millis < threshold {
            return;
        }
        let is_fast = command.is_some_and(|command| command.flags.has(CommandFlags::FAST));
        let event = if is_fast { "fast-command" } else { "command" };
        self.server.latency.add(event, nearstate_store::now_ms_coarse() / 1000, millis);
    }
}

/// A core without a node, for tests.
#[cfg(test)]
pub(crate) mod test_core {
    use super::*;
    use crate::acl::Users;
    use crate::server::RespSettings;
    use crate::table::TABLE;
    use nearstate_node::CoreParts;
    use nearstate_node::clock::Clock;
    use nearstate_store::{CreateOptions, Region};

    pub(crate) struct TestCore {
        pub(crate) core: CoreContext,
        pub(crate) server: Arc<RespServer>,
        pub(crate) region: Region,
        _folder: tempfile::TempDir,
    }

    impl TestCore {
        pub(crate) fn new(clock: &Clock) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("r");
            let region = Region::create(&path, &CreateOptions::default()).unwrap();
            let server = Arc::new(RespServer::new(RespSettings::new(Users::open(&TABLE))));
            let parts = CoreParts::single(region.clone(), clock.clone());
            let counts = Arc::new(RespCoreStats::new(std::iter::empty()));
            let (core, recent) = (Core::new(parts).unwrap(), RecentCommands::new(&TABLE));
            let core = CoreContext::new(&server, &core, counts, recent);
            Self { core, server, region, _folder: folder }
        }

        pub(crate) fn connection(&self) -> ConnectionState {
            let address = PeerAddress::Unix { pid: None, uid: 0, gid: 0 };
            self.core.new_connection(&PeerIdentity { id: 1, address, certificate: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_core::TestCore;
    use crate::table::TABLE;
    use nearstate_node::clock::Clock;
    use std::time::Duration;

    #[test]
    fn a_slow_request_is_an_event_of_latency_above_the_threshold() {
        let clock = Clock::new_virtual();
        let TestCore { core, server, .. } = &TestCore::new(&clock);
        let request = |name: &str, millis: u64| {
            core.begin();
            clock.advance(Duration::from_millis(millis));
            core.count(TABLE.find(name.as_bytes()), false, |_| unreachable!("below 10 ms"));
        };
        request("set", 9);
        server.runtime.set_latency_threshold_ms(5);
        request("set", 4);
        assert!(server.latency.all().is_empty(), "disabled, then below the threshold");
        request("set", 7);
        request("get", 5);
        let seen: Vec<_> = server.latency.all();
        let longest: Vec<_> = seen.iter().map(|(event, all)| (*event, all.millis_max)).collect();
        assert_eq!(longest, [("command", 7), ("fast-command", 5)]);
    }
}
