//! Keyspace events of the host that owns a partition, until their changes are replicated: a
//! fail-over may lose a change before that (`docs/decisions/029-policies.md`).

use std::collections::VecDeque;

use nearstate_model::{Result, invariant};
use nearstate_store::{
    EventKind, Form, Namespace, OwnerLease, ReceiptState, ReplicationPolicy, Session,
};

/// Events that are delayed at the most: those of some milliseconds of writes, or some of a lease
/// that has ended. Further ones are lost.
const EVENTS_MAX: usize = 1 << 16;

/// An event, as it is published.
#[derive(Clone, Debug)]
pub(crate) struct DelayedEvent {
    pub(crate) key: Vec<u8>,
    pub(crate) kind: EventKind,
    pub(crate) form: Form,
}

/// What becomes of an event.
#[derive(Debug)]
pub(crate) enum EventRelease {
    /// It is published now.
    Now(DelayedEvent),
    /// It is published when its change is replicated.
    Delayed,
    /// Too many are delayed.
    Lost,
}

/// What may be published of delayed events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseState {
    /// Those whose positions are replicated; the others wait.
    Replicated,
    /// The same; the others never are: another host owns the region.
    OnlyReplicated,
    /// All: the region belongs to no cluster any more.
    All,
    /// None at present: the lease has ended.
    None,
}

/// Held events, each with a position of the log that its change is not behind, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct DelayedEvents(VecDeque<(u64, DelayedEvent)>);

impl DelayedEvents {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Holds an event that was just read, if its change has to be replicated first.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub(crate) fn hold(
        &mut self,
        session: &Session,
        namespace: Namespace,
        event: DelayedEvent,
    ) -> Result<EventRelease> {
        // An event carries no position: its change is not behind the present end.
        let position = session.log_tail_position()?;
        // What a copy has applied, another host has as well.
        let is_free = position == 0
            || session.replication_policy(namespace)? == ReplicationPolicy::Local
            || session.owner_lease()? == OwnerLease::Unclustered
            || session.following()?.is_some();
        if is_free {
            return Ok(EventRelease::Now(event));
        }
        if self.0.len() >= EVENTS_MAX {
            return Ok(EventRelease::Lost);
        }
        let last = self.0.back().map_or(0, |(last, _)| *last);
        // A demotion does not shorten a log, and a region that is created anew ends the watch.
        self.0.push_back((position.max(last), event));
        Ok(EventRelease::Delayed)
    }

    /// Gives the events whose changes may leave the host to `publish`. Returns the number of those
    /// that never may.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub(crate) fn release(
        &mut self,
        session: &Session,
        mut publish: impl FnMut(&DelayedEvent),
    ) -> Result<u64> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let state = match session.owner_lease()? {
            OwnerLease::Unclustered => ReleaseState::All,
            _ if session.following()?.is_some() => ReleaseState::OnlyReplicated,
            OwnerLease::Held { .. } => ReleaseState::Replicated,
            OwnerLease::Expired => ReleaseState::None,
        };
        let mut lost = 0;
        while let Some((position, event)) = self.0.front() {
            let known = session.receipt_state(session.receipt_at(*position)?)?;
            match (state, known) {
                (ReleaseState::None, _) | (ReleaseState::Replicated, ReceiptState::Pending) => {
                    break;
                }
                (ReleaseState::All, _)
                | (
                    ReleaseState::Replicated | ReleaseState::OnlyReplicated,
                    ReceiptState::Replicated,
                ) => publish(event),
                (ReleaseState::Replicated, ReceiptState::Lost | ReceiptState::Unknown)
                | (
                    ReleaseState::OnlyReplicated,
                    ReceiptState::Lost | ReceiptState::Unknown | ReceiptState::Pending,
                ) => {
                    lost += 1;
                }
            }
            let next = self.0.pop_front();
            invariant!(next.is_some(), "the first event was looked at");
        }
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nearstate_store::{CreateOptions, Region, Schema, lease_clock};

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn published(delayed: &mut DelayedEvents, session: &Session) -> (Vec<Vec<u8>>, u64) {
        let mut keys = Vec::new();
        let lost = delayed.release(session, |event| keys.push(event.key.clone())).unwrap();
        (keys, lost)
    }

    #[test]
    fn events_leave_with_their_changes_and_those_of_lost_changes_do_not() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let create = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &create).unwrap();
        let session = region.session().unwrap();
        let open = |name, policy| session.namespace_with_policy(name, &Schema::default(), policy);
        let logged = open("logged", ReplicationPolicy::Async).unwrap();
        let local = open("local", ReplicationPolicy::Local).unwrap();
        let mut delayed = DelayedEvents::default();
        let mut change = |namespace, key: &str| {
            session.put(namespace, key.as_bytes(), b"v").unwrap();
            let (kind, form) = (EventKind::Created, Form::Value);
            let event = DelayedEvent { key: key.as_bytes().to_vec(), kind, form };
            (delayed.hold(&session, namespace, event).unwrap(), delayed.0.len())
        };
        assert!(matches!(change(logged, "single host"), (EventRelease::Now(_), 0)));
        session.begin_partition(1).unwrap();
        session.set_owner_lease(lease_clock() + HOUR).unwrap();
        assert!(matches!(change(local, "local"), (EventRelease::Now(_), 0)));
        assert!(matches!(change(logged, "a"), (EventRelease::Delayed, 1)));
        let first = session.log_tail_position().unwrap();
        assert!(matches!(change(logged, "b"), (EventRelease::Delayed, 2)));
        assert_eq!(published(&mut delayed, &session), (vec![], 0));
        session.acknowledge_to(first).unwrap();
        session.set_owner_lease(Duration::ZERO).unwrap();
        assert_eq!(published(&mut delayed, &session), (vec![], 0), "the host has no lease");
        session.set_owner_lease(lease_clock() + HOUR).unwrap();
        assert_eq!(published(&mut delayed, &session), (vec![b"a".to_vec()], 0));
        session.set_fenced(true).unwrap();
        session.demote(Some(first)).unwrap();
        assert_eq!(published(&mut delayed, &session), (vec![], 1), "the group does not have it");
        assert!(delayed.is_empty());
    }
}
