//! A writer: a process that has attached the region of its host. It writes while the host owns the
//! partition, and tries again while it does not.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use nearstate_store::{Error, Namespace, OwnerLease, Receipt, ReceiptState, Session};

use super::shared_files::{
    HISTORY, LOAD, SLOTS, acknowledged_file, count_key, history_file, history_key, number_in,
    round_file, seen_file, slot_key, slot_value,
};
use crate::clock::now_ns;
use crate::error_context::ErrorContext as _;
use crate::histories::history::{HistoryLine, ReadValue, WrittenValue};
use crate::histories::model::HistoryModel;
use crate::region_access::open_session;
use crate::rng::{Rng, percent};

/// Transactions between two waits for their receipts.
const BATCH: u64 = 4;

/// How long a receipt is waited for. One that is pending then is looked at again later.
const RECEIPT_MAX: Duration = Duration::from_millis(100);

/// Receipts that are kept. A log has at most so many entries that are not replicated in a test.
const PENDING_MAX: usize = 4096;

/// The pause after a refusal, and between two batches.
const REFUSED_PAUSE: Duration = Duration::from_millis(3);
const BATCH_PAUSE: Duration = Duration::from_millis(2);

struct ClusterWriter<'f> {
    folder: &'f Path,
    host: u16,
    process: u64,
    session: Session,
    acknowledged: File,
    /// Numbers of transactions without an answer, with their receipts.
    pending: Vec<(u64, Receipt)>,
    next: u64,
    /// The round that it has seen.
    round: Option<u64>,
    history: Option<File>,
    operations: u64,
}

fn opened(path: &Path) -> Result<File, String> {
    File::options().create(true).append(true).open(path).context(path.display())
}

/// Writes until standard input ends.
pub(crate) fn write(
    folder: &Path,
    host: u16,
    process: u64,
    region: &Path,
    rng: &mut Rng,
) -> Result<(), String> {
    let ends = std::thread::spawn(|| std::io::stdin().read(&mut [0]).map(drop));
    let session = open_session(region)?;
    let mut writer = ClusterWriter {
        folder,
        host,
        process,
        session,
        acknowledged: opened(&acknowledged_file(folder, host))?,
        pending: Vec::new(),
        next: (process << 32) + 1,
        round: None,
        history: None,
        operations: 0,
    };
    while !ends.is_finished() {
        writer.look_at_round()?;
        if writer.round == Some(0) {
            writer.wait_for_receipts(Duration::ZERO)?;
            std::thread::sleep(BATCH_PAUSE);
            continue;
        }
        match writer.batch(rng) {
            Ok(()) => std::thread::sleep(BATCH_PAUSE),
            Err(error) if is_refusal(&error) => std::thread::sleep(REFUSED_PAUSE),
            Err(error) => return Err(error.to_string()),
        }
        writer.wait_for_receipts(RECEIPT_MAX)?;
    }
    Ok(())
}

/// True for an answer that a host gives which does not own the partition, or whose copy is being
/// replaced, or whose log waits for members.
pub(super) const fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NotOwner { .. }
            | Error::Fenced { .. }
            | Error::Behind { .. }
            | Error::Conflict { .. }
            | Error::Deadline { .. }
            | Error::Stalled { .. }
            | Error::NoObject { .. }
    )
}

