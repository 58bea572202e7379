//! Receipts: positions in the log, and whether its consumer has acknowledged them.

use std::time::Duration;

use nearstate_memory::{LogPlace, PositionState, ReplicationPolicy};
use nearstate_model::{Error, Result};

use crate::record::view::View;
use crate::session::{CommitWait, Namespace, Session, WaitRule};

/// A position in the log of the region. What it stands for is *replicated* once the consumer of the
/// commit stream has acknowledged that position ([`CommitStream::acknowledge`]).
///
/// It names the incarnation of the log as well, so it can be kept, sent to other processes and
/// asked for at another host: at the one that has taken the partition over it is *replicated* or
/// *lost*, at any other one *unknown*. Receipts of one region are ordered as its commits are.
///
/// [`CommitStream::acknowledge`]: crate::CommitStream::acknowledge
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt {
    position: u64,
    incarnation: u64,
}

impl Receipt {
    /// A receipt for nothing, which is replicated at any time.
    pub const NONE: Self = Self { position: 0, incarnation: 0 };

    /// The receipt with this [`Receipt::position`] and [`Receipt::incarnation`].
    pub const fn from_parts(position: u64, incarnation: u64) -> Self {
        Self { position, incarnation }
    }

    /// The position in the log; 0 for [`Receipt::NONE`].
    pub const fn position(self) -> u64 {
        self.position
    }

    /// Which log the position is one of: a number for the region and for how often its log has
    /// begun anew. 0 for [`Receipt::NONE`].
    pub const fn incarnation(self) -> u64 {
        self.incarnation
    }

    pub(crate) const fn place(self) -> LogPlace {
        LogPlace { position: self.position, log: self.incarnation }
    }
}

impl Session {
    /// The receipt of the last commit of this session in a logged namespace
    /// ([`Session::stream`](crate::Session::stream)); [`Receipt::NONE`] before the first one.
    #[inline]
    pub fn receipt(&self) -> Receipt {
        self.receipt_here(self.last_position.get())
    }

    /// The position of [`Session::receipt`], 0 before the first one: it tells whether calls between
    /// two looks have committed. Cost: a load of this session's memory.
    #[inline]
    pub fn last_commit_position(&self) -> u64 {
        self.last_position.get()
    }

    /// The receipt of a position of the region's log.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn receipt_at(&self, position: u64) -> Result<Receipt> {
        let LogPlace { position, log } = self.member.place_of(position)?;
        Ok(Receipt { position, incarnation: log })
    }

    /// As [`Session::receipt_at`]. In a damaged region nothing is known of it.
    #[inline]
    fn receipt_here(&self, position: u64) -> Receipt {
        self.receipt_at(position).unwrap_or(Receipt { position, incarnation: 0 })
    }

    /// The receipt of the commit that has written a version of a record: that of all commits so far
    /// if the record does not tell. Output that depends on what was read may leave the host when
    /// this is replicated.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn receipt_of(&self, view: &View<'_>) -> Result<Receipt> {
        match view.region_cell().map(|cell| self.member.position_of(&cell)).transpose()?.flatten() {
            Some(position) => self.receipt_at(position),
            None => self.receipt_of_all(),
        }
    }

    /// A receipt that covers everything that this session has read so far, absent records
    /// included. Load it after the reads.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn receipt_of_all(&self) -> Result<Receipt> {
        self.receipt_at(self.member.log_tail()?)
    }

    /// True if what a receipt stands for is replicated. Cost: seven loads.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn is_replicated(&self, receipt: Receipt) -> Result<bool> {
        Ok(self.receipt_state(receipt)? == ReceiptState::Replicated)
    }

    /// What has become of what a receipt stands for. Cost: seven loads, unless the consumer has
    /// lost entries.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn receipt_state(&self, receipt: Receipt) -> Result<ReceiptState> {
        Ok(self.member.place_state(receipt.place())?.into())
    }

    /// Waits until what a receipt stands for is not pending any more, for at most `timeout`. Of the
    /// processes that wait the first one spins while the log is sent by another processor, for
    /// 200 us at most; then it sleeps, as the others do. While one sleeps, an acknowledgement costs
    /// its consumer a system call.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn wait_replicated(&self, receipt: Receipt, timeout: Duration) -> Result<ReceiptState> {
        Ok(self.member.wait_for_place(receipt.place(), timeout)?.into())
    }
}

/// What has become of what a receipt stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptState {
    /// The consumer has not acknowledged it yet. At a copy of the region that gave the receipt: the
    /// owner knows, and this host decides it when it takes over.
    Pending,
    /// The consumer has acknowledged it.
    Replicated,
    /// Another host owns the partition without it; or the log has given it up before the consumer
    /// read it ([`WhenFull::LoseOldest`]): then it stands in this region, and perhaps nowhere else.
    ///
    /// [`WhenFull::LoseOldest`]: crate::WhenFull::LoseOldest
    Lost,
    /// Nothing is known of it here, and will not be: another host has become the owner, and this
    /// one does not know what the group had by then, or has left the group; or the receipt is of a
    /// log that this region has neither written nor taken over, or too old. Final. Read the record
    /// before the commit is repeated: it may be replicated.
    Unknown,
}

