//! Receipts: positions in the log, and whether its consumer has acknowledged them.

use std::time::Duration;

use nearstate_memory::{PositionState, ReplicationPolicy};
use nearstate_model::{Error, Result};

use crate::record::view::View;
use crate::session::{CommitWait, Namespace, Session, WaitRule};

/// A position in the log of the region. What it stands for is *replicated* once the consumer of the
/// commit stream has acknowledged that position ([`CommitStream::acknowledge`]).
///
/// Receipts of one region are ordered as its commits are. One of a region says nothing about
/// another one.
///
/// [`CommitStream::acknowledge`]: crate::CommitStream::acknowledge
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt {
    position: u64,
}

impl Receipt {
    /// A receipt for nothing, which is replicated at any time.
    pub const NONE: Self = Self { position: 0 };

    /// The receipt with this [`Receipt::position`].
    pub const fn of_position(position: u64) -> Self {
        Self { position }
    }

    /// The position in the log; 0 for [`Receipt::NONE`].
    pub const fn position(self) -> u64 {
        self.position
    }
}

impl Session {
    /// The receipt of the last commit of this session in a logged namespace
    /// ([`Session::stream`](crate::Session::stream)); [`Receipt::NONE`] before the first one.
    #[inline]
    pub fn receipt(&self) -> Receipt {
        Receipt { position: self.last_position.get() }
    }

    /// The receipt of the commit that has written a version of a record: that of all commits so far
    /// if the record does not tell. Output that depends on what was read may leave the host when
    /// this is replicated.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn receipt_of(&self, view: &View<'_>) -> Result<Receipt> {
        match view.region_cell().map(|cell| self.member.position_of(&cell)).transpose()?.flatten() {
            Some(position) => Ok(Receipt { position }),
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
        Ok(Receipt { position: self.member.log_tail()? })
    }

    /// True if what a receipt stands for is replicated. Cost: two loads.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn is_replicated(&self, receipt: Receipt) -> Result<bool> {
        Ok(self.receipt_state(receipt)? == ReceiptState::Replicated)
    }

    /// What has become of what a receipt stands for. Cost: two loads, unless the consumer has lost
    /// entries.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn receipt_state(&self, receipt: Receipt) -> Result<ReceiptState> {
        Ok(self.member.position_state(receipt.position)?.into())
    }

    /// Waits until what a receipt stands for is replicated or lost, for at most `timeout`. Spins
    /// for 2 us, then sleeps. While one process sleeps, an acknowledgement costs its consumer a
    /// system call.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn wait_replicated(&self, receipt: Receipt, timeout: Duration) -> Result<ReceiptState> {
        Ok(self.member.wait_for_position(receipt.position, timeout)?.into())
    }
}

/// What has become of what a receipt stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptState {
    /// The consumer has not acknowledged it yet. It stays so if another host has become the owner
    /// since, and this one does not know what the group had got by then.
    Pending,
    /// The consumer has acknowledged it.
    Replicated,
    /// The log has given it up before the consumer read it ([`WhenFull::LoseOldest`]), or it is too
    /// old for the region to know. It stands in this region, and perhaps nowhere else.
    ///
    /// [`WhenFull::LoseOldest`]: crate::WhenFull::LoseOldest
    Lost,
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
        let position = self.owed_position.get();
        if position != 0 {
            self.owed_position.set(0);
        }
        Receipt { position }
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
        if self.last_position.get() != before {
            self.wait_for_commit()?;
        }
        Ok(outcome)
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
        let all = self.receipt_of_all()?;
        if all == Receipt::NONE
            || !self.member.is_replicated_from_here(namespace.index)?
            || self.receipt_state(all)? != ReceiptState::Pending
        {
            return Ok(Receipt::NONE);
        }
        let position = match read {
            Some(view) => view.written_at()?,
            None => None,
        };
        let receipt = position.map_or(all, Receipt::of_position);
        let is_pending = self.receipt_state(receipt)? == ReceiptState::Pending;
        Ok(if is_pending { receipt } else { Receipt::NONE })
    }

    /// As [`Session::receipt_of_read`]: [`Session::take_owed_receipt`] then has it.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn owe_read(&self, namespace: Namespace, read: Option<&View<'_>>) -> Result<()> {
        let receipt = self.receipt_of_read(namespace, read)?;
        self.owed_position.set(self.owed_position.get().max(receipt.position));
        Ok(())
    }

    #[inline]
    fn owe_unchanged(&self, namespace: u32) -> Result<()> {
        let all = self.receipt_of_all()?;
        if all != Receipt::NONE
            && self.member.is_replicated_from_here(namespace)?
            && self.receipt_state(all)? == ReceiptState::Pending
        {
            self.owed_position.set(all.position);
        }
        Ok(())
    }

    /// Behind a deletion that has found no record: waits as the commit that has deleted it.
    #[cold]
    pub(crate) fn wait_unchanged(&self, namespace: u32) -> Result<()> {
        let WaitRule { wait, limit } = self.commit_wait.get();
        let waits = match (wait, self.member.replication_policy(namespace)?) {
            (CommitWait::Never, _) => return self.owe_unchanged(namespace),
            (CommitWait::ByNamespace, policy) => policy == ReplicationPolicy::Replicated,
            (CommitWait::Always, policy) => policy != ReplicationPolicy::Local,
        };
        if !waits {
            return Ok(());
        }
        let all = self.receipt_of_all()?;
        self.wait_replicated(all, limit)?.require(all, limit)
    }

    /// Behind a commit of a logged namespace, without a pin.
    #[cold]
    pub(crate) fn wait_for_commit(&self) -> Result<()> {
        let WaitRule { wait, limit } = self.commit_wait.get();
        let receipt = match wait {
            CommitWait::Never => return Ok(()),
            // An earlier commit, which did not wait, may still be owed.
            CommitWait::ByNamespace => Some(self.take_owed_receipt())
                .filter(|owed| *owed == self.receipt())
                .unwrap_or(Receipt::NONE),
            CommitWait::Always => {
                self.owed_position.set(0);
                self.receipt()
            }
        };
        if receipt == Receipt::NONE {
            return Ok(());
        }
        self.wait_replicated(receipt, limit)?.require(receipt, limit)
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
    /// `NotReplicated` if it is pending, `Lost`.
    pub fn require(self, receipt: Receipt, waited: Duration) -> Result<()> {
        let position = receipt.position;
        match self {
            Self::Replicated => Ok(()),
            Self::Pending => {
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                Err(Error::NotReplicated { position, waited_ms })
            }
            Self::Lost => Err(Error::Lost { position }),
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
        }
    }
}
