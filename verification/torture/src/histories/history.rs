//! The file in which a process records its operations, line by line, and the history made of it.
//!
//! A line is JSON and one `write(2)`. A line that a kill cut short is not JSON. An intent precedes
//! the call, so the possible writes of a killed process are known. Values: a unique number for each
//! write, 0 for none.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::model::{HistoryModel, KeySnapshot, Payload};

/// What was read of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadValue {
    /// The value with this number; 0 is none.
    Exactly(u64),
    /// Any value.
    Some,
}

/// A written value: its number and payload. The number 0 means a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenValue {
    pub key: u32,
    /// The number of this write.
    pub value: u64,
    pub payload: Payload,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryOp {
    /// The process.
    pub client: u32,
    /// The time of the call.
    pub call: u64,
    /// The time of the return; 0 if it never returned.
    pub ret: u64,
    /// Whether it happened is unknown.
    pub is_unknown: bool,
    /// The values that it read.
    pub reads: Vec<(u32, ReadValue)>,
    /// The values that it wrote.
    pub writes: Vec<WrittenValue>,
}

/// A line of a process's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HistoryLine {
    /// A process begins. The line before may be cut short.
    Round(u64),
    /// It is about to write this, after these reads.
    Intent {
        op: u64,
        call: u64,
        reads: Vec<(u32, ReadValue)>,
        writes: Vec<WrittenValue>,
    },
    /// The write is done, with further reads.
    Done {
        op: u64,
        ret: u64,
        reads: Vec<(u32, ReadValue)>,
    },
    /// Nothing was written; the reads are valid.
    Nothing {
        op: u64,
        ret: u64,
        reads: Vec<(u32, ReadValue)>,
    },
    Read {
        op: u64,
        call: u64,
        ret: u64,
        reads: Vec<(u32, ReadValue)>,
    },
}

impl HistoryLine {
    pub(crate) fn text(&self) -> String {
        let before = if matches!(self, Self::Round(_)) { "\n" } else { "" };
        format!("{before}{}\n", json!(self))
    }
}

/// The operations of one round.
#[derive(Clone, Debug)]
pub struct History {
    /// A name for messages and files.
    pub name: String,
    /// The model.
    pub model: HistoryModel,
    /// The numbers of the values at the start.
    pub start: Vec<u64>,
    /// The operations.
    pub ops: Vec<HistoryOp>,
    /// The payload of each value.
    payloads: BTreeMap<u64, Payload>,
}

/// Counts of a round's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryCounts {
    /// Operations.
    pub ops: u64,
    /// Committed transactions and completed writes.
    pub done: u64,
    /// Transactions that met a conflict, and refused writes.
    pub refused: u64,
    /// Cut short by a kill.
    pub unknown: u64,
}

impl History {
    /// The history before the first operation, with these values.
    pub fn new(name: String, model: HistoryModel, start: &[Option<WrittenValue>]) -> Self {
        let payloads = start.iter().flatten().map(|w| (w.value, w.payload)).collect();
        let start = start.iter().map(|written| written.map_or(0, |w| w.value)).collect();
        Self { name, model, start, ops: Vec::new(), payloads }
    }

    /// Adds the operations that the processes of one client recorded. `deaths` has the times of
    /// their kills.
    pub fn take(
        &mut self,
        client: u32,
        text: &str,
        deaths: &[u64],
    ) -> Result<HistoryCounts, String> {
        let mut counted = HistoryCounts::default();
        let mut open: BTreeMap<u64, HistoryOp> = BTreeMap::new();
        let death_of = |process: u64| {
            let death = usize::try_from(process).ok().and_then(|process| deaths.get(process));
            death.copied().unwrap_or(0)
        };
        let mut process = 0;
        let mut is_cut = false;
        for line in text.lines().filter(|line| !line.is_empty()) {
            let Ok(line) = serde_json::from_str(line) else {
                if is_cut {
                    return Err(format!(
                        "{}: client {client}: an invalid line {line:?}",
                        self.name
                    ));
                }
                is_cut = true;
                continue;
            };
            if let HistoryLine::Round(number) = line {
                counted.unknown += self.cut_short(&mut open, death_of(process));
                (process, is_cut) = (number, false);
                continue;
            }
            if is_cut {
                return Err(format!("{}: client {client}: a line after an invalid one", self.name));
            }
            counted.ops += 1;
            self.take_line(client, line, &mut open, &mut counted)?;
        }
        counted.unknown += self.cut_short(&mut open, death_of(process));
        Ok(counted)
    }

