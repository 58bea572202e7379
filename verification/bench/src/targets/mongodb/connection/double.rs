//! A server within a test: takes messages, keeps records, and answers as it is told to. It knows of
//! the protocol what its makers document, and uses nothing of the client's.

use crate::targets::wire::Stream;
use bson::{Bson, Document, doc};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;

/// What happens to an answer on its way.
#[derive(Clone, Debug)]
pub(super) enum Mischief {
    /// These bytes come in its place, and then the connection is closed.
    Bytes(Vec<u8>),
    /// This document comes in its place.
    Say(Document),
    /// It changes places with the next one.
    Swap,
}

/// An index: its field, and whether records without it are in it.
#[derive(Debug)]
struct Index {
    field: String,
    is_sparse: bool,
}

#[derive(Debug, Default)]
struct Collection {
    unique: Vec<Index>,
    records: BTreeMap<String, Document>,
}

impl Collection {
    /// Whether a unique index refuses a record.
    fn refuses(&self, record: &Document) -> bool {
        let key = record.get_str("_id").unwrap();
        self.unique.iter().any(|index| {
            let value = record.get(&index.field);
            let is_in = value.is_some() || !index.is_sparse;
            let has = |(other, there): (&String, &Document)| {
                other != key && there.get(&index.field) == value
            };
            is_in && self.records.iter().any(has)
        })
    }
}

/// The server and both directions of its connection.
#[derive(Debug)]
pub(super) struct Double {
    is_ferretdb: bool,
    mischief: Mischief,
    /// The message whose answer it happens to, counted from 1; none has number 0.
    at: i32,
    /// Bytes that one look at the connection brings at the most.
    step: usize,
    /// Records of one batch at the most.
    batch: usize,
    asked: Vec<u8>,
    answers: VecDeque<u8>,
    held: Vec<u8>,
    is_closed: bool,
    collections: BTreeMap<String, Collection>,
    /// What a cursor has yet to give.
    rest: Vec<Document>,
    told: Rc<RefCell<Told>>,
}

/// What came, for a test to look at.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The names of commands, one for each message.
    pub(super) heard: Vec<String>,
    /// Messages of one piece at the most.
    pub(super) together: usize,
}

impl Double {
    pub(super) fn new(is_ferretdb: bool) -> Self {
        Self {
            is_ferretdb,
            mischief: Mischief::Swap,
            at: 0,
            step: usize::MAX,
            batch: usize::MAX,
            asked: Vec::new(),
            answers: VecDeque::new(),
            held: Vec::new(),
            is_closed: false,
            collections: BTreeMap::new(),
            rest: Vec::new(),
            told: Rc::default(),
        }
    }

    pub(super) fn told(&self) -> Rc<RefCell<Told>> {
        Rc::clone(&self.told)
    }

    pub(super) fn with(mut self, mischief: Mischief, at: i32) -> Self {
        (self.mischief, self.at) = (mischief, at);
        self
    }

    pub(super) fn stepping(mut self, step: usize) -> Self {
        self.step = step;
        self
    }

