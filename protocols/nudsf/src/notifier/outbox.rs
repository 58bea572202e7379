//! The outbox: notifications that are due and not delivered, as records of the region. What makes a
//! notification due, and the entry of the outbox, are one commit (`docs/decisions/027-notify.md`).
//!
//! An entry has the key `target u64 | number u64` (big-endian), so that the entries of a target are
//! in the order of their numbers. Its value is a [`Notification`].

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use nearstate_model::{Error, Result};
use nearstate_node::executor::{sleep, yield_if_due};
use nearstate_store::{
    LogIdentity, Metadata, Namespace, Schema, Session, TagSchema, Txn, Values, View, now_ms,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::limits::{OutboxLimits, SCAN_STEPS};
use crate::namespace_names::{CONTROL, OUTBOX};
use crate::notifier::notification::{Notification, target_of};
use crate::notifier::room::{CommitLoad, OutboxLoad, TargetLoad};
use crate::settings::{NotificationResult, NudsfMetrics};

const CURSOR: &[u8] = b"cursor";

/// The ordered tag of an entry, with its key.
const ORDER_TAG: &str = "order";

/// Bytes of the entries that are read at once: each of the targets that are served holds as much.
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// How far the notifier has read the log, and the number of the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NotifierCursor {
    log: LogIdentity,
    position: u64,
    next: u64,
}

impl NotifierCursor {
    fn encode(&self) -> Vec<u8> {
        let [one, two] = self.log.region;
        let LogIdentity { incarnation, origin, .. } = self.log;
        let words = [one, two, incarnation, origin, self.position, self.next];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut take = || words.next();
        let region = [take()?, take()?];
        let log = LogIdentity { region, incarnation: take()?, origin: take()? };
        Some(Self { log, position: take()?, next: take()? })
    }
}

/// An entry that was read.
#[derive(Clone, Debug)]
pub(crate) struct OutboxEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) bytes: usize,
    /// Entries with one number are delivered one after the other: those of a record, a timer or a
    /// subscription for one callback.
    pub(crate) order: u64,
    /// The number of the callback.
    pub(crate) callback: u64,
    /// `None`: another client has written something else.
    pub(crate) notification: Option<Notification>,
}

impl OutboxEntry {
    /// The entry of a view. `None`: it is of an order that is excluded.
    fn of(view: &View<'_>, is_excluded: &dyn Fn(u64) -> bool) -> Option<Self> {
        let decoded = Notification::decode_head(view.bytes());
        let head = decoded.as_ref().map(|(head, _)| head);
        let callback = head.map_or(0, |head| xxh3_64(head.uri.as_bytes()));
        let order = head.map_or(0, |head| head.order.rotate_left(1) ^ callback);
        if is_excluded(order) || is_excluded(callback) {
            return None;
        }
        let with_body = |(head, body): (Notification, &[u8])| {
            let body = Bytes::copy_from_slice(body);
            Notification { body, ..head }
        };
        let (key, bytes) = (view.key().to_vec(), view.bytes().len());
        Some(Self { key, bytes, order, callback, notification: decoded.map(with_body) })
    }

    /// The key as a number.
    pub(crate) fn place(&self) -> u128 {
        place_of(&self.key)
    }
}

fn place_of(key: &[u8]) -> u128 {
    key.first_chunk().map_or(0, |key| u128::from_be_bytes(*key))
}

/// Entries of a target that were read.
#[derive(Debug)]
pub(crate) struct OutboxPage {
    pub(crate) entries: Vec<OutboxEntry>,
    /// All entries before this place were excluded.
    pub(crate) next: u128,
    /// There are no others.
    pub(crate) is_end: bool,
}

/// The outbox. Only the notifier of a region changes it.
pub(crate) struct Outbox {
    session: Rc<Session>,
    entries: Namespace,
    control: Namespace,
    load: RefCell<OutboxLoad>,
    limits: OutboxLimits,
    metrics: Arc<NudsfMetrics>,
}

