//! What a command is given of the client that asked.

use crate::command::command_table::Catalogue;
use crate::connection_state::Link;
use crate::parse::Args;
use crate::records::{Fault, Found, Records, Spot};
use crate::reply::Reply;
use crate::reply::error_reply::Refusal;
use crate::server::Server;
use nearstate_model::Error;
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_store::{Namespace, RetryPolicy, Session, Txn, View, since_boot};
use std::sync::Arc;
use std::time::Duration;

/// How long the transaction of one command is tried again when others are faster. Its core serves
/// nobody else meanwhile; a transaction over a thousand records takes some milliseconds.
pub(crate) const TRIED_FOR: Duration = Duration::from_millis(100);

/// With [`TRIED_FOR`].
pub(crate) const PATIENCE: RetryPolicy =
    RetryPolicy { tries: TRANSACTION_TRIES, within: Some(TRIED_FOR) };

/// Carries a command out and writes its one answer. After a refusal nothing that it has written
/// stands: the caller rewinds the reply and writes the refusal.
pub type Run = for<'a> fn(&mut Client<'_>, Args<'a>, &mut Reply<'_>) -> Result<(), Refusal>;

/// A row of the table.
pub type Command = crate::command::Command<Run>;

/// The client's side of a request.
#[derive(Debug)]
pub struct Client<'c> {
    /// All commands.
    pub catalogue: &'static Catalogue<Run>,
    /// What all clients share, on every core.
    pub server: &'c Arc<Server>,
    /// The records, as this core reaches them.
    pub records: &'c Records,
    /// The connection.
    pub link: &'c mut Link,
    /// The transaction of `EXEC`, while its commands run.
    pub txn: Option<&'c dyn Lent>,
}

/// A transaction that `EXEC` lends to its commands. A trait, because a reference to a [`Txn`] names
/// how long the session lives, which a command need not know.
pub trait Lent: std::fmt::Debug {
    /// As [`Txn::get`].
    ///
    /// # Errors
    /// As [`Txn::get`].
    fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>, Error>;