    pub(super) fn in_batches_of(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// One message, as the client wrote it.
    fn take(&mut self, message: &[u8]) {
        let word = |at: usize| i32::from_le_bytes(message[at..at + 4].try_into().unwrap());
        assert_eq!((word(8), word(12), word(16)), (0, 2013, 0), "no answer, OP_MSG, no flags");
        let mut left = &message[20..];
        assert_eq!(left[0], 0, "the command comes first");
        left = &left[1..];
        let mut command = Document::from_reader(&mut left).unwrap();
        while let Some((1, field)) = left.split_first() {
            let length = u32::from_le_bytes(field[..4].try_into().unwrap()) as usize;
            let end = field.iter().skip(4).position(|byte| *byte == 0).unwrap() + 4;
            let name = std::str::from_utf8(&field[4..end]).unwrap();
            let mut documents = &field[end + 1..length];
            let mut all = Vec::new();
            while !documents.is_empty() {
                all.push(Bson::Document(Document::from_reader(&mut documents).unwrap()));
            }
            command.insert(name, all);
            left = &field[length..];
        }
        assert!(left.is_empty(), "nothing stands behind");
        let answer = self.answer(&command);
        self.give(word(4), &answer);
    }

    fn give(&mut self, number: i32, answer: &Document) {
        if number != self.at {
            self.answers.extend(message(number, answer));
            return self.answers.extend(self.held.drain(..));
        }
        match self.mischief.clone() {
            Mischief::Bytes(bytes) => {
                self.answers.extend(bytes);
                self.is_closed = true;
            }
            Mischief::Say(document) => self.answers.extend(message(number, &document)),
            Mischief::Swap => self.held = message(number, answer),
        }
    }

    fn answer(&mut self, command: &Document) -> Document {
        let (name, table) = command.iter().next().unwrap();
        self.told.borrow_mut().heard.push(name.clone());
        let of = |name: &str| command.get_array(name).unwrap()[0].as_document().unwrap().clone();
        let mut answer = match name.as_str() {
            "buildInfo" if self.is_ferretdb => {
                doc! { "version": "7.0.77", "ferretdbVersion": "v1.24.0" }
            }
            "hello" => doc! { "isWritablePrimary": true, "maxWireVersion": 21 },
            "buildInfo" => doc! { "version": "7.0.14" },
            "serverStatus" => doc! { "pid": 4242_i64 },
            "getMore" => self.next("nextBatch"),
            "killCursors" => {
                self.rest.clear();
                doc! {}
            }
            other => {
                assert_eq!(command.get_str("$db").unwrap(), "nearstate");
                let collection = self.collections.entry(table.to_string()).or_default();
                match other {
                    "create" => doc! {},
                    "createIndexes" => indexes(collection, command),
                    "update" => update(collection, &of("updates"), self.is_ferretdb),
                    "delete" => {
                        let key = of("deletes").get_document("q").unwrap().clone();
                        let gone = collection.records.remove(key.get_str("_id").unwrap());
                        doc! { "n": i32::from(gone.is_some()) }
                    }
                    "find" => {
                        self.rest = found(collection, command);
                        self.next("firstBatch")
                    }
                    _ => doc! { "ok": 0.0, "code": 59, "errmsg": "no such command" },
                }
            }
        };
        if !answer.contains_key("ok") {
            answer.insert("ok", 1.0);
        }
        answer
    }

    fn next(&mut self, name: &str) -> Document {
        let some: Vec<_> = self.rest.drain(..self.batch.min(self.rest.len())).collect();
        let cursor = if self.rest.is_empty() { 0_i64 } else { 77 };
        doc! { "cursor": { name: some, "id": cursor, "ns": "nearstate.x" } }
    }
}

fn indexes(collection: &mut Collection, command: &Document) -> Document {
    for index in command.get_array("indexes").unwrap() {
        let index = index.as_document().unwrap();
        if index.get_bool("unique").unwrap() {
            let (field, _) = index.get_document("key").unwrap().iter().next().unwrap();
            let is_sparse = index.get_bool("sparse").unwrap_or(false);
            collection.unique.push(Index { field: field.clone(), is_sparse });
        }
    }
    doc! {}
}

fn update(collection: &mut Collection, one: &Document, is_ferretdb: bool) -> Document {
    let key = one.get_document("q").unwrap().get_str("_id").unwrap();
    let there = collection.records.get(key);
    let change = one.get_document("u").unwrap();
    let is_change = change.keys().any(|name| name.starts_with('$'));
    let mut record = match there {
        None if !one.get_bool("upsert").unwrap_or(false) => {
            return doc! { "n": 0, "nModified": 0 };
        }
        None => doc! { "_id": key },
        Some(there) => there.clone(),
    };
    if is_change {
        for (name, fields) in change {
            let fields = fields.as_document().unwrap();
            assert!(!fields.is_empty(), "servers refuse an operator without fields");
            for (field, value) in fields {
                match name.as_str() {
                    "$set" => drop(record.insert(field, value.clone())),
                    "$unset" => drop(record.remove(field)),
                    other => panic!("{other}"),
                }
            }
        }
    } else {
        record = change.clone();
        assert_eq!(record.get_str("_id").unwrap(), key);
    }
    if collection.refuses(&record) {
        let text = "E11000 duplicate key error collection: nearstate.x index: t0";
        if is_ferretdb && there.is_some() {
            return doc! { "ok": 0.0, "code": 1, "errmsg": "(2067) UNIQUE constraint failed: x" };
        }
        let error = doc! { "index": 0, "code": 11000, "errmsg": text };
        return doc! { "n": 0, "nModified": 0, "writeErrors": [error] };
    }
    collection.records.insert(key.to_owned(), record);
    doc! { "n": 1, "nModified": 1 }
}

fn found(collection: &Collection, command: &Document) -> Vec<Document> {
    let (field, wanted) = command.get_document("filter").unwrap().iter().next().unwrap();
    let is_wanted = |record: &&Document| match wanted.as_document() {
        Some(least) => record.get_str(field).unwrap() >= least.get_str("$gte").unwrap(),
        None => record.get(field) == Some(wanted),
    };
    let shown = |record: &Document| {
        let Ok(projection) = command.get_document("projection") else { return record.clone() };
        let is_shown = |name: &String| match projection.get_i32(name) {
            Ok(is_shown) => is_shown == 1,
            Err(_) => name == "_id",
        };
        record
            .iter()
            .filter(|(name, _)| is_shown(name))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect()
    };
    let limit = usize::try_from(command.get_i32("limit").unwrap()).unwrap();
    assert!(limit > 0, "no limit is all of them");
    collection.records.values().filter(is_wanted).take(limit).map(shown).collect()
}

/// A message with one document.
pub(super) fn message(answered: i32, document: &Document) -> Vec<u8> {
    let body = document.to_vec().unwrap();
    let length = i32::try_from(21 + body.len()).unwrap();
    let head = [length, 9000 + answered, answered, 2013, 0].map(i32::to_le_bytes).concat();
    [head.as_slice(), &[0], &body].concat()
}

impl Stream for Double {}

impl Write for Double {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.is_closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.asked.extend_from_slice(bytes);
        let mut count = 0;
        while let Some(length) = self.asked.first_chunk().map(|word| i32::from_le_bytes(*word)) {
            let length = usize::try_from(length).unwrap();
            if self.asked.len() < length {
                break;
            }
            let message: Vec<u8> = self.asked.drain(..length).collect();
            self.take(&message);
            count += 1;
        }
        let mut told = self.told.borrow_mut();
        told.together = told.together.max(count);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for Double {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.answers.is_empty() && !self.is_closed {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.step.min(into.len()).min(self.answers.len());
        for (place, byte) in into.iter_mut().zip(self.answers.drain(..count)) {
            *place = byte;
        }
        Ok(count)
    }
}
