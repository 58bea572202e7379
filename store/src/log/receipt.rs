//! Receipts: positions in the log, and whether its consumer has acknowledged them.

use std::time::Duration;

use nearstate_memory::PositionState;
use nearstate_model::Result;

use crate::record::view::View;
use crate::session::Session;

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
    /// The consumer has not acknowledged it yet.
    Pending,
    /// The consumer has acknowledged it.
    Replicated,
    /// The log has given it up before the consumer read it ([`WhenFull::LoseOldest`]), or it is too
    /// old for the region to know. It stands in this region, and perhaps nowhere else.
    ///
    /// [`WhenFull::LoseOldest`]: crate::WhenFull::LoseOldest
    Lost,
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
