//! The arguments of a command's function besides the request: server, records, connection and
//! transaction.

use crate::command::command_table::CommandTable;
use crate::connection_state::ConnectionState;
use crate::parse::Args;
use crate::records::{ChangeError, KeyedRecords, RecordRef, ResolvedKey};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_model::Error;
use nearstate_model::limits::{TRANSACTION_RECORDS_MAX, TRANSACTION_TRIES};
use nearstate_store::{Namespace, RetryPolicy, Session, Txn, View, since_boot};
use std::sync::Arc;
use std::time::Duration;

/// Time limit for retries of a single command's transaction after conflicts. The core serves no
/// other client meanwhile; a transaction over a thousand records takes some milliseconds.
pub(crate) const RETRY_TIME_MAX: Duration = Duration::from_millis(100);

/// Retries until [`RETRY_TIME_MAX`].
pub(crate) const RETRY_POLICY: RetryPolicy =
    RetryPolicy { tries: TRANSACTION_TRIES, within: Some(RETRY_TIME_MAX) };

/// Executes a command and writes its reply. If it returns an error, the caller discards what the
/// function wrote and writes the error.
pub type CommandFn =
    for<'a> fn(&mut CommandContext<'_>, Args<'a>, &mut ReplyWriter<'_>) -> Result<(), ErrorReply>;

/// A row of the table.
pub type RespCommand = crate::command::CommandSpec<CommandFn>;

/// What a command can access.
#[derive(Debug)]
pub struct CommandContext<'c> {
    /// All commands.
    pub table: &'static CommandTable<CommandFn>,
    /// State of all clients on all cores.
    pub server: &'c Arc<RespServer>,
    /// The records, with this core's session.
    pub records: &'c KeyedRecords,
    /// The connection.
    pub connection: &'c mut ConnectionState,
    /// The transaction of `EXEC` while its commands run.
    pub txn: Option<&'c dyn ExecTxn>,
}

/// The transaction of `EXEC`, as its commands see it. A trait, because the type of a reference to
/// [`Txn`] includes the lifetime of the session, which commands need not know.
pub trait ExecTxn: std::fmt::Debug {
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

    /// Calls `body` with the transaction.
    fn with(&self, body: &mut dyn FnMut(&Txn<'_>));

    /// Remaining time of the commands.
    fn left(&self) -> Duration;

    /// True if no time remains.
    fn is_late(&self) -> bool {
        self.left().is_zero()
    }
}

/// A transaction with a deadline, in time of [`since_boot`].
#[derive(Debug)]
pub(crate) struct DeadlineTxn<'t, 's> {
    pub(crate) txn: &'t Txn<'s>,
    pub(crate) deadline: Duration,
}

impl ExecTxn for DeadlineTxn<'_, '_> {
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
        self.deadline.saturating_sub(since_boot())
    }
}

impl<'c> CommandContext<'c> {
    /// The session of this core.
    #[inline]
    pub fn session(&self) -> &'c Session {
        self.records.session()
    }

