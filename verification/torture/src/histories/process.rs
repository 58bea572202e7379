//! A process of a history: it receives a round on its standard input, executes it, records its
//! operations, and reports the end on its standard output.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use nearstate_store::{BlockChange, Condition, Outcome, Session};

use super::history::{HistoryLine, ReadValue, WrittenValue};
use super::model::{ACCOUNTS, BLOCKS, FIRSTS, HistoryModel, NAMES, NODES, PLAIN, Payload, RECORDS};
use super::recorded_txn::{KeyMap, OperationError, RecordedTxn, RoundContext, encode};
use crate::clock::now_ns;
use crate::error_context::ErrorContext as _;
use crate::region_access::open_session;
use crate::rng::{Rng, percent, seeded};

/// The file of a process's operations.
pub(crate) fn path_of(folder: &Path, worker: u16) -> PathBuf {
    folder.join(format!("history-{worker}"))
}

/// The command for a round: `ROUND MODEL SEED OPERATIONS START_NS FIRST_VALUE`.
struct RoundCommand {
    number: u64,
    model: HistoryModel,
    seed: u64,
    operations: u64,
    start_ns: u64,
    first: u64,
}

impl RoundCommand {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let model = HistoryModel::named(words.next()?)?;
        let mut word = || words.next()?.parse().ok();
        let (seed, operations, start_ns, first) = (word()?, word()?, word()?, word()?);
        Some(Self { number, model, seed, operations, start_ns, first })
    }
}

/// Executes every round that standard input names, until it ends.
pub(crate) fn run(folder: &Path, me: u16) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let places = KeyMap::open(&session)?;
    let path = path_of(folder, me);
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let mut file = file.context(path.display())?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("standard input")?;
        let round = RoundCommand::parse(&line).ok_or_else(|| format!("no round: {line:?}"))?;
        let context =
            RoundContext { session: &session, places, model: round.model, round: round.number };
        let mut worker = RoundWorker {
            context: &context,
            session: &session,
            file: &mut file,
            rng: seeded(&[round.seed, round.number, u64::from(me)]),
            op: 0,
            value: round.first,
        };
        worker.write_line(&HistoryLine::Round(round.first >> 16 & 63))?;
        while now_ns() < round.start_ns {
            std::hint::spin_loop();
        }
        worker.play(round.operations).map_err(|stop| match stop {
            OperationError::Conflict => "an unexpected conflict".to_owned(),
            OperationError::Violation(text) => {
                format!("{} round {}: {text}", round.model.name(), round.number)
            }
        })?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "done {}", round.number)
            .and_then(|()| out.flush())
            .context("standard output")?;
    }
    Ok(())
}

struct RoundWorker<'g> {
    context: &'g RoundContext<'g>,
    session: &'g Session,
    file: &'g mut File,
    rng: Rng,
    op: u64,
    value: u64,
}

/// Values that one operation writes, at most.
const VALUES_PER_OP: u64 = 32;

type TxnBody<'g> = fn(&mut RoundWorker<'g>, &mut RecordedTxn<'g>) -> Result<(), OperationError>;

impl<'g> RoundWorker<'g> {
    fn write_line(&mut self, line: &HistoryLine) -> Result<(), String> {
        self.file.write_all(line.text().as_bytes()).context("history")
    }