    fn take_line(
        &mut self,
        client: u32,
        line: HistoryLine,
        open: &mut BTreeMap<u64, HistoryOp>,
        counted: &mut HistoryCounts,
    ) -> Result<(), String> {
        let mut close =
            |op: u64| open.remove(&op).ok_or_else(|| format!("operation {op} does not exist"));
        match line {
            HistoryLine::Round(_) => {}
            HistoryLine::Intent { op, call, reads, writes } => {
                self.payloads.extend(writes.iter().map(|w| (w.value, w.payload)));
                let is_unknown = true;
                open.insert(op, HistoryOp { client, call, ret: 0, is_unknown, reads, writes });
                counted.ops -= 1; // Its second line counts.
            }
            HistoryLine::Done { op, ret, reads } => {
                let mut done = close(op)?;
                done.reads.extend(reads);
                (done.ret, done.is_unknown) = (ret, false);
                self.ops.push(done);
                counted.done += 1;
            }
            HistoryLine::Nothing { op, ret, reads } => {
                let mut done = close(op)?;
                done.writes.clear();
                if !reads.is_empty() {
                    done.reads = reads;
                }
                (done.ret, done.is_unknown) = (ret, false);
                self.ops.push(done);
                counted.refused += 1;
            }
            HistoryLine::Read { call, ret, reads, .. } => {
                let (is_unknown, writes) = (false, Vec::new());
                self.ops.push(HistoryOp { client, call, ret, is_unknown, reads, writes });
            }
        }
        Ok(())
    }

    /// Operations that were open when their process was killed may have happened before that.
    fn cut_short(&mut self, open: &mut BTreeMap<u64, HistoryOp>, death: u64) -> u64 {
        let mut count = 0;
        for (_, mut op) in std::mem::take(open) {
            op.ret = death;
            self.ops.push(op);
            count += 1;
        }
        count
    }

    /// An unknown operation whose writes were read happened before its process ended. One whose
    /// writes were never read may not have happened, so its end is unknown.
    pub fn bound_unknown(&mut self) {
        let seen: BTreeSet<u64> = self
            .ops
            .iter()
            .flat_map(|op| op.reads.iter())
            .filter_map(|(_, value)| match value {
                ReadValue::Exactly(value) if *value != 0 => Some(*value),
                ReadValue::Exactly(_) | ReadValue::Some => None,
            })
            .collect();
        for op in self.ops.iter_mut().filter(|op| op.is_unknown) {
            if !op.writes.iter().any(|written| seen.contains(&written.value)) {
                op.ret = 0;
            }
        }
    }

