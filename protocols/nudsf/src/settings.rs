//! The settings of the protocol, and its counters.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_model::limits::NAMESPACE_NAME_BYTES_MAX;
use nearstate_model::{Error, Result};
use nearstate_node::ClientTls;
use nearstate_node::metrics::CoreCounter;
use nearstate_store::REPLICATION_WAIT_MAX;

use crate::features::FeatureSet;
use crate::limits::OutboxLimits;
use crate::table::{OPERATION_COUNT, OPERATIONS};
use crate::token::TokenKeys;

/// The longest name of a namespace that a storage has: names of its subscriptions and schemas are
/// formed from it.
const STORAGE_NAMESPACE_BYTES_MAX: usize = NAMESPACE_NAME_BYTES_MAX - 16;

/// A storage of a realm, and the namespace that has its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageSpec {
    /// The id of the realm.
    pub realm: String,
    /// The id of the storage.
    pub storage: String,
    /// The name of the namespace.
    pub namespace: String,
}

impl StorageSpec {
    /// Parses `REALM/STORAGE` or `REALM/STORAGE=NAMESPACE`. The default namespace is
    /// `REALM/STORAGE`.
    ///
    /// # Errors
    /// `BadArgument`: what is wrong with the text.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = |why: &str| Error::BadArgument { detail: format!("storage {text:?}: {why}") };
        let (path, namespace) = text.split_once('=').unwrap_or((text, text));
        let (realm, storage) = path
            .split_once('/')
            .ok_or_else(|| refused("write REALM/STORAGE or REALM/STORAGE=NAMESPACE"))?;
        if realm.is_empty() || storage.is_empty() || storage.contains('/') {
            return Err(refused("a realm and a storage are not empty and have no slash"));
        }
        if namespace.is_empty()
            || namespace.len() > STORAGE_NAMESPACE_BYTES_MAX
            || namespace.chars().any(char::is_control)
        {
            return Err(refused(&format!(
                "a namespace has 1 to {STORAGE_NAMESPACE_BYTES_MAX} bytes, none of them a control \
                 character"
            )));
        }
        let [realm, storage, namespace] = [realm, storage, namespace].map(str::to_owned);
        Ok(Self { realm, storage, namespace })
    }
}

/// How notifications are delivered.
#[derive(Clone, Debug, Default)]
pub struct NotifySettings {
    /// A file whose lock (`flock`) lets one node of a region deliver. `None`: no other node serves
    /// the region.
    pub lock: Option<PathBuf>,
    /// TLS for `https` targets. `None`: they are not reached.
    pub tls: Option<ClientTls>,
    /// The `apiRoot` in URIs that no request names, without [`NudsfSettings::api_root`]: an address
    /// of the node. `None`: such URIs have none.
    pub root: Option<String>,
    /// What the notifier reports to operators.
    pub log: NotifierLog,
    /// What waits at most.
    pub limits: OutboxLimits,
}

/// An event that operators look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotifierEvent {
    /// A timer or a subscription cannot expire: it is kept and not notified.
    SetAside {
        /// The URI of the storage.
        storage: String,
        /// The id, as text if it is UTF-8.
        key: String,
        /// The error of its commit.
        reason: String,
    },
    /// The notifier, or what is due in a storage, has failed, and is tried again. Not every
    /// attempt is reported.
    Failed {
        /// The error.
        reason: String,
    },
}

/// Called with each event.
pub type OnNotifierEvent = Arc<dyn Fn(&NotifierEvent) + Send + Sync>;

/// A callback for events of the notifier.
#[derive(Clone, Default)]
pub struct NotifierLog(pub Option<OnNotifierEvent>);

impl fmt::Debug for NotifierLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NotifierLog").field(&self.0.is_some()).finish()
    }
}

impl NotifierLog {
    pub(crate) fn emit(&self, event: &NotifierEvent) {
        if let Some(on_event) = &self.0 {
            on_event(event);
        }
    }
}

