//! TATP on a region: its tables are namespaces, its seven transactions are written once, and run in
//! transactions or as plain operations.

use super::model::Model;
use super::population::{TABLES, TableName, populate};
use super::requests::{Kind, Request};
use super::rows::{
    BIT_1, DATA_A, FACILITY_BYTES, IS_ACTIVE, STARTS, SUBSCRIBER_BYTES, TYPES, VLR_LOCATION,
    forwarding_key, forwarding_row, subscriber_key, typed_key,
};
use super::tally::Tally;
use crate::legacy::content::sum;
use crate::legacy::transactions::desk::{missing, wrong};
use nearstate_model::Result;
use nearstate_store::{Namespace, Region, Schema, Session, Txn};

/// A way to rows: a transaction, or plain operations.
trait Rows {
    fn look<T>(
        &self,
        table: Namespace,
        key: &[u8],
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>>;
    fn set(&self, table: Namespace, key: &[u8], row: &[u8]) -> Result<()>;
    fn take(&self, table: Namespace, key: &[u8]) -> Result<bool>;
}

impl Rows for Txn<'_> {
    #[inline]
    fn look<T>(
        &self,
        table: Namespace,
        key: &[u8],
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        Ok(self.get(table, key)?.map(|record| look(record.bytes())))
    }

    #[inline]
    fn set(&self, table: Namespace, key: &[u8], row: &[u8]) -> Result<()> {
        self.put(table, key, row)
    }

    #[inline]
    fn take(&self, table: Namespace, key: &[u8]) -> Result<bool> {
        self.delete(table, key)
    }
}

impl Rows for Session {
    #[inline]
    fn look<T>(
        &self,
        table: Namespace,
        key: &[u8],
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        Ok(self.get(table, key)?.map(|view| look(view.bytes())))
    }

    #[inline]
    fn set(&self, table: Namespace, key: &[u8], row: &[u8]) -> Result<()> {
        self.put(table, key, row).map(|_version| ())
    }

    #[inline]
    fn take(&self, table: Namespace, key: &[u8]) -> Result<bool> {
        self.delete(table, key)
    }
}

/// The tables of a region.
#[derive(Debug)]
pub struct Database {
    session: Session,
    subscriber: Namespace,
    by_number: Namespace,
    access: Namespace,
    facility: Namespace,
    forwarding: Namespace,
}

impl Database {
    /// Opens the tables.
    ///
    /// # Errors
    /// What the region said.
    pub fn of(region: &Region) -> Result<Self> {
        let session = region.session()?;
        let open = |table: TableName| session.namespace(table.name(), &Schema::default());
        let [subscriber, by_number, access, facility, forwarding] = [
            open(TableName::Subscriber)?,
            open(TableName::SubscriberByNumber)?,
            open(TableName::AccessInfo)?,
            open(TableName::SpecialFacility)?,
            open(TableName::CallForwarding)?,
        ];
        Ok(Self { session, subscriber, by_number, access, facility, forwarding })
    }

    fn namespace(&self, table: TableName) -> Namespace {
        match table {
            TableName::Subscriber => self.subscriber,
            TableName::SubscriberByNumber => self.by_number,
            TableName::AccessInfo => self.access,
            TableName::SpecialFacility => self.facility,
            TableName::CallForwarding => self.forwarding,
        }
    }

    /// Fills them.
    ///
    /// # Errors
    /// What the region said.
    pub fn load(&self, seed: u64, subscribers: u32, mut loaded: impl FnMut()) -> Result<()> {
        populate(seed, subscribers, |table, key, row| {
            if table == TableName::Subscriber {
                loaded();
            }
            self.session.put(self.namespace(table), key, row).map(|_version| ())
        })
    }

    /// Does a request in a transaction.
    ///
    /// # Errors
    /// What the region said.
    #[inline]
    pub fn transact(&self, request: &Request, tally: &mut Tally) -> Result<()> {
        let done = self.session.transact(|txn| self.run(txn, request))?;
        tally.count(request.kind, done);
        Ok(())
    }

    /// Does a request by plain operations, which others could come between.
    ///
    /// # Errors
    /// What the region said.
    #[inline]
    pub fn plain(&self, request: &Request, tally: &mut Tally) -> Result<()> {
        let done = self.run(&self.session, request)?;
        tally.count(request.kind, done);
        Ok(())
    }