impl Outbox {
    /// Opens the outbox. Creates it if it does not exist. [`Outbox::load`] counts what it has.
    ///
    /// # Errors
    /// As [`Session::namespace`].
    pub(crate) fn open(
        session: Rc<Session>,
        limits: OutboxLimits,
        metrics: Arc<NudsfMetrics>,
    ) -> Result<Self> {
        let order =
            TagSchema { name: ORDER_TAG.to_owned(), is_ordered: true, ..TagSchema::default() };
        let schema = Schema { tags: vec![order], ..Schema::default() };
        let entries = session.namespace(OUTBOX, &schema)?;
        let control = session.namespace(CONTROL, &Schema::default())?;
        let load = RefCell::default();
        Ok(Self { session, entries, control, load, limits, metrics })
    }

    /// Counts the entries. Yields to requests: there may be some hundred thousand. Before anything
    /// is posted or delivered.
    ///
    /// # Errors
    /// As [`Session::scan`].
    pub(crate) async fn load(&self) -> Result<()> {
        let (mut scan, mut steps) = (self.session.scan(self.entries)?, 0_u32);
        while scan.step()? {
            if let Some(view) = scan.view()? {
                self.add(view.key(), view.bytes().len());
            }
            steps += 1;
            if steps.is_multiple_of(SCAN_STEPS) {
                yield_if_due().await;
            }
        }
        Ok(())
    }

    fn add(&self, key: &[u8], bytes: usize) {
        if let Some((target, _)) = key.split_first_chunk::<8>() {
            self.load.borrow_mut().add(u64::from_be_bytes(*target), bytes);
        }
    }

    /// A target has no entries: what was counted for it was removed by a delivery of an earlier
    /// run. Only the task of the target calls it.
    pub(crate) fn forget(&self, target: u64) {
        self.load.borrow_mut().forget(target);
    }

    /// Takes the room for an entry of this size, in a commit that has taken some. False: there is
    /// none.
    pub(crate) fn take_room(&self, commit: &mut CommitLoad, target: u64, bytes: usize) -> bool {
        commit.take((&self.load.borrow(), &self.limits), target, bytes)
    }

    /// The session with which the outbox is read and changed.
    pub(crate) fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// The targets that have entries.
    pub(crate) fn targets(&self) -> Vec<u64> {
        self.load.borrow().targets.keys().copied().collect()
    }

    /// Writes the position in the present log, if there is none: changes from now on are notified,
    /// or those since the region became the owner's. Counts what was not read of the log before.
    ///
    /// # Errors
    /// As [`Session::transact`].
    pub(crate) fn begin(&self) -> Result<()> {
        let lost = self.session.transact(|txn| -> Result<u64> {
            let view = txn.get(self.control, CURSOR)?;
            let bytes = view.as_ref().map_or(&[][..], |view| view.bytes());
            let (cursor, lost) = self.cursor(bytes)?;
            if NotifierCursor::decode(bytes) == Some(cursor) {
                return Ok(0);
            }
            txn.put(self.control, CURSOR, &cursor.encode())?;
            Ok(lost)
        })?;
        self.metrics.count_lost(lost);
        Ok(())
    }

    /// The position of the log up to which it was read.
    ///
    /// # Errors
    /// As [`Session::get`].
    pub(crate) fn position(&self) -> Result<u64> {
        Ok(match self.session.get(self.control, CURSOR)?.map(|view| self.cursor(view.bytes())) {
            Some(cursor) => cursor?.0.position,
            // The end of the log: what was committed before is not notified.
            None => self.session.log_tail_position()?,
        })
    }