impl Session {
    /// Chooses which commits of this session wait until they are replicated, and for how long at
    /// most. Returns what was chosen before. A session begins with [`CommitWait::ByNamespace`] and
    /// [`REPLICATION_WAIT_MAX`](crate::REPLICATION_WAIT_MAX).
    pub fn set_commit_wait(&self, wait: CommitWait, limit: Duration) -> (CommitWait, Duration) {
        let before = self.commit_wait.replace(WaitRule { wait, limit });
        (before.wait, before.limit)
    }

    /// Runs some calls with another choice, and returns to the present one.
    ///
    /// ```
    /// # use nearstate_store::{CommitWait, CreateOptions, Error, Region, ReplicationPolicy};
    /// # use nearstate_store::Schema;
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// # let millis = std::time::Duration::from_millis;
    /// let policy = ReplicationPolicy::Async;
    /// let ue = session.namespace_with_policy("ue", &Schema::default(), policy)?;
    /// session.put(ue, b"imsi-1", b"idle")?; // does not wait
    /// let put = session.with_commit_wait(CommitWait::Always, millis(5), || {
    ///     session.put(ue, b"imsi-1", b"registered")
    /// });
    /// // No other host has it, but the commit stands.
    /// assert!(matches!(put, Err(Error::NotReplicated { .. })));
    /// assert_eq!(session.get(ue, b"imsi-1")?.expect("it is put").bytes(), b"registered");
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_commit_wait<T>(
        &self,
        wait: CommitWait,
        limit: Duration,
        calls: impl FnOnce() -> T,
    ) -> T {
        let _before = RestoredWait(self, self.commit_wait.replace(WaitRule { wait, limit }));
        calls()
    }

    /// With [`CommitWait::Never`]: the receipt of the last commit that would have waited since the
    /// last call; [`Receipt::NONE`] if there is none. Output that tells of the commit may leave the
    /// host when it is replicated.
    #[inline]
    pub fn take_owed_receipt(&self) -> Receipt {
        match self.owed_position.replace(0) {
            0 => Receipt::NONE,
            position => self.receipt_here(position),
        }
    }

    /// True if [`Session::take_owed_receipt`] has one.
    #[inline]
    pub fn owes_receipt(&self) -> bool {
        self.owed_position.get() != 0
    }

    /// Behind a write: waits if it was logged and must be replicated. `before`: the position of the
    /// last commit before it.
    #[inline]
    pub(crate) fn when_replicated<T>(&self, before: u64, outcome: T) -> Result<T> {
        if self.last_position.get() != before && self.may_wait() {
            self.wait_for_commit()?;
        }
        Ok(outcome)
    }

    /// False if [`Session::wait_for_commit`] waits for nothing.
    #[inline]
    fn may_wait(&self) -> bool {
        match self.commit_wait.get().wait {
            CommitWait::Never => false,
            CommitWait::ByNamespace => self.owed_position.get() != 0,
            CommitWait::Always => true,
        }
    }