    /// `None`: it did not find what it looked for, or found what must not be there.
    #[inline]
    fn run(&self, rows: &impl Rows, request: &Request) -> Result<Option<u64>> {
        let s_id = match request.kind {
            Kind::GetSubscriberData
            | Kind::GetAccessData
            | Kind::GetNewDestination
            | Kind::UpdateSubscriberData => request.s_id,
            Kind::UpdateLocation | Kind::InsertCallForwarding | Kind::DeleteCallForwarding => {
                match rows.look(self.by_number, &request.sub_nbr, whole::<4>)? {
                    Some(Some(s_id)) => u32::from_be_bytes(s_id),
                    Some(None) => return Err(wrong("a subscriber's id has another size")),
                    None => return Ok(None),
                }
            }
        };
        match request.kind {
            Kind::GetSubscriberData => rows.look(self.subscriber, &subscriber_key(s_id), sum),
            Kind::GetAccessData => rows.look(self.access, &typed_key(s_id, request.row_type), sum),
            Kind::GetNewDestination => self.get_new_destination(rows, request),
            Kind::UpdateSubscriberData => self.update_subscriber(rows, request),
            Kind::UpdateLocation => {
                let mut row = self.subscriber_row(rows, s_id)?;
                if let Some(location) = row.get_mut(VLR_LOCATION) {
                    location.copy_from_slice(&request.value.to_le_bytes());
                }
                rows.set(self.subscriber, &subscriber_key(s_id), &row)?;
                Ok(Some(0))
            }
            Kind::InsertCallForwarding => self.insert_forwarding(rows, s_id, request),
            Kind::DeleteCallForwarding => {
                let key = forwarding_key(s_id, request.row_type, request.start);
                Ok(rows.take(self.forwarding, &key)?.then_some(0))
            }
        }
    }

    #[inline]
    fn subscriber_row(&self, rows: &impl Rows, s_id: u32) -> Result<[u8; SUBSCRIBER_BYTES]> {
        rows.look(self.subscriber, &subscriber_key(s_id), whole::<SUBSCRIBER_BYTES>)?
            .ok_or_else(missing)?
            .ok_or_else(|| wrong("a subscriber's row has another size"))
    }

    #[inline]
    fn get_new_destination(&self, rows: &impl Rows, request: &Request) -> Result<Option<u64>> {
        let (s_id, sf_type) = (request.s_id, request.row_type);
        let is_active = rows
            .look(self.facility, &typed_key(s_id, sf_type), |row| row.get(IS_ACTIVE) == Some(&1))?;
        if is_active != Some(true) {
            return Ok(None);
        }
        let mut found: Option<u64> = None;
        for start in STARTS.into_iter().filter(|start| *start <= request.start) {
            let key = forwarding_key(s_id, sf_type, start);
            let numberx = rows.look(self.forwarding, &key, |row| match row.split_first() {
                Some((end, numberx)) if request.end < *end => Some(sum(numberx)),
                _ => None,
            })?;
            if let Some(numberx) = numberx.flatten() {
                found = Some(found.unwrap_or(0).wrapping_add(numberx));
            }
        }
        Ok(found)
    }

    #[inline]
    fn update_subscriber(&self, rows: &impl Rows, request: &Request) -> Result<Option<u64>> {
        let key = typed_key(request.s_id, request.row_type);
        let Some(facility) = rows.look(self.facility, &key, whole::<FACILITY_BYTES>)? else {
            return Ok(None);
        };
        let mut facility = facility.ok_or_else(|| wrong("a facility's row has another size"))?;
        let mut row = self.subscriber_row(rows, request.s_id)?;
        let [data_a, bit, ..] = [request.value >> 1, request.value & 1].map(|v| v.to_le_bytes()[0]);
        if let (Some(to), Some(to_bit)) = (facility.get_mut(DATA_A), row.get_mut(BIT_1)) {
            (*to, *to_bit) = (data_a, bit);
        }
        rows.set(self.subscriber, &subscriber_key(request.s_id), &row)?;
        rows.set(self.facility, &key, &facility)?;
        Ok(Some(0))
    }

    #[inline]
    fn insert_forwarding(
        &self,
        rows: &impl Rows,
        s_id: u32,
        request: &Request,
    ) -> Result<Option<u64>> {
        // The transaction selects all facilities of the subscriber before it inserts.
        let mut is_known = false;
        for sf_type in TYPES {
            let is_there = rows.look(self.facility, &typed_key(s_id, sf_type), |_| ())?.is_some();
            is_known |= is_there && sf_type == request.row_type;
        }
        let key = forwarding_key(s_id, request.row_type, request.start);
        if !is_known || rows.look(self.forwarding, &key, |_| ())?.is_some() {
            return Ok(None);
        }
        rows.set(self.forwarding, &key, &forwarding_row(request.end, &request.numberx))?;
        Ok(Some(0))
    }

    /// Compares every row of every table with the model's.
    ///
    /// # Errors
    /// `Backend`: the first row that is not the same.
    pub fn verify(&self, model: &Model) -> Result<u64> {
        let mut counts = [0_u64; TABLES.len()];
        model.rows(|table, key, row| {
            let is_same = self.session.look(self.namespace(table), key, |found| found == row)?;
            if is_same != Some(true) {
                let what = if is_same.is_some() { "another row" } else { "no row" };
                return Err(wrong(&format!("{}: {what} under {key:?}", table.name())));
            }
            if let Some(count) = counts.get_mut(table as usize) {
                *count += 1;
            }
            Ok(())
        })?;
        for table in TABLES {
            let expected = counts.get(table as usize).copied().unwrap_or(0);
            let count = self.session.count(self.namespace(table))?;
            if count != expected {
                let text = format!("{}: {count} rows instead of {expected}", table.name());
                return Err(wrong(&text));
            }
        }
        Ok(counts.iter().sum())
    }
}

/// A row of the size that it must have.
#[inline]
fn whole<const N: usize>(row: &[u8]) -> Option<[u8; N]> {
    row.try_into().ok()
}