    /// The cursor in the present log, and the positions of an earlier one that were not read.
    fn cursor(&self, bytes: &[u8]) -> Result<(NotifierCursor, u64)> {
        let log = self.session.log_identity()?;
        let stored = NotifierCursor::decode(bytes);
        let next = match stored {
            Some(cursor) => cursor.next,
            // Entries without a cursor are of a host that has replicated only them.
            None => self.next_of_entries()?,
        };
        let at = |position, lost| Ok((NotifierCursor { log, position, next }, lost));
        let tail = || self.session.log_tail_position();
        match (stored, self.session.takeover()?) {
            (Some(cursor), _) if cursor.log == log => Ok((cursor, 0)),
            // The positions of a region go on when its log gets another name.
            (Some(cursor), _) if cursor.log.region == log.region => {
                at(cursor.position.min(tail()?), 0)
            }
            // The region is the owner's since this position, and nothing has read that yet. How
            // much of other logs was not read is not known.
            (Some(cursor), Some(takeover)) => {
                let is_known = cursor.log == takeover.old;
                let lost = takeover.seal.position.saturating_sub(cursor.position);
                at(takeover.position, if is_known { lost } else { 1 })
            }
            (None, Some(takeover)) => at(takeover.position, 0),
            (Some(_) | None, None) => at(tail()?, 0),
        }
    }

    /// The first number behind those of all entries.
    fn next_of_entries(&self) -> Result<u64> {
        let (mut next, all) = (0, Values::Range(Bound::Unbounded, Bound::Unbounded));
        self.session.find_keys(self.entries, (ORDER_TAG, all), |key| {
            let number = key.last_chunk().map_or(0, |number| u64::from_be_bytes(*number));
            next = next.max(number.saturating_add(1));
            true
        })?;
        Ok(next)
    }

