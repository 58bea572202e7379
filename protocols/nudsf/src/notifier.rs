//! The notifier: one task of one node of a region. It turns what is due into entries of the outbox,
//! each in the commit that makes it due or in the one that advances the position in the log, and
//! delivers them (`docs/decisions/027-notify.md`).

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_node::executor::{TaskClass, sleep, spawn, yield_if_due, yield_now};
use nearstate_store::{OwnerLease, Txn, now_ms, since_boot};

use crate::limits::{NOTIFIER_INTERVAL, REPORT_INTERVAL};
use crate::notifier::delivery::{Deliveries, DeliveriesGuard};
use crate::notifier::expiry::DueRecords;
use crate::notifier::expiry_collector::ExpiryCollector;
use crate::notifier::log_reader::{StorageSubscriptions, watched};
use crate::notifier::notification_page::PartialTransaction;
use crate::notifier::outbox::Outbox;
use crate::repository::Repository;
use crate::settings::NotifierEvent;

mod log_reader;
mod notification_page;
mod expiry;
mod delivery;
mod expiry_collector;
mod callback_state;
mod sender;
mod host_client;
mod outbox;
mod room;
mod notification;
mod subscribers;
mod notified_record;

/// How often a node that does not deliver tries to, and one that delivers looks at all targets.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Transactions without notifications after which the position is written.
const UNWRITTEN_MAX: usize = 1024;

/// Makes one task of the process, and one process of the region, the notifier.
#[derive(Debug, Default)]
pub(crate) struct NotifierClaim {
    is_taken: AtomicBool,
    /// Held until the process ends.
    file: Mutex<Option<File>>,
}

