//! The expected replies of TATP's transactions, and the expected rows of a subscriber.

use super::model::{Subscriber, TatpModel};
use super::requests::RequestKind;
use super::rows::{
    BIT_1, DATA_A, STARTS, SUBSCRIBER_BYTES, TYPES, forwarding_key, number, subscriber_key,
    typed_key,
};
use crate::access::{Connection, PartSet, PartWrite, TableId};
use nearstate_model::{Error, Result};

/// Subscribers: the first table of the schema.
pub const SUBSCRIBER: TableId = TableId(0);
/// Access rows.
pub const ACCESS: TableId = TableId(1);
/// Facilities.
pub const FACILITY: TableId = TableId(2);
pub const FORWARDING: TableId = TableId(3);

/// A subscriber's part that never changes.
pub const PROFILE: usize = 0;
/// Its `bit_1`.
pub const BIT: usize = 1;
/// Its `vlr_location`.
pub const LOCATION: usize = 2;

/// A facility's part that never changes.
pub const ROW: usize = 0;
/// Its `data_a`.
pub const DATA: usize = 1;

/// Bytes of a profile: the row without `bit_1` and `vlr_location`.
pub const PROFILE_BYTES: usize = SUBSCRIBER_BYTES - 5;

/// A transaction with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct TatpRequest {
    pub kind: RequestKind,
    /// The index of the subscriber among the client's.
    pub slot: u32,
    /// Type of the access row or facility.
    pub row_type: u8,
    /// The start hour of a forwarding.
    pub start: u8,
    /// The hour until which a forwarding must last.
    pub end: u8,
    /// The new bit, `data_a` above it, or the new location.
    pub value: u32,
}

/// A write without a reply yet.
#[derive(Clone, Copy, Debug)]
pub enum PendingUpdate {
    /// Sets a subscriber's location.
    Location(u32),
    /// Sets a subscriber's bit and a facility's byte.
    Update {
        /// The facility.
        sf_type: u8,
        bit_1: u8,
        /// The byte.
        data_a: u8,
    },
    /// Inserts a forwarding for the `times`th time.
    Insert {
        /// The facility.
        sf_type: u8,
        /// Its start hour.
        start: u8,
        /// The number of inserts, with this one.
        times: u16,
    },
    /// Deletes a forwarding.
    Delete {
        /// The facility.
        sf_type: u8,
        /// Its start hour.
        start: u8,
    },
}

impl PendingUpdate {
    /// Applies the write to the model.
    pub fn complete(self, subscriber: &mut Subscriber) {
        match self {
            Self::Location(location) => subscriber.location = location,
            Self::Update { sf_type, bit_1, data_a } => {
                subscriber.bit_1 = bit_1;
                let field = subscriber.data_a.get_mut(usize::from(sf_type - 1));
                if let Some(field) = field {
                    *field = data_a;
                }
            }
            Self::Insert { sf_type, start, times } => {
                subscriber.set_forwarding(sf_type, start, Some(times));
            }
            Self::Delete { sf_type, start } => subscriber.set_forwarding(sf_type, start, None),
        }
    }
}

impl TatpModel {
    /// Forwardings that `GET_NEW_DESTINATION` must find.
    pub fn destinations(&self, request: &TatpRequest) -> u32 {
        let sf_type = request.row_type;
        let Some(subscriber) = self.of(request.slot).filter(|s| s.is_active(sf_type)) else {
            return 0;
        };
        let mut found = 0;
        for start in STARTS.into_iter().filter(|start| *start <= request.start) {
            // None lasts for longer than eight hours.
            if request.end < start + 8
                && let Some(times) = subscriber.forwarding(sf_type, start)
            {
                let row = self.forwarding_row(request.slot, (sf_type, start), times);
                found += u32::from(row.first().is_some_and(|end| request.end < *end));
            }
        }
        found
    }

    /// True if these are the bytes of a subscriber's part, as far as they are checked at once: its
    /// number, and all fields that change.
    pub fn is_subscriber_part(&self, slot: u32, part: usize, bytes: &[u8]) -> bool {
        let Some(subscriber) = self.of(slot) else { return false };
        match part {
            PROFILE => {
                bytes.len() == PROFILE_BYTES
                    && bytes.starts_with(&number(u64::from(self.s_id(slot))))
            }
            BIT => *bytes == [subscriber.bit_1],
            LOCATION => *bytes == subscriber.location.to_le_bytes(),
            _ => false,
        }
    }

    /// True if these are the bytes of a part that a read of one row requests.
    pub fn is_row(&self, request: &TatpRequest, part: usize, bytes: &[u8]) -> bool {
        if request.kind == RequestKind::GetSubscriberData {
            self.is_subscriber_part(request.slot, part, bytes)
        } else {
            *bytes == self.access_row(request.slot, request.row_type)
        }
    }

    /// True if a read of one row has the expected result: a row or none, with this number of right
    /// parts.
    pub fn is_answer(&self, request: &TatpRequest, is_found: bool, right: u32) -> bool {
        if request.kind == RequestKind::GetSubscriberData {
            return is_found && right == 3;
        }
        let has = |subscriber: &Subscriber| subscriber.has_access(request.row_type);
        is_found == self.of(request.slot).is_some_and(has) && right == u32::from(is_found)
    }