    /// Posts notifications, with the position of the log from which they are, and what `also`
    /// changes, in one commit. `also` returns what it makes due. Returns the targets.
    ///
    /// # Errors
    /// As [`Txn::commit`].
    pub(crate) fn try_post(
        &self,
        position: Option<u64>,
        also: impl FnOnce(&Txn<'_>) -> Result<Vec<Notification>>,
    ) -> Result<Vec<u64>> {
        let txn = self.session.begin()?;
        let notifications = also(&txn)?;
        let (mut posted, mut dropped) = (Vec::new(), Vec::new());
        // Timers without a callback, for example, change neither the position nor the next number.
        if position.is_some() || !notifications.is_empty() {
            let view = txn.get(self.control, CURSOR)?;
            let bytes = view.as_ref().map_or(&[][..], |view| view.bytes());
            let (mut cursor, _) = self.cursor(bytes)?;
            let mut commit = CommitLoad::default();
            // Together: each write of its own would validate all before it.
            txn.validated_once(|| -> Result<()> {
                for notification in &notifications {
                    let target = target_of(&notification.uri);
                    let bytes = notification.encode();
                    if !self.take_room(&mut commit, target, bytes.len()) {
                        dropped.push(notification.kind);
                        continue;
                    }
                    let key = [target.to_be_bytes(), cursor.next.to_be_bytes()].concat();
                    cursor.next += 1;
                    let metadata = Metadata { tags: &[(ORDER_TAG, &key)], expires_ms: 0 };
                    txn.put_with_metadata(self.entries, &key, &bytes, metadata)?;
                    posted.push((target, bytes.len()));
                }
                Ok(())
            })?;
            cursor.position = position.unwrap_or(cursor.position);
            txn.put(self.control, CURSOR, &cursor.encode())?;
        }
        txn.commit()?;
        for notification in &notifications {
            self.metrics.count_notification(notification.kind, NotificationResult::Posted);
        }
        for kind in dropped {
            self.metrics.count_notification(kind, NotificationResult::Dropped);
        }
        let mut load = self.load.borrow_mut();
        for (target, bytes) in &posted {
            load.add(*target, *bytes);
        }
        let mut targets: Vec<u64> = posted.into_iter().map(|(target, _)| target).collect();
        targets.sort_unstable();
        targets.dedup();
        Ok(targets)
    }

    /// The first entries of a target from a place on, without those that are excluded: at most
    /// `limit`, and at most [`BATCH_BYTES`] behind the first one. Examines some hundreds.
    /// `is_excluded` is asked for orders and for callbacks.
    ///
    /// # Errors
    /// As [`Session::find_some`].
    pub(crate) fn read(
        &self,
        target: u64,
        (from, limit): (u128, usize),
        is_excluded: &dyn Fn(u64) -> bool,
    ) -> Result<OutboxPage> {
        const EXAMINED_MAX: usize = 512;
        let first = u128::from(target) << 64;
        let (begin, end) = (first.max(from).to_be_bytes(), (first | u128::from(u64::MAX)));
        let end = end.to_be_bytes();
        let values = Values::Range(Bound::Included(&begin), Bound::Included(&end));
        let mut page = OutboxPage { entries: Vec::new(), next: from, is_end: true };
        let (mut bytes, mut examined) = (0, 0);
        self.session.find_some(self.entries, (ORDER_TAG, values), u64::MAX, |view| {
            examined += 1;
            if let Some(entry) = OutboxEntry::of(view, is_excluded) {
                bytes += entry.bytes;
                page.entries.push(entry);
            } else if page.entries.is_empty() {
                page.next = place_of(view.key()).saturating_add(1);
            }
            let goes_on =
                page.entries.len() < limit && bytes < BATCH_BYTES && examined < EXAMINED_MAX;
            page.is_end = goes_on;
            goes_on
        })?;
        Ok(page)
    }

    /// The entry at a place, if there is one.
    ///
    /// # Errors
    /// As [`Session::get`].
    pub(crate) fn entry(&self, place: u128) -> Result<Option<OutboxEntry>> {
        let view = self.session.get(self.entries, &place.to_be_bytes())?;
        Ok(view.and_then(|view| OutboxEntry::of(&view, &|_| false)))
    }

    /// Removes delivered entries of a target. A commit that is too large, which the log of a region
    /// may refuse, is tried again with half of them. False: the deliveries are over, and what could
    /// not be removed until then remains.
    ///
    /// # Errors
    /// What no other attempt changes.
    pub(crate) async fn remove(
        &self,
        target: u64,
        entries: &[OutboxEntry],
        is_over: &Cell<bool>,
    ) -> Result<bool> {
        let (mut rest, mut most) = (entries, entries.len());
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(most));
            let keys: Vec<_> = part.iter().map(|entry| (self.entries, &entry.key[..])).collect();
            let removed = self.session.transact(|txn| txn.delete_all(&keys).map(drop));
            match removed {
                Ok(()) => {
                    self.subtract(target, part);
                    rest = behind;
                }
                Err(Error::TransactionTooLarge { .. }) if part.len() > 1 => most = part.len() / 2,
                Err(
                    Error::Conflict { .. }
                    | Error::Full { .. }
                    | Error::Behind { .. }
                    | Error::Stalled { .. }
                    | Error::Deadline { .. },
                ) => {
                    if is_over.get() {
                        return Ok(false);
                    }
                    sleep(Duration::from_millis(10)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn subtract(&self, target: u64, removed: &[OutboxEntry]) {
        let bytes = removed.iter().map(|entry| entry.bytes).sum();
        let removed = TargetLoad { entries: removed.len(), bytes };
        self.load.borrow_mut().subtract(target, removed);
    }

    /// Milliseconds since a notification became due.
    pub(crate) fn age_ms(notification: &Notification) -> u64 {
        now_ms().saturating_sub(notification.due_ms)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use nearstate_node::executor::{Executor, ExecutorConfig, TaskClass, spawn, yield_now};
    use nearstate_store::{CreateOptions, Region, WhenFull};

    use super::*;
    use crate::settings::NotificationKind;

    #[test]
    fn at_the_end_what_a_full_log_does_not_let_be_removed_remains() {
        let folder = tempfile::tempdir().unwrap();
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &options).unwrap();
        let session = Rc::new(region.session().unwrap());
        let outbox =
            Outbox::open(Rc::clone(&session), OutboxLimits::default(), Arc::default()).unwrap();
        session.stream(outbox.entries, WhenFull::Refuse).unwrap();
        let (key, value) = ([7; 16], vec![1; 100_000]);
        let put = || {
            session.transact(|txn| -> Result<()> {
                let metadata = Metadata { tags: &[(ORDER_TAG, &key)], expires_ms: 0 };
                txn.put_with_metadata(outbox.entries, &key, &value, metadata)
            })
        };
        let full = std::iter::repeat_with(put).take(200).find_map(Result::err);
        assert!(matches!(full, Some(Error::Behind { .. })), "{full:?}");
        let place = u128::from_be_bytes(key);
        let entries: Vec<_> = outbox.entry(place).unwrap().into_iter().collect();
        assert_eq!(entries.len(), 1);
        let is_over = Cell::new(true);
        let remove = std::pin::pin!(outbox.remove(0, &entries, &is_over));
        let removed = remove.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(removed, Poll::Ready(Ok(false))), "{removed:?}");
        assert!(outbox.entry(place).unwrap().is_some());
        // A log with space lets it be removed at the end as well.
        session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
        let remove = std::pin::pin!(outbox.remove(0, &entries, &is_over));
        let removed = remove.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(removed, Poll::Ready(Ok(true))), "{removed:?}");
        assert!(outbox.entry(place).unwrap().is_none());
    }

    #[test]
    fn without_a_cursor_entries_are_numbered_behind_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("region"), &CreateOptions::default());
        let session = Rc::new(region.unwrap().session().unwrap());
        let outbox =
            Outbox::open(Rc::clone(&session), OutboxLimits::default(), Arc::default()).unwrap();
        let post = || {
            let notification = Notification {
                kind: NotificationKind::TimerExpiry,
                due_ms: 0,
                order: 1,
                uri: "http://nf.example/".to_owned(),
                content_type: String::new(),
                location: String::new(),
                body: Bytes::new(),
            };
            outbox.try_post(None, |_| Ok(vec![notification])).unwrap();
            session.count(outbox.entries).unwrap()
        };
        assert_eq!((post(), post()), (1, 2));
        session.transact(|txn| txn.delete(outbox.control, CURSOR)).unwrap();
        assert_eq!(post(), 3, "none is replaced");
        outbox.begin().unwrap();
        assert_eq!(post(), 4);
    }