/// The settings of the protocol.
#[derive(Clone, Debug)]
pub struct NudsfSettings {
    /// The storages. No request creates one.
    pub storages: Vec<StorageSpec>,
    /// The `apiRoot` in URIs of responses. `None`: `http://` or `https://` and the authority of the
    /// request.
    pub api_root: Option<String>,
    /// The keys of access tokens. `None`: requests need no token.
    pub tokens: Option<Arc<TokenKeys>>,
    /// How notifications are delivered.
    pub notify: NotifySettings,
    /// How long requests may wait in the queue of a core before those of low priority are refused.
    /// Zero: none is refused.
    pub overload_delay: Duration,
    /// How long a write waits until it is replicated, if its storage asks for that. Then it is
    /// answered with 504.
    pub replication_wait: Duration,
    /// The optional features that clients are told.
    pub features: FeatureSet,
}

impl Default for NudsfSettings {
    fn default() -> Self {
        Self {
            storages: Vec::new(),
            api_root: None,
            tokens: None,
            notify: NotifySettings::default(),
            overload_delay: Duration::ZERO,
            replication_wait: REPLICATION_WAIT_MAX,
            features: FeatureSet::default(),
        }
    }
}

impl NudsfSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// `BadArgument`: a storage that occurs twice, or two storages of one namespace.
    pub fn validate(&self) -> Result<()> {
        for (index, spec) in self.storages.iter().enumerate() {
            let mut before = self.storages.iter().take(index);
            let is_twice = |other: &StorageSpec| {
                other.namespace == spec.namespace
                    || (&other.realm, &other.storage) == (&spec.realm, &spec.storage)
            };
            if let Some(other) = before.find(|other| is_twice(other)) {
                return Err(Error::BadArgument {
                    detail: format!(
                        "the storages {}/{} and {}/{} are one storage or have one namespace: give \
                         each its own",
                        other.realm, other.storage, spec.realm, spec.storage
                    ),
                });
            }
        }
        if let Some(root) = &self.api_root
            && !(root.starts_with("http://") || root.starts_with("https://"))
        {
            let detail = format!("apiRoot {root:?} must begin with http:// or https://");
            return Err(Error::BadArgument { detail });
        }
        Ok(())
    }
}

macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$row:meta])* $name:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$row])* $name,)+ }

        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The name in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

named! {
    /// A kind of notification.
    NotificationKind {
        /// `onDataChange`.
        DataChange = "data_change",
        /// `recordExpired`.
        RecordExpired = "record_expired",
        /// `subscriptionExpiryNotification`.
        SubscriptionExpiry = "subscription_expiry",
        /// `timerExpiry`.
        TimerExpiry = "timer_expiry",
    }
}

named! {
    /// What became of a notification.
    NotificationResult {
        /// It became due.
        Posted = "due",
        /// The target has accepted it.
        Delivered = "delivered",
        /// The target has refused it for good.
        Rejected = "rejected",
        /// The target was unreachable for too long, or has too many.
        Dropped = "dropped",
    }
}

impl NotificationKind {
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// The classes of status codes that are counted.
const CLASSES: usize = 6;

/// Counts the responses of a core by operation and class of status. Cores that shared the counters
/// would wait for each other's cache lines with each response.
#[derive(Debug, Default)]
pub(crate) struct CoreResponses([[CoreCounter; CLASSES]; OPERATION_COUNT + 1]);

impl CoreResponses {
    /// Counts a response, on the core that has these counters. `None`: the request named no
    /// operation.
    pub(crate) fn count(&self, operation: Option<usize>, status: u16) {
        let row = operation.unwrap_or(OPERATION_COUNT);
        let class = usize::from(status / 100);
        if let Some(count) = self.0.get(row).and_then(|row| row.get(class)) {
            count.add(1);
        }
    }
}

/// Counts responses by operation and class of status, and notifications. All cores share it.
#[derive(Debug)]
pub struct NudsfMetrics {
    /// Those of each core and protocol, which has added its own at its start.
    responses: Mutex<Vec<Arc<CoreResponses>>>,
    notifications: [[AtomicU64; NotificationResult::ALL.len()]; NotificationKind::ALL.len()],
    retries: AtomicU64,
    stalls: AtomicU64,
    lost: AtomicU64,
    set_aside: AtomicU64,
}

impl Default for NudsfMetrics {
    fn default() -> Self {
        Self {
            responses: Mutex::default(),
            notifications: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            retries: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            set_aside: AtomicU64::new(0),
        }
    }
}

impl NudsfMetrics {
    /// Counters of the responses of a core, which no other core adds to.
    pub(crate) fn of_core(&self) -> Arc<CoreResponses> {
        let responses = Arc::<CoreResponses>::default();
        self.lock_responses().push(Arc::clone(&responses));
        responses
    }