    /// True if these are the bytes of a facility's part, as far as they are checked immediately.
    pub fn is_facility(&self, slot: u32, sf_type: u8, (part, bytes): (usize, &[u8])) -> bool {
        let Some(subscriber) = self.of(slot) else { return false };
        match part {
            ROW => bytes.first() == Some(&u8::from(subscriber.is_active(sf_type))),
            DATA => bytes.first() == subscriber.data_a.get(usize::from(sf_type.wrapping_sub(1))),
            _ => false,
        }
    }

    /// True if this is the row of a forwarding.
    pub fn is_forwarding(&self, slot: u32, key: (u8, u8), row: &[u8]) -> bool {
        let times = self.of(slot).and_then(|s| s.forwarding(key.0, key.1));
        times.is_some_and(|times| self.forwarding_row(slot, key, times) == *row)
    }

    /// Every row that a subscriber may have: its table, its key, and its parts if it exists.
    pub fn rows(&self, slot: u32, mut each: impl FnMut(TableId, &[u8], Option<&[PartWrite<'_>]>)) {
        let (Some(subscriber), fresh) = (self.of(slot), self.drawn(slot)) else { return };
        let s_id = self.s_id(slot);
        let row = fresh.row();
        let (bit, location) = ([subscriber.bit_1], subscriber.location.to_le_bytes());
        let profile = without(&row, &[BIT_1, 49, 50, 51, 52]);
        let parts: [PartWrite<'_>; 3] = [(PROFILE, &profile), (BIT, &bit), (LOCATION, &location)];
        each(SUBSCRIBER, &subscriber_key(s_id), Some(&parts));
        for (row_type, data_a) in TYPES.zip(subscriber.data_a) {
            let key = typed_key(s_id, row_type);
            match fresh.access(row_type) {
                Some(row) => each(ACCESS, &key, Some(&[(0, &row)])),
                None => each(ACCESS, &key, None),
            }
            match fresh.facility(row_type) {
                Some(row) => {
                    let rest = without(&row, &[DATA_A]);
                    each(FACILITY, &key, Some(&[(ROW, &rest), (DATA, &[data_a])]));
                }
                None => each(FACILITY, &key, None),
            }
            for start in STARTS {
                let key = forwarding_key(s_id, row_type, start);
                match subscriber.forwarding(row_type, start) {
                    Some(times) => {
                        let row = self.forwarding_row(slot, (row_type, start), times);
                        each(FORWARDING, &key, Some(&[(0, &row)]));
                    }
                    None => each(FORWARDING, &key, None),
                }
            }
        }
    }

    /// True if a write took effect, false if the store contains the state before it. `None` if it
    /// contains neither.
    pub fn was_done(
        &self,
        store: &mut Connection<'_>,
        slot: u32,
        pending: PendingUpdate,
    ) -> Result<Option<bool>> {
        let Some(subscriber) = self.of(slot) else { return Ok(Some(false)) };
        let s_id = self.s_id(slot);
        let mut read = |table, key: &[u8], part| {
            let mut bytes = Vec::new();
            let is_there = store.read(table, key, PartSet::one(part), &mut |found, some| {
                if found == part {
                    bytes = some.to_vec();
                }
            })?;
            Ok::<_, Error>(is_there.then_some(bytes))
        };
        let is = |found: &Option<Vec<u8>>, bytes: &[u8]| found.as_deref() == Some(bytes);
        Ok(match pending {
            PendingUpdate::Location(location) => {
                let found = read(SUBSCRIBER, &subscriber_key(s_id), LOCATION)?;
                let before = is(&found, &subscriber.location.to_le_bytes());
                is(&found, &location.to_le_bytes()).then_some(true).or(before.then_some(false))
            }
            PendingUpdate::Update { sf_type, bit_1, data_a } => {
                let bit = read(SUBSCRIBER, &subscriber_key(s_id), BIT)?;
                let data = read(FACILITY, &typed_key(s_id, sf_type), DATA)?;
                let old = subscriber.data_a.get(usize::from(sf_type - 1)).copied().unwrap_or(0);
                let before = is(&bit, &[subscriber.bit_1]) && is(&data, &[old]);
                let after = is(&bit, &[bit_1]) && is(&data, &[data_a]);
                after.then_some(true).or(before.then_some(false))
            }
            PendingUpdate::Insert { sf_type, start, times } => {
                let found = read(FORWARDING, &forwarding_key(s_id, sf_type, start), 0)?;
                let row = self.forwarding_row(slot, (sf_type, start), times);
                is(&found, &row).then_some(true).or(found.is_none().then_some(false))
            }
            PendingUpdate::Delete { sf_type, start } => {
                let found = read(FORWARDING, &forwarding_key(s_id, sf_type, start), 0)?;
                match found {
                    None => Some(true),
                    Some(row) => self.is_forwarding(slot, (sf_type, start), &row).then_some(false),
                }
            }
        })
    }
}

/// A row without some of its bytes.
fn without(row: &[u8], columns: &[usize]) -> Vec<u8> {
    let kept = row.iter().enumerate().filter(|(at, _)| !columns.contains(at));
    kept.map(|(_, byte)| *byte).collect()
}
