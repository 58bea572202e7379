//! A page of notifications: what one read of the log returns, and the place at which the next one
//! begins.

use crate::notifier::notification::Notification;

/// What one read of the log returns at most: transactions, notifications and their bytes (the last
/// one may exceed it by its own). One commit posts them: a transaction has at most 4,096 records.
pub(crate) const TRANSACTIONS_MAX: usize = 64;
const NOTIFICATIONS_MAX: usize = 256;
const BYTES_MAX: usize = 4 << 20;

/// What one read looks at: subscriptions with the single blocks that they monitor (of the last one
/// it may be 1,024 more), and bytes of records (of the last one it may be more). The core serves
/// requests between two reads.
const LOOKS_MAX: usize = 4096;
const EXAMINED_MAX: usize = 8 << 20;

/// A place among the notifications of a transaction: that of the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NotificationPlace {
    /// The number of the record.
    pub(crate) record: usize,
    /// The number of the storage.
    pub(crate) storage: usize,
    pub(crate) step: RecordStep,
    /// The first subscription to look at; `None`: all.
    pub(crate) subscription: Option<Vec<u8>>,
}

/// What a change of a record makes due, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RecordStep {
    /// The callback of a record that has expired.
    #[default]
    Expired,
    /// The end of a record that has expired, for subscriptions.
    Ended,
    /// The change.
    Changed,
}

/// A transaction of which a read has returned some notifications, because it has more than one read
/// returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartialTransaction {
    /// Its position in the log.
    pub(crate) number: u64,
    pub(crate) place: NotificationPlace,
}

/// The notifications of one read. Neither a transaction with many records nor many subscriptions
/// make it large or long: each notification is built only when it is returned, and the next read
/// begins at the place at which this one has ended.
#[derive(Debug, Default)]
pub(crate) struct NotificationPage {
    pub(crate) found: Vec<Notification>,
    bytes: usize,
    /// Subscriptions that were looked at, and monitored or changed blocks of each.
    pub(crate) looks: usize,
    /// Bytes of the records that were looked at.
    pub(crate) examined: usize,
}

impl NotificationPage {
    /// No further notification of the record may be added.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= NOTIFICATIONS_MAX || self.bytes >= BYTES_MAX || self.looks >= LOOKS_MAX
    }

    /// No further record is looked at.
    pub(crate) fn is_over(&self) -> bool {
        self.is_full() || self.examined >= EXAMINED_MAX
    }

    pub(crate) fn add(&mut self, notification: Notification) {
        self.bytes += notification.body.len() + 512;
        self.found.push(notification);
    }
}
