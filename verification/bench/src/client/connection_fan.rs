//! Several connections of one client process, used as one: the requests of a step are spread over
//! them, all are sent, then all answers are read.
//!
//! So one process is many clients for a server: it makes two system calls for each connection and
//! step, and never waits for one answer while other requests could be sent.

use crate::access::{
    BatchSink, Body, PartWrite, RecordRead, RecordTag, ReplySink, Request, ScanRange, ScanSink,
    StoreAccess, StoreConnection, TableId, Work,
};
use crate::operations::{BlockOutcome, KeyBlock, Operation};
use nearstate_model::Result;

/// The connections. Single requests go to the first one.
pub(crate) struct ConnectionFan {
    connections: Vec<Box<dyn StoreConnection>>,
}

impl ConnectionFan {
    /// Opens `count` connections.
    pub(crate) fn open(
        count: usize,
        mut connect: impl FnMut() -> Result<Box<dyn StoreConnection>>,
    ) -> Result<Self> {
        let connections = (0..count.max(1)).map(|_| connect()).collect::<Result<_>>()?;
        Ok(Self { connections })
    }

    fn first(&mut self) -> Result<&mut Box<dyn StoreConnection>> {
        let none = || bad_argument!("a client without connections");
        self.connections.first_mut().ok_or_else(none)
    }

    /// Requests of each connection in one step.
    fn share(&self, requests: usize) -> usize {
        requests.div_ceil(self.connections.len().max(1)).max(1)
    }
}

impl StoreAccess for ConnectionFan {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        self.first()?.perform(request, receive)
    }

    fn find_and_change(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        parts: &[PartWrite<'_>],
        key: &mut Vec<u8>,
    ) -> Result<bool> {
        self.first()?.find_and_change(table, tag, parts, key)
    }

    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        self.first()?.update(read, work)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        self.first()?.scan(range, receive)
    }
}

impl StoreConnection for ConnectionFan {
    fn is_null(&self) -> bool {
        self.connections.iter().any(|one| one.is_null())
    }

    fn is_lost(&self) -> bool {
        self.connections.iter().any(|one| one.is_lost())
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        self.first()?.transact(body)
    }

    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        self.first()?.run_block(operation, block)
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        self.first()?.walk(table)
    }

    fn prefetch(&mut self, requests: &[Request<'_>]) {
        let share = self.share(requests.len());
        for (connection, some) in self.connections.iter_mut().zip(requests.chunks(share)) {
            connection.prefetch(some);
        }
    }

    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        let share = self.share(requests.len());
        for (connection, some) in self.connections.iter_mut().zip(requests.chunks(share)) {
            connection.send_ahead(some)?;
        }
        let mut first = 0;
        for (connection, some) in self.connections.iter_mut().zip(requests.chunks(share)) {
            connection.receive_ahead(some, &mut |number, reply| receive(first + number, reply))?;
            first += some.len();
        }
        Ok(())
    }
}