    /// As [`Txn::put`].
    ///
    /// # Errors
    /// As [`Txn::put`].
    fn put(&self, namespace: Namespace, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// As [`Txn::delete`].
    ///
    /// # Errors
    /// As [`Txn::delete`].
    fn delete(&self, namespace: Namespace, key: &[u8]) -> Result<bool, Error>;

    /// As [`Txn::written`].
    fn written(&self, namespace: Namespace) -> Vec<(Vec<u8>, bool)>;

    /// Does something with the transaction itself.
    fn with(&self, body: &mut dyn FnMut(&Txn<'_>));

    /// What is left of the time that its commands may have.
    fn left(&self) -> Duration;

    /// True once they have had all of it.
    fn is_late(&self) -> bool {
        self.left().is_zero()
    }
}

/// A transaction whose commands have to be done at a time: of [`since_boot`].
#[derive(Debug)]
pub(crate) struct Timed<'t, 's> {
    pub(crate) txn: &'t Txn<'s>,
    pub(crate) until: Duration,
}

impl Lent for Timed<'_, '_> {
    fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>, Error> {
        self.txn.get(namespace, key)
    }

    fn put(&self, namespace: Namespace, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.txn.put(namespace, key, value)
    }

    fn delete(&self, namespace: Namespace, key: &[u8]) -> Result<bool, Error> {
        self.txn.delete(namespace, key)
    }

    fn written(&self, namespace: Namespace) -> Vec<(Vec<u8>, bool)> {
        self.txn.written(namespace)
    }

    fn with(&self, body: &mut dyn FnMut(&Txn<'_>)) {
        body(self.txn);
    }

    fn left(&self) -> Duration {
        self.until.saturating_sub(since_boot())
    }
}

impl<'c> Client<'c> {
    /// This core's session.
    #[inline]
    pub fn session(&self) -> &'c Session {
        self.records.session()
    }

    /// The record of a key, alone or in the transaction of `EXEC`.
    ///
    /// # Errors
    /// What the store says.
    #[inline]
    pub fn read(&self, key: &[u8]) -> Result<Option<Found<'c>>, Refusal> {
        let found = match (self.records.find(key)?, self.txn) {
            (None, _) => None,
            (Some(spot), None) => self.session().get(spot.namespace, spot.key)?.map(Found),
            (Some(spot), Some(txn)) => txn.get(spot.namespace, spot.key)?.map(Found),
        };
        self.records.note(found.is_some());
        Ok(found)
    }

    /// Refuses to go on once the commands of `EXEC` have had their time. Whoever walks asks it
    /// between two slices; `EXEC` itself ends then, whatever a command makes of the refusal.
    ///
    /// # Errors
    /// The time is over.
    pub fn judge_time(&self) -> Result<(), Refusal> {
        match self.txn {
            Some(txn) if txn.is_late() => Err(Refusal::fixed("ERR no time is left")),
            Some(_) | None => Ok(()),
        }
    }

    /// Runs a change in a transaction of its own, again if others were faster, for a while; or in
    /// that of `EXEC`. What it reads is judged behind its end: with each read it would cost the
    /// square of their number.
    ///
    /// # Errors
    /// What `change` or the store says. Nothing was changed then, but `EXEC` goes on.
    pub fn change<T>(
        &self,
        mut change: impl FnMut(&Change<'_, '_>) -> Result<T, Fault>,
    ) -> Result<T, Refusal> {
        if let Some(lent) = self.txn {
            let mut done = None;
            lent.with(&mut |txn| done = Some(change(&Change { records: self.records, txn })));
            return match done {
                Some(done) => done.map_err(Refusal::from),
                None => Err(Refusal::fixed("ERR the transaction of EXEC was not lent")),
            };
        }
        let mut refusal = None;
        let done = self.session().transact_within(PATIENCE, |txn| {
            // That of a run whose reads did not fit together is none.
            refusal = None;
            txn.validated_once(|| {
                change(&Change { records: self.records, txn }).map_err(|fault| match fault {
                    Fault::Store(error) => error,
                    Fault::Refused(why) => {
                        refusal = Some(why);
                        Error::BadArgument { detail: String::new() }
                    }
                })
            })
        });
        match (done, refusal) {
            (Err(_), Some(why)) => Err(why),
            (done, _) => Ok(done?),
        }
    }
}

impl Client<'_> {
    /// Sends a message to all that hear a channel; between MULTI and EXEC behind the commit. How
    /// many hear it.
    pub fn publish(&mut self, channel: &[u8], payload: &[u8]) -> usize {
        if self.txn.is_some() {
            let (hearers, finding) = self.reach(channel);
            self.link.outbox.put(channel, payload, hearers, finding);
            return hearers;
        }
        self.server.publish(channel, payload)
    }

    /// How many hear a channel, and how long it took to find that out.
    pub fn reach(&self, channel: &[u8]) -> (usize, Duration) {
        let begun = since_boot();
        let hearers = self.server.hub.reach(channel);
        (hearers, since_boot().saturating_sub(begun))
    }
}

/// A transaction that a command changes records in.
#[derive(Debug)]
pub struct Change<'r, 's> {
    /// Finds namespaces.
    pub records: &'r Records,
    /// The transaction.
    pub txn: &'r Txn<'s>,
}

impl<'r> Change<'r, '_> {
    /// Where a key's record is to be, with a value of so many bytes: [`Records::make`]. Whatever
    /// else of the request can be refused is judged before.
    ///
    /// # Errors
    /// What the store says.
    pub fn spot<'a>(&self, key: &'a [u8], bytes: usize) -> Result<Spot<'a>, Fault> {
        Ok(self.records.make(key, bytes)?)
    }

    /// The record of a key; `None` if there is none.
    ///
    /// # Errors
    /// What the store says.
    pub fn read(&self, key: &[u8]) -> Result<Option<Found<'r>>, Fault> {
        match self.records.find(key)? {
            Some(spot) => self.read_at(spot),
            None => Ok(None),
        }
    }

    /// As [`Change::read`], at a place that is known.
    ///
    /// # Errors
    /// What the store says.
    pub fn read_at(&self, spot: Spot<'_>) -> Result<Option<Found<'r>>, Fault> {
        Ok(self.txn.get(spot.namespace, spot.key)?.map(Found))
    }

    /// Deletes the record of a key. False if there was none.
    ///
    /// # Errors
    /// What the store says.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Fault> {
        match self.records.find(key)? {
            Some(Spot { namespace, key }) => Ok(self.txn.delete(namespace, key)?),
            None => Ok(false),
        }
    }
}
