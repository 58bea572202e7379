//! Settings that `CONFIG SET` changes while the server runs.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// The current values. Each is read on its own, so that a change needs no lock.
#[derive(Debug)]
pub struct RuntimeSettings {
    slow_micros: AtomicU64,
    slow_entries_max: AtomicUsize,
    mailbox_bytes_max: AtomicUsize,
    latency_threshold_ms: AtomicU64,
    log_level: AtomicU8,
}

/// The least severe level that is logged, with the names of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerLogLevel {
    /// Everything.
    Debug,
    /// As `Notice`: there is no level between.
    Verbose,
    /// Normal operation.
    Notice,
    /// Only what an operator should look at.
    Warning,
}

impl ServerLogLevel {
    /// All levels.
    pub const ALL: [Self; 4] = [Self::Debug, Self::Verbose, Self::Notice, Self::Warning];

    /// The name in `CONFIG`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Verbose => "verbose",
            Self::Notice => "notice",
            Self::Warning => "warning",
        }
    }
}

impl RuntimeSettings {
    /// With these values, no latency threshold, and normal logging.
    pub const fn new(slow_micros: u64, slow_entries_max: usize, mailbox_bytes_max: usize) -> Self {
        Self {
            slow_micros: AtomicU64::new(slow_micros),
            slow_entries_max: AtomicUsize::new(slow_entries_max),
            mailbox_bytes_max: AtomicUsize::new(mailbox_bytes_max),
            latency_threshold_ms: AtomicU64::new(0),
            log_level: AtomicU8::new(ServerLogLevel::Notice as u8),
        }
    }

    /// Threshold of the slow log in microseconds; `u64::MAX` for none.
    #[inline]
    pub fn slow_micros(&self) -> u64 {
        self.slow_micros.load(Ordering::Relaxed)
    }

    /// Sets the threshold of the slow log.
    pub fn set_slow_micros(&self, micros: u64) {
        self.slow_micros.store(micros, Ordering::Relaxed);
    }

    /// Limit of slow log entries.
    pub fn slow_entries_max(&self) -> usize {
        self.slow_entries_max.load(Ordering::Relaxed)
    }

    /// Sets the limit of slow log entries.
    pub fn set_slow_entries_max(&self, entries: usize) {
        self.slow_entries_max.store(entries, Ordering::Relaxed);
    }

    /// Limit of queued message bytes of a new connection.
    pub fn mailbox_bytes_max(&self) -> usize {
        self.mailbox_bytes_max.load(Ordering::Relaxed)
    }

    /// Sets the limit of queued message bytes of new connections.
    pub fn set_mailbox_bytes_max(&self, bytes: usize) {
        self.mailbox_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Threshold of `LATENCY` in milliseconds; 0 for none.
    #[inline]
    pub fn latency_threshold_ms(&self) -> u64 {
        self.latency_threshold_ms.load(Ordering::Relaxed)
    }

    /// Sets the threshold of `LATENCY`.
    pub fn set_latency_threshold_ms(&self, millis: u64) {
        self.latency_threshold_ms.store(millis, Ordering::Relaxed);
    }

    /// The log level.
    pub fn log_level(&self) -> ServerLogLevel {
        let level = self.log_level.load(Ordering::Relaxed);
        let found = ServerLogLevel::ALL.into_iter().find(|one| *one as u8 == level);
        found.unwrap_or(ServerLogLevel::Notice)
    }

    /// Sets the log level.
    pub fn set_log_level(&self, level: ServerLogLevel) {
        self.log_level.store(level as u8, Ordering::Relaxed);
    }
}