    fn play(&mut self, operations: u64) -> Result<(), OperationError> {
        let bodies: &[(u64, TxnBody<'g>)] = match self.context.model {
            HistoryModel::Registers => &[(50, Self::registers), (15, Self::read_all)],
            HistoryModel::Bank => &[(55, Self::transfer), (25, Self::read_all)],
            HistoryModel::Ring => {
                &[(20, Self::insert), (20, Self::remove), (15, Self::rotate), (25, Self::read_all)]
            }
            HistoryModel::Index => {
                &[(35, Self::rename), (10, Self::forget), (15, Self::by_name), (20, Self::read_all)]
            }
        };
        for _ in 0..operations {
            self.pause();
            let mut draw = self.rng.u64(..100);
            let body = bodies.iter().find(|(odds, _)| {
                let is_selected = draw < *odds;
                draw = draw.saturating_sub(*odds);
                is_selected
            });
            match body {
                Some((_, body)) => self.transact(*body)?,
                None if self.context.model == HistoryModel::Registers => self.single()?,
                None => self.single_read()?,
            }
        }
        Ok(())
    }

    /// Sometimes lets other processes run, between any two steps.
    fn pause(&mut self) {
        match self.rng.u64(..100) {
            0..=9 => std::thread::yield_now(),
            10..=12 => {
                let us = 10 + self.rng.u64(..150);
                std::thread::sleep(std::time::Duration::from_micros(us));
            }
            13..=40 => (0..self.rng.u64(..2000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }

    fn next_op(&mut self) -> (u64, u64) {
        self.op += 1;
        self.value += VALUES_PER_OP;
        (self.op, self.value)
    }

    /// One attempt of a transaction. A conflict is a valid result, and the values that were read
    /// before it must be consistent.
    fn transact(&mut self, work: TxnBody<'g>) -> Result<(), OperationError> {
        let (op, first) = self.next_op();
        let call = now_ns();
        let mut txn = RecordedTxn::new(self.context, first)?;
        let done = work(self, &mut txn);
        self.pause();
        let reads = txn.reads();
        let is_read = txn.writes.is_empty();
        match done {
            Err(OperationError::Violation(text)) => return Err(OperationError::Violation(text)),
            Err(OperationError::Conflict) => {
                self.write_line(&HistoryLine::Read { op, call, ret: now_ns(), reads })?;
                return Ok(());
            }
            Ok(()) if is_read => {
                txn.commit()?; // Cannot meet a conflict.
                self.write_line(&HistoryLine::Read { op, call, ret: now_ns(), reads })?;
                return Ok(());
            }
            Ok(()) => {}
        }
        let writes = txn.writes.clone();
        self.write_line(&HistoryLine::Intent { op, call, reads, writes })?;
        let done = txn.commit();
        let ret = now_ns();
        let line = match done {
            Ok(()) => HistoryLine::Done { op, ret, reads: Vec::new() },
            Err(OperationError::Conflict) => HistoryLine::Nothing { op, ret, reads: Vec::new() },
            Err(bad) => return Err(bad),
        };
        Ok(self.write_line(&line)?)
    }

    fn key(&mut self) -> u32 {
        self.rng.u32(..self.context.model.keys())
    }

    fn registers(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        for _ in 0..=self.rng.u64(..5) {
            let key = self.key();
            match self.rng.u64(..100) {
                0..=54 => drop(txn.get(key)?),
                55..=84 => txn.put(key, 0)?,
                85..=94 => txn.delete(key)?,
                _ => txn.delete_record(self.rng.u32(..RECORDS))?,
            }
            self.pause();
        }
        Ok(())
    }

    /// Reads all keys.
    fn read_all(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let keys = self.context.model.keys();
        let from = self.rng.u32(..keys);
        for key in 0..keys {
            txn.get((from + key) % keys)?;
            if key == keys / 2 {
                self.pause();
            }
        }
        Ok(())
    }

    /// An account without money is absent.
    fn transfer(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let (from, to) = (self.rng.u32(..ACCOUNTS), self.rng.u32(..ACCOUNTS));
        let (has, other) = (txn.get(from)?.unwrap_or(0), txn.get(to)?.unwrap_or(0));
        if from == to {
            return Ok(());
        }
        let amount = has.min(1 + self.rng.u64(..25));
        self.pause();
        for (account, has) in [(from, has - amount), (to, other + amount)] {
            if has > 0 {
                txn.put(account, has)?;
            } else {
                txn.delete(account)?;
            }
        }
        Ok(())
    }

    /// A node of the ring, some steps from the first one, and its successor.
    fn walk(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(u32, u32), OperationError> {
        let mut node = 0;
        for _ in 0..=self.rng.u64(..6) {
            let next = txn.get(node)?.and_then(|next| u32::try_from(next).ok());
            let next =
                next.ok_or_else(|| OperationError::Violation(format!("the ring ends at {node}")))?;
            if percent(&mut self.rng, 40) {
                return Ok((node, next));
            }
            node = next;
        }
        let next = txn.get(node)?.and_then(|next| u32::try_from(next).ok());
        Ok((
            node,
            next.ok_or_else(|| OperationError::Violation(format!("the ring ends at {node}")))?,
        ))
    }

    fn insert(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let (node, next) = self.walk(txn)?;
        let new = self.rng.u32(..NODES);
        if txn.get(new)?.is_none() {
            txn.put(new, u64::from(next))?;
            txn.put(node, u64::from(new))?;
        }
        Ok(())
    }

    fn remove(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let (node, next) = self.walk(txn)?;
        if next != 0 && next != node {
            let after = txn.get(next)?.ok_or_else(|| format!("the ring ends at {next}"))?;
            self.pause();
            txn.delete(next)?;
            txn.put(node, after)?;
        }
        Ok(())
    }

    /// Swaps the two nodes after a node.
    fn rotate(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let (node, first) = self.walk(txn)?;
        let missing = || OperationError::Violation("the ring has an end".to_owned());
        let second = txn.get(first)?.ok_or_else(missing)?;
        let second = u32::try_from(second).unwrap_or(u32::MAX);
        if first == node || second == node || first == second {
            return Ok(());
        }
        let after = txn.get(second)?.ok_or_else(missing)?;
        self.pause();
        txn.put(node, u64::from(second))?;
        txn.put(second, u64::from(first))?;
        txn.put(first, after)
    }

    /// Gives a record another name, if the name is free.
    fn rename(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let (record, name) = (self.rng.u32(..FIRSTS), FIRSTS + self.rng.u32(..NAMES));
        if txn.get(name)?.is_some() {
            return Ok(());
        }
        if let Some(old) = txn.get(record)? {
            txn.delete(u32::try_from(old).unwrap_or(u32::MAX))?;
        }
        self.pause();
        txn.put(record, u64::from(name))?;
        txn.put(name, u64::from(record))
    }

    /// Deletes a record and its name.
    fn forget(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let record = self.rng.u32(..FIRSTS);
        if let Some(name) = txn.get(record)? {
            txn.delete(record)?;
            txn.delete(u32::try_from(name).unwrap_or(u32::MAX))?;
        }
        Ok(())
    }

    fn by_name(&mut self, txn: &mut RecordedTxn<'g>) -> Result<(), OperationError> {
        let name = FIRSTS + self.rng.u32(..NAMES);
        if let Some(record) = txn.get(name)? {
            let back = txn.get(u32::try_from(record).unwrap_or(u32::MAX))?;
            if back != Some(u64::from(name)) {
                return Err(OperationError::Violation(format!(
                    "name {name} leads to {record}, which has {back:?}"
                )));
            }
        }
        Ok(())
    }

    fn single_read(&mut self) -> Result<(), OperationError> {
        let (op, _) = self.next_op();
        let key = self.key();
        let call = now_ns();
        let value = self.context.get(key)?;
        Ok(self.write_line(&HistoryLine::Read {
            op,
            call,
            ret: now_ns(),
            reads: vec![(key, value)],
        })?)
    }

    /// A read, or a write followed by reads. Nothing is recorded between them, so that a store
    /// which is not visible yet would be detected.
    fn single(&mut self) -> Result<(), OperationError> {
        if percent(&mut self.rng, 35) {
            return self.single_read();
        }
        let (op, value) = self.next_op();
        let key = self.key();
        let write = match self.rng.u64(..10) {
            0..=5 => PlainWrite::Put,
            6..=7 if key < PLAIN => PlainWrite::PutAbsent,
            _ => PlainWrite::Delete,
        };
        let written = |key, value| WrittenValue { key, value, payload: 0 };
        let is_record = key >= PLAIN && write == PlainWrite::Delete && percent(&mut self.rng, 50);
        let writes = match write {
            PlainWrite::Put | PlainWrite::PutAbsent => vec![written(key, value)],
            PlainWrite::Delete if is_record => {
                let first = key - (key - PLAIN) % BLOCKS;
                (first..first + BLOCKS).map(|key| written(key, 0)).collect()
            }
            PlainWrite::Delete => vec![written(key, 0)],
        };
        let reads = match write {
            PlainWrite::PutAbsent => vec![(key, ReadValue::Exactly(0))],
            PlainWrite::Put | PlainWrite::Delete => Vec::new(),
        };
        let call = now_ns();
        self.write_line(&HistoryLine::Intent { op, call, reads, writes })?;
        let line = self.single_write(op, write, (key, is_record), value)?;
        let mut lines = vec![line];
        for _ in 0..self.rng.u64(..3) {
            let (op, _) = self.next_op();
            let key = self.key();
            let call = now_ns();
            let value = self.context.get(key)?;
            lines.push(HistoryLine::Read { op, call, ret: now_ns(), reads: vec![(key, value)] });
        }
        Ok(lines.iter().try_for_each(|line| self.write_line(line))?)
    }

    fn single_write(
        &self,
        op: u64,
        write: PlainWrite,
        (key, is_record): (u32, bool),
        value: u64,
    ) -> Result<HistoryLine, OperationError> {
        let payload: Payload = 0;
        let location = self.context.location(key);
        let (namespace, name) = (location.namespace, &location.key);
        let bytes = encode(value, payload);
        let none = Vec::new();
        if is_record {
            // The deletion's result says nothing about the blocks: a record may have none.
            self.session.delete(namespace, name)?;
            return Ok(HistoryLine::Done { op, ret: now_ns(), reads: none });
        }
        if let Some(block) = location.block {
            let bytes = (write == PlainWrite::Put).then_some(&bytes[..]);
            let change = BlockChange { name: block, bytes };
            self.session.patch(namespace, name, &[change], Condition::Always)?;
            return Ok(HistoryLine::Done { op, ret: now_ns(), reads: none });
        }
        Ok(match write {
            PlainWrite::Put => {
                self.session.put(namespace, name, &bytes)?;
                HistoryLine::Done { op, ret: now_ns(), reads: none }
            }
            PlainWrite::PutAbsent => {
                match self.session.put_if(namespace, name, &bytes, Condition::Absent)? {
                    Outcome::Done { .. } => HistoryLine::Done { op, ret: now_ns(), reads: none },
                    Outcome::Refused { .. } => HistoryLine::Nothing {
                        op,
                        ret: now_ns(),
                        reads: vec![(key, ReadValue::Some)],
                    },
                }
            }
            PlainWrite::Delete => {
                let was_there = self.session.delete(namespace, name)?;
                let value = if was_there { ReadValue::Some } else { ReadValue::Exactly(0) };
                HistoryLine::Done { op, ret: now_ns(), reads: vec![(key, value)] }
            }
        })
    }
}

/// A write outside of any transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlainWrite {
    Put,
    PutAbsent,
    Delete,
}