    fn lock_responses(&self) -> MutexGuard<'_, Vec<Arc<CoreResponses>>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_notification(&self, kind: NotificationKind, result: NotificationResult) {
        self.count_notifications(kind, result, 1);
    }

    pub(crate) fn count_notifications(
        &self,
        kind: NotificationKind,
        result: NotificationResult,
        number: u64,
    ) {
        let row = self.notifications.get(kind as usize);
        if let Some(count) = row.and_then(|row| row.get(result as usize)) {
            count.fetch_add(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_stall(&self) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_lost(&self, transactions: u64) {
        self.lost.fetch_add(transactions, Ordering::Relaxed);
    }

    pub(crate) fn count_set_aside(&self) {
        self.set_aside.fetch_add(1, Ordering::Relaxed);
    }

    /// Notifications by kind and by what became of them.
    pub fn notifications(&self) -> Vec<(&'static str, &'static str, u64)> {
        let mut all = Vec::new();
        for (kind, row) in NotificationKind::ALL.iter().zip(&self.notifications) {
            for (result, count) in NotificationResult::ALL.iter().zip(row) {
                all.push((kind.name(), result.name(), count.load(Ordering::Relaxed)));
            }
        }
        all
    }

    /// Events of the notifier: `retry` (a target has failed), `stall` (the region was full), `lost`
    /// (a transaction that the log has lost before it was read), `set_aside` (a timer or a
    /// subscription that cannot expire).
    pub fn notifier_events(&self) -> [(&'static str, u64); 4] {
        let all = [
            ("retry", &self.retries),
            ("stall", &self.stalls),
            ("lost", &self.lost),
            ("set_aside", &self.set_aside),
        ];
        all.map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    /// All counts: the operation (`none` for requests that named none), the class (`2xx`), and the
    /// number of responses.
    pub fn snapshot(&self) -> Vec<(&'static str, &'static str, u64)> {
        const NAMES: [&str; CLASSES] = ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx"];
        let (mut all, responses) = (Vec::new(), self.lock_responses());
        let names = OPERATIONS.iter().map(|spec| spec.id).chain(["none"]);
        for (row, name) in names.enumerate() {
            for (class, class_name) in NAMES.iter().enumerate().skip(2) {
                let of_core = |core: &Arc<CoreResponses>| {
                    core.0.get(row).and_then(|row| row.get(class)).map_or(0, CoreCounter::get)
                };
                all.push((name, *class_name, responses.iter().map(of_core).sum()));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storages_are_parsed_and_invalid_ones_refused() {
        let parsed = StorageSpec::parse("Realm01/Storage01=ue").unwrap();
        assert_eq!((parsed.realm.as_str(), parsed.namespace.as_str()), ("Realm01", "ue"));
        assert_eq!(StorageSpec::parse("r/s").unwrap().namespace, "r/s");
        for text in [
            "",
            "r",
            "/s",
            "r/",
            "r/s/t",
            "r/s=",
            "r/s=\u{1}x",
            &format!("r/s={}", "n".repeat(240)),
        ] {
            assert!(StorageSpec::parse(text).is_err(), "{text:?}");
        }
        let storages: Vec<_> =
            ["r/s=a", "r/t=a"].map(|text| StorageSpec::parse(text).unwrap()).into();
        assert!(NudsfSettings { storages, ..NudsfSettings::default() }.validate().is_err());
        let api_root = Some("ftp://x".to_owned());
        assert!(NudsfSettings { api_root, ..NudsfSettings::default() }.validate().is_err());
    }

    #[test]
    fn responses_are_counted_by_operation_and_class() {
        let metrics = NudsfMetrics::default();
        assert!(metrics.snapshot().iter().all(|row| row.2 == 0));
        let (core, other) = (metrics.of_core(), metrics.of_core());
        core.count(Some(0), 204);
        other.count(Some(0), 200);
        core.count(None, 404);
        core.count(Some(99), 200);
        // Each core writes only its own.
        assert_eq!((core.0[0][2].get(), other.0[0][2].get()), (1, 1));
        let counted: Vec<_> = metrics.snapshot().into_iter().filter(|row| row.2 > 0).collect();
        assert_eq!(counted, [("SearchRecord", "2xx", 2), ("none", "4xx", 1)]);
    }
}