    /// Reads the record of a key, in the transaction of `EXEC` if there is one.
    ///
    /// # Errors
    /// Those of the store.
    pub fn read(&self, key: &[u8]) -> Result<Option<RecordRef<'c>>, ErrorReply> {
        self.read_inline(key)
    }

    /// As [`CommandContext::read`], as a part of its caller: the record does not travel through
    /// memory.
    ///
    /// # Errors
    /// Those of the store.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of GET")]
    pub(crate) fn read_inline(&self, key: &[u8]) -> Result<Option<RecordRef<'c>>, ErrorReply> {
        let found = match (self.records.resolve(key)?, self.txn) {
            (None, _) => None,
            (Some(resolved), None) => {
                self.session().get_whole(resolved.namespace, resolved.key)?.map(RecordRef)
            }
            (Some(resolved), Some(txn)) => {
                txn.get(resolved.namespace, resolved.key)?.map(RecordRef)
            }
        };
        self.records.count_lookup(found.is_some());
        Ok(found)
    }

    /// Reads keys as they were at one instant, and passes each record to `take`, in the order of
    /// the keys, with its number. Another client's write lets it begin again: what `take` has
    /// done before number 0 does not count. More than [`TRANSACTION_RECORDS_MAX`] keys are read one
    /// after the other, with what is committed in between.
    ///
    /// # Errors
    /// Those of the store; `Conflict` if writes did not leave it an instant for [`RETRY_POLICY`].
    pub fn read_together<'k>(
        &self,
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
        mut take: impl FnMut(usize, Option<&RecordRef<'_>>),
    ) -> Result<(), ErrorReply> {
        let mut hits = 0;
        let count = keys.len();
        if self.txn.is_some() || !(2..=TRANSACTION_RECORDS_MAX).contains(&count) {
            for (number, key) in keys.enumerate() {
                take(number, self.read(key)?.as_ref());
            }
            return Ok(());
        }
        change_alone(self.records, |change| {
            hits = 0;
            for (number, key) in keys.clone().enumerate() {
                let found = match self.records.resolve(key)? {
                    None => None,
                    Some(ResolvedKey { namespace, key }) => {
                        change.txn.get(namespace, key)?.map(RecordRef)
                    }
                };
                hits += usize::from(found.is_some());
                take(number, found.as_ref());
            }
            Ok(())
        })?;
        (0..count).for_each(|number| self.records.count_lookup(number < hits));
        Ok(())
    }

    /// Checks the time limit of `EXEC`. Commands that scan keys call this between two slices;
    /// `EXEC` then fails, even if the command ignores the error.
    ///
    /// # Errors
    /// The time limit is exceeded.
    pub fn check_deadline(&self) -> Result<(), ErrorReply> {
        match self.txn {
            Some(txn) if txn.is_late() => Err(ErrorReply::fixed(
                "ERR time limit of EXEC \
                                                                 exceeded",
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Runs a change in its own transaction with a limited number of retries, or in the transaction
    /// of `EXEC`. Reads are validated once at the end: validation at each read has quadratic cost.
    ///
    /// # Errors
    /// Those of `change` and of the store. Nothing was changed, but `EXEC` continues.
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
        change_alone(self.records, change)
    }
}

/// Runs a change in its own transaction with a limited number of retries.
///
/// # Errors
/// Those of `change` and of the store. Nothing was changed.
pub(crate) fn change_alone<T>(
    records: &KeyedRecords,
    mut change: impl FnMut(&CommandTxn<'_, '_>) -> Result<T, ChangeError>,
) -> Result<T, ErrorReply> {
    let mut error = None;
    let done = records.session().transact_within(RETRY_POLICY, |txn| {
        // An error of a run with inconsistent reads is not valid.
        error = None;
        txn.validated_once(|| {
            change(&CommandTxn { records, txn }).map_err(|fault| match fault {
                ChangeError::Store(error) => error,
                ChangeError::Refused(why) => {
                    error = Some(why);
                    Error::BadArgument { detail: String::new() }
                }
            })
        })
    });
    match (done, error) {
        (Err(_), Some(why)) => Err(why),
        (done, _) => Ok(done?),
    }
}

impl CommandContext<'_> {
    /// Starts a task. A task of one slice replies at once.
    pub(crate) fn begin(
        &mut self,
        mut task: impl SlicedTask + 'static,
        reply: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        if task.step(self.records, self.server, reply)? == TaskProgress::More {
            self.connection.task = Some(Box::new(task));
        }
        Ok(())
    }

    /// Publishes a message: during EXEC after the commit, and with the reply if that waits until a
    /// commit is replicated. Returns the number of receivers.
    pub fn publish(&mut self, channel: &[u8], payload: &[u8]) -> usize {
        if self.txn.is_some() {
            let (subscribers, lookup_time) = self.count_receivers(channel);
            self.connection.deferred_messages.put(channel, payload, subscribers, lookup_time);
            return subscribers;
        }
        self.publish_committed(channel, payload)
    }

    /// As [`CommandContext::publish`], behind the commit of the request if it has one.
    pub(crate) fn publish_committed(&mut self, channel: &[u8], payload: &[u8]) -> usize {
        if self.session().owes_receipt() || self.connection.waiting_messages.is_behind_reply {
            self.connection.waiting_messages.put(channel, payload);
            return self.server.pubsub.count_receivers(channel);
        }
        self.server.publish(channel, payload)
    }

    /// Number of receivers of a channel, and the time to find them.
    pub fn count_receivers(&self, channel: &[u8]) -> (usize, Duration) {
        let begun = since_boot();
        let subscribers = self.server.pubsub.count_receivers(channel);
        (subscribers, since_boot().saturating_sub(begun))
    }
}

/// The transaction in which a command changes records.
#[derive(Debug)]
pub struct CommandTxn<'r, 's> {
    /// Resolves namespaces.
    pub records: &'r KeyedRecords,
    /// The transaction.
    pub txn: &'r Txn<'s>,
}

impl<'r> CommandTxn<'r, '_> {
    /// Resolves a key that is about to be written with a value of `bytes` bytes, as
    /// [`KeyedRecords::resolve_or_create`]. Check everything else that can be rejected before,
    /// because the namespace remains.
    ///
    /// # Errors
    /// Those of the store.
    pub fn resolved<'a>(
        &self,
        key: &'a [u8],
        bytes: usize,
    ) -> Result<ResolvedKey<'a>, ChangeError> {
        Ok(self.records.resolve_or_create(key, bytes)?)
    }

    /// Reads the record of a key; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of the store.
    pub fn read(&self, key: &[u8]) -> Result<Option<RecordRef<'r>>, ChangeError> {
        match self.records.resolve(key)? {
            Some(resolved) => self.read_at(resolved),
            None => Ok(None),
        }
    }

    /// As [`CommandTxn::read`], with a resolved key.
    ///
    /// # Errors
    /// Those of the store.
    pub fn read_at(&self, resolved: ResolvedKey<'_>) -> Result<Option<RecordRef<'r>>, ChangeError> {
        Ok(self.txn.get(resolved.namespace, resolved.key)?.map(RecordRef))
    }

    /// Deletes the record of a key. Returns whether it existed.
    ///
    /// # Errors
    /// Those of the store.
    pub fn delete(&self, key: &[u8]) -> Result<bool, ChangeError> {
        match self.records.resolve(key)? {
            Some(ResolvedKey { namespace, key }) => Ok(self.txn.delete(namespace, key)?),
            None => Ok(false),
        }
    }
}