impl ClusterWriter<'_> {
    /// Follows the round of the run.
    fn look_at_round(&mut self) -> Result<(), String> {
        let round = number_in(&round_file(self.folder));
        if Some(round) != self.round {
            self.round = Some(round);
            self.history = None;
            let seen = seen_file(self.folder, self.host);
            std::fs::write(&seen, round.to_string()).map_err(|error| error.to_string())?;
        }
        if round != 0 && self.history.is_none() {
            let file = opened(&history_file(self.folder, self.host, round))?;
            self.history = Some(file);
            self.record(&HistoryLine::Round(self.process))?;
        }
        Ok(())
    }

    fn record(&self, line: &HistoryLine) -> Result<(), String> {
        let Some(mut file) = self.history.as_ref() else { return Ok(()) };
        file.write_all(line.text().as_bytes()).context("history")
    }

    fn namespace(&self, name: &str) -> nearstate_store::Result<Namespace> {
        // A copy that is replaced has none.
        let missing = || Error::NotOwner { namespace: name.into(), address: None };
        self.session.known_namespace(name)?.ok_or_else(missing)
    }

    /// Some transactions of records, and one on the registers of the round.
    fn batch(&mut self, rng: &mut Rng) -> nearstate_store::Result<()> {
        let load = self.namespace(LOAD)?;
        for _ in 0..BATCH {
            let (host, number) = (self.host, self.next);
            // Also a transaction that was refused has used its number.
            self.next += 1;
            self.session.transact(|txn| {
                let value = slot_value(host, number);
                txn.put(load, slot_key(host, number % SLOTS).as_bytes(), &value)?;
                txn.put(load, count_key(host).as_bytes(), &number.to_le_bytes())
            })?;
            if self.pending.len() < PENDING_MAX {
                self.pending.push((number, self.session.receipt()));
            }
        }
        let failed = |detail| Error::Backend { detail };
        if percent(rng, 50) { self.read(rng) } else { self.update(rng) }?.map_err(failed)
    }

    /// Notes which transactions are replicated. Each one has its own receipt: a fail-over may lie
    /// between two of them.
    fn wait_for_receipts(&mut self, most: Duration) -> Result<(), String> {
        let failed = |error: Error| format!("receipt: {error}");
        if let Some((_, last)) = self.pending.last() {
            self.session.wait_replicated(*last, most).map_err(failed)?;
        }
        let mut lines = String::new();
        let mut left = Vec::new();
        for (number, receipt) in std::mem::take(&mut self.pending) {
            match self.session.receipt_state(receipt).map_err(failed)? {
                ReceiptState::Replicated => drop(writeln!(lines, "{number} .")),
                ReceiptState::Pending => left.push((number, receipt)),
                ReceiptState::Lost | ReceiptState::Unknown => {}
            }
        }
        self.pending = left;
        self.acknowledged.write_all(lines.as_bytes()).map_err(|error| error.to_string())
    }

    fn draw_key(rng: &mut Rng) -> u32 {
        rng.u32(..HistoryModel::Registers.keys())
    }

    /// Reads two registers. The values are told only when they are replicated and the host has
    /// its lease after the read.
    fn read(&mut self, rng: &mut Rng) -> nearstate_store::Result<Result<(), String>> {
        let namespace = self.namespace(HISTORY)?;
        let keys = [Self::draw_key(rng), Self::draw_key(rng)];
        let (round, call) = (self.round.unwrap_or(0), now_ns());
        let reads = self.session.transact(|txn| {
            let read = |key: &u32| -> nearstate_store::Result<(u32, ReadValue)> {
                let view = txn.get(namespace, history_key(round, *key).as_bytes())?;
                Ok((*key, value_of(view.as_ref().map(nearstate_store::View::bytes))))
            };
            keys.iter().map(read).collect::<nearstate_store::Result<Vec<_>>>()
        })?;
        let receipt = self.session.receipt_of_all()?;
        let is_owner = matches!(self.session.owner_lease()?, OwnerLease::Held { .. });
        if is_owner
            && self.session.wait_replicated(receipt, RECEIPT_MAX)? == ReceiptState::Replicated
        {
            let (op, ret) = (self.operations, now_ns());
            self.operations += 1;
            return Ok(self.record(&HistoryLine::Read { op, call, ret, reads }));
        }
        Ok(Ok(()))
    }

    /// Reads a register and writes another one.
    fn update(&mut self, rng: &mut Rng) -> nearstate_store::Result<Result<(), String>> {
        let namespace = self.namespace(HISTORY)?;
        let (from, to) = (Self::draw_key(rng), Self::draw_key(rng));
        let (round, op, call) = (self.round.unwrap_or(0), self.operations, now_ns());
        self.operations += 1;
        let value = u64::from(self.host + 1) << 56 | self.process << 32 | (op & 0xffff_ffff);
        let txn = self.session.begin()?;
        let read = {
            let view = txn.get(namespace, history_key(round, from).as_bytes())?;
            value_of(view.as_ref().map(nearstate_store::View::bytes))
        };
        let key = history_key(round, to);
        txn.put(namespace, key.as_bytes(), format!("{value:x}").as_bytes())?;
        let writes = vec![WrittenValue { key: to, value, payload: 0 }];
        let reads = vec![(from, read)];
        if let Err(error) = self.record(&HistoryLine::Intent { op, call, reads, writes }) {
            return Ok(Err(error));
        }
        // After a refusal or without an answer the operation stays open: its result is not told.
        txn.commit()?;
        let receipt = self.session.receipt();
        if self.session.wait_replicated(receipt, RECEIPT_MAX)? == ReceiptState::Replicated {
            let (ret, reads) = (now_ns(), Vec::new());
            return Ok(self.record(&HistoryLine::Done { op, ret, reads }));
        }
        Ok(Ok(()))
    }
}

/// The number of a value; 0 is none.
pub(super) fn value_of(bytes: Option<&[u8]>) -> ReadValue {
    let number = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        u64::from_str_radix(text, 16).ok()
    };
    // A value that no process wrote is one that no history explains.
    ReadValue::Exactly(bytes.map_or(0, |bytes| number(bytes).unwrap_or(u64::MAX)))
}
