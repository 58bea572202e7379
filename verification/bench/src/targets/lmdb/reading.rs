//! Transactions that begin as read transactions: LMDB has one writer at a time, and most
//! transactions only read.

use super::{Tables, is_write, read_in, scan_in};
use crate::access::{ReplySink, Request, ScanRange, ScanSink, StoreAccess};
use lmdb::RoTransaction;
use nearstate_model::Result;

/// A read transaction whose body may write.
pub(super) struct Reading<'c> {
    pub(super) txn: &'c RoTransaction<'static>,
    pub(super) tables: &'c Tables,
    pub(super) wants_to_write: bool,
}

impl StoreAccess for Reading<'_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        if is_write(request) {
            self.wants_to_write = true;
            // Never returned: the transaction runs again as a write transaction.
            return Err(backend_error!("a write in a read transaction"));
        }
        read_in(self.txn, self.tables, request, receive)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        scan_in(self.txn, self.tables, range, receive)
    }
}
