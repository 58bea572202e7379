//! What a command is given of the client that asked.

use crate::command::command_table::CommandTable;
use crate::connection_state::ConnectionState;
use crate::parse::Args;
use crate::records::{ChangeError, RecordRef, Records, ResolvedKey};
use crate::reply::Reply;
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use nearstate_model::Error;
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_store::{Namespace, Record, RetryPolicy, Session, Txn, since_boot};
use std::sync::Arc;
use std::time::Duration;

/// How long the transaction of one command is tried again when others are faster. Its core serves
/// nobody else meanwhile; a transaction over a thousand records takes some milliseconds.
pub(crate) const RETRY_TIME_MAX: Duration = Duration::from_millis(100);

/// With [`RETRY_TIME_MAX`].
pub(crate) const RETRY_POLICY: RetryPolicy =
    RetryPolicy { tries: TRANSACTION_TRIES, within: Some(RETRY_TIME_MAX) };

/// Carries a command out and writes its one answer. After a refusal nothing that it has written
/// stands: the caller rewinds the reply and writes the refusal.
pub type CommandFn =
    for<'a> fn(&mut CommandContext<'_>, Args<'a>, &mut Reply<'_>) -> Result<(), ErrorReply>;

/// A row of the table.
pub type Command = crate::command::Command<CommandFn>;

/// The client's side of a request.
#[derive(Debug)]
pub struct CommandContext<'c> {
    /// All commands.
    pub table: &'static CommandTable<CommandFn>,
    /// What all clients share, on every core.
    pub server: &'c Arc<RespServer>,
    /// The records, as this core reaches them.
    pub records: &'c Records,
    /// The connection.
    pub connection: &'c mut ConnectionState,
    /// The transaction of `EXEC`, while its commands run.
    pub txn: Option<&'c dyn ExecTxn>,
}

/// A transaction that `EXEC` lends to its commands. A trait, because a reference to a [`Txn`] names
/// how long the session lives, which a command need not know.
pub trait ExecTxn: std::fmt::Debug {
    /// As [`Txn::get`].
    ///
    /// # Errors
    /// As [`Txn::get`].
    fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<Record<'_>>, Error>;

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
pub(crate) struct DeadlineTxn<'t, 's> {
    pub(crate) txn: &'t Txn<'s>,
    pub(crate) deadline: Duration,
}

impl ExecTxn for DeadlineTxn<'_, '_> {
    fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<Record<'_>>, Error> {
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
        self.deadline.saturating_sub(since_boot())
    }
}

impl<'c> CommandContext<'c> {
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
    pub fn read(&self, key: &[u8]) -> Result<Option<RecordRef<'c>>, ErrorReply> {
        let found = match (self.records.resolve(key)?, self.txn) {
            (None, _) => None,
            (Some(resolved), None) => {
                self.session().get(resolved.namespace, resolved.key)?.map(RecordRef::View)
            }
            (Some(resolved), Some(txn)) => {
                txn.get(resolved.namespace, resolved.key)?.map(RecordRef::Record)
            }
        };
        self.records.count_lookup(found.is_some());
        Ok(found)
    }

    /// Refuses to go on once the commands of `EXEC` have had their time. Whoever walks asks it
    /// between two slices; `EXEC` itself ends then, whatever a command makes of the refusal.
    ///
    /// # Errors
    /// The time is over.
    pub fn check_deadline(&self) -> Result<(), ErrorReply> {
        match self.txn {
            Some(txn) if txn.is_late() => Err(ErrorReply::fixed("ERR no time is left")),
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
        mut change: impl FnMut(&CommandTxn<'_, '_>) -> Result<T, ChangeError>,
    ) -> Result<T, ErrorReply> {
        if let Some(exec_txn) = self.txn {
            let mut done = None;
            exec_txn
                .with(&mut |txn| done = Some(change(&CommandTxn { records: self.records, txn })));
            return match done {
                Some(done) => done.map_err(ErrorReply::from),
                None => Err(ErrorReply::fixed("ERR the transaction of EXEC was not lent")),
            };
        }
        let mut refusal = None;
        let done = self.session().transact_within(RETRY_POLICY, |txn| {
            // That of a run whose reads did not fit together is none.
            refusal = None;
            txn.judged_once(|| {
                change(&CommandTxn { records: self.records, txn }).map_err(|fault| match fault {
                    ChangeError::Store(error) => error,
                    ChangeError::Refused(why) => {
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

impl CommandContext<'_> {
    /// Sends a message to all that hear a channel; between MULTI and EXEC behind the commit. How
    /// many hear it.
    pub fn publish(&mut self, channel: &[u8], payload: &[u8]) -> usize {
        if self.txn.is_some() {
            let (subscribers, lookup_time) = self.count_receivers(channel);
            self.connection.deferred_messages.put(channel, payload, subscribers, lookup_time);
            return subscribers;
        }
        self.server.publish(channel, payload)
    }

    /// How many hear a channel, and how long it took to find that out.
    pub fn count_receivers(&self, channel: &[u8]) -> (usize, Duration) {
        let begun = since_boot();
        let subscribers = self.server.pubsub.count_receivers(channel);
        (subscribers, since_boot().saturating_sub(begun))
    }
}

/// A transaction that a command changes records in.
#[derive(Debug)]
pub struct CommandTxn<'r, 's> {
    /// Finds namespaces.
    pub records: &'r Records,
    /// The transaction.
    pub txn: &'r Txn<'s>,
}

impl<'r> CommandTxn<'r, '_> {
    /// Where a key's record is to be, with a value of so many bytes: [`Records::resolve_or_create`]. Whatever
    /// else of the request can be refused is judged before.
    ///
    /// # Errors
    /// What the store says.
    pub fn resolved<'a>(
        &self,
        key: &'a [u8],
        bytes: usize,
    ) -> Result<ResolvedKey<'a>, ChangeError> {
        Ok(self.records.resolve_or_create(key, bytes)?)
    }

    /// The record of a key; `None` if there is none.
    ///
    /// # Errors
    /// What the store says.
    pub fn read(&self, key: &[u8]) -> Result<Option<RecordRef<'r>>, ChangeError> {
        match self.records.resolve(key)? {
            Some(resolved) => self.read_at(resolved),
            None => Ok(None),
        }
    }

    /// As [`CommandTxn::read`], at a place that is known.
    ///
    /// # Errors
    /// What the store says.
    pub fn read_at(&self, resolved: ResolvedKey<'_>) -> Result<Option<RecordRef<'r>>, ChangeError> {
        Ok(self.txn.get(resolved.namespace, resolved.key)?.map(RecordRef::Record))
    }

    /// Deletes the record of a key. False if there was none.
    ///
    /// # Errors
    /// What the store says.
    pub fn delete(&self, key: &[u8]) -> Result<bool, ChangeError> {
        match self.records.resolve(key)? {
            Some(ResolvedKey { namespace, key }) => Ok(self.txn.delete(namespace, key)?),
            None => Ok(false),
        }
    }
}