impl NotifierClaim {
    fn held(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if this process has the lock of the region, or needs none.
    fn is_held(&self, path: Option<&Path>) -> bool {
        path.is_none() || self.held().is_some()
    }

    /// Takes the lock of the region. False: another process has it.
    fn lock(&self, path: Option<&Path>) -> Result<bool> {
        let Some(path) = path else { return Ok(true) };
        let mut held = self.held();
        if held.is_some() {
            return Ok(true);
        }
        let failed = |error: &std::io::Error| Error::System {
            detail: format!("cannot lock {}", path.display()),
            errno: error.raw_os_error().unwrap_or(0),
        };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| failed(&error))?;
        match file.try_lock() {
            Ok(()) => {
                *held = Some(file);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(failed(&error)),
        }
    }
}

/// Starts the notifier, unless the process has one. If no other process delivers, the position in
/// the log is written before the first request.
pub(crate) fn begin(repository: &Rc<Repository>, claim: &Arc<NotifierClaim>) {
    let is_idle = repository.settings.storages.is_empty();
    if is_idle || claim.is_taken.swap(true, Ordering::AcqRel) {
        return;
    }
    let log = repository.settings.notify.log.clone();
    let due = DueRecords::new(log.clone(), Arc::clone(&repository.metrics));
    let notifier = Notifier { repository: Rc::clone(repository), claim: Arc::clone(claim), due };
    // Followers must not make the log forget what has not been read.
    let region = notifier.repository.session.region();
    region.hold_log(Some(0));
    // Without the region nothing is served either; the task tries again.
    if notifier.is_owner().unwrap_or(false) {
        let _ = notifier.outbox().and_then(|outbox| outbox.begin());
    }
    drop(spawn(TaskClass::Background, "nudsf-notifier", async move {
        let mut reported: Option<Duration> = None;
        loop {
            if notifier.is_owner().unwrap_or(false) {
                // A failure of the region: everything that is due is still in it.
                let failed = notifier.run().await.err();
                let is_new = reported.is_none_or(|at| since_boot() >= at + REPORT_INTERVAL);
                if let Some(error) = failed.filter(|_| is_new) {
                    reported = Some(since_boot());
                    log.emit(&NotifierEvent::Failed { reason: error.to_string() });
                }
            } else if !notifier.claim.is_held(notifier.lock_path()) {
                // Another process reads the log.
                region.hold_log(None);
            }
            sleep(LOOK_INTERVAL).await;
        }
    }));
}

/// The position behind which the log is read on.
fn behind(position: u64, partial: Option<&PartialTransaction>) -> u64 {
    partial.map_or(position, |partial| partial.number.saturating_sub(1))
}

struct Notifier {
    repository: Rc<Repository>,
    claim: Arc<NotifierClaim>,
    due: DueRecords,
}

impl Notifier {
    /// True if this process delivers: it has the lock, and the region is no copy of another host's.
    /// In a cluster the host has a lease of the partition.
    fn is_owner(&self) -> Result<bool> {
        if !self.claim.lock(self.lock_path())? {
            return Ok(false);
        }
        if self.repository.session.owner_lease()? == OwnerLease::Expired {
            return Ok(false);
        }
        for (storage, _) in self.repository.storages()? {
            if self.repository.session.is_followed(storage.records)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn lock_path(&self) -> Option<&Path> {
        self.repository.settings.notify.lock.as_deref()
    }

    fn outbox(&self) -> Result<Outbox> {
        let session = Rc::clone(&self.repository.session);
        let limits = self.repository.settings.notify.limits;
        Outbox::open(session, limits, Arc::clone(&self.repository.metrics))
    }

    /// Delivers until the region fails or belongs to another host, and until everything that is in
    /// flight then is answered.
    async fn run(&self) -> Result<()> {
        let outbox = self.outbox()?;
        outbox.load().await?;
        outbox.begin()?;
        let tls = self.repository.settings.notify.tls.clone();
        let collector = ExpiryCollector::new(self.repository.settings.notify.log.clone());
        let metrics = Arc::clone(&self.repository.metrics);
        let deliveries = Rc::new(Deliveries::new(outbox, collector, tls, metrics));
        let guard = DeliveriesGuard(Rc::clone(&deliveries));
        let outcome = self.notify(&deliveries).await;
        drop(guard);
        deliveries.ended().await;
        outcome
    }

    /// Finds what is due until the region fails or belongs to another host.
    async fn notify(&self, deliveries: &Rc<Deliveries>) -> Result<()> {
        let (session, metrics) = (&self.repository.session, &self.repository.metrics);
        let mut position = deliveries.outbox.position()?;
        // The log keeps what is behind the stored position, for this run and the next one.
        let region = session.region();
        region.hold_log(Some(position));
        let mut known = session.namespace_changes()?;
        let mut storages = self.repository.storages()?;
        let mut subscribers = StorageSubscriptions::load(session, storages.clone()).await?;
        let mut stream = session.commit_stream_behind(position)?;
        let (mut unwritten, mut looked_ms, mut partial) = (0, 0, None);
        loop {
            // Timers are fired by the host that has the lease: a look of two loads.
            if session.owner_lease()? == OwnerLease::Expired {
                return Ok(());
            }
            if now_ms().abs_diff(looked_ms) >= LOOK_INTERVAL.as_millis().try_into().unwrap_or(0) {
                looked_ms = now_ms();
                deliveries.wake_all();
                if !self.is_owner()? {
                    return Ok(());
                }
            }
            let changes = session.namespace_changes()?;
            if changes.is_none() || changes != known {
                known = changes;
                let now = self.repository.storages()?;
                if watched(&now) != watched(&storages) {
                    storages = now;
                    subscribers = StorageSubscriptions::load(session, storages.clone()).await?;
                }
            }
            let mut is_busy = deliveries.collector.borrow_mut().round(session);
            let batch = subscribers.read(&mut stream, position, partial.as_ref())?;
            if known.is_some() && session.namespace_changes()? != known {
                // The entries may be of a storage that was created meanwhile: they are read again.
                stream = session.commit_stream_behind(behind(position, partial.as_ref()))?;
                yield_now().await;
                continue;
            }
            if batch.lost > 0 {
                metrics.count_lost(batch.lost);
                subscribers = StorageSubscriptions::load(session, storages.clone()).await?;
            }
            is_busy |= batch.transactions > 0;
            (position, partial) = (batch.position, batch.partial);
            if partial.is_some() {
                stream = session.commit_stream_behind(behind(position, partial.as_ref()))?;
            }
            unwritten += batch.transactions;
            // A later run loads the subscriptions as they are then: it must not match them with
            // what was before.
            let is_due = !batch.notifications.is_empty() || batch.has_subscription;
            if is_due || batch.lost > 0 || unwritten >= UNWRITTEN_MAX {
                unwritten = 0;
                let post = |_: &Txn<'_>| Ok(batch.notifications.clone());
                deliveries.post(Some(position), post).await?;
                region.hold_log(Some(position));
            }
            for (storage, uri) in &storages {
                is_busy |= self.due.take(deliveries, (storage, uri)).await;
                yield_if_due().await;
            }
            if is_busy {
                yield_now().await;
            } else {
                deliveries.collector.borrow_mut().look_next();
                sleep(NOTIFIER_INTERVAL).await;
            }
        }
    }
}