    /// With [`CommitWait::Never`], behind a write that may have found nothing to change: if commits
    /// in the namespace wait, all commits so far are owed that are not replicated. Such a write
    /// stands for the earlier one that has made its change, and which was perhaps answered with
    /// `NotReplicated`. Cost: a load in a region without a log, else four.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn owe_all(&self, namespace: Namespace) -> Result<()> {
        self.owe_unchanged(namespace.index)
    }

    /// The receipt to wait for before anything that tells of a read leaves the host: a fail-over
    /// discards a commit that is not replicated, also if it was read. [`Receipt::NONE`] if nothing
    /// has to wait: commits in the namespace do not wait for other hosts, or the record is
    /// replicated. `None`, an absent record, waits for all commits so far.
    ///
    /// Cost: two to six loads.
    ///
    /// ```
    /// # use nearstate_store::{CommitWait, CreateOptions, Receipt, Region, ReplicationPolicy};
    /// # use nearstate_store::Schema;
    /// # use std::time::Duration;
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// let policy = ReplicationPolicy::Replicated;
    /// let ue = session.namespace_with_policy("ue", &Schema::default(), policy)?;
    /// # session.set_commit_wait(CommitWait::Never, Duration::ZERO);
    /// session.put(ue, b"imsi-1", b"registered")?; // by any process
    /// let read = session.get(ue, b"imsi-1")?;
    /// let receipt = session.receipt_of_read(ue, read.as_ref())?;
    /// assert_eq!(receipt, session.receipt());
    /// # session.acknowledge_to(receipt.position())?;
    /// session.wait_replicated(receipt, Duration::from_secs(1))?; // then answer
    /// assert_eq!(session.receipt_of_read(ue, read.as_ref())?, Receipt::NONE);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Damaged`.
    pub fn receipt_of_read(
        &self,
        namespace: Namespace,
        read: Option<&View<'_>>,
    ) -> Result<Receipt> {
        self.receipt_at(self.position_of_read(namespace, read)?)
    }

    /// The position that a read has to wait for, or 0.
    fn position_of_read(&self, namespace: Namespace, read: Option<&View<'_>>) -> Result<u64> {
        let all = self.member.log_tail()?;
        if all == 0
            || !self.member.is_replicated_from_here(namespace.index)?
            || !self.is_pending(all)?
        {
            return Ok(0);
        }
        let position = match read {
            Some(view) => view.written_at()?.unwrap_or(all),
            None => all,
        };
        Ok(if self.is_pending(position)? { position } else { 0 })
    }

    /// Of a position of this region.
    #[inline]
    fn is_pending(&self, position: u64) -> Result<bool> {
        Ok(self.member.position_state(position)? == PositionState::Pending)
    }

    /// As [`Session::receipt_of_read`]: [`Session::take_owed_receipt`] then has it.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn owe_read(&self, namespace: Namespace, read: Option<&View<'_>>) -> Result<()> {
        let position = self.position_of_read(namespace, read)?;
        self.owed_position.set(self.owed_position.get().max(position));
        Ok(())
    }

    #[inline]
    fn owe_unchanged(&self, namespace: u32) -> Result<()> {
        let all = self.member.log_tail()?;
        if all != 0 && self.member.is_replicated_from_here(namespace)? && self.is_pending(all)? {
            self.owed_position.set(all);
        }
        Ok(())
    }

    /// Behind a deletion that has found no record: waits as the commit that has deleted it. What a
    /// follower deletes is in no log of this region either, and waits for none: the last entry of
    /// the own log, which the host has written as the owner, may be lost.
    #[cold]
    pub(crate) fn wait_unchanged(&self, namespace: u32) -> Result<()> {
        if self.member.is_follower() {
            return Ok(());
        }
        let WaitRule { wait, limit } = self.commit_wait.get();
        let waits = match (wait, self.member.replication_policy(namespace)?) {
            (CommitWait::Never, _) => return self.owe_unchanged(namespace),
            (CommitWait::ByNamespace, policy) => policy == ReplicationPolicy::Replicated,
            (CommitWait::Always, policy) => policy != ReplicationPolicy::Local,
        };
        if !waits {
            return Ok(());
        }
        self.wait_here(self.receipt_of_all()?, limit)
    }

    /// Behind a commit of a logged namespace, without a pin.
    #[cold]
    pub(crate) fn wait_for_commit(&self) -> Result<()> {
        let WaitRule { wait, limit } = self.commit_wait.get();
        let last = self.last_position.get();
        match wait {
            CommitWait::Never => return Ok(()),
            // An earlier commit, which did not wait, is still owed to the caller.
            CommitWait::ByNamespace if self.owed_position.get() != last => return Ok(()),
            CommitWait::ByNamespace | CommitWait::Always => self.owed_position.set(0),
        }
        self.wait_here(self.receipt_here(last), limit)
    }

    /// Waits for a receipt that this session has just made. Its position says all: an incarnation
    /// that begins meanwhile does not change it.
    fn wait_here(&self, receipt: Receipt, limit: Duration) -> Result<()> {
        let state = self.member.wait_for_position(receipt.position, limit)?;
        ReceiptState::from(state).require(receipt, limit)
    }
}

/// Returns to an earlier choice, also after a panic.
struct RestoredWait<'s>(&'s Session, WaitRule);

impl Drop for RestoredWait<'_> {
    fn drop(&mut self) {
        self.0.commit_wait.set(self.1);
    }
}

impl ReceiptState {
    /// The error of a commit that has waited so long.
    ///
    /// # Errors
    /// `NotReplicated` if it is pending, `Lost`, `OutcomeUnknown`.
    pub fn require(self, receipt: Receipt, waited: Duration) -> Result<()> {
        let position = receipt.position;
        match self {
            Self::Replicated => Ok(()),
            Self::Pending => {
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                Err(Error::NotReplicated { position, waited_ms })
            }
            Self::Lost => Err(Error::Lost { position }),
            Self::Unknown => Err(Error::OutcomeUnknown { position }),
        }
    }
}

impl From<PositionState> for ReceiptState {
    #[inline]
    fn from(state: PositionState) -> Self {
        match state {
            PositionState::Pending => Self::Pending,
            PositionState::Acknowledged => Self::Replicated,
            PositionState::Lost => Self::Lost,
            PositionState::Unknown => Self::Unknown,
        }
    }
}