    /// Resolves the operations whose results were not told, for a history in which they may
    /// also happen later, or never. One that a read has seen happened before that read ended, and
    /// then what it has read itself happened as well. One that no read has seen changes no verdict,
    /// so it is left out.
    pub fn resolve_unknown(&mut self) {
        // By value: the latest end of the operation that wrote it.
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        let see = |op: &HistoryOp, seen: &mut BTreeMap<u64, u64>| {
            for (_, value) in &op.reads {
                if let ReadValue::Exactly(value) = value {
                    let first = seen.entry(*value).or_insert(op.ret);
                    *first = op.ret.min(*first);
                }
            }
        };
        for op in &mut self.ops {
            if op.is_unknown {
                op.ret = 0;
            } else {
                see(op, &mut seen);
            }
        }
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for op in self.ops.iter_mut().filter(|op| op.is_unknown) {
                let first = op.writes.iter().filter_map(|written| seen.get(&written.value)).min();
                if let Some(first) = first.copied().filter(|first| op.ret == 0 || *first < op.ret) {
                    op.ret = first;
                    has_changed = true;
                    see(op, &mut seen);
                }
            }
        }
        self.ops.retain(|op| !op.is_unknown || op.ret != 0);
    }

    /// Checks the model's invariant on every snapshot of all keys. Returns the number of snapshots.
    pub fn check_snapshots(&self) -> Result<u64, String> {
        let mut count = 0;
        for op in &self.ops {
            let mut all = KeySnapshot::new();
            for (key, value) in &op.reads {
                let ReadValue::Exactly(value) = value else { continue };
                let payload = match value {
                    0 => None,
                    value => Some(*self.payloads.get(value).ok_or_else(|| {
                        format!("{}: key {key} has {value:x}, which was never written", self.name)
                    })?),
                };
                all.insert(*key, payload);
            }
            if all.len() as u64 == u64::from(self.model.keys()) {
                self.model.check(&all).map_err(|e| {
                    format!("{}: client {} at {}: {e}: {all:?}", self.name, op.client, op.call)
                })?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// The input of the checker.
    pub fn json(&self, limit_ms: u64, page: &str) -> Value {
        let number = |value: u64| value.cast_signed();
        let ops: Vec<Value> = self
            .ops
            .iter()
            .map(|op| {
                let reads = op.reads.iter().map(|(key, value)| match value {
                    ReadValue::Exactly(value) => json!([key, number(*value)]),
                    ReadValue::Some => json!([key, -1]),
                });
                let writes = op.writes.iter().map(|w| json!([w.key, number(w.value)]));
                json!({
                    "client": op.client,
                    "call": op.call,
                    "return": op.ret,
                    "unknown": op.is_unknown,
                    "reads": reads.collect::<Value>(),
                    "writes": writes.collect::<Value>(),
                })
            })
            .collect();
        json!({
            "name": self.name,
            "start": self.start,
            "limit_ms": limit_ms,
            "page": page,
            "ops": ops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of a process: lines as text, or cut short.
    fn written(lines: &[HistoryLine]) -> String {
        lines.iter().map(HistoryLine::text).collect()
    }

    fn intent(op: u64, call: u64, reads: &[(u32, u64)], writes: &[(u32, u64)]) -> HistoryLine {
        let write =
            |(key, value): &(u32, u64)| WrittenValue { key: *key, value: *value, payload: 1 };
        HistoryLine::Intent {
            op,
            call,
            reads: exactly(reads),
            writes: writes.iter().map(write).collect(),
        }
    }

    fn read(op: u64, call: u64, reads: &[(u32, u64)]) -> HistoryLine {
        HistoryLine::Read { op, call, ret: call + 1, reads: exactly(reads) }
    }

    fn exactly(reads: &[(u32, u64)]) -> Vec<(u32, ReadValue)> {
        reads.iter().map(|(key, value)| (*key, ReadValue::Exactly(*value))).collect()
    }

    #[test]
    fn an_operation_without_a_reply_counts_exactly_if_it_was_read() {
        let mut history = History::new("h".to_owned(), HistoryModel::Registers, &[None; 10]);
        // No process saw the value of key 2. That of key 3 was seen by the writer of key 1.
        let text = written(&[
            HistoryLine::Round(0),
            intent(0, 10, &[(3, 0xa3)], &[(1, 0xa1)]),
            intent(1, 20, &[], &[(2, 0xa2)]),
            intent(2, 5, &[], &[(3, 0xa3)]),
            read(7, 30, &[(1, 0xa1)]),
            read(8, 40, &[(1, 0xa1)]),
        ]);
        history.take(0, &text, &[]).unwrap();
        history.resolve_unknown();
        let mut ends: Vec<(u64, bool)> =
            history.ops.iter().map(|op| (op.ret, op.is_unknown)).collect();
        ends.sort_unstable();
        assert_eq!(ends, [(31, false), (31, true), (31, true), (41, false)]);
    }

    #[test]
    fn an_operation_that_was_cut_short_ends_with_its_process_only_if_its_writes_were_read() {
        let mut history = History::new("h".to_owned(), HistoryModel::Bank, &[None; 6]);
        let mut text = written(&[
            HistoryLine::Round(0),
            intent(0, 10, &[], &[(1, 0xa1)]),
            HistoryLine::Done { op: 0, ret: 12, reads: Vec::new() },
            intent(1, 20, &[], &[(1, 0xa2), (2, 0xa3)]),
            read(7, 8, &[]),
        ]);
        text.truncate(text.len() - 2);
        text += &written(&[HistoryLine::Round(1), intent(2, 50, &[], &[(3, 0xa4)])]);
        let counted = history.take(0, &text, &[30, 60]).unwrap();
        assert_eq!(counted, HistoryCounts { ops: 1, done: 1, refused: 0, unknown: 2 });
        let others = [HistoryLine::Round(1), read(0, 70, &[(2, 0xa3), (3, 0)])];
        history.take(1, &written(&others), &[]).unwrap();
        history.bound_unknown();
        let ends: Vec<u64> = history.ops.iter().map(|op| op.ret).collect();
        assert_eq!(ends, [12, 30, 0, 71]);
        // Every part of a line is cut short, and no line follows one.
        let line = read(0, 70, &[(2, 0xa3)]).text();
        for end in 0..line.len() - 1 {
            let cut = format!("{}{}", HistoryLine::Round(1).text(), line.get(..end).unwrap());
            assert_eq!(history.take(2, &cut, &[]).unwrap(), HistoryCounts::default(), "{cut}");
            assert!(end == 0 || history.take(2, &format!("{cut}\n{line}"), &[]).is_err(), "{cut}");
        }
    }
}