    #[test]
    fn requests_are_served_while_many_entries_are_counted() {
        const ENTRIES: u64 = 20_000;
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("region"), &CreateOptions::default());
        let session = Rc::new(region.unwrap().session().unwrap());
        let outbox = Outbox::open(Rc::clone(&session), OutboxLimits::default(), Arc::default());
        let outbox = outbox.unwrap();
        for first in (0..ENTRIES).step_by(500) {
            let put = session.transact(|txn| -> Result<()> {
                for number in first..first + 500 {
                    let key = [number % 2, number].map(u64::to_be_bytes).concat();
                    let metadata = Metadata { tags: &[(ORDER_TAG, &key)], expires_ms: 0 };
                    txn.put_with_metadata(outbox.entries, &key, b"entry", metadata)?;
                }
                Ok(())
            });
            put.unwrap();
        }
        let (requests, is_over) = (Rc::<Cell<u64>>::default(), Rc::<Cell<bool>>::default());
        let (counted, over) = (Rc::clone(&requests), Rc::clone(&is_over));
        let executor = Executor::new(&ExecutorConfig::default()).unwrap();
        let (load, during) = executor.run(async move {
            drop(spawn(TaskClass::Request, "requests", async move {
                while !over.get() {
                    counted.set(counted.get() + 1);
                    yield_now().await;
                }
            }));
            let loading = spawn(TaskClass::Background, "load", async move {
                let before = requests.get();
                outbox.load().await.unwrap();
                is_over.set(true);
                (outbox.load.take(), requests.get() - before)
            });
            loading.await.unwrap()
        });
        assert_eq!(load.bytes as u64, ENTRIES * 5);
        assert!(load.targets.values().all(|one| one.entries as u64 == ENTRIES / 2), "{load:?}");
        assert!(during > 0, "no request was served");
    }

    #[test]
    fn a_cursor_reads_back() {
        let log = LogIdentity { region: [1, 2], incarnation: 3, origin: 0 };
        let cursor = NotifierCursor { log, position: 4, next: 5 };
        assert_eq!(NotifierCursor::decode(&cursor.encode()), Some(cursor));
        assert_eq!(NotifierCursor::decode(b"short"), None);
    }
}
