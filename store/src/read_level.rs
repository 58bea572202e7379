//! Read levels: how much of the owner's commits a read has to see, and whether it may be answered
//! by a copy (`docs/decisions/037-read-levels.md`).

use std::time::Duration;

use nearstate_memory::OwnerLease;
use nearstate_model::{Error, Result};

use crate::log::receipt::{Receipt, ReceiptState};
use crate::session::{Namespace, Session};

/// What a read has to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadLevel {
    /// Everything that was committed before. Only the owner of the partition answers, while it has
    /// its lease. Reads and transactions at this level are strictly serializable over all hosts.
    #[default]
    Owner,
    /// Any prefix of the owner's log: what this host has. It may be behind, and never goes back.
    Prefix,
    /// A prefix of the owner's log that has the commit of a receipt. A client that takes the
    /// receipt of its write with it reads its own write at each host.
    AtLeast(Receipt),
}

impl Session {
    /// Runs reads of a namespace at a level. [`ReadLevel::AtLeast`] waits before them, for at most
    /// `limit`; [`ReadLevel::Owner`] judges behind them, so what they return was true while this
    /// host had its lease.
    ///
    /// ```
    /// # use nearstate_store::{CreateOptions, ReadLevel, Region, Schema};
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// # let ue = session.namespace("ue", &Schema::default())?;
    /// session.put(ue, b"imsi-1", b"registered")?;
    /// let receipt = session.receipt(); // its holder may read at another host
    /// let limit = std::time::Duration::from_millis(50);
    /// let read = session.read_at(ue, ReadLevel::AtLeast(receipt), limit, || {
    ///     Ok(session.get(ue, b"imsi-1")?.map(|view| view.bytes().to_vec()))
    /// })?;
    /// assert_eq!(read.as_deref(), Some(b"registered".as_slice()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotOwner` with the owner's address, `Fenced` (level `Owner`); `Behind`, `Lost`,
    /// `OutcomeUnknown` (level `AtLeast`); those of `reads`; `Damaged`, `Forked`, `System`.
    pub fn read_at<T>(
        &self,
        namespace: Namespace,
        level: ReadLevel,
        limit: Duration,
        reads: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match level {
            ReadLevel::Prefix => reads(),
            ReadLevel::AtLeast(receipt) => {
                self.wait_applied(receipt, limit)?;
                reads()
            }
            ReadLevel::Owner => {
                let read = reads()?;
                self.check_owner(namespace)?;
                Ok(read)
            }
        }
    }

    /// What was read before this call was read at [`ReadLevel::Owner`]. Cost: two loads, and in a
    /// cluster two more and the clock.
    ///
    /// # Errors
    /// `NotOwner` with the owner's address: this host has a copy; `Fenced`: it has no lease at
    /// present; `Damaged`.
    pub fn check_owner(&self, namespace: Namespace) -> Result<()> {
        // Of a host that loses the partition, first the lease ends and then it becomes a copy.
        let is_expired = self.owner_lease()? == OwnerLease::Expired;
        if self.is_others(namespace)? {
            return self.check_may_write(namespace.index);
        }
        if is_expired && self.is_logged(namespace)? {
            return Err(self.fenced(namespace.index)?);
        }
        Ok(())
    }

    /// Waits until this host has the commit of a receipt, for at most `limit`: the owner has, a
    /// copy when it has applied the position. What is read then is at
    /// [`ReadLevel::AtLeast`]. Sleeps on the futex of the log; the follower wakes it.
    ///
    /// # Errors
    /// `Behind`: the copy has not applied it in time; `Lost`; `OutcomeUnknown`: nothing is known of
    /// it here; `Damaged`, `Forked`, `System`.
    pub fn wait_applied(&self, receipt: Receipt, limit: Duration) -> Result<()> {
        if self.member.wait_until_applied(receipt.place(), limit)? {
            return Ok(());
        }
        match self.receipt_state(receipt)? {
            ReceiptState::Lost => Err(Error::Lost { position: receipt.position() }),
            ReceiptState::Unknown => Err(Error::OutcomeUnknown { position: receipt.position() }),
            ReceiptState::Pending | ReceiptState::Replicated => {
                Err(self.not_applied(receipt, limit)?)
            }
        }
    }

    #[cold]
    fn not_applied(&self, receipt: Receipt, limit: Duration) -> Result<Error> {
        let has = self.following()?.map_or(0, |following| following.reached);
        let owner = self.owner_address()?.unwrap_or_else(|| "the owner".to_owned());
        let detail = format!(
            "this copy has position {has} of its owner's log, and not {} within {} ms: wait \
             longer, or read at {owner}",
            receipt.position(),
            limit.as_millis()
        );
        Ok(Error::Behind { detail })
    }

    /// Wakes readers that wait for what this session has applied ([`Session::wait_applied`]). Cost:
    /// a fence and a load, if there are none.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn wake_readers(&self) -> Result<()> {
        self.member.wake_readers()
    }
}
